"""stratalog series."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from stratalog.cli.app import app

LINES = "cpu,host=a v=1 60\ncpu,host=b v=3 120\n"


def _run(*args: object, input: str | None = None) -> Result:
    return CliRunner().invoke(app, ["series", *(str(arg) for arg in args)], input=input)


def test_lines_are_written_from_standard_input(tmp_path: Path) -> None:
    """And windows, newest points and a chart are shown, as text and as JSON."""
    result = _run("write", tmp_path, "--precision", "s", "--json", input=LINES)
    assert json.loads(result.stdout) == {"points": 2}
    result = _run("query", tmp_path, "cpu", "--window", "1m", "--by", "host", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"host": "a", "window_start": 60 * 10**9, "value": 1.0},
        {"host": "b", "window_start": 120 * 10**9, "value": 3.0},
    ]
    first, second = _run("query", tmp_path, "cpu", "--window", "1m").stdout.splitlines()
    assert first.startswith("1970-01-01 00:01:00")
    assert 0 < first.count("█") < second.count("█")
    result = _run("latest", tmp_path, "cpu", "--tag", "host=b", "--json")
    assert json.loads(result.stdout) == {
        "tags": {"host": "b"}, "timestamp": 120 * 10**9, "fields": {"v": 3.0},
    }  # fmt: skip
    assert "host=a" in _run("latest", tmp_path, "cpu").stdout


def test_a_bad_line_ends_with_an_error_and_writes_nothing(tmp_path: Path) -> None:
    """The error names line and column."""
    result = _run("write", tmp_path, "cpu v=1", "cpu v=")
    assert result.exit_code != 0
    assert "Line 2, column 7" in str(result.exception or "") + result.output
    assert _run("latest", tmp_path, "cpu").exit_code != 0
    assert _run("latest", tmp_path, "cpu", "--tag", "host").exit_code != 0
