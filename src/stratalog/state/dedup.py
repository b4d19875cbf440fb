"""Deduplication: ids that were put recently, and the offset of the first message of each.

Owns: a ring of entries in the order they were put, 32 bytes each, and a table of 4-byte slots that
is at most half full: 48 to 96 bytes an entry, where a dictionary takes 150.

An id is known by its 128-bit hash. The oldest entry is removed when it expires, or when there are
too many: it leaves the ring, and its slot stays taken until half of the slots are, when the table
is rebuilt. A search that meets such a slot finds another entry in the ring, or a place outside of
it, and goes on.

Concurrency: the caller holds the queue's deduplication lock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
from xxhash import xxh3_128_intdigest

from stratalog.errors import CorruptionError
from stratalog.state.delays import NEVER

ENTRY_BYTES = 32

_LOW = (1 << 64) - 1
_CAPACITY_MIN = 64


class Dedup:
    """Ids that were put, until they expire."""

    __slots__ = (
        "_claimed", "_count", "_expires", "_free", "_head", "_highs", "_lows", "_mask", "_offsets",
        "_ring_mask", "_slots", "entries_max", "next_expiry", "on_growth",
    )  # fmt: skip

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self._head = 0
        self._count = 0
        self._claimed = 0
        self.next_expiry = NEVER
        """When the oldest entry expires, in nanoseconds since 1970."""
        self.on_growth: Callable[[int], None] | None = None
        """Requests memory, in bytes, before a new id needs more; it may raise."""
        self._allocate(_CAPACITY_MIN)

    def _allocate(self, capacity: int) -> None:
        self._ring_mask = capacity - 1
        self._mask = 4 * capacity - 1
        self._free = 2 * capacity
        """Slots that may still be taken before the table is rebuilt."""
        self._lows = array("Q", bytes(8 * capacity))
        self._highs = array("Q", bytes(8 * capacity))
        self._offsets = array("q", bytes(8 * capacity))
        self._expires = array("q", bytes(8 * capacity))
        self._slots = array("I", bytes(16 * capacity))

    def __len__(self) -> int:
        return self._count

    @property
    def held_bytes(self) -> int:
        """Bytes of memory they take."""
        return 48 * (self._ring_mask + 1)

    def find(self, id: bytes, now: int) -> int:
        """Return the offset of the first message with this id; -1 if none is valid any more."""
        digest = xxh3_128_intdigest(id)
        low, high = digest & _LOW, digest >> 64
        slots, mask = self._slots, self._mask
        slot = low & mask
        while index := slots[slot]:
            if self._is_entry(index - 1, low, high):
                return self._offsets[index - 1] if self._expires[index - 1] > now else -1
            slot = slot + 1 & mask
        return -1

    def ask(self, count: int) -> None:
        """Request memory for that many more ids; raises what `on_growth` raises."""
        capacity = self._ring_mask + 1
        wanted = min(self._count + count, self.entries_max)
        if self.on_growth is not None and wanted > capacity:
            self.on_growth(48 * 2 * (wanted - capacity))

    def claim(self, id: bytes, now: int, asks: bool = True) -> int:
        """Find an id; if the result is -1, `place` then remembers it with its message.

        Claiming an id and never placing it has no effect. The oldest entry is removed if there are
        too many. Requests memory with `on_growth` first if it takes more.
        """
        digest = xxh3_128_intdigest(id)
        low = digest & _LOW
        high = digest >> 64
        slots, lows, mask = self._slots, self._lows, self._mask
        slot = low & mask
        while index := slots[slot]:
            index -= 1
            if lows[index] == low and self._is_entry(index, low, high):
                if self._expires[index] > now:
                    return self._offsets[index]
                self._claimed = index  # an expired entry of this id is reused
                return -1
            slot = slot + 1 & mask
        count = self._count
        if count >= self.entries_max:  # `_drop_oldest`, inlined
            count -= 1
            self._head = head = self._head + 1 & self._ring_mask
            self._count = count
            self.next_expiry = self._expires[head] if count else NEVER
        if count > self._ring_mask or not self._free:
            if asks and count > self._ring_mask and self.on_growth is not None:
                self.on_growth(self.held_bytes)
            self._restore(self.entries())
            slots, lows, mask = self._slots, self._lows, self._mask
            slot = low & mask
            while slots[slot]:
                slot = slot + 1 & mask
        # After the newest entry, where no search looks before `place`.
        self._claimed = index = self._head + count & self._ring_mask
        self._free -= 1
        lows[index] = low
        self._highs[index] = high
        slots[slot] = index + 1
        return -1

    def place(self, offset: int, expires: int) -> None:
        """Set the offset of the message whose id was claimed last."""
        index, count = self._claimed, self._count
        self._offsets[index] = offset
        self._expires[index] = expires
        if index - self._head & self._ring_mask == count:
            self._count = count + 1
            if not count:
                self.next_expiry = expires

    def add(self, id: bytes, offset: int, expires: int) -> None:
        """Remember an id that is missing or expired; a caller with many requests memory before."""
        self.claim(id, NEVER, False)
        self.place(offset, expires)

    def _is_entry(self, index: int, low: int, high: int) -> bool:
        """Return whether an id is at a place of the ring, which may belong to a removed entry."""
        return (
            self._lows[index] == low
            and self._highs[index] == high
            and index - self._head & self._ring_mask < self._count
        )

    def expire(self, now: int) -> None:
        """Remove expired entries, the oldest first."""
        while self._count and self._expires[self._head] <= now:
            self._drop_oldest()

    def forget_from(self, offset: int) -> None:
        """Remove messages from an offset on, which were not written after all."""
        entries = self.entries()
        self._restore(entries[entries["offset"] < offset])

    def has_between(self, start: int, end: int) -> bool:
        """Return whether there is a message from `start` on and below `end`."""
        offsets = self.entries()["offset"]
        return bool(((start <= offsets) & (offsets < end)).any())

    def to_bytes(self) -> bytes:
        """Encode them for a snapshot, the oldest first."""
        return self.entries().tobytes()

    def restore(self, data: bytes) -> None:
        """Take over the entries of a snapshot."""
        if len(data) % ENTRY_BYTES:
            raise CorruptionError(f"deduplication entries of {len(data)} bytes: not whole ones")
        self._restore(np.frombuffer(data, _ENTRY))

    def _drop_oldest(self) -> None:
        self._head = self._head + 1 & self._ring_mask
        self._count -= 1
        self.next_expiry = self._expires[self._head] if self._count else NEVER

    def _columns(self) -> tuple[array[int], ...]:
        return self._lows, self._highs, self._offsets, self._expires

    def entries(self) -> np.ndarray:
        """Return all entries as an array, the oldest first: digest, offset and expiry."""
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
        # All at once: those that find a slot taken try the next one, until none is left.
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
