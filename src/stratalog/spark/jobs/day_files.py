"""Parquet files by topic and day, named by the offsets of their unit.

Times never go backwards within a topic: the days of a unit follow each other, so one file at a time
is open, in memory until it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.format.record_columns import Columns
from stratalog.spark.jobs.destination import open_lake
from stratalog.spark.jobs.ledger import ExportFile, ExportUnit
from stratalog.spark.source.read_task import PieceReader, Task

_DAY_US = 86400 * 10**6
# Rows are gathered into groups of about this many bytes, which suits readers of Parquet.
_GROUP_BYTES = 32 << 20

COLUMNS = ("offset", "timestamp", "key", "value", "headers", "tag", "node")
"""Exported columns of a record, besides its topic and day."""


class ExportWork(NamedTuple):
    """A unit, as sent to an executor."""

    unit: ExportUnit
    task: Task
    location: str
    has_topic: bool
    """Whether files have the topic as a column, too."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in a file."""
        return ("topic", *COLUMNS) if self.has_topic else COLUMNS


def export_unit(work: ExportWork) -> list[ExportFile]:
    """Write the records of a unit to files, by day; on an executor."""
    files = DayFiles(work.location, work.unit)
    for batch in read_unit(work):
        files.add(batch)
    return files.finish()


def read_unit(work: ExportWork) -> Iterator[pa.RecordBatch]:
    """Read the records of a unit, by column."""
    reader = PieceReader(work.task)
    columns = Columns(work.columns)
    try:
        for piece in work.task.pieces:
            for (batch, first, end), keep, topic in reader.read(piece):
                made = columns.make(topic, batch, first, end, keep)
                if made.num_rows:
                    yield made
    finally:
        reader.close()


class DayFiles:
    """The files of one unit while they are written."""

    def __init__(self, location: str, unit: ExportUnit) -> None:
        self._lake = open_lake(location)
        self._unit = unit
        self._day = -1
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._sink: pa.BufferOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._bounds = [0, 0, 0, 0]
        self._records = 0
        self._files: list[ExportFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add records that follow the earlier ones."""
        micros = batch.column("timestamp").cast(pa.int64()).to_numpy()
        days = micros // _DAY_US
        edges = [0, *(np.flatnonzero(np.diff(days)) + 1).tolist(), len(days)]
        for first, end in pairwise(edges):
            if days[first] != self._day:
                self._close()
                self._day = int(days[first])
            part = batch.slice(first, end - first)
            offsets = part.column("offset")
            if not self._records:
                self._bounds = [offsets[0].as_py(), 0, int(micros[first]), 0]
            self._bounds[1], self._bounds[3] = offsets[-1].as_py(), int(micros[end - 1])
            self._records += end - first
            self._pending.append(part)
            self._pending_bytes += part.nbytes
            if self._pending_bytes >= _GROUP_BYTES:
                self._flush()

    def finish(self) -> list[ExportFile]:
        """Write the open file; returns all files."""
        self._close()
        return self._files

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending)
        if self._writer is None:
            self._sink = pa.BufferOutputStream()
            self._writer = pq.ParquetWriter(self._sink, table.schema, compression="zstd")
        self._writer.write_table(table)
        self._pending, self._pending_bytes = [], 0

    def _close(self) -> None:
        if not self._records:
            return
        if self._pending:
            self._flush()
        assert self._writer is not None
        assert self._sink is not None
        self._writer.close()
        data = self._sink.getvalue()
        day = str(np.datetime64(self._day, "D"))
        name = file_name(self._unit, day)
        self._lake.put(name, data)
        self._files.append(
            ExportFile(name, self._unit.topic, day, self._records, data.size, *self._bounds)
        )
        self._writer = self._sink = None
        self._records = 0


def file_name(unit: ExportUnit, day: str) -> str:
    """Name the file of a unit and a day: equal whenever they are exported."""
    topic = quote(unit.topic, safe="")
    return f"topic={topic}/day={day}/{unit.topic_id:016x}-{unit.start:020d}-{unit.end:020d}.parquet"


REPORT = pa.schema([("unit", pa.int64()), ("bad", pa.int64()), ("files", pa.binary())])
"""Columns of the result of a unit with a schema."""


def write_parsed(
    batches: Iterable[pa.RecordBatch], works: list[ExportWork], encode: Any
) -> Iterator[pa.RecordBatch]:
    """Write rows that Spark has parsed to files; on an executor.

    They come unit by unit, in order; `unit` is the number of a row's unit.
    """
    current = -1
    files: DayFiles | None = None
    bad = 0

    def finished() -> pa.RecordBatch:
        assert files is not None
        row = {"unit": current, "bad": bad, "files": encode(files.finish())}
        return pa.RecordBatch.from_pylist([row], schema=REPORT)

    for batch in batches:
        units = batch.column("unit").to_numpy()
        rest = batch.drop_columns(["unit"])
        edges = [0, *(np.flatnonzero(np.diff(units)) + 1).tolist(), len(units)]
        for first, end in pairwise(edges):
            if first == end:
                continue
            if units[first] != current:
                if files is not None:
                    yield finished()
                current, bad = int(units[first]), 0
                files = DayFiles(works[current].location, works[current].unit)
            part = rest.slice(first, end - first)
            bad += len(part) - part.column("_corrupt").null_count
            assert files is not None
            files.add(part)
    if files is not None:
        yield finished()
