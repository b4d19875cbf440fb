"""stratalog compact: what a store no longer needs goes, with --purge from every file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.grep import search
from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of which one person was deleted."""
    path = tmp_path / "store"
    with stratalog.open(path) as store:
        topic = store.topic("people")
        for name in (b"ada", b"bob", b"cy"):
            topic.append(b"all about " + name, key=name)
        topic.delete(key=b"bob")
    return path


def test_a_purge_says_what_it_did(path: Path) -> None:
    """Plain facts, then what is out of its reach."""
    assert search(b"bob", path)
    result = _run("compact", path, "--purge")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines if not line.startswith("not "))
    assert facts["purged"] == "1 record out of 1 segment"
    assert [line for line in lines if line.startswith("not known: ")]
    assert not search(b"bob", path)
    assert search(b"ada", path)
    assert search(b"cy", path)


def test_without_a_purge_bytes_stay_in_the_log_for_a_while(path: Path) -> None:
    """The record leaves its segment, and its bytes the log once that is used again."""
    assert _run("compact", path).exit_code == 0
    assert search(b"bob", path)


def test_a_backup_is_named(path: Path, tmp_path: Path) -> None:
    """Its files are linked to those of the store, and hold what they held."""
    with stratalog.open(path) as store:
        topic = store.create_topic("sealed", segment_records=3)
        topic.append_many([b"x" * 50, b"secret" * 9, b"y" * 50])
        store.checkpoint()
        store.backup(tmp_path / "copy")
        topic.delete(offsets=[1])
    report = json.loads(_run("compact", path, "--purge", "--json").stdout)
    assert report["purge"]["segments_rewritten"] == 2
    assert len(report["purge"]["unreached"]) == 1
    assert "had another name" in report["purge"]["unreached"][0]
    assert not search(b"secret", path)
    assert search(b"secret", tmp_path / "copy")


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """Exit code 2, as everywhere."""
    assert _run("compact", tmp_path / "nowhere").exit_code == 2
    assert not (tmp_path / "nowhere").exists()
