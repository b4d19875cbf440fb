"""Deletes: what is meant is found, and written down by offset.

So a replay deletes the same records, whatever came after them.
"""

from __future__ import annotations

from stratalog.format.control import encode_deletes, encode_floor
from stratalog.format.frame import FrameType
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.projections.router import control
from stratalog.segments.delete import Conditions, count_living, find_offsets


def delete(log: Log, topic: TopicLog, end: int, conditions: Conditions, now: int) -> int:
    """Delete the records below `end` that meet the conditions, durably; returns how many."""
    # One at a time: two that mean the same records would both count them.
    with topic.history.delete_lock:
        return _delete(log, topic, end, conditions, now)


def _delete(log: Log, topic: TopicLog, end: int, conditions: Conditions, now: int) -> int:
    if conditions == Conditions():
        count = count_living(topic, end, now)
        if end > topic.earliest:
            history = topic.history
            body = encode_floor(history.evicted_below, history.evicted_reason)
            log.write([control(topic, FrameType.FLOOR, end, body)])
        return count
    found = find_offsets(topic, end, now, conditions)
    bodies = encode_deletes(found, topic.batch_bytes_max)
    log.write([control(topic, FrameType.DELETE, 0, body) for body in bodies])
    return len(found)
