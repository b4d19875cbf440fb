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

import builtins
import os
import threading
from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack, overload
from zoneinfo import ZoneInfo

import stratalog
from stratalog.aio.batch import AsyncBatch
from stratalog.aio.group import AsyncGroup
from stratalog.aio.queue import AsyncMessage, AsyncQueue
from stratalog.aio.route import AsyncRoute
from stratalog.aio.runner import Runner
from stratalog.aio.schedule import AsyncSchedule
from stratalog.aio.series import AsyncSeries
from stratalog.aio.table import AsyncTable
from stratalog.aio.topic import AsyncTopic
from stratalog.format.values import Encoding
from stratalog.handles.store import Store
from stratalog.model import Durability, T, V
from stratalog.reports import BackupReport, CompactionReport, StoreStats
from stratalog.settings import NewQueueSettings, NewTopicSettings, StoreSettings


class AsyncStore:
    """An open store, for the tasks of one event loop. Get one from `stratalog.aio.open`."""

    def __init__(self, runner: Runner, store: Store) -> None:
        self._runner = runner
        self._store = store
        self._topics: dict[str, AsyncTopic] = {}
        self._typed: dict[Any, AsyncTopic[Any]] = {}
        self._queues: dict[str, AsyncQueue[Any]] = {}
        self._tables: dict[str, AsyncTable[Any]] = {}

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"<stratalog.aio.AsyncStore {self._store.path!r} {state}>"

    @property
    def blocking(self) -> Store:
        """Return this store for code in threads: all of its methods may wait."""
        return self._store

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._runner.is_closed

    @overload
    async def topic(self, name: str, *, type: None = None, encoding: None = None) -> AsyncTopic: ...

    @overload
    async def topic(
        self, name: str, *, type: builtins.type[T], encoding: Encoding | None = None
    ) -> AsyncTopic[T]: ...

    async def topic(
        self, name: str, *, type: Any = None, encoding: Encoding | None = None
    ) -> AsyncTopic[Any]:
        """The topic of that name; a writer creates it on first use: see `Store.topic`."""
        self._runner.check()
        if type is not None or encoding is not None:
            make = partial(self._store.topic, name, type=type, encoding=encoding)
            typed: AsyncTopic[Any] = AsyncTopic(self._runner, await self._runner.run(make))
            self._typed[name, type, encoding] = typed
            return typed
        found = self._topics.get(name) if isinstance(name, str) else None
        if found is None or found.is_dropped:
            found = AsyncTopic(
                self._runner, await self._runner.run(partial(self._store.topic, name))
            )
            self._topics[name] = found
        return found

    @overload
    async def create_topic(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        type: None = None,
        encoding: None = None,
        **options: Unpack[NewTopicSettings],
    ) -> AsyncTopic: ...

    @overload
    async def create_topic(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        type: builtins.type[T],
        encoding: Encoding | None = None,
        **options: Unpack[NewTopicSettings],
    ) -> AsyncTopic[T]: ...

    async def create_topic(
        self,
        name: str,
        *,
        exist_ok: bool = False,
        type: Any = None,
        encoding: Encoding | None = None,
        **options: Unpack[NewTopicSettings],
    ) -> AsyncTopic[Any]:
        """Create a topic with options of its own: see `Store.create_topic`."""
        create = partial(
            self._store.create_topic, name, exist_ok=exist_ok, type=type, encoding=encoding,
            **options,
        )  # fmt: skip
        made = await self._runner.run(create)
        if type is not None:
            typed = self._typed[name, type, encoding] = AsyncTopic(self._runner, made)
            return typed
        found = self._topics[name] = AsyncTopic(self._runner, made)
        return found

    async def topics(self) -> list[str]:
        """Names of all topics, sorted."""
        return await self._runner.run(self._store.topics)

    @overload
    async def queue(
        self,
        name: str,
        *,
        type: None = None,
        encoding: None = None,
        durability: Durability | str | None = None,
        **options: Unpack[NewQueueSettings],
    ) -> AsyncQueue: ...

    @overload
    async def queue(
        self,
        name: str,
        *,
        type: builtins.type[T],
        encoding: Encoding | None = None,
        durability: Durability | str | None = None,
        **options: Unpack[NewQueueSettings],
    ) -> AsyncQueue[T]: ...

    async def queue(
        self,
        name: str,
        *,
        type: Any = None,
        encoding: Encoding | None = None,
        durability: Durability | str | None = None,
        **options: Unpack[NewQueueSettings],
    ) -> AsyncQueue[Any]:
        """The queue of that name; a writer makes it on first use: see `Store.queue`."""
        self._runner.check()
        found = self._queues.get(name) if isinstance(name, str) else None
        is_there = (
            found is not None
            and not found.blocking.topic.is_dropped
            and type is None
            and found.blocking.type is None
        )
        if found is None or not is_there or durability is not None or options:
            make = partial(
                self._store.queue, name, type=type, encoding=encoding, durability=durability,
                **options,
            )  # fmt: skip
            made = await self._runner.run(make)
            found = self._queues[name] = AsyncQueue(self._runner, made, self._store.clock)
        return found

    async def queues(self) -> list[str]:
        """Names of all queues, sorted."""
        return await self._runner.run(self._store.queues)

    @overload
    async def table(
        self,
        name: str,
        *,
        type: None = None,
        encoding: None = None,
        versions: int | None = None,
        durability: Durability | str | None = None,
        **options: Any,
    ) -> AsyncTable: ...

    @overload
    async def table(
        self,
        name: str,
        *,
        type: builtins.type[V],
        encoding: Encoding | None = None,
        versions: int | None = None,
        durability: Durability | str | None = None,
        **options: Any,
    ) -> AsyncTable[V]: ...

    async def table(
        self,
        name: str,
        *,
        type: Any = None,
        encoding: Encoding | None = None,
        versions: int | None = None,
        durability: Durability | str | None = None,
        **options: Any,
    ) -> AsyncTable[Any]:
        """The table of that name; a writer makes it on first use: see `Store.table`."""
        make = partial(
            self._store.table, name, type=type, encoding=encoding, versions=versions,
            durability=durability, **options,
        )  # fmt: skip
        made = await self._runner.run(make)
        found = self._tables.get(name)
        if found is None or found.blocking is not made:
            # One of each name, with a type or without: closing wakes those who watch its topic.
            found = self._tables[name] = AsyncTable(self._runner, made)
        return found

    async def tables(self) -> list[str]:
        """Names of all tables, sorted."""
        return await self._runner.run(self._store.tables)

    async def drop_table(self, name: str) -> None:
        """Remove a table with all its versions, for good."""
        await self._runner.run(partial(self._store.drop_table, name))

    async def rebuild(self, name: str) -> None:
        """Compute the state of a table or a series again: see `Store.rebuild`."""
        await self._runner.run(partial(self._store.rebuild, name))

    async def series(self, name: str, **options: Any) -> AsyncSeries:
        """The series of that name; a writer makes it on first use: see `Store.series`."""
        made = await self._runner.run(partial(self._store.series, name, **options))
        return AsyncSeries(self._runner, made)

    async def series_names(self) -> list[str]:
        """Names of all series, sorted."""
        return await self._runner.run(self._store.series_names)

    async def drop_series(self, name: str) -> None:
        """Remove a series with all its points, for good."""
        await self._runner.run(partial(self._store.drop_series, name))

    async def write_lines(
        self,
        text: str | bytes,
        precision: str = "ns",
        *,
        durability: Durability | str | None = None,
    ) -> int:
        """Write points given as line protocol, all of them or none: see `Store.write_lines`."""
        return await self._runner.run(
            partial(self._store.write_lines, text, precision, durability=durability)
        )

    async def route(
        self,
        source: str,
        destination: str,
        tag_glob: str | None = None,
        key_prefix: bytes | str | None = None,
        node: str | None = None,
        *,
        start: str | int = "earliest",
    ) -> AsyncRoute:
        """Forward records of a topic to another one, each exactly once: see `Store.route`."""
        make = partial(
            self._store.route, source, destination, tag_glob, key_prefix, node, start=start
        )
        return AsyncRoute(self._runner, await self._runner.run(make))

    async def routes(self) -> list[AsyncRoute]:
        """All routes, in the order they were made."""
        return [AsyncRoute(self._runner, one) for one in await self._runner.run(self._store.routes)]

    async def schedule(
        self,
        name: str,
        *,
        queue: str,
        value: bytes | bytearray | memoryview | None = b"",
        cron: str | None = None,
        every: float | timedelta | None = None,
        timezone: str | ZoneInfo | None = None,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        ttl: float | timedelta | None = None,
    ) -> AsyncSchedule:
        """Have a message put into a queue at set times: see `Store.schedule`."""
        make = partial(
            self._store.schedule, name, queue=queue, value=value, cron=cron, every=every,
            timezone=timezone, headers=headers, priority=priority, ttl=ttl,
        )  # fmt: skip
        return AsyncSchedule(self._runner, await self._runner.run(make))

    async def schedules(self) -> list[AsyncSchedule]:
        """All schedules, in the order they were made."""
        found = await self._runner.run(self._store.schedules)
        return [AsyncSchedule(self._runner, one) for one in found]

    async def run_schedules(self) -> int:
        """Put what is due now: see `Store.run_schedules`."""
        return await self._runner.run(self._store.run_schedules)

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
        """Checkpoint, make a snapshot, and give up the log that is no longer needed."""
        await self._runner.run(self._store.snapshot)

    async def compact(self, *, purge: bool = False) -> CompactionReport:
        """Evict, rewrite and move to the cold store what can be: see `Store.compact`."""
        return await self._runner.run(partial(self._store.compact, purge=purge))

    async def backup(self, path: str | os.PathLike[str]) -> BackupReport:
        """Make a consistent copy while appends go on, in a new or empty directory."""
        return await self._runner.run(partial(self._store.backup, path))

    async def stats(self) -> StoreStats:
        """Numbers about the store."""
        return await self._runner.run(self._store.stats)

    async def metrics(self) -> dict[str, dict[str, Any]]:
        """Counters, gauges and histograms: see `Store.metrics`."""
        return await self._runner.run(self._store.metrics)

    async def close(self) -> None:
        """Write and sync everything, then let the directory go; closing twice is fine.

        Appends and operations that have begun are finished first; those who watch stop.
        """
        if self.is_closed:
            return
        self._runner.is_closed = True
        # Those who watch, or wait for a message, look around and stop.
        topics = [*self._topics.values(), *self._typed.values()]
        logs = [topic.blocking.log for topic in topics]
        logs += [table.blocking.topic.log for table in self._tables.values()]
        for log in [*logs, *(queue.blocking.topic.log for queue in self._queues.values())]:
            log.wake()
        await self._runner.close(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: builtins.type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Opening:
    """A store that is being opened: `await` it, or use it in an `async with` block."""

    def __init__(self, path: str | os.PathLike[str] | None, options: dict[str, Any]) -> None:
        self._path = path
        self._options = options
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore:
        runner = Runner("the store" if self._path is None else os.fspath(self._path))
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
        kind: builtins.type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._store is not None
        await self._store.close()


class _Attempt:
    """An opening that may be cancelled: it goes on in its thread, and its store is not used.

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


def open(
    path: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    durability: Durability | str | None = None,
    shards: int | None = None,
    memory_bytes: int | None = None,
    cold: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    reopen: bool | None = None,
    **options: Unpack[StoreSettings],
) -> Opening:
    """Open the store in a directory, creating it if need be: see `stratalog.open`.

    `async with stratalog.aio.open(path) as store`, or `store = await stratalog.aio.open(path)`.
    """
    given = {
        "read_only": read_only, "durability": durability, "shards": shards,
        "memory_bytes": memory_bytes, "cold": cold, "config": config, "reopen": reopen,
        **options,
    }  # fmt: skip
    return Opening(path, given)


__all__ = [
    "AsyncBatch",
    "AsyncGroup",
    "AsyncMessage",
    "AsyncQueue",
    "AsyncRoute",
    "AsyncSchedule",
    "AsyncStore",
    "AsyncTopic",
    "Opening",
    "open",
]
