"""The loop of a worker: get messages, handle them, acknowledge them, until it has to stop.

A thread takes one message at a time at first, and several once they take only milliseconds. Leases
are renewed while a message runs or waits for its turn. A handler that returns acknowledges its
message; one that raises gives it back with the exception as the reason.

Crash: messages that were handled and not yet acknowledged are delivered again; for each thread at
most `_BATCH_MAX` messages, or `_ACK_SECONDS` of work.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from stratalog.consume.keep import RUN_SECONDS_MAX
from stratalog.errors import LeaseLostError, PressureError
from stratalog.model import Message
from stratalog.options import seconds

if TYPE_CHECKING:
    from stratalog.handles.queue import Queue

_BATCH_MAX = 128
# Messages that take longer than this together are taken one by one, and acknowledged at once.
_ACK_SECONDS = 0.005
# How often an idle worker checks whether it has to stop.
_IDLE_SECONDS = 0.1
# How long a worker waits when memory or files are short.
_PRESSURE_SECONDS = 0.05


class Stop(Protocol):
    """A signal for a worker to stop, such as a `threading.Event`."""

    def is_set(self) -> bool:
        """Return whether the worker has to stop."""


class Work(msgspec.Struct):
    """Counts of what a worker has done."""

    done: int = 0
    """Messages whose handler returned, acknowledged."""
    failed: int = 0
    """Messages whose handler raised, given back."""
    lost: int = 0
    """Messages whose lease was lost before they were acknowledged: they are delivered again."""


Handler = Callable[[Message[Any]], object]


class Workers:
    """Threads that work on one queue."""

    def __init__(
        self, queue: Queue[Any], handler: Handler, stop: Stop | None, timeout: float | None,
        lease: float | None, run_max: float, consumer: str,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._handler = handler
        self._stop = stop
        self._timeout = timeout
        self._lease = lease
        self._run_max = run_max
        self._consumer = consumer
        self._halt = threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        self._work = Work()

    def run(self, count: int) -> Work:
        """Work in `count` threads until stopped; returns counts.

        Ctrl-C, or an error that is not a handler's, stops all threads; it is raised once they have
        finished their current messages.
        """
        if count == 1:
            self._loop()
        else:
            self._run_threads(count)
        if self._error is not None:
            raise self._error
        return self._work

    def _run_threads(self, count: int) -> None:
        # Not by join(): in CPython 3.11 a join() that Ctrl-C interrupts may take a running thread
        # for one that has ended, and the store would be closed while it runs. A thread that Ctrl-C
        # kept from being counted as started sees that it has to stop.
        finished: set[int] = set()
        news = threading.Event()

        def loop(number: int) -> None:
            try:
                self._loop()
            finally:
                finished.add(number)
                news.set()

        threads = [
            threading.Thread(target=loop, args=(number,), name=f"stratalog-worker-{number}")
            for number in range(count)
        ]

        def wait() -> None:
            while not all(
                thread.ident is None or number in finished for number, thread in enumerate(threads)
            ):
                news.wait(0.5)
                news.clear()

        interrupt: BaseException | None = None
        while True:
            try:
                for thread in threads if interrupt is None else ():
                    thread.start()
                wait()
                break
            except (KeyboardInterrupt, RuntimeError) as error:  # RuntimeError: no thread available
                self._halt.set()
                if interrupt is not None:
                    raise  # the second Ctrl-C: do not wait for the handlers any longer
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _loop(self) -> None:
        work = Work()
        try:
            self._take_turns(work)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._halt.set()
        with self._lock:
            self._work.done += work.done
            self._work.failed += work.failed
            self._work.lost += work.lost

    def _take_turns(self, work: Work) -> None:
        limit = 1
        idle_since = time.monotonic()
        while not self._is_stopped():
            try:
                messages = self._queue.get_many(
                    limit, self._patience(idle_since), self._lease, self._consumer
                )
            except PressureError:
                self._halt.wait(_PRESSURE_SECONDS)
                continue
            if not messages:
                if self._timeout is not None and self._is_idle(idle_since):
                    return
                limit = 1
                continue
            begin = time.monotonic()
            self._handle_all(messages, work)
            idle_since = time.monotonic()
            # A message that came back after a failure or a crash is taken alone: it may kill the
            # process.
            is_quick = idle_since - begin < _ACK_SECONDS and messages[-1].delivery_count == 1
            limit = min(2 * limit, _BATCH_MAX) if is_quick else 1

    def _is_stopped(self) -> bool:
        return self._halt.is_set() or (self._stop is not None and self._stop.is_set())

    def _patience(self, idle_since: float) -> float:
        if self._timeout is None:
            return _IDLE_SECONDS
        return max(min(_IDLE_SECONDS, idle_since + self._timeout - time.monotonic()), 0.0)

    def _is_idle(self, since: float) -> bool:
        return time.monotonic() - since >= (self._timeout or 0.0)

    def _handle_all(self, messages: list[Message[Any]], work: Work) -> None:
        queue, handler = self._queue, self._handler
        number = queue.hold(messages, self._run_max) if messages[0].deadline else 0
        done: list[Message[Any]] = []
        begun = 0
        begin = time.monotonic()
        try:
            for message in messages:
                begun += 1
                try:
                    handler(message)
                except Exception as error:
                    work.failed += 1
                    self._fail(message, error, work)
                else:
                    done.append(message)
                is_late = time.monotonic() - begin > _ACK_SECONDS
                if is_late:
                    work.done += self._ack(done, work)
                    done = []
                if is_late and self._is_stopped():
                    break
                begin = time.monotonic() if is_late else begin
        except BaseException as error:  # Ctrl-C, or process exit: not the handler's fault
            self._fail(messages[begun - 1], error, work)
            raise
        finally:
            try:
                work.done += self._ack(done, work)
                queue.give_back(messages[begun:])
            finally:
                queue.let_go(number)

    def _ack(self, done: list[Message[Any]], work: Work) -> int:
        """Acknowledge handled messages that are still open; returns how many."""
        try:
            self._queue.ack(done)
        except LeaseLostError:
            kept = 0
            for message in done:
                try:
                    self._queue.ack(message)
                    kept += 1
                except LeaseLostError:
                    work.lost += 1
            return kept
        return len(done)

    def _fail(self, message: Message[Any], error: BaseException, work: Work) -> None:
        """Give a message back whose handler raised, unless the handler has acked or nacked it."""
        if message.is_settled:
            return
        try:
            self._queue.nack(message, reason=reason_of(error))
        except LeaseLostError:
            work.lost += 1


def reason_of(error: BaseException) -> str:
    """Format an exception as the reason for giving a message back."""
    return f"{type(error).__name__}: {error}"


def check_run_max(run_max: Any) -> float:
    """Check the seconds for which a lease is renewed at most."""
    return RUN_SECONDS_MAX if run_max is None else seconds("run_max", run_max)
