"""The one background thread: writes and syncs what nobody waits for.

It sleeps until something is left to it, then lets a group gather for `flush_interval` and writes
it. While unsynced bytes remain it comes back after `sync_interval` to sync them. An idle store has
a sleeping thread and no wake-ups. Errors stay with the shard, which tells the next append.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from stratalog.log.interrupts import Background, Signal

logger = logging.getLogger("stratalog")


class Ticker:
    """Calls `tick` soon after `wake`, and again while `tick` says that something is left."""

    def __init__(
        self, tick: Callable[[], bool], store: str, *, flush_interval: float, sync_interval: float
    ) -> None:
        self._store = store
        self._tick = tick
        self._flush_interval = flush_interval
        # At least a millisecond, or an interval of 0 would spin.
        self._sync_interval = max(sync_interval, 0.001)
        self._work = Signal()
        self._stop = Signal()
        self._thread = Background(self._run, "stratalog-ticker")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Something is waiting."""
        self._work.give()

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
            self._work.take(0)  # what came while the group gathered is in the group
            try:
                is_left = self._tick()
            # Whatever it is: a thread that ends in silence would leave appends unwritten for ever.
            except Exception:
                logger.exception(
                    "%s: the background writer failed, and will try again", self._store
                )
                is_left = True
