"""A series in a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stratalog.handles.batch_parts import Appended, BatchTopic
from stratalog.handles.series import Series, Time
from stratalog.state.series_write import encode_all


class BatchSeries:
    """A series in a batch: its points exist once the batch is committed."""

    def __init__(self, series: Series, records: BatchTopic) -> None:
        self._series = series
        self._records = records

    @property
    def name(self) -> str:
        """The series' name."""
        return self._series.name

    def write(
        self,
        value: Any,
        *,
        tags: Mapping[str, str] | None = None,
        timestamp: Time | None = None,
    ) -> Appended:
        """Write one point when the batch is committed; the offset of its record is known then."""
        return self._records.add_values([self._series.encode_one(value, tags, timestamp)])

    def write_many(
        self, times: Any, fields: Mapping[str, Any], *, tags: Mapping[str, Any] | None = None
    ) -> Appended:
        """Write points by column when the batch is committed."""
        points = self._series.arrange(times, fields, tags)
        return self._records.add_values(encode_all(self._series.log, points))
