"""Deduplication: which ids were put lately, and where the first message of each is.

Owns: a ring of entries in the order they were put, 32 bytes each, and a table of 4-byte slots that
is at most half full: 40 to 80 bytes an entry, where a dictionary takes 150.

An id is known by its 128-bit hash. The oldest entry goes when its time is up, or when there are
too many.

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
        "_count", "_expires", "_found", "_head", "_high", "_highs", "_low", "_lows", "_mask",
        "_offsets", "_ring_mask", "_slot", "_slots", "entries_max", "next_expiry",
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
        self._mask = 2 * capacity - 1
        self._lows = array("Q", bytes(8 * capacity))
        self._highs = array("Q", bytes(8 * capacity))
        self._offsets = array("q", bytes(8 * capacity))
        self._expires = array("q", bytes(8 * capacity))
        self._slots = array("I", bytes(8 * capacity))

    def __len__(self) -> int:
        return self._count

    @property
    def held_bytes(self) -> int:
        """Memory they take."""
        return 40 * (self._ring_mask + 1)

    def find(self, id: bytes, now: int) -> int:
        """The offset of the first message with this id; -1 if there is none that still counts."""
        digest = xxh3_128_intdigest(id)
        self._low = low = digest & _LOW
        self._high = high = digest >> 64
        slots, lows, mask = self._slots, self._lows, self._mask
        slot = low & mask
        while index := slots[slot]:
            index -= 1
            if lows[index] == low and self._highs[index] == high:
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
        if count >= self.entries_max or count > self._ring_mask:
            if count >= self.entries_max:
                self._drop_oldest()
            else:
                self._restore(self._entries())
            self._insert(self._low, self._high, offset, expires)
            return
        index = self._head + count & self._ring_mask
        self._count = count + 1
        self._lows[index], self._highs[index] = self._low, self._high
        self._offsets[index], self._expires[index] = offset, expires
        self._slots[self._slot] = index + 1
        if not count:
            self.next_expiry = expires

    def _insert(self, low: int, high: int, offset: int, expires: int) -> None:
        """Add an entry that is not there, for which there is room."""
        slots, mask = self._slots, self._mask
        slot = low & mask
        while slots[slot]:
            slot = slot + 1 & mask
        self._low, self._high, self._slot, self._found = low, high, slot, -1
        self.add_last(offset, expires)

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
        slots, mask, lows = self._slots, self._mask, self._lows
        slot = lows[self._head] & mask
        while slots[slot] != self._head + 1:
            slot = slot + 1 & mask
        # Those behind it that were pushed on by it move back, so that a search finds them.
        following = slot
        while True:
            slots[slot] = 0
            while True:
                following = following + 1 & mask
                index = slots[following]
                if not index:
                    self._head = self._head + 1 & self._ring_mask
                    self._count -= 1
                    self.next_expiry = self._expires[self._head] if self._count else NEVER
                    return
                wanted = lows[index - 1] & mask
                if following - wanted & mask >= following - slot & mask:
                    break
            slots[slot] = index
            slot = following

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
