"""stratalog queue and stratalog group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app


def _run(*args: object, text: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], input=text)


def _json(*args: object) -> list[Any]:
    result = _run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a queue of three messages, and a topic with a group."""
    path = tmp_path / "store"
    with stratalog.open(path) as store:
        jobs = store.queue("jobs", max_deliveries=1)
        jobs.put(b"low", priority=9)
        jobs.put_many([b"a", b"b"])
        topic = store.topic("orders")
        topic.append_many([b"x"] * 5)
        group = topic.group("billing")
        group.poll("worker-1", limit=2)
    return path


def test_messages_are_put_and_got(path: Path) -> None:
    """With a priority, an id, a header; a duplicate is told."""
    put = ("queue", "put", path, "jobs", "new", "--id", "7", "--priority", 3, "--header", "h=v")
    assert _run(*put).stdout == "jobs: put as offset 3\n"
    assert _json(*put) == [{"queue": "jobs", "offset": 3, "duplicate": True}]
    assert [one["value"] for one in _json("queue", "peek", path, "jobs")] == [
        "a",
        "b",
        "new",
        "low",
    ]
    assert _run("queue", "get", path, "jobs", "--values").stdout == "a\n"
    (found,) = _json("queue", "get", path, "jobs", "-n", 1, "--no-ack")
    assert (found["value"], found["delivery_count"]) == ("b", 1)
    (found,) = _json("queue", "get", path, "jobs")
    assert (found["value"], found["headers"], found["priority"]) == ("new", {"h": "v"}, 3)
    assert "low" in _run("queue", "get", path, "jobs").stdout
    empty = _run("queue", "get", path, "jobs")
    assert (empty.exit_code, empty.stdout) == (7, "")
    assert "no message" in empty.stderr
    (stats,) = _json("queue", "stats", path)
    assert (stats["name"], stats["waiting"], stats["pending"]) == ("jobs", 0, 1)
    assert "waiting" in _run("queue", "stats", path, "jobs").stdout


def test_dead_letters_are_shown_and_put_back(path: Path) -> None:
    """Or go for good."""
    assert _run("queue", "requeue", path, "jobs").stdout == "jobs: no dead letters\n"
    with stratalog.open(path) as store:
        jobs = store.queue("jobs")
        jobs.nack(*jobs.get_many(2), reason="broken")
    letters = _json("queue", "dead", path, "jobs")
    assert [one["headers"]["dlq.reason"] for one in letters] == ["broken", "broken"]
    assert "dlq.reason=broken" in _run("queue", "dead", path, "jobs").stdout
    assert _run("queue", "requeue", path, "jobs", 1).stdout == "jobs: put as offset 3\n"
    assert _json("queue", "purge", path, "jobs", "--dead") == [
        {"queue": "jobs", "dead": True, "purged": 1}
    ]
    assert _run("queue", "purge", path, "jobs").stdout == "jobs: 2 messages gone\n"
    assert _json("queue", "seek", path, "jobs", "earliest") == [{"name": "jobs", "offset": 0}]
    assert len(_json("queue", "peek", path, "jobs")) == 4


def test_lines_of_standard_input_become_messages(path: Path) -> None:
    """With and without a dash; an id is for one message."""
    done = _run("queue", "put", path, "lines", text="one\ntwo\n")
    assert done.stdout == "lines: put as offset 0\nlines: put as offset 1\n", done.stderr
    assert _run("queue", "put", path, "lines", "-", text="three").exit_code == 0
    assert _run("queue", "get", path, "lines", "-n", 9, "--values").stdout == "one\ntwo\nthree\n"
    refused = _run("queue", "put", path, "lines", "--id", "x", text="four")
    assert (refused.exit_code, "lines of standard input" in refused.stderr) == (2, True)


def test_messages_are_settled_by_offset(path: Path) -> None:
    """After `get --no-ack`, in processes of their own."""
    _run("queue", "put", path, "some", "a", "b")
    _run("queue", "get", path, "some", "-n", 2, "--no-ack")
    assert _run("queue", "ack", path, "some", 0).stdout == "some: offset 0 done\n"
    (row,) = _json("queue", "nack", path, "some", 1, "--delay", 0, "--reason", "later")
    assert row == {"queue": "some", "offset": 1, "state": "given back"}
    (message,) = _json("queue", "get", path, "some")
    assert (message["offset"], message["delivery_count"]) == (1, 2)
    assert _run("queue", "ack", path, "some", 7).exit_code == 3


def test_a_missing_queue_is_told_with_those_that_are_there(path: Path) -> None:
    """The nearest name, or all of a few."""
    assert "Did you mean 'jobs'?" in _run("queue", "get", path, "jbos").stderr
    assert "It has 'jobs'." in _run("queue", "get", path, "something else").stderr


def test_groups_are_shown_and_moved(path: Path) -> None:
    """Lag, pending, and where they go on."""
    (group,) = _json("group", "list", path)
    assert (group["name"], group["lag"], group["pending"]) == ("billing", 5, 2)
    assert "billing" in _run("group", "list", path, "orders").stdout
    assert _run("group", "lag", path, "orders", "billing").stdout == "5\n"
    assert _json("group", "lag", path, "orders", "billing")[0]["lag"] == 5
    entries = _json("group", "pending", path, "orders", "billing")
    assert [(one["offset"], one["consumer"]) for one in entries] == [
        (0, "worker-1"),
        (1, "worker-1"),
    ]
    assert "worker-1" in _run("group", "pending", path, "orders", "billing").stdout
    sought = _run("group", "seek", path, "orders", "billing", 4)
    assert sought.stdout == "billing: goes on from offset 4\n"
    assert _run("group", "lag", path, "orders", "billing").stdout == "1\n"


def test_what_is_not_there_is_not_made(path: Path) -> None:
    """A name mistyped is an error, in every command but put."""
    for command in ("get", "requeue", "purge"):
        result = _run("queue", command, path, "jbos")
        assert (result.exit_code, "no queue 'jbos'" in result.stderr) == (2, True), command
    assert _run("queue", "seek", path, "jbos", 1).exit_code == 2
    assert _run("queue", "peek", path, "jbos").exit_code == 2
    assert _run("queue", "get", path, "orders").exit_code == 2
    assert _run("group", "lag", path, "orders", "none").exit_code == 2
    assert _run("group", "seek", path, "orders", "none", 1).exit_code == 2
    assert _run("group", "seek", path, "none", "none", 1).exit_code == 2
    assert _run("queue", "put", path, "jobs", "a", "b", "--id", "x").exit_code == 2
    with stratalog.open(path, read_only=True) as store:
        assert store.topics() == ["jobs", "orders"]


def test_inspect_shows_frames_and_snapshots_of_groups(path: Path) -> None:
    """Lists what changed, by whom, and what a snapshot has."""
    with stratalog.open(path) as store:
        store.queue("jobs").put(b"", dedup_id="x")
        store.snapshot()
    rows = _json("inspect", path)
    kinds = {row["kind"] for row in rows}
    assert {"group", "group_state", "queue_state"} <= kinds
    leases = [one for row in rows if row["kind"] == "group" for one in row["leases"]]
    assert {one["consumer"] for one in leases} == {"worker-1"}
    assert _run("verify", path).exit_code == 0
