"""stratalog routes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, ["routes", *(str(arg) for arg in args)])


def _json(*args: object) -> list[Any]:
    result = _run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with three records in a topic."""
    path = tmp_path / "store"
    with stratalog.open(path) as store:
        for tag in ("eu-1", "us-1", "eu-2"):
            store.topic("orders").append(tag.encode(), tag=tag)
    return path


def test_a_route_is_added_run_paused_and_dropped(path: Path) -> None:
    """And listed with its numbers, as a table and as JSON."""
    assert _run("add", path, "orders", "eu", "--tag-glob", "eu-*").stdout == (
        "orders -> eu: forwards\n"
    )
    (row,) = _json("run", path, "--timeout", 30)
    assert (row["lag"], row["forwarded"], row["state"]) == (0, 2, "running")
    with stratalog.open(path, read_only=True) as store:
        assert store.topic("eu").read_values() == [b"eu-1", b"eu-2"]
    assert "paused" in _run("pause", path, "orders", "eu").stdout
    text = _run("list", path).stdout
    for word in ("source", "orders", "eu", "tag_glob=eu-*", "paused"):
        assert word in text
    assert _json("resume", path, "orders", "eu")[0]["state"] == "running"
    assert "dropped" in _run("drop", path, "orders", "eu").stdout
    assert _json("list", path) == []


def test_a_dropped_topic_is_told(path: Path) -> None:
    """The sentence says what to do, and dropping the route needs no topic."""
    _run("add", path, "orders", "copy", "--key-prefix", "k", "--node", "n")
    with stratalog.open(path) as store:
        store.drop_topic("copy")
    assert "Topic 'copy', the destination" in _run("list", path).stdout
    (row,) = _json("list", path)
    assert (row["state"], row["key_prefix"], row["node"]) == ("failed", "k", "n")
    assert "lag" in _run("run", path).stdout
    assert _run("drop", path, "orders", "copy").exit_code == 0
    assert _json("list", path) == []


def test_errors_are_a_line_and_an_exit_code(path: Path) -> None:
    """A route that is not there, one that makes a cycle, a store that is not there."""
    for command in ("pause", "resume", "drop"):
        result = _run(command, path, "orders", "nowhere")
        assert result.exit_code == 2
        assert "There is no route" in result.stderr
    _run("add", path, "orders", "copy")
    result = _run("add", path, "copy", "orders")
    assert result.exit_code == 2
    assert "cycle" in result.stderr
    assert _run("list", path / "elsewhere").exit_code != 0
