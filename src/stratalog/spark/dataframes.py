"""DataFrames of a store with Python arguments instead of Spark options, and answers without one.

Spark ships every byte of a Python source to count its rows. Counts and ranges are therefore
answered from what the store already knows: the ends of segments and the tail of the log.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.arguments import check_time
from stratalog.errors import OptionError
from stratalog.log.topic import TopicLog
from stratalog.segments.read import read_batches
from stratalog.segments.segment import Segment, Slice
from stratalog.spark.session import is_connect, prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Path = str | os.PathLike[str]
Offset = int | str
"""An offset, `earliest` or `latest`."""
Moment = datetime | float | str
"""A time, as everywhere in this package: `datetime`, seconds or nanoseconds; or ISO text."""

_TOPICS = (
    "topic string, earliest bigint, next_offset bigint, records bigint, bytes bigint, "
    "segments int, cold_segments int, first_timestamp timestamp, last_timestamp timestamp"
)


class ReadPlan(NamedTuple):
    """The plan of a read."""

    ranges: dict[str, range]
    """The offsets of every topic."""
    bytes: int
    """Bytes it would read, including checksums and indexes of batches."""
    total_bytes: int
    """Bytes that these topics have in all."""
    tasks: int


def read(
    spark: SparkSession,
    path: Path,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    start: Offset | Mapping[str, Offset] | None = None,
    end: Offset | Mapping[str, Offset] | None = None,
    since: Moment | Mapping[str, Moment] | None = None,
    until: Moment | Mapping[str, Moment] | None = None,
    **options: Any,
) -> DataFrame:
    """Read topics as a DataFrame, pinned to the present; call it again for newer records.

    Only `columns` are read. The range is from `start` to `end` (exclusive) in offsets, or from
    `since` to `until` (exclusive) in times, and nothing outside of it is touched. Each of them may
    be a dictionary by topic. Times are `datetime`, seconds or nanoseconds since 1970, or ISO text.
    `options` are those of the data source; there are as many tasks as the session runs at once.
    """
    prepare(spark)
    given = options | _range(start, end, since, until)
    found = _read_lake(spark, path, topic, columns, given)
    if found is not None:
        return found
    if not is_connect(spark):  # a Spark Connect server does not report its number of tasks
        given = {"minPartitions": spark.sparkContext.defaultParallelism} | given
    return _load(spark.read, path, topic, columns, given, is_stream=False)


def read_stream(
    spark: SparkSession,
    path: Path,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Read topics as a stream: `read` for `spark.readStream`, with its options."""
    prepare(spark)
    return _load(spark.readStream, path, topic, columns, options, is_stream=True)


def explain(path: Path, topic: str, **options: Any) -> ReadPlan:
    """Plan a read with these options; only indexes are read for it."""
    from stratalog.spark.source.plan import open_view, pack, resolve, spans_of
    from stratalog.spark.source.read_options import ReadOptions

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
    """List every topic of a store as a row, without reading a record.

    `records` counts those that are stored and not deleted; some may have expired since.
    """
    from stratalog.spark.source.plan import open_view
    from stratalog.spark.source.read_options import ReadOptions

    options = ReadOptions.parse({"path": os.fspath(path), "topic": "*"})
    with open_view(options) as view:
        rows = [_row(topic) for topic in view.catalog.topics()]
    return spark.createDataFrame(rows, _TOPICS)


def _read_lake(
    spark: SparkSession, path: Path, topic: str, columns: Sequence[str] | None,
    given: Mapping[str, Any],
) -> DataFrame | None:  # fmt: skip
    """Read topics of which some have a lake; None if none has."""
    from stratalog.spark.lake_read import read_with_lake
    from stratalog.spark.source.columns import default_schema
    from stratalog.spark.source.read_options import ReadOptions

    chosen = {} if columns is None else {"columns": ",".join(columns)}
    options = ReadOptions.parse(
        _texts({**given, **chosen, "topic": topic, "path": os.fspath(path)})
    )
    names = options.columns
    if names is None:
        names = tuple(default_schema(include_headers=options.include_headers).names)
    return read_with_lake(spark, options, names, time.time_ns())


def _load(
    reader: Any, path: Path, topic: str, columns: Sequence[str] | None, given: Mapping[str, Any],
    *, is_stream: bool,
) -> DataFrame:  # fmt: skip
    from stratalog.spark.source.read_options import ReadOptions

    # As an option, not as a schema: with one, Spark creates the source only at the first action.
    chosen = {} if columns is None else {"columns": ",".join(columns)}
    options = _texts({**given, **chosen, "topic": topic})
    ReadOptions.parse(options | {"path": os.fspath(path)}, is_stream=is_stream)
    frame: DataFrame = reader.format("stratalog").options(**options).load(os.fspath(path))
    return frame


def _range(start: Any, end: Any, since: Any, until: Any) -> dict[str, Any]:
    """Convert a range to options of the data source."""
    for offset, moment, names in (
        (start, since, "start and since"), (end, until, "end and until"),
    ):  # fmt: skip
        if offset is not None and moment is not None:
            raise OptionError(f"{names} say where the same end of a range is. Give one of them.")
    given = {
        "startingOffsets": start,
        "endingOffsets": end,
        "startingTimestamp": _moments("since", since),
        "endingTimestamp": _moments("until", until),
    }
    return {name: value for name, value in given.items() if value is not None}


def _moments(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {topic: _moments(name, one) for topic, one in value.items()}
    return value if value is None or isinstance(value, str) else f"{check_time(name, value)}ns"


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Convert options to text for Spark; a dictionary by topic becomes JSON."""
    return {
        name: json.dumps(value, default=dict) if isinstance(value, bool | Mapping) else str(value)
        for name, value in options.items()
    }


def _bytes(topic: TopicLog) -> int:
    return topic.index.total_bytes() + topic.history.total_bytes()


def _row(topic: TopicLog) -> tuple[Any, ...]:
    history = topic.history
    segments = [one for one in history.chain.segments if one.end > topic.earliest]
    gone = (history.deleted | history.lost).range_cardinality(topic.earliest, topic.committed)
    records = topic.committed - topic.earliest - gone
    if topic.options.compact:  # most holes were left by newer records of the same keys
        held = sum(one.summary.records for one in segments)
        records = min(records, held + topic.committed - history.checkpointed)
    return (
        topic.name, topic.earliest, topic.committed, records, _bytes(topic), len(segments),
        sum(one.is_cold for one in segments), _moment(_first_timestamp(topic, segments)),
        _moment(topic.last_timestamp),
    )  # fmt: skip


def _first_timestamp(topic: TopicLog, segments: list[Segment]) -> int:
    """Return the nanoseconds of the oldest record, or of its segment's if that is partly gone."""
    for one in segments:
        if one.summary.records:
            return one.summary.min_timestamp
    for part in read_batches(topic, topic.earliest, topic.committed):
        if isinstance(part, Slice):
            return int(part.batch.timestamps(part.first, part.end)[0])
    return 0


def _moment(nanoseconds: int) -> datetime | None:
    return datetime.fromtimestamp(nanoseconds // 1000 / 10**6, UTC) if nanoseconds else None
