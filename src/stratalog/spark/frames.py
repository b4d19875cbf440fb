"""DataFrames of a store, in Python's words instead of Spark's, and what can be known without one.

Spark ships every byte of a Python source to count its rows. Counts and ranges are therefore
answered from what the store knows anyway: the ends of segments and the tail of the log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.log.topic import TopicLog
from stratalog.options import check_known
from stratalog.segments.read import read_batches
from stratalog.segments.segment import Segment, Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Path = str | os.PathLike[str]

_TOPICS = (
    "topic string, earliest bigint, next_offset bigint, records bigint, bytes bigint, "
    "segments int, cold_segments int, first_timestamp timestamp, last_timestamp timestamp"
)


class ReadPlan(NamedTuple):
    """What a read would do."""

    ranges: dict[str, range]
    """Of every topic, the offsets."""
    bytes: int
    """What it would read, checksums and indexes of batches included."""
    total_bytes: int
    """What these topics have in all."""
    tasks: int


def read(
    spark: SparkSession,
    path: Path,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Topics as a DataFrame, read by as many tasks as the session runs at once, or more.

    `columns` are those that are read at all; `options` are those of the data source.
    """
    given = {"minPartitions": spark.sparkContext.defaultParallelism} | options
    return _load(spark.read, path, topic, columns, given)


def read_stream(
    spark: SparkSession,
    path: Path,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Topics as a stream: the same for `spark.readStream`."""
    return _load(spark.readStream, path, topic, columns, options)


def explain(path: Path, topic: str, **options: Any) -> ReadPlan:
    """What a read with these options would do; nothing but indexes is read for it."""
    from stratalog.spark.options import ReadOptions
    from stratalog.spark.plan import open_view, pack, resolve, spans_of

    wanted = ReadOptions.parse(_texts(options | {"path": os.fspath(path), "topic": topic}))
    with open_view(wanted) as view:
        ranges = resolve(view, wanted.topics.choose(view.catalog), wanted)
        spans = [span for one in ranges for span in spans_of(one)]
        return ReadPlan(
            {one.topic.name: range(one.start, max(one.start, one.end)) for one in ranges},
            sum(span.size for span in spans),
            sum(_bytes(one.topic) for one in ranges),
            len(pack(spans, wanted)),
        )


def topics(spark: SparkSession, path: Path) -> DataFrame:
    """A row for every topic of a store, without reading a record.

    `records` are those that are there and were not deleted; some may have expired since.
    """
    from stratalog.spark.options import ReadOptions
    from stratalog.spark.plan import open_view

    options = ReadOptions.parse({"path": os.fspath(path), "topic": "*"})
    with open_view(options) as view:
        rows = [_row(topic) for topic in view.catalog.topics()]
    return spark.createDataFrame(rows, _TOPICS)


def _load(
    reader: Any, path: Path, topic: str, columns: Sequence[str] | None, options: Mapping[str, Any]
) -> DataFrame:
    if columns is not None:
        from pyspark.sql.types import StructField, StructType

        from stratalog.spark.columns import COLUMNS

        check_known("column", columns, COLUMNS)
        reader = reader.schema(StructType([StructField(n, COLUMNS[n][0]) for n in columns]))
    reader = reader.format("stratalog").option("topic", topic).options(**_texts(options))
    frame: DataFrame = reader.load(os.fspath(path))
    return frame


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark has them; a dictionary by topic becomes JSON."""
    return {
        name: json.dumps(value) if isinstance(value, bool | dict) else str(value)
        for name, value in options.items()
    }


def _bytes(topic: TopicLog) -> int:
    return topic.index.total_bytes() + topic.history.total_bytes()


def _row(topic: TopicLog) -> tuple[Any, ...]:
    history = topic.history
    segments = [one for one in history.chain.segments if one.end > topic.earliest]
    gone = (history.deleted | history.lost).range_cardinality(topic.earliest, topic.committed)
    records = topic.committed - topic.earliest - gone
    if topic.options.compact:  # then most holes were made by newer records of the same keys
        held = sum(one.summary.records for one in segments)
        records = min(records, held + topic.committed - history.checkpointed)
    return (
        topic.name, topic.earliest, topic.committed, records, _bytes(topic), len(segments),
        sum(one.is_cold for one in segments), _moment(_first_timestamp(topic, segments)),
        _moment(topic.last_timestamp),
    )  # fmt: skip


def _first_timestamp(topic: TopicLog, segments: list[Segment]) -> int:
    """Nanoseconds of the oldest record; of the oldest in its segment, if that is partly gone."""
    for one in segments:
        if one.summary.records:
            return one.summary.min_timestamp
    for part in read_batches(topic, topic.earliest, topic.committed):
        if isinstance(part, Slice):
            return int(part.batch.timestamps(part.first, part.end)[0])
    return 0


def _moment(nanoseconds: int) -> datetime | None:
    return datetime.fromtimestamp(nanoseconds // 1000 / 10**6, UTC) if nanoseconds else None
