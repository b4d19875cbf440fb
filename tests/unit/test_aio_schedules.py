"""Schedules in asyncio: the same schedules, with methods that a loop can wait for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import stratalog.aio
from stratalog.errors import ClosedError, OptionError, UnknownScheduleError


def test_a_schedule_is_made_paused_and_dropped(tmp_path: Path) -> None:
    """With all that a schedule can do."""

    async def main() -> None:
        async with stratalog.aio.open(tmp_path) as store:
            schedule = await store.schedule("tick", every=0.05, queue="jobs", value=b"v")
            message = await (await store.queue("jobs")).get(timeout=30.0)
            assert message.value == b"v"
            await schedule.pause()
            assert (await schedule.stats()).state == "paused"
            assert await store.run_schedules() == 0
            await schedule.resume()
            (found,) = await store.schedules()
            assert found.blocking == schedule.blocking
            assert repr(found) == "<stratalog.aio.AsyncSchedule 'tick'>"
            with pytest.raises(OptionError):
                await store.schedule("both", every=1.0, cron="@daily", queue="jobs")
            await schedule.drop()
            assert schedule.is_dropped
            with pytest.raises(UnknownScheduleError):
                await schedule.stats()
        with pytest.raises(ClosedError):
            await schedule.stats()

    asyncio.run(main())
