"""The report about a store: volume and latency over time, sizes, keys, gaps.

Every record is read, by column, where it is stored: executors return a few hundred numbers for each
piece. Keys are counted in each piece, and Spark adds up these counts exactly, however many keys
there are.

Latency, as far as a log shows it: the time between an append and the one before it, because times
never go backwards within a topic; and, for records with a header that holds the time of an event,
the time from there to the record's own.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stratalog.fs import PosixFileSystem
from stratalog.handles.kinds import TABLE
from stratalog.log.topic import TopicLog
from stratalog.segments.read import lost_gaps, read_batches
from stratalog.segments.segment import Slice
from stratalog.spark.jobs.outline import (
    GroupLag,
    Keys,
    KeyShare,
    Missing,
    StoreReport,
    TopicReport,
    durations,
    make_grid,
    size_bins,
    size_quantile,
    time_spans,
)
from stratalog.spark.jobs.page import render
from stratalog.spark.jobs.profile import Grid, KeyCounts, Profile
from stratalog.spark.jobs.work import cores, watch
from stratalog.spark.session import use
from stratalog.spark.source.plan import make_tasks, open_view, resolve, spans_of
from stratalog.spark.source.read_options import ReadOptions
from stratalog.spark.source.read_task import PieceReader, Task
from stratalog.spark.table_dataframe import table
from stratalog.state.series_state import SeriesState
from stratalog.tools.report import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Keys that a report lists.
_KEYS_SHOWN = 20

_ROWS = pa.schema(
    [
        ("topic_id", pa.int64()),
        ("profile", pa.binary()),
        ("key", pa.binary()),
        ("count", pa.int64()),
    ]
)
_TOP = pa.schema(
    [
        ("topic_id", pa.int64()),
        ("distinct", pa.int64()),
        ("total", pa.int64()),
        ("key", pa.binary()),
        ("count", pa.int64()),
    ]
)


class _Facts(NamedTuple):
    """Facts about a topic that need no record."""

    topic: TopicLog
    grid: Grid
    gaps: list[Missing]
    stats: dict[str, int]
    groups: list[GroupLag]
    series: tuple[int, int] | None
    """Sets of tags and points of a series."""


def report(
    path: str | os.PathLike[str],
    *,
    topics: str = "*",
    time_header: str | None = None,
    output: str | os.PathLike[str] | None = None,
    cold: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    progress: Progress | None = None,
) -> StoreReport:
    """Report what is in a store, topic by topic; `output` is the path for an HTML page.

    `topics` are names or patterns, separated by commas. `time_header` is a header that holds the
    time of an event: a number of seconds, milliseconds, microseconds or nanoseconds since 1970, or
    ISO 8601. Runs beside a live writer.
    """
    begin = time.perf_counter()
    with use(spark, master) as session:
        given = {
            "path": os.fspath(path), "topic": topics, "failOnDataLoss": "false",
            "minPartitions": str(cores(session) * 3),
        }  # fmt: skip
        if cold is not None:
            given["cold"] = cold
        options = ReadOptions.parse(given)
        now = time.time_ns()
        with open_view(options) as view:
            names = options.topics.choose(view.catalog, may_miss=True)
            ranges = resolve(view, names, options)
            facts = [_facts(one.topic) for one in ranges]
            spans = [span for one in ranges for span in spans_of(one)]
            tasks = make_tasks(view, spans, options, now) if spans else []
            identity = view.store_file.identity.hex()
        grids = {one.topic.id: one.grid for one in facts}
        profiles, keys = _look(session, tasks, grids, time_header, progress)
        tables = [one.topic.name for one in facts if one.topic.kind == TABLE]
        more: dict[str, Any] = {} if cold is None else {"cold": cold}
        living = {name: table(session, path, name, **more).count() for name in tables}
    found = StoreReport(
        path=options.path,
        identity=identity,
        made_at=now,
        duration=time.perf_counter() - begin,
        time_header=time_header,
        topics=[_topic(one, profiles, keys, living, time_header) for one in facts],
    )
    if output is not None:
        _write(os.path.abspath(os.fspath(output)), render(found).encode())
    return found


def _facts(topic: TopicLog) -> _Facts:
    history, index = topic.history, topic.index
    summaries = [s.summary for s in history.chain.segments if s.summary.records]
    oldest = summaries[0].min_timestamp if summaries else 0
    newest = summaries[-1].max_timestamp if summaries else 0
    if len(index):
        oldest = oldest or index.max_timestamp(0)
        newest = max(newest, index.max_timestamp(len(index) - 1))
    gaps = []
    if history.evicted_below:
        gaps.append(Missing(0, history.evicted_below - 1, history.evicted_reason))
    gaps += [
        Missing(gap.first, gap.last, gap.reason)
        for gap in lost_gaps(history, topic.earliest, topic.committed)
    ]
    stats = history.stats() | {
        "bytes": history.total_bytes() + index.total_bytes(),
        "log_bytes": index.total_bytes(),
    }
    grid = make_grid(oldest, newest)
    return _Facts(topic, grid, gaps, stats, _groups(topic, newest), _series(topic))


def _series(topic: TopicLog) -> tuple[int, int] | None:
    """Count the sets of tags and the points of a series; None for other kinds."""
    state = topic.projection
    if not isinstance(state, SeriesState):
        return None
    with state.lock:
        state.advance()
        return len(state.registry), sum(block.points for block in state.blocks.all())


def _groups(topic: TopicLog, newest: int) -> list[GroupLag]:
    """List the topic's consumer groups, including a queue's own."""
    found = []
    for state in topic.groups.states():
        floor = min(state.floor(), topic.committed)
        lag = state.lag(topic.committed)
        lag_ns = 0
        if lag:
            parts = read_batches(topic, floor, topic.committed)
            first = next((part for part in parts if isinstance(part, Slice)), None)
            if first is not None:
                since = int(first.batch.timestamps(first.first, first.first + 1)[0])
                lag_ns = max(0, newest - since)
        pending = len(state.pending) + len(state.settling)
        found.append(GroupLag(state.name, state.mode, lag, pending, floor, lag_ns / 1e9))
    return found


def _look(
    spark: SparkSession, tasks: list[Task], grids: dict[int, Grid], time_header: str | None,
    progress: Progress | None,
) -> tuple[dict[int, Profile], dict[int, Keys]]:  # fmt: skip
    """Profile every record on executors; returns the profiles by topic."""
    from pyspark import StorageLevel

    profiles: dict[int, Profile] = {}
    if not tasks:
        return profiles, {}
    total = sum(piece.size for task in tasks for piece in task.pieces)

    def done(share: float) -> None:
        if progress is not None:
            progress(round(total * share), total, "records")

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from look_at(tasks[number], grids, time_header)

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    rows = numbers.mapInArrow(look, "topic_id long, profile binary, key binary, count long")
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        made = rows.where("profile IS NOT NULL").select("profile")
        parts = [pickle.loads(row[0]) for row in watch(spark, made.collect, done)]
        # In the order of their records, so that intervals between pieces are counted, too.
        for part in sorted(parts, key=lambda part: (part.topic_id, part.first_offset)):
            profiles.setdefault(
                part.topic_id, Profile(part.topic_id, part.grid, time_header)
            ).merge(part)
        keys = _count_keys(rows.where("key IS NOT NULL"), len(tasks))
    finally:
        rows.unpersist()
    return profiles, keys


def look_at(
    task: Task, grids: dict[int, Grid], time_header: str | None
) -> Iterator[pa.RecordBatch]:
    """Profile each piece of a task, and count its keys; on an executor."""
    reader = PieceReader(task)
    try:
        for piece in task.pieces:
            profile = Profile(piece.topic_id, grids[piece.topic_id], time_header)
            counts = KeyCounts()
            for (batch, first, end), keep, _ in reader.read(piece):
                profile.add(batch, first, end, keep)
                profile.keyed += counts.add(batch, first, end, keep)
            table = counts.table()
            yield _row(piece.topic_id, profile)
            for part in table.to_batches(max_chunksize=1 << 16):
                ids = pa.repeat(pa.scalar(piece.topic_id, pa.int64()), part.num_rows)
                nothing = pa.nulls(part.num_rows, pa.binary())
                yield pa.RecordBatch.from_arrays([ids, nothing, *part.columns], schema=_ROWS)
    finally:
        reader.close()


def _row(topic_id: int, profile: Profile) -> pa.RecordBatch:
    columns: list[list[Any]] = [[topic_id], [pickle.dumps(profile)], [None], [None]]
    arrays = [pa.array(one, kind) for one, kind in zip(columns, _ROWS.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ROWS)


def _count_keys(rows: DataFrame, partitions: int) -> dict[int, Keys]:
    """Count the keys of each topic, and find the most frequent."""
    from pyspark.sql import functions as f

    # Every key is in one partition: the counts of partitions add up.
    apart = rows.repartition(partitions, "topic_id", "key")
    counted = apart.groupBy("topic_id", "key").agg(f.sum("count").alias("count"))
    found = counted.mapInArrow(
        most_frequent, "topic_id long, distinct long, total long, key binary, count long"
    ).collect()
    keys: dict[int, Keys] = {}
    for id in {row["topic_id"] for row in found}:
        mine = [row for row in found if row["topic_id"] == id]
        total = sum(row["total"] for row in mine)
        mine_top = sorted(mine, key=lambda row: (-row["count"], bytes(row["key"])))[:_KEYS_SHOWN]
        top = [KeyShare(_text(row["key"]), row["count"], row["count"] / total) for row in mine_top]
        keys[id] = Keys(total, sum(row["distinct"] for row in mine), top)
    return keys


def most_frequent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Count distinct keys, and find the most frequent; on an executor."""
    tops: dict[int, pa.Table] = {}
    distinct: dict[int, int] = {}
    totals: dict[int, int] = {}
    order = [("count", "descending"), ("key", "ascending")]
    for batch in batches:
        for id in pc.unique(batch.column("topic_id")).to_pylist():
            mine = pa.Table.from_batches([batch.filter(pc.equal(batch.column("topic_id"), id))])
            mine = mine.select(["key", "count"])
            distinct[id] = distinct.get(id, 0) + mine.num_rows
            totals[id] = totals.get(id, 0) + pc.sum(mine.column("count")).as_py()
            both = pa.concat_tables([tops[id], mine]) if id in tops else mine
            tops[id] = both.sort_by(order).slice(0, _KEYS_SHOWN)
    for id, top in tops.items():
        rows = [
            # The first of them carries the counts of all keys.
            {"topic_id": id, "distinct": 0, "total": 0, **row}
            if number
            else {"topic_id": id, "distinct": distinct[id], "total": totals[id], **row}
            for number, row in enumerate(top.to_pylist())
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=_TOP)


def _text(key: bytes) -> str:
    """Format a key for people."""
    try:
        text = bytes(key).decode()
    except UnicodeDecodeError:
        return "0x" + bytes(key).hex()
    return text if text.isprintable() else ascii(text)[1:-1]


def _topic(
    one: _Facts, profiles: dict[int, Profile], keys: dict[int, Keys], living: dict[str, int],
    time_header: str | None,
) -> TopicReport:  # fmt: skip
    topic, stats = one.topic, one.stats
    profile = profiles.get(topic.id) or Profile(topic.id, one.grid, time_header)
    return TopicReport(
        name=topic.name,
        kind=topic.kind,
        id=topic.id,
        earliest=topic.earliest,
        next_offset=topic.committed,
        records=profile.records,
        dead=profile.dead,
        deleted=stats["deleted"],
        gaps=one.gaps,
        bytes=stats["bytes"],
        raw_bytes=profile.raw_bytes,
        value_bytes=profile.value_bytes,
        compression=topic.options.compression,
        segments=stats["segments"],
        cold_segments=stats["cold_segments"],
        log_bytes=stats["log_bytes"],
        oldest=profile.first_timestamp,
        newest=profile.last_timestamp,
        span_seconds=one.grid.width / 1e9,
        spans=time_spans(profile) if profile.records else [],
        interval=durations(profile.intervals),
        delay=durations(profile.delays),
        unreadable_times=profile.unreadable,
        sizes=size_bins(profile),
        size_p50=size_quantile(profile, 0.5),
        size_p99=size_quantile(profile, 0.99),
        size_max=profile.largest,
        nulls=profile.nulls,
        keys=keys.get(topic.id, Keys(0, 0, [])),
        groups=one.groups,
        living=living.get(topic.name),
        series=None if one.series is None else one.series[0],
        points=None if one.series is None else one.series[1],
    )


def _write(path: str, data: bytes) -> None:
    """Write a file atomically."""
    fs = PosixFileSystem()
    temporary = f"{path}.tmp"
    fs.makedirs(os.path.dirname(path))
    fs.unlink(temporary)
    file = fs.open(temporary, "create")
    try:
        file.pwrite([data], 0)
    finally:
        file.close()
    fs.rename(temporary, path)
