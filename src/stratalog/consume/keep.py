"""Renewal of leases while their messages are worked on.

Owns: one thread for each queue or group, which exists only while something is held.

A lease is renewed after a third of its time, so that one renewal may fail or come late. Renewal
stops after `run_max` seconds: work that hangs gives its message to another consumer.

Concurrency: any thread. The lock is never held while a lease is renewed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.errors import LeaseLostError, StateError, StratalogError
from stratalog.model import Delivery

logger = logging.getLogger("stratalog")

RUN_SECONDS_MAX = 3600.0
"""Default time for which a lease is renewed."""

# Leases may be shorter than the system can wait.
_WAIT_SECONDS_MIN = 0.005

Renew = Callable[[Sequence[Delivery], float], None]
"""Restarts the leases of deliveries, for so many seconds."""


class Held(NamedTuple):
    """Deliveries that are worked on together."""

    deliveries: Sequence[Delivery]
    seconds: float
    """Seconds of their leases."""
    due: float
    """When they are renewed next, by the steady clock."""
    until: float
    """When renewal stops."""


class Keeper:
    """Renews the leases of held deliveries."""

    def __init__(self, name: str, renew: Renew) -> None:
        self._name = name
        self._renew = renew
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._held: dict[int, Held] = {}
        self._next = 0.0
        self._is_running = False

    def hold(self, deliveries: Sequence[Delivery], run_max: float = RUN_SECONDS_MAX) -> int:
        """Renew the leases of deliveries from now on; returns the number for `let_go`."""
        lease = deliveries[0].lease
        seconds = (lease.deadline - lease.delivered_at) / 1e9
        now = time.monotonic()
        held = Held(deliveries, seconds, now + seconds / 3, now + run_max)
        number = id(held)
        with self._lock:
            self._held[number] = held
            is_sooner = held.due < self._next
            is_new = not self._is_running
            if is_new:
                self._is_running = True
        if is_new:
            threading.Thread(
                target=self._run, name=f"stratalog-leases-{self._name}", daemon=True
            ).start()
        elif is_sooner:
            self._wake.set()
        return number

    def let_go(self, number: int) -> None:
        """Stop renewing what `hold` returned; idempotent."""
        with self._lock:
            self._held.pop(number, None)

    def _run(self) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            with self._lock:
                if not self._held:
                    self._is_running = False
                    return
                holds = list(self._held.items())
            for number, held in holds:
                if held.due <= now:
                    self._renew_one(number, held, now)
            with self._lock:
                times = [held.due for held in self._held.values()]
                # With nothing held it waits once more, so that the next message needs no new
                # thread.
                self._next = min(times, default=now + 1.0)
            self._wake.wait(max(self._next - time.monotonic(), _WAIT_SECONDS_MIN))

    def _renew_one(self, number: int, held: Held, now: float) -> None:
        """Renew what is due, or drop it: it is acknowledged, lost, or was held for too long."""
        current = [one for one in held.deliveries if not one.is_settled]
        is_kept = bool(current) and now < held.until
        if is_kept:
            try:
                self._renew(current, held.seconds)
            except LeaseLostError:
                is_kept = len(current) > 1 and self._renew_each(current, held.seconds)
            except StateError:  # the store is closed
                is_kept = False
            except StratalogError as error:  # the next third of the lease is another attempt
                logger.warning("queue %r: a lease could not be renewed: %s", self._name, error)
                is_kept = now - held.due < held.seconds
        with self._lock:
            if number in self._held:
                if is_kept:
                    self._held[number] = held._replace(due=now + held.seconds / 3)
                else:
                    del self._held[number]

    def _renew_each(self, deliveries: Sequence[Delivery], seconds: float) -> bool:
        """Renew those that are not lost; returns whether there is one."""
        kept = 0
        for one in deliveries:
            try:
                self._renew([one], seconds)
                kept += 1
            except StratalogError:
                continue
        return kept > 0
