"""stratalog delete: records by every condition, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog import Record
from stratalog.cli.app import app


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with ten records of two persons."""
    path = tmp_path / "store"
    records = [
        Record(b"%d" % n, (b"ada", b"bob")[n % 2], tag=f"user-{n % 2}", timestamp=10**18 + n)
        for n in range(10)
    ]
    with stratalog.open(path) as store:
        store.topic("orders").append_many(records)
    return path


def _left(path: Path) -> list[int]:
    with stratalog.open(path, read_only=True) as store:
        return [int(value or b"") for value in store.topic("orders").read_values()]


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        (["--key", "ada"], [1, 3, 5, 7, 9]),
        (["--key", "ada", "--before", "4"], [1, 3, 4, 5, 6, 7, 8, 9]),
        (["--tag", "user-1"], [0, 2, 4, 6, 8]),
        (["--tag-glob", "user-*"], []),
        (["--offset", "3", "--offset", "4"], [0, 1, 2, 5, 6, 7, 8, 9]),
        (["--before-time", "2001-09-09T01:46:41Z"], []),
        (["--before-time", "0"], list(range(10))),
    ],
)
def test_records_that_meet_every_condition_are_deleted(
    path: Path, conditions: list[str], left: list[int]
) -> None:
    """Each option is the argument of the same name in Python."""
    result = _run("delete", path, "orders", *conditions)
    assert (result.exit_code, result.stderr) == (0, "")
    count = 10 - len(left)
    assert result.stdout == f"deleted {count} record{'s' * (count != 1)} of orders\n"
    assert _left(path) == left


def test_the_count_as_json(path: Path) -> None:
    """One line for programs."""
    result = _run("delete", path, "orders", "--key", "bob", "--json")
    assert json.loads(result.stdout) == {"topic": "orders", "deleted": 5}


def test_a_delete_that_cannot_be_changes_nothing(path: Path, tmp_path: Path) -> None:
    """No condition, two for one, no topic, no store: exit code 2, and nothing is created."""
    for arguments in (
        ["orders"],
        ["orders", "--before", 3, "--before-time", 0],
        ["order", "--key", "ada"],
    ):
        result = _run("delete", path, *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
    assert _run("delete", tmp_path / "nowhere", "t", "--key", "k").exit_code == 2
    assert not (tmp_path / "nowhere").exists()
    with stratalog.open(path, read_only=True) as store:
        assert store.topics() == ["orders"]
    assert _left(path) == list(range(10))
