"""Batches of others over crashes: a driver that publishes again what it is not sure of, as it must.

The sweep crashes the workloads of adoption everywhere and holds what is left against the model.
Here life goes on after the crash: the batches come again, and each must be there once.
"""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from stratalog.errors import StratalogError
from stratalog.handles.store import Store
from stratalog.segments.staging import StageWriter, append_part, manifest_of, publish
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, ManualClock, MonitorFs
from tests.crash.model import ROOT, Session, kill, open_store

BATCHES = 4
TOPICS = ("orders", "refunds", "large")


def _values(batch: int, topic: str) -> list[bytes]:
    size = 3000 if topic == "large" else 3
    return [b"%d %s" % (batch, topic.encode() * (size // len(topic) + 1))] * 3


def _publish(disk: FakeDisk, batch: int) -> None:
    parts = []
    for topic in TOPICS:
        staged = StageWriter(disk, ROOT)
        staged.write(pa.table({"value": pa.array(_values(batch, topic), pa.binary())}))
        if topic == "large":
            staged.begin_sync()()  # as Spark's sink does while it writes
        segment = staged.finish()
        assert segment is not None
        parts.append(append_part(topic, [segment]))
    publish(disk, ROOT, manifest_of("query", batch, parts))


def _drive(store: Store, disk: FakeDisk, *, own: bool) -> None:
    """All batches that the store does not have, with appends of the store's own in between."""
    for batch in range(BATCHES):
        if not store.is_adopted("query", batch):
            _publish(disk, batch)
        if own:
            store.topic("orders").append(b"own %d" % batch, durability="disk")
        assert store._upkeep is not None
        if batch % 2:
            store.adopt()
        else:
            store._upkeep._adopter.adopt()
        if batch == 2:
            store.snapshot()


def _run(crash_after: int | None) -> Session:
    session = Session(FakeDisk(crash_after=crash_after), ManualClock())
    try:
        session.open(shards=3)
        session.store.create_topic("large", segment_bytes=1 << 15)
        _drive(session.store, session.disk, own=True)
        session.store.checkpoint()
    except Crashed:
        pass
    session.kill()
    return session


def test_a_batch_that_is_published_again_after_a_crash_is_there_once() -> None:
    """Crashed after every few operations, with and without what was not synced."""
    operations = _run(None).disk.operations
    for point in range(0, operations, max(1, operations // 60)):
        session = _run(point)
        for seed, damage in ((0, "keep"), (1, "drop"), (2, "random"), (3, "random")):
            disk = session.disk.crash(seed, damage=damage)  # type: ignore[arg-type]
            try:
                store = open_store(MonitorFs(disk), session.clock, shards=2)
                assert store.damage is None
                _drive(store, disk, own=False)
                for topic in TOPICS:
                    found = [v for v in store.topic(topic).read_values() if v and v[:3] != b"own"]
                    wanted = [v for batch in range(BATCHES) for v in _values(batch, topic)]
                    assert found == wanted, topic
                store.close()
                assert not any(".seg" in name or ".tmp" in name for name in _fresh(disk))
            except BaseException as error:
                error.add_note(f"{point} operations, {damage} {seed}")
                raise


def _fresh(disk: FakeDisk) -> list[str]:
    """List `incoming/`, without orphans of the crash, which stay for a day."""
    return [path for path in disk.image() if "/incoming/" in path and path.endswith(".manifest")]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", range(1, 6))
@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
def test_an_adoption_that_fails_leaves_nothing_and_is_made_up_for(
    operation: str, call: int, code: int
) -> None:
    """In none of the shards; other appends have no hole before them."""
    disk = FakeDisk()
    faults = FaultFs(disk)
    clock = ManualClock()
    store = open_store(MonitorFs(faults), clock, shards=3)
    for topic in TOPICS:
        store.topic(topic).append(b"own")
    _publish(disk, 0)
    faults.add(Fault(operation=operation, call=call, path_contains=".log", error=code))
    failed = False
    try:
        assert store._upkeep is not None
        store._upkeep._adopter.adopt()
    except (StratalogError, OSError):
        failed = True
        assert not store.is_adopted("query", 0)
    faults.clear()
    for topic in TOPICS:
        found = store.topic(topic).read_values()
        assert found == ([b"own"] if failed else [b"own", *_values(0, topic)])
    kill(store)
    again = disk.crash(0, damage="keep")
    store = open_store(MonitorFs(again), clock, shards=3)
    assert store.damage is None
    store.adopt()
    for topic in TOPICS:
        assert store.topic(topic).read_values() == [b"own", *_values(0, topic)]
    store.close()
