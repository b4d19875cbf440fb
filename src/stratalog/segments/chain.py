"""The chain of a topic's segments in order of offset, and the place where the open one ends."""

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
        """Return the first offset after all of them; 0 if there is none."""
        return self.segments[-1].end if self.segments else 0

    def find(self, offset: int) -> Segment | None:
        """Return the segment that answers for an offset."""
        number = bisect_right(self.firsts, offset) - 1
        if number < 0 or offset >= self.segments[number].end:
            return None
        return self.segments[number]


class Mark(NamedTuple):
    """The newest `CHECKPOINT` frame's word on the open segment."""

    segment: int
    position: int
