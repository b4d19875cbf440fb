"""The data source `stratalog`: what Spark asks for, and who answers.

Spark makes a `StratalogSource` in a Python process of its own, asks it for a reader there, has that
plan, and sends it to where the tasks run. So everything here can be pickled, and files are opened
in `read` and nowhere else.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from stratalog.segments.read import offset_at
from stratalog.spark.columns import check_schema, default_schema
from stratalog.spark.filters import Wanted
from stratalog.spark.options import ReadOptions, wants_headers
from stratalog.spark.pieces import read_task
from stratalog.spark.plan import (
    Range,
    Span,
    TaskPartition,
    make_tasks,
    open_view,
    resolve,
    spans_of,
)
from stratalog.spark.ship import Shipped
from stratalog.spark.stream import StreamReader
from stratalog.view import View

# The process in which Spark hands filters over has this module loaded, and no other has. A reader
# that takes filters is an error to Spark unless it is asked for them.
_FILTERS_MODULE = "pyspark.sql.worker.data_source_pushdown_filters"


class StratalogSource(Shipped, DataSource):
    """A store's topics as DataFrames."""

    @classmethod
    def name(cls) -> str:
        """What goes into `format(...)`."""
        return "stratalog"

    def schema(self) -> StructType:
        """All columns, unless the user says which."""
        return default_schema(include_headers=wants_headers(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Of a batch read."""
        options = ReadOptions.parse(self.options)
        if _FILTERS_MODULE in sys.modules:
            return FilteredReader(options, check_schema(schema))
        return BatchReader(options, check_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Of a streaming read."""
        return StreamReader(ReadOptions.parse(self.options, is_stream=True), check_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Of a batch write."""
        return _sink().batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        """Of a streaming write."""
        return _sink().stream_writer(schema, self.options, overwrite)


def _sink() -> Any:
    """Loaded by those who write."""
    return importlib.import_module("stratalog.spark.sink")


class BatchReader(Shipped, DataSourceReader):
    """Plans a read of what is there now, and reads it."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._wanted = Wanted()

    def spans(self, view: View) -> list[Span]:
        """Where the records are that are wanted."""
        names = self._options.topics.choose(view.catalog)
        ranges = (_narrowed(one, self._wanted) for one in resolve(view, names, self._options))
        return [span for one in ranges if one is not None for span in spans_of(one)]

    def partitions(self) -> list[InputPartition]:
        """What the tasks are to read."""
        with open_view(self._options) as view:
            tasks = make_tasks(view, self.spans(view), self._options, time.time_ns())
        return [TaskPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of one task."""
        return read_task(partition.value, self._names, self._wanted.keys)


class FilteredReader(BatchReader):
    """The same, for a Spark that says beforehand what it will leave out."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802
        """Look only where the filters let anything through; Spark applies them all again."""
        self._wanted.add(filters)
        return filters


def _narrowed(one: Range, wanted: Wanted) -> Range | None:
    """What filters leave of a range."""
    topic, start, end = one
    if wanted.topics is not None and topic.name not in wanted.topics:
        return None
    start, end = max(start, wanted.offset_start), min(end, wanted.offset_end)
    if wanted.time_start > 0:
        start = max(start, offset_at(topic, wanted.time_start))
    if wanted.time_end < 1 << 63:
        end = min(end, offset_at(topic, wanted.time_end))
    return Range(topic, start, end) if start < end else None
