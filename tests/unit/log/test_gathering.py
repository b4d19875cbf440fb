"""Single appends whose end of the log a generator guards: others get in, and nothing gets lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import Record
from stratalog.log.gathering import commit_gathered
from stratalog.log.topic import TopicLog
from stratalog.store import Store
from stratalog.topic import Topic

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
def test_who_comes_while_a_thread_is_in_it_waits(open_store: OpenStore, other: Do) -> None:
    """And the record of that thread, which has no time yet, comes first."""
    clock = StuckClock()
    store = open_store(durability="disk", flush_interval=60.0, clock=clock)
    topic = store.topic("t")
    topic.append(b"first")
    assert _log(topic).gathering is not None
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
def test_what_ends_it_waits_too(open_store: OpenStore, end: Do) -> None:
    """The record was accepted, or its append says why not."""
    clock = StuckClock()
    store = open_store(durability="memory", flush_interval=60.0, clock=clock)
    topic = store.topic("t")
    topic.append(b"first")
    assert _log(topic).gathering is not None
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


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("may_gather", [True, False])
def test_threads_that_append_in_all_ways_at_once(open_store: OpenStore, may_gather: bool) -> None:
    """Offsets are dense, each is one record's, and times do not go back."""
    store = open_store(shards=1, durability="disk", flush_interval=0.0005)
    topic = store.topic("t")
    _log(topic).may_gather = may_gather  # False: as where the interpreter has no lock
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


def test_a_topic_that_is_synced_has_none(open_store: OpenStore) -> None:
    """Each of its appends waits for the disk: a generator would be made and ended every time."""
    store: Store = open_store(durability="fsync")
    topic = store.topic("t")
    assert [topic.append(b"a"), topic.append(b"b")] == [0, 1]
    assert _log(topic).gathering is None
    relaxed = store.create_topic("relaxed", durability="disk")
    relaxed.append(b"a")
    relaxed.append(b"b")
    assert relaxed.read_values() == [b"a", b"b"]


def test_where_there_is_none_an_append_has_its_class_all_the_same(open_store: OpenStore) -> None:
    """Without the interpreter's lock: it gathers under the shard's, and nobody waits for a sync."""
    store = open_store(shards=1, durability="disk", flush_interval=60.0, background=False)
    topic = store.topic("t")
    _log(topic).may_gather = False
    assert [topic.append(b"a"), topic.append(b"b")] == [0, 1]
    assert _log(topic).gathering is None
    assert _log(topic).committed == 0
    assert topic.read_values() == [b"a", b"b"]


def test_a_full_batch_is_committed_by_its_own_append(open_store: OpenStore) -> None:
    """Which tells what becomes of it, and nothing of a later one."""
    store = open_store(shards=1, durability="disk", flush_interval=60.0, background=False)
    topic = store.topic("t")
    log = _log(topic)
    topic.append_many([b"x"] * 4094)
    topic.append(b"a")
    assert log.committed == 0
    topic.append(b"b")
    assert log.committed == 4096
    topic.append(b"c")
    commit_gathered(log, 4095)  # as a thread would that was held up behind its append
    assert log.committed == 4096
    assert topic.read_values(4094) == [b"a", b"b", b"c"]
