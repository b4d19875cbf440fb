"""A table, as tasks hold it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stratalog.aio.runner import Runner
from stratalog.aio.topic import AsyncTopic
from stratalog.arguments import check_timeout
from stratalog.errors import ClosedError
from stratalog.handles.table_change import (
    Buffer,
    Condition,
    Key,
    check_amount,
    key_of,
    ttl_of,
)
from stratalog.handles.table_change import (
    Change as Asked,
)
from stratalog.handles.table_watch import Start, changes, entries, watch_start
from stratalog.model import CaughtUp, Change, Durability, Entry, V

if TYPE_CHECKING:
    from stratalog.handles.table import At, Table

_Item = TypeVar("_Item")


class AsyncTable(Generic[V]):
    """A handle on one table, to be shared between the tasks of one event loop.

    Changes enter the log in the loop itself, and all tasks that change something at the same time
    wait for one sync. Reads run in threads.
    """

    def __init__(self, runner: Runner, table: Table[V]) -> None:
        self._runner = runner
        self._table = table
        self._topic = AsyncTopic(runner, table.topic)

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncTable {self.name!r}>"

    @property
    def blocking(self) -> Table[V]:
        """Return this table for code in threads: all of its methods may wait."""
        return self._table

    @property
    def name(self) -> str:
        """The name it was created with."""
        return self._table.name

    @property
    def is_dropped(self) -> bool:
        """Whether the table is gone; another of its name may be there."""
        return self._table.is_dropped

    # --- write -----------------------------------------------------------------------------

    async def put(
        self,
        key: Key,
        value: V | Buffer,
        *,
        ttl: float | timedelta | None = None,
        if_version: int | None = None,
        if_absent: bool = False,
        durability: Durability | str | None = None,
    ) -> int:
        """Put a value: see `Table.put`."""
        data, flags = key_of(key)
        change = Asked(data, self._table.encode_value(value), flags, ttl_of(ttl))
        condition = Condition(self.name, key, if_version, if_absent)
        version = await self._change(change, condition, durability)
        assert version is not None
        return version

    async def delete(
        self,
        key: Key,
        *,
        if_version: int | None = None,
        durability: Durability | str | None = None,
    ) -> int | None:
        """Delete a key: see `Table.delete`."""
        data, flags = key_of(key)
        condition = Condition(self.name, key, if_version, False)
        return await self._change(Asked(data, None, flags, 0), condition, durability)

    async def add(
        self,
        key: Key,
        amount: int = 1,
        *,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Add to a counter: see `Table.add`."""
        self._table.check_counts()
        data, flags = key_of(key)
        change = Asked(data, None, flags, ttl_of(ttl), check_amount(amount))
        await self._change(change, None, durability)
        return int(change.value or b"")

    async def put_many(
        self,
        entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        *,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> tuple[int, int]:
        """Put values as one atomic batch: see `Table.put_many`."""
        put = partial(self._table.put_many, entries, ttl=ttl, durability=durability)
        return await self._runner.run(put)

    async def _change(
        self, change: Asked, condition: Condition | None, durability: Any
    ) -> int | None:
        self._runner.check()
        table = self._table
        if table.projection.is_live:
            table.check_writable()
        else:
            await self._runner.run(table.check_writable)
        rank = table.rank(durability)
        projection = table.projection
        enter = partial(table.enter, change, condition, rank, is_left=True)
        if projection.is_prepared and not projection.is_tight and not projection.writing.locked():
            entered = enter()
        else:
            entered = await self._runner.run(enter)
        if entered is None:
            return None
        offset, group = entered
        size = len(change.key) + len(change.value or b"")
        if group.is_awaited(rank):
            await self._runner.committed(table.topic.log.shard, group)
        if table.has_much_waiting(size):
            await self._runner.run(table.relieve)
        return offset

    # --- read ------------------------------------------------------------------------------

    async def get(self, key: Key, default: Any = None, *, at: At | None = None) -> Any:
        """Get the value of a key, or the default: see `Table.get`."""
        return await self._runner.run(partial(self._table.get, key, default, at=at))

    async def entry(self, key: Key, *, at: At | None = None) -> Entry[V] | None:
        """Get the value of a key with its version and times: see `Table.entry`."""
        return await self._runner.run(partial(self._table.entry, key, at=at))

    async def history(self, key: Key) -> list[Entry[V]]:
        """List the versions of a key that are kept, the oldest first."""
        return await self._runner.run(partial(self._table.history, key))

    async def contains(self, key: Key) -> bool:
        """Whether a key is there."""
        return await self._runner.run(partial(self._table.__contains__, key))

    async def count(self) -> int:
        """Count the keys."""
        return await self._runner.run(self._table.__len__)

    def scan(self, prefix: Key = "", limit: int | None = None) -> AsyncIterator[tuple[Key, V]]:
        """Give keys that begin with a prefix, with their values, in order: see `Table.scan`."""
        return self._items(partial(self._table.scan, prefix, limit))

    async def watch(
        self, prefix: Key = "", start: Start = None, timeout: float | None = None
    ) -> AsyncIterator[Change[V] | CaughtUp]:
        """Give changes of keys with a prefix as they come: see `Table.watch`.

        `start=None` is from the first step of the iteration on. Waiting takes no thread.
        """
        data, _ = key_of(prefix)
        seconds = check_timeout(timeout)
        log, projection = self._table.topic.log, self._table.projection
        begin = await self._runner.run(partial(self._begin, start))
        if begin.has_snapshot:
            async for entry in self._changes(partial(entries, projection, data, begin.offset)):
                yield entry
            yield CaughtUp(begin.offset - 1)
        place = begin.offset
        while await self._topic.arrived(place, seconds):
            end = log.committed
            try:
                async for change in self._changes(partial(changes, log, data, place, end)):
                    yield change
            except ClosedError:
                return  # as it would if it had been waiting
            place = end

    def _begin(self, start: Start) -> Any:
        self._table.refresh()
        return watch_start(self._table.topic.log, self._table.projection, start)

    def _changes(
        self, make: Callable[[], Iterator[Change | CaughtUp]]
    ) -> AsyncIterator[Change[V] | CaughtUp]:
        return self._items(lambda: self._table.typed_changes(make()))

    async def _items(self, make: Callable[[], Iterator[_Item]]) -> AsyncIterator[_Item]:
        async for chunk in self._runner.chunks(make):
            for item in chunk:
                yield item
