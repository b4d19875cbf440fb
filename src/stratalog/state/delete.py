"""Deletes: the matching records are found, and logged by offset.

So recovery deletes the same records, whatever was appended after them.
"""

from __future__ import annotations

from typing import Protocol

from pyroaring import BitMap64

from stratalog.format.control import encode_deletes, encode_floor
from stratalog.format.frame import FrameType
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.segments.delete import Conditions, count_living, find_offsets
from stratalog.state.router import control


class Elsewhere(Protocol):
    """Records of a topic that its log no longer has, and that a delete means all the same."""

    def is_empty(self) -> bool:
        """Whether there can be none."""

    def find(self, end: int, conditions: Conditions, now: int) -> BitMap64:
        """Offsets of those below `end` that meet the conditions."""


def delete(
    log: Log, topic: TopicLog, end: int, conditions: Conditions, now: int, elsewhere: Elsewhere
) -> int:
    """Delete the records below `end` that meet the conditions, durably; returns how many."""
    # One at a time: two concurrent deletes of the same records would both count them.
    with topic.history.delete_lock:
        try:
            return _delete(log, topic, end, conditions, now, elsewhere)
        finally:
            _forget_read_ahead(topic)


def _delete(
    log: Log, topic: TopicLog, end: int, conditions: Conditions, now: int, elsewhere: Elsewhere
) -> int:
    history = topic.history
    if conditions == Conditions():
        count = count_living(topic, end, now)
        found = BitMap64() if elsewhere.is_empty() else elsewhere.find(end, conditions, now)
        if end > topic.earliest or found:
            # A floor below what was evicted is one of the lake alone: see `router`.
            below = history.evicted_below if end > history.evicted_below else 0
            body = encode_floor(below, history.evicted_reason)
            log.write([control(topic, FrameType.FLOOR, end, body)])
        return count + len(found)
    found = find_offsets(topic, end, now, conditions)
    # After the log: what was evicted meanwhile is there by now.
    if not elsewhere.is_empty():
        found |= elsewhere.find(end, conditions, now)
    bodies = encode_deletes(found, topic.batch_bytes_max)
    log.write([control(topic, FrameType.DELETE, 0, body) for body in bodies])
    return len(found)


def _forget_read_ahead(topic: TopicLog) -> None:
    """Make consumers read again: records that they have read ahead may be deleted."""
    for engine in list(topic.groups.live.values()):
        with engine.lock:
            engine.forget()
