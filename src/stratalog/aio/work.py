"""The loop of a worker for asyncio: as `stratalog.handles.work`, in tasks instead of threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from stratalog.errors import LeaseLostError, PressureError, QueueEmptyError
from stratalog.handles.work import Stop, Work, reason_of

if TYPE_CHECKING:
    from stratalog.aio.queue import AsyncMessage, AsyncQueue

# How often a task without work looks whether it is to stop.
_IDLE_SECONDS = 0.1
_PRESSURE_SECONDS = 0.05


class AsyncWorkers:
    """Tasks that work on one queue."""

    def __init__(
        self, queue: AsyncQueue[Any], handler: Callable[[AsyncMessage[Any]], Awaitable[object]],
        stop: Stop | None, timeout: float | None, lease: float | None, run_max: float,
        consumer: str,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._handler = handler
        self._stop = stop
        self._timeout = timeout
        self._lease = lease
        self._run_max = run_max
        self._consumer = consumer
        self._is_halted = False
        self._work = Work()

    async def run(self, count: int) -> Work:
        """Work in `count` tasks until stopped; returns counts.

        An error that is not a handler's stops all of them, and is raised once they have finished
        the messages they are at.
        """
        tasks = [asyncio.create_task(self._loop()) for _ in range(count)]
        try:
            await asyncio.gather(*tasks)
        except BaseException as error:
            self._is_halted = True
            if isinstance(error, asyncio.CancelledError):
                for task in tasks:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return self._work

    async def _loop(self) -> None:
        clock = asyncio.get_running_loop().time
        idle_since = clock()
        while not (self._is_halted or (self._stop is not None and self._stop.is_set())):
            patience = _IDLE_SECONDS
            if self._timeout is not None:
                patience = max(min(patience, idle_since + self._timeout - clock()), 0.0)
            try:
                message = await self._queue.get(patience, self._lease, self._consumer)
            except QueueEmptyError:
                if self._timeout is not None and clock() - idle_since >= self._timeout:
                    return
                continue
            except PressureError:
                await asyncio.sleep(_PRESSURE_SECONDS)
                continue
            await self._handle(message)
            idle_since = clock()

    async def _handle(self, message: AsyncMessage[Any]) -> None:
        message.hold(self._run_max)
        try:
            await self._handler(message)
        except Exception as error:
            self._work.failed += 1
            await self._finish(message, error)
        except BaseException as error:  # cancelled: it is given back before the task ends
            with contextlib.suppress(LeaseLostError):
                self._queue.blocking.nack(message.message, reason=reason_of(error))
            raise
        else:
            if await self._finish(message, None):
                self._work.done += 1
        finally:
            message.let_go()

    async def _finish(self, message: AsyncMessage[Any], error: Exception | None) -> bool:
        try:
            if message.is_settled:
                return True
            if error is None:
                await message.ack()
            else:
                await message.nack(reason=reason_of(error))
        except LeaseLostError:
            self._work.lost += 1
            return False
        return True
