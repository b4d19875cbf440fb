"""Messages whose time has not come: when each is due, and which it is.

Owns: 16 bytes a message, in sorted runs whose sizes at least halve from one to the next, so that
adding costs a merge of arrays now and then and never a look at a single message.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from stratalog.errors import CorruptionError

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

NEVER = (1 << 63) - 1

# The priority is kept in the highest byte of the offset, which never needs it: 2 ** 56 records.
_SHIFT = np.uint64(56)
_MASK = np.uint64((1 << 56) - 1)


class Delays:
    """Times and places, earliest first."""

    __slots__ = ("_runs", "next_due")

    def __init__(self) -> None:
        self._runs: list[tuple[Int64s, UInt64s]] = []
        self.next_due = NEVER
        """When the first of them is due, in nanoseconds since 1970; `NEVER` for none."""

    def __len__(self) -> int:
        return sum(len(due) for due, _ in self._runs)

    @property
    def held_bytes(self) -> int:
        """Memory they take."""
        return 16 * len(self)

    def add(self, due: Int64s, offsets: Int64s, priorities: npt.NDArray[np.uint8]) -> None:
        """Take in messages, which come in any order."""
        places = offsets.astype(np.uint64) | priorities.astype(np.uint64) << _SHIFT
        self._add(due.astype(np.int64), places)

    def _add(self, due: Int64s, places: UInt64s) -> None:
        if not len(due):
            return
        runs = self._runs
        runs.append(_sorted(due, places))
        while len(runs) > 1 and 2 * len(runs[-1][0]) > len(runs[-2][0]):
            (low_due, low), (high_due, high) = runs[-2:]
            runs[-2:] = [_sorted(np.concatenate((low_due, high_due)), np.concatenate((low, high)))]
        self._look()

    def pop_due(self, now: int) -> tuple[Int64s, npt.NDArray[np.uint8]]:
        """Take out what is due; offsets and priorities."""
        taken: list[UInt64s] = []
        kept: list[tuple[Int64s, UInt64s]] = []
        for due, places in self._runs:
            count = int(np.searchsorted(due, now, "right"))
            if count:
                taken.append(places[:count])
            if 2 * count >= len(due):  # no view of an array that is mostly gone
                due, places = due[count:].copy(), places[count:].copy()
            else:
                due, places = due[count:], places[count:]
            if len(due):
                kept.append((due, places))
        self._runs = kept
        self._look()
        found = np.concatenate(taken) if taken else np.zeros(0, np.uint64)
        return _offsets(found), (found >> _SHIFT).astype(np.uint8)

    def remove(self, gone: BitMap64) -> None:
        """Forget those that are in a set of offsets."""
        if not self._runs or not gone:
            return
        chosen = np.array(gone.to_array(), np.int64)
        runs = self._runs
        self.clear()
        for due, places in reversed(runs):
            keep = ~np.isin(_offsets(places), chosen)
            self._add(due[keep], places[keep])

    def clear(self) -> None:
        """Forget all."""
        self._runs = []
        self.next_due = NEVER

    def offsets(self) -> Int64s:
        """Of all of them, in no order."""
        if not self._runs:
            return np.zeros(0, np.int64)
        return np.concatenate([_offsets(places) for _, places in self._runs])

    def to_bytes(self) -> bytes:
        """As a snapshot has them: all times, then all places, little-endian."""
        parts = [due.tobytes() for due, _ in self._runs]
        return b"".join(parts + [places.tobytes() for _, places in self._runs])

    @classmethod
    def from_bytes(cls, data: bytes) -> Delays:
        """Read back what a snapshot has."""
        if len(data) % 16:
            raise CorruptionError(f"delays of {len(data)} bytes, which is not a multiple of 16")
        count = len(data) // 16
        delays = cls()
        delays._add(
            np.frombuffer(data, np.int64, count), np.frombuffer(data, np.uint64, count, 8 * count)
        )
        return delays

    def _look(self) -> None:
        self.next_due = min((int(due[0]) for due, _ in self._runs), default=NEVER)


def _offsets(places: UInt64s) -> Int64s:
    return (places & _MASK).astype(np.int64)


def _sorted(due: Int64s, places: UInt64s) -> tuple[Int64s, UInt64s]:
    order = np.argsort(due, kind="stable")
    return due[order], places[order]
