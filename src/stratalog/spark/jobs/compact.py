"""Compaction on Spark: the engine's compaction on all cores, and small segments merged.

Sealed segments are rewritten in parallel without deleted records and, in compacted topics, without
records that a later one of the same key replaced. One manifest per topic replaces the old ones with
the new: a reader sees all of it or nothing, and a live writer goes on. If the writer changed one of
the old segments meanwhile, the topic is done again.

Segments in the cold store stay unchanged.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyroaring import BitMap64

from stratalog.errors import RejectedError
from stratalog.format.codec import CODECS
from stratalog.format.frame import CODEC_MASK
from stratalog.format.names import incoming_path
from stratalog.format.segment import State
from stratalog.fs import PosixFileSystem
from stratalog.log.topic import TopicLog
from stratalog.options import check_known
from stratalog.segments.segment import Segment
from stratalog.segments.staging import replace_part
from stratalog.spark.jobs.stage_segments import (
    Rewrite,
    Rewritten,
    local_root,
    publish,
    rewrite_group,
)
from stratalog.spark.jobs.winners import Compacted, Staying, find_winners
from stratalog.spark.jobs.work import run
from stratalog.spark.session import use
from stratalog.spark.source.plan import Range, open_view, spans_of, task_of
from stratalog.spark.source.read_options import ReadOptions
from stratalog.tools.report import Progress
from stratalog.view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How often a topic is planned again because the writer was faster.
_ATTEMPTS_MAX = 4


class TopicCompaction(msgspec.Struct, frozen=True):
    """The result for one topic."""

    name: str
    segments_before: int
    segments_after: int
    bytes_before: int
    bytes_after: int
    records_removed: int
    """Records that were deleted, or replaced by a later one of their key."""


class CompactReport(msgspec.Struct, frozen=True):
    """The result of a compaction; topics without anything to do are not listed."""

    path: str
    topics: list[TopicCompaction]
    duration: float

    @property
    def bytes_freed(self) -> int:
        """Bytes freed in all topics."""
        return sum(topic.bytes_before - topic.bytes_after for topic in self.topics)


_Stays = dict[int, Staying] | None
"""The records of each segment that stay in a key-compacted topic, by first offset."""


class _Group(NamedTuple):
    """Adjacent segments that are to become one."""

    topic: TopicLog
    segments: list[Segment]

    @property
    def bytes(self) -> int:
        return sum(segment.summary.bytes for segment in self.segments)

    @property
    def records(self) -> int:
        return sum(segment.summary.records for segment in self.segments)


def compact(
    path: str | os.PathLike[str],
    *,
    topics: str = "*",
    compression: str | None = None,
    spark: SparkSession | None = None,
    master: str | None = None,
    progress: Progress | None = None,
) -> CompactReport:
    """Free the space of deleted and replaced records, and merge many small segments into few.

    `compression` rewrites everything with another codec (`none`, `zstd`, `lz4`, `gzip`); later
    appends still follow the topic's own option. Runs beside a live writer.
    """
    begin = time.perf_counter()
    root = local_root(path)
    if compression is not None:
        check_known("compression", [compression], CODECS)
    options = ReadOptions.parse({"path": root, "topic": topics, "failOnDataLoss": "false"})
    with use(spark, master) as session:
        with open_view(options) as view:
            names = options.topics.choose(view.catalog, may_miss=True)
        job = _Job(session, root, options, compression, progress)
        done = [found for name in names if (found := job.topic(name)) is not None]
    return CompactReport(root, done, time.perf_counter() - begin)


class _Job:
    def __init__(
        self, spark: SparkSession, root: str, options: ReadOptions, compression: str | None,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._root = root
        self._options = options
        self._compression = compression
        self._progress = progress

    def topic(self, name: str) -> TopicCompaction | None:
        """Compact one topic; None if there is nothing to do."""
        for attempt in range(_ATTEMPTS_MAX):
            with open_view(self._options) as view:
                topic = view.catalog.get(name)
                if topic is None or topic.is_ephemeral:
                    return None
                sealed = _sealed(topic)
                winners = self._winners(view, topic, sealed)
                units, groups = self._plan(view, topic, sealed, winners)
                if not units:
                    return None
                made = run(
                    self._spark, rewrite_group, units, [one.bytes for one in groups], self._done(
                        name, sum(one.bytes for one in groups)
                    ),
                )  # fmt: skip
                made, groups = self._gainful(made, groups)
                if not made:
                    return None
                expected = [s.summary for one in groups for s in one.segments]
                part = replace_part(topic.id, topic.epoch, [one.staged for one in made], expected)
            try:
                publish(self._root, f"compact-{uuid.uuid4().hex}", None, [part])
            except RejectedError:
                if attempt + 1 == _ATTEMPTS_MAX:
                    raise
                continue
            return _outcome(name, sealed, groups, made)
        return None

    def _done(self, name: str, total: int) -> Callable[[int], None] | None:
        progress = self._progress
        return None if progress is None else lambda done: progress(done, total, name)

    def _winners(self, view: View, topic: TopicLog, sealed: list[Segment]) -> _Stays:
        """Find the last record of each key; None for a topic that keeps all records.

        A topic that keeps several versions of a key, such as a table, is compacted by its store
        alone.
        """
        if not topic.options.compact or topic.options.versions > 1 or not sealed:
            return None
        # Expiry is ignored: an expired record still replaces earlier ones.
        tasks = [
            task_of(view, [span], self._options, 0)
            for span in spans_of(Range(topic, topic.earliest, topic.committed))
        ]
        segments = topic.history.segments()
        is_all = sealed[0] is segments[0] and len(sealed) == sum(not s.is_open for s in segments)
        firsts = tuple(segment.first for segment in segments)
        # Removing a deletion before the records it deletes would bring those back.
        grace_ns = round(topic.options.tombstone_seconds * 10**9) if is_all else -1
        end = max(segment.end for segment in segments if not segment.is_open)
        wanted = Compacted(topic.id, firsts, end, grace_ns)
        found = find_winners(self._spark, tasks, [wanted], time.time_ns())
        return {segment: stays for (_, segment), stays in found.items()}

    def _plan(
        self, view: View, topic: TopicLog, sealed: list[Segment],
        winners: _Stays,
    ) -> tuple[list[Rewrite], list[_Group]]:  # fmt: skip
        units: list[Rewrite] = []
        groups: list[_Group] = []
        for group in _groups(topic, sealed, winners):
            if not self._is_due(group, winners):
                continue
            first, end = group.segments[0].first, group.segments[-1].end
            stays = None
            if winners is not None:
                stays = BitMap64()
                for segment in group.segments:
                    stays |= winners[segment.first].winners
            codec = topic.codec if self._compression is None else CODECS[self._compression]
            spans = list(spans_of(Range(topic, first, end)))
            units.append(
                Rewrite(
                    self._root, topic.id, first, end, codec,
                    task_of(view, spans, self._options, 0),
                    None if stays is None else bytes(stays.serialize()),
                )
            )  # fmt: skip
            groups.append(group)
        return units, groups

    def _is_due(self, group: _Group, winners: _Stays) -> bool:
        """Return whether rewriting a group may gain anything."""
        if len(group.segments) > 1:
            return True
        (segment,) = group.segments
        count = segment.end - segment.first
        deleted = group.topic.history.deleted.range_cardinality(segment.first, segment.end)
        if count - segment.summary.records < deleted:
            return True
        if winners is not None and winners[segment.first].records < segment.summary.records:
            return True
        return self._is_recoded(segment)

    def _is_recoded(self, segment: Segment) -> bool:
        return self._compression is not None and _codec(segment) != CODECS[self._compression]

    def _gainful(
        self, made: list[Rewritten], groups: list[_Group]
    ) -> tuple[list[Rewritten], list[_Group]]:
        """Drop rewritten segments that did not change: their dead records were already gone."""
        chosen = []
        fs = PosixFileSystem()
        for one, group in zip(made, groups, strict=True):
            is_same = len(group.segments) == 1 and one.staged.records == group.records
            if is_same and not self._is_recoded(group.segments[0]):
                fs.unlink(incoming_path(self._root, f"{one.staged.name}.seg"))
            else:
                chosen.append((one, group))
        return [one for one, _ in chosen], [group for _, group in chosen]


def _sealed(topic: TopicLog) -> list[Segment]:
    """List segments that can be replaced: whole, local, and in their place."""
    return [
        segment
        for segment in topic.history.chain.segments
        if segment.summary.state == State.SEALED and segment.end > topic.earliest
    ]


def _groups(topic: TopicLog, sealed: Sequence[Segment], winners: _Stays) -> list[_Group]:
    """Group neighbours whose remaining records fit into one segment."""
    options = topic.options
    groups: list[_Group] = []
    size = records = 0
    for segment in sealed:
        left = _left(topic, segment, winners)
        share = segment.summary.bytes * left // max(1, segment.summary.records)
        is_next = bool(groups) and groups[-1].segments[-1].end == segment.first
        if (
            is_next
            and size + share <= options.segment_bytes
            and records + left <= options.segment_records
        ):
            groups[-1].segments.append(segment)
            size, records = size + share, records + left
        else:
            groups.append(_Group(topic, [segment]))
            size, records = share, left
    return groups


def _left(topic: TopicLog, segment: Segment, winners: _Stays) -> int:
    """Count the records of a segment that stay."""
    if winners is not None:
        return winners[segment.first].records
    count = segment.end - segment.first
    deleted = topic.history.deleted.range_cardinality(segment.first, segment.end)
    return min(segment.summary.records, count - deleted)


def _codec(segment: Segment) -> int:
    """Return the compression of a segment's first batch."""
    loaded = segment.load()
    if not loaded.bases:
        return 0
    header, _ = loaded.frame(0)
    return header.flags & CODEC_MASK


def _outcome(
    name: str, sealed: list[Segment], groups: list[_Group], made: list[Rewritten]
) -> TopicCompaction:
    replaced = sum(len(group.segments) for group in groups)
    return TopicCompaction(
        name,
        len(sealed),
        len(sealed) - replaced + len(made),
        sum(segment.summary.bytes for segment in sealed),
        sum(segment.summary.bytes for segment in sealed)
        - sum(group.bytes for group in groups)
        + sum(one.staged.bytes for one in made),
        sum(group.records for group in groups) - sum(one.staged.records for one in made),
    )
