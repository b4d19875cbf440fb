"""Waiting for a record of a group or a queue, in line with threads and with other tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from stratalog.aio.runner import LoopWaiter, Runner
from stratalog.clock import Clock
from stratalog.consume.engine import WAIT_SECONDS_MAX, Engine
from stratalog.consume.queue_engine import Deliveries
from stratalog.consume.stream_engine import Streaming
from stratalog.log.commit_group import Group as CommitGroup
from stratalog.log.topic import SYNCED
from stratalog.model import Delivery


async def poll(
    runner: Runner, engine: Engine, clock: Clock, limit: int, consumer: str, lease: int,
    timeout: float | None,
) -> list[Any]:  # fmt: skip
    """Records for a consumer, as soon as there are any; none when the time is up.

    As `Engine.poll`, with a place in its line that takes no thread. What a task gets that is
    cancelled at that very moment is given back.
    """
    loop = asyncio.get_running_loop()
    give_back = partial(_give_back, engine, clock)

    async def attempt() -> list[Any]:
        work = partial(engine.attempt, limit, consumer, lease, clock.time_ns())
        return await runner.take(work, give_back)

    found = await attempt()
    if found or timeout == 0:
        return found
    deadline = None if timeout is None else loop.time() + timeout
    place = LoopWaiter()
    engine.line.add(place)
    try:
        while True:
            found = await attempt()
            left = WAIT_SECONDS_MAX if deadline is None else deadline - loop.time()
            if found or left <= 0:
                return found
            patience = engine.patience(left, clock.time_ns())
            await place.wait(patience)
            runner.check()
            place.clear()
            engine.line.rejoin(place)
    finally:
        engine.leave(place)


def _give_back(engine: Engine, clock: Clock, found: Sequence[Delivery]) -> None:
    """Give back deliveries that no task waits for any more: they do not count as delivered."""
    now = clock.time_ns()
    with engine.lock:
        if isinstance(engine, Streaming):
            engine.give_back([delivery.offset for delivery in found])
        elif isinstance(engine, Deliveries):
            engine.give_back_uncounted(found, now, "its task was cancelled")


async def wait_for(runner: Runner, engine: Engine, group: CommitGroup | None) -> None:
    """Return once what was noted is as durable as the topic's class promises."""
    if group is not None and engine.topic.rank == SYNCED:
        await runner.committed(engine.topic.shard, group)
