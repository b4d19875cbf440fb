"""Runs of neighbouring offsets in a set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from stratalog.segments import offset_runs
from stratalog.segments.offset_runs import ranges_of

HUGE = 1 << 33


@given(st.sets(st.integers(0, 200)), st.booleans())
def test_both_ways_find_the_same_runs(offsets: set[int], is_large: bool) -> None:
    """The one for small sets, and the one for sets that no array should hold."""
    expected: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if expected and expected[-1][1] == offset - 1:
            expected[-1] = (expected[-1][0], offset)
        else:
            expected.append((offset, offset))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_runs, "_ARRAY_MAX", 0 if is_large else 1 << 20)
        assert ranges_of(BitMap64(offsets)) == expected


def test_a_run_of_thousands_of_millions_takes_no_memory_by_its_length() -> None:
    """It would have as many numbers of eight bytes."""
    offsets = BitMap64([3])
    offsets.add_range(10, HUGE)
    assert ranges_of(offsets) == [(3, 3), (10, HUGE - 1)]
