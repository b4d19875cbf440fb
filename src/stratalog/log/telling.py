"""The threads that call those who look at futures.

Whoever commits may hold locks of ours that a callback needs: one that opened a topic, or closed the
store, would wait for its own caller. And Ctrl-C, which comes in the main thread, could lose a call
that was about to be made. Neither can happen to a thread of its own, that holds nothing. Those who
wait are woken by one, callbacks are called by another, which the first begins when there is one:
a callback may wait for a future.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from functools import partial

from stratalog.log.future import Audience
from stratalog.log.interrupts import Background, Flag


class _Line:
    """Does what it is given, one after the other, in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._given: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = Background(self._run, name)
        self.is_begun = False
        self._is_over = False

    @property
    def is_me(self) -> bool:
        """Whether it is its thread that asks."""
        return self._thread.is_me

    def begin(self) -> None:
        """Begin, if it has not."""
        if not self.is_begun:
            self.is_begun = True
            self._thread.start()

    def give(self, action: Callable[[], None]) -> None:
        """Have something done."""
        self._given.put(action)

    def end(self) -> None:
        """End when all is done that was given; what comes later is left to `rest`."""
        self._is_over = True
        self._given.put(None)
        if self.is_begun and not self.is_me:
            self._thread.wait()

    def rest(self) -> None:
        """Do here what was given and nobody does; the thread has ended."""
        while True:
            try:
                action = self._given.get_nowait()
            except queue.Empty:
                if self._is_over:
                    self._given.put(None)  # for a thread that was begun and is not there yet
                return
            if action is not None:
                action()

    def _run(self) -> None:
        while (action := self._given.get()) is not None:
            action()


class Teller:
    """Has those called who look at futures. Any thread may post, whatever it holds."""

    def __init__(self) -> None:
        self._waking = _Line("stratalog-teller")
        self._calling = _Line("stratalog-callbacks")
        self._is_inline = True
        """Whether whoever posts calls as well: nothing was begun yet, or all has ended."""

    def start(self) -> None:
        """Begin."""
        self._is_inline = False
        self._waking.begin()

    def post(self, audience: Audience) -> None:
        """Have an audience called; may be repeated."""
        self._waking.give(partial(self._tell, audience))
        if self._is_inline:
            self._rest()

    def _tell(self, audience: Audience) -> None:
        audience.wake()
        if audience.has_callbacks:
            if not self._is_inline:
                self._calling.begin()
            self._calling.give(audience.call)

    def flush(self) -> None:
        """Return when all were called that are posted; no lock is held.

        At once if it is a callback that asks: it would wait for itself.
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
        """End, once all were called that are posted; may be repeated. No lock is held."""
        self._waking.end()
        self._calling.end()
        self._is_inline = True
        self._rest()

    def _rest(self) -> None:
        self._waking.rest()
        if not self._calling.is_me:  # what is left then is done behind the callback that asks
            self._calling.rest()
