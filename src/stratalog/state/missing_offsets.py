"""Offsets that no file accounts for."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.log.topic import TopicLog


def lost(topic: TopicLog) -> list[tuple[int, int]]:
    """List the first and last of offsets that neither the log nor a repair accounts for."""
    history = topic.history
    start = max(topic.earliest, history.checkpointed)
    holes = topic.index.holes(start)
    if history.adopted_end > start:
        newest = topic.index.place(len(topic.index) - 1) if len(topic.index) else None
        end = start if newest is None else max(start, newest.base_offset + newest.count)
        if history.adopted_end > end:
            holes.append((end, history.adopted_end - 1))
        for segment in history.ahead.segments:
            holes = list(_without(holes, segment.first, segment.end))
    return [hole for hole in holes if not history.is_given_up(*hole)]


def _without(ranges: list[tuple[int, int]], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Cut the offsets between two from ranges, each given with its last offset."""
    for low, high in ranges:
        if low < first:
            yield low, min(high, first - 1)
        if high >= end:
            yield max(low, end), high
