"""Dropping a topic: all handles notice, nothing is left, and a new one is a new one."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.crash.model import Session
from tests.unit.segments.topics import check, fill, segments, upkeep, value

from stratalog import DiskFullError, UnknownTopicError
from stratalog.fs import PosixFileSystem
from stratalog.handles.topic import Topic
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, ManualClock


def _refuses(topic: Topic) -> None:
    for call in (
        lambda: topic.append(b"x"), lambda: topic.append(b"x", key=b"k"),
        lambda: topic.append_many([b"x"]), lambda: topic.append_nowait(b"x").result(),
        lambda: list(topic.read()), lambda: topic.read_values(), lambda: topic.read_arrow(),
        lambda: topic.diff(), lambda: topic.offset_at(5.0), lambda: topic.watch(),
        lambda: topic.delete(before=0), lambda: len(topic), lambda: topic.stats(),
        lambda: topic.earliest,
    ):  # fmt: skip
        with pytest.raises(UnknownTopicError, match="was dropped"):
            call()


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_an_old_handle_refuses_everything(open_store: OpenStore, durability: str) -> None:
    """And a new topic of the name has nothing of the old one: a new id, a new epoch."""
    store = open_store(durability=durability)
    old = store.topic("t")
    fill(old, 5)
    assert (old.epoch, old.stats().id) == (0, 1)
    store.drop_topic("t")
    assert old.is_dropped
    assert store.topics() == []
    _refuses(old)
    for epoch in (1, 2):
        new = store.topic("t")
        assert (new.epoch, new.stats().id, new.next_offset) == (epoch, 1 + epoch, 0)
        fill(new, 2)
        check(new, range(2))
        _refuses(old)
        store.drop_topic("t")
        _refuses(new)
    with pytest.raises(UnknownTopicError):
        store.drop_topic("t")


def test_nothing_is_left_on_the_disk(open_store: OpenStore, tmp_path: Path) -> None:
    """Segments go with the next round, and the log's frames with the snapshots after it."""
    with open_store(background=False, shards=1) as store:
        segments(store, store.create_topic("t", segment_records=10), 3, size=12)
        store.topic("u").append(b"stays")
        store.drop_topic("t")
        upkeep(store).round()
        assert [p for p in tmp_path.rglob("*") if p.suffix in (".seg", ".open")] == []
        store.snapshot()
        store.snapshot()
    store = open_store()
    assert store.topics() == ["u"]
    assert store.create_topic("t").stats().id == 3
    assert store.topic("t").epoch == 1


@pytest.mark.parametrize("start", [None, 0])
@pytest.mark.parametrize("is_view", [True, False])
def test_a_watcher_is_told(open_store: OpenStore, is_view: bool, start: int | None) -> None:
    """It waited for ever."""
    store = open_store()
    topic = store.topic("t")
    fill(topic, 2)
    watched = open_store(read_only=True).topic("t") if is_view else topic
    watching = watched.watch(start)
    ended = threading.Event()
    waits = threading.Event()

    def watch() -> None:
        try:
            waits.set()
            for _ in watching:
                pass
        except UnknownTopicError:
            ended.set()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    waits.wait()
    store.drop_topic("t")
    assert ended.wait(10)
    thread.join()


def test_a_view_sees_a_new_epoch(open_store: OpenStore) -> None:
    """Its old handle refuses, a new one has the new topic."""
    store = open_store(background=False, shards=2)
    fill(store.topic("t"), 5)
    reader = open_store(read_only=True)
    old = reader.topic("t")
    check(old, range(5))
    store.drop_topic("t")
    with pytest.raises(UnknownTopicError):
        reader.topic("t")
    fill(store.topic("t"), 3)
    with pytest.raises(UnknownTopicError, match="was dropped"):
        old.read_values()
    new = reader.topic("t")
    assert (new.epoch, new.stats().id) == (1, 2)
    check(new, range(3))


def test_a_reader_under_way_learns_that_its_topic_went(open_store: OpenStore) -> None:
    """Not that a file is missing: nothing is damaged."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 3)
    view = open_store(read_only=True).topic("t")
    readings = [topic.read(), view.read()]
    for reading in readings:
        next(reading)
    store.drop_topic("t")
    upkeep(store).round()
    for reading in readings:
        with pytest.raises(UnknownTopicError):
            list(reading)


def test_a_topic_younger_than_the_snapshot_stays_in_a_view(open_store: OpenStore) -> None:
    """A view that starts again from a snapshot took what was not in it for dropped.

    It has seen the new topic in one shard before it finds the files of another given up.
    """
    store = open_store(background=False, shards=2, log_file_bytes=8192, log_chunk_bytes=4096)
    topics = [store.topic(f"t{number}") for number in range(4)]
    for topic in topics:
        fill(topic, 1)
    reader = open_store(read_only=True)
    sizes = [1] * 4
    for round_number in range(12):
        busy = round_number % 4
        for _ in range(2):
            fill(topics[busy], 80)
            sizes[busy] += 80
            store.snapshot()
        names = [f"new {round_number} {number}" for number in range(3)]
        for name in names:
            fill(store.topic(name), 2)
        for name in names:
            check(reader.topic(name), range(2))
        for topic, size in zip(topics, sizes, strict=True):
            assert len(reader.topic(topic.name)) == size


def test_a_drop_that_failed_did_nothing(open_store: OpenStore) -> None:
    """A full disk: the topic is as it was, and can be dropped later."""
    fs = FaultFs(PosixFileSystem())
    store = open_store(background=False, fs=fs, shards=1)
    topic = store.topic("t")
    fill(topic, 5)
    fs.add(Fault(operation="pwrite", error=errno.ENOSPC, path_contains="log"))
    with pytest.raises(DiskFullError):
        store.drop_topic("t")
    fs.clear()
    assert not topic.is_dropped
    check(topic, range(5))
    fill(topic, 1)
    check(store.topic("t"), range(6))
    store.drop_topic("t")
    assert store.topics() == []


@pytest.mark.parametrize("has_cold", [True, False])
def test_a_drop_survives_a_crash_at_any_time(has_cold: bool) -> None:
    """All of the old topic or nothing; once it is gone it stays gone, and its id too."""
    cold = {"cold": "/cold", "hot_segments": 1} if has_cold else {}
    for stop in range(0, 60, 2):
        session = Session(FakeDisk(), ManualClock(), **cold)
        session.open()
        topic = session.store.create_topic("t", segment_records=5)
        segments(session.store, topic, 3, size=6)
        session.store.compact()
        session.disk.crash_after = session.disk.operations + stop
        is_dropped = False
        try:
            session.store.drop_topic("t")
            is_dropped = True
            new = session.store.topic("t")
            new.append(value(0))
            session.store.compact()
            session.store.snapshot()
        except Crashed:
            pass
        session.kill()
        session.disk = session.disk.crash(stop)
        session.open()
        assert session.store.damage is None
        found = session.store.topic("t")
        if found.epoch == 0:
            assert not is_dropped
            check(found, range(18))
        else:
            assert found.epoch == 1
            assert found.stats().id == 2
            check(found, range(found.next_offset))
        session.reopen()
        assert session.store.topic("t").epoch == found.epoch
        session.store.close()


@pytest.mark.slow
def test_dropping_while_everything_runs(open_store: OpenStore) -> None:
    """Appends, reads, deletes and upkeep meet a topic that goes: typed errors, no more."""
    store = open_store(checkpoint_interval=0.005, checkpoint_bytes=1, snapshot_bytes=1)
    stop = threading.Event()
    wrong: list[BaseException] = []

    def run(number: int) -> None:
        while not stop.is_set():
            topic = store.topic(f"t{number % 2}")
            try:
                fill(topic, 20)
                topic.read_values()
                topic.delete(tag="t1")
            except UnknownTopicError:
                continue
            except BaseException as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(40):
        upkeep(store).round()
        store.topic(f"t{number % 2}")
        store.drop_topic(f"t{number % 2}")
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.stats().upkeep is None
    store.close()
    again = open_store(background=False)
    assert again.damage is None
    assert again.topic("t0").epoch == 20
