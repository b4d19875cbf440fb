"""The lake against Parquet, and its price for appenders: `python -m benchmarks.lake`.

Rounds are interleaved, and times are medians: the machine is the same for both. A round of ours
plans anew, as a user's query does; so does one of Parquet.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import stratalog
from benchmarks.model import SEED
from benchmarks.spark import spark

_TOPIC = "log"
_BATCH = 100_000
_KEYS = 10_000
_LENGTH = 100
_SHARE = 0.95
"""Number of records that are in the lake."""
_APPENDED = 1000
"""Records of a batch of an appender's."""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lake", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a round of appends")
    parser.add_argument("--scratch", help="where the data goes meanwhile")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        _appends(scratch, given.rounds, given.seconds)
        _reads(scratch, given.records, given.rounds)


def _build(scratch: str, count: int) -> str:
    path = os.path.join(scratch, "store")
    with stratalog.open(path, durability="disk", lake=os.path.join(scratch, "lake")) as store:
        topic = store.create_topic(_TOPIC, lake=True)
        source = np.random.default_rng(SEED)
        keys = pa.array([b"customer-%d" % number for number in range(_KEYS)], pa.binary())
        in_lake = round(count * _SHARE)
        for first in range(0, count, _BATCH):
            if first >= in_lake > first - _BATCH:
                topic.alter(segment_records=max(1, in_lake // 16))
                store.checkpoint()
                store.compact()
                topic.alter(segment_records=1 << 32)
            rows = min(_BATCH, count - first)
            ends = np.arange(0, (rows + 1) * _LENGTH, _LENGTH, dtype=np.int32)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(source.bytes(rows * _LENGTH))]
            chosen = pa.array(source.integers(0, _KEYS, rows))
            topic.append_arrow(
                pa.record_batch(
                    {
                        "key": keys.take(chosen),
                        "value": pa.Array.from_buffers(pa.binary(), rows, buffers),
                    }
                )
            )
        lake = topic.lake()
        print(
            f"{len(topic)} records, {lake.end_offset / len(topic):.1%} of them in "
            f"{len(lake.files())} files of the lake"
        )
    return path


def _reads(scratch: str, count: int, rounds: int) -> None:
    path, copy = _build(scratch, count), os.path.join(scratch, "parquet")
    session = spark()
    stratalog.spark.read(session, path, _TOPIC).write.parquet(copy)
    first, last = count // 2, count // 2 + count // 100
    queries: dict[str, Callable[[Any], Any]] = {
        "sum(length(value))": lambda frame: frame.selectExpr("sum(length(value))").first()[0],
        "count()": lambda frame: frame.count(),
        "groupBy(key).count()": lambda frame: sorted(
            row["count"] for row in frame.groupBy("key").count().collect()
        ),
        "1 % of the offsets": lambda frame: frame.where(
            f"offset >= {first} and offset < {last}"
        ).selectExpr("sum(length(value))").first()[0],
    }  # fmt: skip
    rivals: list[Callable[[], Any]] = [
        lambda: stratalog.spark.read(session, path, _TOPIC),
        lambda: session.read.parquet(copy),
    ]
    for name, query in queries.items():
        times: tuple[list[float], list[float]] = ([], [])
        found = []
        for turn in range(rounds + 1):
            for rival, spent in zip(rivals, times, strict=True):
                begin = time.perf_counter()
                found.append(query(rival()))
                if turn:  # the first is to get warm
                    spent.append(time.perf_counter() - begin)
        assert all(one == found[0] for one in found), f"{name}: results differ"
        ours, parquet = map(statistics.median, times)
        print(f"{name:24} ours {ours:6.3f} s, Parquet {parquet:6.3f} s: {parquet / ours:5.2f}")


def _appends(scratch: str, rounds: int, seconds: float) -> None:
    """How many records a second a thread appends, with a lake and without one."""
    values = [os.urandom(_LENGTH) for _ in range(_APPENDED)]
    rates: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds):
        for has_lake in rates:
            path = os.path.join(scratch, f"{turn}-{has_lake}")
            with stratalog.open(path, durability="disk", lake=f"{path}-lake") as store:
                topic = store.create_topic(_TOPIC, lake=has_lake, segment_bytes=32 << 20)
                begin = time.perf_counter()
                while (spent := time.perf_counter() - begin) < seconds:
                    topic.append_many(values)
                rates[has_lake].append(len(topic) / spent)
    plain, kept = (statistics.median(rates[has_lake]) for has_lake in rates)
    print(f"appends: {plain:,.0f} records/s, {kept:,.0f} with a lake: {kept / plain:.2f}")


if __name__ == "__main__":
    main()
