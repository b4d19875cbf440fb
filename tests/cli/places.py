"""Every command with its arguments, and places that no command can work with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app

STORE, TOPIC = "<store>", "<topic>"
"""Stand for what a test puts there."""

COMMANDS: dict[str, list[str]] = {
    "append": [STORE, TOPIC, "x"],
    "create": [STORE, TOPIC, "--exist-ok"],
    "alter": [STORE, TOPIC, "-o", "ttl=60"],
    "delete": [STORE, TOPIC, "--before", "1"],
    "read": [STORE, TOPIC],
    "tail": [STORE, TOPIC],
    "topics": [STORE],
    "stats": [STORE],
    "backup": [STORE, "copy"],
    "verify": [STORE],
    "repair": [STORE, "--dry-run"],
    "inspect": [STORE],
    "compact": [STORE],
    "queue put": [STORE, "jobs", "x"],
    "queue ack": [STORE, "jobs", "1"],
    "queue nack": [STORE, "jobs", "1"],
    "queue get": [STORE, "jobs"],
    "queue peek": [STORE, "jobs"],
    "queue stats": [STORE, "jobs"],
    "queue dead": [STORE, "jobs"],
    "queue requeue": [STORE, "jobs", "1"],
    "queue purge": [STORE, "jobs"],
    "queue seek": [STORE, "jobs", "0"],
    "group list": [STORE, TOPIC],
    "group lag": [STORE, TOPIC, "billing"],
    "group pending": [STORE, TOPIC, "billing"],
    "group seek": [STORE, TOPIC, "billing", "0"],
    "routes list": [STORE],
    "routes add": [STORE, TOPIC, "copy"],
    "routes pause": [STORE, TOPIC, "copy"],
    "routes resume": [STORE, TOPIC, "copy"],
    "routes drop": [STORE, TOPIC, "copy"],
    "routes run": [STORE],
    "schedule list": [STORE],
    "schedule add": [STORE, "nightly", "jobs", "text", "--cron", "@daily"],
    "schedule pause": [STORE, "nightly"],
    "schedule resume": [STORE, "nightly"],
    "schedule drop": [STORE, "nightly"],
    "schedule run": [STORE],
    "series write": [STORE, "cpu user=1"],
    "series query": [STORE, "cpu"],
    "series latest": [STORE, "cpu"],
    "table get": [STORE, "users", "ada"],
    "table put": [STORE, "users", "ada", "1815"],
    "table add": [STORE, "users", "visits"],
    "table delete": [STORE, "users", "ada"],
    "table scan": [STORE, "users"],
    "table history": [STORE, "users", "ada"],
    "table watch": [STORE, "users"],
    "table list": [STORE],
}
"""Those that need no Spark."""

SPARK_COMMANDS: dict[str, list[str]] = {
    "export": [STORE, "out", "--topics", TOPIC],
    "import": [STORE, "rows.csv", TOPIC],
    "pipeline verify": [STORE],
    "pipeline report": [STORE, "--topics", TOPIC, "--output", "page.html"],
    "pipeline compact": [STORE, "--topics", TOPIC],
    "pipeline backfill": [STORE, "--topics", TOPIC],
    "pipeline export": [STORE, "out", "--topics", TOPIC],
    "pipeline import": [STORE, "rows.csv", TOPIC],
    "pipeline replay": [STORE, TOPIC, "copy", "my_steps:keep"],
}
"""Those that do."""

OTHERS = {"demo", "pipeline run"}
"""Those that take no store: they have tests of their own."""

CREATE = {
    "append", "create", "queue put", "queue get", "import", "pipeline import", "routes add",
    "schedule add", "series write", "table put", "table add",
}  # fmt: skip
"""Those that create the topic, or the queue, that they are given."""


def _missing(path: Path) -> Path:
    return path / "nothing"


def _file(path: Path) -> Path:
    (path / "file").write_text("x")
    return path / "file"


def _below_a_file(path: Path) -> Path:
    return _file(path) / "store"


def _something_else(path: Path) -> Path:
    (path / "letters").mkdir()
    (path / "letters" / "letter.txt").write_text("dear")
    return path / "letters"


def _long_name(path: Path) -> Path:
    return path / ("x" * 300)


def _directory_for_a_file(path: Path) -> Path:
    (path / "odd" / "store").mkdir(parents=True)
    return path / "odd"


def _garbage(path: Path) -> Path:
    with stratalog.open(path / "garbage", shards=1) as store:
        store.topic("orders").append(b"x")
    (path / "garbage" / "store").write_bytes(b"something else entirely" * 4)
    return path / "garbage"


def _unreadable(path: Path) -> Path:
    with stratalog.open(path / "mine", shards=1) as store:
        store.topic("orders").append(b"x")
    (path / "mine").chmod(0)
    return path / "mine"


REPORT = {"verify", "repair", "inspect", "pipeline verify"}
"""Those that report damage where others fail."""
DAMAGED = {"garbage", "directory for a file"}

PLACES: dict[str, tuple[Callable[[Path], Path], set[int]]] = {
    "missing": (_missing, {2}),
    "file": (_file, {2, 5}),
    "below a file": (_below_a_file, {2, 5}),
    "something else": (_something_else, {2}),
    "long name": (_long_name, {2, 5}),
    "directory for a file": (_directory_for_a_file, {2, 5, 6}),
    "garbage": (_garbage, {6}),
    "unreadable": (_unreadable, {5}),
}
"""How each is made, and the exit codes that it may end with."""

IS_ROOT = os.geteuid() == 0
"""Nothing is unreadable to root."""


def leaves() -> Iterator[str]:
    """The name of every command there is."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(path)
            return
        for name, child in inner.items():
            yield from walk(child, (*path, name))

    return walk(typer.main.get_command(app), ())


def run(command: str, arguments: list[str], **given: str | Path) -> Result:
    """Run a command with the store and the topic put where they stand."""
    put = {f"<{name}>": str(value) for name, value in given.items()}
    return CliRunner().invoke(app, [*command.split(), *(put.get(a, a) for a in arguments)])


def assert_no_traceback(result: Result, codes: set[int]) -> None:
    """It ended with one of the codes."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in codes, (result.exit_code, result.stderr)
    assert "Traceback" not in result.output


def assert_one_sentence(result: Result, codes: set[int]) -> None:
    """It ended with one of the codes and one line that says why, and with no traceback."""
    assert_no_traceback(result, codes)
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: "), line
    assert not line.startswith("error: [Errno"), line


def assert_refused(command: str, place: str, result: Result) -> None:
    """The command said that it cannot work there; one that reports damage may report it."""
    codes = PLACES[place][1]
    if command in REPORT and place in DAMAGED:
        assert_no_traceback(result, codes | {0})
    else:
        assert_one_sentence(result, codes)
