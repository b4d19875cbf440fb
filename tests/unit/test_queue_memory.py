"""Queues and groups stay within the store's memory, and whole calls are refused beyond it.

Story: 16 MB of leases were held under a budget of 1 MiB, because only ephemeral topics and
compaction asked for what they took.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import OpenStore

from stratalog.errors import MemoryPressureError, PressureError
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.testing import ManualClock

MIB = 1 << 20


def _bound(store: Store) -> int:
    """Memory for queues: their share, the reserve, and read-ahead data that can be dropped."""
    return store.budget.limit("queues") * 5 // 4 + store.budget.reserve


def _until_refused(call: Callable[[], object], times: int = 100_000) -> int:
    for count in range(times):
        try:
            if not call():
                break
        except MemoryPressureError:
            return count
    raise AssertionError("it was never refused")


@pytest.mark.parametrize("limit", [1, 10, 5000])
@pytest.mark.parametrize("kind", ["queue", "group"])
def test_deliveries_stop_where_the_memory_does(
    open_store: OpenStore, kind: str, limit: int
) -> None:
    """They are refused as a whole, with an error that is worth trying again after an ack."""
    with open_store(memory_bytes=MIB, durability="disk") as store:
        queue = store.queue("jobs")
        queue.put_many([b"%d" % number for number in range(20_000)])
        group = store.topic("jobs").group("g")
        found: list[Any] = []

        def take() -> bool:
            taken = queue.get_many(limit) if kind == "queue" else group.poll("a", limit=limit)
            found.extend(taken)
            return bool(taken)

        tracemalloc.start()
        _until_refused(take)
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        pending = queue.stats().pending if kind == "queue" else len(group.pending())
        assert pending == len(found), "a call that was refused has delivered something"
        assert store.stats().memory["queues"] <= _bound(store)
        assert 500 < len(found) < 4000
        assert held < 4 * MIB, "the messages themselves are the consumer's"
        with pytest.raises(PressureError):
            take()
        source = queue if kind == "queue" else group
        source.ack(found[: len(found) // 2])
        before = len(found)
        assert take()
        assert len(found) > before


def test_what_is_delivered_again_takes_no_room(open_store: OpenStore) -> None:
    """Leases that ran out are delivered again with no memory left, or none could be freed."""
    clock = ManualClock()
    with open_store(memory_bytes=MIB, durability="disk", clock=clock) as store:
        queue = store.queue("jobs", lease=10.0, max_deliveries=0)
        queue.put_many([b"x"] * 20_000)
        _until_refused(lambda: queue.get_many(100))
        clock.advance(11.0)
        again = queue.get(timeout=0)
        assert again.delivery_count == 2
        queue.ack(again)


@pytest.mark.slow
def test_ids_are_refused_where_the_memory_ends(open_store: OpenStore) -> None:
    """A message with an id is put, or it is refused and not there."""
    with open_store(memory_bytes=MIB, durability="disk") as store:
        queue = store.queue("jobs")
        count = 0

        def put() -> bool:
            nonlocal count
            queue.put(b"x", dedup_id=str(count))
            count += 1
            return True

        _until_refused(put)
        assert queue.topic.next_offset == count
        assert len(queue) == count
        with pytest.raises(MemoryPressureError):
            queue.put_many([Record(b"y", b"many %d" % number) for number in range(1500)])
        with store.batch() as batch:
            for number in range(1500):
                batch.queue("jobs").put(b"y", dedup_id=f"batch {number}")
            with pytest.raises(MemoryPressureError):
                batch.commit()
        assert queue.topic.next_offset == count


def test_delays_are_refused_where_the_memory_ends(open_store: OpenStore) -> None:
    """A message with a delay is refused and not there; one without takes no memory."""
    with open_store(memory_bytes=MIB, durability="disk") as store:
        delayed = store.queue("later")
        late = Record(b"z", not_before=store.clock.time_ns() + 10**12)
        for _ in range(4):  # until a consumer asks for a message they are in the log alone
            delayed.put_many([late] * 5000)
        assert delayed.get_nowait() is None
        assert delayed.stats().delayed == 20_000
        with pytest.raises(MemoryPressureError):
            delayed.put(b"late", delay=60.0)
        delayed.put(b"now")
        assert delayed.topic.next_offset == 20_001


def test_memory_that_was_granted_comes_back(open_store: OpenStore) -> None:
    """A queue that was busy leaves its room to the next one."""
    with open_store(memory_bytes=MIB, durability="disk") as store:
        for name in "abcdef":
            queue = store.queue(name)
            queue.put_many([b"x"] * 700)
            found = []
            while taken := queue.get_many(100):
                found += taken
            assert len(found) == 700
            queue.ack(found)


@pytest.mark.parametrize("pending_max", [0, -1, "x", 1.5, True])
def test_an_option_of_a_group_is_checked(open_store: OpenStore, pending_max: object) -> None:
    """A bound of nothing would wait for ever, and a word would be compared with numbers later."""
    with open_store() as store:
        with pytest.raises((ValueError, TypeError), match="pending_max="):
            store.topic("orders").group("g", pending_max=pending_max)  # type: ignore[arg-type]
        assert store.topic("orders").groups() == []
