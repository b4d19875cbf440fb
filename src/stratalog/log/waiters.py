"""Waiting for records to be appended."""

from __future__ import annotations

import contextlib
import threading
from typing import Protocol


class Waiter(Protocol):
    """A waiting thread, woken by a release: a lock, or an object like one that never blocks."""

    def locked(self) -> bool:
        """Return whether it was not released yet."""

    def release(self) -> None:
        """Wake the thread that waits."""


class Watched:
    """A rising `committed` offset, and the threads that wait for it.

    Bare locks, woken by their release: a publisher never blocks, whatever the waiters do.
    """

    __slots__ = ("committed", "waiters")

    def __init__(self) -> None:
        self.committed = 0
        """The first offset that cannot be read yet."""
        self.waiters: list[Waiter] = []

    def advance(self, committed: int) -> None:
        """Make offsets below `committed` readable."""
        self.committed = committed
        if self.waiters:
            self.wake()

    def wait(self, offset: int, timeout: float) -> bool:
        """Block until `offset` can be read, or the time is up, or `wake` is called."""
        waiter = threading.Lock()
        waiter.acquire()
        self.add_waiter(waiter)
        # Checked after adding the waiter: any later publisher finds it.
        if self.committed <= offset:
            waiter.acquire(timeout=timeout)
        self.remove_waiter(waiter)
        return self.committed > offset

    def add_waiter(self, waiter: Waiter) -> None:
        """Wake a waiter once, at the next change; the caller checks `committed` afterwards."""
        self.waiters.append(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        """Remove a waiter that no longer waits."""
        with contextlib.suppress(ValueError):
            self.waiters.remove(waiter)

    def wake(self) -> None:
        """Wake all waiters, which look again. Never blocks."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.locked():
                waiter.release()
