"""A series, as tasks hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.aio.runner import Runner
from stratalog.model import Durability, Latest

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.handles.series import Duration, Series, Time


class AsyncSeries:
    """A handle on one series: every call runs in a thread, and none holds up the event loop."""

    def __init__(self, runner: Runner, series: Series) -> None:
        self._runner = runner
        self._series = series

    def __repr__(self) -> str:
        return f"<stratalog.aio.AsyncSeries {self.name!r}>"

    @property
    def blocking(self) -> Series:
        """The series for code in threads: all of its methods may wait."""
        return self._series

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._series.name

    async def write(
        self,
        value: Any,
        *,
        tags: Mapping[str, str] | None = None,
        timestamp: Time | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Write one point: see `Series.write`."""
        write = partial(self._series.write, value, tags=tags, timestamp=timestamp)
        return await self._runner.run(partial(write, durability=durability))

    async def write_many(
        self,
        times: Any,
        fields: Mapping[str, Any],
        *,
        tags: Mapping[str, Any] | None = None,
        durability: Durability | str | None = None,
    ) -> tuple[int, int]:
        """Write points by column: see `Series.write_many`."""
        write = partial(self._series.write_many, times, fields, tags=tags)
        return await self._runner.run(partial(write, durability=durability))

    async def read(
        self,
        start: Time | None = None,
        end: Time | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        field: str | None = None,
    ) -> tuple[Any, Any]:
        """Timestamps and values: see `Series.read`."""
        return await self._runner.run(
            partial(self._series.read, start, end, tags=tags, field=field)
        )

    async def query(
        self, start: Time | None = None, end: Time | None = None, **arguments: Any
    ) -> pa.Table:
        """One value for each window and group: see `Series.query`."""
        return await self._runner.run(partial(self._series.query, start, end, **arguments))

    async def latest(self, tags: Mapping[str, str] | None = None) -> list[Latest]:
        """The newest point of each series that has the tags."""
        return await self._runner.run(partial(self._series.latest, tags))

    async def retention(
        self,
        raw: Duration | None = None,
        downsample: Sequence[tuple[Duration, str, Duration | None]] = (),
    ) -> None:
        """Say how long points are kept: see `Series.retention`."""
        await self._runner.run(partial(self._series.retention, raw, downsample))
