"""A queue as a DataFrame: what is left of it, and where each message stands."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import OpenStore

from stratalog.errors import OptionError, UnknownTopicError, WrongKindError
from stratalog.spark import queue


def test_every_message_that_is_left_is_there_once(spark: Any, open_store: OpenStore) -> None:
    """Waiting, delayed, pending and given back; from segments and from the log."""
    store = open_store(background=False)
    jobs = store.queue("jobs", lease=3600)
    for number in range(6):
        jobs.put(b"%d" % number)
    jobs.ack(*jobs.get_many(2))  # 0 and 1
    held = jobs.get(consumer="anna")  # 2
    jobs.nack(jobs.get(0), delay=3600)  # 3
    jobs.nack(jobs.get(0))  # 4, at once
    store.checkpoint()
    jobs.put(b"urgent, later", priority=7, delay=3600)  # 6
    jobs.put(b"urgent", priority=7, headers={"a": b"b"})  # 7
    frame = queue(spark, store.path, "jobs", columns=["value", "priority"])
    assert frame.columns == [
        "value", "priority", "state", "consumer", "delivery_count", "deadline"
    ]  # fmt: skip
    found = {bytes(row.value): row for row in frame.collect()}
    assert {value: (row.state, row.delivery_count) for value, row in found.items()} == {
        b"2": ("pending", 1), b"3": ("delayed", 1), b"4": ("waiting", 1), b"5": ("waiting", 0),
        b"urgent, later": ("delayed", 0), b"urgent": ("waiting", 0),
    }  # fmt: skip
    assert (found[b"2"].consumer, found[b"5"].consumer) == ("anna", None)
    deadline = found[b"2"].deadline.timestamp()
    assert abs(deadline - held.deadline / 1e9) < 1
    assert found[b"5"].deadline is None
    assert found[b"urgent"].priority == 7
    counts = {row.state: row["count"] for row in frame.groupBy("state").count().collect()}
    stats = jobs.stats()
    assert counts == {
        "waiting": stats.waiting, "delayed": stats.delayed, "pending": stats.pending
    }  # fmt: skip
    assert set(queue(spark, store.path, "jobs").columns) > {"offset", "headers", "key"}


def test_a_queue_of_many_messages_is_counted_exactly(spark: Any, open_store: OpenStore) -> None:
    """In many batches, with holes where messages were consumed."""
    store = open_store(background=False)
    jobs = store.queue("jobs", durability="disk")
    for _ in range(20):
        jobs.put_many([b"x" * 50] * 1000)
    messages = jobs.get_many(20_000)
    jobs.ack(*[message for message in messages if message.offset % 3])
    store.checkpoint()
    frame = queue(spark, store.path, "jobs", columns=["offset"])
    rows = frame.where("state = 'pending'").select("offset").collect()
    assert sorted(row.offset for row in rows) == list(range(0, 20_000, 3))


def test_an_empty_queue_and_what_is_none(spark: Any, open_store: OpenStore) -> None:
    """No rows; and errors that say what to do."""
    store = open_store(background=False)
    store.queue("jobs")
    store.topic("orders").append(b"x")
    assert queue(spark, store.path, "jobs").collect() == []
    with pytest.raises(WrongKindError, match=r"'orders' is a topic, not a queue: .*spark\.read"):
        queue(spark, store.path, "orders")
    with pytest.raises(UnknownTopicError):
        queue(spark, store.path, "none")
    with pytest.raises(OptionError, match="unknown column 'valu'"):
        queue(spark, store.path, "jobs", columns=["valu"])
