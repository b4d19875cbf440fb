"""Stratalog for asyncio: the same engine, with waiting that an event loop can do.

    async with stratalog.aio.open("data") as store:
        orders = await store.topic("orders")
        offset = await orders.append(b"...")
        async for record in orders.watch(): ...

Nothing here is a second implementation. What may wait for a disk runs in a few threads; appends
enter the log in the loop itself, and all tasks that append at the same time wait for one sync.
Errors are those of the package.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, Self

import stratalog
from stratalog.aio.batch import AsyncBatch
from stratalog.aio.group import AsyncGroup
from stratalog.aio.queue import AsyncMessage, AsyncQueue
from stratalog.aio.runner import Runner
from stratalog.aio.topic import AsyncTopic
from stratalog.model import Durability
from stratalog.reports import BackupReport, CompactionReport, StoreStats
from stratalog.store import Store


class AsyncStore:
    """An open store, for the tasks of one event loop. Get one from `stratalog.aio.open`."""

    def __init__(self, runner: Runner, store: Store) -> None:
        self._runner = runner
        self._store = store
        self._topics: dict[str, AsyncTopic] = {}
        self._queues: dict[str, AsyncQueue] = {}

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<stratalog.aio.AsyncStore {self._store.path!r} {state}>"

    @property
    def blocking(self) -> Store:
        """The same store for code in threads: all of its methods may wait."""
        return self._store

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._runner.is_closed

    async def topic(self, name: str) -> AsyncTopic:
        """The topic of that name; a writer creates it on first use, with default options."""
        self._runner.check()
        found = self._topics.get(name) if isinstance(name, str) else None
        if found is None or found.is_dropped:
            found = AsyncTopic(
                self._runner, await self._runner.run(partial(self._store.topic, name))
            )
            self._topics[name] = found
        return found

    async def create_topic(self, name: str, **options: Any) -> AsyncTopic:
        """Create a topic with options of its own: see `TopicOptions`."""
        made = await self._runner.run(partial(self._store.create_topic, name, **options))
        found = self._topics[name] = AsyncTopic(self._runner, made)
        return found

    async def topics(self) -> list[str]:
        """Names of all topics, sorted."""
        return await self._runner.run(self._store.topics)

    async def queue(
        self, name: str, *, durability: Durability | str | None = None, **options: Any
    ) -> AsyncQueue:
        """The queue of that name; a writer makes it on first use. Options: see `QueueOptions`."""
        self._runner.check()
        found = self._queues.get(name) if isinstance(name, str) else None
        is_there = found is not None and not found.blocking.topic.is_dropped
        if found is None or not is_there or durability is not None or options:
            made = await self._runner.run(
                partial(self._store.queue, name, durability=durability, **options)
            )
            found = self._queues[name] = AsyncQueue(self._runner, made, self._store.clock)
        return found

    async def queues(self) -> list[str]:
        """Names of all queues, sorted."""
        return await self._runner.run(self._store.queues)

    async def drop_topic(self, name: str) -> None:
        """Remove a topic and its records for good."""
        await self._runner.run(partial(self._store.drop_topic, name))

    def batch(self, *, durability: Durability | str | None = None) -> AsyncBatch:
        """Appends to several topics that are all kept or none: use it in an `async with` block."""
        self._runner.check()
        batch = self._store.batch(durability=durability)
        return AsyncBatch(self._runner, batch, self._queues)

    async def sync(self) -> None:
        """Make every append so far durable, whatever its class."""
        await self._runner.run(self._store.sync)

    async def checkpoint(self) -> None:
        """Put the records of the log into segments now; this happens by itself all the time."""
        await self._runner.run(self._store.checkpoint)

    async def snapshot(self) -> None:
        """Checkpoint, make a snapshot, and give up the log that nobody needs any more."""
        await self._runner.run(self._store.snapshot)

    async def compact(self) -> CompactionReport:
        """Evict, rewrite and move to the cold store what can be, now instead of by and by."""
        return await self._runner.run(self._store.compact)

    async def backup(self, path: str | os.PathLike[str]) -> BackupReport:
        """Make a consistent copy while appends go on, in a new or empty directory."""
        return await self._runner.run(partial(self._store.backup, path))

    async def stats(self) -> StoreStats:
        """Numbers about the store."""
        return await self._runner.run(self._store.stats)

    async def close(self) -> None:
        """Write and sync everything, then let the directory go; closing twice is fine.

        Appends and operations that have begun are finished first; those who watch stop.
        """
        if self.is_closed:
            return
        self._runner.is_closed = True
        # Those who watch, or wait for a message, look around and stop.
        logs = [topic.blocking.log for topic in self._topics.values()]
        for log in [*logs, *(queue.blocking.topic.log for queue in self._queues.values())]:
            log.wake()
        await self._runner.close(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Opening:
    """A store that is being opened: `await` it, or use it in an `async with` block."""

    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any]) -> None:
        self._path = path
        self._options = options
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        runner = Runner(os.fspath(self._path))
        attempt = _Attempt(partial(stratalog.open, self._path, **self._options))
        try:
            return AsyncStore(runner, await runner.run(attempt.open))
        except BaseException:
            attempt.give_up()
            runner.shut_down()
            raise

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._store is not None
        await self._store.close()


class _Attempt:
    """An opening that may be cancelled: it goes on in its thread, and nobody will use the store.

    The event loop may be gone before the thread is done, so threads alone see to the closing.
    """

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._is_given_up = False

    def open(self) -> Store:
        """Open the store; called in a thread."""
        store = self._make()
        with self._lock:
            self._store = store
            is_given_up = self._is_given_up
        if is_given_up:
            store.close()
        return store

    def give_up(self) -> None:
        """Have it closed, now or when it is open."""
        with self._lock:
            self._is_given_up = True
            store = self._store
        if store is not None:
            threading.Thread(target=store.close, name="stratalog-aio-close").start()


def open(path: str | os.PathLike[str], **options: Any) -> Opening:
    """Open the store in a directory, creating it if need be: see `stratalog.open`.

    `async with stratalog.aio.open(path) as store`, or `store = await stratalog.aio.open(path)`.
    """
    return Opening(path, options)


__all__ = [
    "AsyncBatch",
    "AsyncGroup",
    "AsyncMessage",
    "AsyncQueue",
    "AsyncStore",
    "AsyncTopic",
    "Opening",
    "open",
]
