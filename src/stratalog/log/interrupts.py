"""Ctrl-C in the middle of something: what was begun is brought to its end, then it is raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def insist(action: Callable[[], None]) -> BaseException | None:
    """Do something that may be repeated, to its end, even if Ctrl-C comes in between.

    The interrupt is returned, to be raised when everything is in order.
    """
    try:
        action()
    except Exception:
        raise
    except BaseException as interrupt:
        action()
        return interrupt
    return None


def holding(locks: Sequence[threading.Lock], action: Callable[[], _T]) -> _T:
    """Do something with all of the locks held. No Ctrl-C comes between one and its release."""
    if not locks:
        return action()
    with locks[0]:
        return holding(locks[1:], action)
