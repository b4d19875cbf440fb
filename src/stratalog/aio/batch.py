"""Atomic batches of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from stratalog.aio.queue import AsyncMessage, AsyncQueue
from stratalog.aio.runner import Runner
from stratalog.batch import Batch
from stratalog.batched import Appended, BatchGroup, BatchQueue, BatchTopic
from stratalog.errors import UsageError
from stratalog.topic import Value


class AsyncBatchQueue:
    """A queue as a batch puts into it, and settles its messages."""

    def __init__(self, queue: BatchQueue) -> None:
        self._queue = queue

    def put(
        self,
        value: Value,
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

    def ack(self, *messages: AsyncMessage) -> None:
        """Done with these, when the batch is committed. If one is lost by then, all of it fails."""
        self._queue.ack(*(one.message for one in messages))

    def nack(
        self, *messages: AsyncMessage, reason: str = "", delay: float | timedelta | None = None
    ) -> None:
        """Give these back when the batch is committed."""
        self._queue.nack(*(one.message for one in messages), reason=reason, delay=delay)


class AsyncBatch:
    """Appends to topics, all of them or none: collected at once, committed at the block's end.

    A task that is cancelled while it waits for the commit does not take the batch back.
    """

    def __init__(self, runner: Runner, batch: Batch, queues: Mapping[str, AsyncQueue]) -> None:
        self._runner = runner
        self._batch = batch
        self._queues = queues

    def topic(self, name: str) -> BatchTopic:
        """A topic to append to; if there is none it is made when the batch is committed."""
        return self._batch.topic(name)

    def queue(self, name: str) -> AsyncBatchQueue:
        """A queue to put into, and whose messages to settle; it has to be open already."""
        if name not in self._queues:
            raise UsageError(
                f"queue {name!r} is not open yet, and opening it may take a while: "
                f"await store.queue({name!r}) before the batch"
            )
        return AsyncBatchQueue(self._batch.queue(name))

    def group(self, topic: str, name: str) -> BatchGroup:
        """A consumer group of a topic, to acknowledge for."""
        return self._batch.group(topic, name)

    def table(self, name: str) -> Any:
        """Tables are not part of this release."""
        return self._batch.table(name)

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
            await self._finish(self._batch.settle)

    async def _finish(self, work: Callable[[], None]) -> None:
        if self._batch.may_wait_to_settle:
            await self._runner.run(work)
        else:
            work()

    async def __aenter__(self) -> Self:
        self._batch.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._batch.is_open:
            await self.commit()
        self._batch.__exit__(kind, error, traceback)
