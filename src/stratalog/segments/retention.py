"""Retention: whole sealed segments are evicted, oldest first, and readers get a gap.

The floors go into the log before a file goes from the disk: after a crash in between, files below
the floor are removed when the store is opened.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from stratalog.format.names import topic_path
from stratalog.log.topic import TopicLog
from stratalog.segments.chain import Chain
from stratalog.segments.pool import SegmentPool
from stratalog.segments.segment import Segment


class Eviction(NamedTuple):
    """A decision of retention: everything below an offset is to go, for a reason."""

    below: int
    reason: str


def eviction(topic: TopicLog, now: int) -> Eviction | None:
    """Return what the topic's limits evict at this time; None for nothing."""
    history, options = topic.history, topic.options
    segments = history.chain.segments
    total = history.total_bytes()
    below = 0
    lake_end = _lake_end(topic)
    reasons = {history.evicted_reason}
    for number, segment in enumerate(segments):
        if segment.is_open or len(segments) - number <= options.retention_segments_min:
            break
        if options.retention == "consumed" and segment.end > history.consumed_below:
            break
        # Gone already, or rewritten to nothing: it neither blocks nor causes an
        # eviction.
        if segment.end > topic.earliest and segment.summary.records:
            why = _reason(topic, segment, total, now)
            most = options.retention_segments_max
            if not why and most is not None and len(segments) - number > most:
                why = "evicted"
            if not why or (why == "evicted" and segment.end > lake_end):
                break
            below = segment.end
            reasons.add(why)
        total -= segment.summary.bytes
    # All evicted records get one reason, which readers see in the gap.
    reason = "evicted" if "evicted" in reasons else "expired"
    return Eviction(below, reason) if below > topic.earliest else None


def is_worn(topic: TopicLog, now: int) -> bool:
    """Return whether something in the open segment was deleted, may be replaced or evicted."""
    history, options = topic.history, topic.options
    segments = history.chain.segments
    if not segments or not segments[-1].is_open or not segments[-1].summary.records:
        return False
    segment = segments[-1]
    if options.compact or history.deleted.range_cardinality(segment.first, segment.end):
        return True
    if options.retention == "consumed" and segment.end > history.consumed_below:
        return False
    is_kept = len(segments) <= options.retention_segments_min
    return not is_kept and bool(_reason(topic, segment, history.total_bytes(), now))


def _lake_end(topic: TopicLog) -> int:
    """Return the end of what may be evicted: a lake that keeps it longer must have it first."""
    if not topic.options.lake or topic.options.lake_retention is None:
        return topic.committed
    lake = topic.history.lake
    return 0 if lake is None else lake.end


def early_eviction(topic: TopicLog) -> Eviction | None:
    """Return what was consumed before a checkpoint, and needs no segment; None for nothing.

    Only of topics that keep nothing that was consumed, as queues do, and only where no id of a
    message counts: until a snapshot has them, a replay finds ids in the records.
    """
    history, options, queue = topic.history, topic.options, topic.groups.queue
    if (
        options.retention != "consumed"
        or options.retention_records != 0
        or options.retention_segments_min
        or (queue is not None and len(queue.dedup))
    ):
        return None
    below = min(history.consumed_below, topic.committed, _lake_end(topic))
    is_early = below > max(topic.earliest, history.checkpointed)
    return Eviction(below, "evicted") if is_early else None


def _reason(topic: TopicLog, segment: Segment, total: int, now: int) -> str:
    """Return why a segment may be evicted, if all before it are; empty if it may not."""
    options, summary = topic.options, segment.summary
    if options.ttl is not None and summary.max_timestamp + options.ttl * 10**9 <= now:
        return "expired"
    if 0 < summary.expires_at <= now:
        return "expired"
    seconds = options.retention_seconds
    if seconds is not None and summary.max_timestamp + seconds * 10**9 <= now:
        return "evicted"
    keep = options.retention_bytes
    if keep is not None and total - summary.bytes >= keep:
        return "evicted"
    records = options.retention_records
    if records is not None and topic.committed - segment.end >= records:
        return "evicted"
    return ""


def remove_below(topic: TopicLog) -> tuple[int, int]:
    """Remove the segments that are wholly below the floor; returns how many, and their bytes.

    Never the open one: what is appended next goes into its file. What the cold store has of them is
    left to the mover.
    """
    history = topic.history
    gone = [
        segment
        for segment in history.chain.segments
        if segment.end <= topic.earliest and not segment.is_open
    ]
    if gone:
        history.chain = Chain.of(history.chain.segments[len(gone) :])
        for segment in gone:
            history.pool.forget(segment)
            if not segment.is_cold:
                history.pool.fs.unlink(segment.path)
        history.pool.fs.sync_dir(history.directory)
    return len(gone), sum(segment.summary.bytes for segment in gone)


def remove_files(pool: SegmentPool, topic_id: int) -> None:
    """Remove the local files of a dropped topic."""
    directory = topic_path(pool.root, topic_id)
    for name in pool.fs.listdir(directory):
        pool.fs.unlink(os.path.join(directory, name))
