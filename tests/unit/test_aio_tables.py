"""Tables in asyncio: the calls of a table, awaited, and changes that share a sync."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog import CaughtUp, Change, aio
from stratalog.errors import (
    ClosedError,
    InvalidValueError,
    ReadOnlyError,
    UsageError,
    VersionConflictError,
    WrongKindError,
)


def test_tasks_put_and_read(tmp_path: Path) -> None:
    """Every call of a table, and one handle for all who ask."""

    async def main() -> None:
        async with aio.open(tmp_path) as store:
            table = await store.table("t", versions=4)
            assert table is await store.table("t")
            first = await table.put("a", b"1", if_absent=True)
            second = await table.put("a", b"2", if_version=first)
            with pytest.raises(VersionConflictError):
                await table.put("a", b"3", if_version=first)
            assert await table.put_many({"b": b"3", "c": b"4"}) == (second + 1, second + 2)
            assert [await table.add("n"), await table.add("n", 4)] == [1, 5]
            assert await table.get("a") == b"2"
            assert await table.get("a", at=first) == b"1"
            assert await table.get("z", b"none") == b"none"
            entry = await table.entry("a")
            assert entry is not None
            assert entry.version == second
            assert [one.value for one in await table.history("a")] == [b"1", b"2"]
            assert [key async for key, _ in table.scan()] == ["a", "b", "c", "n"]
            assert [key async for key, _ in table.scan("b", 1)] == ["b"]
            assert await table.delete("a") is not None
            assert await table.delete("a") is None
            assert (await table.contains("a"), await table.count()) == (False, 3)
            await store.rebuild("t")
            assert (await store.tables(), table.name, table.is_dropped) == (["t"], "t", False)
            await store.drop_table("t")
            assert table.is_dropped
        with pytest.raises(ClosedError):
            await table.put("a", b"1")

    asyncio.run(main())


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_many_tasks_count_at_once(tmp_path: Path, durability: str) -> None:
    """More changes than wait for the state at a time, each made once."""

    async def main() -> None:
        async with aio.open(tmp_path, durability=durability) as store:
            table = await store.table("t")
            await table.put("first", b"")  # from now on changes enter in the loop
            shard = table.blocking.topic.log.shard
            before = shard.commits
            totals = await asyncio.gather(*(table.add("n") for _ in range(1500)))
            assert sorted(totals) == list(range(1, 1501))
            assert table.blocking["n"] == b"1500"
            if durability == "fsync":  # all tasks have entered before the first of them commits
                assert shard.commits - before < 100

    asyncio.run(main())


def test_a_watch_sees_entries_then_changes(tmp_path: Path) -> None:
    """It takes no thread while it waits, and ends with its time or with the store."""

    async def main() -> None:
        async with aio.open(tmp_path) as store:
            table = await store.table("t")
            await table.put_many({"a": b"1", "b": b"2"})
            seen: list[Change | CaughtUp] = []
            caught_up = asyncio.Event()

            async def follow() -> None:
                async for item in table.watch(start="snapshot"):
                    seen.append(item)
                    if isinstance(item, CaughtUp):
                        caught_up.set()
                    elif item.key == "end":
                        return

            task = asyncio.create_task(follow())
            await caught_up.wait()
            await table.put("a", b"3")
            await table.delete("b")
            await table.put("end", b"")
            await task
            changes = [one for one in seen if isinstance(one, Change)]
            assert [(one.key, one.value) for one in changes] == [
                ("a", b"1"), ("b", b"2"), ("a", b"3"), ("b", None), ("end", b""),
            ]  # fmt: skip
            assert seen.index(CaughtUp(1)) == 2
            again = [one async for one in table.watch("b", start=2, timeout=0)]
            assert [one.version for one in again if isinstance(one, Change)] == [3]

            waiting = asyncio.Event()

            async def wait() -> None:
                waiting.set()
                async for _ in table.watch():
                    raise AssertionError("nothing changes")

            idle = asyncio.create_task(wait())
            await waiting.wait()
        await idle

    asyncio.run(main())


def test_values_with_a_type_are_encoded_and_read(tmp_path: Path) -> None:
    """In every call, and in what a watch gives."""

    async def main() -> None:
        async with aio.open(tmp_path) as store:
            table = await store.table("t", type=dict[str, int])
            await table.put("a", {"n": 1})
            await table.put_many({"b": {"n": 2}})
            assert (await table.get("a"), await table.get("b")) == ({"n": 1}, {"n": 2})
            with pytest.raises(InvalidValueError):
                await table.put("a", {"n": "text"})  # type: ignore[dict-item]
            with pytest.raises(WrongKindError):
                await table.add("a")
            seen = [one async for one in table.watch(start="snapshot", timeout=0)]
            assert [one.value for one in seen if isinstance(one, Change)] == [{"n": 1}, {"n": 2}]

    asyncio.run(main())


def test_a_batch_of_tasks_changes_tables(tmp_path: Path) -> None:
    """Tables have to be there before; results are known after the block."""

    async def main() -> None:
        async with aio.open(tmp_path) as store:
            table = await store.table("t")
            async with store.batch() as batch:
                counter = batch.table("t").add("n", 5)
                batch.topic("events").append(b"5")
                with pytest.raises(UsageError, match="before the batch"):
                    batch.table("new")
            assert (counter.value, counter.version) == (5, 0)
            with pytest.raises(VersionConflictError):
                async with store.batch() as batch:
                    batch.table("t").put("n", b"6", if_absent=True)
            async with store.batch() as batch:
                counter = batch.table("t").add("n", 5)
            assert counter.value == 10
            assert await table.get("n") == b"10"
        async with aio.open(tmp_path, read_only=True) as store:
            table = await store.table("t")
            assert await table.get("n") == b"10"
            with pytest.raises(ReadOnlyError):
                await table.put("n", b"11")

    asyncio.run(main())
