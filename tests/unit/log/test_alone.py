"""Synced appends that can share no sync, which is found out on the way."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.crash.model import kill, open_store

from stratalog.errors import SyncFailedError, UnknownTopicError
from stratalog.format.columns import encode_value
from stratalog.handles.topic import Topic
from stratalog.log.append import _enter_alone
from stratalog.log.commit_group import plain_entry
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock


def _frames(topic: Topic) -> int:
    return len(topic.log.index)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("value", [b"", b"1", b"12345678", bytes(1024), bytes(3000), None])
@pytest.mark.parametrize(
    "rest",
    [
        {},
        {"key": b"key"},
        {"key": b"", "tag": "tag", "node": "node"},
        {"headers": {"a": b"1", "b": b""}},
        {"headers": {}},
        {"ttl": 60.0},
        {"timestamp": 2e9, "key": b"key"},
    ],
)
def test_the_short_way_writes_what_the_long_way_writes(
    value: bytes | None, rest: dict[str, Any], compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte: replay and readers know one kind of frame."""
    monkeypatch.setattr(secrets, "token_bytes", lambda size: b"i" * size)  # frames depend on it
    files = []
    for is_short in (True, False):
        disk = FakeDisk()
        store = open_store(disk, ManualClock(), shards=1)
        topic = store.create_topic("t", compression=compression)
        for _ in range(3):
            if is_short:
                topic.append(value, **rest)
            else:
                topic.append_nowait(value, **rest).result()
        files.append(
            {path: data.rstrip(b"\0") for path, data in disk.image().items() if "/log/" in path}
        )
        assert topic.read_values() == [value] * 3
        kill(store)
    assert files[0] == files[1]


def test_appends_that_come_during_a_commit_gather(open_store: OpenStore) -> None:
    """They share one frame and one sync, as if none of them had looked whether it is alone."""
    topic = open_store(shards=1).topic("t")
    topic.append(b"first")
    shard = topic.log.shard
    commits = shard.commits
    with ThreadPoolExecutor(8) as executor:
        with shard.commit_lock:  # stands for a sync that takes long
            futures = [executor.submit(topic.append, b"%d" % number) for number in range(8)]
            while topic.log.next_offset < 9:
                threading.Event().wait(0.001)
        offsets = sorted(future.result(30) for future in futures)
    assert offsets == list(range(1, 9))
    assert _frames(topic) == 2
    assert shard.commits == commits + 1


def test_an_append_that_is_overtaken_gathers_with_who_was_faster(open_store: OpenStore) -> None:
    """Another enters the group between the look at it and the lock."""
    topic = open_store(shards=1).topic("t")
    topic.append(b"first")
    shard = topic.log.shard

    def late() -> Iterator[bool]:
        topic.append_nowait(b"other")
        yield shard.commit_lock.acquire(False)

    shard.try_commit_lock = late()
    assert topic.append(b"mine") == 2
    assert topic.read_values() == [b"first", b"other", b"mine"]
    assert _frames(topic) == 2
    assert not shard.commit_lock.locked()


def test_an_append_into_a_group_that_was_closed_meanwhile_goes_into_the_next(
    open_store: OpenStore,
) -> None:
    """Another entered it, and had it written, between the look at it and the lock."""
    topic = open_store(shards=1).topic("t")
    shard = topic.log.shard

    def late() -> Iterator[bool]:
        topic.append_many([b"other"])
        yield shard.commit_lock.acquire(False)

    shard.try_commit_lock = late()
    assert topic.append(b"mine") == 1
    assert topic.read_values() == [b"other", b"mine"]
    assert not shard.commit_lock.locked()


def test_time_does_not_go_back_between_the_ways() -> None:
    """The clock does, and each append has the newest time there was."""
    clock = ManualClock()
    store = open_store(FakeDisk(), clock, shards=1)
    topic = store.topic("t")
    topic.append(b"0", timestamp=clock.time_ns() / 1e9 + 100)
    topic.append(b"1")
    clock.advance(200)
    topic.append(b"2")
    times = [record.timestamp for record in topic.read()]  # type: ignore[union-attr]
    assert times[0] == times[1] < times[2] == clock.time_ns()
    kill(store)


def test_a_dropped_topic_takes_nothing_the_short_way_either(open_store: OpenStore) -> None:
    """And the thread that gets the error leaves no lock held."""
    store = open_store(shards=1)
    topic = store.topic("t")
    store.drop_topic("t")
    with pytest.raises(UnknownTopicError, match="was dropped"):
        topic.append(b"1")
    assert store.topic("t").append(b"2") == 0


@pytest.mark.parametrize("is_plain", [True, False])
def test_what_was_interrupted_too_often_is_written_before_what_follows(
    open_store: OpenStore, is_plain: bool
) -> None:
    """It has its offset, and its thread did not write it: the next commit does."""
    topic = open_store(shards=1).topic("t")
    topic.append(b"0")
    shard = topic.log.shard
    with shard.commit_lock:
        assert _enter_alone(topic.log, plain_entry(topic.log, encode_value(b"1"), 1))
    assert (topic.append(b"2") if is_plain else topic.append(b"2", key=b"k")) == 2
    assert topic.read_values() == [b"0", b"1", b"2"]
    assert shard.alone.done


def test_what_was_interrupted_too_often_and_fails_takes_what_follows_along() -> None:
    """Neither is acknowledged, nor published, nor written after a hole."""
    faults = FaultFs(FakeDisk())
    store = open_store(faults, ManualClock(), shards=1)
    topic = store.topic("t")
    topic.append(b"0")
    with topic.log.shard.commit_lock:
        assert _enter_alone(topic.log, plain_entry(topic.log, encode_value(b"1"), 1))
    faults.add(Fault(operation="fdatasync"))
    with pytest.raises(SyncFailedError):
        topic.append(b"2")
    assert topic.read_values() == [b"0"]
    assert topic.next_offset == 1
    kill(store)


def test_threads_that_come_and_go_lose_nothing(open_store: OpenStore) -> None:
    """Some meet no other, some gather: every offset once, every value where its append said."""
    topic = open_store(shards=1).topic("t")
    told: dict[int, bytes] = {}

    def work(thread: int) -> None:
        for number in range(200):
            value = b"%d-%d" % (thread, number)
            told[topic.append(value, key=b"k") if number % 7 == 3 else topic.append(value)] = value

    with ThreadPoolExecutor(4) as executor:
        for done in [executor.submit(work, thread) for thread in range(4)]:
            done.result(60)
    assert topic.read_values() == [told[offset] for offset in range(800)]
