"""A queue, as tasks hold it: put, get, acknowledge."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self

from stratalog.aio.consuming import poll, wait_for
from stratalog.aio.runner import Runner
from stratalog.aio.work import AsyncWorkers
from stratalog.arguments import check_timeout
from stratalog.consume.keep import RUN_SECONDS_MAX
from stratalog.errors import LeaseLostError, QueueEmptyError
from stratalog.handles.consumer_arguments import Place, check_consumer, lease_ns
from stratalog.handles.work import Stop, Work, check_run_max, reason_of
from stratalog.model import Delivery, Durability, Message, Put, Record, T
from stratalog.options import QueueOptions, check_range
from stratalog.reports import QueueStats

if TYPE_CHECKING:
    from stratalog.clock import Clock
    from stratalog.handles.queue import Queue
    from stratalog.handles.topic import Buffer


class AsyncMessage(Generic[T]):
    """A message of a queue. In an `async with` block it is acknowledged when that ends well.

    If the block raises, the message is given back with the exception as the reason.
    """

    __slots__ = ("_held", "_queue", "message")

    def __init__(self, queue: AsyncQueue[T], message: Message[T]) -> None:
        self._queue = queue
        self.message = message
        """The message as threads have it."""
        self._held = 0

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncMessage {self.offset} of {self._queue.name!r}>"

    @property
    def value(self) -> T:
        """The payload, as the type of its queue."""
        return self.message.value

    @property
    def raw(self) -> bytes | None:
        """The bytes of the payload as they are stored."""
        return self.message.raw

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Headers that were put with it."""
        return self.message.headers

    @property
    def offset(self) -> int:
        """Its place in the queue's topic."""
        return self.message.offset

    @property
    def timestamp(self) -> int:
        """Nanoseconds since 1970 at which it was put."""
        return self.message.timestamp

    @property
    def priority(self) -> int:
        """0 to 255, 0 is most urgent."""
        return self.message.priority

    @property
    def delivery_count(self) -> int:
        """1 the first time it is delivered."""
        return self.message.delivery_count

    @property
    def deadline(self) -> int:
        """Nanoseconds since 1970 until when it is this consumer's; 0 if it is for good."""
        return self.message.deadline

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or given back."""
        return self.message.is_settled

    async def ack(self) -> None:
        """Done: it is not delivered again."""
        await self._queue.ack(self)

    async def nack(self, reason: str = "", delay: float | timedelta | None = None) -> None:
        """Give it back, to be delivered again."""
        await self._queue.nack(self, reason=reason, delay=delay)

    async def touch(self, lease: float | timedelta | None = None) -> None:
        """Keep it longer: the lease starts again now."""
        await self._queue.touch(self, lease=lease)

    async def __aenter__(self) -> Self:
        self.hold()
        return self

    def hold(self, run_max: float = RUN_SECONDS_MAX) -> None:
        """Renew its lease until it is let go of, for so many seconds at most."""
        if self.deadline and not self.is_settled:
            self._held = self._queue.blocking.hold((self.message,), run_max)

    def let_go(self) -> None:
        """Renew its lease no longer."""
        if self._held:
            self._queue.blocking.let_go(self._held)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.let_go()
        if self.is_settled:
            return
        if error is None:
            await self.ack()
            return
        # Another consumer may have it already: the error raised in the block matters more.
        with contextlib.suppress(LeaseLostError):
            await self.nack(reason=reason_of(error))


def unwrap(given: Iterable[Any]) -> list[Any]:
    """The messages as threads have them, out of the arguments of a call: one, many, or lists."""
    found: list[Any] = []
    for one in given:
        if isinstance(one, AsyncMessage):
            found.append(one.message)
        elif isinstance(one, list | tuple | set | frozenset) or hasattr(one, "__next__"):
            found += [item.message if isinstance(item, AsyncMessage) else item for item in one]
        else:
            found.append(one)  # what it is, the queue finds out
    return found


class Getting(Generic[T]):
    """A message that is being wait_for for: `await` it, or use it in an `async with` block."""

    def __init__(self, queue: AsyncQueue[T], timeout: Any, lease: Any, consumer: str) -> None:
        self._queue = queue
        self._arguments = (timeout, lease, consumer)
        self._message: AsyncMessage[T] | None = None

    def __await__(self) -> Generator[Any, None, AsyncMessage[T]]:
        return self._queue.get_one(*self._arguments).__await__()

    async def __aenter__(self) -> AsyncMessage[T]:
        self._message = await self
        self._message.hold()
        return self._message

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._message is not None
        await self._message.__aexit__(kind, error, traceback)


class AsyncQueue(Generic[T]):
    """A handle on one queue: to be shared between the tasks of one event loop."""

    def __init__(self, runner: Runner, queue: Queue[T], clock: Clock) -> None:
        self._runner = runner
        self._queue = queue
        self._clock = clock

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncQueue {self.name!r}>"

    @property
    def blocking(self) -> Queue[T]:
        """Return this queue for code in threads: all of its methods may wait."""
        return self._queue

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._queue.name

    @property
    def options(self) -> QueueOptions:
        """The options it goes by."""
        return self._queue.options

    # --- in -------------------------------------------------------------------------------

    async def put(
        self,
        value: T | Buffer,
        *,
        priority: int = 0,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        dedup_id: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        durability: Durability | str | None = None,
        at: float | datetime | None = None,
        dedup_window: float | timedelta | None = None,
    ) -> Put:
        """Put a message, and say where it is, once its durability class is satisfied."""
        self._runner.check()
        queue = self._queue
        log = queue.topic.log
        has_id = dedup_id is not None or dedup_window is not None
        if has_id or log.is_ephemeral:  # may have to wait for one with the same id
            rest = (priority, ttl, delay, dedup_id, headers, durability, at, dedup_window)
            return await self._runner.run(partial(queue.put, value, *rest))
        future, rank = queue.enter(value, priority, ttl, delay, headers, durability, at)
        if future.group.is_awaited(rank):
            await self._runner.committed(log.shard, future.group)
        return Put(future.offset, False)

    async def put_many(self, messages: Iterable[T | Buffer | Record[T]]) -> list[Put]:
        """Put messages as one atomic batch."""
        return await self._runner.run(partial(self._queue.put_many, list(messages)))

    # --- out ------------------------------------------------------------------------------

    def get(
        self, timeout: float | None = None, lease: float | None = None, consumer: str = ""
    ) -> Getting[T]:
        """The next message, as soon as there is one; `QueueEmptyError` if none came in time.

        `await` it, or use it in an `async with` block, at whose end it is acknowledged, or given
        back if the block raises. Waiting takes no thread.
        """
        return Getting(self, timeout, lease, consumer)

    async def get_one(self, timeout: Any, lease: Any, consumer: str) -> AsyncMessage[T]:
        """Get one message: the part of `get` that waits."""
        found = await self._get(1, timeout, lease, consumer)
        if not found:
            raise QueueEmptyError(f"queue {self.name!r} had no message for {timeout} seconds")
        return found[0]

    async def get_nowait(
        self, lease: float | None = None, consumer: str = ""
    ) -> AsyncMessage[T] | None:
        """The next message, or None if there is none that can be delivered now."""
        found = await self._get(1, 0, lease, consumer)
        return found[0] if found else None

    async def get_many(
        self,
        limit: int,
        timeout: float | None = 0.0,
        lease: float | None = None,
        consumer: str = "",
    ) -> list[AsyncMessage[T]]:
        """Up to so many messages at once, as soon as there is one; an empty list if none came."""
        check_range("limit", limit, 1, 1 << 31)
        return await self._get(limit, timeout, lease, consumer)

    async def _get(
        self, limit: int, timeout: float | None, lease: Any, consumer: str
    ) -> list[AsyncMessage[T]]:
        self._runner.check()
        engine = self._queue.engine
        found = await poll(
            self._runner, engine, self._clock, limit, check_consumer(consumer),
            lease_ns(engine, lease), check_timeout(timeout),
        )  # fmt: skip
        return [AsyncMessage(self, message) for message in self._queue._typed(found)]

    async def ack(
        self, *messages: AsyncMessage[Any] | int | Iterable[AsyncMessage[Any] | int]
    ) -> None:
        """Done with these, one or many: they are not delivered again. All of them, or none.

        Tasks that acknowledge at the same time share one sync. Errors as of `Queue.ack`.
        """
        self._runner.check()
        group = self._queue.enter_ack(unwrap(messages))
        await wait_for(self._runner, self._queue.engine, group)

    async def nack(
        self,
        *messages: AsyncMessage[Any] | int | Iterable[AsyncMessage[Any] | int],
        reason: str = "",
        delay: float | timedelta | None = None,
    ) -> None:
        """Give these back, one or many, to be delivered again after `delay` seconds."""
        chosen = unwrap(messages)
        await self._runner.run(partial(self._queue.nack, chosen, reason=reason, delay=delay))

    async def touch(
        self,
        *messages: AsyncMessage[Any] | int | Iterable[AsyncMessage[Any] | int],
        lease: float | timedelta | None = None,
    ) -> None:
        """Keep these longer, one or many: their leases start again now."""
        chosen = unwrap(messages)
        await self._runner.run(partial(self._queue.touch, chosen, lease=lease))

    async def work(
        self,
        handler: Callable[[AsyncMessage[T]], Awaitable[object]],
        *,
        tasks: int = 1,
        stop: Stop | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        run_max: float | timedelta | None = None,
        consumer: str = "",
    ) -> Work:
        """Await a handler with one message after the other, in so many tasks; returns counts.

        As `Queue.work`; `stop` may be an `asyncio.Event`. If the task that waits for it is
        cancelled, the messages whose handlers run are given back.
        """
        workers = AsyncWorkers(
            self, handler, stop, check_timeout(timeout), lease, check_run_max(run_max), consumer
        )
        return await workers.run(check_range("tasks", tasks, 1, 1 << 16))

    # --- the rest -------------------------------------------------------------------------

    async def peek(self, limit: int = 1) -> list[Delivery[T]]:
        """The next messages, in the order they would be delivered, without delivering them."""
        return await self._runner.run(partial(self._queue.peek, limit))

    async def seek(self, place: Place) -> int:
        """Deliver everything from an offset or a time on, and nothing below."""
        return await self._runner.run(partial(self._queue.seek, place))

    async def size(self) -> int:
        """How many messages are to be delivered, now or later."""
        return await self._runner.run(self._queue.__len__)

    async def stats(self) -> QueueStats:
        """Numbers about the queue."""
        return await self._runner.run(self._queue.stats)

    async def dead_letters(self, start: int = 0, limit: int | None = None) -> list[Record[T]]:
        """Messages that were delivered too often: see `DeadLetters.read`."""
        dead = self._queue.dead
        return await self._runner.run(lambda: list(dead.read(start, limit)))

    async def requeue(
        self, *offsets: int, priority: int | None = None, delay: float = 0.0
    ) -> list[Put]:
        """Put dead letters back into the queue, all of them unless some are named."""
        return await self._runner.run(
            partial(self._queue.dead.requeue, *offsets, priority=priority, delay=delay)
        )
