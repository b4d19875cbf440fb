"""History up to a moment: the records that DataFrames of tables and series are computed from.

A DataFrame is pinned when it is made: the driver looks at the store once, and tasks read what was
there then. `at` is an offset, which is included, or a time; None is now.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from stratalog.arguments import check_time
from stratalog.errors import OffsetOutOfRangeError
from stratalog.handles.kinds import check_is
from stratalog.log.topic import TopicLog
from stratalog.options import check_range
from stratalog.segments.read import offset_at
from stratalog.spark.session import is_connect, prepare
from stratalog.view import View

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from stratalog.spark.source.read_options import ReadOptions
    from stratalog.spark.source.read_task import Task

Path = str | os.PathLike[str]
At = int | float | datetime | None
"""An offset (an int), a time (a float or a datetime), or None for now."""


Plan = TypeVar("Plan")


class Moment(NamedTuple):
    """A place in a topic's history."""

    end: int
    """Records below this offset count."""
    time: int
    """Nanoseconds; 0 where an offset was given, which has no time for things to expire by."""


def moment_of(topic: TopicLog, at: At, now: int) -> Moment:
    """Find the place that `at` means in a topic."""
    if at is None:
        return Moment(topic.committed, now)
    if isinstance(at, int) and not isinstance(at, bool):
        offset = check_range("at", at, 0, 1 << 63)
        if offset >= topic.committed:
            raise OffsetOutOfRangeError(
                f"at={at} is out of range: the newest record of {topic.kind} {topic.name!r} is at "
                f"offset {topic.committed - 1}. Give that or an earlier one, or leave at out for "
                "now."
            )
        return Moment(offset + 1, 0)
    moment = check_time("at", at)
    return Moment(offset_at(topic, moment + 1), moment)


def plan_history(
    spark: SparkSession,
    path: Path,
    name: str,
    kind: str,
    options: Mapping[str, Any],
    make: Callable[[View, TopicLog, ReadOptions], Plan],
) -> Plan:
    """Make a plan of a topic of a kind at one moment."""
    from stratalog.spark.source.plan import plan_with
    from stratalog.spark.source.read_options import ReadOptions

    prepare(spark)
    wanted = {option: str(value) for option, value in options.items()}
    if not is_connect(spark):  # a server of Spark Connect does not say how many tasks it runs
        wanted.setdefault("minPartitions", str(spark.sparkContext.defaultParallelism))
    parsed = ReadOptions.parse(wanted | {"path": os.fspath(path), "topic": json.dumps([name])})

    def look(view: View) -> Plan:
        topic = view.catalog.find(name)
        check_is(topic, kind)
        return make(view, topic, parsed)

    return plan_with(parsed, look)


def tasks_of(view: View, topic: TopicLog, start: int, end: int, options: ReadOptions) -> list[Task]:
    """Make tasks that read every record of a range, expired ones included.

    A record that has expired hides those before it all the same.
    """
    from stratalog.spark.source.plan import Range, make_tasks, spans_of

    spans = list(spans_of(Range(topic, start, end)))
    return make_tasks(view, spans, options, now=0) if spans else []


def run_tasks(
    spark: SparkSession,
    tasks: list[Task],
    tell: Callable[[Task], Iterator[pa.RecordBatch]],
    schema: Any,
) -> DataFrame:
    """Make a DataFrame of what a function tells of each task, which is a partition of its own."""
    numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from tell(tasks[number])

    return numbers.mapInArrow(run, schema)
