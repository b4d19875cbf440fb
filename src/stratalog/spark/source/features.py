"""Features that Spark's Python data sources have from a later release on: 4.0 has none of them.

| feature | since | without it |
|---|---|---|
| limits of a micro-batch | 4.2 | options that set one are refused |
| `SupportsTriggerAvailableNow` | 4.2 | Spark itself sees to it that a query ends |
| `DataSourceStreamArrowWriter` | 4.1 | a stream is written row by row, which is slower |
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType

    HAS_LIMITS = True
    HAS_ARROW_STREAM_WRITER = True
else:
    try:
        from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

        HAS_LIMITS = True
    except ImportError:
        HAS_LIMITS = False
        ReadLimit = object
        SupportsTriggerAvailableNow = object
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase

        HAS_ARROW_STREAM_WRITER = True
    except ImportError:
        from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriterBase

        HAS_ARROW_STREAM_WRITER = False

__all__ = [
    "HAS_ARROW_STREAM_WRITER", "HAS_LIMITS", "ReadLimit", "StreamWriterBase",
    "SupportsTriggerAvailableNow", "default_limit", "is_everything", "rows_to_batches",
]  # fmt: skip

# Rows that become one record batch: about a mebibyte of small ones.
_ROWS = 10_000


def default_limit(rows: int | None, size: int | None, rows_min: int | None) -> ReadLimit:
    """Tell Spark by what the micro-batches of a query are limited; one of the limits will do."""
    from pyspark.sql.streaming import datasource as limits

    if rows is not None:
        return limits.ReadMaxRows(rows)
    if size is not None:
        return limits.ReadMaxBytes(size)
    return limits.ReadAllAvailable() if rows_min is None else limits.ReadMinRows(rows_min)


def is_everything(limit: ReadLimit | None) -> bool:
    """Whether Spark wants all that there is, whatever the options say."""
    return limit is None or type(limit).__name__ == "ReadAllAvailable"


def rows_to_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows of Spark as record batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zoned = "timezone" in inspect.signature(to_arrow_schema).parameters  # later ones ask for it
    options: dict[str, Any] = {"timezone": "UTC"} if zoned else {}
    arrow = to_arrow_schema(schema, **options)
    while chunk := list(islice(rows, _ROWS)):
        columns = zip(*chunk, strict=True)
        arrays = [
            pa.array([_plain(value) for value in column], field.type)
            for column, field in zip(columns, arrow, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _plain(value: Any) -> Any:
    """A value as Arrow takes it: a time of Spark's is in the zone of this process."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.asDict(recursive=True) if hasattr(value, "asDict") else value
