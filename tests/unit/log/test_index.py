"""The index of a topic's frames: which offsets it lacks."""

from __future__ import annotations

import pytest

from stratalog.log.index import FrameIndex


@pytest.mark.parametrize(
    ("start", "holes"),
    [
        (0, [(2, 4), (7, 8)]),
        (1, [(2, 4), (7, 8)]),
        (3, [(3, 4), (7, 8)]),
        (5, [(7, 8)]),
        (8, [(8, 8)]),
        (9, []),
        (20, []),
    ],
)
def test_holes_are_told_from_an_offset_on(start: int, holes: list[tuple[int, int]]) -> None:
    """Those below it were told as well, if there were two frames or more there."""
    index = FrameIndex()
    for base, count in ((0, 2), (5, 2), (9, 1)):
        index.add(base, count, 0, base, 100, 0)
    assert index.holes(start) == holes


def test_nothing_has_no_holes() -> None:
    """A topic without frames has none, others have."""
    assert FrameIndex().holes(7) == []
