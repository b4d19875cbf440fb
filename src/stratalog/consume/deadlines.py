"""Deadlines of leases: checked when a consumer asks, never by a timer."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count

import numpy as np

from stratalog.model import Lease
from stratalog.state.delays import NEVER

# Deliveries within 17 ms of each other are checked together.
_SHIFT = 24


class Deadlines:
    """Offsets by the time at which to check them: at their deadline or shortly before.

    Acknowledged records stay here until their time comes; a caller that finds too many of them
    builds it again.
    """

    __slots__ = ("_bucket", "_heap", "_numbers", "_tick", "count", "next_due")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence[int]]] = []
        self._numbers = count()
        self._tick = -1
        self._bucket: list[int] = []
        self.count = 0
        """Number of offsets in it."""
        self.next_due = NEVER

    def add(self, deadline: int, offset: int) -> None:
        """Check a record at about that time."""
        tick = deadline >> _SHIFT
        if tick != self._tick:
            self._tick = tick
            self._bucket = []
            self.add_exactly(tick << _SHIFT, self._bucket)
        self._bucket.append(offset)
        self.count += 1

    def add_exactly(self, deadline: int, offsets: Sequence[int]) -> None:
        """Check records at exactly that time."""
        heappush(self._heap, (deadline, next(self._numbers), offsets))
        self.count += len(offsets)
        if deadline < self.next_due:
            self.next_due = deadline

    def pop_due(self, now: int) -> Iterator[int]:
        """Remove and give the offsets whose time has come."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            offsets = heappop(heap)[2]
            if offsets is self._bucket:
                self._tick = -1  # the next record begins a new tick
            self.count -= len(offsets)
            self.next_due = heap[0][0] if heap else NEVER
            yield from offsets

    def rebuild(self, pending: Mapping[int, Lease], without: Collection[int]) -> None:
        """Start again with the pending records."""
        chosen = [offset for offset in pending if offset not in without] if without else pending
        offsets = np.fromiter(chosen, np.int64, len(chosen))
        due = np.fromiter((pending[offset].deadline for offset in chosen), np.int64, len(chosen))
        order = np.argsort(due, kind="stable")
        ticks = due[order] >> _SHIFT
        cuts = np.flatnonzero(np.diff(ticks)) + 1
        # Sorted by time, which is a valid heap.
        self._heap = [
            (int(due[part[0]]), next(self._numbers), offsets[part].tolist())
            for part in np.split(order, cuts)
            if len(part)
        ]
        self._tick = -1
        self.count = len(chosen)
        self.next_due = self._heap[0][0] if self._heap else NEVER
