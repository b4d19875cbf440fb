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
    """Whoever started it stops it; another master beside it is refused."""
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
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
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
