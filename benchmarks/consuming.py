"""Queues at work: get and acknowledge, put with a priority and an id, and what waiting costs."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from statistics import median
from typing import Any

import stratalog
from benchmarks.model import RECORD_BYTES, Trial, records, rival
from stratalog.state.dedup import Dedup

_BATCH = 1000
_ROUNDS = 9


def _fill(queue: stratalog.Queue, count: int) -> None:
    values = records(_BATCH)
    for _ in range(count // _BATCH):
        queue.put_many(values)


@contextmanager
def _queue(directory: str, **options: Any) -> Iterator[tuple[stratalog.Store, stratalog.Queue]]:
    with stratalog.open(directory, durability="disk") as store:
        yield store, store.queue("jobs", **options)


@contextmanager
def get_one(directory: str, *, count: int) -> Iterator[Trial]:
    """`get_nowait` and `ack`, one message at a time."""
    with _queue(directory) as (_, queue):

        def work() -> int:
            for _ in range(count):
                message = queue.get_nowait()
                assert message is not None
                queue.ack(message)
            return count

        yield Trial(work, lambda: _fill(queue, count))


@contextmanager
def get_many(directory: str, *, batch: int, count: int) -> Iterator[Trial]:
    """`get_many` and one `ack` for all of them."""
    with _queue(directory) as (_, queue):

        def work() -> int:
            for _ in range(count // batch):
                queue.ack(*queue.get_many(batch))
            return count

        yield Trial(work, lambda: _fill(queue, count))


@contextmanager
def put_one(directory: str, *, count: int, with_id: bool) -> Iterator[Trial]:
    """`put` with a priority, and with a deduplication id; the ids are made before."""
    with _queue(directory) as (_, queue):
        values = records(count)
        numbers = iter(range(1 << 60))
        ids: list[str] = []

        def prepare() -> None:
            ids[:] = [f"job-{next(numbers)}" for _ in values]

        def work() -> int:
            if with_id:
                for value, id in zip(values, ids, strict=True):
                    queue.put(value, priority=5, dedup_id=id)
            else:
                for value in values:
                    queue.put(value)
            return count

        yield Trial(work, prepare)


@contextmanager
def rocksdict_queue(directory: str, *, count: int) -> Iterator[Trial]:
    """An ordered key-value store used as a queue: seek to the first key, read it, delete it."""
    rocksdict = rival("rocksdict")
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    with closing(rocksdict.Rdict(os.path.join(directory, "queue"), options)) as database:
        numbers = iter(range(1 << 60))
        taken = iter(range(1 << 60))

        def load() -> None:
            for value in records(count):
                database[next(numbers).to_bytes(8, "big")] = value

        def work() -> int:
            for _ in range(count):
                key = next(taken).to_bytes(8, "big")
                assert database.get(key) is not None
                del database[key]
            return count

        yield Trial(work, load)


@contextmanager
def litequeue_get(directory: str, *, count: int) -> Iterator[Trial]:
    """`pop` and `done`."""
    queue = rival("litequeue").LiteQueue(os.path.join(directory, "queue.sqlite"))

    def load() -> None:
        for value in records(count):
            queue.put(value)

    def work() -> int:
        for _ in range(count):
            queue.done(queue.pop().message_id)
        return count

    with closing(queue.conn):
        yield Trial(work, load)


@contextmanager
def persistqueue_get(directory: str, *, count: int) -> Iterator[Trial]:
    """`get` and `ack` of its acknowledging SQLite queue."""
    queue = rival("persistqueue").SQLiteAckQueue(directory, auto_commit=True)

    def load() -> None:
        for value in records(count):
            queue.put(value)

    def work() -> int:
        for _ in range(count):
            queue.ack(queue.get(block=False))
        return count

    with closing(queue):
        yield Trial(work, load)


# --- looked at once -------------------------------------------------------------------------


def curve(directory: str, *, waiting: list[int], count: int) -> dict[str, Any]:
    """Get and acknowledge with so many messages waiting, and how long it takes to open them."""
    found: dict[str, Any] = {}
    for number in waiting:
        path = os.path.join(directory, str(number))
        with _queue(path) as (store, queue):
            _fill(queue, number + (_ROUNDS + 1) * count)
            store.checkpoint()  # so that none goes on beside: the more waits, the longer it would
            times: dict[str, list[float]] = {"one": [], "many": []}
            for _ in range(_ROUNDS):
                times["one"].append(_time(lambda queue=queue: _one(queue, count // 2)))
                times["many"].append(_time(lambda queue=queue: _many(queue, count // 2)))
            name = f"{number // 1000} k waiting"
            found[f"{name}, get + ack us"] = median(times["one"]) / (count // 2) * 1e6
            found[f"{name}, get_many(100) + ack us"] = median(times["many"]) / (count // 2) * 1e6
        begin = time.perf_counter()
        with _queue(path) as (_, queue):
            assert queue.get_nowait() is not None
            found[f"{name}, open and get ms"] = (time.perf_counter() - begin) * 1e3
    return found


def _time(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _one(queue: stratalog.Queue, count: int) -> None:
    for _ in range(count):
        message = queue.get_nowait()
        assert message is not None
        queue.ack(message)


def _many(queue: stratalog.Queue, count: int) -> None:
    for _ in range(count // 100):
        queue.ack(*queue.get_many(100))


def memory(directory: str, *, count: int) -> dict[str, Any]:
    """Bytes of memory for each message that waits, by what it was put with."""
    found: dict[str, Any] = {}
    now = time.time_ns()
    later = now + 3600 * 10**9
    value = records(1)[0]
    kinds = {
        "fifo": [stratalog.Record(value=value)],
        "priority": [stratalog.Record(value=value, priority=n * 7 % 256) for n in range(256)],
        "delay": [stratalog.Record(value=value, not_before=later + n * 10**6) for n in range(256)],
    }
    for kind, batch in kinds.items():
        with _queue(os.path.join(directory, kind)) as (store, queue):
            for _ in range(count // 1024):
                queue.put_many(batch * (1024 // len(batch)))
            store.checkpoint()
            tracemalloc.start()
            assert len(queue) == count // 1024 * 1024
            used, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            # Roaring's own memory is not Python's: what it would take to write it down.
            sets = sum(len(bits.serialize()) for bits in queue._state.waiting.values())
            found[f"{kind}_bytes"] = (used + sets) / (count // 1024 * 1024)
    tracemalloc.start()
    dedup = Dedup(count)
    for number in range(count):
        dedup.add(b"%d" % number, number, later)
    found["dedup_bytes"] = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    found["record_bytes"] = RECORD_BYTES
    return found
