"""The contract between a topic and a projection of its records, and how records reach it.

A topic of kind `table` or `series` has one projection, which is state computed from its records.
`catch_up` applies records to it in offset order, from segments and from the log: when the store
opens, for a read-only view, and while the store runs. A live writer may also apply what it has just
entered itself. Both use `applied`, the offset up to which records are in the state: records below
it are never applied again, and records above it are not missed.

Invariants:
- Every record below `applied` is in the state, and none is in it twice.
- A projection can be discarded at any time: its records hold everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from stratalog.format.batch import Batch
from stratalog.model import Gap
from stratalog.segments.read import read_batches
from stratalog.segments.segment import Slice

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog


class Projection(Protocol):
    """State computed from the records of one topic.

    Concurrency: `void` and `drop` are called from any thread and take no lock. For the rest, the
    projection says which lock its callers hold.
    """

    applied: int
    """Records below this offset are in the state."""

    def apply(self, batch: Batch, first: int, end: int) -> None:
        """Apply the records of a batch from index `first` to `end`, which come next."""

    def capture(self) -> tuple[int, bytes]:
        """Encode the state for a snapshot, with the offset up to which records are in it.

        Empty bytes leave it out of the snapshot. The log is synced before the snapshot is written,
        so that it has every record that the state has.
        """

    def restore(self, applied: int, data: bytes) -> None:
        """Take over what `capture` returned; raises `CorruptionError` if that is invalid."""

    def reset(self) -> None:
        """Discard everything: `applied` is 0 again."""

    def rebuild(self) -> None:
        """Discard everything and apply all records again, while the store runs."""

    def void(self) -> None:
        """Note that records above `committed` failed: they may be in the state.

        Called with the shard's locks held, so it only sets a flag and waits for nothing.
        """

    def drop(self) -> None:
        """Note that the topic was dropped or the store closed: release the memory."""


def catch_up(
    topic: TopicLog,
    projection: Projection,
    end: int,
    missing: Callable[[int], None] | None = None,
) -> None:
    """Apply the topic's records up to an offset; those below `applied` are skipped.

    `missing` is called before records after a hole are applied, with the offset where it ends:
    compaction leaves holes. A gap is not a hole, nor are offsets that never had a record, as in a
    table that was imported. After an interrupt, or if `missing` raises, the next call continues
    from `applied`.
    """
    start = max(projection.applied, topic.earliest)
    for part in read_batches(topic, start, end):
        if isinstance(part, Gap):
            projection.applied = max(projection.applied, part.last + 1)
            continue
        batch, first, stop = part
        if missing is not None and (hole := hole_end(topic, part, projection.applied)):
            missing(hole)
        projection.apply(batch, first, stop)
        projection.applied = batch.offset_of(stop - 1) + 1
    applied = projection.applied
    if missing is not None and applied < end and not topic.history.is_given_up(applied, end - 1):
        missing(end)
    projection.applied = max(projection.applied, end)


def hole_end(topic: TopicLog, part: Slice, expected: int) -> int:
    """Find where the last hole before or in records ends; 0 if there is none."""
    batch, first, end = part
    is_given_up = topic.history.is_given_up
    start = batch.offset_of(first)
    if batch.offset_of(end - 1) - start != end - 1 - first:
        offsets = batch.offsets(first, end)
        for place in np.flatnonzero(np.diff(offsets) > 1)[::-1].tolist():
            if not is_given_up(int(offsets[place]) + 1, int(offsets[place + 1]) - 1):
                return int(offsets[place + 1])
    return start if start > expected and not is_given_up(expected, start - 1) else 0
