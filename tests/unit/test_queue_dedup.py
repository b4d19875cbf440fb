"""Deduplication ids over restarts: they count for as long as they do, whatever becomes of records.

A replay finds ids in records, from where the last snapshot ends. It looked at those that are yet to
be delivered alone: whatever was consumed in one go, deleted or evicted took its ids with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.model import kill, open_store
from tests.unit.segments.topics import upkeep

from stratalog.errors import OptionError
from stratalog.handles.queue import Queue
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.segments.checkpoint import seal
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
    """After a clean close."""
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
        disk = store._fs.inner  # type: ignore[attr-defined]  # it is the one that was left
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


def test_a_put_may_have_a_shorter_window(tmp_path: Path) -> None:
    """A duplicate is one that was put that lately; the newest counts from then on, reopened too."""
    clock = ManualClock()
    for is_again in (False, True):
        with Store(tmp_path / "data", StoreOptions.build({"shards": 1}, {}), clock=clock) as store:
            queue = store.queue("q", dedup_window=100.0)
            if not is_again:
                first = queue.put(b"1", dedup_id="x")
                clock.advance(20.0)
                assert queue.put(b"2", dedup_id="x", dedup_window=30.0) == (first.offset, True)
                second = queue.put(b"3", dedup_id="x", dedup_window=10.0)
                assert second == (first.offset + 1, False)
                clock.advance(90.0)  # the first one's window is over, the second one's is not
            assert queue.put(b"4", dedup_id="x") == (second.offset, True)
            assert queue.put(b"5", dedup_id="x", dedup_window=95.0) == (second.offset, True)
            with pytest.raises(OptionError, match="longer than ids of queue 'q' are kept"):
                queue.put(b"6", dedup_id="x", dedup_window=101.0)
            with pytest.raises(OptionError, match="dedup_id"):
                queue.put(b"7", dedup_window=1.0)
    with Store(tmp_path / "data", StoreOptions.build({}, {}), clock=clock) as store:
        clock.advance(11.0)
        assert store.queue("q").put(b"8", dedup_id="x").duplicate is False
