"""Those who wait for a record, in line: woken one at a time, the one that waits longest first."""

from __future__ import annotations

import contextlib
import threading
from collections import deque

from stratalog.log.watched import Waiter, Watched


class Line:
    """Those who wait. Bare locks, released to be seen: whoever wakes them never waits.

    Stands among a topic's waiters itself, so that a commit wakes the first in line.
    """

    def __init__(self, topic: Watched) -> None:
        self._topic = topic
        self.waiters: deque[Waiter] = deque()
        """Who waits, the first in line first."""

    def __bool__(self) -> bool:
        return bool(self.waiters)

    def join(self) -> threading.Lock:
        """A place at the end of the line, for a thread."""
        place = threading.Lock()
        place.acquire()
        self.add(place)
        return place

    def add(self, place: Waiter) -> None:
        """Have somebody at the end of the line."""
        self.waiters.append(place)
        self.watch()

    def watch(self) -> None:
        """Be told of the next commit to the topic."""
        if self not in self._topic.waiters:
            self._topic.waiters.append(self)

    def leave(self, place: Waiter) -> None:
        """Give a place up; if it was woken at that very moment, the next in line is instead."""
        try:
            self.waiters.remove(place)
        except ValueError:
            self.wake()

    def rejoin(self, place: Waiter) -> None:
        """Woken for nothing: the same place again, in front."""
        if place not in self.waiters:
            self.waiters.appendleft(place)
        self.watch()

    def wake(self) -> None:
        """Let the first in line look again."""
        with contextlib.suppress(IndexError):
            place = self.waiters.popleft()
            if place.locked():
                place.release()

    # What a topic asks of those in its list of waiters.

    def locked(self) -> bool:
        """Always waiting."""
        return True

    def release(self) -> None:
        """A commit was published, or the topic is going away."""
        self.wake()
