"""Sets of offsets and ranges of them."""

from __future__ import annotations

from pyroaring import BitMap64

from stratalog.log.topic import TopicLog
from stratalog.segments.offset_runs import ranges_of
from stratalog.tools.topics import Range


def new_offsets(topic: TopicLog, ranges: list[Range]) -> BitMap64:
    """Offsets that were not given up yet."""
    offsets = BitMap64()
    for first, last in ranges:
        offsets.add_range(first, last + 1)
    return offsets - topic.history.lost


__all__ = ["new_offsets", "ranges_of"]
