"""The plugin for pytest: its fixtures, in tests of a program that is not ours."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

TESTS = """
import errno

import pytest

import stratalog
from stratalog.testing import Fault


def test_time_passes_when_told(store, clock):
    jobs = store.queue("jobs")
    jobs.put(b"later", delay=3600.0)
    assert jobs.get_nowait() is None
    clock.advance(3600.0)
    assert jobs.get_nowait().value == b"later"


def test_a_schedule(store, clock):
    store.schedule("nightly", cron="0 3 * * *", queue="jobs", value=b"clean up")
    clock.advance(24 * 3600.0)
    assert store.run_schedules() == 1


def test_a_disk_that_fails(store, faults):
    orders = store.topic("orders")
    faults.add(Fault(operation="pwrite", error=errno.ENOSPC, path_contains=".log"))
    with pytest.raises(stratalog.DiskFullError):
        orders.append(b"x")
    assert orders.append(b"y") >= 0


def test_a_disk_that_is_broken_for_good(store, faults):
    faults.add(Fault(operation="fdatasync", always=True))
    with pytest.raises(stratalog.StratalogError):
        store.topic("orders").append(b"x")


def test_what_a_crash_leaves(store, reopen):
    store.topic("orders").append(b"durable")
    store.topic("orders").append(b"perhaps", durability="memory")
    store = reopen(crash=True, seed=7)
    assert store.topic("orders").read_values(limit=1) == [b"durable"]
    store.topic("orders").append(b"on we go")
    store = reopen()
    assert store.topic("orders").read_values()[-1] == b"on we go"


def test_the_next_test_has_another_store(store):
    assert store.topics() == []
    assert store.run_schedules() == 0
"""


def test_the_fixtures_work_in_any_project(tmp_path: Path) -> None:
    """With warnings as errors, and nothing left in the directory."""
    (tmp_path / "test_program.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "pytest_stratalog",
         "-p", "no:cacheprovider", "test_program.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == [
        "test_program.py"
    ]


def test_pytest_finds_the_plugin_and_it_costs_nothing() -> None:
    """It is declared, and imports nothing of the package before a fixture is asked for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"pytest_stratalog": "pytest_stratalog"}
    code = "import pytest_stratalog, sys; sys.exit('stratalog' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
