"""Ctrl-C in the very moment in which a disk error is handled: what failed stays failed.

The error could be forgotten before, and a record be published whose offset the next append got.
Where the interrupt comes inside of the fault layer, which is Python, the error never was one: then
the append is simply repeated.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from stratalog.errors import StratalogError
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.log.future import AppendFuture
from stratalog.model import Record
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock
from tests.crash.ctrl_c import CtrlC, moments
from tests.crash.model import kill, open_store

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

FAULTS = [
    pytest.param("fdatasync", errno.EIO, id="sync"),
    pytest.param("pwrite", errno.EIO, id="write"),
    pytest.param("pwrite", errno.ENOSPC, id="full"),
]


class Told:
    """The calls of a store, and those that it acknowledged."""

    def __init__(self) -> None:
        self.kept: dict[str, dict[int, bytes]] = {}

    def append(self, topic: Topic, value: bytes) -> None:
        """Append, if it still takes anything."""
        with contextlib.suppress(StratalogError):
            self.note(topic, topic.append(value), value)

    def note(self, topic: Topic, offset: int, value: bytes) -> None:
        """A record was acknowledged."""
        kept = self.kept.setdefault(topic.name, {})
        assert offset not in kept, f"offset {offset} was given twice"
        kept[offset] = value

    def future(self, topic: Topic, future: Any, value: bytes) -> None:
        """One was, or was not; in either case an error reports it."""
        assert isinstance(future, AppendFuture)
        if not future.group.done:
            assert future.group is topic.log.shard.group, "no thread will ever commit it"
            topic.log.shard.finish(future.group)
        if future.group.error is None:
            self.note(topic, future.offset, value)

    def check(self, store: Store) -> dict[str, list[bytes | None]]:
        """All that was acknowledged is there, without a hole; returns everything."""
        found = {}
        for name, kept in self.kept.items():
            records = [item for item in store.topic(name).read() if isinstance(item, Record)]
            assert [record.offset for record in records] == list(range(len(records)))
            assert {o: records[o].value for o in kept if o < len(records)} == kept
            found[name] = [record.value for record in records]
        return found

    def check_after(self, store: Store, disk: FakeDisk, **options: Any) -> None:
        """Check the store live, and after crashes."""
        self.check(store)
        kill(store)
        for seed in (0, 1):
            again = open_store(disk.crash(seed), ManualClock(), **options)
            assert again.damage is None
            self.check(again)
            kill(again)


WAYS: dict[str, Callable[[Topic], object]] = {
    "alone": lambda topic: topic.append(b"mine"),
    "with a key": lambda topic: topic.append(b"mine", key=b"k"),
    "batch": lambda topic: topic.append_many([b"mine"]),
}


@pytest.mark.parametrize(("operation", "error"), FAULTS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_append_that_fails_and_is_interrupted(
    way: Callable[[Topic], object], operation: str, error: int
) -> None:
    """It is there and has its offset, or it is not; the next one is acknowledged, or refused."""
    for at in moments(7):
        disk = FakeDisk()
        faults = FaultFs(disk)
        store = open_store(faults, ManualClock(), shards=1)
        topic = store.topic("t")
        told = Told()
        told.append(topic, b"first")
        faults.add(Fault(operation=operation, error=error))
        ctrl_c = CtrlC(at)
        ctrl_c.run(partial(way, topic))
        told.append(topic, b"next")
        told.check_after(store, disk, shards=1)
        if not ctrl_c.came:
            break


class Meanwhile(FaultFs):
    """Has something else happen in the moment in which an operation is about to fail."""

    meanwhile: Callable[[], None] | None = None
    fault: Fault

    def _due(self, operation: str, *paths: str) -> Any:
        if self.meanwhile is not None and operation == self.fault.operation:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
            self.add(self.fault)
        return super()._due(operation, *paths)


def _append_nowait(topic: Topic, futures: list[Any]) -> None:
    futures.append(topic.append_nowait(b"other"))


@pytest.mark.parametrize(("operation", "error"), FAULTS)
def test_whoever_came_meanwhile_is_told(operation: str, error: int) -> None:
    """It waits for a group that is open, or knows its outcome; it never waits in vain."""
    for at in moments(7):
        disk = FakeDisk()
        faults = Meanwhile(disk)
        faults.fault = Fault(operation=operation, error=error)
        store = open_store(faults, ManualClock(), shards=1)
        topic = store.topic("t")
        told = Told()
        told.append(topic, b"first")
        futures: list[Any] = []
        faults.meanwhile = partial(_append_nowait, topic, futures)
        ctrl_c = CtrlC(at)
        ctrl_c.run(partial(topic.append, b"mine"))
        for future in futures:
            told.future(topic, future, b"other")
        told.append(topic, b"next")
        told.check_after(store, disk, shards=1)
        if not ctrl_c.came:
            break


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize(("operation", "error"), FAULTS)
def test_a_batch_over_two_shards_that_fails_and_is_interrupted(
    operation: str, error: int, call: int
) -> None:
    """All of it is there or nothing, and no offset of either shard is left over."""
    for at in moments(61, finest=7):
        disk = FakeDisk()
        faults = FaultFs(disk)
        store = open_store(faults, ManualClock(), shards=2)
        topics = in_two_shards(store)
        told = Told()
        futures = []
        for topic in topics:
            told.append(topic, b"first")
            futures.append(topic.append_nowait(b"waits"))
        faults.add(Fault(operation=operation, error=error, call=call))
        ctrl_c = CtrlC(at)
        ctrl_c.run(partial(append_to_both, store, topics))
        for topic, future in zip(topics, futures, strict=True):
            told.future(topic, future, b"waits")
            told.append(topic, b"next")
        found = told.check(store)
        assert len({b"both" in values for values in found.values()}) == 1
        told.check_after(store, disk, shards=2)
        if not ctrl_c.came:
            break


def in_two_shards(store: Store) -> list[Topic]:
    """Two topics, each in a shard of its own."""
    by_shard: dict[int, Topic] = {}
    for number in range(20):
        topic = store.topic(f"t{number}")
        by_shard.setdefault(id(topic.log.shard), topic)
    assert len(by_shard) == 2
    return list(by_shard.values())


def append_to_both(store: Store, topics: list[Topic]) -> None:
    """One batch over both."""
    with store.batch() as batch:
        for topic in topics:
            batch.topic(topic.name).append(b"both")


def test_a_rotation_into_a_recycled_file_that_is_interrupted_leaves_no_torn_tail() -> None:
    """The old content of the file is its past, however often the rotation was begun."""
    options: dict[str, Any] = {"shards": 1, "log_file_bytes": 4096, "log_chunk_bytes": 4096}
    for at in moments(23):
        disk = FakeDisk()
        store = open_store(disk, ManualClock(), **options)
        topic = store.topic("t")
        files = topic.log.shard.files
        assert store._upkeep is not None
        while not files._spare:
            for _ in range(3):
                topic.append(b"o" * 1500)
            store._upkeep.snapshot()
        while len(files._spare) > 1:
            topic.append(b"o" * 1500)
        while files.position + 64 + 1008 <= 4096:
            topic.append(b"p" * 1000)
        ctrl_c = CtrlC(at)
        ctrl_c.run(partial(topic.append, b"1" * 1000))
        topic.append(b"2")
        count = topic.next_offset
        kill(store)
        again = open_store(disk.crash(0), ManualClock(), **options)
        assert (again.stats().torn_bytes, again.damage) == (0, None)
        assert again.topic("t").next_offset == count
        kill(again)
        if not ctrl_c.came:
            break


def test_frames_in_memory_are_held_once() -> None:
    """An ephemeral topic's frame that is published again after an interrupt takes no more room."""
    for at in moments(11):
        store = open_store(FakeDisk(), ManualClock(), shards=1)
        topic = store.create_topic("t", durability="ephemeral")
        topic.append(b"first")
        topic.read_values()
        ctrl_c = CtrlC(at)
        ctrl_c.run(lambda to=topic: (to.append(b"second"), to.read_values()))  # type: ignore[misc]
        values = topic.read_values()
        assert values in ([b"first"], [b"first", b"second"])
        assert len(topic.log.memory._frames) == len(topic.log.index) == len(values)
        kill(store)
        if not ctrl_c.came:
            break
