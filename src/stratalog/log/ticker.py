"""The one background thread: writes and syncs what nobody waits for.

It sleeps until something is left to it, then lets a group gather for `flush_interval` and writes
it. While unsynced bytes remain it comes back after `sync_interval` to sync them. An idle store has
a sleeping thread and no wake-ups. Errors stay with the shard, which tells the next append.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Ticker:
    """Calls `tick` soon after `wake`, and again while `tick` says that something is left."""

    def __init__(
        self, tick: Callable[[], bool], *, flush_interval: float, sync_interval: float
    ) -> None:
        self._tick = tick
        self._flush_interval = flush_interval
        self._sync_interval = sync_interval
        self._event = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stratalog-ticker", daemon=True)

    def start(self) -> None:
        """Begin; the thread is a daemon, so that a forgotten store does not keep a program."""
        self._thread.start()

    def wake(self) -> None:
        """Something is waiting."""
        if not self._event.is_set():
            self._event.set()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._event.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        is_left = False
        while not self._stop.is_set():
            # At least a millisecond, or an interval of 0 would spin.
            self._event.wait(max(self._sync_interval, 0.001) if is_left else None)
            self._stop.wait(self._flush_interval)
            self._event.clear()
            is_left = self._tick()
