"""Purging a topic: its segments are rewritten until no byte of a lost record is in them.

A record that was deleted, evicted, or replaced by a later one of its key leaves nothing. One that
has expired leaves a blank, its offset and its time, so that readers still see a gap.

Concurrency: one thread at a time rewrites; readers go on with the segment they hold.
Crash: as in `rewrite`: the old segment is there until the whole new one has its name.
"""

from __future__ import annotations

import numpy as np
from pyroaring import BitMap64

from stratalog.format.frame import Flag
from stratalog.format.merge import LONG_AGO
from stratalog.log.topic import TopicLog
from stratalog.segments.read import deleted_mask
from stratalog.segments.rewrite import Mask
from stratalog.segments.segment import Segment, Slice


class Gone:
    """The records of a topic that can no longer be read, at one moment."""

    def __init__(self, topic: TopicLog, now: int, replaced: BitMap64) -> None:
        self._now = now
        self._earliest = topic.earliest
        self._offsets = topic.history.deleted | replaced
        self._ttl_ns = 0 if topic.options.ttl is None else round(topic.options.ttl * 10**9)
        self.records = 0
        """Number of records that `count` found."""

    def dead(self, part: Slice) -> Mask | None:
        """Return which records of a slice are to be removed; None for none."""
        offsets = part.batch.offsets(part.first, part.end)
        mask = deleted_mask(self._offsets, offsets)
        if offsets[0] < self._earliest:
            below: Mask = offsets < self._earliest
            mask = below if mask is None else mask | below
        return mask

    def blank(self, part: Slice) -> Mask | None:
        """Return which records of a slice have expired and still hold data; None for none."""
        batch, first, end = part
        expires = batch.expires_at
        if not self._ttl_ns and expires is None:
            return None
        mask = np.zeros(end - first, np.bool_)
        if self._ttl_ns:
            mask |= batch.timestamps(first, end) + self._ttl_ns <= self._now
        if expires is not None:
            times = expires[first:end]
            mask |= (times != 0) & (times <= self._now)
            mask &= times != LONG_AGO
        return mask if mask.any() else None

    def count(self, segment: Segment) -> int:
        """Count the records of a segment to remove or to blank."""
        if not self._may_be_in(segment):
            return 0
        found = 0
        for part in segment.batches(segment.first, segment.end):
            masks = [mask for mask in (self.dead(part), self.blank(part)) if mask is not None]
            if masks:
                found += int(np.logical_or.reduce(masks).sum())
        self.records += found
        return found

    def _may_be_in(self, segment: Segment) -> bool:
        """Return whether the records of a segment have to be read."""
        if segment.first < self._earliest or self._offsets.range_cardinality(
            segment.first, segment.end
        ):
            return True
        oldest = segment.summary.min_timestamp
        if self._ttl_ns and segment.summary.records and oldest + self._ttl_ns <= self._now:
            return True
        return segment.has_column(Flag.EXPIRES_AT)
