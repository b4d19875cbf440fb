"""Rounds of work on a remote store, in a separate thread.

Such a store is slow, and one that hangs answers never. So it is asked with no lock held: the
store's upkeep, its checkpoints, snapshots and retention go on meanwhile.

Concurrency: one round at a time. State and files of the store are changed with the upkeep's lock
held, and never once the rounds were stopped: a call that comes back later than that is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from stratalog.clock import Clock
from stratalog.errors import ColdStoreError, StorageError, StratalogError
from stratalog.log.interrupts import Background, Signal

# A closing store waits this long for a call to come back, then leaves it alone. An upload ends
# sooner: it is told so with the next piece that it reads.
CLOSE_SECONDS = 10.0

# `compact` waits this long for a round that is under way.
_BUSY_SECONDS = 60.0
_LOOK_SECONDS = 0.01

# Calls that take longer are shown by `stats`.
_SLOW_SECONDS = 5.0

_T = TypeVar("_T")


class RemoteRounds:
    """The rounds of one store; `place` names the remote store, `work` the work."""

    place = ""
    work = ""

    def __init__(
        self, root: str, clock: Clock, lock: threading.Lock, name: str, thread: str
    ) -> None:
        self._root = root
        self._clock = clock
        self._lock = lock
        """The upkeep's."""
        self._logger = logging.getLogger(f"stratalog.{name}")
        self._busy = threading.Lock()
        self._wake = Signal()
        self._is_stopped = False
        self._is_started = False
        self._thread = Background(self._run, f"stratalog-{thread}")
        self._call: tuple[str, float] | None = None
        self.failure: str | None = None
        """The error of the last round, if there was one."""

    # --- in the background ----------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._is_started = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if it does not hang; idempotent."""
        self._is_stopped = True
        self._wake.give()
        if self._is_started and not self._thread.wait(CLOSE_SECONDS):
            self._logger.warning(
                "%s: closed while %s does not answer: %s",
                self._root, self.place, self.waiting(),
                extra={"store": self._root},
            )  # fmt: skip

    def wake(self) -> None:
        """Run a round: in the thread, or now if there is none."""
        if self._is_started:
            self._wake.give()
        else:
            self.round()

    def _run(self) -> None:
        while self._wake.take(-1) and not self._is_stopped:
            self.round()

    def round(self) -> None:
        """Do what is due; errors are logged, and kept for `stats`."""
        try:
            self.run()
            self.failure = None
        # Any error: a thread that ended silently would leave everything here for ever.
        except Exception as error:
            if self._is_stopped:
                return
            if self.failure is None:
                is_known = isinstance(error, StratalogError | OSError)
                self._logger.warning(
                    "%s: %s failed, and will be tried again: %s",
                    self._root, self.work, error, exc_info=not is_known,
                    extra={"store": self._root, "error": str(error)},
                )  # fmt: skip
            self.failure = str(error) or type(error).__name__

    def waiting(self) -> str | None:
        """Name the call that takes long; None if none does."""
        call = self._call
        seconds = 0.0 if call is None else self._clock.monotonic() - call[1]
        if call is None or seconds < _SLOW_SECONDS:
            return None
        return f"{call[0]}, for {seconds:.0f} s"

    def run(self) -> int:
        """Do everything that is due; returns how much was done."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        # Not by a lock with a timeout: Ctrl-C after that would leave it taken.
        call, deadline = self._call, time.monotonic() + _BUSY_SECONDS
        while self._busy.locked():
            if self._call is not call:  # it does answer, and there is much to do
                call, deadline = self._call, time.monotonic() + _BUSY_SECONDS
            if call is not None and time.monotonic() > deadline:
                raise ColdStoreError(
                    f"{self.place} of {self._root} does not answer "
                    f"({self.waiting()}). Everything else goes on; check the store, and try again "
                    "later"
                )
            time.sleep(_LOOK_SECONDS)
        with self._busy:
            yield

    def asked(self, what: str, call: Callable[[], _T]) -> _T:
        """Call the remote store, with no lock held."""
        if self._is_stopped:
            raise stopped(self.work)
        self._call = (what, self._clock.monotonic())
        try:
            return call()
        finally:
            self._call = None

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock to change the store's state; raises once the store was closed."""
        with self._lock:
            if self._is_stopped:
                raise stopped(self.work)
            yield


def stopped(work: str) -> StorageError:
    """Build the error of a round whose store was closed."""
    return StorageError(f"the store was closed while {work}: that goes on when it is opened again")
