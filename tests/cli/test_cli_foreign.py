"""`stratalog import --from` and `stratalog export --to`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stratalog
import stratalog.interop
from stratalog.cli.app import app

FOREIGN = Path(__file__).parents[1] / "golden" / "foreign"


def run(*words: object) -> str:
    """Run a command that succeeds; returns what it prints."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_a_dry_run_makes_no_store(tmp_path: Path) -> None:
    """It counts, and names what is torn."""
    output = run(
        "import", "--from", "ledgerq", FOREIGN / "ledgerq" / "torn_tail" / "data",
        tmp_path / "data", "--dry-run",
    )  # fmt: skip
    assert "would import" in output
    assert "00000000000000000201.log at 11944" in output
    assert "Lost: message 300" in output
    assert not (tmp_path / "data").exists()


def test_a_queue_comes_and_goes(tmp_path: Path) -> None:
    """Imported under a name, and exported again with its dead letters."""
    data = tmp_path / "data"
    source = FOREIGN / "ledgerq" / "dlq" / "data"
    report = json.loads(run("import", "--from", "ledgerq", source, data, "--name", "q", "--json"))
    assert (report["records"], report["dead"]) == (23, 3)
    assert "would import" in run(
        "import", "--from", "ledgerq", source, data, "--name", "q", "--dry-run"
    )
    assert "20 records" in run("export", "--to", "ledgerq", data, tmp_path / "out")
    assert (tmp_path / "out-dlq" / "metadata.dat").exists()


def test_topics_and_groups_come_and_go(tmp_path: Path) -> None:
    """All topics of a store, or some of them."""
    data = tmp_path / "data"
    output = run(
        "import", "--from", "fluxmq", FOREIGN / "fluxmq" / "group_compacted" / "data", data
    )
    assert "orders/workers" in output
    report = json.loads(
        run("export", "--to", "fluxmq", data, tmp_path / "out", "--topics", "orders", "--json")
    )
    assert report["topics"] == ["orders"]
    assert run("export", "--to", "topics", data, tmp_path / "all").count("orders") == 1


@pytest.mark.parametrize("command", [["import"], ["pipeline", "import"]], ids=" ".join)
@pytest.mark.parametrize("layout", ["flo", "fluxmq", "ledgerq", "topics"])
def test_both_commands_take_a_directory_of_every_layout(
    layout: str, command: list[str], tmp_path: Path
) -> None:
    """With what is there in it, and once, however often it is run."""
    data = tmp_path / "data"
    sources = {
        "fluxmq": (FOREIGN / "fluxmq" / "s2" / "data", {"events": 305}),
        "ledgerq": (FOREIGN / "ledgerq" / "plain" / "data", {"data": 300}),
        "topics": (
            FOREIGN / "topics" / "shard2_killed" / "data" / "hot",
            {"orders": 154, "audit": 110},
        ),
        "flo": (tmp_path / "flo", {"jobs": 2}),
    }  # fmt: skip
    source, expected = sources[layout]
    if layout == "flo":
        with stratalog.open(tmp_path / "made") as store:
            store.queue("jobs").put_many([b"one", b"two"])
            stratalog.interop.export_directory("flo", store, None, source)
    words = [*command, "--from", layout, source, data, "--json"]
    assert json.loads(run(*words))["topics"] == expected
    assert json.loads(run(*words))["topics"] == dict.fromkeys(expected, 0)
    with stratalog.open(data, read_only=True) as store:
        assert sorted(store.topics()) == sorted(expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["import", "--from", "nosuch", "DIR", "STORE"], "layout='nosuch' is not known"),
        (["import", "--from", "topics", "DIR", "STORE"], "is not a directory of topics"),
        (["import", "--from", "topics", "DIR", "STORE", "topic"], "DIR STORE"),
        (["import", "STORE", "file.csv", "topic", "--dry-run"], "go with --from"),
        (["import", "STORE", "file.csv"], "needs a topic"),
        (["export", "--to", "rabbit", "DATA", "OUT"], "layout='rabbit' is not known"),
        (["export", "--to", "ledgerq", "DATA", "OUT"], "this store has 0. Name one"),
        (["export", "--to", "fluxmq", "DATA", "OUT", "--topics", "x"], "no topic 'x'"),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], message: str, tmp_path: Path) -> None:
    """In one line, and nothing is made."""
    (tmp_path / "DIR").mkdir()
    stratalog.open(tmp_path / "DATA").close()
    given = [str(tmp_path / word) if word.isupper() else word for word in words]
    result = CliRunner().invoke(app, given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not (tmp_path / "STORE").exists()
    assert not (tmp_path / "OUT").exists()
