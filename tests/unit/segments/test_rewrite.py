"""Rewriting: space comes back, and nothing a reader can see has changed."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from random import Random

import pytest
from tests.conftest import OpenStore
from tests.crash.model import ROOT, Session
from tests.unit.segments.topics import check, files, fill, segments, upkeep, value

import stratalog
from stratalog import Record
from stratalog.format.names import segment_name
from stratalog.format.segment import FOOTER_BYTES, HEADER_BYTES
from stratalog.fs import PosixFileSystem
from stratalog.handles.topic import Topic
from stratalog.model import Gap
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, ManualClock
from stratalog.tools.verify import verify


def _records(topic: Topic) -> list[Record]:
    return [item for item in topic.read() if isinstance(item, Record)]


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4", "gzip"])
def test_space_comes_back_past_the_ratio_and_not_before(
    open_store: OpenStore, compression: str
) -> None:
    """Records keep offset, time, tag and node, in compressed topics too."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False, rewrite_ratio=0.5)
    topic = store.create_topic("t", segment_records=100, compression=compression)
    for _ in range(20):
        fill(topic, 10)
        clock.advance(1)
    store.checkpoint()
    before = _records(topic)
    size = topic.stats().bytes
    topic.delete(offsets=range(0, 98, 2))
    upkeep(store).round()
    assert topic.stats().bytes == size, "49 of 100"
    topic.delete(offsets=[98])
    upkeep(store).round()
    assert topic.stats().bytes < size, "50 of 100"
    assert topic.stats().segments == 2
    gone = set(range(0, 100, 2))
    assert _records(topic) == [record for record in before if record.offset not in gone]
    check(topic, set(range(200)) - gone)
    size = topic.stats().bytes
    topic.delete(offsets=range(1, 49, 2))
    upkeep(store).round()
    assert topic.stats().bytes == size, "24 of the 50 that are left"
    assert store.compact().bytes_freed > 0
    assert store.compact().bytes_freed == 0
    check(topic, set(range(200)) - gone - set(range(1, 49, 2)))
    assert topic.delete(offsets=range(100)) == 26


def test_a_reader_in_the_middle_goes_on(open_store: OpenStore) -> None:
    """With the file it has: exactly what was there when it began."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=50)
    segments(store, topic, 3, size=50)
    topic.delete(tag="t1")
    reading = topic.read()
    first = next(reading)
    arrow = topic.read_arrow()
    batch = arrow.read_next_batch()
    assert store.compact().bytes_freed > 0
    living = [n for n in range(150) if n % 3 != 1]
    assert [r.offset for r in [first, *reading] if isinstance(r, Record)] == living
    offsets = batch["offset"].to_pylist() + arrow.read_all()["offset"].to_pylist()
    assert offsets == living
    check(topic, living)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_segment_may_lose_everything(open_store: OpenStore, number: int) -> None:
    """First, middle or last: reads pass over it, times are found around it, it can be reopened.

    A segment without records has no times, and the search among them went wrong.
    """
    clock = ManualClock()
    dead = set(range(10 * number, 10 * number + 10))
    living = [n for n in range(30) if n not in dead]
    with open_store(clock=clock, background=False) as store:
        topic = store.create_topic("t", segment_records=10)
        for _ in range(3):
            segments(store, topic, 1)
            clock.advance(10)
        stamps = {record.offset: record.timestamp for record in _records(topic)}
        assert topic.delete(offsets=dead) == 10
        assert store.compact().bytes_freed > 0
        check(topic, living)
    store = open_store(clock=clock, background=False)
    topic = store.topic("t")
    check(topic, living)
    for stamp in stamps.values():
        following = [n for n in living if stamps[n] >= stamp]
        assert topic.read_values(topic.offset_at(stamp), 1) == [value(n) for n in following[:1]]
    segments(store, topic, 1)
    assert store.compact().bytes_freed == 0
    check(topic, [*living, *range(30, 40)])


def test_a_rewrite_that_failed_is_tried_again(open_store: OpenStore, tmp_path: Path) -> None:
    """It was taken for done, and the space did not come back before more was deleted."""
    fs = FaultFs(PosixFileSystem())
    store = open_store(background=False, fs=fs)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 2)
    topic.delete(offsets=range(8))
    size = topic.stats().bytes
    fs.add(Fault(operation="pwrite", error=errno.ENOSPC, path_contains=".tmp"))
    upkeep(store).round()
    assert "No space" in (store.stats().upkeep or "")
    assert topic.stats().bytes == size
    assert files(tmp_path, ".tmp") == []
    check(topic, range(8, 20))
    upkeep(store).round()
    assert store.stats().upkeep is None
    assert topic.stats().bytes < size
    check(topic, range(8, 20))


# --- key compaction -------------------------------------------------------------------------


def _state(topic: Topic) -> dict[bytes, bytes]:
    """Compute what a table of the topic's keys would hold."""
    state: dict[bytes, bytes] = {}
    for record in _records(topic):
        if record.key is not None:
            state.pop(record.key, None)
            if record.value is not None and not record.operation:
                state[record.key] = record.value
    return state


@pytest.mark.parametrize("seed", range(6))
def test_compaction_keeps_what_a_dictionary_would(open_store: OpenStore, seed: int) -> None:
    """Several rounds of puts and deletions: the state, the offsets, and records without a key."""
    random = Random(seed)
    clock = ManualClock()
    path_options = {"clock": clock, "background": False}
    store = open_store(**path_options)
    topic = store.create_topic(
        "t", segment_records=20, compact=True, tombstone_seconds=100.0,
        compression=random.choice(["none", "zstd"]),
    )  # fmt: skip
    sent: list[Record] = []
    for _ in range(6):
        for _ in range(random.randrange(1, 60)):
            kind = random.random()
            key = b"k%d" % random.randrange(12) if kind < 0.9 else None
            data = None if kind < 0.2 else b"value %d" % len(sent) * random.randrange(1, 9)
            operation = int(key is not None and 0.2 < kind < 0.25)
            topic.append_many([Record(data, key=key, operation=operation)])
            sent.append(Record(data, key=key, operation=operation))
            clock.advance(random.random() * 3)
        state = _state(topic)
        before = {record.offset: record for record in _records(topic)}
        if random.random() < 0.3:
            upkeep(store).round()
        else:
            store.compact(purge=random.random() < 0.5)
        after = _records(topic)
        assert _state(topic) == state
        assert all(before[record.offset] == record for record in after)
        last = {record.key: n for n, record in enumerate(sent) if record.key is not None}
        kept = {record.offset for record in after}
        for offset, record in enumerate(sent):
            is_put = record.value is not None and not record.operation
            if record.key is None or (last[record.key] == offset and is_put):
                assert offset in kept, "a record that nothing replaces"
        if random.random() < 0.5:
            store.close()
            store = open_store(**path_options)
            topic = store.topic("t")
            assert _records(topic) == after
    assert topic.next_offset == len(sent)


def test_compaction_leaves_the_last_of_each_key(open_store: OpenStore) -> None:
    """In sealed segments exactly that; the open one is left as it is."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=10, compact=True)
    for number in range(34):
        topic.append(b"%d" % number, key=b"%d" % (number % 4))
    assert store.compact().bytes_freed > 0
    assert [record.offset for record in _records(topic)] == [30, 31, 32, 33]
    for number in range(34, 40):
        topic.append(b"%d" % number, key=b"%d" % (number % 2))
    store.compact()
    assert [record.offset for record in _records(topic)] == [30, 31, 38, 39]
    assert _state(topic) == {b"0": b"38", b"1": b"39", b"2": b"30", b"3": b"31"}
    assert (topic.earliest, topic.next_offset) == (0, 40)


def test_the_deletion_of_a_key_goes_after_its_grace(open_store: OpenStore) -> None:
    """Readers have so long to see it; then it goes, even if nothing else has come."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_records=4, compact=True, tombstone_seconds=60.0)
    topic.append(b"a", key=b"k")
    topic.append(None, key=b"k")
    topic.append(b"b", key=b"j")
    topic.append_many([Record(b"x", key=b"j", operation=1)])
    store.compact()
    assert [record.offset for record in _records(topic)] == [1, 3]
    clock.advance(59)
    store.compact()
    assert [record.offset for record in _records(topic)] == [1, 3]
    clock.advance(1)
    store.compact()
    assert _records(topic) == []
    assert topic.next_offset == 4


def test_a_deleted_record_replaces_nothing(open_store: OpenStore) -> None:
    """The record that a reader saw as the last of its key stays the last of its key."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=4, compact=True)
    for number in range(8):
        topic.append(b"%d" % number, key=b"k%d" % (number % 2))
    topic.append(b"newest", key=b"k0")
    topic.delete(offsets=[8, 7])
    state = _state(topic)
    assert state == {b"k0": b"6", b"k1": b"5"}
    store.compact()
    assert _state(topic) == state


def test_a_crash_in_a_compaction_costs_nothing() -> None:
    """At any file operation: the state is as before, and the next round finishes."""
    for stop in range(1, 60, 3):
        session = Session(FakeDisk(), ManualClock())
        session.open()
        topic = session.store.create_topic(
            "t", segment_records=5, compact=True, tombstone_seconds=1.0
        )
        for number in range(23):
            topic.append(None if number in (9, 17) else b"%d" % number, key=b"%d" % (number % 4))
        session.store.checkpoint()
        state = _state(topic)
        session.clock.advance(10)
        session.disk.crash_after = session.disk.operations + stop
        with contextlib.suppress(Crashed):
            session.store.compact()
        session.kill()
        session.disk = session.disk.crash(stop)
        session.open()
        topic = session.store.topic("t")
        assert _state(topic) == state
        session.store.compact()
        assert _state(topic) == state
        session.store.close()


def test_a_topic_that_was_emptied_while_a_deletion_waits_is_compacted(
    open_store: OpenStore,
) -> None:
    """There was no segment, and the last of them was asked for: every round ended there.

    The deletion of a key had been kept, and was due; all that was in segments had gone meanwhile.
    """
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", compact=True, segment_records=2, tombstone_seconds=100.0)
    topic.append(b"v", key=b"k")
    topic.append(None, key=b"k")
    store.compact()
    topic.delete(before=topic.next_offset)
    store.compact()
    clock.advance(1000)
    upkeep(store).round()
    assert store.stats().upkeep is None
    topic.append(b"w", key=b"k")
    store.compact()
    assert topic.read_values() == [b"w"]


def _empty_files(root: Path) -> int:
    """How many files there are of segments without records."""
    sizes = [path.stat().st_size for path in root.rglob("*.seg")]
    return sizes.count(HEADER_BYTES + FOOTER_BYTES)


@pytest.mark.slow
def test_segments_that_compaction_emptied_become_one(open_store: OpenStore, tmp_path: Path) -> None:
    """Every segment that was emptied left a file of 168 bytes for ever: 13 a minute in a store."""
    random = Random(7)
    store = open_store(background=False, durability="disk")
    topic = store.create_topic("t", segment_records=100, compact=True)
    state: dict[bytes, bytes] = {}
    with open_store(read_only=True) as view:
        for turn in range(20):
            keys = [b"%d" % random.randrange(1250) for _ in range(1000)]
            topic.append_many([Record(b"%d-%s" % (turn, key), key) for key in keys])
            state |= {key: b"%d-%s" % (turn, key) for key in keys}
            store.checkpoint()
            store.compact()
            assert _empty_files(tmp_path) <= 4, turn
            if turn % 10 == 9:
                assert _state(topic) == _state(view.topic("t")) == state
        assert (topic.earliest, topic.next_offset) == (0, 20_000)
    assert topic.stats().segments < 100, "of 200"
    store.close()
    assert stratalog.verify(tmp_path / "data").ok
    with open_store(background=False) as store:
        assert _state(store.topic("t")) == state
        assert store.topic("t").next_offset == 20_000


def _spans(topic: Topic) -> list[tuple[int, int, int]]:
    """First offset, end and number of records of every sealed segment."""
    chain = topic._log.history.chain.segments
    return [(one.first, one.end, one.summary.records) for one in chain if not one.is_open]


def test_a_small_segment_answers_for_empty_ones_after_it(open_store: OpenStore) -> None:
    """Empty ones join it, and each other; one with a cold one before it stays what it is."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 8)
    gone = {*range(10), *range(20, 40), *range(50, 70)}
    topic.delete(offsets=gone)
    reading = topic.read()
    first = next(reading)
    assert store.compact().bytes_freed > 0
    assert _spans(topic) == [(0, 10, 0), (10, 40, 10), (40, 70, 10), (70, 80, 10)]
    living = [n for n in range(80) if n not in gone]
    assert [r.offset for r in [first, *reading] if isinstance(r, Record)] == living
    check(topic, living)
    assert store.compact().bytes_freed == 0
    topic.delete(offsets=range(10, 50))
    store.compact()
    assert _spans(topic) == [(0, 70, 0), (70, 80, 10)]
    check(topic, range(70, 80))
    store.close()
    topic = open_store(background=False).topic("t")
    assert _spans(topic) == [(0, 70, 0), (70, 80, 10)]
    check(topic, range(70, 80))


def test_a_large_segment_is_not_written_again_for_an_empty_one(open_store: OpenStore) -> None:
    """A file less is not worth copying megabytes: empty ones after it become one of their own."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=3)
    for number in range(9):
        topic.append(b"%d" % number * 30_000)
    store.checkpoint()
    topic.delete(offsets=range(3, 9))
    store.compact()
    assert _spans(topic) == [(0, 3, 3), (3, 9, 0)]
    assert [value and value[:1] for value in topic.read_values()] == [b"0", b"1", b"2"]


def test_offsets_that_are_lost_do_not_join_a_segment(open_store: OpenStore, tmp_path: Path) -> None:
    """A segment is missing between two empty ones: what a repair gave up stays a gap."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 4)
    store.compact(purge=True)  # the log has nothing of them any more
    topic.delete(offsets=[*range(10), *range(20, 30)])
    store.close()
    (victim,) = (tmp_path / "data").rglob(segment_name(10))
    victim.unlink()
    assert stratalog.repair(tmp_path / "data").ok
    store = open_store(background=False)
    store.compact()
    topic = store.topic("t")
    check(topic, range(30, 40), [Gap(10, 19, "damaged")])
    store.close()
    assert stratalog.verify(tmp_path / "data").ok


@pytest.mark.slow
@pytest.mark.parametrize("purge", [False, True])
def test_a_crash_while_empty_segments_become_one_leaves_a_whole_store(purge: bool) -> None:
    """At every file operation `verify` says ok, before the store is opened and after.

    Segments come back from the cold store with a purge: the log still says that they are there.
    """
    stop = 0
    is_crashed = True
    while is_crashed:
        stop += 1
        session = Session(FakeDisk(), ManualClock())
        session.open(cold="/cold", hot_segments=1 if purge else 9)
        topic = session.create("t", segment_records=3)
        session.append_many("t", [value(n) for n in range(18)])
        session.compact()
        assert topic.stats().cold_segments == 5 * purge
        session.delete("t", offsets=range(3, 12))
        session.disk.crash_after = session.disk.operations + stop
        try:
            session.compact(purge=purge)
            is_crashed = False
            assert ((3, 12, 0) if purge else (0, 12, 3)) in _spans(topic)
        except Crashed:
            pass
        session.kill()
        session.disk = session.disk.crash(stop)
        report = verify(ROOT, fs=session.disk, cold="/cold")
        assert report.ok, (stop, report.problems)
        session.open(cold="/cold", hot_segments=9)
        check(session.store.topic("t"), [*range(3), *range(12, 18)])
        session.compact()
        check(session.store.topic("t"), [*range(3), *range(12, 18)])
        session.store.close()
        report = verify(ROOT, fs=session.disk, cold="/cold")
        assert report.ok, (stop, report.problems)
    assert stop > 20
