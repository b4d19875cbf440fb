"""Key compaction on Spark: the last record of each key in a whole topic.

Every piece returns its keys, each once, with the last offset; Spark finds the last of all; the
result is a set of offsets per segment, small enough for a driver.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from stratalog.format.arrow import schema, to_arrow
from stratalog.segments.rewrite import tombstones
from stratalog.spark.source.read_task import PieceReader, Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LAST = pa.schema(
    [
        ("topic_id", pa.int64()),
        ("key", pa.binary()),
        ("offset", pa.int64()),
        ("deleted_at", pa.int64()),
    ]
)
_FOUND = pa.schema([("topic_id", pa.int64()), ("segment", pa.int64()), ("offsets", pa.binary())])
_KEYS = schema(["key", "offset"])

# Rows that are gathered before they are reduced to one per key.
_ROWS_MAX = 1 << 20


class Compacted(NamedTuple):
    """A topic whose keys are to be compacted."""

    topic_id: int
    firsts: tuple[int, ...]
    """First offsets of its sealed segments."""
    end: int
    """Where they end; later records stay, and replace earlier ones."""
    grace_ns: int
    """How long the deletion of a key is kept; -1 for ever."""


class Staying(NamedTuple):
    """The records of a segment that stay."""

    winners: BitMap64
    """Offsets of the last records of their keys."""
    unkeyed: int
    """Number of records without a key, which all stay."""

    @property
    def records(self) -> int:
        """Number of records that stay."""
        return len(self.winners) + self.unkeyed


def find_winners(
    spark: SparkSession, tasks: list[Task], topics: Sequence[Compacted], now: int
) -> dict[tuple[int, int], Staying]:
    """Find what stays, by topic and first offset of the segment that has it."""
    from pyspark.sql import functions as f

    def find_keys(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from last_of_keys(tasks[number])

    def gather(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return group_winners(batches, topics, now)

    numbers = spark.range(0, len(tasks), 1, len(tasks))
    keys = numbers.mapInArrow(find_keys, "topic_id long, key binary, offset long, deleted_at long")
    apart = keys.repartition(len(tasks), "topic_id", "key")
    newest = apart.groupBy("topic_id", "key").agg(
        f.max(f.struct("offset", "deleted_at")).alias("last")
    )
    rows = newest.select("topic_id", "last.offset", "last.deleted_at").mapInArrow(
        gather, "topic_id long, segment long, offsets binary"
    )
    found: dict[tuple[int, int], Staying] = {}
    for id, segment, data in rows.collect():
        key = (_mirrored(id) if id < 0 else id, segment)
        winners, unkeyed = found.get(key, Staying(BitMap64(), 0))
        if id < 0:
            found[key] = Staying(winners, unkeyed + int.from_bytes(data, "little"))
        else:
            found[key] = Staying(winners | BitMap64.deserialize(bytes(data)), unkeyed)
    return found


def _mirrored(id: int) -> int:
    """Return a number that is no topic's: rows with it count records without a key."""
    return -1 - id


def last_of_keys(task: Task) -> Iterator[pa.RecordBatch]:
    """Give every key of the pieces of a task once, with its last record; on an executor.

    A deleted record replaces nothing, and is left out.
    """
    reader = PieceReader(task)
    try:
        for piece in task.pieces:
            gathered: list[pa.RecordBatch] = []
            rows, limit, unkeyed = 0, _ROWS_MAX, 0
            for part, keep, _ in reader.read(piece):
                batch, first, end = part
                if batch.key is None:
                    unkeyed += end - first if keep is None else int(keep.sum())
                    continue
                table = to_arrow(batch, _KEYS, first, end)
                times = tombstones(part)
                times = np.zeros(end - first, np.int64) if times is None else times
                one = pa.RecordBatch.from_arrays(
                    [*table.columns, pa.array(times)], names=["key", "offset", "deleted_at"]
                )
                one = one if keep is None else one.filter(pa.array(keep))
                gathered.append(one.filter(one.column("key").is_valid()))
                unkeyed += one.num_rows - gathered[-1].num_rows
                rows += gathered[-1].num_rows
                if rows > limit:
                    gathered = _last(gathered).to_batches()
                    rows = sum(some.num_rows for some in gathered)
                    limit = max(_ROWS_MAX, 2 * rows)
            place = piece.start.to_bytes(8, "big")
            yield pa.RecordBatch.from_pylist(
                [
                    {"topic_id": _mirrored(piece.topic_id), "key": place, "offset": piece.start,
                     "deleted_at": unkeyed}
                ],
                schema=_LAST,
            )  # fmt: skip
            if gathered:
                for last in _last(gathered).to_batches(max_chunksize=1 << 16):
                    ids = pa.repeat(pa.scalar(piece.topic_id, pa.int64()), last.num_rows)
                    yield pa.RecordBatch.from_arrays([ids, *last.columns], schema=_LAST)
    finally:
        reader.close()


def _last(parts: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(parts)
    grouped = table.group_by("key", use_threads=False)  # one thread keeps the order
    found = grouped.aggregate([("offset", "last"), ("deleted_at", "last")])
    return found.select(["key", "offset_last", "deleted_at_last"])


def group_winners(
    batches: Iterable[pa.RecordBatch], topics: Sequence[Compacted], now: int
) -> Iterator[pa.RecordBatch]:
    """Collect the last records of keys as sets of offsets per segment; on an executor.

    Leaves out records that are not in sealed segments, and deletions that are old enough.
    """
    known = {one.topic_id: one for one in topics}
    sets: dict[tuple[int, int], BitMap64] = {}
    counts: dict[tuple[int, int], int] = {}
    for batch in batches:
        ids = batch.column(0).to_numpy()
        offsets, times = batch.column(1).to_numpy(), batch.column(2).to_numpy()
        for id in np.unique(ids).tolist():
            topic = known[_mirrored(id) if id < 0 else id]
            if id < 0:
                for offset, count in zip(offsets[ids == id], times[ids == id], strict=True):
                    first = topic.firsts[bisect_right(topic.firsts, int(offset)) - 1]
                    counts[id, first] = counts.get((id, first), 0) + int(count)
                continue
            stays = (ids == id) & (offsets < topic.end)
            if topic.grace_ns >= 0:
                stays &= (times == 0) | (times + topic.grace_ns > now)
            chosen = np.sort(offsets[stays])
            places = np.searchsorted(np.array(topic.firsts), chosen, side="right") - 1
            for place in np.unique(places).tolist():
                some = BitMap64(chosen[places == place].tolist())
                key = (id, topic.firsts[place])
                sets[key] = sets[key] | some if key in sets else some
    found = [(*key, bytes(offsets_set.serialize())) for key, offsets_set in sets.items()]
    found += [(*key, count.to_bytes(8, "little")) for key, count in counts.items()]
    for id, first, data in found:
        row = {"topic_id": id, "segment": first, "offsets": data}
        yield pa.RecordBatch.from_pylist([row], schema=_FOUND)
