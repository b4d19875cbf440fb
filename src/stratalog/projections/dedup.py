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
        "_claimed", "_count", "_expires", "_free", "_head", "_highs", "_lows", "_mask", "_offsets",
        "_ring_mask", "_slots", "entries_max", "next_expiry",
    )  # fmt: skip

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self._head = 0
        self._count = 0
        self._claimed = 0
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
        low, high = digest & _LOW, digest >> 64
        slots, mask = self._slots, self._mask
        slot = low & mask
        while index := slots[slot]:
            if self._is_entry(index - 1, low, high):
                return self._offsets[index - 1] if self._expires[index - 1] > now else -1
            slot = slot + 1 & mask
        return -1

    def claim(self, id: bytes, now: int) -> int:
        """As `find`; if it comes to -1, `place` remembers the id with its message.

        An id that is claimed and never placed is as if nobody had asked. The oldest entry goes if
        there are too many.
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
                self._claimed = index  # it counts no longer, and is there
                return -1
            slot = slot + 1 & mask
        count = self._count
        if count >= self.entries_max:  # as `_drop_oldest`, which is a call
            count -= 1
            self._head = head = self._head + 1 & self._ring_mask
            self._count = count
            self.next_expiry = self._expires[head] if count else NEVER
        if count > self._ring_mask or not self._free:
            self._restore(self._entries())
            slots, lows, mask = self._slots, self._lows, self._mask
            slot = low & mask
            while slots[slot]:
                slot = slot + 1 & mask
        # Behind the newest entry, where no search looks before `place`.
        self._claimed = index = self._head + count & self._ring_mask
        self._free -= 1
        lows[index] = low
        self._highs[index] = high
        slots[slot] = index + 1
        return -1

    def place(self, offset: int, expires: int) -> None:
        """The message whose id was claimed last is at this offset."""
        index, count = self._claimed, self._count
        self._offsets[index] = offset
        self._expires[index] = expires
        if index - self._head & self._ring_mask == count:
            self._count = count + 1
            if not count:
                self.next_expiry = expires

    def add(self, id: bytes, offset: int, expires: int) -> None:
        """Remember an id that is not there, or counts no longer."""
        self.claim(id, NEVER)
        self.place(offset, expires)

    def _is_entry(self, index: int, low: int, high: int) -> bool:
        """Whether an id is at a place of the ring, which may be that of an entry that went."""
        return (
            self._lows[index] == low
            and self._highs[index] == high
            and index - self._head & self._ring_mask < self._count
        )

    def expire(self, now: int) -> None:
        """Forget those whose time is up, the oldest first."""
        while self._count and self._expires[self._head] <= now:
            self._drop_oldest()

    def forget_from(self, offset: int) -> None:
        """Forget messages from an offset on: they were not written after all."""
        entries = self._entries()
        self._restore(entries[entries["offset"] < offset])

    def has_between(self, start: int, end: int) -> bool:
        """Whether there is a message from `start` on and below `end`."""
        offsets = self._entries()["offset"]
        return bool(((start <= offsets) & (offsets < end)).any())

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
