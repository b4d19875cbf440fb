"""stratalog schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app


def _run(*args: object, text: str | None = None) -> Result:
    return CliRunner().invoke(app, ["schedule", *(str(arg) for arg in args)], input=text)


def _json(*args: object) -> list[Any]:
    result = _run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_schedule_is_added_run_paused_and_dropped(tmp_path: Path) -> None:
    """And listed with its numbers, as a table and as JSON."""
    done = _run("add", tmp_path, "tick", "jobs", "-", "--every", 0.001, text="from stdin")
    assert done.stdout.startswith("tick: next 2"), done.stderr
    (row,) = _json("run", tmp_path)
    assert row["fired"] >= 1
    assert (row["state"], row["every"], row["cron"]) == ("running", 0.001, None)
    with stratalog.open(tmp_path) as store:
        assert store.queue("jobs").get(timeout=30.0).value == b"from stdin"
    assert _run("pause", tmp_path, "tick").stdout == "tick: paused\n"
    _run("add", tmp_path, "daily", "jobs", "v", "--cron", "@daily", "--timezone", "Etc/GMT-2")
    text = _run("list", tmp_path).stdout
    for word in ("name", "every 0.001 s", "paused", "0 0 * * * Etc/GMT-2"):
        assert word in text
    assert _json("resume", tmp_path, "tick")[0]["state"] == "running"
    assert "dropped" in _run("drop", tmp_path, "tick").stdout
    with stratalog.open(tmp_path) as store:
        store.drop_queue("jobs")
    assert "Queue 'jobs' of the schedule 'daily' was dropped" in _run("list", tmp_path).stdout


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    """And ends with the code of a wrong call."""
    with stratalog.open(tmp_path):
        pass
    for args, says in (
        (["pause", tmp_path, "nosuch"], "There is no schedule 'nosuch'"),
        (["add", tmp_path, "x", "jobs"], "Give one of them"),
        (["add", tmp_path, "x", "jobs", "v", "--cron", "nonsense"], "cannot be read"),
    ):
        result = _run(*args)
        assert result.exit_code == 2
        assert says in " ".join(result.stderr.split())
