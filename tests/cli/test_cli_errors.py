"""Expected errors: one line on standard error, and an exit code that says which kind."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog import errors
from stratalog.cli.app import app, exit_code


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def _assert_one_line(result: Result, code: int) -> None:
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a topic of three records, each in a frame of its own."""
    path = tmp_path / "store"
    with stratalog.open(path, shards=1) as opened:
        for value in (b"first-value", b"second-value", b"third-value"):
            opened.topic("orders").append(value)
    return path


def test_every_kind_of_error_has_its_exit_code() -> None:
    """Each branch of the tree has one number, and no error is left without."""
    codes = {
        errors.UsageError: 2, errors.ConflictError: 3, errors.StateError: 4,
        errors.StorageError: 5, errors.FormatError: 6, errors.PressureError: 7,
    }  # fmt: skip
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.StratalogError) and kind is not errors.StratalogError:
            branch = next(base for base in codes if issubclass(kind, base))
            assert exit_code(kind("x")) == codes[branch], kind
    assert exit_code(PermissionError(13, "no")) == 5


def test_an_unknown_topic_is_usage(store: Path) -> None:
    """Reading a topic that does not exist ends with 2 and does not create it."""
    _assert_one_line(_run("read", store, "nope"), 2)
    assert "nope" not in _run("topics", store).stdout


def test_a_second_writer_is_a_conflict(store: Path) -> None:
    """A store that is open elsewhere ends with 3, and the line says who has it."""
    with stratalog.open(store):
        result = _run("append", store, "orders", "x")
    _assert_one_line(result, 3)
    assert "is open already, in this process" in result.stderr


def test_appending_to_a_damaged_store_is_state(store: Path) -> None:
    """Damage in the middle of the log ends an append with 4; reading the rest still works."""
    log = next(store.glob("log/*/*.log"))
    data = log.read_bytes()
    log.write_bytes(data.replace(b"second-value", b"sEcond-value"))
    _assert_one_line(_run("append", store, "orders", "x"), 4)
    facts = dict(line.split(maxsplit=1) for line in _run("stats", store).stdout.splitlines())
    assert "is damaged" in facts["damage"]
    assert _run("read", store, "orders", "--limit", 1, "--values").stdout == "first-value\n"


def test_a_file_in_the_way_is_usage(tmp_path: Path) -> None:
    """A store is a directory."""
    (tmp_path / "file").write_text("x")
    _assert_one_line(_run("append", tmp_path / "file", "orders", "x"), 2)
    _assert_one_line(_run("append", tmp_path / "file" / "store", "orders", "x"), 2)


def test_what_the_system_refuses_is_storage() -> None:
    """It ends with 5, without a traceback."""
    _assert_one_line(_run("append", "/proc/store", "orders", "x"), 5)


def test_bytes_that_are_not_ours_are_format(store: Path) -> None:
    """A store file that does not decode ends with 6, and the line names the file."""
    (store / "store").write_bytes(b"something else entirely" * 4)
    result = _run("read", store, "orders")
    _assert_one_line(result, 6)
    assert str(store / "store") in result.stderr


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """Appending to a directory that is not a store ends with 2 and adds no topic to it."""
    (tmp_path / "letter.txt").write_text("dear")
    _assert_one_line(_run("append", tmp_path, "orders", "x"), 2)
    assert not (tmp_path / "store").exists()


def test_a_command_that_does_not_exist_is_usage() -> None:
    """Usage errors of the command line itself end with 2 as well, plainly."""
    result = _run("reed")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "reed" in result.stderr
    assert "╭" not in result.stderr
