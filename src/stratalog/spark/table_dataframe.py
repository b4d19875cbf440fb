"""A table as a DataFrame: the value that every key has, or had at a moment, found by Spark.

Executors read the table's records and tell the newest of each key; Spark finds the newest of all.
Only then it is seen whether that is a deletion, or has expired.

Compaction removes versions that newer ones replaced. Where that leaves in doubt what a key was at a
moment, the DataFrame is an error and never an older or a missing value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import VersionGoneError
from stratalog.format.arrow import numbers_array, schema, to_arrow
from stratalog.handles.kinds import TABLE
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.segments.read import read_batches
from stratalog.segments.rewrite import tombstones
from stratalog.spark.history import At, Moment, Path, moment_of, plan_history, run_tasks, tasks_of
from stratalog.state.projection import hole_end
from stratalog.view import View

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from stratalog.spark.source.read_options import ReadOptions
    from stratalog.spark.source.read_task import Living, Task

_NEWEST = pa.schema(
    [
        ("key", pa.binary()),
        ("version", pa.int64()),
        ("value", pa.binary()),
        ("timestamp", pa.int64()),
        ("expires_at", pa.int64()),
        ("later", pa.int64()),
    ]
)
_NEWEST_DDL = "key binary, version long, value binary, timestamp long, expires_at long, later long"
_READ = schema(["key", "value"])

# Records that are gathered before it is reduced to one row per key.
_GATHERED_ROWS = 1 << 18
_GATHERED_BYTES = 64 << 20

_TOLD_ROWS = 1 << 14


class _Plan(NamedTuple):
    """The tasks that read a table, and which of their rows count."""

    moment: Moment
    keep: int
    """Versions that compaction keeps of a key, where it has removed some; else 0."""
    tasks: list[Task]


def table(spark: SparkSession, path: Path, name: str, at: At = None, **options: Any) -> DataFrame:
    """Make a DataFrame of a table: every key that is there, as of now or as of `at`.

    Its columns are `key`, `value`, `version`, `timestamp` and `expires_at`. `at` is a version (an
    int) or a time (a float or a datetime). Raises `VersionGoneError` if compaction has removed what
    the table was then. The DataFrame is pinned to what there is now. `options` are those of the
    data source.
    """
    from pyspark.sql import functions as f

    now = time.time_ns()

    def make(view: View, topic: TopicLog, parsed: ReadOptions) -> _Plan:
        moment = moment_of(topic, at, now)
        keep = _doubt(topic, moment)
        end = topic.committed if keep else max(moment.end, topic.earliest)
        return _Plan(moment, keep, tasks_of(view, topic, topic.earliest, end, parsed))

    moment, keep, tasks = plan_history(spark, path, name, TABLE, options, make)
    told = run_tasks(spark, tasks, lambda task: newest_of_keys(task, moment.end), _NEWEST_DDL)
    columns = ("version", "value", "timestamp", "expires_at")
    newest = told.groupBy("key").agg(
        f.max_by(f.struct(*columns), "version").alias("newest"), f.sum("later").alias("later")
    )
    rows = newest.select("key", "later", *(f"newest.{column}" for column in columns))
    if keep:
        rows = rows.withColumn("value", _known_value(name, moment, keep))
    expires_at = f.col("expires_at")
    is_alive = (expires_at == 0) | (expires_at > moment.time)
    return rows.where(f.col("value").isNotNull() & is_alive).select(
        "key", "value", "version", _timestamp("timestamp"),
        f.when(expires_at != 0, _timestamp("expires_at")).alias("expires_at"),
    )  # fmt: skip


def _timestamp(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.expr(f"timestamp_micros({name} div 1000)").alias(name)


def _known_value(name: str, moment: Moment, keep: int) -> Column:
    """Return the value of a key; an error where compaction leaves it in doubt what that was.

    As a part of the value, so that every filter on it meets the error.
    """
    from pyspark.sql import functions as f

    is_gone = f.col("version").isNull() & (f.col("later") >= keep)
    error = f.raise_error(f.lit(_gone(name, moment))).cast("binary")
    return f.when(is_gone, error).otherwise(f.col("value"))


def _gone(name: str, moment: Moment) -> str:
    return (
        f"Table {name!r} no longer knows what every key was at version {moment.end - 1}: "
        "compaction has removed some of those versions. Give a later moment, or create the table "
        "with more versions."
    )


def _doubt(topic: TopicLog, moment: Moment) -> int:
    """Count the later versions of a key that leave in doubt what it was; 0 if nothing does.

    Raises `VersionGoneError` where records that are gone may have been of any key.
    """
    if moment.end >= topic.committed:
        return 0  # the newest version of a key is never removed
    last_hole, has_earlier = _holes(topic, moment.end)
    if not has_earlier:
        return 0
    if moment.end < last_hole:  # a key may have been deleted since, and its deletion forgotten
        raise VersionGoneError(_gone(topic.name, moment), last_hole)
    return topic.options.versions


def _holes(topic: TopicLog, end: int) -> tuple[int, bool]:
    """Find where the last hole that compaction left ends, and whether one is below `end`."""
    last, has_earlier = 0, False
    for segment in topic.history.segments():
        lost = topic.history.lost.range_cardinality(segment.first, segment.end)
        if segment.is_open or segment.summary.records + lost == segment.end - segment.first:
            continue
        expected, missing = segment.first, min(end, segment.end) - segment.first
        for part in read_batches(topic, segment.first, segment.end):
            if isinstance(part, Gap):
                missing -= max(0, min(end, part.last + 1) - part.first)
                expected = part.last + 1
                continue
            batch, first, stop = part
            last = hole_end(topic, part, expected) or last
            missing -= int(np.searchsorted(batch.offsets(first, stop), end))
            expected = batch.offset_of(stop - 1) + 1
        if expected < segment.end and not topic.history.is_given_up(expected, segment.end - 1):
            last = segment.end
        has_earlier = has_earlier or missing > 0
    return last, has_earlier


# --- on executors ---------------------------------------------------------------------------


def newest_of_keys(task: Task, end: int) -> Iterator[pa.RecordBatch]:
    """Tell the newest record of every key below an offset, once or a few times.

    Of records from there on it is told how many a key has.
    """
    from stratalog.spark.source.read_task import PieceReader

    reader = PieceReader(task)
    try:
        for piece in task.pieces:
            gathered: list[pa.RecordBatch] = []
            rows = size = 0
            for part in reader.read(piece):
                batch = _rows(part, end)
                gathered.append(batch)
                rows += batch.num_rows
                size += part.batch_slice.batch.size
                if rows >= _GATHERED_ROWS or size >= _GATHERED_BYTES:
                    yield from _reduced(gathered)
                    gathered, rows, size = [], 0, 0
            yield from _reduced(gathered)
    finally:
        reader.close()


def _rows(part: Living, end: int) -> pa.RecordBatch:
    """Make rows of records that have a key; those from `end` on are told apart by `later`."""
    (batch, first, stop), keep, _ = part
    table = to_arrow(batch, _READ, first, stop)
    deleted_at = tombstones(part.batch_slice)
    values = table.column("value")
    if deleted_at is not None:  # one with a value, too
        values = pa.compute.if_else(pa.array(deleted_at == 0), values, None)
    offsets = batch.offsets(first, stop)
    expires = batch.expires_at
    arrays = [
        table.column("key"),
        numbers_array(pa.int64(), offsets),
        values,
        numbers_array(pa.int64(), batch.timestamps(first, stop)),
        pa.array(np.zeros(stop - first, np.int64) if expires is None else expires[first:stop]),
        pa.array((offsets >= end).astype(np.int64)),
    ]
    made = pa.RecordBatch.from_arrays(arrays, schema=_NEWEST)
    made = made if keep is None else made.filter(pa.array(keep))
    return made.filter(made.column("key").is_valid())


def _reduced(gathered: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Keep the newest row of each key that is not later, and count those that are."""
    whole = pa.Table.from_batches(gathered) if gathered else None
    if whole is None or not whole.num_rows:
        return
    is_later = whole.column("later").to_numpy() > 0
    places = np.arange(whole.num_rows, dtype=np.int64)
    rows = whole.filter(pa.array(~is_later)) if is_later.any() else whole
    keyed = pa.table({"key": rows.column("key"), "place": places[: rows.num_rows]})
    last = keyed.group_by("key").aggregate([("place", "max")])
    found = rows.take(last.column("place_max").combine_chunks())
    yield from found.select(_NEWEST.names).to_batches(max_chunksize=_TOLD_ROWS)
    if is_later.any():
        counted = whole.filter(pa.array(is_later)).group_by("key").aggregate([("later", "sum")])
        columns = {field.name: pa.nulls(counted.num_rows, field.type) for field in _NEWEST}
        columns |= {"key": counted.column("key"), "later": counted.column("later_sum")}
        yield from pa.table(columns).to_batches(max_chunksize=_TOLD_ROWS)
