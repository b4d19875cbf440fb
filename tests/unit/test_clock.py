"""Clocks that say what cannot be: times of records, deadlines and the store go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from stratalog.errors import StratalogError
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.model import Record
from stratalog.options import TIME_MAX, StoreOptions
from stratalog.testing import FakeDisk, ManualClock

YEAR_NS = 365 * 86400 * 10**9
NOW = 1_700_000_000_000_000_000

# A clock in the year 2326 once poisoned the shard: its nanoseconds do not fit into 64 bits, which
# the encoder found out while the group was being written.
WRONG = {
    "the year 2326": 356 * YEAR_NS,
    "after 2230": TIME_MAX + 1,
    "the last 64-bit number": (1 << 63) - 1,
    "no 64-bit number": 1 << 70,
    "before 1970": -YEAR_NS,
    "no 64-bit number below zero": -(1 << 70),
}

APPENDS: dict[str, Callable[[Any], Any]] = {
    "append": lambda topic: topic.append(b"v"),
    "append disk": lambda topic: topic.append(b"v", durability="disk"),
    "append memory": lambda topic: topic.append(b"v", durability="memory"),
    "append with a time to live": lambda topic: topic.append(b"v", ttl=3600.0),
    "append_nowait": lambda topic: topic.append_nowait(b"v").result(),
    "append_many": lambda topic: topic.append_many([b"v"]),
    "append_many of records": lambda topic: topic.append_many([Record(value=b"v", key=b"k")]),
    "append_many with times": lambda topic: topic.append_many([Record(value=b"v", timestamp=9)]),
    "append_arrow": lambda topic: topic.append_arrow(pa.table({"value": [b"v"]})),
}


def opened(disk: FakeDisk, clock: ManualClock, **options: Any) -> Store:
    """A store without threads, so that nothing happens by itself."""
    return Store("/s", StoreOptions(shards=1, **options), fs=disk, clock=clock, background=False)


def times(topic: Topic) -> list[int]:
    """The times of all records."""
    return [record.timestamp for record in topic.read() if isinstance(record, Record)]


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS.keys())
@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
def test_a_wrong_clock_holds_the_time_of_records(
    append: Callable[[Any], Any], wrong: int, durability: str
) -> None:
    """Records get the time of the last one, and the right one when the clock is set."""
    disk, clock = FakeDisk(), ManualClock(NOW)
    with opened(disk, clock) as store:
        topic = store.create_topic("t", durability=durability)
        topic.append(b"before")
        clock._wall_ns = wrong
        try:
            append(topic)
        except StratalogError:
            assert durability == "ephemeral"  # which takes no other class
            topic.append(b"v")
        assert times(topic) == [NOW, NOW]
        store.sync()
        store.snapshot()
        clock._wall_ns = NOW + 5
        topic.append(b"after")
        assert times(topic) == [NOW, NOW, NOW + 5]
    if durability != "ephemeral":
        with opened(disk, clock) as store:
            assert store.topic("t").read_values(0) == [b"before", b"v", b"after"]


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_store_is_made_and_used_by_a_clock_that_is_always_wrong(wrong: int) -> None:
    """Nothing was ever believed: records are of 1970, nothing expires, and all of it works."""
    disk, clock = FakeDisk(), ManualClock(wrong)
    for turn in range(2):
        with opened(disk, clock, durability="disk") as store:
            topic = store.topic("t")
            topic.append(b"v", ttl=1.0)
            assert topic.read_values(0) == [b"v"] * (turn + 1)
            store.compact()
            queue = store.queue("q", dedup_window=60.0)
            queue.put(b"m", dedup_id=f"id-{turn}", delay=0.0)
            queue.put(b"m", dedup_id=f"id-{turn}")
            message = queue.get(timeout=0)
            queue.nack(message)
            queue.ack(queue.get(timeout=0))
            with store.batch() as batch:
                batch.topic("t2").append(b"x")
            group = store.topic("t2").group("g")
            group.ack(group.poll("c", limit=10))
            store.snapshot()


def test_a_wrong_clock_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The operator is told, and not with every record."""
    clock = ManualClock(NOW)
    with opened(FakeDisk(), clock) as store:
        clock._wall_ns = 1 << 64
        for _ in range(3):
            store.clock.time_ns()
    assert caplog.text.count("before 1970 or after 2230") == 1
