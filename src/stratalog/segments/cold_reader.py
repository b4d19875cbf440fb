"""Threads that read the cold store, so that a hanging one delays neither appends nor an exit.

Concurrency: any thread asks; the lock is held for the book-keeping alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from stratalog.errors import ClosedError, ColdStoreError

# Cold reads are slow and their number does not make them faster; two keep a connection busy.
_THREADS = 2

# A client of an object store gives up sooner; a directory on a server that is gone never does.
_ANSWER_SECONDS = 120.0
_LOOK_SECONDS = 1.0

# A thread without work ends, so that a store that is forgotten keeps none.
_IDLE_SECONDS = 2.0


class _Call:
    """A read that was asked for."""

    def __init__(self, action: Callable[[], bytes]) -> None:
        self.action = action
        self.future: Future[bytes] = Future()
        self.begun_at = 0.0


class ColdReader:
    """The threads of one store; daemons, which a program that ends does not wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._answered_at = 0.0
        self._is_closed = False

    def read(self, action: Callable[[], bytes], what: str) -> bytes:
        """Read in a thread; raises `ColdStoreError` if there is no answer for two minutes."""
        call = _Call(action)
        with self._lock:
            if self._is_closed:
                raise ClosedError(f"cannot read {what}: the store is closed")
            if self._threads < _THREADS:
                self._threads += 1
                threading.Thread(target=self._run, name="stratalog-cold", daemon=True).start()
            self._calls.put(call)
        asked_at = time.monotonic()
        while True:
            try:
                return call.future.result(min(_LOOK_SECONDS, _ANSWER_SECONDS))
            except TimeoutError:
                # A call that has not begun waits for others, which may well be answered.
                since = call.begun_at or max(asked_at, self._answered_at)
                if call.future.done() or time.monotonic() - since < _ANSWER_SECONDS:
                    continue
            call.future.cancel()
            raise ColdStoreError(
                f"cannot read {what}: the cold store has not answered for {_ANSWER_SECONDS:.0f} s. "
                "The hot part of the store works on; check the network and the store, and try again"
            )

    def close(self) -> None:
        """End the threads, once the calls they wait for return; closing twice is fine."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in range(self._threads):
                    self._calls.put(None)

    def _next(self) -> _Call | None:
        """Return the next call, or None if there is none for a while or the threads have to end."""
        while True:
            try:
                return self._calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._calls.empty():
                        self._threads -= 1
                        return None

    def _run(self) -> None:
        while (call := self._next()) is not None:
            call.begun_at = time.monotonic()
            if call.future.set_running_or_notify_cancel():
                try:
                    call.future.set_result(call.action())
                # Any error at all: it is raised where the read was asked for.
                except BaseException as error:
                    call.future.set_exception(error)
            self._answered_at = time.monotonic()
