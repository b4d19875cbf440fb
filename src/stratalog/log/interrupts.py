"""Ctrl-C in the middle of something: what was begun is brought to its end, then it is raised."""

from __future__ import annotations

import contextlib
import threading
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
