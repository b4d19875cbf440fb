"""Consumer groups: sharing records out, taking them over, and a cursor of one's own."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.conftest import OpenStore

from stratalog import (
    Delivery,
    LeaseLostError,
    OptionError,
    ReadOnlyError,
    Store,
    Topic,
    UnknownGroupError,
    UnknownTopicError,
    WrongTypeError,
)
from stratalog.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """Time that passes when a test says so."""
    return ManualClock()


@pytest.fixture
def store(open_store: OpenStore, clock: ManualClock) -> Store:
    """A store without threads of its own."""
    return open_store(clock=clock, background=False, durability="disk", shards=2)


@pytest.fixture
def topic(store: Store) -> Topic:
    """Ten records."""
    topic = store.topic("orders")
    topic.append_many([b"%d" % n for n in range(10)])
    return topic


def offsets(deliveries: list[Delivery]) -> list[int]:
    """Which records they are."""
    return [delivery.offset for delivery in deliveries]


def test_consumers_share_the_records_out(topic: Topic) -> None:
    """Each goes to one of them; what is acknowledged is done."""
    group = topic.group("billing", mode="queue")
    first = group.poll("a", limit=4)
    second = group.poll("b", limit=4)
    assert (offsets(first), offsets(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert (first[0].value, first[0].delivery_count, first[0].consumer) == (b"0", 1, "a")
    assert group.ack([1, second[0]]) == 2
    assert (group.lag, group.floor, len(group.pending())) == (8, 0, 6)
    assert group.ack(offsets(first)) == 3  # one of them was
    assert (group.lag, group.floor) == (5, 5)
    assert [entry.offset for entry in group.pending("b")] == [5, 6, 7]
    assert offsets(group.poll("a")) == [8, 9]
    assert group.poll("a") == []


def test_groups_are_independent(topic: Topic) -> None:
    """Each has its own place in the topic."""
    one, other = topic.group("one"), topic.group("other", start="latest")
    one.ack(one.poll("a"))
    assert (one.lag, other.lag) == (0, 0)
    topic.append(b"new")
    assert (offsets(one.poll("a")), offsets(other.poll("a"))) == ([10], [10])
    assert topic.groups() == ["one", "other"]


def test_a_group_starts_where_it_is_told(topic: Topic, clock: ManualClock) -> None:
    """At either end, at an offset, or at a time, and only when it is made."""
    clock.advance(10.0)
    now = datetime.fromtimestamp(clock.time_ns() / 1e9, UTC)
    topic.append_many([b"x"] * 5)
    assert topic.group("earliest").lag == 15
    assert topic.group("latest", start="latest").lag == 0
    assert offsets(topic.group("offset", start=7).poll("a", limit=1)) == [7]
    assert offsets(topic.group("time", start=now).poll("a", limit=1)) == [10]
    assert offsets(topic.group("seconds", start=now.timestamp()).poll("a", limit=1)) == [10]
    assert topic.group("latest", start="earliest").lag == 0
    with pytest.raises(OptionError, match='use "earliest" or "latest"'):
        topic.group("bad", start="middle")
    with pytest.raises(OptionError, match="mode='pile'"):
        topic.group("bad", mode="pile")
    with pytest.raises(OptionError, match="is of mode 'queue', not 'stream'"):
        topic.group("latest", mode="stream")
    with pytest.raises(OptionError, match="empty"):
        topic.group("")
    assert "bad" not in topic.groups()


def test_leases_run_out_and_work_is_taken_over(topic: Topic, clock: ManualClock) -> None:
    """By the next consumer that asks; the earlier one is fenced off."""
    group = topic.group("g")
    slow = group.poll("slow", limit=2, lease=10.0)
    clock.advance(10.0)
    fast = group.poll("fast", limit=3)
    assert offsets(fast) == [0, 1, 2]
    assert [one.delivery_count for one in fast] == [2, 2, 1]
    with pytest.raises(LeaseLostError, match="'fast' has it"):
        group.ack(slow)
    with pytest.raises(LeaseLostError):
        group.nack(slow)
    with pytest.raises(LeaseLostError):
        group.touch(slow)
    assert group.ack(fast) == 3


def test_idle_records_are_claimed(topic: Topic, clock: ManualClock) -> None:
    """Although their leases are long, the oldest first, and no more than asked for."""
    group = topic.group("g")
    old = group.poll("a", limit=3, lease=3600.0)
    clock.advance(20.0)
    group.poll("a", limit=2, lease=3600.0)
    clock.advance(15.0)
    assert group.claim("b", idle=60.0) == []
    claimed = group.claim("b", idle=30.0, limit=2)
    assert offsets(claimed) == [0, 1]
    assert [one.delivery_count for one in claimed] == [2, 2]
    assert [entry.consumer for entry in group.pending()] == ["b", "b", "a", "a", "a"]
    with pytest.raises(LeaseLostError):
        group.ack(old[:1])
    assert group.ack([old[2]]) == 1


def test_what_is_given_back_comes_again(topic: Topic, clock: ManualClock) -> None:
    """At once, or after a delay."""
    group = topic.group("g")
    a, b, c = group.poll("a", limit=3)
    assert group.nack([a, c.offset]) == 2
    assert group.nack([b], delay=5.0, reason="busy") == 1
    assert group.nack([77]) == 0
    assert offsets(group.poll("a", limit=3)) == [0, 2, 3]
    clock.advance(5.0)
    again = group.poll("b", limit=1)
    assert (offsets(again), again[0].delivery_count) == ([1], 2)


def test_a_heartbeat_keeps_everything_a_consumer_holds(topic: Topic, clock: ManualClock) -> None:
    """And leaving gives it all back at once."""
    group = topic.group("g")
    group.join("idle")
    group.poll("a", limit=3, lease=10.0)
    group.poll("b", limit=2, lease=10.0)
    clock.advance(9.0)
    assert group.heartbeat("a", lease=10.0) == 3
    clock.advance(2.0)
    seen = {one.name: (one.pending, one.seen_at) for one in group.consumers()}
    now = clock.time_ns()
    assert seen == {"a": (3, now - 2 * 10**9), "b": (2, now - 11 * 10**9),
                    "idle": (0, now - 11 * 10**9)}  # fmt: skip
    assert group.touch([0], lease=100.0) == 1
    assert offsets(group.poll("c", limit=3)) == [3, 4, 5]
    assert group.leave("a") == 3
    assert offsets(group.poll("c", limit=3)) == [0, 1, 2]
    assert [one.name for one in group.consumers()] == ["b", "c", "idle"]


def test_pending_records_are_bounded(topic: Topic) -> None:
    """Back-pressure: nothing more until something is acknowledged."""
    group = topic.group("g", pending_max=4)
    held = group.poll("a", limit=100)
    assert len(held) == 4
    assert group.poll("b") == []
    group.ack(held[:1])
    assert offsets(group.poll("b")) == [4]


def test_seek_begins_again_somewhere_else(topic: Topic, store: Store) -> None:
    """Back and forth; pending deliveries become void."""
    group = topic.group("g")
    held = group.poll("a")
    assert group.seek(3) == 3
    with pytest.raises(LeaseLostError):
        group.ack(held)
    assert group.ack([0]) == 0
    assert offsets(group.poll("a", limit=2)) == [3, 4]
    assert group.seek("latest") == 10
    assert (group.lag, group.poll("a")) == (0, [])
    assert group.seek("earliest") == 0
    assert group.seek(10**9) == 10
    with pytest.raises(OptionError):
        group.seek("nowhere")
    with pytest.raises(WrongTypeError):
        group.seek(None)  # type: ignore[arg-type]


def test_a_stream_is_a_cursor(open_store: OpenStore, clock: ManualClock) -> None:
    """Unacknowledged records come again after a restart, in order, for all consumers."""
    store = open_store(clock=clock, background=False)
    topic = store.topic("orders")
    topic.append_many([b"%d" % n for n in range(10)])
    group = topic.group("s", mode="stream")
    assert offsets(group.poll("a", limit=4)) == [0, 1, 2, 3]
    assert offsets(group.poll("b", limit=2)) == [4, 5]
    assert group.ack([2]) == 3
    assert group.ack([1]) == 0
    assert (group.lag, group.floor, group.pending()) == (7, 3, [])
    assert group.nack([4]) == 1
    assert offsets(group.poll("a", limit=1)) == [4]
    with pytest.raises(OptionError, match="mode 'queue'"):
        group.claim("a")
    store.snapshot()
    group.ack([5])
    store.close()
    store = open_store(clock=clock, background=False)
    group = store.topic("orders").group("s")
    assert (group.mode, group.lag) == ("stream", 4)
    assert offsets(group.poll("a")) == [6, 7, 8, 9]
    assert group.seek(1) == 1
    assert offsets(group.poll("a", limit=1)) == [1]


def test_streams_hold_nothing_back(store: Store) -> None:
    """Retention `consumed` asks groups of mode `queue` alone."""
    topic = store.create_topic(
        "small", segment_records=5, retention="consumed", retention_records=0
    )
    topic.append_many([b"x"] * 20)
    stream = topic.group("s", mode="stream")
    group = topic.group("g")
    store.compact()
    assert topic.earliest == 0
    group.ack(group.poll("a", limit=12))
    store.compact()
    assert topic.earliest == 10
    assert offsets(stream.poll("a", limit=2)) == [10, 11]
    assert stream.lag == 20
    group.drop()
    topic.group("late")
    store.compact()
    assert topic.earliest == 10


def test_everything_is_remembered(
    open_store: OpenStore, clock: ManualClock, tmp_path: Path
) -> None:
    """Counts, leases and the floor; with a snapshot, without, and with other shards."""
    for turn, shards in enumerate((1, 3, 2)):
        store = open_store(clock=clock, background=False, durability="disk", shards=shards)
        topic = store.topic(f"orders-{turn}")
        topic.append_many([b"%d" % n for n in range(10)])
        group = topic.group("g")
        held = group.poll("worker-1", limit=6)
        group.ack([held[0], held[2]])
        group.nack([held[1]], delay=100.0)
        if turn == 1:
            store.snapshot()
        group.ack([held[3]])
        before, pending = group.stats(), group.pending()
        store.close()
        store = open_store(clock=clock, background=False, durability="disk", shards=4 - shards)
        group = store.topic(f"orders-{turn}").group("g")
        assert group.pending() == pending
        assert (group.stats().lag, group.stats().floor) == (before.lag, before.floor)
        assert group.ack([held[4]]) == 1  # the same delivery, known by its serial
        clock.advance(30.0)
        assert offsets(group.poll("worker-2", limit=3)) == [5, 6, 7]
        store.close()


def test_a_dropped_group_is_gone_and_its_name_is_free(
    open_store: OpenStore, clock: ManualClock
) -> None:
    """Another of its name starts from nothing, also after a restart."""
    store = open_store(clock=clock, background=False)
    topic = store.topic("orders")
    topic.append_many([b"x"] * 5)
    group = topic.group("g")
    group.ack(group.poll("a"))
    group.drop()
    assert topic.groups() == []
    with pytest.raises(UnknownGroupError, match="was dropped"):
        group.poll("a")
    again = topic.group("g", start=3)
    assert again.lag == 2
    again.poll("a", limit=1)
    store.snapshot()
    store.close()
    store = open_store(clock=clock, background=False)
    assert store.topic("orders").groups() == ["g"]
    assert store.topic("orders").group("g").stats().deliveries == 1
    topic = store.topic("orders")
    store.drop_topic("orders")
    with pytest.raises(UnknownTopicError):
        topic.group("g")
    assert store.topic("orders").groups() == []


def test_records_that_went_are_not_waited_for(store: Store, clock: ManualClock) -> None:
    """Deleted, evicted or expired: they are done with."""
    topic = store.create_topic("small", segment_records=5, retention_records=10)
    group = topic.group("g")
    topic.append_many([b"%d" % n for n in range(12)])
    topic.append(b"short", ttl=1.0)
    topic.append_many([b"%d" % n for n in range(13, 23)])
    topic.delete(offsets=[15, 16])
    clock.advance(5.0)
    store.compact()
    assert topic.earliest == 10
    assert offsets(group.poll("a")) == [10, 11, 13, 14, 17, 18, 19, 20, 21, 22]
    assert group.floor == 10
    group.ack(range(10, 23))
    assert (group.lag, group.floor) == (0, 23)


def test_a_reader_sees_groups(open_store: OpenStore, clock: ManualClock) -> None:
    """Lag and pending, as the writer goes on; and changes nothing."""
    store = open_store(clock=clock, background=False)
    topic = store.topic("orders")
    topic.append_many([b"x"] * 5)
    group = topic.group("g")
    reader = open_store(read_only=True, clock=clock)
    view = reader.topic("orders").group("g")
    assert view.lag == 5
    held = group.poll("a", limit=3)
    group.ack(held[:1])
    topic.append(b"y")
    assert (view.lag, view.pending(), view.floor) == (group.lag, group.pending(), group.floor)
    assert [one.name for one in view.consumers()] == ["a"]
    store.snapshot()
    store.snapshot()
    group.ack(held[1:])
    assert view.stats().lag == group.lag == 3
    with pytest.raises(ReadOnlyError):
        view.poll("a")
    with pytest.raises(UnknownGroupError, match="has no group 'none'"):
        reader.topic("orders").group("none")


def test_a_waiting_poll_is_woken_by_an_append(open_store: OpenStore) -> None:
    """In both modes."""
    store = open_store(durability="disk")
    topic = store.topic("orders")
    for mode in ("queue", "stream"):
        group = topic.group(mode, mode=mode, start="latest")
        found: list[Delivery] = []
        poll = threading.Thread(
            target=lambda group=group, found=found: found.extend(group.poll("a", timeout=30.0))
        )
        poll.start()
        topic.append(b"news")
        poll.join(30)
        assert [one.value for one in found] == [b"news"]
