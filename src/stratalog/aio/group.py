"""A consumer group, as tasks hold it: poll, acknowledge."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Generic

from stratalog.aio.consuming import poll
from stratalog.aio.runner import Runner
from stratalog.arguments import check_timeout
from stratalog.handles.consumer_arguments import Given, Place, check_consumer, lease_ns
from stratalog.model import Delivery, T
from stratalog.options import check_range
from stratalog.reports import GroupStats

if TYPE_CHECKING:
    from stratalog.clock import Clock
    from stratalog.handles.group import Group


class AsyncGroup(Generic[T]):
    """A handle on one consumer group: to be shared between the tasks of one event loop."""

    def __init__(self, runner: Runner, group: Group[T], clock: Clock) -> None:
        self._runner = runner
        self._group = group
        self._clock = clock

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncGroup {self.name!r} mode={self.mode!r}>"

    @property
    def blocking(self) -> Group[T]:
        """Return this group for code in threads: all of its methods may wait."""
        return self._group

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._group.name

    @property
    def mode(self) -> str:
        """`queue` or `stream`."""
        return self._group.mode

    async def poll(
        self,
        consumer: str = "",
        limit: int = 100,
        lease: float | None = None,
        timeout: float | None = 0.0,
    ) -> list[Delivery[T]]:
        """Up to so many records for a consumer, as soon as there are any; none in time is none.

        Waiting takes no thread.
        """
        self._runner.check()
        check_range("limit", limit, 1, 1 << 31)
        engine = self._group.engine()
        found = await poll(
            self._runner, engine, self._clock, limit, check_consumer(consumer),
            lease_ns(engine, lease), check_timeout(timeout),
        )  # fmt: skip
        return self._group._typed(found)

    async def ack(self, *deliveries: Given) -> int:
        """Acknowledge records, by offset or as they were delivered; returns how many."""
        return await self._runner.run(partial(self._group.ack, *deliveries))

    async def nack(
        self, *deliveries: Given, delay: float | timedelta | None = None, reason: str = ""
    ) -> int:
        """Give records back, to be delivered again after so many seconds; returns how many."""
        return await self._runner.run(
            partial(self._group.nack, *deliveries, delay=delay, reason=reason)
        )

    async def touch(self, *deliveries: Given, lease: float | timedelta | None = None) -> int:
        """Let the leases of records start again now; returns how many there were."""
        return await self._runner.run(partial(self._group.touch, *deliveries, lease=lease))

    async def seek(self, place: Place) -> int:
        """Go on from an offset (an int), a time (a float or a datetime), or one of the ends."""
        return await self._runner.run(partial(self._group.seek, place))

    async def stats(self) -> GroupStats:
        """Numbers about the group."""
        return await self._runner.run(self._group.stats)
