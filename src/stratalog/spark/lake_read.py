"""Topics with a lake as DataFrames: its files by Spark's own Parquet scan, the rest from the log.

A plan is made from one view: the current manifest, the deleted offsets, the end of the log, and the
time by which records have expired. Whatever the store does later, the DataFrame reads that.

- Files that lie wholly inside of the range are scanned unchanged; files with records that were
deleted since or that expire, or only partly in the range, are scanned with filters.
- The rest of the log is written as one more Parquet file if it is small and the executors are on
this machine: Spark itself prunes and counts a scan of files alone. Otherwise Python tasks read it.
- A missing or damaged file is an error, whatever the session's settings.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyroaring import BitMap64
from xxhash import xxh3_128_digest

from stratalog.errors import ColdStoreError, DataLossError, StorageError
from stratalog.format.lake import LakeFile
from stratalog.format.record_columns import Columns
from stratalog.fs import PosixFileSystem
from stratalog.fs.cold import open_known
from stratalog.handles.lake import path_of
from stratalog.lake.manifests import read_manifest
from stratalog.lake.parquet import COLUMNS as FILE_COLUMNS
from stratalog.lake.parquet import ParquetFile
from stratalog.lake.policy import floor_of, is_over, is_replaced, pending_deletes
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.segments.read import offsets_between
from stratalog.spark.session import is_connect, is_local
from stratalog.spark.source.columns import schema_of
from stratalog.spark.source.plan import (
    Range,
    Span,
    check_floor,
    make_tasks,
    open_view,
    place,
    spans_of,
    task_of,
)
from stratalog.spark.source.read_options import EARLIEST, Position, ReadOptions
from stratalog.spark.source.read_task import PieceReader, Task, lost_error, read_task
from stratalog.spark.spark_errors import spark_sentence
from stratalog.spark.tail_files import find_tail, watch_tail, write_tail
from stratalog.view import View

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

# Up to this much of the log is written as Parquet when a read is planned: half a second of work.
_TAIL_BYTES_MAX = 128 << 20

# Deleted offsets are excluded by a filter as long as they are few runs, otherwise by a join.
_RUNS_MAX = 32

_ATTEMPTS_MAX = 10


class _GoneError(StorageError):
    """A file of the lake was removed after a read of it was planned."""


class TopicPlan(NamedTuple):
    """The plan for one topic."""

    topic: str
    whole: list[str]
    """Paths of files that are scanned unchanged."""
    parts: list[str]
    """Paths of files that are scanned with filters."""
    start: int
    end: int
    deleted: BitMap64
    """Deleted offsets of `parts`."""
    since: int
    """Records of `parts` before this time are excluded; nanoseconds."""
    until: int
    """Records from this time on are excluded as well; 0 for no bound."""
    rest: list[Task]
    """Ranges that Python tasks read."""
    newest: int
    """Time of the newest record: with the places of records, it says which they are."""
    tail: Task | None
    """Ranges that are written as one more file."""


def read_with_lake(
    spark: SparkSession, options: ReadOptions, names: tuple[str, ...], now: int
) -> DataFrame | None:
    """Read topics as a DataFrame; None if none of them has a lake, or is to have one."""
    # The end of a microsecond: microseconds alone then decide what has expired.
    now = now // 1000 * 1000 + 999
    may_write = not is_connect(spark) and is_local(spark)
    attempts = 0
    while True:
        try:
            plans = _plan(options, now, may_write=may_write)
            if plans is None:
                return None
            frames = [frame for plan in plans for frame in _frames(spark, plan, names, now)]
            break
        # The store goes on: segments are rewritten, and a purge removes files at once.
        except (DataLossError, ColdStoreError, _GoneError):
            attempts += 1
            if attempts == _ATTEMPTS_MAX:
                raise
    if not frames:
        return spark.createDataFrame([], schema_of(names))
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


# --- the plan -------------------------------------------------------------------------------


def _plan(options: ReadOptions, now: int, *, may_write: bool) -> list[TopicPlan] | None:
    with open_view(options) as view:
        view.listen()
        chosen = options.topics.choose(view.catalog)
        if not any(_has_lake(view.catalog.find(name)) for name in chosen):
            return None
        options.start.check(chosen)
        options.end.check(chosen)
        return [
            _plan_topic(view, view.catalog.find(name), options, now, may_write=may_write)
            for name in chosen
        ]


def _has_lake(topic: TopicLog) -> bool:
    lake = topic.history.lake
    return topic.options.lake or (lake is not None and lake.files > 0)


def _plan_topic(
    view: View, topic: TopicLog, options: ReadOptions, now: int, *, may_write: bool
) -> TopicPlan:
    files = _files(view, topic, options, now)
    lowest = max(files[0].first_offset, floor_of(topic)) if files else topic.earliest
    lowest = min(lowest, topic.earliest)
    given = options.start.of(topic.name), options.end.of(topic.name)
    end = _place(topic, given[1], options, lowest, is_start=False)
    start = _place(topic, given[0], options, lowest, is_start=True)
    start = _check_lowest(topic, start, end, lowest, options)
    meant = [file for file in files if file.first_offset < end and file.end_offset > start]
    since = _time(given[0]) if lowest < topic.earliest else 0
    until = _time(given[1]) if lowest < topic.earliest else 0
    if topic.options.ttl is not None:
        since = max(since, now - round(topic.options.ttl * 10**9) + 1)
    whole: list[str] = []
    parts: list[str] = []
    deleted = BitMap64()
    for file in meant:
        path = path_of(topic.history.lake.location, file.name)  # type: ignore[union-attr]
        is_whole = (
            start <= file.first_offset
            and file.end_offset <= end
            and not pending_deletes(file, topic.history.deleted)
            and not 0 < file.expires_at <= now
            and since <= file.min_timestamp
            and (not until or file.max_timestamp < until)
        )
        if file.records:
            (whole if is_whole else parts).append(path)
        if not is_whole:
            inside = BitMap64()
            inside.add_range(file.first_offset, file.end_offset)
            deleted |= inside & topic.history.deleted
    spans: list[Span] = []
    for first, stop in _uncovered(meant, start, end):
        first = check_floor(topic, first, stop, options)
        if first < stop:
            spans += spans_of(Range(topic, first, stop))
    is_small = may_write and sum(span.size for span in spans) <= _TAIL_BYTES_MAX
    return TopicPlan(
        topic.name, whole, parts, start, end, deleted, since, until,
        [] if is_small or not spans else make_tasks(view, spans, options, now),
        topic.last_timestamp,
        task_of(view, spans, options, now) if is_small and spans else None,
    )  # fmt: skip


def _files(view: View, topic: TopicLog, options: ReadOptions, now: int) -> list[LakeFile]:
    """List the files of a topic's lake with records that the log has, or no longer has."""
    lake = topic.history.lake
    if lake is None or not lake.files:
        return []
    store = open_known(lake.location, options.lake, PosixFileSystem())
    try:
        manifest = read_manifest(store, lake, topic, view.store_file.identity)
    finally:
        store.close()
    floor = floor_of(topic)
    return [
        file
        for file in manifest.content.files
        if file.end_offset > floor and not is_over(topic, file, now)
        and not is_replaced(topic, file)
    ]  # fmt: skip


def _place(
    topic: TopicLog, position: Position, options: ReadOptions, lowest: int, *, is_start: bool
) -> int:
    """Resolve a position to an offset, where the lake may have more than the log."""
    if position.number == EARLIEST and not position.is_time:
        return lowest
    found = place(topic, position, options, is_start=is_start)
    if not position.is_time:
        return found
    if found > topic.earliest or lowest == topic.earliest:
        return found
    return lowest if is_start else topic.earliest  # by time, among records only the lake has


def _check_lowest(topic: TopicLog, start: int, end: int, lowest: int, options: ReadOptions) -> int:
    """Return where to begin, given what is gone; raises for records that were not deleted."""
    if lowest == topic.earliest:
        return check_floor(topic, start, end, options)
    gap = Gap(max(start, topic.history.lake_floor), min(end, lowest) - 1, "evicted")
    if options.fail_on_data_loss and gap.last >= gap.first:
        raise lost_error(topic.name, gap)
    return max(start, lowest)


def _time(position: Position) -> int:
    return position.number if position.is_time else 0


def _uncovered(files: list[LakeFile], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Give the ranges that none of the files covers."""
    for file in files:
        if start < file.first_offset:
            yield start, min(end, file.first_offset)
        start = max(start, file.end_offset)
    if start < end:
        yield start, end


# --- DataFrames -----------------------------------------------------------------------------


def _frames(
    spark: SparkSession, plan: TopicPlan, names: tuple[str, ...], now: int
) -> Iterator[DataFrame]:
    tail = None if plan.tail is None else _write_tail(spark, plan.tail, plan.newest)
    whole = plan.whole if tail is None else [*plan.whole, tail]
    if whole:
        scan = _scan(spark, whole)
        if tail is not None:
            watch_tail(spark, tail, scan)
        yield _named(scan, plan.topic, names)
    if plan.parts:
        yield _named(_filtered(spark, _scan(spark, plan.parts), plan, now), plan.topic, names)
    if plan.rest:
        yield _rest(spark, plan.rest, names)


def _scan(spark: SparkSession, paths: list[str]) -> DataFrame:
    from pyspark.sql.types import ShortType

    schema = schema_of(name for name in FILE_COLUMNS if name != "timestamp_ns")
    reader = spark.read.schema(schema.add("timestamp_ns", ShortType()))
    # A missing file must not silently shorten a result.
    for option in ("ignoreMissingFiles", "ignoreCorruptFiles", "mergeSchema"):
        reader = reader.option(option, "false")
    from pyspark.errors import AnalysisException

    try:
        return reader.parquet(*map(_spark_path, paths))
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise _GoneError(
            f"A file of the lake is missing: {spark_sentence(error)} Bring it back, or remove the "
            "lake as a whole, and it is made again."
        ) from error


def _spark_path(path: str) -> str:
    """Convert a path for Spark: escape pattern characters, and use Hadoop's scheme for S3."""
    if path.startswith("s3://"):
        return f"s3a://{path[5:]}"
    escaped = "".join(f"\\{one}" if one in "{}[]*?\\" else one for one in path)
    return escaped if "://" in path else f"file://{escaped}"


def _named(frame: DataFrame, topic: str, names: tuple[str, ...]) -> DataFrame:
    from pyspark.sql import functions as f

    def column(name: str) -> Column:
        if name == "topic":
            return f.lit(topic).alias(name)
        if name == "event_time":  # files of an earlier release do not have it
            return f.coalesce(f.col(name), f.col("timestamp")).alias(name)
        return f.col(name)

    return frame.select(*map(column, names))


def _filtered(spark: SparkSession, frame: DataFrame, plan: TopicPlan, now: int) -> DataFrame:
    from pyspark.sql import functions as f

    offset = f.col("offset")
    frame = frame.where((offset >= plan.start) & (offset < plan.end))
    expires = f.col("expires_at")
    frame = frame.where(expires.isNull() | (expires > f.timestamp_micros(f.lit(now // 1000))))
    if plan.since:
        frame = frame.where(_is_from(plan.since))
    if plan.until:
        frame = frame.where(~_is_from(plan.until))
    runs = _runs(plan.deleted)
    if len(runs) <= _RUNS_MAX:
        for first, last in runs:
            frame = frame.where((offset < first) | (offset > last))
        return frame
    import pyarrow as pa

    gone = pa.table({"offset": np.array(plan.deleted.to_array(), np.int64)})
    return frame.join(f.broadcast(spark.createDataFrame(gone)), "offset", "left_anti")


def _is_from(nanoseconds: int) -> Column:
    """Return the condition that a record has this time or a later one."""
    from pyspark.sql import functions as f

    time, moment = f.col("timestamp"), f.timestamp_micros(f.lit(nanoseconds // 1000))
    if not nanoseconds % 1000:
        return time >= moment
    below = f.col("timestamp_ns") >= f.lit(nanoseconds % 1000)
    return (time >= moment) & ((time > moment) | below)


def _runs(offsets: BitMap64) -> list[tuple[int, int]]:
    """Return first and last of every run of consecutive offsets."""
    if not offsets:
        return []
    numbers = offsets_between(offsets, offsets.min(), offsets.max() + 1)
    cuts = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate(([0], cuts + 1))]
    lasts = numbers[np.concatenate((cuts, [len(numbers) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _write_tail(spark: SparkSession, task: Task, newest: int) -> str | None:
    """Write the records of a task as a Parquet file of the session; None if there are none."""
    key = xxh3_128_digest(pickle.dumps((task.path, task.identity, newest, task.pieces)))
    known = find_tail(spark, key)
    if known is not None:
        return known
    reader = PieceReader(task)
    columns = Columns(FILE_COLUMNS)
    # Not compressed: it is read a few times at most, and written in 40 % of the time.
    parquet = ParquetFile({}, is_compressed=False)
    try:
        for piece in task.pieces:
            for (batch, first, end), keep, topic in reader.read(piece):
                parquet.add(columns.make(topic, batch, first, end, keep))
    finally:
        reader.close()
    content = parquet.finish()
    if not content.records:
        return None
    may_expire = content.expires_at or any(piece.ttl_ns for piece in task.pieces)
    return write_tail(spark, content.data, None if may_expire else key)


def _rest(spark: SparkSession, tasks: list[Task], names: tuple[str, ...]) -> DataFrame:
    """Read the rest by Python tasks, each a separate partition."""
    numbers = spark.range(0, len(tasks), 1, len(tasks))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_task(tasks[number], names)

    return numbers.mapInArrow(read, schema_of(names))
