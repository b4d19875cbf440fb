"""A checkpoint on Spark: a large log becomes segments on all cores.

A store that was killed, or that was filled faster than one core writes segments, has many records
only in the log. Executors write them to segments, and one manifest adds those after the existing
ones. The log files are released by the writer's next snapshots.
"""

from __future__ import annotations

import os
import time
import uuid
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from stratalog.errors import RejectedError
from stratalog.log.topic import TopicLog
from stratalog.segments.staging import backlog_part
from stratalog.spark.jobs.stage_segments import Copy, copy_log, local_root, publish
from stratalog.spark.jobs.work import run
from stratalog.spark.session import use
from stratalog.spark.source.plan import Range, Span, cut_span, open_view, spans_of, task_of
from stratalog.spark.source.read_options import ReadOptions
from stratalog.tools.report import Progress
from stratalog.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPTS_MAX = 4

# A checkpoint of less than this is done before Spark has started.
_BYTES_MIN = 1 << 20


class TopicBackfill(msgspec.Struct, frozen=True):
    """The result for one topic."""

    name: str
    records: int
    log_bytes: int
    segments: int
    segment_bytes: int


class BackfillReport(msgspec.Struct, frozen=True):
    """The records that were moved to segments; topics without a backlog are not listed."""

    path: str
    topics: list[TopicBackfill]
    duration: float


def backfill(
    path: str | os.PathLike[str],
    *,
    topics: str = "*",
    bytes_min: int = _BYTES_MIN,
    spark: SparkSession | None = None,
    master: str | None = None,
    progress: Progress | None = None,
) -> BackfillReport:
    """Move records that are only in the log to segments, for topics with at least `bytes_min`.

    A writer that has the store open does so by itself all the time; if it is faster, nothing is
    left to do.
    """
    begin = time.perf_counter()
    root = local_root(path)
    options = ReadOptions.parse({"path": root, "topic": topics, "failOnDataLoss": "false"})
    with use(spark, master) as session:
        for attempt in range(_ATTEMPTS_MAX):
            try:
                done = _round(session, root, options, bytes_min, progress)
                break
            except RejectedError:
                if attempt + 1 == _ATTEMPTS_MAX:
                    raise
    return BackfillReport(root, done, time.perf_counter() - begin)


def _round(
    spark: SparkSession, root: str, options: ReadOptions, bytes_min: int, progress: Progress | None
) -> list[TopicBackfill]:
    """Process all topics at once: the process that adopts checkpoints the rest by itself."""
    with open_view(options) as view:
        names = options.topics.choose(view.catalog, may_miss=True)
        backlogs = [_cut(topic) for name in names if (topic := view.catalog.get(name)) is not None]
        backlogs = [spans for spans in backlogs if sum(span.size for span in spans) >= bytes_min]
        spans = [span for some in backlogs for span in some]
        if not spans:
            return []
        units = [_unit(view, root, options, span) for span in spans]
        total = sum(span.size for span in spans)
        made = iter(
            run(
                spark, copy_log, units, [span.size for span in spans],
                None if progress is None else lambda done: progress(done, total, "segments"),
            )
        )  # fmt: skip
        parts, found = [], []
        for some in backlogs:
            topic = some[0].topic
            staged = [one.staged for one in islice(made, len(some))]
            parts.append(backlog_part(topic.id, topic.epoch, staged))
            found.append(
                TopicBackfill(
                    topic.name, sum(one.records for one in staged),
                    sum(span.size for span in some), len(staged), sum(one.bytes for one in staged),
                )
            )  # fmt: skip
    publish(root, f"backfill-{uuid.uuid4().hex}", None, parts)
    return found


def _cut(topic: TopicLog) -> list[Span]:
    """Cut the log of a topic into parts of one segment each."""
    options = topic.options
    spans: list[Span] = []
    if topic.is_ephemeral or topic.history.ahead.segments:
        return spans
    for span in spans_of(Range(topic, topic.history.checkpointed, topic.committed)):
        rest: Span | None = span
        while rest is not None:
            size = min(
                options.segment_bytes,
                max(1, rest.size * options.segment_records // max(1, rest.end - rest.start)),
            )
            if rest.size <= size * 17 // 16:
                spans.append(rest)
                break
            one, rest = cut_span(rest, size)
            spans.append(one)
    return spans


def _unit(view: View, root: str, options: ReadOptions, span: Span) -> Copy:
    topic = span.topic
    # Expiry is ignored: a checkpoint copies everything.
    task = task_of(view, [span], options, 0)
    return Copy(root, topic.id, span.start, span.end, topic.codec, task)
