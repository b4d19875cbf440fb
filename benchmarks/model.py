"""The parts of a workload, and the results of a run.

A workload has contestants: Stratalog, rivals, and limits (what the machine does when nothing is
in the way). Each is set up once and then does its work once per round, in turn with the others.
"""

from __future__ import annotations

import functools
import importlib
import random
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

SEED = 7
RECORD_BYTES = 100
# Few enough to stay in the processor's cache, as records do that a program has just made.
POOL_RECORDS = 1000

Kind = Literal["stratalog", "rival", "limit"]


class NotInstalledError(Exception):
    """A rival is not there."""


def rival(name: str) -> Any:
    """A rival's module. Imported by name: types differ between those who have it and who not."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalledError(f"{name} is not installed") from error


@functools.cache
def pool() -> list[bytes]:
    """Distinct random records, the same in every run."""
    source = random.Random(SEED)
    return [source.randbytes(RECORD_BYTES) for _ in range(POOL_RECORDS)]


def records(count: int) -> list[bytes]:
    """That many records, from the pool over and over."""
    return (pool() * -(-count // POOL_RECORDS))[:count]


@dataclass(slots=True)
class Trial:
    """A contestant that is ready: `work` is timed and returns how many records it did."""

    work: Callable[[], int]
    prepare: Callable[[], object] | None = None
    """Done before every round, not timed."""
    is_settled: bool = True
    """Whether what was written before is synced first, also not timed."""


Setup = Callable[[str], AbstractContextManager[Trial]]
"""Takes a directory of its own, which is created before it and removed after it."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A contender that does a workload."""

    name: str
    kind: Kind
    setup: Setup


@dataclass(frozen=True, slots=True)
class Workload:
    """One piece of work, done by several contenders in turn."""

    name: str
    title: str
    unit: Literal["us", "ns", "M/s", "s"]
    """The unit for people: time per record, records per second, or time per round."""
    contestants: list[Contestant]
    fresh_bytes: int = 0
    """New memory that a round needs at most, page cache included: see `run.touch`."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Something that is looked at once and not timed: bytes, memory."""

    name: str
    title: str
    measure: Callable[[str], dict[str, Any]]


@dataclass(slots=True)
class Measurement:
    """All rounds of one contestant."""

    workload: str
    contestant: str
    kind: Kind
    unit: str
    counts: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def values(self) -> list[float]:
        """One number per round, in the workload's unit."""
        if self.unit == "M/s":
            return [1e-6 / time for time in self.times()]
        factor = {"s": 1.0, "us": 1e6, "ns": 1e9}[self.unit]
        return [time * factor for time in self.times()]

    def times(self) -> list[float]:
        """Seconds per record, or per round where that is what counts; one per round."""
        if self.unit == "s":
            return list(self.seconds)
        return [seconds / n for n, seconds in zip(self.counts, self.seconds, strict=True)]

    @property
    def median(self) -> float:
        """Median of all rounds."""
        return statistics.median(self.values())

    @property
    def best(self) -> float:
        """The round that was disturbed least."""
        return max(self.values()) if self.unit == "M/s" else min(self.values())

    @property
    def overall(self) -> float:
        """Over all rounds together: unlike the median it has every stall in it."""
        total = Measurement("", "", self.kind, self.unit, [sum(self.counts)], [sum(self.seconds)])
        return total.values()[0] / (len(self.seconds) if self.unit == "s" else 1)

    @property
    def spread(self) -> float:
        """Distance between the quartiles, as a share of the median."""
        low, _, high = statistics.quantiles(self.values(), n=4, method="inclusive")
        return (high - low) / self.median


@dataclass(slots=True)
class Results:
    """Everything a run has found out."""

    measurements: list[Measurement] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    """Total time of each item of the catalogue, preparations included."""

    def find(self, workload: str, contestant: str) -> Measurement | None:
        """One contestant's rounds, if it took part."""
        for item in self.measurements:
            if (item.workload, item.contestant) == (workload, contestant):
                return item
        return None

    def of(self, workload: str) -> list[Measurement]:
        """The rounds of all contenders of one workload."""
        return [item for item in self.measurements if item.workload == workload]

    def ratio(self, workload: str, contestant: str, base: str) -> list[float] | None:
        """Return the time relative to another contender, round by round: neighbours share noise.

        Per record, or per round where the unit says so.
        """
        one, other = self.find(workload, contestant), self.find(workload, base)
        if one is None or other is None:
            return None
        return [a / b for a, b in zip(one.times(), other.times(), strict=True)]
