"""Many messages at once: each batch of the log is read once, what went meanwhile is left out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import OpenStore

from stratalog import Record
from stratalog.format.batch import Batch
from stratalog.format.frame import FrameHeader


def test_a_batch_is_read_once(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store() as store:
        queue = store.queue("jobs", durability="disk")
        for first in (0, 300):
            queue.put_many([b"%d" % n for n in range(first, first + 300)])
        parsed: list[int] = []
        parse = Batch.parse

        def noted(header: FrameHeader, *rest: Any) -> Batch:
            parsed.append(header.base_offset)
            return parse(header, *rest)

        monkeypatch.setattr(Batch, "parse", noted)
        monkeypatch.setattr(Batch, "merge", lambda *_: None)
        queue.get_many(1)  # counts the records in, which reads all of them
        before = len(parsed)
        found = [message.value for _ in range(12) for message in queue.get_many(50)]
    assert found == [b"%d" % n for n in range(1, 600)]
    assert parsed[before:].count(300) <= 1
    assert parsed[before:].count(0) == 0


def test_what_is_deleted_meanwhile_is_not_delivered(open_store: OpenStore) -> None:
    with open_store() as store:
        queue = store.queue("jobs")
        queue.put_many([Record(b"%d" % n, tag="odd" if n % 2 else "even") for n in range(300)])
        first = [message.value for message in queue.get_many(32)]
        queue.topic.delete(tag="odd")
        rest = [message.value for message in queue.get_many(300)]
    assert first == [b"%d" % n for n in range(32)]
    assert rest == [b"%d" % n for n in range(32, 300, 2)]


def test_what_was_read_is_given_up_when_memory_is_short(open_store: OpenStore) -> None:
    with open_store() as store:
        queue = store.queue("jobs")
        queue.put_many([bytes(100)] * 300)
        queue.ack(*queue.get_many(32))
        engine = queue.engine
        engine.account()
        assert engine.held_bytes > 300 * 100
        assert engine.shed()
        assert engine.held_bytes < 300 * 100
        assert not engine.shed()
        assert len(queue.get_many(300)) == 268


def test_a_message_may_be_acknowledged_twice_at_once(open_store: OpenStore) -> None:
    with open_store() as store:
        queue = store.queue("jobs")
        queue.put_many([b"a", b"b"])
        a, b = queue.get_many(2)
        queue.ack(a, a, b)
        stats = queue.stats()
    assert (stats.pending, stats.consumed) == (0, 2)
    assert a.is_settled
    assert b.is_settled


@pytest.mark.parametrize("limit", [1, 2, 40])
def test_messages_know_that_they_were_acknowledged_together(
    open_store: OpenStore, limit: int
) -> None:
    """In one call, of all that were delivered together; the messages after them are not."""
    with open_store() as store:
        queue = store.queue("jobs")
        queue.put_many([b"x"] * 200)
        queue.get()  # the read ahead begins small: what follows is delivered from it
        first, second = queue.get_many(limit), queue.get_many(limit)
        queue.ack(*first)
        assert all(message.is_settled for message in first)
        assert not any(message.is_settled for message in second)
        queue.ack(*first)  # once more changes nothing
        queue.nack(*first)
        assert queue.stats().consumed == limit


def test_a_message_given_twice_does_not_stand_for_another(open_store: OpenStore) -> None:
    with open_store() as store:
        queue = store.queue("jobs")
        queue.put_many([b"a", b"b", b"c"])
        a, b, c = queue.get_many(3)
        queue.ack(a, b, b)  # as many as were delivered
        assert [one.is_settled for one in (a, b, c)] == [True, True, False]
        assert queue.stats().pending == 1
        queue.ack(c)
        assert c.is_settled
        assert queue.stats().pending == 0


def test_some_of_what_was_delivered_together(open_store: OpenStore) -> None:
    with open_store() as store:
        queue = store.queue("jobs")
        queue.put_many([b"a", b"b", b"c"])
        a, b, c = queue.get_many(3)
        queue.touch(b, lease=60)
        queue.ack(a, b)
        assert [one.is_settled for one in (a, b, c)] == [True, True, False]
        queue.nack(c)
        (again,) = queue.get_many(3)
        assert (again.value, again.delivery_count, again.is_settled) == (b"c", 2, False)
        queue.ack(again)
        assert again.is_settled
        queue.ack()  # nothing at all
        assert queue.stats().consumed == 3
