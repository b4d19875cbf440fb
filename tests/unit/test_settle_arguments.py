"""Arguments of ack, nack and touch: one or many, alike everywhere; and what they refuse.

Story: `queue.ack([message])` raised AttributeError, as did numbers and None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import stratalog.aio
from stratalog.errors import (
    LeaseLostError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    WrongTypeError,
)
from stratalog.handles.store import Store

FORMS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "one": lambda call, found: [call(one) for one in found],
    "a list": lambda call, found: call(found),
    "several": lambda call, found: call(*found),
    "a generator": lambda call, found: call(one for one in found),
    "lists": lambda call, found: call(found[:1], found[1:]),
}
WRONG: list[Any] = [None, 1.5, "text", b"bytes", {"a": 1}, object(), [None], [["nested"]], True]


@pytest.fixture(params=["fsync", "disk"])
def store(open_store: OpenStore, request: pytest.FixtureRequest) -> Store:
    """A store with three messages in a queue."""
    store = open_store(durability=request.param)
    store.queue("jobs", max_deliveries=0).put_many([b"a", b"b", b"c"])
    return store


@pytest.mark.parametrize("form", FORMS)
def test_a_queue_settles_one_or_many(store: Store, form: str) -> None:
    """Whatever way they are given in."""
    jobs = store.queue("jobs")
    FORMS[form](jobs.touch, jobs.get_many(3))
    assert jobs.stats().pending == 3
    jobs.seek(0)
    FORMS[form](jobs.nack, jobs.get_many(3))
    assert len(jobs) == 3
    FORMS[form](jobs.ack, jobs.get_many(3))
    assert len(jobs) == jobs.stats().pending == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_group_and_a_batch_settle_one_or_many(store: Store, form: str) -> None:
    """As queues do, by delivery and by offset."""
    group = store.topic("jobs").group("g")
    FORMS[form](group.nack, group.poll("a"))
    FORMS[form](group.touch, group.poll("a"))
    FORMS[form](group.ack, [one.offset for one in group.pending()])
    assert group.lag == 0
    jobs = store.queue("jobs")
    with store.batch() as batch:
        FORMS[form](batch.queue("jobs").ack, jobs.get_many(3))
    assert len(jobs) == jobs.stats().pending == 0
    group.seek(0)
    with store.batch() as batch:
        FORMS[form](batch.group("jobs", "g").ack, group.poll("a"))
    assert group.lag == 0


def test_a_delivery_settles_itself(store: Store) -> None:
    """As a message does, in both modes of groups."""
    group = store.topic("jobs").group("g")
    first, second, third = group.poll("a")
    first.ack()
    second.touch(lease=60.0)
    third.nack(delay=60.0)
    assert [one.offset for one in group.pending()] == [1, 2]
    stream = store.topic("jobs").group("s", mode="stream")
    stream.poll("a")[1].ack()
    assert stream.floor == 2


@pytest.mark.parametrize("wrong", WRONG, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("verb", ["ack", "nack", "touch"])
def test_what_is_no_message_is_a_typed_error(store: Store, verb: str, wrong: Any) -> None:
    """On queues, groups and batches; nothing of the call is done."""
    jobs, group = store.queue("jobs"), store.topic("jobs").group("g")
    message, delivery = jobs.get(timeout=0), group.poll("a")[0]
    with pytest.raises(WrongTypeError):
        getattr(jobs, verb)(message, wrong)
    with pytest.raises(WrongTypeError):
        getattr(jobs, verb)(wrong)
    with pytest.raises(WrongTypeError):
        getattr(group, verb)([delivery], wrong)
    if verb != "touch":
        with store.batch() as batch:
            for part in (batch.queue("jobs"), batch.group("jobs", "g")):
                with pytest.raises(WrongTypeError):
                    getattr(part, verb)(wrong)
    assert jobs.stats().pending == 1
    assert len(group.pending()) == 3


def test_a_queue_settles_what_is_pending_at_an_offset(store: Store) -> None:
    """Whichever consumer holds it; an offset that is not pending is passed over."""
    jobs = store.queue("jobs")
    first, second, third = jobs.get_many(3)
    jobs.ack(first.offset)
    jobs.touch([second.offset, 99], lease=600.0)
    jobs.nack(third.offset, delay=60.0)
    assert (jobs.stats().pending, jobs.stats().delayed) == (1, 1)
    jobs.ack(first.offset, 99)
    with pytest.raises(LeaseLostError):
        jobs.ack(third)
    with store.batch() as batch:
        batch.queue("jobs").ack(second.offset)
        batch.queue("jobs").nack(third.offset)
    assert jobs.get(timeout=5).delivery_count == 2
    assert jobs.stats().pending == 1


def test_tasks_settle_one_or_many(tmp_path: Path) -> None:
    """And are told what is no message."""

    async def work() -> None:
        async with stratalog.aio.open(tmp_path / "data") as store:
            jobs = await store.queue("jobs")
            await jobs.put_many([b"a", b"b", b"c", b"d"])
            found = await jobs.get_many(4)
            await jobs.touch(found)
            await jobs.ack(found[:2])
            await jobs.nack(*found[2:], delay=60.0)
            for wrong in WRONG:
                with pytest.raises(WrongTypeError):
                    await jobs.ack(wrong)
            other = await store.queue("other")
            await other.put_many([b"x", b"y", b"z"])
            held = await other.get_many(3)
            with pytest.raises(LeaseLostError):
                await jobs.ack(held[2])
            assert await other.size() == 0
            assert (await jobs.stats()).delayed == 2

    asyncio.run(work())


def test_a_stream_is_not_moved_beyond_its_end(store: Store) -> None:
    """Records that are appended later would be passed over."""
    stream = store.topic("jobs").group("s", mode="stream")
    with pytest.raises(OffsetOutOfRangeError, match="the topic ends at 3"):
        stream.ack([3])
    with store.batch() as batch:
        batch.group("jobs", "s").ack([3])
        with pytest.raises(OffsetOutOfRangeError):
            batch.commit()
    assert stream.floor == 0


def test_dead_letters_of_a_dropped_queue_are_not_those_of_the_next(store: Store) -> None:
    """A handle that was kept neither requeues nor purges letters of its successor."""
    old = store.queue("jobs")
    store.drop_queue("jobs")
    new = store.queue("jobs", max_deliveries=1)
    new.put(b"new")
    new.nack(new.get(timeout=0))
    for call in (old.dead.requeue, old.dead.purge, lambda: list(old.dead.read())):
        with pytest.raises(UnknownTopicError):
            call()
    assert [letter.value for letter in new.dead.read()] == [b"new"]
