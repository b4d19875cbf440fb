"""Records that can be delivered: per priority a set of offsets, the next of them read ahead.

Owns: about a bit a record for those that wait, and a bounded number of records that were read.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from stratalog.model import Delivery
from stratalog.projections.delays import NEVER
from stratalog.projections.groups import GroupState
from stratalog.projections.rows import Rows

Fetch = Callable[[npt.NDArray[np.int64]], Rows]

# Records that are read at once: at 4096 the cost of a read is spread thin.
READ_AHEAD = 4096
_READ_AHEAD_BYTES = 1 << 20

# What a record takes in `Rows` besides its value.
_ROW_BYTES = 128


class Class:
    """The records of one priority, in the order of their offsets."""

    __slots__ = ("buffer", "buffer_bytes", "priority", "read_ahead", "waiting")

    def __init__(self, priority: int, waiting: BitMap64) -> None:
        self.priority = priority
        self.waiting = waiting
        """Offsets that were not read yet; all are behind those that were."""
        self.buffer = Rows()
        """Records that were read, the next one last."""
        self.buffer_bytes = 0
        """Of the values, when they were read."""
        self.read_ahead = 32

    def fill(self, fetch: Fetch, gone: Callable[[Iterable[int]], None]) -> bool:
        """Read the next records; returns whether there is one now."""
        while not self.buffer and self.waiting:
            offsets = self._next()
            self.buffer = found = fetch(offsets)
            # Of a few, taken for all: a look at each would take as long as reading it.
            some = found.values[:: len(found) // 8 + 1]
            self.buffer_bytes = (
                sum(len(one or b"") for one in some) * len(found) // (len(some) or 1)
            )
            if len(found) < len(offsets):
                have = set(found.offsets)
                gone([offset for offset in offsets.tolist() if offset not in have])
            found.reverse()
            # More and more, as long as they are small.
            size = self.buffer_bytes // max(1, len(found)) + _ROW_BYTES
            self.read_ahead = min(2 * self.read_ahead, READ_AHEAD, _READ_AHEAD_BYTES // size + 1)
        return bool(self.buffer)

    def _next(self) -> npt.NDArray[np.int64]:
        """Take the lowest offsets out of those that wait."""
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
        """Forget what was read: it waits again."""
        if self.buffer:
            self.waiting.update(self.buffer.offsets)
            self.buffer.clear()
            self.buffer_bytes = 0
            self.read_ahead = 32

    def add(self, offsets: Iterable[int]) -> None:
        """Take in records that can be delivered from now on."""
        if self.buffer and min(offsets, default=NEVER) < self.buffer.offsets[0]:
            self.put_back()
        self.waiting.update(offsets)

    def insert(self, delivery: Delivery) -> None:
        """Take in a record that was given back, and is at hand."""
        buffer = self.buffer
        is_next = buffer or not (self.waiting and self.waiting.min() < delivery.offset)
        if is_next and (not buffer or delivery.offset < buffer.offsets[0]):
            buffer.insert(delivery)
        else:
            self.waiting.add(delivery.offset)


class Ready:
    """All priorities."""

    __slots__ = ("_state", "classes", "order")

    def __init__(self, state: GroupState) -> None:
        self._state = state
        self.classes: dict[int, Class] = {}
        self.order: list[int] = []
        """Priorities, the most urgent first."""
        self.look()

    def look(self) -> None:
        """Take note of priorities that records were taken in with."""
        if len(self._state.waiting) != len(self.classes):
            for priority in self._state.waiting:
                self.of(priority)

    def of(self, priority: int) -> Class:
        """The records of a priority."""
        found = self.classes.get(priority)
        if found is None:
            found = self.classes[priority] = Class(priority, self._state.wait(priority))
            insort(self.order, priority)
        return found

    def waiting(self) -> Iterator[tuple[int, BitMap64]]:
        """Everything, by priority; sets that are the caller's own."""
        for priority, one in self.classes.items():
            bits = one.waiting.copy()
            bits.update(one.buffer.offsets)
            if bits:
                yield priority, bits

    def put_back(self) -> bool:
        """Forget what was read; returns whether there was anything."""
        had = any(one.buffer for one in self.classes.values())
        for one in self.classes.values():
            one.put_back()
        return had

    @property
    def held_bytes(self) -> int:
        """Memory of what was read."""
        return sum(
            one.buffer_bytes + _ROW_BYTES * len(one.buffer)
            for one in self.classes.values()
            if one.buffer
        )

    def clear(self) -> None:
        """Forget all."""
        self.classes.clear()
        self.order.clear()
