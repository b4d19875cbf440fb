"""stratalog read, tail, topics and stats: everything that only looks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog import Record
from stratalog.cli.app import app

SECOND = 10**9
NOON = 1_577_880_000 * SECOND  # 2020-01-01T12:00:00Z


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def _json(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten records a second apart from noon on, with offsets for values."""
    path = tmp_path / "store"
    with stratalog.open(path) as opened:
        opened.topic("orders").append_many(
            [Record(value=b"%d" % n, timestamp=NOON + n * SECOND) for n in range(10)]
        )
    return path


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Every kind of record there is, with one that has expired in their midst."""
    path = tmp_path / "odd"
    with stratalog.open(path) as opened:
        opened.topic("odd").append_many(
            [
                Record(value=b"plain", timestamp=NOON),
                Record(value=b"gone", timestamp=NOON, expires_at=NOON + 1),
                Record(
                    value="grün".encode(), key=b"k", tag="t", node="n", headers={"h": b"v"},
                    timestamp=NOON + 1001,
                ),
                Record(value=b"\xff\x00", key=b"\xfe"),
                Record(value=b"two\nlines \x1b[31mred"),
                Record(value=None, key=b"k", operation=1, priority=3, not_before=NOON),
            ]
        )  # fmt: skip
    return path


def test_read_prints_offset_time_key_and_value(odd: Path) -> None:
    """One line for each record, in order, with what it has and nothing that it has not."""
    lines = _run("read", odd, "odd").stdout.splitlines()
    assert lines[0] == "0  2020-01-01T12:00:00.000000Z  plain"
    assert lines[2] == "2  2020-01-01T12:00:00.000001Z  key=k  grün  tag=t node=n header:h=v"
    assert lines[3].endswith(r"Z  key=b'\xfe'  b'\xff\x00'")
    assert lines[5].endswith(
        "(no value)  priority=3 not_before=2020-01-01T12:00:00.000000Z operation=delete"
    )


def test_a_gap_is_shown_where_it_is(odd: Path) -> None:
    """A record that has expired leaves a line that says so."""
    assert _run("read", odd, "odd").stdout.splitlines()[1] == (
        "-  gap: offset 1, 1 record gone (expired)"
    )


def test_a_record_stays_on_its_line_and_cannot_paint_the_terminal(odd: Path) -> None:
    """Control characters in a value are shown, not sent."""
    result = _run("read", odd, "odd", "--start", 4)
    assert result.stdout.splitlines()[0].endswith(r"two\nlines \x1b[31mred")
    assert "\x1b" not in result.stdout


def test_read_as_json_keeps_every_byte(odd: Path) -> None:
    """Text where it is UTF-8, base64 where not, null where there is nothing."""
    items = _json(_run("read", odd, "odd", "--json"))
    assert items[0] == {
        "offset": 0, "timestamp": NOON, "time": "2020-01-01T12:00:00.000000Z", "key": None,
        "value": "plain", "headers": {}, "tag": None, "node": None,
    }  # fmt: skip
    assert items[1] == {"gap": {"first": 1, "last": 1, "reason": "expired"}}
    assert (items[2]["value"], items[2]["headers"]) == ("grün", {"h": "v"})
    assert (items[2]["key"], items[2]["tag"], items[2]["node"]) == ("k", "t", "n")
    assert items[3]["value"] == {"base64": "/wA="}
    assert items[4]["value"] == "two\nlines \x1b[31mred"
    assert (items[5]["value"], items[5]["operation"], items[5]["priority"]) == (None, "delete", 3)


def test_read_values_writes_the_bytes_as_they_are(odd: Path) -> None:
    """Payloads alone go to standard output; a gap is told on standard error."""
    result = _run("read", odd, "odd", "--values")
    assert result.stdout_bytes == b"plain\ngr\xc3\xbcn\n\xff\x00\ntwo\nlines \x1b[31mred\n\n"
    assert result.stderr == "warning: gap: offset 1, 1 record gone (expired)\n"


def test_values_and_json_together_are_refused(store: Path) -> None:
    """Two forms of output at once are a mistake, not a choice of ours."""
    assert _run("read", store, "orders", "--values", "--json").exit_code == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], range(10)),
        (["--start", 7], range(7, 10)),
        (["--end", 3], range(3)),
        (["--start", 2, "--end", 8, "--limit", 3], range(2, 5)),
        (["--limit", 0], range(0)),
        (["--start", 10], range(0)),
        (["--from-time", "2020-01-01T12:00:04Z"], range(4, 10)),
        (["--from-time", "2020-01-01T13:00:04.5+01:00"], range(5, 10)),
        (["--from-time", "1577880006"], range(6, 10)),
        (["--from-time", "1577880005.5"], range(6, 10)),
        (["--from-time", NOON + 1], range(1, 10)),
        (["--from-time", "1577880002", "--start", 8], range(8, 10)),
        (["--from-time", "2020-02-01"], range(0)),
    ],
)
def test_read_takes_a_part_of_the_topic(
    store: Path, options: list[object], expected: range
) -> None:
    """Start is included, end is not, limit counts, and a time stands for an offset."""
    items = _json(_run("read", store, "orders", "--json", *options))
    assert [item["offset"] for item in items] == list(expected)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--since", "1577880002", "--until", "1577880004"], [2, 3]),
        (["--reverse", "--limit", 2], [10, 9]),
        (["--key", "k"], [10]),
        (["--tag", "x", "--node", "eu-1"], [10]),
        (["--tag", "nowhere"], []),
    ],
)
def test_read_takes_conditions(store: Path, options: list[object], expected: list[int]) -> None:
    """By time, key, tag and node, and with the newest first; `tail` by key, tag and node."""
    with stratalog.open(store) as opened:
        opened.topic("orders").append(b"10", key=b"k", tag="x", node="eu-1")
    found = _json(_run("read", store, "orders", "--json", *options))
    assert [item["offset"] for item in found] == expected
    if options[0] in ("--key", "--tag"):
        found = _json(_run("tail", store, "orders", "--no-follow", "--json", *options))
        assert [item["offset"] for item in found] == expected


def test_the_time_that_is_shown_finds_its_record(store: Path) -> None:
    """A time that `read` prints can be given to `--from-time`."""
    line = _run("read", store, "orders", "--start", 4, "--limit", 1).stdout
    result = _run("read", store, "orders", "--from-time", line.split()[1], "--limit", 1)
    assert result.stdout == line != ""


@pytest.mark.parametrize(
    "options", [["--from-time", "soon"], ["--start", "11"], ["--start", "-1"], ["--limit", "-1"]]
)
def test_a_part_that_cannot_be_is_refused(store: Path, options: list[str]) -> None:
    """A wrong option is a usage error, with nothing on standard output."""
    result = _run("read", store, "orders", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")


def test_tail_prints_the_newest_records(store: Path) -> None:
    """Without following, the last N and no more; all of them when there are fewer."""
    result = _run("tail", store, "orders", "--no-follow", "--lines", 3, "--json")
    assert [item["offset"] for item in _json(result)] == [7, 8, 9]
    result = _run("tail", store, "orders", "--no-follow", "-n", 50, "--json")
    assert [item["offset"] for item in _json(result)] == list(range(10))


def test_tail_ends_when_nothing_comes(store: Path) -> None:
    """Following ends by itself after the timeout, and that is no error."""
    result = _run("tail", store, "orders", "--lines", 1, "--timeout", 0.05)
    assert result.exit_code == 0
    assert result.stdout == " 9  2020-01-01T12:00:09.000000Z  9\n"


def test_topics_lists_them_with_their_numbers(store: Path) -> None:
    """A heading and a line for each topic; JSON has the same numbers."""
    with stratalog.open(store) as opened:
        opened.create_topic("logs", durability="disk")
    lines = [line.split() for line in _run("topics", store).stdout.splitlines()]
    assert lines[0][:3] == ["topic", "records", "next"]
    assert [(line[0], line[1], line[2], line[-1]) for line in lines[1:]] == [
        ("logs", "0", "0", "disk"),
        ("orders", "10", "10", "default"),
    ]
    items = _json(_run("topics", store, "--json"))
    assert [(item["name"], item["next_offset"]) for item in items] == [("logs", 0), ("orders", 10)]


def test_stats_of_a_store_and_of_a_topic(store: Path) -> None:
    """Both have a form for people and one for programs, and agree with the library."""
    with stratalog.open(store, read_only=True) as opened:
        identity = opened.stats().identity
    facts = dict(line.split(maxsplit=1) for line in _run("stats", store).stdout.splitlines())
    assert (facts["identity"], facts["records"], facts["damage"]) == (identity, "10", "none")
    assert _json(_run("stats", store, "--json"))[0]["identity"] == identity
    facts = dict(
        line.split(maxsplit=1) for line in _run("stats", store, "orders").stdout.splitlines()
    )
    assert (facts["topic"], facts["next"]) == ("orders", "10")
    assert facts["newest"] == "2020-01-01T12:00:09.000000Z"
    assert _json(_run("stats", store, "orders", "--json"))[0]["newest_timestamp"] == (
        NOON + 9 * SECOND
    )


@pytest.mark.parametrize("command", ["read", "tail", "topics", "stats"])
def test_looking_creates_nothing(tmp_path: Path, command: str) -> None:
    """A path that does not exist is an error, and still does not exist afterwards."""
    topic = ["orders"] if command in ("read", "tail") else []
    result = _run(command, tmp_path / "nowhere", *topic)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is not a Stratalog store" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_looking_works_beside_a_writer(store: Path) -> None:
    """No lock is needed to read what another handle is writing."""
    with stratalog.open(store) as opened:
        opened.topic("orders").append(b"fresh")
        result = _run("read", store, "orders", "--start", 10, "--values")
    assert result.stdout == "fresh\n"
