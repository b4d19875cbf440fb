"""Histograms of durations: what `store.metrics()` is made of.

Recording is one `append` to a deque, about 40 ns: what was recorded is put into buckets a thousand
at a time, by NumPy, or when a summary is asked for. Buckets are an eighth of a power of two wide,
so a percentile is exact to about 5 %, from a nanosecond to hours, in 4 KiB.

Concurrency: any thread records, without a lock. Folding takes one, and no recorded value is lost
or counted twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_FOLD = 1024
_STEPS = 8
"""Buckets for each power of two."""
_POWERS = 48
"""Up to 2^48 ns, which is three days."""
_BUCKETS = _STEPS * _POWERS

SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
"""Percentiles that a summary has of the distribution."""


class Histogram:
    """Durations in nanoseconds."""

    __slots__ = ("_counts", "_lock", "_max", "_new", "_sum", "record")

    def __init__(self) -> None:
        self._new: deque[int] = deque()
        self._lock = threading.Lock()
        self._counts: npt.NDArray[np.int64] = np.zeros(_BUCKETS, np.int64)
        self._sum = 0
        self._max = 0
        self.record = self._new.append
        """Record a duration; the caller also calls `fold_if_full` now and then."""

    def fold_if_full(self) -> None:
        """Put what was recorded into buckets, once that is much."""
        if len(self._new) >= _FOLD:
            self.fold()

    def fold(self) -> None:
        """Put what was recorded into buckets."""
        with self._lock:
            take = self._new.popleft
            taken = [take() for _ in range(len(self._new))]
            if taken:
                durations = np.maximum(np.array(taken, np.int64), 1)
                places = (np.log2(durations) * _STEPS).astype(np.int64)
                np.add.at(self._counts, np.minimum(places, _BUCKETS - 1), 1)
                self._sum += int(durations.sum())
                self._max = max(self._max, int(durations.max()))

    def state(self) -> tuple[npt.NDArray[np.int64], int, int]:
        """Counts by bucket, the sum and the largest, in nanoseconds."""
        self.fold()
        with self._lock:
            return self._counts.copy(), self._sum, self._max


def summarize(histograms: Iterable[Histogram]) -> dict[str, float]:
    """Say what histograms have seen together: count, sum, max and percentiles, in seconds."""
    counts, total, largest = np.zeros(_BUCKETS, np.int64), 0, 0
    for one in histograms:
        more, its_sum, its_max = one.state()
        counts += more
        total, largest = total + its_sum, max(largest, its_max)
    count = int(counts.sum())
    summary = {"count": float(count), "sum": total / 1e9, "max": largest / 1e9}
    reached = np.cumsum(counts)
    for name, share in SHARES.items():
        summary[name] = 0.0
        if count:
            bucket = int(np.searchsorted(reached, share * count))
            # The middle of the bucket, and no more than there ever was.
            summary[name] = min(2 ** ((bucket + 0.5) / _STEPS), largest) / 1e9
    return summary
