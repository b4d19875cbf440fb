"""stratalog backup: a copy of a store, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a few records."""
    path = tmp_path / "store"
    with stratalog.open(path) as opened:
        opened.create_topic("orders", segment_records=10).append_many([b"x" * 50] * 35)
    return path


def test_a_backup_says_what_it_did(store: Path, tmp_path: Path) -> None:
    """Plain facts in a pipe, no progress; the copy holds the records."""
    result = _run("backup", store, tmp_path / "copy")
    assert (result.exit_code, result.stderr) == (0, "")
    facts = dict(line.split(maxsplit=1) for line in result.stdout.splitlines())
    assert list(facts) == ["backup", "topics", "records", "size", "took"]
    assert (facts["backup"], facts["records"]) == (str(tmp_path / "copy"), "35")
    assert " linked, " in facts["size"]
    with stratalog.open(tmp_path / "copy") as copy:
        assert copy.topic("orders").read_values() == [b"x" * 50] * 35


def test_a_backup_as_json(store: Path, tmp_path: Path) -> None:
    """The whole report on one line."""
    result = _run("backup", store, tmp_path / "copy", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["path"], report["topics"]) == (str(tmp_path / "copy"), 1)
    assert report["records"] == 35
    assert report["bytes_linked"] > 0
    assert set(report["positions"]) >= {"0"}


def test_a_backup_that_cannot_be_is_refused(store: Path, tmp_path: Path) -> None:
    """No store, a target that is in use, a store that is open: each has its exit code."""
    result = _run("backup", tmp_path / "nowhere", tmp_path / "copy")
    assert (result.exit_code, result.stdout) == (2, "")
    assert not (tmp_path / "nowhere").exists()
    result = _run("backup", store, store)
    assert (result.exit_code, result.stdout) == (2, "")
    with stratalog.open(store):
        result = _run("backup", store, tmp_path / "copy")
    assert result.exit_code == 3
    assert not (tmp_path / "copy").exists()
