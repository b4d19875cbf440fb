"""Segments of a topic one behind the other, and where the open one of them ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from stratalog.segments.segment import Segment


class Chain(NamedTuple):
    """Segments in the order of their offsets."""

    segments: tuple[Segment, ...]
    firsts: tuple[int, ...]

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Chain:
        """A chain of these."""
        chosen = tuple(segments)
        return cls(chosen, tuple(segment.first for segment in chosen))

    @property
    def end(self) -> int:
        """The first offset behind all of them; 0 if there is none."""
        return self.segments[-1].end if self.segments else 0

    def find(self, offset: int) -> Segment | None:
        """The segment that answers for an offset."""
        number = bisect_right(self.firsts, offset) - 1
        if number < 0 or offset >= self.segments[number].end:
            return None
        return self.segments[number]


class Mark(NamedTuple):
    """What the newest `CHECKPOINT` frame says of the open segment."""

    segment: int
    position: int
