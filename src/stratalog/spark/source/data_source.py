"""The data source `stratalog`: the objects that Spark asks for.

Spark creates a `StratalogSource` in a separate Python process when a DataFrame is made, keeps it
pickled, and asks it for a reader, in other processes, whenever it plans. The reader plans, and is
sent to the tasks. So everything here can be pickled, and records are read only in `read`.

Invariants:
- A source is pinned when it is pickled for the first time: it carries the whole plan of a batch
read. However often Spark plans, all actions on a DataFrame read the same records.
- A reader takes no filters. Spark keeps one plan per DataFrame, and would use a plan that was
narrowed by the filters of one query for all later ones.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from stratalog.errors import StratalogError
from stratalog.spark.ship import Shipped
from stratalog.spark.source.columns import check_schema, default_schema, schema_of
from stratalog.spark.source.plan import TaskPartition, plan_read
from stratalog.spark.source.read_options import ReadOptions, columns_of, wants_headers
from stratalog.spark.source.read_task import Task, read_task
from stratalog.spark.source.stream import StreamReader


class StratalogSource(Shipped, DataSource):
    """The topics of a store as DataFrames."""

    _tasks: list[Task] | None = None
    """The tasks of a batch read, once they are pinned."""
    _has_reader = False
    """Whether a reader was made: it has the plan, and travels with the source to every task."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "stratalog"

    def schema(self) -> StructType:
        """Return all columns, unless the user selects some."""
        chosen = columns_of(self._named)
        if chosen is not None:
            return schema_of(chosen)
        return default_schema(include_headers=wants_headers(self._named))

    @property
    def _named(self) -> dict[str, str]:
        """Return the options that every layout has."""
        return {name: value for name, value in self.options.items() if name.lower() != "layout"}

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch read."""
        if any(name.lower() == "layout" for name in self.options):
            from stratalog.spark.source.foreign import ForeignReader  # rarely needed

            names = check_schema(schema, columns_of(self._named))
            return ForeignReader(dict(self.options), names)
        options = ReadOptions.parse(self.options)
        return BatchReader(options, check_schema(schema, options.columns), self._take_tasks())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming read."""
        self._take_tasks()
        options = ReadOptions.parse(self.options, is_stream=True)
        return StreamReader(options, check_schema(schema, options.columns))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Return the writer of a batch write."""
        return _sink().batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        """Return the writer of a streaming write."""
        return _sink().stream_writer(schema, self.options, overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Pin the read: Spark pickles a source that it has just made.

        Errors in the options or the store are raised when a query is planned, because a stream,
        which has other errors, cannot be distinguished from a batch read here.
        """
        if self._tasks is None and not self._has_reader:
            with contextlib.suppress(StratalogError, OSError):
                self._tasks = plan_read(ReadOptions.parse(self.options), time.time_ns())
        return self.__dict__

    def _take_tasks(self) -> list[Task] | None:
        tasks, self._tasks, self._has_reader = self._tasks, None, True
        return tasks


def _sink() -> Any:
    """Import the sink, which only writes need."""
    return importlib.import_module("stratalog.spark.source.sink")


class BatchReader(Shipped, DataSourceReader):
    """Reads the records that existed when its DataFrame was made."""

    def __init__(
        self, options: ReadOptions, names: tuple[str, ...], tasks: list[Task] | None = None
    ) -> None:
        self._options = options
        self._names = names
        self._tasks = tasks
        """The pinned tasks; None plans now."""

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the read."""
        if self._tasks is None:
            self._tasks = plan_read(self._options, time.time_ns())
        return [TaskPartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the record batches of one task."""
        return read_task(partition.value, self._names)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tasks": None}  # each task gets its own as a partition
