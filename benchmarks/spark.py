"""Contestants on Spark: a store against native Parquet of the same records, one session for all."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

import stratalog
from benchmarks.model import SEED, NotInstalledError, Trial

CORES = 2
_TOPIC = "log"
_BATCH_BYTES = 10 << 20
_PRUNED_RECORDS = 2_000_000
_PRUNED_SHARE = 0.01
_STEP_NS = 10**6


@functools.cache
def spark() -> Any:
    """The session; its first query is no contestant's."""
    try:
        from stratalog.spark import session

        made = session(f"local[{CORES}]", config={"spark.driver.memory": "3g"})
    except (ImportError, stratalog.UsageError) as error:
        raise NotInstalledError(str(error)) from error
    atexit.register(made.stop)
    made.range(1000).selectExpr("sum(id)").collect()
    return made


def build(path: str, count: int, length: int) -> None:
    """A store of so many random records, none like another, one millisecond apart."""
    source = np.random.default_rng(SEED)
    per_batch = _BATCH_BYTES // length
    with stratalog.open(path, durability="disk") as store:
        topic = store.topic(_TOPIC)
        for first in range(0, count, per_batch):
            rows = min(per_batch, count - first)
            ends = np.arange(0, (rows + 1) * length, length, dtype=np.int32)
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(source.bytes(rows * length))]
            values = pa.Array.from_buffers(pa.binary(), rows, buffers)
            times = 10**18 + _STEP_NS * np.arange(first, first + rows, dtype=np.int64)
            stamps = pa.array(times).cast(pa.timestamp("ns", tz="UTC"))
            topic.append_arrow(pa.record_batch({"value": values, "timestamp": stamps}))


@contextmanager
def read_store(
    directory: str, *, count: int, length: int, columns: Sequence[str] | None
) -> Iterator[Trial]:
    """`sum(length(value))` of a topic; every checksum is verified."""
    spark()
    build(directory, count, length)

    def frame() -> Any:
        return stratalog.spark.read(spark(), directory, _TOPIC, columns=columns)

    yield Trial(lambda: _sum(frame(), count, length))


@contextmanager
def read_parquet(directory: str, *, count: int, length: int) -> Iterator[Trial]:
    """Read Parquet that Spark wrote, with all columns of the topic."""
    store, copy = os.path.join(directory, "store"), os.path.join(directory, "parquet")
    spark()
    build(store, count, length)
    stratalog.spark.read(spark(), store, _TOPIC).write.parquet(copy)
    shutil.rmtree(store)
    yield Trial(lambda: _sum(spark().read.parquet(copy), count, length))


def _sum(frame: Any, count: int, length: int) -> int:
    found = frame.selectExpr("sum(length(value))").first()[0]
    assert found == count * length, f"{found} bytes of {count * length} were found"
    return count


def pruning(directory: str) -> dict[str, Any]:
    """Count what a range of one percent of the time reads, by the reader's own count."""
    from stratalog.spark.source.plan import make_tasks, open_view, resolve, spans_of
    from stratalog.spark.source.read_options import ReadOptions
    from stratalog.spark.source.read_task import PieceReader

    build(directory, _PRUNED_RECORDS, 100)
    start = 10**12 + _PRUNED_RECORDS // 2
    end = start + round(_PRUNED_RECORDS * _PRUNED_SHARE)
    given = {"startingTimestamp": start, "endingTimestamp": end}
    plan = stratalog.spark.explain(directory, _TOPIC, **given)
    texts = {name: str(value) for name, value in given.items()}
    options = ReadOptions.parse(texts | {"path": directory, "topic": _TOPIC})
    with open_view(options) as view:
        (wanted,) = resolve(view, [_TOPIC], options)
        (task, *more) = make_tasks(view, list(spans_of(wanted)), options, 0)
    assert not more
    reader = PieceReader(task)
    records = sum(
        end - first for piece in task.pieces for (_, first, end), *_ in reader.read(piece)
    )
    reader.close()
    return {
        "records_share": records / _PRUNED_RECORDS,
        "planned_bytes_share": plan.bytes / plan.total_bytes,
        "read_bytes_share": reader.bytes / plan.total_bytes,
    }
