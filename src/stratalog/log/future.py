"""What `append_nowait` returns, and how those who look at it hear of its group.

The futures of a group share one state, the group's, and one audience. The standard library looks at
futures with the condition of each held, and may be interrupted by Ctrl-C between taking it and
letting go. A condition that is a lock would then hold up whoever commits, for ever; and as many
futures share one, two threads that wait for several could wait for each other. So nobody ever waits
for an audience: while it is held, nothing is told, and whoever lets go of it tells. The same goes
for the event that `wait` and `as_completed` wait for: it is replaced by one of ours.

Invariants:
- `_state` is FINISHED from the moment in which those who look are known: each of them has either
  seen that, or is called.
- Nobody is called with a lock held: what a callback does may take any.
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

from stratalog.log.failures import again
from stratalog.log.interrupts import Flag

if TYPE_CHECKING:
    from stratalog.log.group import Group

logger = logging.getLogger("stratalog")

# Who holds an audience has something to look through, no more: after this long he was interrupted.
# `concurrent.futures.wait` takes about two seconds for a million futures.
_HELD_SECONDS_MAX = 30.0


class Audience:
    """Those who look at the futures of one group; in the place of each future's condition."""

    __slots__ = ("_calls", "_held_since", "_lock", "is_done", "is_told", "observed")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held_since: list[float] = []
        self._calls: deque[Callable[[], None]] = deque()
        self.observed: dict[AppendFuture, None] = {}
        """The futures that somebody looks at."""
        self.is_done = False
        """Whether the outcome of the group is known."""
        self.is_told = False
        """Whether it is certain who has to be called."""

    def acquire(self) -> bool:
        """Have nothing told for now; never waits."""
        with self._lock:
            self._held_since.append(time.monotonic())
        return True

    def release(self) -> None:
        """Have it told, by us if the outcome is known."""
        with self._lock:
            self._held_since.pop()
        if self.is_done:
            self.tell()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def tell(self) -> bool:
        """Call those who look, unless somebody is just looking: then False, and he does it.

        The outcome is known. May be repeated, and be called by several threads: each of them is
        called once.
        """
        with self._lock:
            if not self.is_told:
                held = self._held_since
                if held and time.monotonic() - held[-1] < _HELD_SECONDS_MAX:
                    return False
                calls = deque(call for future in list(self.observed) for call in future.calls())
                # No function is called from here on: Ctrl-C comes before all of it or after.
                self._calls = calls
                self.observed = {}
                self.is_told = True
        while (call := self._next()) is not None:
            call()
        return True

    def _next(self) -> Callable[[], None] | None:
        try:
            return self._calls.popleft()
        except IndexError:  # another thread may have been faster
            return None


class _Looking(list[Any]):
    """Those who look at one future: waiters of the standard library's, or callbacks."""

    def append(self, one: Any) -> None:
        """Add one who begins to look; a waiter gets an event that setting never waits for."""
        if isinstance(getattr(one, "event", None), threading.Event):
            one.event = Flag()
        super().append(one)


class _Lazy:
    """A list made when first looked at, which also tells the audience that somebody looks."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, future: AppendFuture, owner: type) -> list[Any]:
        audience = future._condition
        if not audience.is_told:
            audience.observed[future] = None
        # One for all, also if two threads look at the same time.
        return future.__dict__.setdefault(self._name, _Looking())  # type: ignore[no-any-return]


class AppendFuture(Future[int]):
    """A `concurrent.futures.Future` whose state is its group's.

    A plain Future costs 1.1 us to make and about as much to resolve, more than the append itself.
    This one makes nothing of its own: resolving the group resolves all of its futures. `result()`
    commits the group itself when nobody else is at it.
    """

    _waiters = _Lazy()
    _done_callbacks = _Lazy()

    def __init__(self, group: Group, offset: int, lead: Callable[[Group], None]) -> None:
        self.group = group
        self._offset = offset
        self._lead = lead

    # --- what `wait`, `as_completed` and `add_done_callback` look at -----------------------

    @property
    def _condition(self) -> Audience:  # type: ignore[override]
        audience = self.group.audience
        assert audience is not None
        return audience

    @property
    def _state(self) -> str:  # type: ignore[override]
        return "FINISHED" if self._condition.is_told else "RUNNING"  # running: not to be cancelled

    @property
    def _exception(self) -> BaseException | None:  # type: ignore[override]
        return self.group.error

    @property
    def _result(self) -> int:  # type: ignore[override]
        return self._offset

    def calls(self) -> list[Callable[[], None]]:
        """What has to be called to tell those who look at this one."""
        looked = self.__dict__
        is_well = self.group.error is None
        calls: list[Callable[[], None]] = [
            partial(waiter.add_result if is_well else waiter.add_exception, self)
            for waiter in looked.get("_waiters", ())
        ]
        return calls + [partial(self._call, back) for back in looked.get("_done_callbacks", ())]

    def _call(self, back: Callable[[Future[int]], object]) -> None:
        try:
            back(self)
        except Exception:  # as the standard library does: it has nobody else to tell
            logger.exception("a callback of an append's future failed: %r", back)

    # --- what its holder asks for ----------------------------------------------------------

    @property
    def offset(self) -> int:
        """The offset, before it is certain."""
        return self._offset

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self.group.done

    def running(self) -> bool:
        """Whether it is not: an append cannot be cancelled."""
        return not self.group.done

    def result(self, timeout: float | None = None) -> int:
        """The offset, once the record is as durable as its class promises."""
        group = self.group
        if group.done and group.error is None:  # as a rule, with many in flight
            return self._offset
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._offset

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What went wrong, None if nothing did, once that is known."""
        group = self.group
        if not group.done:
            if timeout is None:
                self._lead(group)
            elif not group.wait(timeout):
                raise TimeoutError(
                    f"the append with offset {self._offset} was not committed in {timeout} seconds"
                )
        return None if group.error is None else again(group.error)
