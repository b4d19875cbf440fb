"""The sweep: every workload, crashed after every file operation, recovered against the model.

Sampled by default. `STRATALOG_SWEEP=exhaustive` crashes after every single operation, with more
damage seeds for each, and also crashes the recovery itself after every one of its operations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stratalog.testing import Crashed, FakeDisk, ManualClock, MonitorFs
from tests.crash.model import Session, Workload, check_recovered, kill, open_store
from tests.crash.workloads import CATALOGUE

EXHAUSTIVE = os.environ.get("STRATALOG_SWEEP") == "exhaustive"

# Sampled: about this many crash points a workload, and this many ways to lose what was pending.
POINTS = 24
SEEDS = range(12) if EXHAUSTIVE else range(3)


def damages() -> Iterator[tuple[int, str]]:
    """Seed and kind of every damage that is tried at a crash point."""
    yield 0, "keep"
    yield 0, "drop"
    for seed in SEEDS:
        yield seed, "random"


def run(workload: Workload, crash_after: int | None) -> Session:
    """Run a workload until its disk crashes, or to its end."""
    session = Session(FakeDisk(crash_after=crash_after), ManualClock())
    try:
        workload(session)
    except Crashed:
        pass
    else:
        assert crash_after is None or session.disk.operations <= crash_after
    session.kill()
    return session


def log_image(disk: FakeDisk) -> dict[str, bytes]:
    """All bytes but the lock's, which names whoever held it last."""
    return {path: data for path, data in disk.image().items() if not path.endswith("/lock")}


def recover(session: Session, disk: FakeDisk) -> None:
    """Recover, check, recover again to the same bytes, and go on appending."""
    store = open_store(MonitorFs(disk), session.clock, **session.options)
    check_recovered(store, session.topics)
    kill(store)
    first = log_image(disk)
    again = disk.crash(0, damage="keep")
    monitor = MonitorFs(again)
    store = open_store(monitor, session.clock, **session.options)
    assert log_image(again) == first, "the second recovery changed something"
    check_recovered(store, session.topics)
    offset = store.topic("after the crash").append(b"life goes on")
    assert store.topic("after the crash").read_values(offset) == [b"life goes on"]
    store.close()
    monitor.check()


@pytest.mark.parametrize("workload", CATALOGUE, ids=lambda workload: workload.__name__)
def test_every_crash_is_recovered(
    workload: Workload, record_property: pytest.RecordProperty
) -> None:
    """Acknowledged records are there, offsets dense, nothing invented, recovery repeatable."""
    whole = run(workload, None)
    whole.monitor.check()
    operations = whole.disk.operations
    step = 1 if EXHAUSTIVE else max(1, operations // POINTS)
    crashes = 0
    for point in range(0, operations + 1, step):
        session = run(workload, point)
        for seed, damage in damages():
            try:
                recover(session, session.disk.crash(seed, damage=damage))
            except BaseException as error:
                error.add_note(f"{workload.__name__}, {point} operations, {damage} {seed}")
                raise
            crashes += 1
        if not session.disk.is_crashed:
            break
    record_property("crash_points", crashes)
    assert crashes >= len(list(damages())) * 3


@pytest.mark.parametrize("workload", CATALOGUE, ids=lambda workload: workload.__name__)
def test_a_crash_during_recovery_is_recovered(
    workload: Workload, record_property: pytest.RecordProperty
) -> None:
    """Recovery may itself be cut short after any of its operations."""
    operations = run(workload, None).disk.operations
    step = max(1, operations // (20 if EXHAUSTIVE else 4))
    crashes = 0
    for point in range(operations // 3, operations, step):
        session = run(workload, point)
        for during in range(100):
            disk = session.disk.crash(point, crash_after=during)
            try:
                kill(open_store(MonitorFs(disk), session.clock, **session.options))
            except Crashed:
                recover(session, disk.crash(during))
                crashes += 1
            else:
                break
    record_property("crash_points", crashes)
    assert crashes
