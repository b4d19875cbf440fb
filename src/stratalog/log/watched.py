"""Waiting for records that are not there yet."""

from __future__ import annotations

import contextlib
import threading


class Watched:
    """Has a `committed` offset that rises, and those who wait for it to.

    Bare locks, released to be seen: whoever publishes never waits, whatever the others are doing.
    """

    __slots__ = ("committed", "waiters")

    def __init__(self) -> None:
        self.committed = 0
        """The first offset that cannot be read yet."""
        self.waiters: list[threading.Lock] = []

    def wait(self, offset: int, timeout: float) -> bool:
        """Block until `offset` can be read, or the time is up, or `wake` is called."""
        waiter = threading.Lock()
        waiter.acquire()
        self.waiters.append(waiter)
        # Looked at behind the append: whoever publishes from now on finds the waiter.
        if self.committed <= offset:
            waiter.acquire(timeout=timeout)
        with contextlib.suppress(ValueError):
            self.waiters.remove(waiter)
        return self.committed > offset

    def wake(self) -> None:
        """Let those who wait look around. Never waits itself."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if waiter.locked():
                waiter.release()
