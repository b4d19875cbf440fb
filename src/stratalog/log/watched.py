"""Waiting for records that are not there yet."""

from __future__ import annotations

import contextlib
import threading
from typing import Protocol


class Waiter(Protocol):
    """Is let go of to be woken: a lock, or what looks like one and never waits."""

    def locked(self) -> bool:
        """Whether it was not let go of yet."""

    def release(self) -> None:
        """Wake whoever waits."""


class Watched:
    """Has a `committed` offset that rises, and those who wait for it to.

    Bare locks, released to be seen: whoever publishes never waits, whatever the others are doing.
    """

    __slots__ = ("committed", "waiters")

    def __init__(self) -> None:
        self.committed = 0
        """The first offset that cannot be read yet."""
        self.waiters: list[Waiter] = []

    def advance(self, committed: int) -> None:
        """Let what is below an offset be read."""
        self.committed = committed
        if self.waiters:
            self.wake()

    def wait(self, offset: int, timeout: float) -> bool:
        """Block until `offset` can be read, or the time is up, or `wake` is called."""
        waiter = threading.Lock()
        waiter.acquire()
        self.add_waiter(waiter)
        # Looked at behind the append: whoever publishes from now on finds the waiter.
        if self.committed <= offset:
            waiter.acquire(timeout=timeout)
        self.remove_waiter(waiter)
        return self.committed > offset

    def add_waiter(self, waiter: Waiter) -> None:
        """Have somebody woken at the next occasion, once; who adds looks at `committed` then."""
        self.waiters.append(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        """Forget somebody who no longer waits."""
        with contextlib.suppress(ValueError):
            self.waiters.remove(waiter)

    def wake(self) -> None:
        """Let those who wait look around. Never waits itself."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.locked():
                waiter.release()
