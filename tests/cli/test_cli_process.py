"""The real command, in a process of its own: pipes, signals, imports, and the demonstration."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stratalog

COMMAND = [sys.executable, "-m", "stratalog"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "first_steps.py"

# Runs the command line, and says at the very end whether Arrow was imported.
ARROW_WATCH = """
import atexit, sys
from stratalog.cli import main
atexit.register(lambda: print("arrow" if "pyarrow" in sys.modules else "no arrow"))
main()
"""


def _run(*args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*COMMAND, *map(str, args)]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def _fill(path: Path, count: int) -> None:
    with stratalog.open(path) as store:
        store.topic("orders").append_many([b"%d" % number for number in range(count)])


def test_lines_go_through_a_pipe_and_back(tmp_path: Path) -> None:
    """Bytes that are piped into append come out of read, byte for byte."""
    data = b"".join(b"line %d \xff\n" % number for number in range(3000))
    done = _run("append", tmp_path / "s", "orders", stdin=data)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"appended 3,000 records to orders: offsets 0 to 2999\n"
    assert _run("read", tmp_path / "s", "orders", "--values").stdout == data


@pytest.mark.parametrize("form", ["--values", "--json", None])
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, form: str | None) -> None:
    """A broken pipe ends the command at once, quietly, and with 0."""
    _fill(tmp_path, 100_000)
    command = [*COMMAND, "read", str(tmp_path), "orders", *([form] if form else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_a_table_into_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    """Output that fits the buffer meets the closed pipe only at the end, and stays quiet."""
    _fill(tmp_path, 1)
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, "topics", str(tmp_path)],
            stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_tail_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    """New records of another process arrive at once; Ctrl-C ends with 0 and says nothing."""
    _fill(tmp_path, 5)
    command = [*COMMAND, "tail", str(tmp_path), "orders", "--lines", "2", "--json"]
    # A shell has what it starts in the background ignore Ctrl-C, and all that is started by that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        signal.signal(signal.SIGINT, before)
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            seen = [json.loads(process.stdout.readline())["value"] for _ in range(2)]
            with stratalog.open(tmp_path) as store:
                store.topic("orders").append(b"fresh")
                seen.append(json.loads(process.stdout.readline())["value"])
            process.send_signal(signal.SIGINT)
            assert process.stdout.read() == b""
            assert process.stderr.read() == b""
        finally:
            process.kill()
    assert seen == ["3", "4", "fresh"]
    assert process.returncode == 0


def test_a_torn_tail_is_told_as_a_warning(tmp_path: Path) -> None:
    """The library's log message about an unfinished write that it cut off reaches the user."""
    _fill(tmp_path, 1)
    log = next(log for log in tmp_path.glob("log/*/*.log") if log.read_bytes().strip(b"\0"))
    with log.open("ab") as file:
        file.write(b"half a fra")
    done = _run("append", tmp_path, "orders", "x")
    assert (done.returncode, done.stdout) == (0, b"appended 1 record to orders: offset 1\n")
    assert done.stderr.startswith(b"warning: ")
    assert b"unfinished bytes" in done.stderr


def test_help_and_version_start_without_arrow() -> None:
    """Neither asks for what only reading tables needs; help names every command."""
    for option, expected in (
        ("--help", ("demo", "append", "read", "tail", "topics", "stats", "no arrow\n")),
        ("--version", (f"stratalog {stratalog.__version__}\nno arrow\n",)),
    ):
        done = subprocess.run(
            [sys.executable, "-c", ARROW_WATCH, option],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        for text in expected:
            assert text in done.stdout


def test_the_demonstration_proves_what_it_claims(tmp_path: Path) -> None:
    """A writer is killed, nothing acknowledged is lost, and the store it leaves says the same."""
    path = tmp_path / "demo"
    done = _run("demo", "--no-spark", "--path", path, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    report = json.loads(done.stdout)
    assert report["ok"] is True
    counts = {step["name"]: step["counts"] for step in report["steps"]}
    assert counts["kill -9"]["acknowledged"] > 0
    assert counts["recover"]["lost"] == 0
    assert counts["recover"]["acknowledged"] == 400 + counts["kill -9"]["acknowledged"]
    assert counts["views"] == {"versions": 3, "forwarded": 1}
    assert len(report["rates"]) == 4
    assert all(rate["records_per_second"] > 0 for rate in report["rates"])
    with stratalog.open(path, read_only=True) as store:
        assert len(store.topic("payments")) == counts["read"]["records"]
    again = _run("demo", "--no-spark", "--path", path)
    assert (again.returncode, again.stdout) == (2, b"")


def test_the_demonstration_fails_when_a_record_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that was acknowledged and is not there turns the demonstration to exit code 1."""
    from typer.testing import CliRunner

    from stratalog.cli.app import app
    from stratalog.cli.demo import command as demo
    from stratalog.cli.demo import scenes

    def kill(self: scenes.Play) -> scenes.Scene:
        self._acknowledged = {400: b"never written"}
        return scenes.Scene("kill -9", True, "", "", {})

    monkeypatch.setattr(scenes.Play, "kill", kill)
    monkeypatch.setattr(demo, "measure", lambda path: [])
    result = CliRunner().invoke(app, ["demo", "--no-spark", "--path", str(tmp_path / "demo")])
    assert result.exit_code == 1
    assert "FAILED  recover" in result.stdout
    assert "LOST: 1 acknowledged record, the first at offset 400" in result.stdout


def test_the_first_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The example runs as it is, and prints what it promises."""
    runpy.run_path(str(EXAMPLE))
    printed = capsys.readouterr().out
    assert "one atomic batch at offsets 1 to 2" in printed
    assert "first offset since noon: 1" in printed
    assert "watched: Record(value=b'{\"total\": 99}'" in printed
