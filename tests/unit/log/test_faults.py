"""Errors of the disk: what was acknowledged stays, what failed is not published, all is said."""

from __future__ import annotations

import errno
from concurrent.futures import Future

import pytest
from tests.crash.model import kill, open_store

from stratalog.errors import DiskFullError, PoisonedError, SyncFailedError
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.model import Gap
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock, MonitorFs
from stratalog.testing.inode import Damage


class Disk:
    """A fake disk with faults, under the monitor, and stores opened on it."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.disk = FakeDisk(capacity_bytes=capacity_bytes)
        self.faults = FaultFs(self.disk)
        self.clock = ManualClock()

    def open(self, **options: object) -> Store:
        return open_store(MonitorFs(self.faults), self.clock, **{"shards": 1, **options})

    def reopen(self, store: Store, damage: Damage = "keep", **options: object) -> Store:
        """As after a crash of the machine."""
        kill(store)
        self.disk = self.disk.crash(1, damage=damage)
        self.faults = FaultFs(self.disk)
        return self.open(**options)


def tick(store: Store) -> None:
    assert store._log is not None
    store._log.tick()


def append_until_full(topic: Topic) -> int:
    """Append until the disk is full; returns how many were acknowledged."""
    for number in range(1000):
        try:
            topic.append(bytes(500))
        except DiskFullError:
            return number
    raise AssertionError("the disk never filled up")


def test_a_failed_sync_is_not_acknowledged_and_poisons_the_shard() -> None:
    """Nothing of the failed append is published, and nothing more is taken until a reopen."""
    disk = Disk()
    store = disk.open()
    topic = store.topic("orders")
    topic.append(b"good")
    disk.faults.add(Fault(operation="fdatasync"))
    with pytest.raises(SyncFailedError, match="sync failed"):
        topic.append(b"bad")
    assert topic.read_values() == [b"good"]
    assert topic.next_offset == 1
    with pytest.raises(PoisonedError, match="open it again"):
        topic.append(b"refused")
    with pytest.raises(PoisonedError):
        topic.append_many([b"refused"])
    with pytest.raises(PoisonedError):
        topic.append_nowait(b"refused")
    with pytest.raises(PoisonedError):
        store.sync()
    assert topic.read_values() == [b"good"]
    store = disk.reopen(store, damage="drop")
    assert store.topic("orders").read_values() == [b"good"]
    assert store.topic("orders").append(b"again") == 1
    store.close()


@pytest.mark.parametrize("short", [None, 1, 70, 100])
def test_a_failed_write_poisons_whatever_part_of_it_was_written(short: int | None) -> None:
    """A short write leaves a torn tail, which the next open cuts."""
    disk = Disk()
    store = disk.open()
    topic = store.topic("orders")
    topic.append(b"good")
    disk.faults.add(Fault(operation="pwrite", error=errno.EIO, short=short))
    with pytest.raises(SyncFailedError, match="write failed"):
        topic.append(b"bad" * 20)
    with pytest.raises(PoisonedError):
        topic.append(b"refused")
    store = disk.reopen(store)
    values = store.topic("orders").read_values()
    assert values == [b"good"]
    store.close()


def test_other_shards_go_on_when_one_is_poisoned() -> None:
    """Each shard is a log of its own."""
    disk = Disk()
    store = disk.open(shards=2)
    topics = {store._catalog.find(n).shard: store.topic(n) for n in "abcdef" if store.topic(n)}
    (first, second) = topics.values()
    disk.faults.add(Fault(operation="fdatasync"))
    with pytest.raises(SyncFailedError):
        first.append(b"bad")
    assert second.append(b"good") == 0
    kill(store)


def test_a_full_disk_is_said_and_forgotten_once_there_is_space() -> None:
    """Nothing is kept of the append that did not fit; the next one that fits works."""
    disk = Disk()
    store = disk.open()
    topic = store.topic("orders")
    topic.append(b"good")
    disk.faults.add(Fault(operation="pwrite", error=errno.ENOSPC, short=80))
    with pytest.raises(DiskFullError, match="free some space"):
        topic.append(b"bad" * 30)
    assert topic.read_values() == [b"good"]
    assert topic.append(b"fits") == 1
    store = disk.reopen(store, damage="drop")
    assert store.topic("orders").read_values() == [b"good", b"fits"]
    store.close()


def test_a_disk_that_fills_up_loses_nothing_acknowledged() -> None:
    """A real limit: append until it is reached, then everything acknowledged is there."""
    disk = Disk(capacity_bytes=60_000)
    store = disk.open()
    topic = store.topic("orders")
    acknowledged = append_until_full(topic)
    assert acknowledged > 50
    assert len(topic) == acknowledged
    store = disk.reopen(store, damage="drop")
    assert len(store.topic("orders")) == acknowledged
    kill(store)


def test_space_that_is_to_stay_free_stays_free() -> None:
    """`disk_reserve_bytes` is checked before anything is written."""
    disk = Disk(capacity_bytes=100_000)
    store = disk.open(disk_reserve_bytes=50_000)
    append_until_full(store.topic("orders"))
    with pytest.raises(DiskFullError, match="disk_reserve_bytes=50000"):
        store.topic("orders").append(bytes(5000))
    assert disk.disk.free_bytes("/data") >= 49_000
    store.close()


def test_a_lost_relaxed_append_is_reported_by_the_next_call() -> None:
    """No thread waited for it, so the next append raises; its offset is not given again."""
    disk = Disk()
    store = disk.open()
    topic = store.topic("orders")
    topic.append(b"good")
    disk.faults.add(Fault(operation="pwrite", path_contains=".log", error=errno.ENOSPC))
    assert topic.append(b"lost", durability="disk") == 1
    tick(store)
    with pytest.raises(DiskFullError):
        topic.append(b"told")
    assert topic.append(b"next") == 2
    found = [item if isinstance(item, Gap) else item.value for item in topic.read()]
    assert found == [b"good", Gap(1, 1, "crash"), b"next"]
    store.close()


def test_a_failed_background_sync_is_reported_and_poisons() -> None:
    """The kernel reports a lost page once: to us, in the background, and we pass it on."""
    disk = Disk()
    store = disk.open()
    topic = store.topic("orders")
    tick(store)
    topic.append(b"relaxed", durability="disk")
    tick(store)
    disk.faults.add(Fault(operation="fdatasync"))
    disk.clock.advance(5)
    tick(store)
    with pytest.raises(PoisonedError):
        topic.append(b"refused")
    with pytest.raises(PoisonedError):
        store.close()


def test_futures_of_a_failed_group_raise_what_went_wrong() -> None:
    """All of them, also those that joined the later group."""
    disk = Disk()
    store = disk.open()
    topic = store.topic("orders")
    disk.faults.add(Fault(operation="fdatasync"))
    futures: list[Future[int]] = [topic.append_nowait(b"%d" % number) for number in range(3)]
    for future in futures:
        with pytest.raises(SyncFailedError):
            future.result()
        assert isinstance(future.exception(), SyncFailedError)
    assert len(topic) == 0
    kill(store)


def test_every_failing_call_leaves_a_directory_that_opens() -> None:
    """Each mutating operation in turn fails once, for good or for a moment."""
    for operation in ("pwrite", "fdatasync", "create", "sync_dir", "preallocate"):
        for call in range(1, 12):
            for error in (errno.EIO, errno.ENOSPC):
                disk = Disk()
                store = disk.open()
                topic = store.topic("orders")
                disk.faults.add(Fault(operation=operation, call=call, error=error))
                acknowledged = []
                for number in range(20):
                    try:
                        topic.append(b"%04d" % number * 200)
                        acknowledged.append(b"%04d" % number * 200)
                    except (SyncFailedError, DiskFullError, PoisonedError):
                        pass
                assert topic.read_values() == acknowledged
                store = disk.reopen(store, damage="drop")
                found = store.topic("orders").read_values()
                assert found[: len(acknowledged)] == acknowledged
                store.close()
