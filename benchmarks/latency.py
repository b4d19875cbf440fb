"""Measurements per call, or side by side: point reads, tails of appends, checkpoints.

Probes and not workloads: a contestant's round is one number, and here either every call is one, or
what is compared has to run at the same time or with a store of its own.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import stratalog
from benchmarks.model import SEED, records
from benchmarks.own import LOG_ALONE, child
from benchmarks.sealed import TOPIC, build

POINT_READS = 2_000

COLD_RECORDS = 2_000_000
COLD_SEGMENT_RECORDS = 500_000
COLD_SCANNERS = 8
COLD_APPENDS = {"disk": 100_000, "fsync": 1_000}

CHECKPOINT_RECORDS = {1000: 2_000_000, 100: 1_000_000, 1: 500_000}
"""Appended in a round, by records of a batch; 1 is `append`."""

RESIDENT_TOPICS = 100


def points(count: int, rounds: int, directory: str) -> dict[str, Any]:
    """One record by its offset, and one offset by a time, both at random: microseconds a call."""
    path = os.path.join(directory, "store")
    build(path, count)
    source = random.Random(SEED)
    reads: list[float] = []
    finds: list[float] = []
    with stratalog.open(path) as store:
        topic = store.topic(TOPIC)
        first, last = (next(_records(topic, offset)).timestamp for offset in (0, count - 1))
        for _ in range(rounds):
            offsets = [source.randrange(count) for _ in range(POINT_READS)]
            reads += _each(lambda offset: list(topic.read(offset, limit=1)), offsets)
            times = [source.randrange(first, last) / 1e9 for _ in range(POINT_READS)]
            finds += _each(topic.offset_at, times)
    return {
        "records": count,
        "calls": len(reads),
        "read_us": _median(reads),
        "read_us_p99": percentile(reads, 0.99) * 1e6,
        "offset_at_us": _median(finds),
        "offset_at_us_p99": percentile(finds, 0.99) * 1e6,
    }


def cold(rounds: int, directory: str) -> dict[str, Any]:
    """Appends of one thread alone, and while others scan what is in the cold store: p99."""
    facts: dict[str, Any] = {"rounds": rounds, "scanners": COLD_SCANNERS}
    for durability, appends in COLD_APPENDS.items():
        own = os.path.join(directory, durability)
        options = {"cold": os.path.join(own, "cold"), "hot_segments": 0, **LOG_ALONE}
        with stratalog.open(os.path.join(own, "store"), durability="disk", **options) as store:
            topic = store.create_topic(TOPIC, segment_records=COLD_SEGMENT_RECORDS)
            for _ in range(COLD_RECORDS // 1000):
                topic.append_many(records(1000))
            store.compact()
            moved = topic.stats().cold_segments
            assert moved * COLD_SEGMENT_RECORDS == COLD_RECORDS, f"{moved} segments are cold"
            append = store.create_topic("appended", durability=durability).append
            alone, beside, rates = [], [], []
            means: list[tuple[float, float]] = []
            for _ in range(rounds):
                taken = _each(append, records(appends))
                with _scanning(topic, COLD_SCANNERS) as scanned:
                    begin, before = time.perf_counter(), scanned()
                    slower = _each(append, records(appends))
                    rates.append((scanned() - before) / (time.perf_counter() - begin))
                alone.append(percentile(taken, 0.99))
                beside.append(percentile(slower, 0.99))
                means.append((statistics.mean(taken), statistics.mean(slower)))
        ratios = [two / one for one, two in zip(alone, beside, strict=True)]
        facts |= {
            f"{durability}_p99_us_alone": _median(alone),
            f"{durability}_p99_us_beside": _median(beside),
            f"{durability}_p99_ratio": statistics.median(ratios),
            # Of class disk one append in a thousand writes, which no p99 sees; the mean does.
            f"{durability}_mean_us_alone": _median([one for one, _ in means]),
            f"{durability}_mean_us_beside": _median([two for _, two in means]),
            f"{durability}_scanned_per_second": statistics.median(rates),
        }
        shutil.rmtree(own)
    return facts


def checkpoints(rounds: int, directory: str) -> dict[str, Any]:
    """Measure what checkpoints in the background cost concurrent appends.

    Every round has a new store, and closes it before the next: no round pays for another.
    """
    path = os.path.join(directory, "store")
    facts: dict[str, Any] = {"rounds": rounds}
    for batch, count in CHECKPOINT_RECORDS.items():
        times: dict[str, list[float]] = {"with": [], "without": []}
        for number in range(rounds):
            for name in sorted(times, reverse=bool(number % 2)):
                options = LOG_ALONE if name == "without" else {}
                with stratalog.open(path, durability="disk", **options) as store:
                    times[name].append(_append(store.topic(TOPIC), batch, count))
                shutil.rmtree(path)
                os.sync()
        ratios = [one / two for one, two in zip(times["without"], times["with"], strict=True)]
        facts |= {
            f"ns_without_batches_of_{batch}": statistics.median(times["without"]) * 1e9 / count,
            f"ns_with_batches_of_{batch}": statistics.median(times["with"]) * 1e9 / count,
            f"cost_percent_batches_of_{batch}": 100 * (1 - statistics.median(ratios)),
        }
    return facts


def resident(count: int, directory: str) -> dict[str, Any]:
    """Resident memory of a child that opens a store and scans all of it."""
    path = os.path.join(directory, "store")
    build(path, count, topics=RESIDENT_TOPICS)
    finished = child("resident", path)
    if finished.returncode:
        raise RuntimeError(f"the child that measures memory failed:\n{finished.stderr}")
    return {"records": count, **json.loads(finished.stdout)}


def percentile(values: list[float], share: float) -> float:
    """The value below which that share of them is."""
    return sorted(values)[int(len(values) * share)]


def _median(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e6


def _records(topic: stratalog.Topic, start: int) -> Iterator[stratalog.Record]:
    return (item for item in topic.read(start) if isinstance(item, stratalog.Record))


def _each(call: Callable[[Any], object], arguments: list[Any]) -> list[float]:
    """Seconds of each call."""
    now = time.perf_counter
    taken = []
    for argument in arguments:
        begin = now()
        call(argument)
        taken.append(now() - begin)
    return taken


def _append(topic: stratalog.Topic, batch: int, count: int) -> float:
    """Seconds until all of them can be read."""
    values = records(batch)
    begin = time.perf_counter()
    if batch == 1:
        for _ in range(count):
            topic.append(values[0])
    else:
        for _ in range(count // batch):
            topic.append_many(values)
    len(topic)
    return time.perf_counter() - begin


@contextmanager
def _scanning(topic: stratalog.Topic, threads: int) -> Iterator[Callable[[], int]]:
    """Threads that read everything of a topic over and over; gives how many records so far."""
    is_over = threading.Event()
    counts = [0] * threads

    def scan(number: int) -> None:
        while not is_over.is_set():
            for batch in topic.read_arrow():
                counts[number] += batch.num_rows
                if is_over.is_set():
                    return

    scanners = [threading.Thread(target=scan, args=(number,)) for number in range(threads)]
    for scanner in scanners:
        scanner.start()
    try:
        yield lambda: sum(counts)
    finally:
        is_over.set()
        for scanner in scanners:
            scanner.join()
