"""Rewriting sealed segments: without what was deleted, and without what a later record replaced.

Owns: `<offset>.tmp` beside the segment it is to replace.

Invariants:
- A rewritten segment answers for the same offsets, and its records keep theirs.
- The deletion of a key goes only when every older record of the key has gone before it.

Concurrency: one thread at a time rewrites; readers go on with the segment they hold.
Crash: the old segment is there until the rename, which puts the whole new one in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from stratalog.format.batch import Batch
from stratalog.format.merge import Block, Part, merge
from stratalog.log.topic import TopicLog
from stratalog.memory import MemoryBudget
from stratalog.model import Gap, Operation
from stratalog.segments.checkpoint import BATCH_BYTES
from stratalog.segments.read import deleted_mask, read_batches
from stratalog.segments.segment import Segment, Slice
from stratalog.segments.writer import SegmentWriter

# What a key takes besides its bytes: an object, and its place in a set.
_KEY_BYTES = 100

Mask = npt.NDArray[np.bool_]
Dead = Callable[[Slice], "Mask | None"]
"""Which records of a slice are to go; None for none."""


def reclaim(topic: TopicLog, now: int, dead_ratio: float) -> int:
    """Rewrite segments of which at least so much was deleted; returns the bytes that came back."""
    history = topic.history
    deleted = history.deleted
    dead = _those_in(deleted)
    freed = 0
    for segment in history.chain.segments:
        if segment.is_open or segment.is_cold or segment.end <= topic.earliest:
            continue
        count = deleted.range_cardinality(segment.first, segment.end)
        known = history.examined.get(segment.first, 0)
        if not segment.summary.records or count - known < dead_ratio * segment.summary.records:
            continue
        present = _count(segment, dead)
        if present and present >= dead_ratio * segment.summary.records:
            freed += rewrite(topic, segment, dead, now)
        history.examined[segment.first] = count  # not before: what failed is tried again
    return freed


def compact(topic: TopicLog, now: int, dirty_ratio: float, budget: MemoryBudget) -> int:
    """Keep the last record of every key; returns the bytes that came back.

    Only if at least so much of the topic is new since the last time. All keys are in memory
    meanwhile: raises `MemoryPressureError` if that is more than the store may hold.
    """
    history = topic.history
    segments = [segment for segment in history.chain.segments if not segment.is_open]
    total = sum(segment.summary.bytes for segment in segments)
    new = sum(s.summary.bytes for s in segments if s.first >= history.compacted_below)
    is_due = 0 < history.tombstone_due <= now
    if not segments or (not is_due and (not new or new < dirty_ratio * total)):
        return 0
    keys = _Keys(budget)
    try:
        replaced, due = _replaced(topic, segments, now, keys)
    finally:
        keys.release()
    dead = _those_in(replaced)
    freed = 0
    # Oldest first: what a deleted key once was goes before the deletion does.
    for segment in segments:
        if replaced.range_cardinality(segment.first, segment.end):
            freed += rewrite(topic, segment, dead, now)
    history.compacted_below = segments[-1].end
    history.tombstone_due = due
    return freed


class _Keys:
    """Keys that were seen, within the memory budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._bytes = 0
        self.seen: set[bytes | None] = set()

    def make_room(self, keys: list[bytes | None]) -> None:
        """See that there is memory for those of the keys that are new."""
        new = set(keys) - self.seen
        total = sum(len(key or b"") + _KEY_BYTES for key in new)
        self._budget.ensure("io", total)
        self._budget.add("io", total)
        self._bytes += total

    def release(self) -> None:
        """They are no longer needed."""
        self._budget.add("io", -self._bytes)
        self._bytes = 0


def _replaced(
    topic: TopicLog, segments: list[Segment], now: int, memory: _Keys
) -> tuple[BitMap64, int]:
    """Offsets in sealed segments that a later record of the same key replaces.

    And when the first of the deletions that stay may go; 0 for none. A record that somebody
    deleted replaces nothing.
    """
    deleted = topic.history.deleted
    due = 0
    seen = memory.seen
    replaced = BitMap64()
    grace_ns = round(topic.options.tombstone_seconds * 10**9)
    start = segments[-1].end
    for part in read_batches(topic, start, topic.committed):
        if not isinstance(part, Gap):
            memory.make_room(_keys(part))
            for key, offset in zip(_keys(part), _offsets(part), strict=True):
                if not deleted or offset not in deleted:
                    seen.add(key)
    for segment in reversed(segments):
        for part in reversed(list(segment.batches(segment.first, segment.end))):
            keys, offsets = _keys(part), _offsets(part)
            memory.make_room(keys)
            deleted_at = tombstones(part)
            for index in range(len(keys) - 1, -1, -1):
                key, offset = keys[index], offsets[index]
                if key is None or (deleted and offset in deleted):
                    continue
                if key in seen:
                    replaced.add(offset)
                    continue
                seen.add(key)
                if deleted_at is not None and deleted_at[index]:
                    goes_at = int(deleted_at[index]) + grace_ns
                    if goes_at <= now:
                        replaced.add(offset)
                    else:
                        due = min(due or goes_at, goes_at)
    return replaced, due


def _keys(part: Slice) -> list[bytes | None]:
    return part.batch.keys(part.first, part.end)


def _offsets(part: Slice) -> list[int]:
    offsets: list[int] = part.batch.offsets(part.first, part.end).tolist()
    return offsets


def tombstones(part: Slice) -> npt.NDArray[np.int64] | None:
    """The times of those records that are deletions of a key, 0 for others; None for none."""
    batch, first, end = part
    is_tombstone = np.zeros(end - first, np.bool_)
    if batch.operation is not None:
        is_tombstone |= batch.operation[first:end] == Operation.DELETE
    if batch.value.validity >= 0:
        is_tombstone |= ~batch.valid(batch.value)[first:end]
    if not is_tombstone.any():
        return None
    times: npt.NDArray[np.int64] = np.where(is_tombstone, batch.timestamps(first, end), 0)
    return times


def _those_in(offsets: BitMap64) -> Dead:
    """The records whose offset is in a set."""
    return lambda part: deleted_mask(offsets, part.batch.offsets(part.first, part.end))


def _count(segment: Segment, dead: Dead) -> int:
    masks = (dead(part) for part in segment.batches(segment.first, segment.end))
    return sum(int(mask.sum()) for mask in masks if mask is not None)


def rewrite(topic: TopicLog, segment: Segment, dead: Dead, now: int) -> int:
    """Put a segment without its dead records in its place; returns the bytes that came back."""
    history = topic.history
    pool = history.pool
    writer = SegmentWriter(
        pool.fs, history.directory, topic.id, segment.first, segment.summary.created_at, ".tmp"
    )
    writer.create()
    try:
        slices = segment.batches(segment.first, segment.end)
        for block in rewritten(((part, dead(part)) for part in slices), topic.codec):
            writer.append(block)
        summary = writer.seal(segment.end, now)
    except BaseException:
        writer.close()
        pool.fs.unlink(writer.path)
        raise
    history.replace(pool.segment(topic.id, summary))
    pool.forget(segment)
    return segment.summary.bytes - summary.bytes


def rewritten(parts: Iterable[tuple[Slice, Mask | None]], codec: int) -> Iterator[Block]:
    """What is left of records, each slice with those of it that are to go, in large batches."""
    kept: list[Part] = []
    size = 0
    for part, dead in parts:
        if dead is not None and dead.all():
            continue
        kept.append(Part(*part, None if dead is None else ~dead))
        size += _share(part.batch, dead)
        if size >= BATCH_BYTES:
            yield merge(kept, codec)
            kept, size = [], 0
    if kept:
        yield merge(kept, codec)


def _share(batch: Batch, dead: Mask | None) -> int:
    """About how many bytes of a batch are left."""
    left = 1.0 if dead is None else 1.0 - float(dead.mean())
    return int(batch.size * left)
