"""stratalog table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app


def _run(*args: object, input: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["table", *(str(arg) for arg in args)], input=input)


def _json(*args: object) -> list[Any]:
    result = _run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a table of three keys, one of them bytes."""
    path = tmp_path / "store"
    with stratalog.open(path) as store:
        table = store.table("users")
        table.put("ada", b"admin")
        table.put("ada", b"owner")
        table.put("bob", b"guest", ttl=3600.0)
        table.put(b"\xff", b"\xfe")
    return path


def test_keys_are_put_got_and_deleted(path: Path) -> None:
    """As text, as they are, as JSON, and as of a version."""
    assert _run("get", path, "users", "ada", "--values").stdout_bytes == b"owner\n"
    assert _run("get", path, "users", "ada", "--at", 0, "--values").stdout == "admin\n"
    (found,) = _json("get", path, "users", "bob")
    assert (found["key"], found["value"], found["version"]) == ("bob", "guest", 2)
    assert found["expires_at"] > found["timestamp"]
    assert "expires=" in _run("get", path, "users", "bob").stdout
    assert _run("put", path, "users", "eve", "new").stdout == "users: eve put as version 4\n"
    assert _run("put", path, "users", "raw", input=b"\x00\xff").exit_code == 0
    assert _run("get", path, "users", "raw", "--values").stdout_bytes == b"\x00\xff\n"
    assert _json("put", path, "users", "eve", "newer", "--if-version", 4) == [
        {"table": "users", "key": "eve", "version": 6}
    ]
    assert _run("add", path, "users", "n", 5).stdout == "5\n"
    assert _json("add", path, "users", "n") == [{"table": "users", "key": "n", "value": 6}]
    assert _run("delete", path, "users", "eve").stdout == "users: eve deleted as version 9\n"


def test_exit_codes_tell_what_is_wrong(path: Path) -> None:
    """1 where a key is not there, 3 where a condition does not hold, 2 for a wrong name."""
    for command in ("get", "delete", "history"):
        result = _run(command, path, "users", "missing")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "no key 'missing'" in result.stderr
    assert _run("put", path, "users", "ada", "x", "--if-absent").exit_code == 3
    assert _run("put", path, "users", "ada", "x", "--if-version", 0).exit_code == 3
    assert _run("delete", path, "users", "ada", "--if-version", 0).exit_code == 3
    for command in ("get", "delete", "history"):
        assert _run(command, path, "usres", "ada").exit_code == 2
    assert _run("scan", path, "usres").exit_code == 2
    with stratalog.open(path) as store:
        assert store.tables() == ["users"]
        store.topic("events")
    assert _run("scan", path, "events").exit_code == 2
    assert _run("add", path, "users", "ada").exit_code == 2


def test_scans_histories_and_tables_are_listed(path: Path) -> None:
    """In order, with a prefix and a limit; bytes that are no text are told apart."""
    assert [(one["key"], one["value"]) for one in _json("scan", path, "users")] == [
        ("ada", "owner"), ("bob", "guest"), ({"base64": "/w=="}, {"base64": "/g=="}),
    ]  # fmt: skip
    assert _run("scan", path, "users", "--limit", 1).stdout == "ada  owner\n"
    assert _run("scan", path, "users", "--prefix", "b", "--values").stdout == "guest\n"
    assert [one["value"] for one in _json("history", path, "users", "ada")] == ["admin", "owner"]
    assert "admin" in _run("history", path, "users", "ada").stdout
    _run("delete", path, "users", "ada")
    assert "(deleted)" in _run("history", path, "users", "ada").stdout
    assert _json("list", path) == [{"table": "users", "keys": 2, "version": 4}]
    assert _run("list", path).stdout == "users: 2 keys, version 4\n"


def test_changes_are_watched(path: Path) -> None:
    """From a snapshot on, or from a version, until nothing comes."""
    items = _json("watch", path, "users", "--start", "snapshot", "--timeout", 0)
    assert [one.get("key") for one in items] == ["ada", "bob", {"base64": "/w=="}, None]
    assert items[-1] == {"caught_up": 3}
    (change,) = _json("watch", path, "users", "--start", 1, "-n", 1)
    assert (change["key"], change["value"], change["operation"]) == ("ada", "owner", "put")
    text = _run("watch", path, "users", "--start", "snapshot", "--timeout", 0).stdout
    assert "caught up with version 3" in text
    _run("delete", path, "users", "bob")
    shown = _run("watch", path, "users", "--start", 4, "--timeout", 0, "--prefix", "b").stdout
    assert "(deleted)" in shown
    assert _run("watch", path, "users", "--start", "then", "--timeout", 0).exit_code == 2
