"""Retention: whole sealed segments leave, oldest first, and readers are told.

The floors go into the log before a file goes from the disk: after a crash in between, files below
the floor are removed when the store is opened.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from stratalog.format.names import cold_name, topic_path
from stratalog.log.topic import TopicLog
from stratalog.segments.chain import Chain
from stratalog.segments.pool import SegmentPool
from stratalog.segments.segment import Segment


class Eviction(NamedTuple):
    """What retention wants: everything below an offset gone, and why."""

    below: int
    reason: str


def eviction(topic: TopicLog, now: int) -> Eviction | None:
    """What is to go by the topic's limits at this time; None for nothing."""
    history, options = topic.history, topic.options
    segments = history.chain.segments
    total = history.total_bytes()
    below = 0
    reasons = {history.evicted_reason}
    for number, segment in enumerate(segments):
        if segment.is_open or len(segments) - number <= options.retention_segments_min:
            break
        if options.retention == "consumed" and segment.end > history.consumed_below:
            break
        # Gone already, or rewritten to nothing: in nobody's way, and no cause by itself.
        if segment.end > topic.earliest and segment.summary.records:
            why = _reason(topic, segment, total, now)
            if not why:
                break
            below = segment.end
            reasons.add(why)
        total -= segment.summary.bytes
    # There is one reason for all that went: the one that somebody may have to be told.
    reason = "evicted" if "evicted" in reasons else "expired"
    return Eviction(below, reason) if below > topic.earliest else None


def early_eviction(topic: TopicLog) -> Eviction | None:
    """What was consumed before it was put into a segment, and so need not be; None for nothing.

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
    below = min(history.consumed_below, topic.committed)
    is_early = below > max(topic.earliest, history.checkpointed)
    return Eviction(below, "evicted") if is_early else None


def _reason(topic: TopicLog, segment: Segment, total: int, now: int) -> str:
    """Why a segment may go, if all before it do; empty if it may not."""
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
    left to `remove_cold`.
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


def remove_cold(topic: TopicLog) -> None:
    """Remove what is below the floor from the cold store.

    Raises `ColdStoreError` if some is left: it is tried again in the next round.
    """
    history = topic.history
    for first, summary in sorted(history.cold.items()):
        cold = history.pool.find_cold()
        if summary.end_offset > topic.earliest or cold is None:
            break
        cold.delete(cold_name(topic.id, first))
        del history.cold[first]


def remove_topic(pool: SegmentPool, topic_id: int) -> None:
    """Remove everything a dropped topic had; raises `ColdStoreError` if some is left."""
    directory = topic_path(pool.root, topic_id)
    for name in pool.fs.listdir(directory):
        pool.fs.unlink(os.path.join(directory, name))
    cold = pool.find_cold()
    if cold is not None:
        for name in cold.names(f"{topic_id:016x}/"):
            cold.delete(name)
