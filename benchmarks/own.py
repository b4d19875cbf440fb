"""Stratalog's own contestants.

Appends are timed up to the moment when all of them can be read, so nothing is left in a buffer.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count as counter
from typing import Any

import pyarrow as pa

import stratalog
import stratalog.aio
from benchmarks.model import Trial, records

_TOPIC = "log"

# For stores whose log is what is measured: nothing of it goes into segments meanwhile, neither
# while it is measured nor in the background of the next workload. What that costs those who
# append is the probe `checkpoint`.
LOG_ALONE: dict[str, Any] = {"checkpoint_bytes": 1 << 40, "checkpoint_interval": 1e6}


@contextmanager
def append_one(
    directory: str, *, durability: str, count: int, key: bytes | None = None
) -> Iterator[Trial]:
    """`append`, one record at a time, one thread."""
    values = records(count)
    with stratalog.open(directory, durability=durability, **LOG_ALONE) as store:
        topic = store.topic(_TOPIC)
        append = topic.append if key is None else partial(topic.append, key=key)

        def work() -> int:
            for value in values:
                append(value)
            len(topic)  # waits until everything is written
            return count

        yield Trial(work)


@contextmanager
def append_threads(directory: str, *, threads: int, count: int) -> Iterator[Trial]:
    """`append`, class fsync, from several threads: they share syncs."""
    values = records(count // threads)
    with (
        stratalog.open(directory, durability="fsync") as store,
        ThreadPoolExecutor(threads) as executor,
    ):
        append = store.topic(_TOPIC).append

        def one_thread(_: int) -> int:
            for value in values:
                append(value)
            return len(values)

        yield Trial(lambda: sum(executor.map(one_thread, range(threads))))


@contextmanager
def append_tasks(directory: str, *, tasks: int, count: int) -> Iterator[Trial]:
    """`append`, class fsync, from several tasks of one event loop: they share syncs."""
    values = records(count // tasks)
    with asyncio.Runner() as runner:
        store = runner.run(_open(directory))
        topic = runner.run(store.topic(_TOPIC))

        async def one_task() -> int:
            for value in values:
                await topic.append(value)
            return len(values)

        async def all_tasks() -> int:
            return sum(await asyncio.gather(*(one_task() for _ in range(tasks))))

        yield Trial(lambda: runner.run(all_tasks()))
        runner.run(store.close())


async def _open(directory: str) -> stratalog.aio.AsyncStore:
    return await stratalog.aio.open(directory, durability="fsync")


@contextmanager
def append_to_topics(
    directory: str, *, topics: int, shards: int, is_atomic: bool, count: int
) -> Iterator[Trial]:
    """One record for each of several topics, synced: as one batch, or one append after another."""
    values = records(count)
    with stratalog.open(directory, durability="fsync", shards=shards) as store:
        names = [f"{_TOPIC}-{number}" for number in range(topics)]
        handles = [store.topic(name) for name in names]

        def work() -> int:
            for value in values:
                if is_atomic:
                    with store.batch() as batch:
                        for name in names:
                            batch.topic(name).append(value)
                else:
                    for handle in handles:
                        handle.append(value)
            return count

        yield Trial(work)


@contextmanager
def append_nowait(directory: str, *, in_flight: int, count: int) -> Iterator[Trial]:
    """`append_nowait`, class fsync, one thread that never has more than so many unanswered."""
    values = records(count)
    with stratalog.open(directory, durability="fsync") as store:
        append = store.topic(_TOPIC).append_nowait

        def work() -> int:
            waiting: deque[Future[int]] = deque()
            for value in values:
                if len(waiting) == in_flight:
                    waiting.popleft().result()
                waiting.append(append(value))
            for future in waiting:
                future.result()
            return count

        yield Trial(work)


@contextmanager
def append_many(directory: str, *, durability: str, batch: int, count: int) -> Iterator[Trial]:
    """`append_many`, batch after batch."""
    values = records(batch)
    with stratalog.open(directory, durability=durability, **LOG_ALONE) as store:
        topic = store.topic(_TOPIC)

        def work() -> int:
            for _ in range(count // batch):
                topic.append_many(values)
            len(topic)
            return count

        yield Trial(work)


@contextmanager
def append_arrow(directory: str, *, durability: str, batch: int, count: int) -> Iterator[Trial]:
    """`append_arrow`, batch after batch."""
    data = pa.record_batch({"value": pa.array(records(batch), pa.binary())})
    with stratalog.open(directory, durability=durability, **LOG_ALONE) as store:
        topic = store.topic(_TOPIC)

        def work() -> int:
            for _ in range(count // batch):
                topic.append_arrow(data)
            len(topic)
            return count

        yield Trial(work)


def scan_arrow(topic: stratalog.Topic) -> int:
    """Every record as Arrow data, all columns."""
    return sum(batch.num_rows for batch in topic.read_arrow())


def scan_values(topic: stratalog.Topic) -> int:
    """Every payload as `bytes`."""
    return len(topic.read_values())


def scan_records(topic: stratalog.Topic) -> int:
    """Every record as a `Record`."""
    count = 0
    for _ in topic.read():
        count += 1
    return count


@contextmanager
def read(
    directory: str,
    *,
    scan: Callable[[stratalog.Topic], int],
    batch: int,
    count: int,
    key: bytes | None = None,
) -> Iterator[Trial]:
    """A scan of the log, written in batches; a batch of 1 is single appends, each synced."""
    durability = "fsync" if batch == 1 else "disk"
    with stratalog.open(directory, durability=durability, **LOG_ALONE) as store:
        topic = store.topic(_TOPIC)
        for _ in range(count // batch):
            if batch == 1:
                topic.append(records(1)[0], key=key)
            else:
                topic.append_many(records(batch))
        yield Trial(lambda: scan(topic))


@contextmanager
def reopen(directory: str, *, count: int, batch: int, is_settled: bool = True) -> Iterator[Trial]:
    """Opening what a killed process left; a new process is killed for every round."""
    opened: list[stratalog.Store] = []
    generations = counter()
    path = ""

    def prepare() -> None:
        nonlocal path
        for store in opened:
            store.close()
            shutil.rmtree(path)
        opened.clear()
        path = os.path.join(directory, str(next(generations)))
        killed = child("write-and-die", path, str(count), str(batch))
        assert killed.returncode == -signal.SIGKILL, killed.stderr

    def work() -> int:
        store = stratalog.open(path, **LOG_ALONE)
        opened.append(store)
        found = len(store.topic(_TOPIC))
        assert found == count, f"{found} of {count} records are left"
        return found

    try:
        yield Trial(work, prepare, is_settled)
    finally:
        for store in opened:
            store.close()


def child(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, see `children`."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.children", *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
