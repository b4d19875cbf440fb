"""Runs of neighbouring offsets in a set."""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

# Up to so many offsets, an array of all of them is the faster way to their runs. More would take
# memory by their number: a topic may have lost thousands of millions in one run.
_ARRAY_MAX = 1 << 20


def ranges_of(offsets: BitMap64) -> list[tuple[int, int]]:
    """First and last of every run of a set, in order."""
    if not offsets:
        return []
    return _from_array(offsets) if len(offsets) <= _ARRAY_MAX else _by_search(offsets)


def _from_array(offsets: BitMap64) -> list[tuple[int, int]]:
    values = np.array(offsets.to_array(), np.int64)
    cuts = np.flatnonzero(np.diff(values) != 1)
    firsts = values[np.concatenate(([0], cuts + 1))]
    lasts = values[np.concatenate((cuts, [len(values) - 1]))]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _by_search(offsets: BitMap64) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
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


__all__ = ["ranges_of"]
