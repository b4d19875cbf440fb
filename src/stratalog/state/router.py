"""From control frames to state: one function, for frames just committed and for recovery.

Everything here is idempotent: a snapshot may already have the effect of frames after its position.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.errors import CorruptionError, UnsupportedVersionError
from stratalog.format.control import (
    LOST_CRASH,
    decode_checkpoint,
    decode_delete,
    decode_floor,
    decode_reserve,
    decode_tier,
    decode_topic,
)
from stratalog.format.frame import FrameType
from stratalog.format.lake import decode_lake
from stratalog.log.log import Control
from stratalog.log.topic import TopicLog
from stratalog.state.projection import Projection
from stratalog.state.series_state import SeriesState
from stratalog.state.table_projection import TableProjection

PROJECTIONS: dict[str, Callable[[TopicLog], Projection]] = {
    "series": SeriesState,
    "table": TableProjection,
}
"""Factories of projections by the topic's kind; other kinds have none."""


def project(topic: TopicLog) -> None:
    """Give a topic the projection of its kind, unless it has one or its kind has none."""
    make = PROJECTIONS.get(topic.kind)
    if make is not None and topic.projection is None:
        topic.projection = make(topic)


def control(topic: TopicLog, type: int, base_offset: int, body: bytes) -> Control:
    """Build a control frame to be written, which is applied as recovery would apply it."""
    return Control(topic, type, base_offset, body, lambda: apply(topic, type, base_offset, body))


def apply(topic: TopicLog, type: int, base_offset: int, body: bytes) -> None:
    """Apply a control frame to a topic."""
    history = topic.history
    if type == FrameType.TOPIC:
        if base_offset > topic.version:
            topic.version = base_offset
            topic.define(decode_topic(body))
            project(topic)
    elif type == FrameType.RESERVE:
        topic.skip(decode_reserve(body), base_offset)
    elif type == FrameType.CHECKPOINT:
        history.note_checkpoint(base_offset, *decode_checkpoint(body))
    elif type == FrameType.FLOOR:
        evicted_below, reason = decode_floor(body)
        if evicted_below > history.evicted_below:
            history.evicted_below, history.evicted_reason = evicted_below, reason
        if base_offset > evicted_below:  # requested, also for files that only the lake has
            history.lake_floor = max(history.lake_floor, base_offset)
        topic.earliest = max(topic.earliest, base_offset)
    elif type == FrameType.GROUP:
        topic.groups.collect(base_offset, body)
    elif type == FrameType.DELETE:
        # A new set: readers continue with the one they hold.
        history.deleted = history.deleted | decode_delete(body)
    elif type == FrameType.LOST:
        history.note_lost(decode_delete(body), is_crash=base_offset == LOST_CRASH)
        if history.lost:
            topic.resume(history.lost.max() + 1, 0)  # lost offsets are not given out again
    elif type == FrameType.TIER:
        summary, location, name = decode_tier(body)
        history.note_tier(summary, name)
        history.pool.cold_location = location
    elif type == FrameType.LAKE:
        lake = decode_lake(body)
        if lake.generation != base_offset:
            raise CorruptionError(f"lake frame {base_offset} names manifest {lake.generation}")
        history.note_lake(lake)
    elif type == FrameType.DROP:
        if topic.version < 0:
            topic.define(decode_topic(body))
        topic.is_dropped = True
    else:
        raise UnsupportedVersionError(
            f"frame of type {type}, which this release does not know what to do with: upgrade it"
        )
