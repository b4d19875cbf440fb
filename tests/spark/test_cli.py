"""stratalog pipeline: what its commands print, how they end, and what they need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import stratalog
from stratalog.cli.app import app
from stratalog.errors import UsageError
from stratalog.spark.session import session, use


def _run(*args: object) -> Result:
    return CliRunner().invoke(app, ["pipeline", *map(str, args)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Ten records, closed."""
    path = tmp_path / "store"
    with stratalog.open(path, shards=1) as opened:
        for number in range(10):
            opened.topic("orders").append(b"order %d" % number)
    return path


def test_verify_says_what_verify_says(spark: Any, store: Path) -> None:
    """As text, as JSON, and with the same exit codes."""
    done = _run("verify", store)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"{store}: ok")
    (path,) = store.rglob("*.log")
    path.write_bytes(path.read_bytes().replace(b"order 4", b"order X"))
    done = _run("verify", store, "--json")
    assert done.exit_code == 6
    (line,) = done.stdout.splitlines()
    assert [problem["kind"] for problem in json.loads(line)["problems"]] == ["log", "offsets"]
    done = _run("verify", store.parent / "nothing")
    assert done.exit_code == 2
    assert "not a Stratalog store" in done.stderr


def test_a_session_that_runs_is_used_and_left_running(spark: Any, store: Path) -> None:
    """The caller that started it stops it; another master beside it is refused."""
    assert _run("verify", store, "--master", "local[2]").exit_code == 0
    assert spark.range(3).count() == 3
    done = _run("verify", store, "--master", "local[7]")
    assert done.exit_code == 2
    assert "runs on 'local[2]' already" in done.stderr
    with pytest.raises(UsageError, match="not both"), use(spark, "local[2]"):
        pass


def _alone(store: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "stratalog.cli", "pipeline", "verify", str(store)]
    environment = dict(os.environ) | environment
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def test_it_is_quiet_in_a_pipe(store: Path) -> None:
    """Spark and Java have nothing to say when all is well."""
    done = _alone(store)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{store}: ok\n")


def test_without_java_it_says_what_to_install(store: Path, tmp_path: Path) -> None:
    """One line, and the exit code of a call that cannot work."""
    done = _alone(store, JAVA_HOME=str(tmp_path), PATH=str(tmp_path))
    assert done.returncode == 2
    assert "error: Spark did not start: it needs Java 17 or newer" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_pyspark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is an extra of the package."""
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(UsageError, match=r"pip install 'stratalog\[spark\]'"):
        session()


def test_report_writes_a_page_and_prints_a_table(
    spark: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or prints JSON, and then writes nothing that was not asked for."""
    monkeypatch.chdir(tmp_path)
    done = _run("report", store)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[:2] == ["orders", "10"]
    assert done.stdout.splitlines()[-1] == f"report: {tmp_path / 'store-report.html'}"
    (tmp_path / "store-report.html").unlink()
    done = _run("report", store, "--json")
    assert json.loads(done.stdout)["topics"][0]["records"] == 10
    assert not list(tmp_path.glob("*.html"))


def test_records_go_out_in_and_through(
    spark: Any, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """export, import and replay: a summary for people, JSON for programs; two are aliases."""
    out = tmp_path / "out"
    done = _run("export", store, out, "--schema", "n long")
    assert done.exit_code == 0, done.stderr
    assert f"10 records to {out}" in done.stdout
    assert "10 values, which are in the column _corrupt" in done.stdout
    again = CliRunner().invoke(
        app, ["export", str(store), str(out), "--schema", "n long", "--json"]
    )
    assert json.loads(again.stdout)["records"] == 0
    (tmp_path / "rows.csv").write_text("who,what\nada,1\nbob,2\n")
    arguments = ["import", str(store), str(tmp_path / "rows.csv"), "people", "--key", "who"]
    done = CliRunner().invoke(app, [*arguments, "--option", "sep=,"])
    assert done.exit_code == 0, done.stderr
    assert "2 records into people" in done.stdout
    assert json.loads(_run(*arguments, "--json").stdout)["records"] == 0
    assert _run(*arguments, "--option", "sep").exit_code == 2
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_cli_steps.py").write_text("def keep(r):\n    return r\n")
    done = _run("replay", store, "orders", "copy", "my_cli_steps:keep", "--start", "4")
    assert done.exit_code == 0, done.stderr
    assert "6 records of orders, from 4 on" in done.stdout
    with stratalog.open(store, read_only=True) as opened:
        assert opened.topic("copy").read_values() == [b"order %d" % n for n in range(4, 10)]


def test_compact_and_backfill_say_what_they_did(spark: Any, store: Path) -> None:
    """In a table, or as JSON."""
    with stratalog.open(store, shards=1) as opened:
        topic = opened.create_topic("small", segment_records=5)
        topic.append_many([b"x" * 100] * 20)
        topic.delete(offsets=[1])
        opened.checkpoint()
    done = _run("compact", store)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[0] == "small"
    assert json.loads(_run("compact", store, "--json").stdout)["topics"] == []
    done = _run("backfill", store)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("0 records put into segments")
