"""From control frames to state: one function, for frames just committed and for frames replayed.

Everything here may be applied again: a snapshot may already have what the frames behind its
position say.
"""

from __future__ import annotations

from stratalog.errors import UnsupportedVersionError
from stratalog.format.control import (
    decode_checkpoint,
    decode_delete,
    decode_floor,
    decode_reserve,
    decode_tier,
    decode_topic,
)
from stratalog.format.frame import FrameType
from stratalog.log.log import Control
from stratalog.log.topic import TopicLog


def control(topic: TopicLog, type: int, base_offset: int, body: bytes) -> Control:
    """A control frame to be written, which becomes state as it would in replay."""
    return Control(topic, type, base_offset, body, lambda: apply(topic, type, base_offset, body))


def apply(topic: TopicLog, type: int, base_offset: int, body: bytes) -> None:
    """Take in what a control frame says of a topic."""
    history = topic.history
    if type == FrameType.TOPIC:
        if base_offset > topic.version:
            topic.version = base_offset
            topic.define(decode_topic(body))
    elif type == FrameType.RESERVE:
        topic.skip(decode_reserve(body), base_offset)
    elif type == FrameType.CHECKPOINT:
        history.note_checkpoint(base_offset, *decode_checkpoint(body))
    elif type == FrameType.FLOOR:
        evicted_below, reason = decode_floor(body)
        if evicted_below > history.evicted_below:
            history.evicted_below, history.evicted_reason = evicted_below, reason
        topic.earliest = max(topic.earliest, base_offset)
    elif type == FrameType.GROUP:
        topic.groups.collect(base_offset, body)
    elif type == FrameType.DELETE:
        # A new set: readers go on with the one they hold.
        history.deleted = history.deleted | decode_delete(body)
    elif type == FrameType.LOST:
        history.lost = history.lost | decode_delete(body)
        if history.lost:
            topic.resume(history.lost.max() + 1, 0)  # what was given up is not given out again
    elif type == FrameType.TIER:
        summary, location = decode_tier(body)
        history.note_tier(summary)
        history.pool.cold_location = location
    elif type == FrameType.DROP:
        if topic.version < 0:
            topic.define(decode_topic(body))
        topic.is_dropped = True
    else:
        raise UnsupportedVersionError(
            f"frame of type {type}, which this release does not know what to do with: upgrade it"
        )
