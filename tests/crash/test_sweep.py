"""The sweep: every workload, crashed after every file operation, recovered against the model.

Sampled by default. `STRATALOG_SWEEP=exhaustive` crashes after every single operation, with more
damage seeds for each, and also crashes the recovery itself after every one of its operations.
A failure ends with the crash point, as a command that plays that one crash again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from stratalog.handles.store import Store
from stratalog.testing import Crashed, FakeDisk, ManualClock, MonitorFs
from stratalog.testing.inode import Damage
from tests.crash.model import (
    Session,
    Workload,
    check_adoptions,
    check_joints,
    check_recovered,
    check_routes,
    check_schedules,
    kept_end,
    kill,
    open_store,
)
from tests.crash.workloads import CATALOGUE

_FILE = "tests/crash/test_sweep.py"
EXHAUSTIVE = os.environ.get("STRATALOG_SWEEP") == "exhaustive"

# Sampled: about this many crash points a workload, and this many ways to lose what was pending.
POINTS = 24
SEEDS = range(12) if EXHAUSTIVE else range(3)


def damages() -> Iterator[tuple[int, Damage]]:
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
    """Read all bytes but the lock's, which names its last holder."""
    return {path: data for path, data in disk.image().items() if not path.endswith("/lock")}


def append_again(store: Store, session: Session) -> dict[str, list[bytes | None]]:
    """Go on where the crash cut off, with other records of the same sizes.

    They end where the lost ones ended: any remains of those would come back now.
    Returns what the topics hold then.
    """
    expected: dict[str, list[bytes | None]] = {}
    for name, model in session.topics.items():
        if model.is_ephemeral:
            continue
        topic = store.topic(name)
        for value, key, tag in model.sent[kept_end(topic) :][:3]:
            other = None if value is None else bytes(byte ^ 0xFF for byte in value)
            topic.append(other, key=key, tag=tag, durability="fsync")
        expected[name] = topic.read_values()
    store.topic("after the crash").append(b"life goes on", durability="fsync")
    return expected | {"after the crash": [b"life goes on"]}


def recover(session: Session, disk: FakeDisk) -> None:
    """Recover, check, recover again to the same bytes, and go on appending."""
    store = open_store(MonitorFs(disk), session.clock, **session.options)
    check_recovered(store, session.topics)
    check_joints(store, session)
    check_adoptions(store, session.adoptions)
    check_routes(store, session)
    check_schedules(store)
    kill(store)
    first = log_image(disk)
    again = disk.crash(0, damage="keep")
    monitor = MonitorFs(again)
    store = open_store(monitor, session.clock, **session.options)
    assert log_image(again) == first, "the second recovery changed something"
    check_recovered(store, session.topics)
    check_joints(store, session)
    check_routes(store, session)
    if session.routes:
        assert store._upkeep is not None
        store._upkeep.forwarder.run()
        check_routes(store, session)
        monitor.check()
        kill(store)
        return  # what follows would append to destinations
    if session.has_schedules:
        check_schedules(store)
        session.clock.advance(1000.0)
        store.run_schedules()
        assert all(one.stats().state != "failed" or one.error for one in store.schedules())
        check_schedules(store)
        monitor.check()
        kill(store)
        return  # what follows would put messages without a due time
    expected = append_again(store, session)
    monitor.check()
    kill(store)
    final = again.crash(1, damage="drop")
    store = open_store(MonitorFs(final), session.clock, **session.options)
    assert {name: store.topic(name).read_values() for name in expected} == expected
    store.close()


@pytest.mark.parametrize("workload", CATALOGUE, ids=lambda workload: workload.__name__)
def test_every_crash_is_recovered(
    workload: Workload, record_property: Callable[[str, object], None]
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
                crash = f"{workload.__name__}:{point}:{damage}:{seed}"
                error.add_note(f"again: STRATALOG_CRASH={crash} make test T={_FILE}")
                raise
            crashes += 1
        if not session.disk.is_crashed:
            break
    record_property("crash_points", crashes)
    assert crashes >= len(list(damages())) * 3


@pytest.mark.skipif("STRATALOG_CRASH" not in os.environ, reason="no crash to play again")
def test_one_crash_is_recovered() -> None:
    """Plays the crash that STRATALOG_CRASH names, as workload:operations:damage:seed."""
    name, point, damage, seed = os.environ["STRATALOG_CRASH"].split(":")
    (workload,) = [one for one in CATALOGUE if one.__name__ == name]
    session = run(workload, int(point))
    recover(session, session.disk.crash(int(seed), damage=cast("Damage", damage)))


@pytest.mark.parametrize("workload", CATALOGUE, ids=lambda workload: workload.__name__)
def test_a_crash_during_recovery_is_recovered(
    workload: Workload, record_property: Callable[[str, object], None]
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


@pytest.mark.parametrize("workload", CATALOGUE, ids=lambda workload: workload.__name__)
def test_what_was_recovered_from_a_killed_process_survives_the_machine(workload: Workload) -> None:
    """A killed process leaves unsynced bytes that the next one reads: they must be made durable.

    Else a power cut after the recovery would take back what readers have already seen.
    """
    session = run(workload, None)
    assert session.store._lock is not None
    session.store._lock.close()  # the process is dead, the machine is not
    store = open_store(MonitorFs(session.disk), session.clock, **session.options)
    check_recovered(store, session.topics)
    seen = {name: store.topic(name).read_values() for name in session.topics}
    kill(store)
    after = session.disk.crash(0, damage="drop")
    store = open_store(MonitorFs(after), session.clock, **session.options)
    for name, values in seen.items():
        if not session.topics[name].is_ephemeral:
            assert store.topic(name).read_values() == values
    store.close()
