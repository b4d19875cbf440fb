"""The contract about Ctrl-C, and what the engine uses to keep it.

A signal handler that raises, as Python's own for Ctrl-C does, raises in the main thread, between
two steps of whatever runs there: in the middle of an append, a commit or a close, with locks held.

The contract, for one interrupt and for many:
- No lock stays taken, and no other thread waits for one that will not come.
- What was acknowledged is there. An append that was interrupted is in the log whole, or not at all;
  its caller does not know which. Nothing is there twice, and no offset is lost.
- A commit that has begun is brought to its end, and the interrupt is raised after it: others wait
  for that commit. So Ctrl-C may take as long as one sync.
- A wait that changes nothing ends at once: for a message, a record, a future, a background thread.
- Everything can be called again afterwards and goes on from what it finds: `close` most of all.
- Background threads are never interrupted.

Where it can come: the interpreter looks for signals when a function is called or has returned, and
before a loop goes round. Between these it does not. So there are three kinds of code:

1. *Interruptible* is what changes nothing that is read later, or changes it by one assignment at
   the end. Most code is like that, and nothing is done for it.
2. *Repeatable* is what changes several things in steps. Each step finds out what was done before
   and may be done again; `insist` does so, and hands the interrupt back to be raised once all is in
   order. Publishing, failing and giving back of a commit group, and closing, are like that. An
   interrupt during the second attempt is raised from there: the next that comes along (the ticker,
   a reader, the next append, `close`) finds the group unfinished and goes on with it.
3. *Uninterruptible* is what must be seen whole and has no time for more: an append's offset, time
   and place in its group. It stands between two comments, `# Uninterruptible.` and
   `# Interruptible.`, and consists of assignments to plain attributes and names. There is no call
   in it, no loop, no `with` and no `await`; a test looks for these in the syntax tree.

Locks: `with lock` takes a lock of the interpreter's own in one step with being bound to release it;
`acquire()` before a `try` does not. Where `with` is too slow, in `log/append.py`, a `for` over an
iterator of `acquire` stands in for it: there is no call in between, either. Classes of `threading`
that are written in Python (`Event`, `Condition`) can be left locked, and so are used only where
a poll makes up for that; `Signal` and `Flag` are made of one lock.

Two faults of interpreters, known by their issue numbers there:
- 130279, in 3.13 and later: an interrupt at a jump that a condition makes back to the begin of a
  loop passes by the `with` or `try` around the loop. No such loop is inside of a block here: it is
  in a function that the block calls. A test on the bytecode keeps it so.
- 148874, in 3.14 and later: `with lock` takes the lock, and looks for signals before it is bound to
  release it. An interrupt in that moment leaves the lock taken, and the next call that needs it
  waits for ever. There is no way around it but for the single appends' `for`; it is listed with
  the limitations.

`tests/crash/test_ctrl_c*.py` interrupt after every so many bytecodes, exhaustively in the sweep;
`tests/crash/test_interrupts.py` does at random moments; `tests/unit/log/test_interrupts.py` holds
the two rules about code.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")

# How often a wait with a time limit checks whether a thread has ended.
_POLL_SECONDS = 0.005


def insist(action: Callable[..., None], *about: object) -> BaseException | None:
    """Complete an idempotent action, even if Ctrl-C interrupts it.

    Returns the interrupt, for the caller to raise when everything is consistent.
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
    """Run an action that may be left undone; returns the interrupt that ended it, to be raised."""
    try:
        action()
    except Exception:
        raise
    except BaseException as interrupt:
        return interrupt
    return None


def holding(locks: Sequence[threading.Lock], action: Callable[[], _T]) -> _T:
    """Run an action with all locks held. Ctrl-C never comes between a lock and its release."""
    if not locks:
        return action()
    with locks[0]:
        return holding(locks[1:], action)


class Signal:
    """A signal that is given once or many times, and taken once.

    A bare lock whose release is the signal: `threading.Event` is written in Python, and Ctrl-C
    inside of its `set` would leave it locked for ever.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def give(self) -> None:
        """Give it to the thread that waits for it, or to the next."""
        if self._lock.locked():
            with contextlib.suppress(RuntimeError):  # another thread released it first
                self._lock.release()

    def take(self, timeout: float) -> bool:
        """Wait for it, for ever if `timeout` is -1; returns whether it came."""
        return self._lock.acquire(timeout=timeout)


class Flag:
    """An event for one waiting thread, consistent whatever interrupts it."""

    def __init__(self) -> None:
        self._news = Signal()
        self._is_set = False

    def set(self) -> None:
        """Wake the thread that waits, now or later."""
        self._is_set = True
        self._news.give()

    def clear(self) -> None:
        """Make the next thread wait."""
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether no thread has to wait."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set or the time is up; returns whether it is set."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = deadline - time.monotonic()
            # A signal from before it was cleared may be left: the loop then returns here at once.
            if not self._news.take(min(max(left, 0), threading.TIMEOUT_MAX)) and left <= 0:
                break
        return self._is_set


class Background:
    """A thread of the store that ends when asked to, and is then waited for.

    Not by `Thread.join`: after Ctrl-C in it, Python 3.11 and 3.12 consider a running thread as
    ended. A daemon, so that a forgotten store does not keep a program alive.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._run = run
        self._running = threading.Lock()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def _main(self) -> None:
        with self._running:
            self._run()

    def wait(self, timeout: float = -1) -> bool:
        """Wait until it has ended or the time is up; returns whether it has ended.

        It was asked to end before: a thread that begins to run only later ends as well.
        """
        if timeout < 0:
            with self._running:  # Ctrl-C after a separate `acquire` would leave it locked
                return True
        deadline = time.monotonic() + timeout
        while self._running.locked():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    @property
    def is_me(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread  # idents are reused
