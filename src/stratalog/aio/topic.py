"""A topic, as tasks hold it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack

from stratalog.aio.group import AsyncGroup
from stratalog.aio.runner import LoopWaiter, Runner
from stratalog.errors import ClosedError, OptionError
from stratalog.model import Diff, Durability, Gap, Record, T
from stratalog.options import TopicOptions
from stratalog.reports import TopicStats
from stratalog.settings import TopicSettings

if TYPE_CHECKING:
    from stratalog.handles.consumer_arguments import Place
    from stratalog.handles.read import Time
    from stratalog.handles.topic import Buffer, Topic, Value
    from stratalog.log.commit_group import Group

_Item = TypeVar("_Item")

# A list of records longer than this is encoded in a thread, not in the loop.
_ENCODED_HERE_MAX = 256

# How often a task looks for news of another process.
_POLL_SECONDS = 0.02


class AsyncTopic(Generic[T]):
    """A handle on one topic: cheap to make, to be shared between the tasks of one event loop."""

    def __init__(self, runner: Runner, topic: Topic[T]) -> None:
        self._runner = runner
        self._topic = topic

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncTopic {self.name!r}>"

    @property
    def blocking(self) -> Topic[T]:
        """Return this topic for code in threads: all of its methods may wait."""
        return self._topic

    @property
    def name(self) -> str:
        """The name it was created with."""
        return self._topic.name

    @property
    def options(self) -> TopicOptions:
        """The options it was created with."""
        return self._topic.options

    @property
    def is_dropped(self) -> bool:
        """Whether the topic is gone; another of its name may be there."""
        return self._topic.is_dropped

    # --- append --------------------------------------------------------------------------

    async def append(
        self,
        value: T | Buffer,
        *,
        key: Value = None,
        headers: Mapping[str, bytes] | None = None,
        tag: str | None = None,
        node: str | None = None,
        timestamp: Time | None = None,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Append one record and return its offset, once its durability class is satisfied.

        Tasks that append at the same time share one sync. A task that is cancelled while it waits
        does not take its record back.
        """
        self._runner.check()
        rest = (key, headers, tag, node, timestamp, ttl)
        if self._topic.log.is_ephemeral:  # may have to reserve offsets first
            return await self._runner.run(
                partial(self._topic.append, value, *rest, durability=durability)
            )
        future, rank = self._topic.enter(value, rest, durability)
        await self._wait(future.group, rank)
        return future.offset

    async def append_many(
        self,
        records: Iterable[T | Buffer | Record[T]] | None = None,
        *,
        values: Iterable[T | Buffer | None] | None = None,
        keys: Iterable[Value] | None = None,
        headers: Iterable[Mapping[str, bytes] | None] | None = None,
        timestamps: Iterable[Time | None] | None = None,
        durability: Durability | str | None = None,
    ) -> tuple[int, int]:
        """Append records, or columns, as one atomic batch; see `Topic.append_many`."""
        self._runner.check()
        topic = self._topic
        columns = (values, keys, headers, timestamps)
        if records is None or any(column is not None for column in columns):
            return await self._runner.run(
                partial(
                    topic.append_many, records, values=values, keys=keys, headers=headers,
                    timestamps=timestamps, durability=durability,
                )
            )  # fmt: skip
        items: Any = records  # a mistake is told by the topic
        if not isinstance(records, bytes | bytearray | str):
            items = list(records)
        if topic.log.is_ephemeral or len(items) > _ENCODED_HERE_MAX:
            return await self._runner.run(partial(topic.append_many, items, durability=durability))
        group, first, last, rank = topic.enter_many(items, durability)
        await self._wait(group, rank)
        return first, last

    async def append_arrow(
        self, data: Any, *, durability: Durability | str | None = None
    ) -> tuple[int, int]:
        """Append Arrow data, column by column; returns the first and the last offset."""
        return await self._runner.run(
            partial(self._topic.append_arrow, data, durability=durability)
        )

    async def _wait(self, group: Group, rank: int) -> None:
        """As long as a class demands, or until what has gathered is written if it is too much."""
        if group.is_awaited(rank):
            await self._runner.committed(self._topic.log.shard, group)

    # --- read ----------------------------------------------------------------------------

    def read(
        self,
        start: int = 0,
        end: int | None = None,
        limit: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
        event_since: Time | None = None,
        event_until: Time | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[Record[T] | Gap]:
        """Records from `start` to `end` (not included), in order, and gaps where some are gone.

        Conditions as of `Topic.read`.
        """
        read = partial(
            self._topic.read, start, end, limit,
            since=since, until=until, key=key, tag=tag, node=node, reverse=reverse,
            event_since=event_since, event_until=event_until,
        )  # fmt: skip
        return self._items(read)

    def records(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
        event_since: Time | None = None,
        event_until: Time | None = None,
        reverse: bool = False,
        limit: int | None = None,
        gaps: Literal["raise", "skip"] = "raise",
    ) -> AsyncIterator[Record[T]]:
        """Records alone, for plain loops: see `Topic.records`."""
        read = partial(
            self._topic.records, start, end, limit=limit, gaps=gaps,
            since=since, until=until, key=key, tag=tag, node=node, reverse=reverse,
            event_since=event_since, event_until=event_until,
        )  # fmt: skip
        return self._items(read)

    async def _items(self, make: Callable[[], Iterator[_Item]]) -> AsyncIterator[_Item]:
        async for chunk in self._runner.chunks(make):
            for item in chunk:
                yield item

    async def read_values(
        self,
        start: int = 0,
        limit: int | None = None,
        end: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
        event_since: Time | None = None,
        event_until: Time | None = None,
        reverse: bool = False,
    ) -> list[T]:
        """Payloads alone: see `Topic.read_values`."""
        read = partial(
            self._topic.read_values, start, limit, end,
            since=since, until=until, key=key, tag=tag, node=node, reverse=reverse,
            event_since=event_since, event_until=event_until,
        )  # fmt: skip
        return await self._runner.run(read)

    async def offset_at(self, timestamp: Time) -> int:
        """The first offset whose record has this time or a later one; the next one if none has."""
        return await self._runner.run(partial(self._topic.offset_at, timestamp))

    async def diff(self, after: int = -1, limit: int = 500, node: str | None = None) -> Diff[T]:
        """Return what came after an offset, for a reader that follows the topic step by step."""
        return await self._runner.run(partial(self._topic.diff, after, limit, node))

    async def watch(
        self,
        start: int | None = None,
        timeout: float | None = None,
        *,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
    ) -> AsyncIterator[Record[T] | Gap]:
        """New records as they come; ends when none came for `timeout` seconds.

        `start=None` is from the first step of the iteration on. Waiting takes no thread. `key`,
        `tag` and `node` choose records that have exactly these.
        """
        if timeout is not None and not timeout >= 0:
            raise OptionError(f"timeout={timeout!r} must be 0 or more seconds, or None")
        begin = await self._runner.run(partial(self._topic.watch_start, start))
        log = self._topic.log
        while await self.arrived(begin, timeout):
            end = log.committed
            try:
                found = partial(self._topic.read, begin, end, key=key, tag=tag, node=node)
                async for item in self._items(found):
                    yield item
            except ClosedError:
                return  # as it would if it had been waiting
            begin = end

    async def arrived(self, offset: int, timeout: float | None) -> bool:
        """Wait until an offset can be read; False when the time is up or the store is closed."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        log = self._topic.log
        while log.committed <= offset:
            if self._runner.is_closed:
                return False
            log.check_dropped()
            left = None if deadline is None else deadline - loop.time()
            if left is not None and left <= 0:
                return False
            if self._topic.is_followed:
                await self._follow(left)
            else:
                await self._woken(offset, left)
        return not self._runner.is_closed

    async def _woken(self, offset: int, timeout: float | None) -> None:
        """Sleep until something is published, the time is up, or the store is closed."""
        log = self._topic.log
        waiter = LoopWaiter()
        log.add_waiter(waiter)
        try:
            # Checked after that: a later publish finds the waiter.
            if log.committed <= offset and not self._runner.is_closed:
                await waiter.wait(timeout)
        finally:
            log.remove_waiter(waiter)

    async def _follow(self, timeout: float | None) -> None:
        """Look for what another process has written, a little later."""
        await asyncio.sleep(_POLL_SECONDS if timeout is None else min(timeout, _POLL_SECONDS))
        if not self._runner.is_closed:
            await self._runner.run(self._topic.make_readable)

    async def group(
        self, name: str, mode: str | None = None, *, start: Place = "earliest"
    ) -> AsyncGroup[T]:
        """The consumer group of that name, made on first use: see `Topic.group`."""
        made = await self._runner.run(partial(self._topic.group, name, mode, start=start))
        return AsyncGroup(self._runner, made, self._topic.clock)

    async def alter(self, **options: Unpack[TopicSettings]) -> None:
        """Change options of the topic, durably: see `Topic.alter`."""
        await self._runner.run(partial(self._topic.alter, **options))

    # --- the rest ------------------------------------------------------------------------

    async def delete(
        self,
        *,
        before: int | float | datetime | None = None,
        key: Value = None,
        tag: str | None = None,
        tag_glob: str | None = None,
        offsets: Iterable[int] | None = None,
    ) -> int:
        """Delete the records that meet every condition given, for good; returns how many."""
        delete = partial(
            self._topic.delete, before=before, key=key, tag=tag, tag_glob=tag_glob, offsets=offsets
        )
        return await self._runner.run(delete)

    async def stats(self) -> TopicStats:
        """Numbers about the topic."""
        return await self._runner.run(self._topic.stats)
