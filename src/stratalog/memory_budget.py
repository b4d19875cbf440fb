"""The memory budget of a store: who may hold how much, and what happens when it is not enough.

A store's memory is divided into shares, and every holder of memory has one to fit in. When the
share is used up, in this order: what can be dropped is dropped, the largest holder's first; the
rest is borrowed from the reserve, and repaid as memory comes back; then the call fails with
`MemoryPressureError`, which is worth a retry. What could never fit is refused at once.

Concurrency: any thread. Holders are asked to drop something with no lock held.
"""

from __future__ import annotations

import functools
import threading
from typing import Protocol

from stratalog.errors import MemoryPressureError, TooLargeError

# In 64ths; what is left is the reserve.
_PARTS = {"tail": 8, "tables": 24, "queues": 4, "series": 8, "io": 10}
_WHOLE = 64

# What is allocated and freed all the time is smaller: groups of appends, runs of frames.
_KEPT_BYTES = 8 << 20


@functools.cache
def keep_freed_memory() -> None:
    """Have the process keep up to 16 MiB that it frees, for the next one who wants them.

    By default glibc gives more than 128 KiB back to the system at once, and a batch then begins
    with fresh pages, 0.3 to 3 us each: a tenth of an append's or a read's time. It raises that
    limit to twice of whatever large piece is freed, so that one is. Elsewhere this does nothing.
    """
    bytes(_KEPT_BYTES)


class Holder(Protocol):
    """Holds memory of a share, and can do without some of it."""

    @property
    def held_bytes(self) -> int:
        """How much it holds."""

    def shed(self) -> bool:
        """Drop some of it, the oldest first; returns whether there was any."""


class MemoryBudget:
    """All shares of a store, and the reserve they borrow from."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._lock = threading.Lock()
        self._limits = {name: total * part // _WHOLE for name, part in _PARTS.items()}
        self._used = dict.fromkeys(_PARTS, 0)
        self._holders: dict[str, list[Holder]] = {name: [] for name in _PARTS}
        self.reserve = total - sum(self._limits.values())

    def limit(self, share: str) -> int:
        """Return what a share may hold without borrowing."""
        return self._limits[share]

    def used(self) -> dict[str, int]:
        """Return what is held now, by share."""
        return dict(self._used)

    def hold(self, share: str, holder: Holder) -> None:
        """Make a holder known that can be asked to drop something."""
        self._holders[share].append(holder)

    def release(self, share: str, holder: Holder) -> None:
        """Forget a holder."""
        self._holders[share].remove(holder)

    def ensure(self, share: str, size: int) -> None:
        """See that there is room for bytes that are to be held; raises if there is not."""
        limit = self._limits[share]
        if size > limit + self.reserve:
            raise TooLargeError(
                f"{size} bytes are more than the share {share!r} can ever hold, {limit} bytes and "
                f"a reserve of {self.reserve}: raise memory_bytes={self.total}"
            )
        while not self._fits(share, size, 0):
            if self._shed(share):
                continue
            if self._fits(share, size, self.reserve):
                return
            raise MemoryPressureError(
                f"no memory for {size} bytes: the share {share!r} holds {self._used[share]} of "
                f"{limit}, and the reserve is used up. Try again when others have caught up, or "
                f"raise memory_bytes={self.total}."
            )

    def take(self, share: str, size: int) -> bool:
        """Account for bytes if the share has room for them as it is; returns whether it has."""
        with self._lock:
            has_room = self._used[share] + size <= self._limits[share]
            if has_room:
                self._used[share] += size
        return has_room

    def claim(self, share: str, size: int) -> None:
        """Make room for bytes and account for them; raises if there is none. No lock is held."""
        self.ensure(share, size)
        self.add(share, size)

    def add(self, share: str, size: int) -> None:
        """Account for bytes that are held from now on, or with a minus are no longer."""
        with self._lock:
            self._used[share] += size

    def _fits(self, share: str, size: int, reserve: int) -> bool:
        """Whether the share has room, with what others have left of so much reserve."""
        with self._lock:
            over = self._used[share] + size - self._limits[share]
            borrowed = sum(
                max(0, used - self._limits[name])
                for name, used in self._used.items()
                if name != share
            )
            return over <= max(0, reserve - borrowed)

    def _shed(self, share: str) -> bool:
        holders = sorted(self._holders[share], key=lambda one: one.held_bytes, reverse=True)
        return any(holder.shed() for holder in holders)
