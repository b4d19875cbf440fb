"""The memory budget: shares, the order of what happens under pressure, and who is asked."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog.errors import MemoryPressureError, PressureError, TooLargeError
from stratalog.handles.topic import Topic
from stratalog.log import append as log_append
from stratalog.log import ephemeral as memory
from stratalog.memory_budget import MemoryBudget
from stratalog.model import Gap, Record
from stratalog.segments.read import read_living

MIB = 1 << 20


class Held:
    """Holds some memory, and drops it in pieces."""

    def __init__(self, budget: MemoryBudget, pieces: int, piece: int) -> None:
        self._budget = budget
        self.pieces = pieces
        self.piece = piece
        budget.add("tail", self.held_bytes)
        budget.hold("tail", self)

    @property
    def held_bytes(self) -> int:
        """All pieces that are left."""
        return self.pieces * self.piece

    def shed(self) -> bool:
        """Drop one piece."""
        if not self.pieces:
            return False
        self.pieces -= 1
        self._budget.add("tail", -self.piece)
        return True


def test_the_shares_and_the_reserve_are_the_whole() -> None:
    """Nothing of the budget is left out or given twice."""
    budget = MemoryBudget(64 * MIB)
    assert sum(budget.limit(name) for name in budget.used()) + budget.reserve == 64 * MIB
    assert budget.reserve == 10 * MIB


def test_under_pressure_the_largest_holder_drops_something_first() -> None:
    """And only as much as is needed."""
    budget = MemoryBudget(64 * MIB)
    small, large = Held(budget, 2, MIB), Held(budget, 6, MIB)
    budget.ensure("tail", MIB)
    assert (small.pieces, large.pieces) == (2, 5)


def test_then_the_reserve_is_lent_and_then_the_call_fails() -> None:
    """With an error that is worth trying again, and succeeds once others let go."""
    budget = MemoryBudget(64 * MIB)
    budget.add("tail", 8 * MIB)
    budget.ensure("tail", 10 * MIB)
    budget.add("tail", 10 * MIB)
    with pytest.raises(MemoryPressureError, match=r"share 'tail' holds 18874368 of 8388608"):
        budget.ensure("tail", 1)
    budget.add("tail", -MIB)
    budget.ensure("tail", 1)
    assert issubclass(MemoryPressureError, PressureError)


def test_what_one_share_borrowed_another_cannot_borrow() -> None:
    """There is one reserve for all."""
    budget = MemoryBudget(64 * MIB)
    budget.add("io", budget.limit("io") + 9 * MIB)
    budget.add("tail", 8 * MIB)
    budget.ensure("tail", MIB)
    with pytest.raises(MemoryPressureError):
        budget.ensure("tail", MIB + 1)


def test_what_could_never_fit_is_refused_at_once() -> None:
    """No share is asked to drop anything for it."""
    budget = MemoryBudget(64 * MIB)
    held = Held(budget, 3, MIB)
    with pytest.raises(TooLargeError, match="raise memory_bytes=67108864"):
        budget.ensure("tail", 19 * MIB)
    assert held.pieces == 3


def test_ephemeral_topics_stay_within_the_budget(tmp_path: Path) -> None:
    """However many there are: the oldest records of the largest go, and leave a gap."""
    with stratalog.open(tmp_path / "data", memory_bytes=4 * MIB) as store:
        topics = [store.create_topic(f"t{n}", durability="ephemeral") for n in range(8)]
        for _ in range(20):
            for topic in topics:
                topic.append_many([bytes(1000)] * 20)
        assert store.stats().memory["tail"] <= MIB
        for topic in topics:
            first, *rest = topic.read()
            assert isinstance(first, Gap)
            assert first.reason == "ephemeral"
            assert all(isinstance(item, Record) for item in rest)
            assert topic.append(b"goes on") == 400


def test_a_dropped_topic_gives_its_memory_back(tmp_path: Path) -> None:
    """All of it, at once."""
    with stratalog.open(tmp_path / "data") as store:
        store.create_topic("ticks", durability="ephemeral").append_many([bytes(100)] * 100)
        store.sync()
        assert store.stats().memory["tail"] > 10_000
        store.drop_topic("ticks")
        assert store.stats().memory["tail"] == 0


def test_a_compaction_that_needs_too_much_memory_says_so(tmp_path: Path) -> None:
    """The topic stays as it is, and everything else goes on."""
    with stratalog.open(tmp_path / "data", memory_bytes=MIB, durability="disk") as store:
        topic = store.create_topic("keyed", compact=True, segment_records=400)
        topic.append_many([Record(value=b"v", key=b"%0200d" % n) for n in range(4000)])
        with pytest.raises(MemoryPressureError, match="share 'io'"):
            store.compact()
        assert len(list(topic.read())) == 4000
        assert store.stats().memory["io"] == 0


def _reserved(topic: Topic, offset: int) -> None:
    """The log's reservation of a topic's offsets covers this one, at a moment after its append."""
    with topic.log.shard.lock:
        assert offset < topic.log.reserved


def test_no_offset_is_given_that_the_log_does_not_cover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads found room for the last one, and after a crash it was given once more."""
    monkeypatch.setattr(memory, "_RESERVE", 3)
    with stratalog.open(tmp_path / "data", shards=1) as store:
        topic = store.create_topic("t", durability="ephemeral")
        make_room = memory.make_room
        ready = threading.Barrier(4)

        def together(*about: Any) -> None:
            make_room(*about)
            with contextlib.suppress(threading.BrokenBarrierError):
                ready.wait(0.05)

        monkeypatch.setattr(log_append, "make_room", together)

        def append(number: int) -> None:
            for _ in range(5):
                if number % 2:
                    _reserved(topic, topic.append(b"x"))
                else:
                    _reserved(topic, topic.append_many([b"x", b"y"])[1])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(append, range(4)))
        assert topic.next_offset == 30


def test_an_append_beside_a_close_keeps_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing says where offsets end: one that had looked before was given out again later."""
    store = stratalog.open(tmp_path / "data", shards=1)
    topic = store.create_topic("t", durability="ephemeral")
    for _ in range(5):
        topic.append(b"x")
    assert store._upkeep is not None
    make_room, finish = memory.make_room, store._upkeep.finish
    has_looked, go_on, is_in = threading.Event(), threading.Event(), threading.Event()
    offsets: list[int] = []

    def look(*about: Any) -> None:
        make_room(*about)
        if not has_looked.is_set():
            has_looked.set()
            go_on.wait(30)

    def append() -> None:
        offsets.append(topic.append(b"acknowledged"))
        is_in.set()

    def between() -> None:
        go_on.set()
        is_in.wait(30)
        finish()

    monkeypatch.setattr(log_append, "make_room", look)
    monkeypatch.setattr(store._upkeep, "finish", between)
    thread = threading.Thread(target=append)
    thread.start()
    assert has_looked.wait(30)
    store.close()
    thread.join()
    with stratalog.open(tmp_path / "data") as store:
        assert offsets == [5]
        assert store.topic("t").append(b"y") > 5


def test_a_reader_beside_records_that_are_dropped_sees_a_gap(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were dropped before the topic said so: a reader that came in between met damage."""
    options: dict[str, Any] = {"shards": 1, "tail_bytes": 1 << 16, "background": False}
    with open_store(**options) as store:
        topic = store.create_topic("t", durability="ephemeral")
        for _ in range(50):
            topic.append_many([bytes(1000)])
        held = topic.log.memory
        earliest: list[int] = []
        count = held._count

        def look(length: int) -> None:
            if length < 0:
                gap = next(iter(read_living(topic.log, 0, topic.log.committed, 0)))
                assert isinstance(gap, Gap)
                earliest.append(gap.last + 1)
            count(length)

        monkeypatch.setattr(held, "_count", look)
        for _ in range(50):
            topic.append_many([bytes(1000)])
            topic.log.flush()
        assert earliest
        assert earliest == sorted(earliest)
