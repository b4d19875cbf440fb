"""How messages are kept: storage of queues, segments, and what `compact` does at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.model import open_store

import stratalog
from stratalog.errors import OptionError
from stratalog.handles.store import Store
from stratalog.testing import FakeDisk, ManualClock


def _open(disk: FakeDisk, clock: ManualClock) -> Store:
    return open_store(disk, clock, shards=1, log_file_bytes=1 << 20)


def _consume_all(queue: stratalog.Queue) -> list[bytes | None]:
    found = queue.get_many(1000)
    queue.ack(found)
    return [message.value for message in found]


@pytest.mark.parametrize("has_retention", [True, False])
def test_consumed_messages_stay_as_the_retention_says(has_retention: bool) -> None:
    """`seek` back finds them, also after checkpoints, compaction and a restart."""
    disk, clock = FakeDisk(), ManualClock()
    store = _open(disk, clock)
    options: dict[str, Any] = {"retention_seconds": 3600.0} if has_retention else {}
    jobs = store.queue("jobs", segment_records=10, **options)
    values = [b"%d" % number for number in range(25)]
    jobs.put_many(values)
    assert _consume_all(jobs) == values
    store.checkpoint()
    store.compact()
    store.close()
    store = _open(disk, clock)
    jobs = store.queue("jobs")
    jobs.seek("earliest")
    assert _consume_all(jobs) == (values if has_retention else [])
    clock.advance(3601.0)
    jobs.put(b"new")
    assert _consume_all(jobs) == [b"new"]
    store.compact()
    assert jobs.topic.earliest >= 20
    store.close()


def test_a_queue_has_compression_rotation_and_limits() -> None:
    """Given when it is made, or later; what is left out stays as it is."""
    disk, clock = FakeDisk(), ManualClock()
    store = _open(disk, clock)
    jobs = store.queue("jobs", compression="zstd", segment_records=10, retention_segments_max=2)
    jobs.put_many([b"x" * 400] * 35)
    _consume_all(jobs)
    store.compact()
    assert jobs.topic.options.compression == "zstd"
    assert [s.state for s in jobs.topic.segments()][-1] == "open"
    assert len(jobs.topic.segments()) == jobs.stats().segments == 2
    assert jobs.stats().bytes < 35 * 400
    store.queue("jobs", retention_segments_max=None, lease=5.0)
    assert jobs.topic.options.retention_records == 0  # as a queue that says nothing
    assert store.queue("jobs").topic.options.segment_records == 10
    store.close()
    store = _open(disk, clock)
    assert store.queue("jobs").topic.options.compression == "zstd"
    assert store.queue("jobs").options.lease == 5.0
    with pytest.raises(OptionError, match="retention_segments_max"):
        store.queue("jobs", retention_segments_max=0)
    with pytest.raises(OptionError, match="did you mean"):
        store.queue("jobs", retention_second=5)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="queue option"):
        store.queue("jobs", compact=True)  # type: ignore[call-overload]
    store.close()


def test_stats_of_a_queue_say_when_it_was_made_and_used() -> None:
    """Besides its segments and bytes."""
    clock = ManualClock()
    store = _open(FakeDisk(), clock)
    jobs = store.queue("jobs")
    made = clock.time_ns()
    clock.advance(5.0)
    jobs.put(b"x")
    stats = jobs.stats()
    assert (stats.created_at, stats.updated_at) == (made, made + 5 * 10**9)
    assert stats.bytes > 0
    assert store.topic("orders").stats().created_at == clock.time_ns()
    store.close()


def test_a_topic_keeps_no_more_segments_than_it_is_told() -> None:
    """The open one included; the oldest go, and a gap says so."""
    store = _open(FakeDisk(), ManualClock())
    orders = store.create_topic("orders", segment_records=10, retention_segments_max=3)
    orders.append_many([b"x"] * 55)
    store.compact()
    assert [(s.first, s.end, s.records, s.state) for s in orders.segments()] == [
        (30, 40, 10, "sealed"), (40, 50, 10, "sealed"), (50, 55, 5, "open"),
    ]  # fmt: skip
    (gap, *_) = orders.read()
    assert isinstance(gap, stratalog.Gap)
    assert (gap.first, gap.last, gap.reason) == (0, 29, "evicted")
    store.close()


def test_compaction_reaches_small_data() -> None:
    """In the background an open segment is left alone, and stats say so; `compact` seals it."""
    store = _open(FakeDisk(), ManualClock())
    users = store.create_topic("users", compact=True)
    for number in range(20):
        users.append(b"%d" % number, key=b"%d" % (number % 2))
    store.checkpoint()
    assert users.stats().open_records == 20
    store.compact()
    assert users.stats().open_records == 0
    assert [r.value for r in users.records(gaps="skip")] == [b"18", b"19"]
    orders = store.topic("orders")
    orders.append_many([b"x" * 100] * 10, durability="fsync")
    orders.delete(offsets=list(range(8)))
    before = orders.stats().bytes
    store.compact()
    assert orders.stats().bytes < before
    assert len(orders.segments()) == 1
    store.close()


def test_what_is_too_old_goes_with_a_compact() -> None:
    """Also if all of it is in the open segment."""
    clock = ManualClock()
    store = _open(FakeDisk(), clock)
    orders = store.create_topic("orders", retention_seconds=60.0, retention_segments_min=0)
    orders.append_many([b"x"] * 10)
    store.compact()
    assert (orders.earliest, orders.stats().open_records) == (0, 10)
    clock.advance(61.0)
    store.compact()
    assert orders.earliest == 10
    store.close()


@pytest.mark.parametrize("segment_bytes", [4096, 20_000])
def test_segments_are_cut_at_their_bytes(segment_bytes: int) -> None:
    """Also inside of what a checkpoint would merge into one batch."""
    store = _open(FakeDisk(), ManualClock())
    orders = store.create_topic("orders", segment_bytes=segment_bytes)
    orders.append_many([b"x" * 100] * 500)
    store.checkpoint()
    sealed = [segment for segment in orders.segments() if segment.state == "sealed"]
    assert len(sealed) >= 500 * 100 // segment_bytes - 1
    for segment in sealed:  # the index and the footer come on top
        assert segment_bytes * 0.9 < segment.bytes < segment_bytes * 1.1 + 512
    assert [r.offset for r in orders.records()] == list(range(500))
    store.close()


def test_offsets_by_size() -> None:
    """By whole segments, from the newest on."""
    store = _open(FakeDisk(), ManualClock())
    orders = store.create_topic("orders", segment_records=10)
    orders.append_many([b"x" * 100] * 45)
    store.checkpoint()
    sizes = [segment.bytes for segment in orders.segments()]
    assert orders.offset_by_size(sum(sizes)) == 0
    assert orders.offset_by_size(sum(sizes) - 1) == 10
    assert orders.offset_by_size(sizes[-1]) == 40
    assert orders.offset_by_size(0) == 45
    orders.append(b"in the log")
    assert orders.offset_by_size(1 << 40) == 0
    assert orders.offset_by_size(1) == orders.next_offset
    with pytest.raises(OptionError):
        orders.offset_by_size(-1)
    store.close()
