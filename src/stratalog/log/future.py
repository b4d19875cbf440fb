"""The future that `append_nowait` returns, and how its waiters learn the outcome of its group.

The futures of a group share one state, the group's. The standard library inspects a future with its
condition held, and Ctrl-C may interrupt it between acquiring and releasing: a notifying thread
would then wait for ever. So an audience takes the place of the condition, and no thread ever waits
for it: while it is held, nothing is notified, and its release notifies. Likewise the event that
`wait` and `as_completed` wait for is replaced by one of ours.

Invariants:
- `_state` is FINISHED from the moment in which the set of waiters and callbacks is final: each of
  them has either seen that state, or is called.
- The committing thread calls none of them; the threads of `log/callbacks.py` do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog.log.commit_failures import again
from stratalog.log.interrupts import Flag

if TYPE_CHECKING:
    from stratalog.log.commit_group import Group

logger = logging.getLogger("stratalog.log")

# A thread holds an audience only while it inspects it: after this long it was interrupted.
# `concurrent.futures.wait` takes about two seconds for a million futures.
_HELD_SECONDS_MAX = 30.0

_FINISHED, _RUNNING = "FINISHED", "RUNNING"  # running cannot be cancelled


class Audience:
    """The waiters and callbacks of one future; takes the place of its condition."""

    __slots__ = ("_calls", "_future", "_held_since", "_lock", "_wakes", "is_told")

    def __init__(self, future: AppendFuture) -> None:
        self._future = future
        self._lock = threading.Lock()
        self._held_since: list[float] = []
        self._wakes: deque[Callable[[], None]] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self.is_told = False
        """Whether the set of waiters and callbacks is final."""

    def acquire(self) -> bool:
        """Hold notifications back; never waits."""
        if self._future.group.done:
            self.notify()
        with self._lock:
            self._held_since.append(time.monotonic())
        return True

    def release(self) -> None:
        """Notify, if the outcome is known."""
        with self._lock:
            self._held_since.pop()
        if self._future.group.done:
            self.notify()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def notify(self) -> bool:
        """Notify waiters. Returns False if the audience is held; its release() notifies instead.

        The outcome is known. Several threads may call it repeatedly: each waiter is called once.
        """
        with self._lock:
            if not self.is_told:
                held = self._held_since
                if held and time.monotonic() - held[-1] < _HELD_SECONDS_MAX:
                    return False
                wakes, calls = self._future.looking()
                # Uninterruptible.
                self._wakes, self._calls = wakes, calls
                self.is_told = True
                # Interruptible.
        group = self._future.group
        if self._wakes or self._calls:
            group.post(self)
        group.observed.pop(self._future, None)
        return True

    def wake(self) -> None:
        """Wake the threads in `wait` or `as_completed`; runs in a thread of `log/callbacks.py`."""
        _call_all(self._wakes)

    @property
    def has_callbacks(self) -> bool:
        """Return whether `call` has anything to do."""
        return bool(self._calls)

    def call(self) -> None:
        """Run the callbacks, however long they take; runs in a thread of `log/callbacks.py`."""
        _call_all(self._calls)


def _call_all(calls: deque[Callable[[], None]]) -> None:
    while calls:
        try:
            call = calls.popleft()
        except IndexError:  # another thread was faster
            return
        call()


class _Waiters(list[Any]):
    """The standard library's waiters for one future."""

    def append(self, waiter: Any) -> None:
        """Add a waiter, with an event whose `set` never blocks."""
        if not isinstance(waiter.event, Flag):
            waiter.event = Flag()
        super().append(waiter)


class AppendFuture(Future[int]):
    """A `concurrent.futures.Future` whose state is its group's.

    A standard Future costs 1.1 us to make and about as much to resolve, more than the append
    itself. This one creates nothing of its own until it is inspected: resolving the group resolves
    all of its futures. `result()` commits the group itself if no other thread does.
    """

    def __init__(self, group: Group, offset: int, lead: Callable[[Group], None]) -> None:
        self.group = group
        self._offset = offset
        self._lead = lead

    # --- what `wait`, `as_completed` and `add_done_callback` look at -----------------------

    def _made(self, name: str, make: Callable[[], Any]) -> Any:
        """Create an attribute on first use: one for all threads, even if two look at once."""
        found = self.__dict__.get(name)
        return self.__dict__.setdefault(name, make()) if found is None else found

    @property
    def _condition(self) -> Audience:  # type: ignore[override]
        audience = self.__dict__.get("audience")
        if audience is None:
            audience = self._made("audience", partial(Audience, self))
            self.group.observed[self] = None
        return audience  # type: ignore[no-any-return]

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._made("waiters", _Waiters)  # type: ignore[no-any-return]

    @property
    def _done_callbacks(self) -> list[Any]:
        return self._made("callbacks", list)  # type: ignore[no-any-return]

    @property
    def _state(self) -> str:  # type: ignore[override]
        return _FINISHED if self._condition.is_told else _RUNNING

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self.group.error

    @property
    def _result(self) -> int:  # type: ignore[override]
        return self._offset

    def looking(self) -> tuple[deque[Callable[[], None]], deque[Callable[[], None]]]:
        """Return the calls that wake waiters, and those that run callbacks."""
        is_well = self.group.error is None
        return (
            deque(
                partial(waiter.add_result if is_well else waiter.add_exception, self)
                for waiter in self.__dict__.get("waiters", ())
            ),
            deque(partial(self._call, back) for back in self.__dict__.get("callbacks", ())),
        )

    def _call(self, back: Callable[[Future[int]], object]) -> None:
        try:
            back(self)
        except Exception:  # as the standard library does: there is no caller to raise it to
            logger.exception("a callback of an append's future failed: %r", back)

    # --- what its holder asks for ----------------------------------------------------------

    @property
    def offset(self) -> int:
        """The offset, before it is final."""
        return self._offset

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self.group.done

    def running(self) -> bool:
        """Return whether the outcome is still open: an append cannot be cancelled."""
        return not self.group.done

    def result(self, timeout: float | None = None) -> int:
        """Return the offset, once the record is as durable as its class promises."""
        group = self.group
        if group.done and group.error is None:  # the usual case, with many in flight
            return self._offset
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._offset

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None, once the outcome is known."""
        group = self.group
        if not group.done:
            if timeout is None:
                self._lead(group)
            elif not group.wait(timeout):
                raise TimeoutError(
                    f"the append with offset {self._offset} was not committed in {timeout} seconds"
                )
        return None if group.error is None else again(group.error)
