"""The background thread that writes and syncs appends no thread waits for.

It sleeps until a group is left to it, lets the group gather for `flush_interval` and writes it.
While unsynced bytes remain it returns after `sync_interval` to sync them. An idle store has a
sleeping thread and no wake-ups. Errors stay with the shard, which raises them to the next append.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratalog.log.interrupts import Background, Signal

logger = logging.getLogger("stratalog.log")


class Ticker:
    """Calls `tick` soon after `wake`, and again while `tick` returns that something is left."""

    def __init__(
        self, tick: Callable[[], bool], store: str, *, flush_interval: float, sync_interval: float
    ) -> None:
        self._store = store
        self._tick = tick
        self._flush_interval = flush_interval
        # At least a millisecond, or an interval of 0 would spin.
        self._sync_interval = max(sync_interval, 0.001)
        self._work = Signal()
        self.wake = self._work.give
        """Wakes the thread: something waits."""
        self._stop = Signal()
        self._thread = Background(self._run, "stratalog-ticker")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.give()
        self._work.give()
        self._thread.wait()

    def _run(self) -> None:
        is_left = False
        while not self._stop.take(0):
            self._work.take(self._sync_interval if is_left else -1)
            if self._stop.take(self._flush_interval):
                return
            self._work.take(0)  # appends that came while the group gathered are in it
            try:
                is_left = self._tick()
            # Any error: a thread that ended silently would leave appends unwritten for ever.
            except Exception:
                logger.exception(
                    "%s: the background writer failed, and will try again",
                    self._store,
                    extra={"store": self._store},
                )
                is_left = True
