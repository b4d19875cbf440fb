"""Waiters for a record, in order: woken one at a time, the one that waits longest first."""

from __future__ import annotations

import contextlib
import threading
from collections import deque

from stratalog.log.waiters import Waiter, Watched


class Line:
    """The waiters in order. Each is a bare lock that is released to wake it: waking never blocks.

    It is one of the topic's waiters itself, so that a commit wakes the first in line.
    """

    def __init__(self, topic: Watched) -> None:
        self._topic = topic
        self.waiters: deque[Waiter] = deque()
        """The waiters, the first in line first."""

    def __bool__(self) -> bool:
        return bool(self.waiters)

    def join(self) -> threading.Lock:
        """Add a thread at the end of the line; returns its lock."""
        place = threading.Lock()
        place.acquire()
        self.add(place)
        return place

    def add(self, place: Waiter) -> None:
        """Put a waiter at the end of the line."""
        self.waiters.append(place)
        self.watch()

    def watch(self) -> None:
        """Have the next commit to the topic call `release`."""
        if self not in self._topic.waiters:
            self._topic.waiters.append(self)

    def leave(self, place: Waiter) -> None:
        """Remove a waiter; if it was woken at that moment, wake the next in line instead."""
        try:
            self.waiters.remove(place)
        except ValueError:
            self.wake()

    def rejoin(self, place: Waiter) -> None:
        """Return a waiter that was woken for nothing to the front of the line."""
        if place not in self.waiters:
            self.waiters.appendleft(place)
        self.watch()

    def wake(self) -> None:
        """Wake the first in line, which looks again."""
        with contextlib.suppress(IndexError):
            place = self.waiters.popleft()
            if place.locked():
                place.release()

    # The interface of a topic's waiters.

    def locked(self) -> bool:
        """Return True: it always waits."""
        return True

    def release(self) -> None:
        """Wake the first in line: a commit was published, or the topic is going away."""
        self.wake()
