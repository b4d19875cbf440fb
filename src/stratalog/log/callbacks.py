"""Threads that run future callbacks.

The thread that commits may hold locks that a callback needs: a callback that opens a topic, or
closes the store, would wait for its own caller. Ctrl-C, which is raised in the main thread, could
also drop a pending call. A separate thread that holds no lock avoids both. One thread wakes
waiters, and a second, started with the first callback, runs callbacks: a callback may itself wait
for a future.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from functools import partial

from stratalog.log.future import Audience
from stratalog.log.interrupts import Background, Flag


class _Worker:
    """Runs the actions it is given, one after the other, in its own thread."""

    def __init__(self, name: str) -> None:
        self._given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = Background(self._run, name)
        self.is_begun = False
        self._is_over = False

    @property
    def is_me(self) -> bool:
        """Whether the caller runs in its thread."""
        return self._thread.is_me

    def begin(self) -> None:
        """Start the thread, if it has not started."""
        if not self.is_begun:
            self.is_begun = True
            self._thread.start()

    def give(self, action: Callable[[], None]) -> None:
        """Run an action in the thread."""
        self._given.put(action)

    def end(self) -> None:
        """End after all actions that were given; later ones are left to `rest`."""
        self._is_over = True
        self._given.put(None)
        if self.is_begun and not self.is_me:
            self._thread.wait()

    def rest(self) -> None:
        """Run here the actions that are left; the thread has ended."""
        while True:
            try:
                action = self._given.get_nowait()
            except queue.Empty:
                if self._is_over:
                    self._given.put(None)  # ends a thread that was started and does not run yet
                return
            if action is not None:
                action()

    def _run(self) -> None:
        while (action := self._given.get()) is not None:
            action()


class Notifier:
    """Notifies waiters and callbacks of futures. Any thread may post, whatever locks it holds."""

    def __init__(self) -> None:
        self._waking = _Worker("stratalog-notifier")
        self._calling = _Worker("stratalog-callbacks")
        self._is_inline = True
        """Whether the posting thread notifies: before the threads start, and after they end."""

    def start(self) -> None:
        """Start the threads."""
        self._is_inline = False
        self._waking.begin()

    def post(self, audience: Audience) -> None:
        """Notify an audience; idempotent."""
        self._waking.give(partial(self._notify, audience))
        if self._is_inline:
            self._rest()

    def _notify(self, audience: Audience) -> None:
        audience.wake()
        if audience.has_callbacks:
            if not self._is_inline:
                self._calling.begin()
            self._calling.give(audience.call)

    def flush(self) -> None:
        """Return once every posted audience is notified; the caller holds no lock.

        Returns at once in a callback, which would wait for itself.
        """
        if self._is_inline or self._calling.is_me:
            return
        done = Flag()

        def hand_on() -> None:
            if self._calling.is_begun:
                self._calling.give(done.set)
            else:
                done.set()

        self._waking.give(hand_on)
        done.wait()

    def stop(self) -> None:
        """End once every posted audience is notified; idempotent. The caller holds no lock."""
        self._waking.end()
        self._calling.end()
        self._is_inline = True
        self._rest()

    def _rest(self) -> None:
        self._waking.rest()
        if not self._calling.is_me:  # otherwise the rest runs after the callback that asks
            self._calling.rest()
