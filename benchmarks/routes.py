"""Routes: how fast a backlog is forwarded, and what a source's appends feel of it."""

from __future__ import annotations

import os
import time
from typing import Any

import stratalog
from benchmarks.latency import percentile
from benchmarks.model import records
from benchmarks.own import LOG_ALONE

BACKLOG_RECORDS = 2_000_000
RATE = 500_000
"""Records a second that the source gets."""
SECONDS = 3.0
BATCHES = (1, 100)
"""Records of an append; 1 is `append`."""


def routes(rounds: int, directory: str) -> dict[str, Any]:
    """Forward a backlog, then append at a fixed rate without a route and with one, in turns."""
    facts: dict[str, Any] = {"rounds": rounds, "rate": RATE}
    facts["backlog_records_per_second"] = max(
        _backlog(os.path.join(directory, f"backlog-{number}")) for number in range(rounds)
    )
    for batch in BATCHES:
        taken: dict[bool, list[list[float]]] = {False: [], True: []}
        for number in range(rounds):
            for is_routed in (False, True):
                path = os.path.join(directory, f"{batch}-{number}-{is_routed}")
                taken[is_routed].append(_appends(path, batch, is_routed=is_routed))
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            # The best round of each: what else the machine does comes on top of it.
            alone, beside = (
                min(percentile(seconds, share) for seconds in taken[is_routed])
                for is_routed in (False, True)
            )
            facts[f"{name}_us_{batch}"] = alone * 1e6
            facts[f"{name}_us_{batch}_routed"] = beside * 1e6
            facts[f"{name}_ratio_{batch}"] = beside / alone
    return facts


def _backlog(path: str) -> float:
    """Records a second."""
    with stratalog.open(path, durability="disk", **LOG_ALONE) as store:
        topic = store.topic("source")
        for _ in range(BACKLOG_RECORDS // 1000):
            topic.append_many(records(1000))
        store.sync()
        begin = time.perf_counter()
        assert store.route("source", "destination").wait(600.0)
        return BACKLOG_RECORDS / (time.perf_counter() - begin)


def _appends(path: str, batch: int, *, is_routed: bool) -> list[float]:
    """Seconds of each append, at a fixed rate of records."""
    with stratalog.open(path, durability="disk", **LOG_ALONE) as store:
        topic = store.topic("source")
        if is_routed:
            store.route("source", "destination")
        values = records(batch)
        append: Any = topic.append if batch == 1 else topic.append_many
        given: Any = values[0] if batch == 1 else values
        now, taken, done = time.perf_counter, [], 0
        begin = now()
        while (elapsed := now() - begin) < SECONDS:
            due = int(elapsed * RATE)
            if done >= due:
                time.sleep(0.0001)
            while done < due:
                start = now()
                append(given)
                taken.append(now() - start)
                done += batch
        return taken
