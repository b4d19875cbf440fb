"""stratalog verify, repair and inspect: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog import Gap
from stratalog.cli.app import app


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def _files(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten records in the log, closed."""
    path = tmp_path / "store"
    with stratalog.open(path, shards=1) as opened:
        for number in range(10):
            opened.topic("orders").append(b"order %d" % number)
    return path


@pytest.fixture
def damaged(store: Path) -> Path:
    """One record of the ten is damaged."""
    (path,) = store.rglob("*.log")
    path.write_bytes(path.read_bytes().replace(b"order 4", b"order X"))
    return store


def test_a_whole_store_ends_with_0(store: Path) -> None:
    """And a line that says so."""
    done = _run("verify", store)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0] == f"{store}: ok"
    done = _run("repair", store, "--yes")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"{store}: ok")


def test_damage_ends_with_6(damaged: Path) -> None:
    """The code of an error about damaged bytes; the place is named."""
    done = _run("verify", damaged)
    assert done.exit_code == 6
    assert "(topic 'orders', offsets 4 to 4)" in done.stdout


def test_verify_prints_json(damaged: Path) -> None:
    """One object, with every field of the report."""
    done = _run("verify", damaged, "--json")
    assert done.exit_code == 6
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert not report["ok"]
    assert [problem["kind"] for problem in report["problems"]] == ["log", "offsets"]
    assert report["counts"]["frames"] == 10


def test_a_dry_run_changes_no_byte(damaged: Path) -> None:
    """It says what would be done, and ends with 6: the damage is still there."""
    before = _files(damaged)
    done = _run("repair", damaged, "--dry-run")
    assert done.exit_code == 6
    assert "what a repair would do:" in done.stdout
    assert _files(damaged) == before


def test_repair_asks_or_is_told(damaged: Path) -> None:
    """Without a terminal to ask on, nothing is done unless --yes is given."""
    before = _files(damaged)
    done = _run("repair", damaged)
    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert _files(damaged) == before
    done = _run("repair", damaged, "--yes", "--json")
    assert done.exit_code == 0
    kinds = [action["kind"] for action in json.loads(done.stdout)["actions"]]
    assert kinds == ["offsets", "log"]
    with stratalog.open(damaged) as opened:
        items = list(opened.topic("orders").read())
        assert items[4] == Gap(4, 4, "damaged")
        assert len(items) == 10


def test_repair_beside_a_writer_ends_with_3(damaged: Path, store: Path) -> None:
    """It needs the lock."""
    with stratalog.open(store.parent / "other") as _:
        assert _run("repair", store.parent / "other", "--yes").exit_code == 3


def test_no_store_ends_with_2(tmp_path: Path) -> None:
    """A directory that holds none, or that is not there."""
    for command in (["verify"], ["repair", "--yes"], ["inspect"]):
        assert _run(*command, tmp_path / "nothing").exit_code == 2
    assert _run("verify", tmp_path).exit_code == 2


def test_inspect_shows_frames(store: Path) -> None:
    """One file or all of them, as text or as JSON."""
    (path,) = store.rglob("*.log")
    lines = _run("inspect", path).stdout.splitlines()
    assert lines[0] == str(path)
    assert "topic" in lines[2]
    assert "name='orders'" in lines[2]
    rows = [json.loads(line) for line in _run("inspect", store, "--json").stdout.splitlines()]
    assert [row["kind"] for row in rows][:3] == ["store", "ends", "log"]
    offsets = [row["base_offset"] for row in rows if row["kind"] == "records"]
    assert offsets == list(range(10))
