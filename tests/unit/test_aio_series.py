"""Series in asyncio: the calls of a series, awaited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stratalog import aio
from stratalog.errors import UsageError


def test_tasks_write_and_read_series(tmp_path: Path) -> None:
    """Many tasks write, and all points are there."""

    async def main() -> None:
        async with aio.open(tmp_path, durability="disk") as store:
            cpu = await store.series("cpu")
            await asyncio.gather(*(cpu.write(float(n), timestamp=n) for n in range(20)))
            await cpu.write_many([20, 21], {"value": [20.0, 21.0]})
            assert await store.write_lines("cpu value=22 22", precision="s") == 1
            _, values = await cpu.read()
            assert values.tolist() == [float(n) for n in range(23)]
            table = await cpu.query(aggregate="count")
            assert table["value"].to_pylist() == [23]
            assert (await cpu.latest())[0].fields == {"value": 22.0}
            async with store.batch() as batch:
                batch.series("cpu").write(23.0, timestamp=23)
                with pytest.raises(UsageError, match="before the batch"):
                    batch.series("new")
            assert (await cpu.latest())[0].fields == {"value": 23.0}
            await cpu.retention(raw="1d")
            assert (await cpu.read())[1].tolist() == []
            assert await store.series_names() == ["cpu"]
            await store.drop_series("cpu")
            assert await store.series_names() == []

    asyncio.run(main())
