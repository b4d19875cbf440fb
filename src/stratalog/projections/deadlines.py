"""When leases run out: looked at when somebody asks, never by a timer."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from stratalog.model import Lease
from stratalog.projections.delays import NEVER

# Deliveries within 17 ms of each other are looked at together.
_SHIFT = 24


class Deadlines:
    """Offsets by the time at which to look at them, which is at their deadline or a bit before.

    What was acknowledged meanwhile is still in here until its time comes; whoever finds too much
    of that builds it again.
    """

    __slots__ = ("_bucket", "_heap", "_numbers", "_tick", "count", "next_due")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence[int]]] = []
        self._numbers = count()
        self._tick = -1
        self._bucket: list[int] = []
        self.count = 0
        """Offsets in it."""
        self.next_due = NEVER

    def add(self, deadline: int, offset: int) -> None:
        """Look at a record about then."""
        tick = deadline >> _SHIFT
        if tick != self._tick:
            self._tick = tick
            self._bucket = []
            self.add_exactly(tick << _SHIFT, self._bucket)
        self._bucket.append(offset)
        self.count += 1

    def add_exactly(self, deadline: int, offsets: Sequence[int]) -> None:
        """Look at records then."""
        heappush(self._heap, (deadline, next(self._numbers), offsets))
        self.count += len(offsets)
        if deadline < self.next_due:
            self.next_due = deadline

    def pop_due(self, now: int) -> Iterator[int]:
        """Take out the offsets whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            offsets = heappop(heap)[2]
            if offsets is self._bucket:
                self._tick = -1  # the next one begins another
            self.count -= len(offsets)
            self.next_due = heap[0][0] if heap else NEVER
            yield from offsets

    def rebuild(self, pending: Mapping[int, Lease], without: Container[int]) -> None:
        """Begin again with what is pending."""
        self._heap = [
            (lease.deadline, next(self._numbers), (offset,))
            for offset, lease in pending.items()
            if offset not in without
        ]
        heapify(self._heap)
        self._tick = -1
        self.count = len(self._heap)
        self.next_due = self._heap[0][0] if self._heap else NEVER
