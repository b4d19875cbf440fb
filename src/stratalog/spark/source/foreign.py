"""Directories of other systems as DataFrames: `option("layout", ...)`.

The readers of `stratalog.interop` do the work. A task reads whole segments of one topic, where the
layout has segments that can be read separately.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from stratalog.errors import DataLossError, OptionError, UnknownTopicError
from stratalog.format.record_columns import TYPES
from stratalog.interop import LAYOUTS, Foreign, read_directory
from stratalog.options import check_known
from stratalog.spark.ship import Shipped

OPTIONS = ("layout", "path", "topic", "columns", "cold", "failOnDataLoss", "includeHeaders")
"""All options of a read of a foreign directory."""


@dataclasses.dataclass(frozen=True, slots=True)
class ForeignPiece:
    """A part of a topic: a segment, or the whole topic."""

    topic: str
    number: int | None


class ForeignPartition(InputPartition):
    """The partition of one task."""

    def __init__(self, piece: ForeignPiece) -> None:
        super().__init__(piece)


class ForeignReader(Shipped, DataSourceReader):
    """Reads a foreign directory."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        values = {name.lower(): value for name, value in options.items()}
        for name in options:
            if name.lower() not in {one.lower() for one in OPTIONS}:
                check_known("option of a foreign layout", [name], OPTIONS)
        self._layout = values["layout"]
        if self._layout not in LAYOUTS:
            raise OptionError(
                f"layout={self._layout!r} is not known: use one of {', '.join(LAYOUTS)}"
            )
        self._path = values.get("path", "")
        self._cold = values.get("cold") or None
        self._topics = [one.strip() for one in values.get("topic", "*").split(",") if one.strip()]
        self._may_lose = values.get("failondataloss", "true").lower() == "false"
        self._names = names

    def _open(self) -> Foreign:
        return read_directory(self._layout, self._path, cold=self._cold)

    def partitions(self) -> list[InputPartition]:
        """Return a task per segment, or per topic."""
        foreign = self._open()
        chosen: list[str] = []
        for pattern in self._topics:
            found = fnmatch.filter(foreign.contents, pattern)
            if not found:
                present = ", ".join(foreign.contents) or "none"
                raise UnknownTopicError(f"No topic matches {pattern!r}. There is {present}.")
            chosen += [name for name in found if name not in chosen]
        return [
            ForeignPartition(ForeignPiece(name, number))
            for name in chosen
            for number in range(len(foreign.contents[name].pieces)) or [None]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the record batches of one task."""
        piece: ForeignPiece = partition.value
        foreign = self._open()
        topic = foreign.contents[piece.topic]
        batches = topic.batches if piece.number is None else topic.pieces[piece.number]
        known = len(foreign.problems)
        for batch in batches():
            yield _convert(batch, piece.topic, self._names)
        # Losses found while opening the directory concern all tasks; the first one reports them.
        first = 0 if not piece.number else known
        lost = [problem for problem in foreign.problems[first:] if problem.lost]
        if lost and not self._may_lose:
            raise DataLossError(
                f"{lost[0].path} at {lost[0].position}: {lost[0].what} Lost: {lost[0].lost}. Set "
                "failOnDataLoss to false to read what is left."
            )


def _convert(batch: pa.RecordBatch, topic: str, names: tuple[str, ...]) -> pa.RecordBatch:
    """Convert a batch to these columns, with Spark's types."""
    columns = []
    for name in names:
        type = TYPES[name]
        if name == "topic":
            columns.append(pa.repeat(pa.scalar(topic, type), batch.num_rows))
            continue
        # Other layouts have one time for a record, which may go back.
        column = batch.column("timestamp" if name == "event_time" else name)
        if name in ("priority", "operation"):
            column = column.fill_null(0)
        # Nanoseconds become microseconds; everything else fits.
        columns.append(column.cast(type, safe=False))
    schema = pa.schema([(name, TYPES[name]) for name in names])
    return pa.RecordBatch.from_arrays(columns, schema=schema)
