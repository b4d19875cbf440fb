"""Records by their offsets, as what consumers are given: many at a time, from few batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.format.batch import Batch
from stratalog.format.pick import pick
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.projections.rows import Rows
from stratalog.segments.read import read_living
from stratalog.segments.segment import Slice

# Offsets further apart than this are looked up each by itself: less is read over faster.
_APART = 4096


class Kept:
    """The batch of the log that the last fetch ended in: the next one need not read it again."""

    __slots__ = ("batch",)

    def __init__(self) -> None:
        self.batch: Batch | None = None

    @property
    def held_bytes(self) -> int:
        """Memory it takes."""
        return 0 if self.batch is None else len(self.batch.body)

    def read(self, topic: TopicLog, start: int, end: int, now: int) -> Iterator[Slice | Gap]:
        """As `read_living`, with what is at hand first."""
        batch, self.batch = self.batch, None
        if (
            batch is not None
            and 0 <= start - batch.base_offset < batch.count
            and start >= topic.earliest
            and not topic.history.deleted
        ):
            stop = min(end, batch.base_offset + batch.count)
            yield Slice(batch, start - batch.base_offset, stop - batch.base_offset)
            self._keep(topic, batch, stop)
            start = stop
        if start < end:
            for part in read_living(topic, start, end, now):
                yield part
                if type(part) is Slice:
                    self._keep(topic, part.batch, part.batch.base_offset + part.end)

    def _keep(self, topic: TopicLog, batch: Batch, stop: int) -> None:
        """Keep a batch of which something is left, and where nothing goes by itself."""
        if (
            stop < batch.base_offset + batch.count
            and type(batch.body) is bytes
            and batch.offset_deltas is None
            and batch.expires_at is None
            and topic.options.ttl is None
            and not topic.is_ephemeral
        ):
            self.batch = batch


def fetch(
    topic: TopicLog, offsets: npt.NDArray[np.int64], now: int, kept: Kept | None = None
) -> Rows:
    """The records at these offsets, which rise; those that are gone are left out."""
    rows = Rows()
    kept = kept or Kept()
    if not len(offsets):
        return rows
    cuts = [0, len(offsets)]
    if int(offsets[-1] - offsets[0]) >= _APART:
        cuts[1:1] = (np.flatnonzero(np.diff(offsets) > _APART) + 1).tolist()
    for low, high in pairwise(cuts):
        for fields in _fields(topic, offsets[low:high], now, kept):
            rows.add(fields)
    return rows


def _fields(
    topic: TopicLog, offsets: npt.NDArray[np.int64], now: int, kept: Kept
) -> Iterator[list[Any]]:
    """Fields of the records at these offsets, batch by batch."""
    first, last = int(offsets[0]), int(offsets[-1])
    is_dense = last - first + 1 == len(offsets)
    for part in kept.read(topic, first, last + 1, now):
        if isinstance(part, Gap):
            continue
        batch, start, end = part
        if is_dense:
            yield batch.fields(start, end, whole=True)
            continue
        present = batch.offsets(start, end)
        low, high = np.searchsorted(offsets, (present[0], present[-1] + 1)).tolist()
        chosen = offsets[low:high]
        if batch.offset_deltas is None:
            indexes = chosen - batch.base_offset
        else:
            places = np.searchsorted(present, chosen)
            indexes = places[present[np.minimum(places, len(present) - 1)] == chosen] + start
        if len(indexes):
            yield pick(batch, indexes)
