"""Deliverable records: per priority a set of offsets, the next of them read ahead.

Owns: about a bit per waiting record, and a bounded number of records that were read.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from stratalog.consume.read_ahead import Rows
from stratalog.model import Delivery
from stratalog.state.delays import NEVER
from stratalog.state.group_state import GroupState

Fetch = Callable[[npt.NDArray[np.int64]], Rows]

# Records that are read at once: at 4096 the fixed cost of a read hardly counts.
READ_AHEAD = 4096
READ_AHEAD_BYTES = 1 << 20

# Bytes of a record in `Rows` besides its value.
_ROW_BYTES = 128


class Lane:
    """The records of one priority, in the order of their offsets."""

    __slots__ = ("_bytes_max", "buffer", "buffer_bytes", "priority", "read_ahead", "waiting")

    def __init__(self, priority: int, waiting: BitMap64, bytes_max: int) -> None:
        self.priority = priority
        self._bytes_max = bytes_max
        self.waiting = waiting
        """Offsets that were not read yet; all come after those that were."""
        self.buffer = Rows()
        """Records that were read, the next one last."""
        self.buffer_bytes = 0
        """Bytes of the values when they were read."""
        self.read_ahead = 32

    def fill(self, fetch: Fetch, gone: Callable[[Iterable[int]], None]) -> bool:
        """Read the next records; returns whether there is one now."""
        while not self.buffer.offsets and self.waiting:
            offsets = self._next()
            try:
                self.buffer = found = fetch(offsets)
            except BaseException:
                self.waiting.update(offsets.tolist())  # unread, they still wait
                raise
            # Estimated from a few records: looking at each would take as long as reading it.
            count = len(found.offsets)
            some = found.values[:: count // 8 + 1]
            self.buffer_bytes = sum(map(len, filter(None, some))) * count // (len(some) or 1)
            if count < len(offsets):
                have = set(found.offsets)
                gone([offset for offset in offsets.tolist() if offset not in have])
            if count > 1:
                found.reverse()
            # Read more and more, as long as they are small.
            size = self.buffer_bytes // max(1, count) + _ROW_BYTES
            self.read_ahead = min(2 * self.read_ahead, READ_AHEAD, self._bytes_max // size + 1)
        return bool(self.buffer.offsets)

    def _next(self) -> npt.NDArray[np.int64]:
        """Remove and return the lowest waiting offsets."""
        waiting = self.waiting
        first = waiting.min()
        count = self.read_ahead
        if waiting.contains_range(first, first + count):
            waiting.remove_range(first, first + count)
            return np.arange(first, first + count, dtype=np.int64)
        chosen = waiting[:count]
        waiting.difference_update(chosen)
        return np.array(chosen.to_array(), np.int64)

    def put_back(self) -> None:
        """Drop the records that were read: they wait again."""
        if self.buffer:
            self.waiting.update(self.buffer.offsets)
            self.buffer.clear()
            self.buffer_bytes = 0
            self.read_ahead = 32

    def add(self, offsets: Iterable[int]) -> None:
        """Add records that can be delivered from now on."""
        if self.buffer and min(offsets, default=NEVER) < self.buffer.offsets[0]:
            self.put_back()
        self.waiting.update(offsets)

    def insert(self, delivery: Delivery) -> None:
        """Add a record that was given back, and is at hand."""
        buffer = self.buffer
        is_next = buffer or not (self.waiting and self.waiting.min() < delivery.offset)
        if is_next and (not buffer or delivery.offset < buffer.offsets[0]):
            buffer.insert(delivery)
        else:
            self.waiting.add(delivery.offset)


class Ready:
    """All priorities."""

    __slots__ = ("_bytes_max", "_state", "classes", "order")

    def __init__(self, state: GroupState, bytes_max: int = READ_AHEAD_BYTES) -> None:
        self._state = state
        self._bytes_max = min(bytes_max, READ_AHEAD_BYTES)
        self.classes: dict[int, Lane] = {}
        self.order: list[int] = []
        """Priorities, the most urgent first."""
        self.look()

    def look(self) -> None:
        """Take note of the priorities of newly ingested records."""
        if len(self._state.waiting) != len(self.classes):
            for priority in self._state.waiting:
                self.of(priority)

    def of(self, priority: int) -> Lane:
        """Return the records of a priority."""
        found = self.classes.get(priority)
        if found is None:
            found = self.classes[priority] = Lane(
                priority, self._state.wait(priority), self._bytes_max
            )
            insort(self.order, priority)
        return found

    def waiting(self) -> Iterator[tuple[int, BitMap64]]:
        """Give all waiting offsets by priority; the sets belong to the caller."""
        for priority, one in self.classes.items():
            bits = one.waiting.copy()
            bits.update(one.buffer.offsets)
            if bits:
                yield priority, bits

    def put_back(self) -> bool:
        """Drop the records that were read; returns whether there were any."""
        had = any(one.buffer for one in self.classes.values())
        for one in self.classes.values():
            one.put_back()
        return had

    @property
    def held_bytes(self) -> int:
        """Return the memory of read records, and of the sets of the others."""
        held = 0
        for one in self.classes.values():
            held += one.buffer_bytes + _ROW_BYTES * len(one.buffer.offsets)
            # A set takes nothing for a run, and 2 bytes for each isolated offset.
            if count := len(one.waiting):
                span = one.waiting.max() - one.waiting.min() + 1
                held += 0 if span == count else min(2 * count, span // 8)
        return held
