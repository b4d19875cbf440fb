"""A clock that stands still until a test moves it.

Invariants:
- `monotonic` never goes back; only `advance` moves it.
- Time is kept in whole nanoseconds, so that many small steps add up exactly.

Concurrency: any thread may read or move it.
"""

from __future__ import annotations

import threading

_NS_PER_SECOND = 1_000_000_000


class ManualClock:
    """Wall time and steady time, both moved by hand."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._lock = threading.Lock()
        self._wall_ns = now_ns
        self._steady_ns = 0

    def time_ns(self) -> int:
        """The wall clock, in nanoseconds since 1970."""
        return self._wall_ns

    def monotonic(self) -> float:
        """Seconds advanced since this clock was made."""
        return self._steady_ns / _NS_PER_SECOND

    def advance(self, seconds: float) -> None:
        """Let time pass: both clocks move forward."""
        if seconds < 0:
            raise ValueError(f"time passes forward only, got {seconds} s: use jump() to go back")
        passed_ns = round(seconds * _NS_PER_SECOND)
        with self._lock:
            self._wall_ns += passed_ns
            self._steady_ns += passed_ns

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or a time server would."""
        with self._lock:
            self._wall_ns += round(seconds * _NS_PER_SECOND)
