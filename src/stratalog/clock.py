"""Where the time comes from, so that tests can bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time for timestamps, and a steady time for intervals."""

    def time_ns(self) -> int:
        """Nanoseconds since 1970, as the wall clock has it; may jump either way."""

    def monotonic(self) -> float:
        """Seconds that never go back, from an arbitrary start."""


class SystemClock:
    """The machine's clocks. The functions are the C ones themselves: no call in between."""

    time_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)
