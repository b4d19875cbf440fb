"""Retention: whole sealed segments go, oldest first, and every reader is told exactly what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.crash.model import Session
from tests.unit.segments.topics import check, files, fill, segments, upkeep, value

from stratalog import Gap, OffsetOutOfRangeError, Record
from stratalog.format.names import segment_name, topic_path
from stratalog.testing import FakeDisk, ManualClock


def _evicted(last: int, reason: str = "evicted") -> list[Gap]:
    return [Gap(0, last, reason)] if last >= 0 else []


@pytest.mark.parametrize(
    ("options", "kept_from"),
    [
        ({}, 0),
        ({"retention_records": 60}, 0),
        ({"retention_records": 59}, 0),
        ({"retention_records": 50}, 10),
        ({"retention_records": 25}, 30),
        ({"retention_records": 0}, 50),
        ({"retention_records": 0, "retention_segments_min": 0}, 60),
        ({"retention_records": 0, "retention_segments_min": 4}, 20),
        ({"retention_seconds": 25.0}, 40),
        ({"retention_seconds": 30.0}, 40),
        ({"retention_seconds": 31.0}, 30),
        ({"retention_seconds": 1.0, "retention_segments_min": 3}, 30),
        ({"retention_seconds": 31.0, "retention_records": 15}, 40),
        ({"retention_seconds": 15.0, "retention_records": 50}, 50),
        ({"retention_bytes": 0}, 50),
        ({"retention_bytes": 1 << 30}, 0),
        ({"retention_bytes": 1 << 30, "retention_records": 20}, 40),
        ({"retention": "consumed", "retention_records": 0}, 0),
        ({"retention": "consumed", "retention_seconds": 1.0, "ttl": 10000.0}, 0),
    ],
)
def test_limits_evict_whole_segments(
    open_store: OpenStore, options: dict[str, Any], kept_from: int
) -> None:
    """Six segments of ten records, ten seconds apart: each limit alone, and the stricter of two."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False, shards=1)
    topic = store.create_topic("t", segment_records=10, **options)
    for _ in range(6):
        segments(store, topic, 1)
        clock.advance(10)
    report = store.compact()
    assert report.segments_removed == kept_from // 10
    check(topic, range(kept_from, 60), _evicted(kept_from - 1))
    assert (topic.earliest, len(topic), topic.next_offset) == (kept_from, 60 - kept_from, 60)
    assert store.compact().segments_removed == 0


def test_bytes_keep_at_least_what_was_asked_for(open_store: OpenStore) -> None:
    """The oldest goes as soon as the others alone are enough, and not before."""
    store = open_store(background=False, shards=1)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 4)
    size = topic.stats().bytes // 4
    for name, keep, left in (("a", 2 * size, 2), ("b", 2 * size + size // 2, 3)):
        limited = store.create_topic(name, segment_records=10, retention_bytes=keep)
        segments(store, limited, 4)
        store.compact()
        assert limited.stats().segments == left


def test_the_open_segment_goes_only_when_asked(open_store: OpenStore, tmp_path: Path) -> None:
    """Upkeep leaves it alone, however strict the limits; `compact` seals it first."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic(
        "t", segment_records=10, retention_records=0, retention_seconds=1.0, retention_bytes=0,
        retention_segments_min=0, ttl=None, segment_seconds=None,
    )  # fmt: skip
    segments(store, topic, 2)
    fill(topic, 4)
    clock.advance(1000)
    assert store._upkeep is not None
    store._upkeep.round()
    check(topic, range(20, 24), _evicted(19))
    assert files(tmp_path) == []
    assert files(tmp_path, ".open") == ["00000000000000000020.open"]
    fill(topic, 2)
    store.compact()
    check(topic, [], _evicted(25))
    assert (len(topic), topic.earliest, topic.next_offset) == (0, 26, 26)
    fill(topic, 1)
    check(topic, [26], _evicted(25))


def test_expired_segments_are_swept_by_the_ttl_of_the_topic(open_store: OpenStore) -> None:
    """Before the sweep and after it a reader is told the same."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_records=10, ttl=60.0)
    segments(store, topic, 2)
    clock.advance(30)
    segments(store, topic, 1)
    clock.advance(30)
    check(topic, range(20, 30), _evicted(19, "expired"))
    assert store.compact().segments_removed == 2
    check(topic, range(20, 30), _evicted(19, "expired"))
    assert topic.diff().gap is None, "what expired is left out of a diff, and is no loss"
    assert topic.earliest == 20


def test_expired_segments_are_swept_by_the_ttl_of_their_records(open_store: OpenStore) -> None:
    """Once the last of them has expired; one that never does holds its segment."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_records=3)
    for number in range(9):
        topic.append(value(number), ttl=None if number == 7 else 10.0 + number)
    store.checkpoint()
    clock.advance(11.9)
    assert store.compact().segments_removed == 0
    clock.advance(0.1)
    assert store.compact().segments_removed == 1
    clock.advance(1000)
    assert store.compact().segments_removed == 1
    check(topic, [7], [Gap(0, 6, "expired"), Gap(8, 8, "expired")])


def test_an_open_segment_expires_also_when_it_was_reopened(open_store: OpenStore) -> None:
    """Its summary in a checkpoint has no expiry: it was taken for one that never expires."""
    clock = ManualClock()
    with open_store(clock=clock, background=False) as store:
        topic = store.create_topic("t", segment_records=4)
        topic.append(value(0), ttl=10.0)
        topic.append(value(1), ttl=20.0)
        store.checkpoint()
    store = open_store(clock=clock, background=False)
    topic = store.topic("t")
    topic.append(value(2), ttl=5.0)
    topic.append(value(3), ttl=5.0)
    store.checkpoint()
    clock.advance(19)
    assert store.compact().segments_removed == 0
    clock.advance(1)
    assert store.compact().segments_removed == 0, "the last segment stays, by the default"
    fill(topic, 1)
    store.checkpoint()
    assert store.compact().segments_removed == 1
    assert list(topic.read(0, 4)) == [Gap(0, 3, "expired")]


def test_what_was_evicted_is_never_called_expired(open_store: OpenStore) -> None:
    """A diff does not mention what expired: under that name a loss would be silent."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_records=10, ttl=60.0, retention_records=20)
    segments(store, topic, 3)
    store.compact()
    assert topic.diff().gap == Gap(0, 9, "evicted")
    clock.advance(100)
    segments(store, topic, 1)
    store.compact()
    assert topic.diff().gap == Gap(0, 29, "evicted")


def test_a_segment_of_deleted_records_does_not_stop_the_sweep(open_store: OpenStore) -> None:
    """Rewritten to nothing it has neither time nor expiry, and held up everything after it."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_records=10, ttl=60.0)
    segments(store, topic, 3)
    topic.delete(offsets=range(10))
    store.compact()
    clock.advance(100)
    segments(store, topic, 1)
    assert store.compact().segments_removed == 3
    check(topic, range(30, 40), _evicted(29, "expired"))


def test_a_limit_does_not_split_a_gap(open_store: OpenStore) -> None:
    """`limit` counts records: it cut gaps into pieces, and `read_values` stopped inside of one."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=10, retention_records=10)
    segments(store, topic, 5)
    store.compact()
    for limit in (1, 3, 7):
        gap, *records = topic.read(0, limit=limit)
        assert gap == Gap(0, 39, "evicted")
        assert [r.offset for r in records if isinstance(r, Record)] == list(range(40, 40 + limit))
        assert topic.read_values(0, limit) == [value(n) for n in range(40, 40 + limit)]
        assert topic.read_values(15, limit) == [value(n) for n in range(40, 40 + limit)]
    assert list(topic.read(5, 20)) == [Gap(5, 19, "evicted")]
    assert next(iter(topic.read(35, 41))) == Gap(35, 39, "evicted")
    assert list(topic.read(40, limit=0)) == []
    assert topic.read_values(0, 0) == []
    assert topic.read_arrow(0, 40).read_all().num_rows == 0
    assert topic.read_arrow(35, 42).read_all()["offset"].to_pylist() == [40, 41]


def test_every_reader_is_told_at_the_floor(open_store: OpenStore) -> None:
    """Exactly what it has missed, and where to go on."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_records=10, retention_records=10)
    begun = clock.time_ns()
    for _ in range(3):
        segments(store, topic, 1)
        clock.advance(10)
    store.compact()
    diff = topic.diff(after=4, limit=3)
    assert (diff.gap, diff.next, diff.earliest, diff.newest) == (Gap(5, 19, "evicted"), 22, 20, 29)
    assert topic.diff(after=19).gap is None
    assert next(iter(topic.watch(7, timeout=0))) == Gap(7, 19, "evicted")
    assert [r.offset for r in topic.watch(25, timeout=0) if isinstance(r, Record)] == list(
        range(25, 30)
    )
    assert topic.offset_at(begun) == 20
    assert topic.offset_at(begun + 5 * 10**9) == 20
    assert topic.offset_at(begun + 10**12) == 30
    with pytest.raises(OffsetOutOfRangeError):
        topic.read(31)


def test_a_reader_under_way_is_told_where_it_was_overtaken(open_store: OpenStore) -> None:
    """It goes on with what it has begun, and finds a gap after it."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=10, retention_records=10)
    segments(store, topic, 5)
    reading = topic.read()
    for _ in range(4):
        next(reading)
    store.compact()
    rest = list(reading)
    gaps = [item for item in rest if isinstance(item, Gap)]
    seen = {item.offset for item in rest if isinstance(item, Record)}
    assert len(gaps) == 1
    assert seen | set(range(4)) | set(range(gaps[0].first, gaps[0].last + 1)) >= set(range(50))
    assert not seen & set(range(gaps[0].first, gaps[0].last + 1))


@pytest.mark.parametrize("snapshots", [0, 1, 2])
@pytest.mark.parametrize("is_killed", [True, False])
def test_floors_outlive_everything(snapshots: int, is_killed: bool) -> None:
    """Reopen, kill and snapshot; the files stay away too."""
    clock = ManualClock()
    session = Session(FakeDisk(), clock)
    session.open()
    topic = session.store.create_topic("t", segment_records=10, retention_records=20)
    other = session.store.create_topic("u", segment_records=10)
    segments(session.store, topic, 5)
    segments(session.store, other, 2)
    other.delete(before=7)
    upkeep(session.store).round()
    for _ in range(snapshots):
        session.snapshot()
    for _ in range(3):
        assert (topic.earliest, topic.stats().evicted_below) == (30, 30)
        check(topic, range(30, 50), _evicted(29))
        check(other, range(7, 20))
        assert other.earliest == 7
        if is_killed:
            session.kill()
            session.disk = session.disk.crash(7)
            session.open()
        else:
            session.reopen()
        topic, other = session.store.topic("t"), session.store.topic("u")
    names = session.disk.listdir(topic_path("/data", 1))
    assert sorted(names) == [segment_name(30), segment_name(40)]
    session.store.close()


def test_a_view_sees_the_floor(open_store: OpenStore) -> None:
    """Gaps and floor are equal, without having been reopened."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=10, retention_records=20)
    segments(store, topic, 1)
    view = open_store(read_only=True).topic("t")
    check(view, range(10))
    segments(store, topic, 4)
    store.compact()
    check(view, range(30, 50), _evicted(29))
    assert (view.earliest, len(view)) == (30, 20)
