"""Delayed messages: when each is due, its offset and its priority.

Owns: 13 bytes a message, in sorted runs whose sizes at least halve from one to the next, so that
adding merges arrays now and then and never handles a single message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from stratalog.errors import CorruptionError

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

NEVER = (1 << 63) - 1

# In a snapshot the priority is in the highest byte of the offset, which is never needed for 2 ** 56
# records.
_SHIFT = np.uint64(56)
_MASK = np.uint64((1 << 56) - 1)

# Offsets of a run are stored relative to the lowest.
_SPAN_MAX = (1 << 32) - 1
_ENTRY_BYTES = 8 + 4 + 1


class _Run(NamedTuple):
    """Messages ordered by due time."""

    due: Int64s
    base: int
    distances: npt.NDArray[np.uint32]
    priorities: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, due: Int64s, offsets: Int64s, priorities: npt.NDArray[np.uint8]) -> _Run:
        order = np.argsort(due, kind="stable")
        base = int(offsets.min())
        distances = (offsets - base).astype(np.uint32)
        return cls(due[order], base, distances[order], priorities[order])

    def offsets(self) -> Int64s:
        return self.distances.astype(np.int64) + self.base

    def part(self, start: int, end: int) -> _Run:
        cut = slice(start, end)
        return _Run(self.due[cut], self.base, self.distances[cut], self.priorities[cut])

    def copy(self) -> _Run:
        return _Run(self.due.copy(), self.base, self.distances.copy(), self.priorities.copy())

    def places(self) -> UInt64s:
        """Combine offsets and priorities as a snapshot has them."""
        return self.offsets().astype(np.uint64) | self.priorities.astype(np.uint64) << _SHIFT


class Delays:
    """Due times and offsets, earliest first."""

    __slots__ = ("_runs", "next_due")

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self.next_due = NEVER
        """When the first message is due, in nanoseconds since 1970; `NEVER` for none."""

    def __len__(self) -> int:
        return sum(len(run.due) for run in self._runs)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory they take."""
        return _ENTRY_BYTES * len(self)

    def add(self, due: Int64s, offsets: Int64s, priorities: npt.NDArray[np.uint8]) -> None:
        """Add messages, in any order."""
        while len(due):
            low = offsets - offsets.min() <= _SPAN_MAX  # nearly always all of them
            self._add(_Run.of(due[low].astype(np.int64), offsets[low], priorities[low]))
            due, offsets, priorities = due[~low], offsets[~low], priorities[~low]

    def _add(self, run: _Run) -> None:
        runs = self._runs
        runs.append(run)
        while len(runs) > 1 and 2 * len(runs[-1].due) > len(runs[-2].due):
            parts = runs[-2:]
            offsets = np.concatenate([part.offsets() for part in parts])
            if int(offsets.max() - offsets.min()) > _SPAN_MAX:
                break
            due = np.concatenate([part.due for part in parts])
            priorities = np.concatenate([part.priorities for part in parts])
            runs[-2:] = [_Run.of(due, offsets, priorities)]
        self._look()

    def pop_due(self, now: int) -> tuple[Int64s, npt.NDArray[np.uint8]]:
        """Remove messages that are due; returns offsets and priorities."""
        taken: list[_Run] = []
        kept: list[_Run] = []
        for run in self._runs:
            count = int(np.searchsorted(run.due, now, "right"))
            if count:
                taken.append(run.part(0, count))
            if count < len(run.due):
                rest = run.part(count, len(run.due))
                # Copied, so that no view keeps mostly unused arrays alive.
                kept.append(rest.copy() if 2 * count >= len(run.due) else rest)
        self._runs = kept
        self._look()
        if not taken:
            return np.zeros(0, np.int64), np.zeros(0, np.uint8)
        offsets = np.concatenate([run.offsets() for run in taken])
        return offsets, np.concatenate([run.priorities for run in taken])

    def remove(self, gone: BitMap64) -> None:
        """Remove messages whose offsets are in a set."""
        if not self._runs or not gone:
            return
        chosen = np.array(gone.to_array(), np.int64)
        runs = self._runs
        self.clear()
        for run in reversed(runs):
            offsets = run.offsets()
            keep = ~np.isin(offsets, chosen)
            self.add(run.due[keep], offsets[keep], run.priorities[keep])

    def clear(self) -> None:
        """Remove all messages."""
        self._runs = []
        self.next_due = NEVER

    def offsets(self) -> Int64s:
        """Return the offsets of all messages, unordered."""
        return np.concatenate([np.zeros(0, np.int64), *(run.offsets() for run in self._runs)])

    def to_bytes(self) -> bytes:
        """Encode them for a snapshot: all times, then all places, little-endian."""
        parts = [run.due.tobytes() for run in self._runs]
        return b"".join(parts + [run.places().tobytes() for run in self._runs])

    @classmethod
    def from_bytes(cls, data: bytes) -> Delays:
        """Decode the bytes of a snapshot."""
        if len(data) % 16:
            raise CorruptionError(f"delays of {len(data)} bytes, which is not a multiple of 16")
        count = len(data) // 16
        places = np.frombuffer(data, np.uint64, count, 8 * count)
        offsets = (places & _MASK).astype(np.int64)
        delays = cls()
        delays.add(
            np.frombuffer(data, np.int64, count), offsets, (places >> _SHIFT).astype(np.uint8)
        )
        return delays

    def _look(self) -> None:
        self.next_due = min((int(run.due[0]) for run in self._runs), default=NEVER)
