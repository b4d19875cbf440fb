"""Schedules for asyncio: see `stratalog.handles.schedule`."""

from __future__ import annotations

from stratalog.aio.runner import Runner
from stratalog.handles.schedule import Schedule
from stratalog.reports import ScheduleStats


class AsyncSchedule:
    """Puts messages into a queue at set times: see `Store.schedule`."""

    def __init__(self, runner: Runner, schedule: Schedule) -> None:
        self._runner = runner
        self._schedule = schedule

    @property
    def blocking(self) -> Schedule:
        """Return this schedule for code in threads: all of its methods may wait."""
        return self._schedule

    @property
    def name(self) -> str:
        """Name of the schedule."""
        return self._schedule.name

    @property
    def is_dropped(self) -> bool:
        """Whether the schedule is gone."""
        return self._schedule.is_dropped

    async def stats(self) -> ScheduleStats:
        """Numbers about the schedule, and why it puts nothing if it does not."""
        return await self._runner.run(self._schedule.stats)

    async def pause(self) -> None:
        """Put nothing more, from when this returns until `resume`; survives a restart."""
        await self._runner.run(self._schedule.pause)

    async def resume(self) -> None:
        """Go on with the next due time; those that passed while it was paused do not come."""
        await self._runner.run(self._schedule.resume)

    async def drop(self) -> None:
        """Remove the schedule for good; messages that it has put stay in the queue."""
        await self._runner.run(self._schedule.drop)

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncSchedule {self.name!r}>"
