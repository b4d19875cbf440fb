"""Atomic batches of tasks."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from stratalog.aio.runner import Runner
from stratalog.batch import Batch
from stratalog.batched import BatchTopic


class AsyncBatch:
    """Appends to topics, all of them or none: collected at once, committed at the block's end.

    A task that is cancelled while it waits for the commit does not take the batch back.
    """

    def __init__(self, runner: Runner, batch: Batch) -> None:
        self._runner = runner
        self._batch = batch

    def topic(self, name: str) -> BatchTopic:
        """A topic to append to; if there is none it is made when the batch is committed."""
        return self._batch.topic(name)

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
