"""Rivals that are queues in Python; they do more per record than a log, and it shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from benchmarks.model import Trial, records, rival
from benchmarks.rivals import repeat

# Far above what a run writes: nothing is evicted, and nothing is looked at for eviction.
_CACHE_BYTES = 1 << 40


@contextmanager
def litequeue_one(directory: str, *, count: int) -> Iterator[Trial]:
    """`put`; it sets synchronous=NORMAL by itself, so no commit is synced."""
    queue = rival("litequeue").LiteQueue(os.path.join(directory, "queue.sqlite"))
    with closing(queue.conn):
        yield repeat(queue.put, count)


@contextmanager
def litequeue_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """`pop`, the only way to see more than the first: it has no scan."""
    queue = rival("litequeue").LiteQueue(os.path.join(directory, "queue.sqlite"))

    def load() -> None:
        for value in records(count):
            queue.put(value)

    def work() -> int:
        found = 0
        while queue.pop() is not None:
            found += 1
        return found

    with closing(queue.conn):
        yield Trial(work, load)


@contextmanager
def persistqueue_one(directory: str, *, count: int) -> Iterator[Trial]:
    """The file queue: it flushes every record, and syncs when a chunk of files is full.

    Chunks are as large as a round, since each costs a sync; temporary files are beside the queue,
    as they are renamed into it.
    """
    queue = rival("persistqueue").Queue(directory, chunksize=count, tempdir=directory)
    yield repeat(queue.put, count)


@contextmanager
def persistqueue_synced(directory: str, *, count: int) -> Iterator[Trial]:
    """The SQLite queue: write-ahead log at SQLite's default, synchronous=FULL."""
    with closing(rival("persistqueue").SQLiteQueue(directory)) as queue:
        yield repeat(queue.put, count)


@contextmanager
def persistqueue_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """The SQLite queue's `queue()`: everything in it, as a list of dictionaries."""
    with closing(rival("persistqueue").SQLiteQueue(directory)) as queue:
        for value in records(count):
            queue.put(value)
        yield Trial(lambda: len(queue.queue()))


def _diskcache(directory: str) -> Any:
    return rival("diskcache").Cache(
        directory, size_limit=_CACHE_BYTES, cull_limit=0, eviction_policy="none"
    )


@contextmanager
def diskcache_one(directory: str, *, count: int) -> Iterator[Trial]:
    """`Cache.push`, which its deque is made of; synchronous=NORMAL by default, so not synced."""
    with closing(_diskcache(directory)) as cache:
        yield repeat(cache.push, count)


@contextmanager
def diskcache_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """A deque from front to back, loaded in one transaction."""
    with closing(_diskcache(directory)) as cache:
        with cache.transact():
            for value in records(count):
                cache.push(value)
        queue = rival("diskcache").Deque.fromcache(cache)
        yield Trial(lambda: len(list(queue)))
