"""Rewriting sealed segments: without what was deleted, and without what a later record replaced.

Segments that are left without records join the one before them: their number is bounded.

Owns: `<offset>.tmp` beside the segment it is to replace.

Invariants:
- A rewritten segment answers for the same offsets, and its records keep theirs. One that stands for
  several answers for the offsets of all of them.
- The deletion of a key goes only when every older record of the key has gone before it.

Concurrency: one thread at a time rewrites; readers go on with the segment they hold.
Crash: the old segment is there until the rename, which puts the whole new one in its place. Those
that it covers go after that; opening the store removes what is left of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from stratalog.format.batch import Batch
from stratalog.format.merge import Block, Part, merge
from stratalog.format.segment import Summary
from stratalog.log.topic import TopicLog
from stratalog.memory_budget import MemoryBudget
from stratalog.model import Gap, Operation
from stratalog.segments.checkpoint import BATCH_BYTES
from stratalog.segments.exchange import take_over
from stratalog.segments.read import deleted_mask, read_batches
from stratalog.segments.segment import Segment, Slice
from stratalog.segments.topic_segments import History
from stratalog.segments.writer import SegmentWriter

# Bytes of a key besides its own: an object, and its place in a set.
_KEY_BYTES = 100
# A segment that is written again because one without records follows it. To sync a file and its
# directory takes longer than to write so much.
_SMALL_BYTES = 1 << 16

Mask = npt.NDArray[np.bool_]
Dead = Callable[[Slice], "Mask | None"]
"""Returns which records of a slice are to be removed; None for none."""


def reclaim(topic: TopicLog, now: int, dead_ratio: float) -> int:
    """Rewrite segments of which at least `ratio` was deleted; returns the bytes freed."""
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
        history.examined[segment.first] = count  # last: a failure is tried again
    return freed


def compact(topic: TopicLog, now: int, dirty_ratio: float, budget: MemoryBudget) -> int:
    """Keep the newest records of every key, as many as the topic says; returns the bytes freed.

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
    replaced, due = find_replaced(topic, segments, now, budget)
    dead = _those_in(replaced)
    freed = 0
    # Oldest first: what a deleted key once was goes before the deletion does.
    for segment in segments:
        if replaced.range_cardinality(segment.first, segment.end):
            freed += rewrite(topic, segment, dead, now)
    history.compacted_below = segments[-1].end
    history.tombstone_due = due
    return freed


def find_replaced(
    topic: TopicLog, segments: list[Segment], now: int, budget: MemoryBudget
) -> tuple[BitMap64, int]:
    """Offsets in sealed segments that a later record of the same key replaces.

    And when the first of the deletions that stay may go; 0 for none.
    """
    keys = _Keys(budget)
    try:
        return _replaced(topic, segments, now, keys)
    finally:
        keys.release()


class _Keys:
    """Counts of records by key, within the memory budget."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._bytes = 0
        self.seen: dict[bytes | None, int] = {}

    def make_room(self, keys: list[bytes | None]) -> None:
        """Reserve memory for new keys."""
        new = set(keys) - self.seen.keys()
        total = sum(len(key or b"") + _KEY_BYTES for key in new)
        self._budget.ensure("io", total)
        self._budget.add("io", total)
        self._bytes += total

    def release(self) -> None:
        """Release the memory."""
        self._budget.add("io", -self._bytes)
        self._bytes = 0


def _replaced(
    topic: TopicLog, segments: list[Segment], now: int, memory: _Keys
) -> tuple[BitMap64, int]:
    """Offsets in sealed segments that a later record of the same key replaces.

    Also returns when the first of the deletions that stay may go; 0 for none. A record that was
    deleted by a caller replaces nothing.
    """
    deleted = topic.history.deleted
    due = 0
    seen, keep = memory.seen, topic.options.versions
    replaced = BitMap64()
    grace_ns = round(topic.options.tombstone_seconds * 10**9)
    start = segments[-1].end
    for part in read_batches(topic, start, topic.committed):
        if not isinstance(part, Gap):
            memory.make_room(_keys(part))
            for key, offset in zip(_keys(part), _offsets(part), strict=True):
                if not deleted or offset not in deleted:
                    seen[key] = seen.get(key, 0) + 1
    for segment in reversed(segments):
        for part in reversed(list(segment.batches(segment.first, segment.end))):
            keys, offsets = _keys(part), _offsets(part)
            memory.make_room(keys)
            deleted_at = tombstones(part)
            for index in range(len(keys) - 1, -1, -1):
                key, offset = keys[index], offsets[index]
                if key is None or (deleted and offset in deleted):
                    continue
                count = seen.get(key, 0)
                seen[key] = count + 1
                if count >= keep:
                    replaced.add(offset)
                elif not count and deleted_at is not None and deleted_at[index]:
                    goes_at = int(deleted_at[index]) + grace_ns
                    if goes_at <= now:
                        replaced.add(offset)
                        seen[key] = keep  # what the key was before goes with it
                    else:
                        due = min(due or goes_at, goes_at)
    return replaced, due


def _keys(part: Slice) -> list[bytes | None]:
    return part.batch.keys(part.first, part.end)


def _offsets(part: Slice) -> list[int]:
    offsets: list[int] = part.batch.offsets(part.first, part.end).tolist()
    return offsets


def tombstones(part: Slice) -> npt.NDArray[np.int64] | None:
    """Return the times of records that are deletions, 0 for others; None if there are none."""
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
    """Return which records have an offset in a set."""
    return lambda part: deleted_mask(offsets, part.batch.offsets(part.first, part.end))


def _count(segment: Segment, dead: Dead) -> int:
    masks = (dead(part) for part in segment.batches(segment.first, segment.end))
    return sum(int(mask.sum()) for mask in masks if mask is not None)


def rewrite(
    topic: TopicLog, segment: Segment, dead: Dead, now: int, blank: Dead | None = None
) -> int:
    """Replace a segment with one without its dead records; returns the bytes freed.

    Of records in `blank` nothing is kept but that they have expired.
    """
    history = topic.history
    pool = history.pool
    slices = segment.batches(segment.first, segment.end)
    blocks = rewritten(((part, dead(part)) for part in slices), topic.codec, blank)
    summary = _write(topic, segment, segment.end, blocks, now)
    history.replace(pool.segment(topic.id, summary))
    history.forget_cold(segment.first)  # what the cold store has of it is no longer the segment
    history.rewriting.discard(segment.first)
    pool.forget(segment)
    return segment.summary.bytes - summary.bytes


def finish_rewrites(topic: TopicLog) -> None:
    """Publish what rewrites that failed have left in place.

    A sync of the directory that fails, or Ctrl-C, can come after a new file got its name. Until the
    chain has it, the topic's segments are not moved: their summaries are of other files.
    """
    history = topic.history
    pool = history.pool
    if history.rewriting:
        pool.fs.sync_dir(history.directory)
    for first in sorted(history.rewriting):
        try:
            summary = pool.summarise(topic.id, first)
        except FileNotFoundError:
            pass  # it failed before the file got its name, or the segment was removed since
        else:
            _publish(history, summary)
        history.rewriting.discard(first)


def _publish(history: History, summary: Summary) -> None:
    """Have a segment take over from those that it covers, wherever they are."""
    for segment in history.chain.segments:
        if summary.first_offset <= segment.first < summary.end_offset:
            history.forget_cold(segment.first)
    take_over(history, summary)


def _write(
    topic: TopicLog, segment: Segment, end: int, blocks: Iterable[Block], now: int
) -> Summary:
    """Replace the file of a segment, which may then cover more offsets."""
    pool = topic.history.pool
    writer = SegmentWriter(
        pool.fs, topic.history.directory, topic.id, segment.first, segment.summary.created_at,
        ".tmp", identity=pool.identity,
    )  # fmt: skip
    writer.create()
    try:
        for block in blocks:
            writer.append(block)
        topic.history.rewriting.add(segment.first)
        return writer.seal(end, now)
    except BaseException:
        writer.close()
        pool.fs.unlink(writer.path)
        raise


def merge_empty(topic: TopicLog, now: int) -> int:
    """Merge empty segments into the one before them; returns the bytes freed.

    It is small, or has no records either: then it costs little more than the files that go.
    """
    history = topic.history
    freed = 0
    for run in _runs(history.chain.segments):
        first, end = run[0].first, run[-1].end
        blocks = rewritten(((part, None) for part in run[0].batches(first, end)), topic.codec)
        summary = _write(topic, run[0], end, blocks, now)
        _publish(history, summary)
        history.rewriting.discard(first)
        freed += sum(segment.summary.bytes for segment in run) - summary.bytes
    return freed


def _runs(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Sealed segments here, each with those without records that follow it without a hole."""
    runs: list[list[Segment]] = []
    is_joined = False
    for segment in segments:
        is_here = not segment.is_open and not segment.is_cold
        is_empty = is_here and not segment.summary.records
        if is_joined and is_empty and runs[-1][-1].end == segment.first:
            runs[-1].append(segment)
        else:
            runs.append([segment])
            is_joined = is_empty or (is_here and segment.summary.bytes <= _SMALL_BYTES)
    return [run for run in runs if len(run) > 1]


def rewritten(
    parts: Iterable[tuple[Slice, Mask | None]], codec: int, blank: Dead | None = None
) -> Iterator[Block]:
    """Yield what is left of records in large batches; each slice has a mask of those to drop."""
    kept: list[Part] = []
    size = 0
    for part, dead in parts:
        if dead is not None and dead.all():
            continue
        erased = None if blank is None else blank(part)
        kept.append(Part(*part, None if dead is None else ~dead, erased))
        size += _share(part.batch, dead)
        if size >= BATCH_BYTES:
            yield merge(kept, codec)
            kept, size = [], 0
    if kept:
        yield merge(kept, codec)


def _share(batch: Batch, dead: Mask | None) -> int:
    """Estimate how many bytes of a batch are left."""
    left = 1.0 if dead is None else 1.0 - float(dead.mean())
    return int(batch.size * left)
