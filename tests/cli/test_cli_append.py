"""stratalog append: what gets into the log, and what is said about it."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog import Record, TooLargeError
from stratalog.cli.app import app
from stratalog.cli.append import read_lines


def _run(*args: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def _records(path: Path, topic: str = "orders") -> list[Record]:
    with stratalog.open(path, read_only=True) as store:
        return [item for item in store.topic(topic).read() if isinstance(item, Record)]


def _values(path: Path, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in _records(path, topic)]


class _Pipe(io.RawIOBase):
    """A source that gives one piece for each read, as a pipe with a slow writer does."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        piece = self._pieces.pop(0) if self._pieces else b""
        memoryview(buffer)[: len(piece)] = piece  # type: ignore[arg-type]
        return len(piece)


def test_values_from_arguments_are_appended_and_offsets_printed(tmp_path: Path) -> None:
    """Two calls go on counting where the first one stopped."""
    first = _run("append", tmp_path / "s", "orders", "a", "b")
    second = _run("append", tmp_path / "s", "orders", "c")
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout == "appended 2 records to orders: offsets 0 to 1\n"
    assert second.stdout == "appended 1 record to orders: offset 2\n"
    assert _values(tmp_path / "s") == [b"a", b"b", b"c"]


def test_offsets_are_printed_as_json_on_demand(tmp_path: Path) -> None:
    """The JSON form has the topic, the count and both ends."""
    result = _run("append", tmp_path / "s", "orders", "a", "b", "--json")
    assert json.loads(result.stdout) == {"topic": "orders", "records": 2, "first": 0, "last": 1}


def test_every_field_of_a_record_can_be_given(tmp_path: Path) -> None:
    """Key, tag, node, headers and time to live end up in every record of the call."""
    before = time.time_ns()
    result = _run(
        "append", tmp_path / "s", "orders", "a", "b", "--key", "ada", "--tag", "order-7",
        "--node", "eu-1", "--header", "via=web", "--header", "sum=1=1", "--ttl", "60",
    )  # fmt: skip
    assert result.exit_code == 0
    records = _records(tmp_path / "s")
    assert [record.value for record in records] == [b"a", b"b"]
    for record in records:
        assert (record.key, record.tag, record.node) == (b"ada", "order-7", "eu-1")
        assert dict(record.headers) == {"via": b"web", "sum": b"1=1"}
        assert before + 60 * 10**9 <= record.expires_at <= time.time_ns() + 60 * 10**9


def test_lines_of_standard_input_are_records(tmp_path: Path) -> None:
    """Bytes stay as they are, empty lines count, the last line needs no line feed."""
    result = _run("append", tmp_path / "s", "orders", stdin=b"one\n\n\xff\xfe\r\nlast")
    assert result.stdout == "appended 4 records to orders: offsets 0 to 3\n"
    assert _values(tmp_path / "s") == [b"one", b"", b"\xff\xfe\r", b"last"]


def test_many_lines_arrive_complete_and_in_order(tmp_path: Path) -> None:
    """Lines that are cut in two by the size of a read are put together again."""
    lines = [b"%d" % number * 7 for number in range(20_000)]
    result = _run("append", tmp_path / "s", "orders", "--json", stdin=b"\n".join(lines) + b"\n")
    assert json.loads(result.stdout)["records"] == 20_000
    assert _values(tmp_path / "s") == lines


def test_empty_input_appends_nothing(tmp_path: Path) -> None:
    """No lines is not an error, and both forms of output say so."""
    assert _run("append", tmp_path, "orders", stdin=b"").stdout == "nothing to append to orders\n"
    result = _run("append", tmp_path, "orders", "--json", stdin=b"")
    expected = {"topic": "orders", "records": 0, "first": None, "last": None}
    assert json.loads(result.stdout) == expected


def test_an_empty_argument_is_an_empty_record(tmp_path: Path) -> None:
    """An empty value is a value, not a reason to read standard input."""
    assert _run("append", tmp_path, "orders", "", stdin=b"not me\n").exit_code == 0
    assert _values(tmp_path) == [b""]


def test_a_slow_source_is_appended_as_it_speaks() -> None:
    """A batch is what is there: append does not wait for a thousand lines."""
    source = io.BufferedReader(_Pipe(b"one\ntw", b"o\n", b"three\nfour\n"))
    assert list(read_lines(source, 100)) == [[b"one"], [b"two"], [b"three", b"four"]]


def test_batches_have_a_thousand_lines_at_most() -> None:
    """A batch is bounded however much input is there."""
    source = io.BytesIO(b"x\n" * 2500)
    assert [len(batch) for batch in read_lines(source, 100)] == [1000, 1000, 500]


def test_input_without_line_feeds_does_not_fill_the_memory() -> None:
    """A line over the limit of a record is refused while it is being read."""
    source = io.BytesIO(b"fine\n" + b"x" * (1 << 20))
    batches = read_lines(source, 100_000)
    assert next(batches) == [b"fine"]
    with pytest.raises(TooLargeError, match="more than 100000 bytes"):
        next(batches)
    assert source.tell() < 300_000


def test_what_was_appended_before_an_error_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error in the middle, the offsets that are in the log are still printed."""
    monkeypatch.setenv("STRATALOG_RECORD_BYTES_MAX", "100")
    result = _run("append", tmp_path, "orders", stdin=b"fine\n" * 1000 + b"x" * 200 + b"\n")
    assert result.exit_code == 2
    assert result.stdout == "appended 1,000 records to orders: offsets 0 to 999\n"
    assert result.stderr.startswith("error: ")
    assert len(_values(tmp_path)) == 1000


def test_durability_is_that_of_the_append(tmp_path: Path) -> None:
    """A lighter class for one call does not become the topic's own."""
    assert _run("append", tmp_path, "orders", "a", "--durability", "disk").exit_code == 0
    with stratalog.open(tmp_path) as store:
        assert store.topic("orders").options.durability is None
    assert _run("append", tmp_path, "orders", "a", "--durability", "ephemeral").exit_code == 2


def test_no_create_appends_only_to_what_exists(tmp_path: Path) -> None:
    """Neither a store nor a topic is created; an existing topic is appended to."""
    missing = _run("append", tmp_path / "s", "orders", "a", "--no-create")
    assert (missing.exit_code, (tmp_path / "s").exists()) == (2, False)
    assert _run("append", tmp_path / "s", "orders", "a").exit_code == 0
    unknown = _run("append", tmp_path / "s", "refunds", "a", "--no-create")
    assert (unknown.exit_code, "'refunds'" in unknown.stderr) == (2, True)
    assert _run("append", tmp_path / "s", "orders", "b", "--no-create").exit_code == 0
    with stratalog.open(tmp_path / "s", read_only=True) as store:
        assert store.topics() == ["orders"]


@pytest.mark.parametrize(
    "options",
    [
        ["--header", "novalue"],
        ["--header", "=v"],
        ["--header", "a=1", "--header", "a=2"],
        ["--ttl", "0"],
        ["--ttl", "nan"],
        ["--durability", "maybe"],
        ["--tag", "\udcff"],
    ],
)
def test_a_wrong_option_changes_nothing(tmp_path: Path, options: list[str]) -> None:
    """A mistake in the call is found before a store is created for it."""
    result = _run("append", tmp_path / "s", "orders", "a", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr
    assert not (tmp_path / "s").exists()


def test_a_wrong_topic_name_changes_nothing(tmp_path: Path) -> None:
    """A name that no topic can have does not leave a store."""
    assert _run("append", tmp_path / "s", "a\nb", "a").exit_code == 2
    assert not (tmp_path / "s").exists()
