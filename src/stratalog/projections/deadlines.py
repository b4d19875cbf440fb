"""When leases run out: looked at when somebody asks, never by a timer."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from stratalog.model import Lease
from stratalog.projections.delays import NEVER


class Deadlines:
    """Offsets by the time at which to look at them: one item for all of a delivery.

    What was acknowledged meanwhile is still in here until its time comes; whoever finds too much
    of that builds it again.
    """

    __slots__ = ("_heap", "count", "next_due")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, tuple[int, ...]]] = []
        self.count = 0
        """Offsets in it."""
        self.next_due = NEVER

    def add(self, deadline: int, serial: int, offsets: Sequence[int]) -> None:
        """Look at these at that time."""
        heappush(self._heap, (deadline, serial, tuple(offsets)))  # compared, if all else is equal
        self.count += len(offsets)
        if deadline < self.next_due:
            self.next_due = deadline

    def pop_due(self, now: int) -> Iterator[int]:
        """Take out the offsets whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            offsets = heappop(heap)[2]
            self.count -= len(offsets)
            self.next_due = heap[0][0] if heap else NEVER
            yield from offsets

    def rebuild(self, pending: Mapping[int, Lease], without: Container[int]) -> None:
        """Begin again with what is pending."""
        self._heap = [
            (lease.deadline, lease.serial, (offset,))
            for offset, lease in pending.items()
            if offset not in without
        ]
        heapify(self._heap)
        self.count = len(self._heap)
        self.next_due = self._heap[0][0] if self._heap else NEVER
