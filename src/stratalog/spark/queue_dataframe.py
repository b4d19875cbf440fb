"""A queue as a DataFrame: every message that is not consumed, with its state.

The driver knows consumed and pending messages as sets of offsets. Executors read the messages and
look theirs up in these sets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pyroaring import BitMap64

from stratalog.errors import WrongKindError
from stratalog.segments.read import offsets_between
from stratalog.spark.dataframes import Path, read
from stratalog.state.group_state import QUEUE, GroupState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_MORE = {
    "state": "string", "consumer": "string", "delivery_count": "integer", "deadline": "timestamp",
}  # fmt: skip


class _Standing(NamedTuple):
    """The state of a queue's messages at one moment."""

    waiting: bytes
    """The offsets, as a set."""
    delayed: bytes
    held: dict[int, tuple[str, str, int, int]]
    """For delivered messages: state, consumer, delivery count, and deadline."""


def queue(
    spark: SparkSession,
    path: Path,
    name: str,
    *,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Read the messages of a queue that are not consumed, each with its current state.

    `state` is `waiting`, `delayed` (put or given back with a delay) or `pending` (a consumer has
    it). `consumer`, `delivery_count` and `deadline` are those of its last delivery. `columns`
    selects columns of the messages; `options` are those of the data source.
    """
    from stratalog.spark.source.columns import COLUMNS, schema_of
    from stratalog.spark.source.plan import open_view
    from stratalog.spark.source.read_options import ReadOptions

    wanted = ReadOptions.parse({"path": os.fspath(path), "topic": name})
    with open_view(wanted) as view:
        topic = view.catalog.find(name)
        if topic.kind != QUEUE:
            raise WrongKindError(
                f"{name!r} is a {topic.kind}, not a queue: read it with stratalog.spark.read"
            )
        state = topic.groups.find("", is_queue=True)
        floor = max(topic.earliest, topic.committed if state is None else state.floor())
        ends = {"startingOffsets": {name: floor}, "endingOffsets": {name: topic.committed}}
        standing = _standing(state, time.time_ns())
    chosen = list(COLUMNS if columns is None else columns)
    needed = [*chosen, *(["offset"] if "offset" not in chosen else [])]
    messages = read(spark, path, name, columns=needed, **(options | ends))
    # Not asked of Spark, which analyses no query in the functions of a declared pipeline.
    schema = schema_of(chosen)
    for column, kind in _MORE.items():
        schema = schema.add(column, kind)
    return messages.mapInArrow(_looked_up(standing, chosen), schema)


def _standing(state: GroupState | None, now: int) -> _Standing:
    waiting, delayed = BitMap64(), BitMap64()
    held: dict[int, tuple[str, str, int, int]] = {}
    if state is None:
        return _Standing(waiting.serialize(), delayed.serialize(), held)
    for bits in state.waiting.values():
        waiting |= bits
    delayed.update(state.delays.offsets().tolist())
    waiting.update(state.delays.pop_due(now)[0].tolist())  # this view is not shared
    delayed -= waiting
    for offset, lease in state.pending.items():
        where = "waiting" if lease.deadline <= now else "pending" if lease.consumer else "delayed"
        held[offset] = (where, lease.consumer, lease.delivery_count, lease.deadline)
    return _Standing(waiting.serialize(), delayed.serialize(), held)


def _looked_up(
    standing: _Standing, columns: list[str]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Build the function that an executor applies to the messages it reads."""

    def look_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        waiting = BitMap64.deserialize(standing.waiting)
        delayed = BitMap64.deserialize(standing.delayed)
        for batch in batches:
            offsets = batch.column("offset").to_numpy()
            if not len(offsets):
                continue
            first, end = int(offsets.min()), int(offsets.max()) + 1
            is_waiting = np.isin(offsets, offsets_between(waiting, first, end))
            is_delayed = np.isin(offsets, offsets_between(delayed, first, end))
            known = [standing.held.get(offset) for offset in offsets.tolist()]
            states = np.where(is_waiting, "waiting", "delayed").astype(object)
            is_held = np.array([one is not None for one in known], np.bool_)
            states[is_held] = [one[0] for one in known if one is not None]
            keep = is_waiting | is_delayed | is_held
            deadlines = [None if one is None or not one[3] else one[3] // 1000 for one in known]
            more = {
                "state": pa.array(states, pa.string()),
                "consumer": pa.array(
                    [one[1] or None if one else None for one in known], pa.string()
                ),
                "delivery_count": pa.array([one[2] if one else 0 for one in known], pa.int32()),
                "deadline": pa.array(deadlines, pa.timestamp("us", tz="UTC")),
            }
            arrays = [batch.column(name) for name in columns]
            found = pa.RecordBatch.from_arrays(
                [*arrays, *more.values()], names=[*columns, *more]
            )  # fmt: skip
            yield found.filter(pa.array(keep))

    return look_up
