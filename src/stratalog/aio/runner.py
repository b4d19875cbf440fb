"""Where the blocking work of an asyncio store is done, and how its event loop hears of it.

A few threads run whatever may wait for a disk. Commits have threads of their own, two per shard at
most: one writes a group, one waits to lead the next. All tasks whose records are in a group wait
for it together, so that hundreds of appends take one sync, one thread and one wake-up of the loop.

Concurrency: everything but what runs in the threads is called in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from stratalog.errors import ClosedError, StratalogError
from stratalog.log.commit_failures import again
from stratalog.log.commit_group import Group
from stratalog.log.shard import Shard

_T = TypeVar("_T")

WORKERS = 4
"""Threads for reads and operations of one store."""

# Records that are handed over to the loop at once: few at first, so that the first comes soon.
_CHUNK_MIN = 64
_CHUNK_MAX = 4096


class Runner:
    """The threads of one store, and who waits for them."""

    def __init__(self, path: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._path = path
        self._workers = ThreadPoolExecutor(WORKERS, "stratalog-aio")
        self._committers: ThreadPoolExecutor | None = None
        self._jobs: set[asyncio.Future[Any]] = set()
        self._waiting: dict[Group, list[asyncio.Future[None]]] = {}
        self.is_closed = False

    def check(self) -> None:
        """Raise if the store is closed."""
        if self.is_closed:
            raise ClosedError(f"{self._path} is closed: open it again with stratalog.aio.open()")

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do something that may wait, in a thread.

        If the task is cancelled the work goes on to its end, and its result is dropped.
        """
        self.check()
        return await self._submit(self._workers, work)

    async def _submit(self, threads: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
        job = self._loop.run_in_executor(threads, work)
        self._jobs.add(job)
        job.add_done_callback(self._done)
        return await asyncio.shield(job)

    async def take(self, work: Callable[[], _T], give_back: Callable[[_T], None]) -> _T:
        """Take something in a thread; it is given back if the task is gone by then.

        The task may be cancelled while the thread is at it.
        """
        self.check()
        job = self._loop.run_in_executor(self._workers, work)
        self._jobs.add(job)
        job.add_done_callback(self._done)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            job.add_done_callback(partial(self._give_back, give_back))
            raise

    def _give_back(self, give_back: Callable[[_T], None], job: asyncio.Future[_T]) -> None:
        if not job.cancelled() and job.exception() is None:
            again = self._loop.run_in_executor(self._workers, give_back, job.result())
            self._jobs.add(again)
            again.add_done_callback(self._done)

    def _done(self, job: asyncio.Future[Any]) -> None:
        self._jobs.discard(job)
        if not job.cancelled():
            job.exception()  # seen: a task that was cancelled does not ask

    async def chunks(self, make: Callable[[], Iterator[_T]]) -> AsyncIterator[list[_T]]:
        """Yield what a blocking iterator gives, some at a time; threads make and advance it."""
        iterator = await self.run(make)
        size = _CHUNK_MIN
        while True:
            chunk, error = await self.run(partial(_take, iterator, size))
            if chunk:
                yield chunk
            if error is not None:
                raise error
            if len(chunk) < size:
                return
            size = min(2 * size, _CHUNK_MAX)

    # --- commits --------------------------------------------------------------------------

    async def committed(self, shard: Shard, group: Group) -> None:
        """Return once a group is as durable as it asked to be; raises what went wrong.

        A task that is cancelled meanwhile does not take its records back.
        """
        if not group.done:
            waiters = self._waiting.get(group)
            if waiters is None:
                waiters = self._waiting[group] = []
                # After all tasks that are ready now: what they append is in the group, too.
                self._loop.call_soon(self._lead, shard, group)
            waiter = self._loop.create_future()
            waiters.append(waiter)
            await waiter
        if group.error is not None:
            raise again(group.error)

    def _lead(self, shard: Shard, group: Group) -> None:
        if group.done:
            self._notify(group)
            return
        if self._committers is None:
            self._committers = ThreadPoolExecutor(thread_name_prefix="stratalog-aio-commit")
        job = self._loop.run_in_executor(self._committers, shard.finish, group)
        self._jobs.add(job)

        def done(job: asyncio.Future[None]) -> None:
            self._done(job)
            self._notify(group)

        job.add_done_callback(done)

    def _notify(self, group: Group) -> None:
        for waiter in self._waiting.pop(group, ()):
            if not waiter.done():  # or it was cancelled
                waiter.set_result(None)

    # --- the end --------------------------------------------------------------------------

    async def close(self, close: Callable[[], None]) -> None:
        """Let nothing more begin, wait for what has, then do the closing itself."""
        self.is_closed = True
        while self._jobs or self._waiting:
            if self._jobs:
                await asyncio.wait(list(self._jobs))
            else:
                await asyncio.sleep(0)  # a commit is about to begin
        try:
            await self._submit(self._workers, close)
        finally:
            self.shut_down()

    def shut_down(self) -> None:
        """Let the threads go, once they have nothing more to do."""
        self.is_closed = True
        self._workers.shutdown(wait=False)
        if self._committers is not None:
            self._committers.shutdown(wait=False)


def _take(iterator: Iterator[_T], size: int) -> tuple[list[_T], StratalogError | None]:
    """Take so many items; those before an error come with it, to be handed out first."""
    chunk: list[_T] = []
    try:
        chunk.extend(islice(iterator, size))
    except StratalogError as error:
        return chunk, error
    return chunk, None


class LoopWaiter:
    """Stands in a list of waiters as a lock does: let go of, it wakes a task.

    The publisher calls `release` in a thread of its own, and never waits for the loop. A bare
    future: `asyncio.wait_for` of Python 3.11 loses a cancellation that comes with the wake-up.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] | None = None
        self._is_locked = True
        self._is_woken = False

    async def wait(self, timeout: float | None) -> None:
        """Return when it was let go of, or when the time is up."""
        if self._is_woken:
            return
        self._future = self._loop.create_future()
        timer = None if timeout is None else self._loop.call_later(timeout, self._resolve)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()

    def clear(self) -> None:
        """Be waited for once more."""
        self._is_locked = True
        self._is_woken = False

    def locked(self) -> bool:
        """Whether it was not let go of yet."""
        return self._is_locked

    def release(self) -> None:
        """Wake the task."""
        self._is_locked = False
        with contextlib.suppress(RuntimeError):  # the loop is gone, and the task with it
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_woken = True
        self._resolve()

    def _resolve(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
