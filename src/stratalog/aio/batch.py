"""Atomic batches of tasks."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, overload

from stratalog.aio.queue import AsyncMessage, AsyncQueue, unwrap
from stratalog.aio.runner import Runner
from stratalog.errors import UsageError
from stratalog.format.values import Encoding
from stratalog.handles.batch import Batch
from stratalog.handles.batch_parts import (
    Appended,
    BatchGroup,
    BatchQueue,
    BatchTopic,
    TypedBatchTopic,
)
from stratalog.handles.batch_series import BatchSeries
from stratalog.handles.batch_table import BatchTable, TypedBatchTable
from stratalog.handles.topic import Buffer
from stratalog.model import T, V


class AsyncBatchQueue(Generic[T]):
    """A queue in a batch, to put into and to acknowledge messages of."""

    def __init__(self, queue: BatchQueue[T]) -> None:
        self._queue = queue

    def put(
        self,
        value: T | Buffer,
        *,
        priority: int = 0,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        dedup_id: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Appended:
        """Put a message when the batch is committed; where it is, is known then."""
        return self._queue.put(
            value, priority=priority, ttl=ttl, delay=delay, dedup_id=dedup_id, headers=headers
        )

    def ack(self, *messages: AsyncMessage[Any] | Iterable[AsyncMessage[Any]]) -> None:
        """Done with these, when the batch is committed. If one is lost by then, all of it fails."""
        self._queue.ack(unwrap(messages))

    def nack(
        self,
        *messages: AsyncMessage[Any] | Iterable[AsyncMessage[Any]],
        reason: str = "",
        delay: float | timedelta | None = None,
    ) -> None:
        """Give these back when the batch is committed."""
        self._queue.nack(unwrap(messages), reason=reason, delay=delay)


class AsyncBatch:
    """Appends to topics, all of them or none: collected at once, committed at the block's end.

    A task that is cancelled while it waits for the commit does not take the batch back.
    """

    def __init__(self, runner: Runner, batch: Batch, queues: Mapping[str, AsyncQueue[Any]]) -> None:
        self._runner = runner
        self._batch = batch
        self._queues = queues

    @overload
    def topic(self, name: str, *, type: None = None, encoding: None = None) -> BatchTopic: ...

    @overload
    def topic(
        self, name: str, *, type: builtins.type[T], encoding: Encoding | None = None
    ) -> TypedBatchTopic[T]: ...

    def topic(
        self, name: str, *, type: Any = None, encoding: Encoding | None = None
    ) -> BatchTopic | TypedBatchTopic[Any]:
        """A topic to append to; if there is none it is made when the batch is committed.

        With `type` it has to be open with that type already.
        """
        if type is not None and not self._batch.has_type(name, type, encoding):
            raise UsageError(
                f"topic {name!r} is not open with type={type!r} yet, and opening it may take a "
                f"while: await store.topic({name!r}, type=...) before the batch"
            )
        return self._batch.topic(name, type=type, encoding=encoding)

    @overload
    def queue(self, name: str, *, type: None = None, encoding: None = None) -> AsyncBatchQueue: ...

    @overload
    def queue(
        self, name: str, *, type: builtins.type[T], encoding: Encoding | None = None
    ) -> AsyncBatchQueue[T]: ...

    def queue(
        self, name: str, *, type: Any = None, encoding: Encoding | None = None
    ) -> AsyncBatchQueue[Any]:
        """Get a queue to put into and to acknowledge messages of; it has to be open already."""
        if name not in self._queues:
            raise UsageError(
                f"queue {name!r} is not open yet, and opening it may take a while: "
                f"await store.queue({name!r}) before the batch"
            )
        return AsyncBatchQueue(self._batch.queue(name, type=type, encoding=encoding))

    def group(self, topic: str, name: str) -> BatchGroup:
        """A consumer group of a topic, to acknowledge for."""
        return self._batch.group(topic, name)

    def series(self, name: str) -> BatchSeries:
        """A series to write points to; it has to be there already."""
        if not self._batch.has_topic(name):
            raise UsageError(
                f"series {name!r} is not there yet, and making it may take a while: "
                f"await store.series({name!r}) before the batch"
            )
        return self._batch.series(name)

    @overload
    def table(self, name: str, *, type: None = None, encoding: None = None) -> BatchTable: ...

    @overload
    def table(
        self, name: str, *, type: builtins.type[V], encoding: Encoding | None = None
    ) -> TypedBatchTable[V]: ...

    def table(
        self, name: str, *, type: Any = None, encoding: Encoding | None = None
    ) -> BatchTable | TypedBatchTable[Any]:
        """A table to put into; it has to be there already, and with `type`, open with that type."""
        is_typed = type is not None
        if not self._batch.has_topic(name) or (
            is_typed and not self._batch.has_type(name, type, encoding)
        ):
            raise UsageError(
                f"Table {name!r} is not there yet, and making it may take a while. "
                f"Await store.table({name!r}) before the batch."
            )
        return self._batch.table(name, type=type, encoding=encoding)

    async def commit(self) -> None:
        """Commit now instead of at the end of the block; nothing more can be added."""
        self._runner.check()
        entered = self._batch.enter()
        if entered is None:  # over several shards, or with topics to be made
            await self._runner.run(self._batch.commit)
        else:
            try:
                if entered.has_to_wait:
                    await self._runner.committed(entered.shard, entered.group)
            except BaseException:
                await self._finish(self._batch.finish)
                raise
            await self._finish(self._batch.resolve)

    async def _finish(self, work: Callable[[], None]) -> None:
        if self._batch.may_wait_to_resolve:
            await self._runner.run(work)
        else:
            work()

    async def __aenter__(self) -> Self:
        self._batch.__enter__()
        return self

    async def __aexit__(
        self,
        kind: builtins.type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._batch.is_open:
            await self.commit()
        self._batch.__exit__(kind, error, traceback)
