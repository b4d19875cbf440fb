"""Ctrl-C in the middle of something: what was begun is brought to its end, then it is raised."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def insist(action: Callable[..., None], *about: object) -> BaseException | None:
    """Do something that may be repeated, to its end, even if Ctrl-C comes in between.

    The interrupt is returned, to be raised when everything is in order.
    """
    try:
        action(*about)
    except Exception:
        raise
    except BaseException as interrupt:
        action(*about)
        return interrupt
    return None


def ended_by(action: Callable[[], None]) -> BaseException | None:
    """Do something that may be left undone; returns the interrupt that ended it, to be raised."""
    try:
        action()
    except Exception:
        raise
    except BaseException as interrupt:
        return interrupt
    return None


def holding(locks: Sequence[threading.Lock], action: Callable[[], _T]) -> _T:
    """Do something with all of the locks held. No Ctrl-C comes between one and its release."""
    if not locks:
        return action()
    with locks[0]:
        return holding(locks[1:], action)


class Signal:
    """Given once or many times, taken once.

    A bare lock, released to be seen: `threading.Event` is written in Python, and a Ctrl-C inside of
    its `set` would leave it locked for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        """Have it taken, by whoever waits for it or comes next."""
        if self._lock.locked():
            with contextlib.suppress(RuntimeError):  # somebody else was faster
                self._lock.release()

    def take(self, timeout: float) -> bool:
        """Wait for it, for ever if `timeout` is -1; returns whether it came."""
        return self._lock.acquire(timeout=timeout)


class Flag:
    """What `threading.Event` is to one thread that waits, and whole whatever interrupts that."""

    def __init__(self) -> None:
        self._news = Signal()
        self._is_set = False

    def set(self) -> None:
        """Wake whoever waits, now or later."""
        self._is_set = True
        self._news.give()

    def clear(self) -> None:
        """Have the next one wait."""
        self._is_set = False

    def is_set(self) -> bool:
        """Whether nobody has to wait."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it is set, or the time is up; returns whether it is set."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = deadline - time.monotonic()
            # News of before it was cleared may be left: then it comes back here at once.
            if not self._news.take(min(max(left, 0), threading.TIMEOUT_MAX)) and left <= 0:
                break
        return self._is_set


class Background:
    """A thread of a store's, that ends when it is told to and is then waited for.

    Not by `Thread.join`: Ctrl-C inside of that has Python 3.11 and 3.12 take a thread for ended
    that runs on. A daemon, so that a forgotten store does not keep a program.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self._running = threading.Lock()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _main(self) -> None:
        with self._running:
            self._run()

    def wait(self) -> None:
        """Return when it has ended. It was told to: if it only begins behind this, it ends, too."""
        with self._running:
            pass

    @property
    def is_me(self) -> bool:
        """Whether it is the thread that asks."""
        return threading.current_thread() is self._thread  # an ident is used again
