"""What Stratalog promises itself, and whether a run kept it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.model import Results

# 9 M records in batches of 1000 are 9000 index entries of some 50 bytes: half a megabyte. The
# rest is for the allocator, which keeps what it was given.
_GROWTH_MIB_MAX = 16.0


@dataclass(frozen=True, slots=True)
class Goal:
    """One number, and the side of it on which we want to be."""

    name: str
    relation: Literal["<=", ">="]
    limit: float
    unit: str
    measure: Callable[[Results], float | None]
    """None when the run did not measure it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A goal and what became of it."""

    goal: Goal
    measured: float

    @property
    def is_met(self) -> bool:
        """Whether the goal was reached."""
        if self.goal.relation == "<=":
            return self.measured <= self.goal.limit
        return self.measured >= self.goal.limit


def _median(workload: str, contestant: str) -> Callable[[Results], float | None]:
    def measure(results: Results) -> float | None:
        found = results.find(workload, contestant)
        return None if found is None else found.median

    return measure


def _slower(workload: str, contestant: str, base: str) -> Callable[[Results], float | None]:
    def measure(results: Results) -> float | None:
        ratios = results.ratio(workload, contestant, base)
        return None if ratios is None else statistics.median(ratios)

    return measure


def _faster(workload: str, contestant: str, base: str) -> Callable[[Results], float | None]:
    return _slower(workload, base, contestant)


def _fact(probe: str, name: str, factor: float = 1.0) -> Callable[[Results], float | None]:
    def measure(results: Results) -> float | None:
        facts = results.facts.get(probe)
        return None if facts is None else facts[name] * factor

    return measure


GOALS = [
    Goal("append one, disk", "<=", 0.8, "us", _median("append-one", "stratalog disk")),
    Goal("append_many of 100", "<=", 120, "ns", _median("append-many", "stratalog, 100 a batch")),
    Goal("append_many of 1000", "<=", 80, "ns", _median("append-many", "stratalog")),
    Goal("append one, fsync, against pwrite + fdatasync", "<=", 1.3, "x",
         _slower("append-sync", "stratalog", "pwrite + fdatasync")),
    Goal("16 threads against one", ">=", 3, "x",
         _faster("append-sync", "stratalog, 16 threads", "stratalog")),
    Goal("256 in flight against one", ">=", 30, "x",
         _faster("append-sync", "stratalog, 256 in flight", "stratalog")),
    Goal("read_arrow", ">=", 20, "M/s", _median("read", "stratalog read_arrow")),
    Goal("read_values", ">=", 4, "M/s", _median("read", "stratalog read_values")),
    Goal("read", ">=", 1, "M/s", _median("read", "stratalog read")),
    Goal("open a killed log of 1 M records", "<=", 1.5, "s",
         _median("open", "1 M records, not yet synced")),
    Goal("bytes of frames per record", "<=", 112, "B", _fact("space", "frame_bytes_per_record")),
    Goal("growth in memory while appending", "<=", _GROWTH_MIB_MAX, "MiB",
         _fact("memory", "growth_bytes", 1 / (1 << 20))),
]  # fmt: skip


def outcomes(results: Results) -> list[Outcome]:
    """Every goal that this run can say something about."""
    found = [(goal, goal.measure(results)) for goal in GOALS]
    return [Outcome(goal, measured) for goal, measured in found if measured is not None]
