"""How fast Spark writes topics and Parquet: `python -m benchmarks.spark_write`.

Both write the same DataFrame, read from Parquet in the page cache, in turn, so that what else the
machine does meanwhile hits both. Parquet is written as Spark does it by itself, uncompressed, and
never synced; topics are synced, published, adopted and in segments when the write returns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import stratalog
from benchmarks import machine
from stratalog.spark import session

SEED = 20250101
SIZES = {100: 10_000_000, 1024: 1_000_000}
"""Records of each length, in a full run."""
GOAL = 0.9
_ROW_GROUP_BYTES = 128 << 20


def prepare(directory: str, length: int, count: int) -> str:
    """The input: so many random records, in as many files as there are cores."""
    path = os.path.join(directory, f"input-{length}")
    os.makedirs(path)
    rng = np.random.default_rng(SEED)
    cores = 2
    for number in range(cores):
        rows = count // cores
        ends = np.arange(0, (rows + 1) * length, length, dtype=np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(rng.bytes(rows * length))]
        values = pa.Array.from_buffers(pa.binary(), rows, buffers)
        table = pa.table({"value": values})
        pq.write_table(
            table, f"{path}/{number}.parquet", compression="none", use_dictionary=False,
            row_group_size=_ROW_GROUP_BYTES // length,
        )  # fmt: skip
    return path


def write_parquet(frame: Any, target: str) -> None:
    """As Spark does it."""
    frame.write.option("compression", "none").parquet(target)


def write_topic(frame: Any, target: str) -> None:
    """As we do it."""
    frame.write.format("stratalog").mode("append").option("topic", "log").save(target)


def timed(write: Any, frame: Any, directory: str) -> float:
    """Seconds of one write to a place of its own."""
    target = os.path.join(directory, "target")
    begin = time.perf_counter()
    write(frame, target)
    seconds = time.perf_counter() - begin
    if write is write_topic:
        with stratalog.open(target, read_only=True) as store:
            assert store.topic("log").next_offset == frame.count()
    shutil.rmtree(target)
    return seconds


def main() -> int:
    """Run it; a missed goal is no failure: machines are noisy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_write", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--scratch", default=None, help="where the data goes meanwhile")
    parser.add_argument("--out", default=None, help="a file for the figures, as JSON")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        results["machine"] = machine.facts(scratch)
        spark = session("local[2]", config={"spark.driver.memory": "3g"})
        for length, full in SIZES.items():
            count = int(full * options.scale) // 2 * 2
            frame = spark.read.parquet(prepare(scratch, length, count))
            times: dict[str, list[float]] = {"parquet": [], "stratalog": []}
            for turn in range(options.rounds + 1):
                for name, write in (("parquet", write_parquet), ("stratalog", write_topic)):
                    seconds = timed(write, frame, scratch)
                    if turn:  # the first is for Java to find its way
                        times[name].append(seconds)
            ratios = [p / s for p, s in zip(times["parquet"], times["stratalog"], strict=True)]
            ratio = statistics.median(ratios)
            rates = {name: count / statistics.median(some) for name, some in times.items()}
            results[str(length)] = {"records": count, "seconds": times, "ratio": ratio}
            print(
                f"{length} B: {rates['stratalog'] / 1e6:.2f} M records/s "
                f"({rates['stratalog'] * length / 1e6:.0f} MB/s), Parquet "
                f"{rates['parquet'] / 1e6:.2f} M; ratio {ratio:.2f} "
                f"({'met' if ratio >= GOAL else 'missed'}: {GOAL})",
                flush=True,
            )
        spark.stop()
    if options.out:
        with open(options.out, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
