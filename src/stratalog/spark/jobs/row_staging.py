"""Staging the rows of an import: executors write good ones to segments, and count the others.

Each task writes segments of its rows, and returns them to the driver with its counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.format.arrow import TYPES
from stratalog.format.manifest import StagedSegment
from stratalog.fs import PosixFileSystem
from stratalog.segments.staging import StageWriter
from stratalog.spark.jobs.row_mapping import FILE, REASON, TEXT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SEGMENT_BYTES_MAX = 64 << 20
_QUERY = "sql.streaming.queryId"
_SHOWN_CHARACTERS = 200
_BAD_HEADERS = (("reason", REASON), ("file", FILE))
_HEADER_BYTES_MAX = 8 << 10  # a path has at most 4 KiB


class Counts(msgspec.Struct):
    """Counts of imported and bad rows."""

    records: int = 0
    untimed: int = 0
    late: int = 0
    reasons: dict[str, int] = {}
    """Number of bad rows by reason."""
    example: str = ""
    """The first bad row, and its file."""

    @property
    def bad(self) -> int:
        """Number of bad rows."""
        return sum(self.reasons.values())

    def add(self, other: Counts) -> None:
        """Add the counts of another task or batch."""
        self.records += other.records
        self.untimed += other.untimed
        self.late += other.late
        for reason, number in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + number
        self.example = self.example or other.example


class _TaskResult(msgspec.Struct):
    """The segments that one task staged."""

    counts: Counts
    segments: list[StagedSegment]
    bad: list[StagedSegment]


class _Staged(NamedTuple):
    """The segments that all tasks of a batch staged."""

    query: str
    counts: Counts
    segments: list[StagedSegment]
    bad: list[StagedSegment]


def stage_rows(
    rows: DataFrame, root: str, floor: int, bytes_max: int, *, keep_bad: bool
) -> _Staged | None:
    """Stage rows on executors; returns the id of the stream and the segments, in order.

    Times below `floor` are counted as late. Bad rows are counted, and staged separately if they are
    to be kept.
    """

    def stage(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return stage_batches(batches, root, floor, bytes_max, keep_bad=keep_bad)

    made = rows.mapInArrow(stage, "query string, part long, result binary").collect()
    if not made:
        return None
    counts = Counts()
    segments: list[StagedSegment] = []
    bad: list[StagedSegment] = []
    for row in sorted(made, key=lambda row: row["part"]):
        result = msgspec.msgpack.decode(bytes(row["result"]), type=_TaskResult)
        counts.add(result.counts)
        segments += result.segments
        bad += result.bad
    (query,) = {row["query"] for row in made}
    return _Staged(query, counts, segments, bad)


def stage_batches(
    batches: Iterable[pa.RecordBatch], root: str, floor: int, bytes_max: int, *, keep_bad: bool
) -> Iterator[pa.RecordBatch]:
    """Stage the rows of one task, in segments that are not too large; on an executor."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    counts = Counts()
    good, bad = _Stage(root, bytes_max), _Stage(root, bytes_max)
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            is_good = pc.is_null(batch.column(REASON))
            records = batch.filter(is_good).drop_columns([REASON, TEXT, FILE])
            _count_records(counts, records, floor)
            good.write(records)
            if records.num_rows < batch.num_rows:
                others = batch.filter(pc.invert(is_good)).select([REASON, TEXT, FILE])
                _count_bad(counts, others)
                if keep_bad:
                    bad.write(_set_aside(others, bytes_max))
        result = _TaskResult(counts, good.finish(), bad.finish())
    except BaseException:
        good.abandon()
        bad.abandon()
        raise
    kinds = pa.schema([("query", pa.string()), ("part", pa.int64()), ("result", pa.binary())])
    if counts.records or counts.reasons:
        row = {
            "query": context.getLocalProperty(_QUERY),
            "part": context.partitionId(),
            "result": msgspec.msgpack.encode(result),
        }
        yield pa.RecordBatch.from_pylist([row], schema=kinds)


class _Stage:
    """The segments of one task for one topic."""

    def __init__(self, root: str, bytes_max: int) -> None:
        self._root = root
        self._bytes_max = bytes_max
        self._writer: StageWriter | None = None
        self._done: list[StagedSegment] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._writer is None:
            self._writer = StageWriter(
                PosixFileSystem(), self._root, record_bytes_max=self._bytes_max
            )
        self._writer.write(batch)
        if self._writer.bytes >= _SEGMENT_BYTES_MAX:
            self.finish()

    def finish(self) -> list[StagedSegment]:
        writer, self._writer = self._writer, None
        if writer is not None and (staged := writer.finish()) is not None:
            self._done.append(staged)
        return self._done

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()


def _count_records(counts: Counts, records: pa.RecordBatch, floor: int) -> None:
    counts.records += records.num_rows
    if "timestamp" in records.schema.names:
        times = records.column("timestamp")
        counts.untimed += times.null_count
        older = pc.less(times.cast(pa.int64()), floor // 1000)  # Spark has microseconds
        counts.late += pc.sum(older).as_py() or 0


def _count_bad(counts: Counts, rows: pa.RecordBatch) -> None:
    for found in pc.value_counts(rows.column(REASON)).to_pylist():
        counts.reasons[found["values"]] = counts.reasons.get(found["values"], 0) + found["counts"]
    if not counts.example:
        row = rows.slice(0, 1).to_pylist()[0]
        text = row[TEXT] or ""
        shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
        where = f" in {row[FILE]}" if row[FILE] else ""
        counts.example = f"{shown!r}{where} ({row[REASON]})"


def _set_aside(rows: pa.RecordBatch, bytes_max: int) -> pa.RecordBatch:
    """Convert bad rows to records: their text, with the reason and the file as headers."""
    headers = [
        [(name, (row[column] or "").encode()) for name, column in _BAD_HEADERS]
        for row in rows.select([REASON, FILE]).to_pylist()
    ]
    room = max(0, bytes_max - _HEADER_BYTES_MAX)
    values = [(text or "").encode()[:room] for text in rows.column(TEXT).to_pylist()]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(headers, TYPES["headers"])],
        names=["value", "headers"],
    )
