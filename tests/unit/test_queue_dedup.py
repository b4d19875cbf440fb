"""Deduplication ids over restarts: they count for as long as they do, whatever becomes of records.

A replay finds ids in records, from where the last snapshot ends. It looked at those that are yet to
be delivered alone: whatever was consumed in one go, deleted or evicted took its ids with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from tests.crash.model import kill, open_store
from tests.unit.segments.topics import upkeep

from stratalog.queue import Queue
from stratalog.segments.checkpoint import seal
from stratalog.store import Store
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock


def consume(queue: Queue) -> None:
    """Take everything that is there."""
    while (message := queue.get_nowait()) is not None:
        queue.ack(message)


def killed(store: Store, disk: FakeDisk, clock: ManualClock) -> Store:
    """The store as the next process finds it."""
    kill(store)
    return open_store(disk.crash(0, "keep"), clock, shards=1)


def closed(store: Store, disk: FakeDisk, clock: ManualClock) -> Store:
    """The same after a clean close."""
    store.close()
    return open_store(disk, clock, shards=1)


def ack_and_delete(queue: Queue) -> None:
    """Consume, and delete what was consumed."""
    consume(queue)
    queue.topic.delete(before=queue.topic.next_offset)


WAYS: dict[str, Callable[[Queue], object]] = {
    "consumed": consume,
    "purged": lambda queue: queue.purge(),
    "deleted": ack_and_delete,
}


@pytest.mark.parametrize("again", [killed, closed])
@pytest.mark.parametrize("place", ["log", "segment", "below a mark", "snapshot"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_ids_count_over_a_restart_whatever_became_of_their_messages(
    way: Callable[[Queue], object],
    place: str,
    again: Callable[[Store, FakeDisk, ManualClock], Store],
) -> None:
    """In the log and in segments, before the restart and after it, and after one more."""
    disk, clock = FakeDisk(), ManualClock()
    store = open_store(disk, clock, shards=1)
    queue = store.queue("q")
    put = queue.put(b"pay", dedup_id="x")
    queue.put(b"plain")
    if place == "segment":
        store.checkpoint()
    way(queue)
    if place == "below a mark":
        store.checkpoint()
    elif place == "snapshot":
        store.snapshot()
    assert queue.put(b"pay", dedup_id="x") == (put.offset, True)
    for _ in range(2):
        store = again(store, disk, clock)
        disk = store._fs  # type: ignore[assignment]  # it is the one that was left
        queue = store.queue("q")
        assert queue.put(b"pay", dedup_id="x") == (put.offset, True)
        assert queue.get_nowait() is None
        store.checkpoint()
    clock.advance(301)
    assert not queue.put(b"pay", dedup_id="x").duplicate
    store.close()


@pytest.mark.parametrize("fails", [False, True])
def test_a_segment_goes_when_its_ids_are_in_a_snapshot(fails: bool) -> None:
    """It was evicted in a round in which no snapshot was due, and a kill took the ids."""
    disk, clock = FakeDisk(), ManualClock()
    fs = FaultFs(disk)
    store = open_store(fs, clock, shards=1)
    queue = store.queue("q")
    put = queue.put(b"pay", dedup_id="x")
    if fails:
        fs.add(Fault(operation="create", path_contains="/snapshots/", always=True))
    with contextlib.suppress(OSError):
        store.checkpoint()
    seal(queue.topic.log, clock.time_ns())
    consume(queue)
    upkeep(store).round()
    assert queue.topic.earliest == (0 if fails else 1)
    store = killed(store, disk, clock)
    assert store.queue("q").put(b"pay", dedup_id="x") == (put.offset, True)
    store.close()


def test_ids_are_found_in_a_segment_that_no_snapshot_could_be_made_for() -> None:
    """The segment was sealed, and is found by its name; the log is not looked at below its end."""
    disk, clock = FakeDisk(), ManualClock()
    fs = FaultFs(disk)
    store = open_store(fs, clock, shards=1)
    queue = store.queue("q")
    put = queue.put(b"pay", dedup_id="x")
    fs.add(Fault(operation="create", path_contains="/snapshots/", always=True))
    with contextlib.suppress(OSError):
        store.checkpoint()
    seal(queue.topic.log, clock.time_ns())
    queue.purge()
    store = killed(store, disk, clock)
    assert store.queue("q").put(b"pay", dedup_id="x") == (put.offset, True)
    store.close()


def test_a_checkpoint_makes_no_snapshot_for_what_does_not_count() -> None:
    """Messages without ids, ids that a snapshot has, and ids whose time is up."""
    clock = ManualClock()
    store = open_store(FakeDisk(), clock, shards=1)
    queue = store.queue("q")

    def snapshots() -> int:
        queue.put(b"plain")
        store.checkpoint()
        return store.stats().snapshots

    assert snapshots() == 0
    queue.put(b"pay", dedup_id="x")
    assert snapshots() == 1
    assert snapshots() == 1
    queue.put(b"pay", dedup_id="y")
    clock.advance(301)
    assert snapshots() == 1
    store.close()
