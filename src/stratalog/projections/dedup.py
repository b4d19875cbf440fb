"""Deduplication: which ids were put lately, and where the first message of each is.

Owns: a ring of entries in the order they were put, 32 bytes each, and a table of 4-byte slots that
is at most half full: 48 to 96 bytes an entry, where a dictionary takes 150.

An id is known by its 128-bit hash. The oldest entry goes when its time is up, or when there are
too many: it leaves the ring, and its slot stays taken until half of them are, when the table is
made again. A search that comes upon such a slot finds another entry in the ring, or one that is no
longer part of it, and goes on.

Concurrency: the queue's deduplication lock is held by whoever calls.
"""

from __future__ import annotations

from array import array

import numpy as np
from xxhash import xxh3_128_intdigest

from stratalog.errors import CorruptionError
from stratalog.projections.delays import NEVER

ENTRY_BYTES = 32

_LOW = (1 << 64) - 1
_CAPACITY_MIN = 64


class Dedup:
    """Ids that were put, for as long as they count."""

    __slots__ = (
        "_count", "_expires", "_found", "_free", "_head", "_high", "_highs", "_low", "_lows",
        "_mask", "_offsets", "_ring_mask", "_slot", "_slots", "entries_max", "next_expiry",
    )  # fmt: skip

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self._head = 0
        self._count = 0
        self._low = self._high = self._slot = 0
        self._found = -1
        self.next_expiry = NEVER
        """When the oldest entry counts no longer, in nanoseconds since 1970."""
        self._allocate(_CAPACITY_MIN)

    def _allocate(self, capacity: int) -> None:
        self._ring_mask = capacity - 1
        self._mask = 4 * capacity - 1
        self._free = 2 * capacity
        """Slots that may yet be taken before the table is made again."""
        self._lows = array("Q", bytes(8 * capacity))
        self._highs = array("Q", bytes(8 * capacity))
        self._offsets = array("q", bytes(8 * capacity))
        self._expires = array("q", bytes(8 * capacity))
        self._slots = array("I", bytes(16 * capacity))

    def __len__(self) -> int:
        return self._count

    @property
    def held_bytes(self) -> int:
        """Memory they take."""
        return 48 * (self._ring_mask + 1)

    def find(self, id: bytes, now: int) -> int:
        """The offset of the first message with this id; -1 if there is none that still counts."""
        digest = xxh3_128_intdigest(id)
        self._low = low = digest & _LOW
        self._high = high = digest >> 64
        slots, lows, mask = self._slots, self._lows, self._mask
        slot = low & mask
        while index := slots[slot]:
            index -= 1
            if (
                lows[index] == low
                and self._highs[index] == high
                and index - self._head & self._ring_mask < self._count
            ):
                self._found = index
                return self._offsets[index] if self._expires[index] > now else -1
            slot = slot + 1 & mask
        self._slot = slot
        self._found = -1
        return -1

    def add(self, id: bytes, offset: int, expires: int) -> None:
        """Remember an id; the oldest entry goes if there are too many."""
        self.find(id, 0)
        self.add_last(offset, expires)

    def add_last(self, offset: int, expires: int) -> None:
        """Remember the id that was looked for last, and not found."""
        if self._found >= 0:  # it was there, and counted no longer
            self._offsets[self._found], self._expires[self._found] = offset, expires
            return
        count = self._count
        if count >= self.entries_max:
            self._drop_oldest()
            count -= 1
        if count > self._ring_mask or not self._free:
            low, high = self._low, self._high
            self._restore(self._entries())
            self._look_for(low, high)
        index = self._head + count & self._ring_mask
        self._count = count + 1
        self._free -= 1
        self._lows[index], self._highs[index] = self._low, self._high
        self._offsets[index], self._expires[index] = offset, expires
        self._slots[self._slot] = index + 1
        if not count:
            self.next_expiry = expires

    def _look_for(self, low: int, high: int) -> None:
        """Find a slot for an entry that is not there."""
        slots, mask = self._slots, self._mask
        slot = low & mask
        while slots[slot]:
            slot = slot + 1 & mask
        self._low, self._high, self._slot = low, high, slot

    def expire(self, now: int) -> None:
        """Forget those whose time is up, the oldest first."""
        while self._count and self._expires[self._head] <= now:
            self._drop_oldest()

    def forget_from(self, offset: int) -> None:
        """Forget messages from an offset on: they were not written after all."""
        entries = self._entries()
        self._restore(entries[entries["offset"] < offset])

    def to_bytes(self) -> bytes:
        """As a snapshot has them, the oldest first."""
        return self._entries().tobytes()

    def restore(self, data: bytes) -> None:
        """Take over what a snapshot has."""
        if len(data) % ENTRY_BYTES:
            raise CorruptionError(f"deduplication entries of {len(data)} bytes: not whole ones")
        self._restore(np.frombuffer(data, _ENTRY))

    def _drop_oldest(self) -> None:
        self._head = self._head + 1 & self._ring_mask
        self._count -= 1
        self.next_expiry = self._expires[self._head] if self._count else NEVER

    def _columns(self) -> tuple[array[int], ...]:
        return self._lows, self._highs, self._offsets, self._expires

    def _entries(self) -> np.ndarray:
        entries = np.zeros(self._count, _ENTRY)
        order = np.arange(self._head, self._head + self._count) & self._ring_mask
        for name, column in zip(
            _ENTRY.names or (),
            self._columns(),
            strict=True,
        ):
            entries[name] = np.frombuffer(column, _ENTRY[name])[order]
        return entries

    def _restore(self, entries: np.ndarray) -> None:
        entries = entries[-self.entries_max :]
        capacity = _CAPACITY_MIN
        while capacity <= len(entries):
            capacity *= 2
        self._allocate(capacity)
        self._head = 0
        self._count = count = len(entries)
        self._free -= count
        self.next_expiry = int(entries["expires"][0]) if count else NEVER
        for name, column in zip(_ENTRY.names or (), self._columns(), strict=True):
            np.frombuffer(column, _ENTRY[name])[:count] = entries[name]
        # All at once: who finds a slot taken goes on to the next one, until nobody has to.
        slots = np.frombuffer(self._slots, np.uint32)
        indexes = np.arange(1, count + 1, dtype=np.uint32)
        wanted = (entries["low"] & np.uint64(self._mask)).astype(np.int64)
        while len(indexes):
            is_free = slots[wanted] == 0
            slots[wanted[is_free]] = indexes[is_free]
            is_left = slots[wanted] != indexes
            indexes = indexes[is_left]
            wanted = wanted[is_left] + 1 & self._mask


_ENTRY = np.dtype([("low", "<u8"), ("high", "<u8"), ("offset", "<i8"), ("expires", "<i8")])
assert _ENTRY.itemsize == ENTRY_BYTES
