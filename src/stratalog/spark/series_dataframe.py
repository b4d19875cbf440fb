"""A series as a DataFrame: a row for every point, or for those there were at a moment.

Executors decode the records of points and leave one of those with one series and time; Spark does
so for all of them. The one with the higher offset counts, as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import FormatError
from stratalog.format.point_records import Part, decode_records
from stratalog.format.points import Column, FieldType, Int64s, series_tags
from stratalog.handles.kinds import SERIES
from stratalog.log.topic import TopicLog
from stratalog.spark.history import At, Path, moment_of, plan_history, run_tasks, tasks_of
from stratalog.state.series_registry import typed
from stratalog.state.series_scan import point_values
from stratalog.state.series_state import SeriesState
from stratalog.view import View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stratalog.spark.source.read_options import ReadOptions
    from stratalog.spark.source.read_task import Task

_ARROW: dict[FieldType, pa.DataType] = {
    FieldType.FLOAT: pa.float64(),
    FieldType.INT: pa.int64(),
    FieldType.BOOL: pa.bool_(),
    FieldType.TEXT: pa.string(),
}
_TAGS = pa.map_(pa.string(), pa.string())

# Points that are gathered before they are reduced to one for each series and time, and rows that
# Spark is given at a time.
_GATHERED_POINTS = 1 << 18
_TOLD_ROWS = 1 << 14


class _Plan(NamedTuple):
    """The tasks that read a series, and how their points become rows."""

    fields: dict[str, FieldType]
    horizon: int
    """Points before this time are gone."""
    tasks: list[Task]


def series(spark: SparkSession, path: Path, name: str, at: At = None, **options: Any) -> DataFrame:
    """Make a DataFrame of a series: a row for every point, as of now or as of `at`.

    Its columns are `time`, `time_ns` (the nanoseconds below its microsecond), `tags` (a map), and
    `fields`, a structure with a member for each field that the series has now. `at` is the offset
    of a record (an int) or a time (a float or a datetime): what was written until then. Points that
    retention has removed are not there. The DataFrame is pinned to what there is now. `options`
    are those of the data source.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema

    now = time.time_ns()

    def make(view: View, topic: TopicLog, parsed: ReadOptions) -> _Plan:
        moment = moment_of(topic, at, now)
        state = topic.projection
        assert isinstance(state, SeriesState)
        with state.lock:
            state.advance()
        rules = state.rules
        kept = moment.time - rules.raw_ns if rules.raw_ns and moment.time else 0
        fields = {field: newest.type for field, newest in state.registry.fields.items()}
        end = max(moment.end, topic.earliest)
        tasks = tasks_of(view, topic, topic.earliest, end, parsed)
        return _Plan(fields, max(kept, rules.evicted_before), tasks)

    fields, horizon, tasks = plan_history(spark, path, name, SERIES, options, make)
    schema = _schema(fields)
    told = run_tasks(
        spark, tasks, lambda task: points_of(task, fields, horizon), from_arrow_schema(schema)
    )
    last = told.groupBy("key", "nanoseconds").agg(
        f.max_by(f.struct("tags", "fields"), "offset").alias("point")
    )
    return last.select(
        f.expr("timestamp_micros(nanoseconds div 1000)").alias("time"),
        f.expr("cast(nanoseconds % 1000 AS smallint)").alias("time_ns"),
        f.col("point.tags").alias("tags"),
        f.col("point.fields").alias("fields"),
    )


def _schema(fields: dict[str, FieldType]) -> pa.Schema:
    """Make the schema of the rows that executors tell."""
    members = [pa.field(name, _ARROW[type]) for name, type in fields.items()]
    return pa.schema(
        [
            ("key", pa.binary()),
            ("nanoseconds", pa.int64()),
            ("offset", pa.int64()),
            ("tags", _TAGS),
            ("fields", pa.struct(members)),
        ]
    )


# --- on executors ---------------------------------------------------------------------------


def points_of(task: Task, fields: dict[str, FieldType], horizon: int) -> Iterator[pa.RecordBatch]:
    """Tell the points of a task's records, each series and time once or a few times."""
    from stratalog.spark.source.read_task import PieceReader

    reader = PieceReader(task)
    try:
        for piece in task.pieces:
            gathered: list[Part] = []
            count = 0
            for (batch, first, end), _, _ in reader.read(piece):
                values, offsets = point_values(batch, first, end)
                try:
                    parts = decode_records(values, offsets, list(fields))
                except FormatError as error:
                    raise type(error)(f"series {piece.topic!r}: {error}") from error
                gathered += parts
                count += sum(len(part.points) for part in parts)
                if count >= _GATHERED_POINTS:
                    yield from _rows(gathered, fields, horizon)
                    gathered, count = [], 0
            yield from _rows(gathered, fields, horizon)
    finally:
        reader.close()


def _rows(
    parts: list[Part], fields: dict[str, FieldType], horizon: int
) -> Iterator[pa.RecordBatch]:
    """Make rows of points: of those with one series and time the one with the highest offset."""
    parts = [part for part in parts if len(part.points)]
    if not parts:
        return
    ids: dict[bytes, int] = {}
    codes = np.concatenate(
        [
            np.repeat([ids.setdefault(key, len(ids)) for key in points.series], points.counts)
            for points, _ in parts
        ]
    )
    times = np.concatenate([part.points.times for part in parts])
    offsets = np.concatenate([part.offsets for part in parts])
    chosen = _newest(codes, times, offsets, horizon)
    keys, tags = list(ids), [series_tags(key) for key in ids]
    places = pa.array(codes[chosen])
    columns = [_values(parts, name, type).take(pa.array(chosen)) for name, type in fields.items()]
    schema = _schema(fields)
    arrays = [
        pa.array(keys, pa.binary()).take(places),
        pa.array(times[chosen]),
        pa.array(offsets[chosen]),
        pa.array([list(one.items()) for one in tags], _TAGS).take(places),
    ]
    struct = (
        pa.StructArray.from_arrays(columns, fields=list(schema.field("fields").type))
        if columns
        else pa.array([{}] * len(chosen), schema.field("fields").type)
    )
    whole = pa.RecordBatch.from_arrays([*arrays, struct], schema=schema)
    for start in range(0, whole.num_rows, _TOLD_ROWS):
        yield whole.slice(start, _TOLD_ROWS)


def _newest(codes: Int64s, times: Int64s, offsets: Int64s, horizon: int) -> Int64s:
    """Find the places of points that count, by series and time."""
    order = np.lexsort((offsets, times, codes))
    codes, times = codes[order], times[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = (codes[1:] != codes[:-1]) | (times[1:] != times[:-1])
    chosen: Int64s = order[is_last & (times >= horizon)]
    return chosen


def _values(parts: list[Part], name: str, type: FieldType) -> pa.Array:
    """Make one column of a field; null where a point lacks it."""
    arrays = []
    for points, _ in parts:
        column: Column | None = typed(points.fields.get(name), type)
        if column is None:
            arrays.append(pa.nulls(len(points), _ARROW[type]))
        else:
            mask = None if column.valid is None else ~column.valid
            arrays.append(pa.array(column.values, _ARROW[type], mask=mask))
    return pa.concat_arrays(arrays)
