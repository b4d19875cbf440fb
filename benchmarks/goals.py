"""The goals of Stratalog, and whether a run met them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from benchmarks.catalogue import CLOSED_BY_RECORDS, LARGE_BYTES, closed_name, killed_name
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


def _median(
    workload: str, contestant: str, factor: float = 1.0
) -> Callable[[Results], float | None]:
    def measure(results: Results) -> float | None:
        found = results.find(workload, contestant)
        return None if found is None else found.median * factor

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


def _killed_seconds(results: Results) -> float | None:
    facts = results.facts.get("table-large")
    if facts is None:
        return None
    return float(facts["killed_open_ms"] + facts["killed_first_use_ms"]) / 1e3


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
    Goal("get + ack, disk", "<=", 6, "us", _median("queue-get", "stratalog get + ack")),
    Goal("get_many(100) + ack, disk", "<=", 0.8, "us",
         _median("queue-get", "stratalog get_many(100) + ack")),
    Goal("put with priority and id", "<=", 5, "us",
         _median("queue-put", "stratalog put, priority and id")),
    Goal("open a queue of 1 M messages", "<=", 1, "s",
         _fact("queue-curve", "1000 k waiting, open and get ms", 1e-3)),
    Goal("memory of a waiting message", "<=", 0.5, "B", _fact("queue-memory", "fifo_bytes")),
    Goal("the same with a priority", "<=", 16, "B", _fact("queue-memory", "priority_bytes")),
    Goal("the same with a delay", "<=", 16, "B", _fact("queue-memory", "delay_bytes")),
    Goal("memory of a deduplication id", "<=", 120, "B", _fact("queue-memory", "dedup_bytes")),
    Goal("put of a key, disk", "<=", 2.2, "us", _median("table-put", "stratalog put")),
    Goal("the same with if_version", "<=", 4, "us",
         _median("table-put", "stratalog put, if_version")),
    Goal("put_many of 1000 keys, each", "<=", 1.2, "us",
         _median("table-put-many", "stratalog put_many")),
    Goal("get of a key", "<=", 0.8, "us", _median("table-get", "stratalog get")),
    Goal("ordered scan of a table", ">=", 0.7, "M/s", _median("table-scan", "stratalog scan")),
    Goal("memory of a key besides key and value", "<=", 200, "B",
         _fact("table-large", "key_bytes")),
    Goal("open a store with 1 M keys", "<=", 300, "ms", _fact("table-large", "closed_open_ms")),
    Goal("first use of 1 M keys", "<=", 1, "s", _fact("table-large", "closed_first_use_ms", 1e-3)),
    Goal("open and first use of 1 M keys, killed", "<=", 2, "s",
         _killed_seconds),
    Goal("longest append beside a snapshot of 1 M keys", "<=", 20, "ms",
         _fact("table-large", "snapshot_wait_ms")),
    Goal("read_arrow", ">=", 20, "M/s", _median("read", "stratalog read_arrow")),
    Goal("read_values", ">=", 4, "M/s", _median("read", "stratalog read_values")),
    Goal("read", ">=", 1, "M/s", _median("read", "stratalog read")),
    Goal("open a killed log of 1 M records", "<=", 1.5, "s",
         _median("open", "1 M records, not yet synced")),
    Goal("open a closed store of 10 M records", "<=", 300, "ms",
         _median("open-store", closed_name(CLOSED_BY_RECORDS[-1]), 1000)),
    Goal("the same against 100 k records", "<=", 1.5, "x",
         _slower("open-store", closed_name(CLOSED_BY_RECORDS[-1]),
                 closed_name(CLOSED_BY_RECORDS[0]))),
    Goal("open a killed store, 64 MiB of log", "<=", 2, "s",
         _median("open-store", killed_name(64))),
    Goal("read_arrow of sealed segments, 100 B", ">=", 30, "M/s",
         _median("segments-read", "100 B values")),
    Goal("read_arrow of sealed segments, 1 KiB", ">=", 3, "GB/s",
         _median("segments-read", "1 KiB values", LARGE_BYTES / 1000)),
    Goal("Spark, 100 B, against Parquet", ">=", 0.7, "x",
         _faster("spark-read", "stratalog", "parquet")),
    Goal("Spark, 1 KiB, against Parquet", ">=", 0.9, "x",
         _faster("spark-read-large", "stratalog", "parquet")),
    Goal("Spark, bytes read for 1 % of the time", "<=", 3, "%",
         _fact("spark-pruning", "read_bytes_share", 100)),
    Goal("read one record by its offset", "<=", 30, "us", _fact("point", "read_us")),
    Goal("offset_at", "<=", 50, "us", _fact("point", "offset_at_us")),
    Goal("backlog of a route", ">=", 1_000_000, "records/s",
         _fact("routes", "backlog_records_per_second")),
    Goal("p50 of appends with a route", "<=", 1.1, "x", _fact("routes", "p50_ratio_1")),
    Goal("p99 of appends with a route", "<=", 2.5, "x", _fact("routes", "p99_ratio_1")),
    Goal("points by column", ">=", 2_000_000, "points/s",
         _fact("series", "write_points_per_second")),
    Goal("windows of 10 M points", "<=", 0.5, "s", _fact("series", "avg_seconds_stratalog")),
    Goal("percentiles of 10 M points", "<=", 2.5, "s", _fact("series", "p95_seconds_stratalog")),
    Goal("newest point of a series", "<=", 5.0, "us", _fact("series", "latest_us")),
    Goal("lines that are alike", ">=", 1_000_000, "lines/s",
         _fact("series", "lines_per_second_alike")),
    Goal("lines that are not", ">=", 300_000, "lines/s", _fact("series", "lines_per_second_mixed")),
    Goal("p99 of disk appends beside 8 cold scans", "<=", 1.5, "x",
         _fact("cold", "disk_p99_ratio")),
    Goal("p99 of fsync appends beside 8 cold scans", "<=", 1.5, "x",
         _fact("cold", "fsync_p99_ratio")),
    *[Goal(f"cost of checkpoints, {name}", "<=", 30, "%",
           _fact("checkpoint", f"cost_percent_batches_of_{batch}"))
      for batch, name in ((1000, "append_many of 1000"), (100, "append_many of 100"),
                          (1, "append"))],
    Goal("memory of an open store", "<=", 200, "MB", _fact("resident", "opened_bytes", 1e-6)),
    Goal("the same after a scan", "<=", 200, "MB", _fact("resident", "scanned_bytes", 1e-6)),
    Goal("bytes of frames per record", "<=", 112, "B", _fact("space", "frame_bytes_per_record")),
    Goal("growth in memory while appending", "<=", _GROWTH_MIB_MAX, "MiB",
         _fact("memory", "growth_bytes", 1 / (1 << 20))),
]  # fmt: skip


def outcomes(results: Results) -> list[Outcome]:
    """Every goal that this run can say something about."""
    found = [(goal, goal.measure(results)) for goal in GOALS]
    return [Outcome(goal, measured) for goal, measured in found if measured is not None]
