"""Where the time comes from, so that tests can bring their own."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from stratalog.options import TIME_MAX

logger = logging.getLogger("stratalog.clock")


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


class SaneClock:
    """Another clock, of which only times between 1970 and 2230 are believed.

    While it says anything else, wall time stands still at the last time that was believed, or at
    1970 before there was one. A record then gets the time of the record before it, and nothing
    expires: a clock that is mended later finds every topic as it was.
    """

    def __init__(self, clock: Clock) -> None:
        self._time_ns = clock.time_ns
        self.monotonic = clock.monotonic
        self._last = 0
        self._is_sane = True

    def time_ns(self) -> int:
        """Nanoseconds since 1970, from 0 to `TIME_MAX`."""
        now = self._time_ns()
        if 0 <= now <= TIME_MAX:
            self._last = now
            self._is_sane = True
        elif self._is_sane:
            self._is_sane = False
            logger.warning(
                "The clock says %d ns since 1970, which is before 1970 or after 2230. Records get "
                "the time of those before them, and nothing expires. Set the clock.", now,
            )  # fmt: skip
        return self._last
