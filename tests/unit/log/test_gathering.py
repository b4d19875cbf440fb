"""Single appends that gather in one batch: others get in between, and nothing gets lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import Record
from stratalog.handles.topic import Topic
from stratalog.log.topic import TopicLog

Do = Callable[[Topic], object]


class StuckClock:
    """A clock that a thread of ours gets stuck in."""

    def __init__(self) -> None:
        self.stuck: threading.Thread | None = None
        self.is_in = threading.Event()
        self.let_go = threading.Event()

    def time_ns(self) -> int:
        """The time, at last."""
        if threading.current_thread() is self.stuck:
            self.is_in.set()
            assert self.let_go.wait(30)
        return time.time_ns()

    def monotonic(self) -> float:
        """As the machine has it."""
        return time.monotonic()


def _log(topic: Topic) -> TopicLog:
    return topic._log


def _in_batch(topic: Topic) -> None:
    with topic._store.batch() as batch:
        batch.topic("t").append(b"other")


OTHERS: dict[str, Do] = {
    "append": lambda topic: topic.append(b"other"),
    "append with a key": lambda topic: topic.append(b"other", key=b"k"),
    "append, synced": lambda topic: topic.append(b"other", durability="fsync"),
    "append_nowait": lambda topic: topic.append_nowait(b"other").result(),
    "append_many": lambda topic: topic.append_many([b"other"]),
    "append_many of records": lambda topic: topic.append_many([Record(b"other", tag="t")]),
    "batch": _in_batch,
}


def while_stuck(clock: StuckClock, stuck: Callable[[], object], do: Callable[[], object]) -> None:
    """Do something while a thread is stuck in an append: it has to wait until that is let go."""
    clock.stuck = threading.Thread(target=stuck)
    clock.stuck.start()
    assert clock.is_in.wait(30)
    second = threading.Thread(target=do)
    second.start()
    second.join(0.05)
    assert second.is_alive()
    clock.let_go.set()
    second.join(30)
    clock.stuck.join(30)


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_an_append_waits_for_one_that_is_being_entered(open_store: OpenStore, other: Do) -> None:
    """And the record of that thread, which has no time yet, comes first."""
    clock = StuckClock()
    store = open_store(durability="disk", flush_interval=60.0, clock=clock)
    topic = store.topic("t")
    topic.append(b"first")
    offsets: list[int] = []
    while_stuck(clock, lambda: offsets.append(topic.append(b"stuck")), lambda: other(topic))
    assert offsets == [1]
    assert topic.append(b"last") == 3
    assert topic.read_values() == [b"first", b"stuck", b"other", b"last"]
    times = [item.timestamp for item in topic.read() if isinstance(item, Record)]
    assert times == sorted(times)


ENDS: dict[str, Do] = {
    "sync": lambda topic: topic._store.sync(),
    "drop": lambda topic: topic._store.drop_topic("t"),
    "close": lambda topic: topic._store.close(),
    "read": lambda topic: topic.read_values(),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_commit_waits_for_an_append_that_is_being_entered(open_store: OpenStore, end: Do) -> None:
    """The record was accepted, or its append says why not."""
    clock = StuckClock()
    store = open_store(durability="memory", flush_interval=60.0, clock=clock)
    topic = store.topic("t")
    topic.append(b"first")
    told: list[object] = []

    def stuck() -> None:
        try:
            told.append(topic.append(b"stuck"))
        except stratalog.StratalogError as error:
            told.append(error)

    while_stuck(clock, stuck, lambda: end(topic))
    assert told == [1]
    store.close()
    store = open_store()
    if "t" in store.topics():  # it was not the one to be dropped
        assert store.topic("t").read_values() == [b"first", b"stuck"]


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_threads_that_append_in_all_ways_at_once(open_store: OpenStore) -> None:
    """Offsets are dense, each is one record's, and times do not go back."""
    store = open_store(shards=1, durability="disk", flush_interval=0.0005)
    topic = store.topic("t")
    sent: list[dict[int, bytes]] = [{} for _ in range(6)]
    wrong: list[BaseException] = []
    stop = time.monotonic() + 1.0

    def run(number: int) -> None:
        mine = sent[number]
        try:
            while time.monotonic() < stop:
                count = len(mine)
                value = b"%d:%d" % (number, count)
                kind = count % 50 if number else 1  # the first thread does nothing else
                if kind == 0:
                    first, last = topic.append_many([value] * 3)
                    mine.update(dict.fromkeys(range(first, last + 1), value))
                elif kind == 20:
                    mine[topic.append_nowait(value).result()] = value
                elif kind == 30:
                    mine[topic.append(value, key=b"k")] = value
                elif kind == 40:
                    assert len(topic) > count
                    mine[topic.append(value)] = value
                else:
                    mine[topic.append(value)] = value
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(sent))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    everything: dict[int, bytes] = {}
    for part in sent:
        assert list(part) == sorted(part)
        assert not everything.keys() & part.keys()
        everything |= part
    assert sorted(everything) == list(range(topic.next_offset))
    store.close()
    records = [item for item in open_store().topic("t").read() if isinstance(item, Record)]
    assert {item.offset: item.value for item in records} == everything
    times = [item.timestamp for item in records]
    assert times == sorted(times)


def test_appends_of_other_classes_gather_in_the_same_batch(open_store: OpenStore) -> None:
    """The group is treated as the strictest of them demands, and is one frame."""
    store = open_store(shards=1, durability="memory", flush_interval=60.0, background=False)
    topic = store.topic("t")
    group = _log(topic).shard.group
    topic.append(b"a")
    assert (group.sync, group.is_lazy) == (False, True)
    topic.append(b"b", durability="disk")
    assert (group.sync, group.is_lazy) == (False, False)
    topic.append(b"c")
    assert not group.done
    topic.append(b"d", durability="fsync")
    assert group.done
    assert group.error is None
    assert topic.read_values() == [b"a", b"b", b"c", b"d"]
    assert len(_log(topic).index) == 1


def test_a_full_group_is_committed_by_the_append_that_fills_it(open_store: OpenStore) -> None:
    """By the bytes of its records, whatever they consist of: that bounds memory."""
    store = open_store(shards=1, durability="disk", flush_interval=60.0, background=False)
    topic = store.topic("t")
    log = _log(topic)
    for _ in range(15):
        topic.append(b"", headers={"h": bytes(1 << 16)})
    assert log.committed == 0
    topic.append(bytes(1 << 16))
    assert log.committed == log.next_offset == 16
    topic.append(b"c")
    assert log.committed == 16
    assert topic.read_values(15) == [bytes(1 << 16), b"c"]


COLUMNS: dict[str, dict[str, object]] = {
    "none": {},
    "key": {"key": b"k"},
    "tag": {"tag": "t"},
    "several": {"key": b"", "node": "n", "headers": {"h": b"v"}},
    "times": {"timestamp": 2e9, "ttl": 60.0},
}


@pytest.mark.parametrize("first", COLUMNS)
@pytest.mark.parametrize("second", COLUMNS)
def test_a_batch_has_every_column_that_one_of_its_records_has(
    open_store: OpenStore, first: str, second: str
) -> None:
    """And a record has what it was given, whatever its neighbours have."""
    store = open_store(shards=1, durability="disk", flush_interval=60.0, background=False)
    topic = store.topic("t")
    kinds = ["none", first, second, "none", second, first, "none"]
    for kind in kinds:
        topic.append(kind.encode(), **COLUMNS[kind])  # type: ignore[arg-type]
    records = [record for record in topic.read() if isinstance(record, Record)]
    assert len(_log(topic).index) == 1
    for kind, record in zip(kinds, records, strict=True):
        given = COLUMNS[kind]
        assert record.value == kind.encode()
        assert record.key == given.get("key")
        assert record.tag == given.get("tag")
        assert record.node == given.get("node")
        assert record.headers == given.get("headers", {})
        assert (record.expires_at > 0) == ("ttl" in given)
        if "ttl" in given:
            assert record.expires_at == record.timestamp + 60 * 10**9
