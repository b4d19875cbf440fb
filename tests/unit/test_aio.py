"""The asyncio wrapper: the same engine, without a thread for every task that waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

import stratalog
import stratalog.aio
from stratalog.aio import AsyncStore, AsyncTopic
from stratalog.aio.runner import LoopWaiter
from stratalog.errors import (
    ClosedError,
    LockedError,
    OffsetOutOfRangeError,
    OptionError,
    ReadOnlyError,
    StateError,
    SyncFailedError,
    TooLargeError,
    UnknownTopicError,
    WrongTypeError,
)
from stratalog.model import Gap, Record

_T = TypeVar("_T")
SECONDS = 20.0
"""No test takes this long, unless something waits for ever."""


def run(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run a coroutine in a loop of its own."""

    async def limited() -> _T:
        async with asyncio.timeout(SECONDS):
            return await work()

    return asyncio.run(limited())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


async def values(items: AsyncIterator[Record | Gap]) -> list[bytes | None]:
    """Collect what an iterator gives, without gaps."""
    return [item.value async for item in items if isinstance(item, Record)]


def own_threads() -> int:
    """How many threads there are that are not those of other tests."""
    return sum(thread.name.startswith("stratalog") for thread in threading.enumerate())


def test_append_and_read(path: Path) -> None:
    """Through every door, and the blocking store finds the same."""

    async def work() -> None:
        async with stratalog.aio.open(path, shards=2) as store:
            orders = await store.topic("orders")
            assert orders is await store.topic("orders")
            assert await orders.append(b"0", key=b"k", tag="t", headers={"h": b"v"}) == 0
            assert await orders.append_many([b"1", Record(b"2", tag="x")]) == (1, 2)
            assert await orders.append_many([b"%d" % n for n in range(3, 1000)]) == (3, 999)
            first = [item async for item in orders.read(limit=1)]
            assert isinstance(first[0], Record)
            assert (first[0].key, first[0].tag, first[0].headers) == (b"k", "t", {"h": b"v"})
            assert await values(orders.read(1, 4)) == [b"1", b"2", b"3"]
            assert await values(orders.read()) == [b"%d" % n for n in range(1000)]
            assert await orders.read_values(990, 2) == [b"990", b"991"]
            assert (await orders.diff(after=997)).next == 999
            assert await orders.offset_at(first[0].timestamp) == 0
            assert await orders.delete(tag="x") == 1
            assert await orders.delete(key=b"missing") == 0
            report = await store.compact(purge=True)
            assert report.purge is not None
            assert report.purge.records_removed == 1
            assert (await orders.stats()).records == 999  # one was deleted
            ticks = await store.create_topic("ticks", durability="ephemeral")
            assert await ticks.append(b"tick") == 0
            assert await ticks.append_many([b"tick"]) == (1, 1)
            assert await store.topics() == ["orders", "ticks"]
            await store.checkpoint()
            await store.snapshot()
            await store.sync()
            await store.compact()
            assert (await store.backup(path.parent / "copy")).topics == 2
            assert (await store.stats()).topics == 2
            await store.drop_topic("ticks")
            assert repr(store).endswith("open>")
            assert repr(orders) == "<stratalog.aio.AsyncTopic 'orders'>"
        assert repr(store).endswith("closed>")

    run(work)
    with stratalog.open(path) as store:
        assert store.topics() == ["orders"]
        assert store.topic("orders").next_offset == 1000


def test_tasks_share_syncs_and_need_no_thread_each(path: Path) -> None:
    """Hundreds of appends at once: few syncs, few threads, dense offsets."""

    async def work() -> None:
        async with stratalog.aio.open(path, shards=1) as store:
            topic = await store.topic("orders")
            before = await store.stats()
            threads: list[int] = []

            async def one(number: int) -> int:
                offset = await topic.append(b"%d" % number)
                threads.append(own_threads())
                return offset

            offsets = await asyncio.gather(*(one(number) for number in range(500)))
            assert sorted(offsets) == list(range(500))
            found = await topic.read_values()
            assert [found[offset] for offset in offsets] == [b"%d" % n for n in range(500)]
            after = await store.stats()
            assert after.commits - before.commits < 50
            assert max(threads) < 20

    run(work)


def test_relaxed_appends_do_not_wait(path: Path) -> None:
    """They return before anything is written, and readers see them all the same."""

    async def work() -> None:
        async with stratalog.aio.open(path, durability="memory", sync_interval=3600.0) as store:
            topic = await store.topic("orders")
            commits = (await store.stats()).commits
            for number in range(20):
                assert await topic.append(b"x") == number
            async with store.batch() as batch:
                handle = batch.topic("orders").append(b"x")
            assert handle.offset == 20
            assert (await store.stats()).commits - commits <= 1
            assert len(await topic.read_values()) == 21
            # What has gathered is written when it is too much.
            for _ in range(10):
                await topic.append(bytes(600_000))
            assert (await store.stats()).commits - commits >= 4

    run(work)


def test_batches_of_tasks(path: Path) -> None:
    """In one shard without a thread, over several with; all or nothing; the same errors."""

    async def work() -> None:
        async with stratalog.aio.open(path, shards=3) as store:

            async def one(number: int) -> int:
                async with store.batch() as batch:
                    handle = batch.topic("a").append(b"%d" % number)
                    for name in "bcd":
                        batch.topic(name).append_many([b"%d" % number])
                return handle.offset

            offsets = await asyncio.gather(*(one(number) for number in range(40)))
            assert sorted(offsets) == list(range(40))
            a = await store.topic("a")
            assert [int(v or b"") for v in await a.read_values()] == [
                number for _, number in sorted(zip(offsets, range(40), strict=True))
            ]
            for name in "bcd":
                assert await (await store.topic(name)).read_values() == await a.read_values()
            try:
                async with store.batch() as batch:
                    batch.topic("a").append(b"discarded")
                    raise KeyError
            except KeyError:
                pass
            async with store.batch() as batch:
                batch.topic("a").append(b"last")
                with pytest.raises(WrongTypeError):
                    batch.topic("a").append("text")  # type: ignore[arg-type]
                await batch.commit()
                with pytest.raises(StateError):
                    batch.topic("a")
            async with store.batch():
                pass
            assert (await a.read_values())[39:] == [await_last(offsets), b"last"]

    def await_last(offsets: list[int]) -> bytes:
        return b"%d" % offsets.index(39)

    run(work)


def test_watchers_are_woken_and_take_no_thread(path: Path) -> None:
    """A hundred of them: each sees everything, in order, and stops when it is told."""

    async def work() -> None:
        async with stratalog.aio.open(path) as store:
            topic = await store.topic("orders")
            await topic.append(b"before")
            ready = asyncio.Semaphore(0)

            async def watch(start: int | None) -> list[bytes | None]:
                found: list[bytes | None] = []
                ready.release()
                async for item in topic.watch(start):
                    assert isinstance(item, Record)
                    found.append(item.value)
                    if item.value == b"last":
                        break
                return found

            tasks = [asyncio.create_task(watch(0)) for _ in range(100)]
            for _ in tasks:
                await ready.acquire()
            threads = own_threads()
            for number in range(20):
                await topic.append(b"%d" % number)
            assert threads < 20
            await topic.append(b"last", durability="disk")
            wanted = [b"before", *(b"%d" % number for number in range(20)), b"last"]
            assert await asyncio.gather(*tasks) == [wanted] * 100
            assert topic.blocking.log.waiters == []

    run(work)


def test_a_watch_ends_in_time_or_is_cancelled_at_once(path: Path) -> None:
    """By its timeout, by cancellation, by a drop, or with the store."""

    async def work() -> None:
        async with stratalog.aio.open(path) as store:
            topic = await store.topic("orders")
            assert await values(topic.watch(timeout=0.01)) == []
            await topic.append(b"1")
            assert await values(topic.watch(0, timeout=0)) == [b"1"]
            with pytest.raises(OptionError, match="timeout"):
                await values(topic.watch(timeout=-1))
            with pytest.raises(OffsetOutOfRangeError):
                await values(topic.watch(7))

            task = asyncio.create_task(values(topic.watch()))
            await until(lambda: bool(topic.blocking.log.waiters))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert topic.blocking.log.waiters == []

            task = asyncio.create_task(values(topic.watch()))
            await until(lambda: bool(topic.blocking.log.waiters))
            await store.drop_topic("orders")
            with pytest.raises(UnknownTopicError):
                await task

            again = await store.topic("orders")
            assert again is not topic
            last = asyncio.create_task(values(again.watch(0)))
            await until(lambda: bool(again.blocking.log.waiters))
        assert await last == []

    run(work)


def test_a_task_that_is_woken_and_cancelled_at_once_is_cancelled() -> None:
    """With `asyncio.wait_for` it sometimes went on, and the canceller waited for ever.

    The wake-up and the cancellation have to come within a few steps of the loop.
    """

    async def wait_again_and_again(waiter: LoopWaiter) -> None:
        while True:
            await waiter.wait(10.0)
            waiter.clear()

    async def work() -> None:
        for steps in range(8):
            waiter = LoopWaiter()
            task = asyncio.create_task(wait_again_and_again(waiter))
            for _ in range(3):
                await asyncio.sleep(0)
            waiter.release()
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()

    run(work)


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something holds."""
    while not condition():
        await asyncio.sleep(0)


def test_a_reader_beside_another_process_follows_it(path: Path) -> None:
    """A read-only store: the writer's records come, though nothing wakes the reader."""

    async def work() -> None:
        with stratalog.open(path) as writer:
            writer.topic("orders").append(b"0")
            async with stratalog.aio.open(path, read_only=True) as store:
                topic = await store.topic("orders")
                with pytest.raises(ReadOnlyError):
                    await topic.append(b"x")
                with pytest.raises(ReadOnlyError):
                    await topic.append_many([b"x"])
                with pytest.raises(ReadOnlyError):
                    store.batch()
                watching = topic.watch(0)
                assert await anext(watching) is not None
                writer.topic("orders").append(b"1")
                item = await anext(watching)
                assert isinstance(item, Record)
                assert item.value == b"1"
                assert await values(topic.watch(timeout=0.03)) == []

    run(work)


def test_errors_are_those_of_the_package(path: Path) -> None:
    """Errors of arguments, of the store, of the disk."""

    async def work() -> None:
        async with stratalog.aio.open(path, record_bytes_max=100) as store:
            topic = await store.topic("orders")
            wrong: list[tuple[type[Exception], Callable[[], Awaitable[Any]]]] = [
                (WrongTypeError, lambda: topic.append("text")),  # type: ignore[arg-type]
                (TooLargeError, lambda: topic.append(bytes(101))),
                (WrongTypeError, lambda: topic.append_many(b"x")),  # type: ignore[arg-type]
                (OptionError, lambda: topic.append_many([])),
                (OptionError, lambda: topic.append(b"", durability="often")),
                (OffsetOutOfRangeError, lambda: values(topic.read(7))),
                (WrongTypeError, lambda: store.topic(7)),  # type: ignore[call-overload]
                (LockedError, lambda: stratalog.aio.open(path).__aenter__()),
            ]
            for kind, call in wrong:
                with pytest.raises(kind):
                    await call()
            assert await topic.append(b"good") == 0
            shard = topic.blocking.log.shard

            def fail() -> None:
                raise OSError(5, "no")

            shard.files.file.fdatasync = fail  # type: ignore[method-assign]
            results = await asyncio.gather(
                *(topic.append(b"bad") for _ in range(10)), return_exceptions=True
            )
            assert all(isinstance(result, SyncFailedError) for result in results)
            assert len({id(result) for result in results}) == 10
            assert await topic.read_values() == [b"good"]
            with pytest.raises(stratalog.StratalogError):
                async with store.batch() as batch:
                    batch.topic("orders").append(b"bad")
            with pytest.raises(stratalog.StratalogError):
                await store.close()

    run(work)


def test_a_closed_store_says_so(path: Path) -> None:
    """Every call, and closing again is fine."""

    async def work() -> None:
        store = await stratalog.aio.open(path)
        topic = await store.topic("orders")
        await store.close()
        await store.close()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.topic("orders"),
            lambda: topic.append(b"x"),
            lambda: topic.append_many([b"x"]),
            lambda: topic.read_values(),
            lambda: values(topic.read()),
            lambda: values(topic.watch()),
            store.stats,
        ]
        for call in calls:
            with pytest.raises(ClosedError):
                await call()
        with pytest.raises(ClosedError):
            store.batch()

    run(work)


def test_closing_waits_for_what_has_begun(path: Path) -> None:
    """Appends, batches and reads of other tasks are finished, and what comes later is refused."""

    async def work() -> int:
        store = await stratalog.aio.open(path, shards=2)
        topic = await store.topic("orders")
        await topic.append_many([b"old"] * 5000)
        appends = [asyncio.create_task(topic.append(b"%d" % n)) for n in range(100)]
        reads = [asyncio.create_task(topic.read_values()) for _ in range(8)]
        batches = [asyncio.create_task(both(store)) for _ in range(5)]
        await asyncio.sleep(0)
        await store.close()
        assert all(task.done() for task in appends)
        results = await asyncio.gather(*appends, *batches, *reads, return_exceptions=True)
        for result in results:
            assert not isinstance(result, BaseException) or isinstance(result, ClosedError), result
        return sum(isinstance(result, int) for result in results[:100])

    async def both(store: AsyncStore) -> None:
        async with store.batch() as batch:
            batch.topic("orders").append(b"batch")
            batch.topic("refunds").append(b"batch")

    kept = run(work)
    assert kept == 100
    with stratalog.open(path) as store:
        found = store.topic("orders").read_values()
        assert {b"%d" % n for n in range(100)} <= set(found)
        count = found.count(b"batch")
        assert "refunds" not in store.topics() or len(store.topic("refunds")) == count


def test_a_cancelled_append_is_kept_and_hurts_nobody(path: Path) -> None:
    """Tasks that share its sync get their offsets, and nothing is left over."""

    async def work() -> None:
        async with stratalog.aio.open(path, shards=1) as store:
            topic = await store.topic("orders")
            tasks = [asyncio.create_task(topic.append(b"%d" % n)) for n in range(60)]
            await asyncio.sleep(0)
            for task in tasks[::3]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for number, result in enumerate(results):
                if number % 3:
                    assert result == number
                else:
                    assert isinstance(result, asyncio.CancelledError)
            assert await topic.read_values() == [b"%d" % n for n in range(60)]
            reading = asyncio.create_task(values(topic.read()))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert len(await topic.read_values()) == 60

    run(work)


def test_an_opening_that_is_cancelled_lets_the_directory_go(path: Path) -> None:
    """The thread opens the store all the same: it has to be closed."""

    async def work() -> None:
        opening = asyncio.ensure_future(stratalog.aio.open(path).__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    run(work)
    deadline = time.monotonic() + 30
    while True:  # the thread may not be done yet
        try:
            with stratalog.open(path) as store:
                store.topic("orders").append(b"x")
            return
        except stratalog.LockedError:
            assert time.monotonic() < deadline


def test_threads_and_tasks_share_a_store(path: Path) -> None:
    """The blocking handles are there for code that runs in threads."""

    async def work() -> None:
        async with stratalog.aio.open(path) as store:
            topic = await store.topic("orders")
            assert isinstance(topic, AsyncTopic)

            def thread() -> None:
                for _ in range(50):
                    store.blocking.topic("orders").append(b"thread")

            async def task() -> None:
                for _ in range(50):
                    await topic.append(b"task")

            await asyncio.gather(asyncio.to_thread(thread), task(), task())
            found = await topic.read_values()
            assert (found.count(b"thread"), found.count(b"task")) == (50, 100)
            watched = await values(topic.watch(0, timeout=0))
            assert watched == found

    run(work)
