"""Upkeep: due by bytes or by time, undeterred by failures, and unseen by readers."""

from __future__ import annotations

import errno
import logging
import threading
import time
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.unit.segments.topics import check, files, fill, upkeep, value

import stratalog.upkeep.rounds
from stratalog import Gap, Record
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.log.topic import TopicLog
from stratalog.options import StoreOptions
from stratalog.testing import Fault, FaultFs, ManualClock


def test_rounds_are_due_by_bytes(open_store: OpenStore) -> None:
    """A checkpoint at so much log, a snapshot at so much more; nothing before."""
    clock = ManualClock()
    store = open_store(
        clock=clock, background=False, shards=1, checkpoint_bytes=20_000, snapshot_bytes=50_000
    )
    topic = store.topic("t")
    done = []
    for _ in range(30):
        fill(topic, 50)
        upkeep(store).round()
        done.append((store.stats().checkpoints, store.stats().snapshots))
    assert done[0] == done[1] == (0, 0)
    assert done[-1][0] in range(4, 8)
    assert done[-1][1] in range(1, 4)
    check(topic, range(1500))


def test_rounds_are_due_by_time(open_store: OpenStore) -> None:
    """However little there is; and none at all if there is nothing."""
    clock = ManualClock()
    store = open_store(
        clock=clock, background=False, checkpoint_interval=30.0, snapshot_interval=60.0
    )
    upkeep(store).round()
    topic = store.topic("t")
    fill(topic, 1)
    expected = {29.0: (0, 0), 1.0: (1, 0), 28.0: (1, 0), 2.0: (1, 1)}
    for seconds, counts in expected.items():
        clock.advance(seconds)
        upkeep(store).round()
        assert (store.stats().checkpoints, store.stats().snapshots) == counts
    for _ in range(5):
        clock.advance(100)
        upkeep(store).round()
    quiet = store.stats()
    assert (quiet.checkpoints, quiet.snapshots) <= (2, 2), "nothing new, nothing done"


def test_an_idle_segment_is_sealed_by_its_age(open_store: OpenStore, tmp_path: Path) -> None:
    """Also if nothing comes after it."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.create_topic("t", segment_seconds=100.0)
    fill(topic, 5)
    store.checkpoint()
    clock.advance(99)
    store.checkpoint()
    assert files(tmp_path) == []
    clock.advance(1)
    store.checkpoint()
    assert len(files(tmp_path)) == 1
    fill(topic, 5)
    store.checkpoint()
    check(topic, range(10))


@pytest.mark.parametrize("operation", ["pwrite", "create"])
def test_a_full_disk_is_told_once_and_tried_again(
    open_store: OpenStore, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    """While a checkpoint fails appends and reads go on, and eviction does, which makes room."""
    clock = ManualClock()
    fs = FaultFs(PosixFileSystem())
    store = open_store(clock=clock, background=False, fs=fs, checkpoint_interval=1.0)
    topic = store.topic("t")
    old = store.create_topic("old", segment_records=10, retention_seconds=50.0)
    for _ in range(2):
        fill(old, 10)
        store.checkpoint()
    fill(topic, 10)
    fs.add(Fault(operation=operation, error=errno.ENOSPC, always=True, path_contains="topics"))
    with caplog.at_level(logging.WARNING, "stratalog"):
        for number in range(4):
            clock.advance(20)
            upkeep(store).round()
            assert "No space" in (store.stats().upkeep or "")
            fill(topic, 10)
            check(topic, range(20 + 10 * number))
        assert len(caplog.records) == 1
        assert old.earliest == 10, "eviction went on"
        fs.clear()
        clock.advance(20)
        upkeep(store).round()
        assert store.stats().upkeep is None
        assert topic.stats().frames == 0
        check(topic, range(50))
        fs.add(Fault(operation=operation, error=errno.ENOSPC, path_contains="topics"))
        for _ in range(2):
            fill(topic, 5)
        store.create_topic("new").append(b"x")
        clock.advance(20)
        upkeep(store).round()
        assert len(caplog.records) == 2, "another failure is another message"
    fs.clear()
    upkeep(store).round()
    check(topic, range(60))


def test_a_failed_sync_of_a_segment_stops_checkpoints_alone(open_store: OpenStore) -> None:
    """The kernel's copy of the file is unknown; the log has it all. A reopened store goes on."""
    clock = ManualClock()
    fs = FaultFs(PosixFileSystem())
    with open_store(clock=clock, background=False, fs=fs) as store:
        topic = store.topic("t")
        fill(topic, 10)
        store.checkpoint()
        fill(topic, 10)
        fs.add(Fault(operation="fdatasync", error=errno.EIO, path_contains="topics"))
        clock.advance(100)
        upkeep(store).round()
        assert "sync failed" in (store.stats().upkeep or "")
        for _ in range(3):
            fill(topic, 10)
            clock.advance(100)
            upkeep(store).round()
            assert "sync failed" in (store.stats().upkeep or "")
        assert store.stats().checkpoints == 1
        check(topic, range(50))
    store = open_store(clock=clock, background=False)
    check(store.topic("t"), range(50))
    store.checkpoint()
    assert store.topic("t").stats().frames == 0
    check(store.topic("t"), range(50))


def test_an_unexpected_failure_does_not_end_the_thread(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told like any other, with where it came from."""
    store = open_store(background=False)

    def fail(ratio: float) -> None:
        raise RuntimeError("a mistake of ours")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "stratalog"):
        patch.setattr(upkeep(store), "_tidy", fail)
        upkeep(store).round()
    assert store.stats().upkeep == "a mistake of ours"
    assert caplog.records[0].exc_info
    upkeep(store).round()
    assert store.stats().upkeep is None


def test_an_unexpected_failure_in_one_topic_is_no_matter_of_the_others(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the round: nothing was evicted after it, and no snapshot released the log."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False, snapshot_interval=60.0)
    fill(store.topic("first"), 10)
    topic = store.create_topic("second", segment_records=10, retention_records=0)
    for _ in range(3):
        fill(topic, 10)
        store.checkpoint()

    def fail(topic: TopicLog, now: int, ratio: float) -> int:
        if topic.name == "first":
            raise IndexError("a mistake of ours")
        return 0

    monkeypatch.setattr(stratalog.upkeep.rounds, "reclaim", fail)
    clock.advance(100)
    with caplog.at_level(logging.WARNING, "stratalog"):
        upkeep(store).round()
    assert store.stats().upkeep == "a mistake of ours"
    assert caplog.records[0].exc_info
    assert topic.earliest == 20
    assert store.stats().snapshots == 1


def test_a_failing_round_is_not_begun_with_every_tick(open_store: OpenStore) -> None:
    """There is enough to do all the time: it span."""
    clock = ManualClock()
    fs = FaultFs(PosixFileSystem())
    store = open_store(clock=clock, background=False, fs=fs, checkpoint_bytes=1)
    fill(store.topic("t"), 1)
    fs.add(Fault(operation="create", always=True, path_contains="topics"))
    keeper = upkeep(store)
    keeper._look()
    assert keeper._wake.take(0)
    keeper.round()
    keeper._look()
    assert not keeper._wake.take(0)
    clock.advance(1)
    keeper._look()
    assert keeper._wake.take(0)


def test_a_close_leaves_an_empty_log_if_much_was_written(open_store: OpenStore) -> None:
    """The next open replays nothing; a little is left in the log, and makes no segment."""
    with open_store() as store:
        for _ in range(10):
            fill(store.topic("t"), 1000)
    with open_store() as store:
        assert store.stats().replayed_frames <= 2
        assert store.topic("t").stats().frames == 0
        check(store.topic("t"), range(10_000))
        fill(store.topic("t"), 10)
    with open_store() as store:
        assert store.topic("t").stats().frames == 1
        check(store.topic("t"), range(10_010))


@pytest.mark.slow
def test_views_beside_a_busy_writer_see_every_record(open_store: OpenStore) -> None:
    """It checkpoints, snapshots, gives files up, evicts and rewrites; they are never wrong.

    A view's read is a part of the topic as it was at some moment: every offset in order, each with
    its value, or deleted, or in a gap.
    """
    store = open_store(
        background=False, shards=2, log_file_bytes=16384, log_chunk_bytes=4096, durability="disk"
    )
    topic = store.create_topic("t", segment_records=70, retention_records=2000)
    stop = threading.Event()
    wrong: list[BaseException] = []
    reads = [0, 0]

    def watch(number: int) -> None:
        try:
            view = open_store(read_only=True).topic("t")
            while not stop.is_set():
                earliest = view.earliest
                expected = start = max(0, view.next_offset - 1500) if number else 0
                for item in view.read(start):
                    if isinstance(item, Gap):
                        assert item.first == expected
                        expected = item.last + 1
                        continue
                    assert item.value == value(item.offset)
                    skipped = range(max(expected, earliest), item.offset)
                    assert all(n % 3 == 1 for n in skipped), (expected, item.offset)
                    expected = item.offset + 1
                reads[number] += 1
        except BaseException as error:
            wrong.append(error)

    fill(topic, 10)
    threads = [threading.Thread(target=watch, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 3
    rounds = 0
    # As long as it takes on a busy machine: what is asserted below is not how fast it is.
    while (time.monotonic() < deadline or topic.next_offset <= 500) and not wrong:
        for _ in range(3):
            fill(topic, 35)
        topic.delete(tag="t1")
        (store.compact, store.snapshot, store.checkpoint)[rounds % 3]()
        rounds += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert min(reads) > 0
    end = topic.next_offset
    assert end > 500
    records = [item for item in topic.read() if isinstance(item, Record)]
    assert [r.offset for r in records] == [n for n in range(topic.earliest, end) if n % 3 != 1]


@pytest.mark.slow
def test_views_opened_beside_a_busy_writer_are_whole(open_store: OpenStore, tmp_path: Path) -> None:
    """Files move, go and get other names between two looks of a view: none of it is damage."""
    store = open_store(
        background=False, shards=2, log_file_bytes=16384, log_chunk_bytes=4096, durability="disk",
        cold=str(tmp_path / "cold"), hot_segments=1,
    )  # fmt: skip
    topic = store.create_topic("t", segment_records=50, retention_records=200)
    fill(topic, 30)
    stop = threading.Event()
    wrong: list[object] = []

    def look() -> None:
        options = StoreOptions.build({}, {})
        while not stop.is_set():
            try:
                with Store(tmp_path / "data", options, read_only=True) as view:
                    if view.damage:
                        wrong.append(view.damage)
                    for item in view.topic("t").read():
                        assert isinstance(item, Gap) or item.value == value(item.offset)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 2
    rounds = 0
    while time.monotonic() < deadline and not wrong:
        fill(topic, 60)
        (store.compact, store.checkpoint, store.snapshot)[rounds % 3]()
        rounds += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
