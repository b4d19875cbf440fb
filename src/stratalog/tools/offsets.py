"""Sets of offsets and ranges of them."""

from __future__ import annotations

from pyroaring import BitMap64

from stratalog.log.topic import TopicLog
from stratalog.tools.topics import Range


def new_offsets(topic: TopicLog, ranges: list[Range]) -> BitMap64:
    """Offsets that were not given up yet."""
    offsets = BitMap64()
    for first, last in ranges:
        offsets.add_range(first, last + 1)
    return offsets - topic.history.lost


def ranges_of(offsets: BitMap64) -> list[Range]:
    """First and last of every run of a set, in order."""
    ranges: list[Range] = []
    rest = offsets.copy()
    while rest:
        first = rest.min()
        low, high = 1, 1
        while rest.contains_range(first, first + high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            has_more = rest.contains_range(first, first + middle)
            low, high = (middle, high) if has_more else (low, middle)
        ranges.append((first, first + low - 1))
        rest.remove_range(first, first + low)
    return ranges
