"""Backups crashed after every file operation: the target is a whole store, or not a store."""

from __future__ import annotations

from collections import Counter

import pytest

from stratalog.errors import NotAStoreError
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, MonitorFs
from tests.crash.model import Fields, Session, Workload
from tests.crash.test_sweep import EXHAUSTIVE, damages, run
from tests.crash.workloads import backups, cold_backups


def check_copy(disk: FakeDisk, target: str, expected: dict[str, list[Fields]]) -> bool:
    """Hold a backup against what it must hold; returns whether it is a store."""
    try:
        Store(target, StoreOptions.build({}, {}), read_only=True, fs=disk).close()
    except NotAStoreError:
        return False
    options = StoreOptions.build({"disk_reserve_bytes": 0}, {})
    monitor = MonitorFs(disk)
    with Store(target, options, fs=monitor, background=False) as store:
        assert store.damage is None, store.damage
        assert store.stats().torn_bytes == 0
        for name, sent in expected.items():
            found = [r for r in store.topic(name).read() if isinstance(r, Record)]
            assert [(r.value, r.key, r.tag) for r in found] == sent
        assert set(store.topics()) == set(expected)
        store.topic("restored").append(b"life goes on")
    monitor.check()
    return True


def check_copies(session: Session, disk: FakeDisk) -> Counter[bool]:
    """All backups that were begun."""
    seen: Counter[bool] = Counter()
    for target, expected in session.copies.items():
        is_store = check_copy(disk, target, expected)
        assert is_store or target not in session.finished, "a finished backup is gone"
        seen[is_store] += 1
    return seen


@pytest.mark.parametrize("workload", [backups, cold_backups])
def test_a_crashed_backup_is_a_whole_store_or_none(workload: Workload) -> None:
    """At every operation; one that returned survives any crash, whatever the store does next.

    Also if that drops a topic whose segments both have in the cold store.
    """
    operations = run(workload, None).disk.operations
    step = 1 if EXHAUSTIVE else 5
    seen: Counter[bool] = Counter()
    for point in range(0, operations + 1, step):
        session = run(workload, point)
        for seed, damage in damages():
            try:
                seen += check_copies(session, session.disk.crash(seed, damage=damage))
            except BaseException as error:
                error.add_note(f"{point} operations, {damage} {seed}")
                raise
    assert min(seen[True], seen[False]) > 50


@pytest.mark.parametrize("damage", ["keep", "drop"])
def test_an_unfinished_backup_is_not_opened_by_a_writer_either(damage: str) -> None:
    """A writer makes a new store of an empty directory, but not of half a copy."""
    whole = run(backups, None).disk.operations
    refused = 0
    for point in range(whole // 8, whole, 7):
        session = run(backups, point)
        disk = session.disk.crash(0, "keep" if damage == "keep" else "drop")
        for target in session.copies.keys() - session.finished:
            if disk.listdir(target) and "store" not in disk.listdir(target):
                with pytest.raises(NotAStoreError, match="not empty"):
                    Store(target, StoreOptions.build({}, {}), fs=disk, background=False)
                refused += 1
    assert refused
