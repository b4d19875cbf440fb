"""Queues and groups for asyncio: many tasks wait, and none of them has a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_aio import own_threads, path, run, until

import stratalog
import stratalog.aio
from stratalog.aio import AsyncMessage, AsyncQueue, AsyncStore
from stratalog.errors import (
    ClosedError,
    LeaseLostError,
    OptionError,
    QueueEmptyError,
    UsageError,
    WrongTypeError,
)

__all__ = ["path"]


def test_put_get_and_acknowledge(path: Path) -> None:
    """Every way to put and to get, and what became of it in a blocking store."""

    async def work() -> None:
        async with stratalog.aio.open(path, shards=2) as store:
            jobs = await store.queue("jobs", max_deliveries=2)
            assert jobs is await store.queue("jobs")
            assert (jobs.name, jobs.options.max_deliveries) == ("jobs", 2)
            assert await jobs.put(b"0", priority=7, headers={"h": b"v"}) == (0, False)
            assert await jobs.put(b"1", dedup_id="x") == (1, False)
            assert await jobs.put(b"1", dedup_id="x") == (1, True)
            assert [put.offset for put in await jobs.put_many([b"2", b"3"])] == [2, 3]
            assert await jobs.size() == 4
            assert [one.value for one in await jobs.peek(2)] == [b"1", b"2"]

            message = await jobs.get(timeout=1)
            assert isinstance(message, AsyncMessage)
            assert (message.value, message.offset, message.priority) == (b"1", 1, 0)
            assert (message.delivery_count, message.is_settled) == (1, False)
            assert message.deadline > message.timestamp > 0
            await message.touch(lease=60.0)
            await message.ack()
            assert message.is_settled

            async with jobs.get(timeout=1) as message:
                assert message.value == b"2"
            assert message.is_settled
            many = await jobs.get_many(5)
            assert [one.value for one in many] == [b"3", b"0"]
            assert many[1].headers == {"h": b"v"}
            await jobs.ack(many[0])
            await many[1].nack(reason="later", delay=0.0)
            try:
                async with jobs.get() as again:
                    raise KeyError("no")
            except KeyError:
                pass
            assert again.delivery_count == 2
            assert await jobs.get_nowait() is None
            (letter,) = await jobs.dead_letters()
            assert letter.headers["dlq.reason"] == b"KeyError: 'no'"
            assert [put.offset for put in await jobs.requeue()] == [4]
            assert (await jobs.stats()).waiting == 1
            assert await jobs.seek("latest") == 5
            assert await store.queues() == ["jobs"]
            ticks = await store.queue("ticks", durability="ephemeral")
            assert await ticks.put(b"tick") == (0, False)
            assert repr(jobs) == "<stratalog.aio.AsyncQueue 'jobs'>"
            assert repr(message) == "<stratalog.aio.AsyncMessage 2 of 'jobs'>"

    run(work)
    with stratalog.open(path) as store:
        assert len(store.queue("jobs")) == 0


def test_tasks_in_line_take_no_thread_and_are_served_in_order(path: Path) -> None:
    """A hundred of them wait; those who wait longest are served first."""

    async def work() -> None:
        async with stratalog.aio.open(path) as store:
            jobs = await store.queue("jobs", durability="disk")
            served: list[int] = []

            async def wait(number: int) -> None:
                message = await jobs.get()
                served.append(number)
                await message.ack()

            tasks = []
            for number in range(100):
                tasks.append(asyncio.create_task(wait(number)))
                await until(lambda count=number + 1: waiting(jobs) == count)  # type: ignore[misc]
            assert own_threads() < 20
            for number in range(100):
                await jobs.put(b"%d" % number)
            await asyncio.gather(*tasks)
            assert sorted(served) == list(range(100))
            # The last to come may still be looking when the first message does.
            assert sum(number < 50 for number in served[:50]) >= 45
            assert (await jobs.stats()).consumed == 100
            assert waiting(jobs) == 0

    run(work)


def waiting(jobs: AsyncQueue) -> int:
    """How many stand in line."""
    return len(jobs.blocking.engine.line.waiters)


def test_a_task_waits_until_a_message_is_due(path: Path) -> None:
    """A delay and a lease that runs out wake it, without any call."""

    async def work() -> None:
        async with stratalog.aio.open(path) as store:
            jobs = await store.queue("jobs", lease=0.5)
            with pytest.raises(QueueEmptyError, match="no message for"):
                await jobs.get(timeout=0.01)
            assert await jobs.get_many(3, timeout=0.01) == []
            await jobs.put(b"late", delay=0.05)
            late = await jobs.get(timeout=5)
            assert late.value == b"late"
            again = await jobs.get(timeout=5)
            assert again.delivery_count == 2
            with pytest.raises(LeaseLostError):
                await late.ack()
            await again.ack()

    run(work)


def test_acknowledgements_of_many_tasks_share_syncs(path: Path) -> None:
    """Workers that each take and acknowledge one message at a time."""

    async def work() -> None:
        async with stratalog.aio.open(path, shards=1) as store:
            jobs = await store.queue("jobs")
            await jobs.put_many([b"%d" % number for number in range(300)])
            messages = await jobs.get_many(300)
            before = (await store.stats()).syncs
            await asyncio.gather(*(message.ack() for message in messages))
            assert (await store.stats()).syncs - before < 30
            assert (await jobs.stats()).consumed == 300

    run(work)


def test_what_a_cancelled_task_was_given_comes_again_at_once(path: Path) -> None:
    """Whether it waited in line or the thread had taken a message for it."""

    async def work() -> None:
        async with stratalog.aio.open(path) as store:
            # It was not delivered: not even a message that may be only once is a dead letter.
            jobs = await store.queue("jobs", lease=3600.0, max_deliveries=1)
            task = asyncio.create_task(wait(jobs))
            await until(lambda: waiting(jobs) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert waiting(jobs) == 0
            for number in range(20):
                await jobs.put(b"%d" % number)
            found: set[bytes | None] = set()
            for _ in range(20):
                task = asyncio.create_task(wait(jobs))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                task.cancel()
                (got,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(got, AsyncMessage):  # the thread was faster
                    found.add(got.value)
                    await got.ack()
            while len(found) < 20:
                async with jobs.get(timeout=10) as message:
                    assert message.delivery_count == 1
                    found.add(message.value)
            assert await jobs.size() == 0
            assert await jobs.dead_letters() == []

    async def wait(jobs: AsyncQueue) -> AsyncMessage:
        return await jobs.get()

    run(work)


def test_groups_of_tasks(path: Path) -> None:
    """Both modes; a poll that waits takes no thread."""

    async def work() -> None:
        async with stratalog.aio.open(path) as store:
            orders = await store.topic("orders")
            billing = await orders.group("billing")
            stats = await orders.group("stats", "stream", start="latest")
            assert (billing.name, billing.mode, stats.mode) == ("billing", "queue", "stream")
            polls = [
                asyncio.create_task(billing.poll(f"worker-{number}", limit=1, timeout=10))
                for number in range(50)
            ]
            await until(lambda: len(billing.blocking.engine().line.waiters) == 50)
            assert own_threads() < 20
            await orders.append_many([b"%d" % number for number in range(50)])
            found = [delivery for some in await asyncio.gather(*polls) for delivery in some]
            assert sorted(one.offset for one in found) == list(range(50))
            assert await billing.ack(found[:49]) == 49
            assert await billing.nack([found[49]]) == 1
            assert len(await billing.poll("other")) == 1
            assert len(await stats.poll(limit=10)) == 10
            assert await stats.ack([9]) == 10
            assert (await stats.stats()).lag == 40
            assert await billing.seek("earliest") == 0
            assert repr(billing) == "<stratalog.aio.AsyncGroup 'billing' mode='queue'>"
            assert billing.blocking.name == "billing"
            with pytest.raises(OptionError):
                await billing.poll(timeout=-1.0)

    run(work)


@pytest.mark.parametrize("shards", [1, 3])
def test_consume_transform_produce(path: Path, shards: int) -> None:
    """Many tasks, each message in one batch with its result: exactly once."""

    async def work() -> None:
        async with stratalog.aio.open(path, shards=shards) as store:
            jobs = await store.queue("jobs")
            await store.topic("results")
            await jobs.put_many([b"%d" % number for number in range(100)])

            async def worker() -> None:
                while message := await jobs.get_nowait():
                    async with store.batch() as batch:
                        batch.topic("results").append(message.value)
                        batch.queue("jobs").ack(message)
                        batch.queue("jobs").put(b"0", dedup_id="only once")

            await asyncio.gather(*(worker() for _ in range(10)))
            results = await (await store.topic("results")).read_values()
            assert sorted(int(value or b"") for value in results) == [0, *range(100)]
            assert await jobs.size() == 0
            message = await put_and_get(jobs)
            async with store.batch() as batch:
                batch.queue("jobs").nack(message, reason="later", delay=0.0)
                batch.group("results", "g").ack([0])
                with pytest.raises(UsageError, match="is not open yet"):
                    batch.queue("unknown")
            assert (await jobs.get(timeout=1)).delivery_count == 2
            await lost(store, jobs)

    async def put_and_get(jobs: AsyncQueue) -> AsyncMessage:
        await jobs.put(b"x")
        return await jobs.get(timeout=1)

    async def lost(store: AsyncStore, jobs: AsyncQueue) -> None:
        message = await put_and_get(jobs)
        await jobs.seek("latest")
        async with store.batch() as batch:
            batch.topic("results").append(b"never")
            with pytest.raises(LeaseLostError):
                batch.queue("jobs").ack(message)
            batch.queue("jobs").ack()
        message = await put_and_get(jobs)
        async with store.batch() as batch:
            batch.topic("results").append(b"never either")
            batch.queue("jobs").ack(message)
            await jobs.seek("latest")
            with pytest.raises(LeaseLostError):
                await batch.commit()
        assert b"never either" not in await (await store.topic("results")).read_values()

    run(work)


def test_errors_and_the_end(path: Path) -> None:
    """Errors are those of all handles; waiting tasks learn that the store is closed."""

    async def work() -> None:
        store = await stratalog.aio.open(path)
        jobs = await store.queue("jobs")
        wrong: list[tuple[type[Exception], Callable[[], Awaitable[Any]]]] = [
            (WrongTypeError, lambda: jobs.put("text")),  # type: ignore[arg-type]
            (OptionError, lambda: jobs.put(b"", priority=256)),
            (OptionError, lambda: jobs.get_many(0)),
            (OptionError, lambda: store.queue("other", colour="red")),  # type: ignore[call-overload]
        ]
        for kind, call in wrong:
            with pytest.raises(kind):
                await call()
        waiters = [asyncio.ensure_future(wait(jobs)) for _ in range(10)]
        await until(lambda: waiting(jobs) == 10)
        await store.close()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert {type(result) for result in results} == {ClosedError}
        for late in (lambda: jobs.put(b"x"), lambda: jobs.get_nowait(), lambda: store.queue("x")):
            with pytest.raises(ClosedError):
                await late()

    async def wait(jobs: AsyncQueue) -> None:
        await jobs.get()

    run(work)
