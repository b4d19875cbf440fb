"""A queue, as tasks hold it: put, get, acknowledge."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stratalog.aio.consuming import poll, settled
from stratalog.aio.runner import Runner
from stratalog.consuming import Place, check_consumer, lease_ns
from stratalog.errors import LeaseLostError, QueueEmptyError
from stratalog.inputs import check_timeout
from stratalog.log.shard import GROUP_BYTES_MAX
from stratalog.log.topic import SYNCED
from stratalog.model import Delivery, Durability, Message, Put, Record
from stratalog.options import QueueOptions, check_range
from stratalog.reports import QueueStats

if TYPE_CHECKING:
    from stratalog.clock import Clock
    from stratalog.queue import Queue
    from stratalog.topic import Value


class AsyncMessage:
    """A message of a queue. In an `async with` block it is acknowledged when that ends well.

    If the block raises, the message is given back with the exception as the reason.
    """

    __slots__ = ("_queue", "message")

    def __init__(self, queue: AsyncQueue, message: Message) -> None:
        self._queue = queue
        self.message = message
        """The message as threads have it."""

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncMessage {self.offset} of {self._queue.name!r}>"

    @property
    def value(self) -> bytes | None:
        """The payload."""
        return self.message.value

    @property
    def headers(self) -> Mapping[str, bytes]:
        """What was put with it."""
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
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.is_settled:
            return
        if error is None:
            await self.ack()
            return
        # Somebody else may have it by now: what was raised in the block matters more.
        with contextlib.suppress(LeaseLostError):
            await self.nack(reason=f"{type(error).__name__}: {error}")


class Getting:
    """A message that is being waited for: `await` it, or use it in an `async with` block."""

    def __init__(self, queue: AsyncQueue, timeout: Any, lease: Any, consumer: str) -> None:
        self._queue = queue
        self._arguments = (timeout, lease, consumer)
        self._message: AsyncMessage | None = None

    def __await__(self) -> Generator[Any, None, AsyncMessage]:
        return self._queue.get_one(*self._arguments).__await__()

    async def __aenter__(self) -> AsyncMessage:
        self._message = await self
        return self._message

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._message is not None
        await self._message.__aexit__(kind, error, traceback)


class AsyncQueue:
    """A handle on one queue: to be shared between the tasks of one event loop."""

    def __init__(self, runner: Runner, queue: Queue, clock: Clock) -> None:
        self._runner = runner
        self._queue = queue
        self._clock = clock

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncQueue {self.name!r}>"

    @property
    def blocking(self) -> Queue:
        """The same queue for code in threads: all of its methods may wait."""
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
        value: Value,
        *,
        priority: int = 0,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        dedup_id: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        durability: Durability | str | None = None,
    ) -> Put:
        """Put a message, and say where it is, once its durability class is satisfied."""
        self._runner.check()
        queue = self._queue
        log = queue.topic.log
        if dedup_id is not None or log.is_ephemeral:  # has to wait for one with the same id
            return await self._runner.run(
                partial(queue.put, value, priority, ttl, delay, dedup_id, headers, durability)
            )
        future, rank = queue.enter(value, priority, ttl, delay, headers, durability)
        if rank == SYNCED or future.group.bytes > GROUP_BYTES_MAX:
            await self._runner.committed(log.shard, future.group)
        return Put(future.offset, False)

    async def put_many(self, messages: Iterable[Value | Record]) -> list[Put]:
        """Put messages as one atomic batch."""
        return await self._runner.run(partial(self._queue.put_many, list(messages)))

    # --- out ------------------------------------------------------------------------------

    def get(
        self, timeout: float | None = None, lease: float | None = None, consumer: str = ""
    ) -> Getting:
        """The next message, as soon as there is one; `QueueEmptyError` if none came in time.

        `await` it, or use it in an `async with` block, at whose end it is acknowledged, or given
        back if the block raises. Waiting takes no thread.
        """
        return Getting(self, timeout, lease, consumer)

    async def get_one(self, timeout: Any, lease: Any, consumer: str) -> AsyncMessage:
        """What `get` waits for."""
        found = await self._get(1, timeout, lease, consumer)
        if not found:
            raise QueueEmptyError(f"queue {self.name!r} had no message for {timeout} seconds")
        return found[0]

    async def get_nowait(
        self, lease: float | None = None, consumer: str = ""
    ) -> AsyncMessage | None:
        """The next message, or None if there is none that can be delivered now."""
        found = await self._get(1, 0, lease, consumer)
        return found[0] if found else None

    async def get_many(
        self,
        limit: int,
        timeout: float | None = 0.0,
        lease: float | None = None,
        consumer: str = "",
    ) -> list[AsyncMessage]:
        """Up to so many messages at once, as soon as there is one; an empty list if none came."""
        check_range("limit", limit, 1, 1 << 31)
        return await self._get(limit, timeout, lease, consumer)

    async def _get(
        self, limit: int, timeout: float | None, lease: Any, consumer: str
    ) -> list[AsyncMessage]:
        self._runner.check()
        engine = self._queue.engine
        found = await poll(
            self._runner, engine, self._clock, limit, check_consumer(consumer),
            lease_ns(engine, lease), check_timeout(timeout),
        )  # fmt: skip
        return [AsyncMessage(self, message) for message in found]

    async def ack(self, *messages: AsyncMessage) -> None:
        """Done with these: they are not delivered again. All of them, or none and an error.

        Tasks that acknowledge at the same time share one sync.
        """
        self._runner.check()
        group = self._queue.enter_ack([one.message for one in messages])
        await settled(self._runner, self._queue.engine, group)

    async def nack(
        self, *messages: AsyncMessage, reason: str = "", delay: float | timedelta | None = None
    ) -> None:
        """Give these back, to be delivered again after `delay` seconds."""
        chosen = [one.message for one in messages]
        await self._runner.run(partial(self._queue.nack, *chosen, reason=reason, delay=delay))

    async def touch(self, *messages: AsyncMessage, lease: float | timedelta | None = None) -> None:
        """Keep these longer: their leases start again now."""
        chosen = [one.message for one in messages]
        await self._runner.run(partial(self._queue.touch, *chosen, lease=lease))

    # --- the rest -------------------------------------------------------------------------

    async def peek(self, limit: int = 1) -> list[Delivery]:
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

    async def dead_letters(self, start: int = 0, limit: int | None = None) -> list[Record]:
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
