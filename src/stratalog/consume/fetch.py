"""Reading records by their offsets for consumers: many at a time, from few batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.consume.read_ahead import Rows
from stratalog.format.batch import Batch
from stratalog.format.pick import pick
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.segments.read import read_living
from stratalog.segments.segment import Slice

# Offsets further apart than this are looked up one by one: reading over less is faster.
_APART = 4096

# A batch that may never be fetched is kept if it is small, as single puts leave it.
_OFFERED_BYTES_MAX = 1 << 18


class Kept:
    """The batch of the log in which the last fetch ended: the next one need not read it again."""

    __slots__ = ("batch",)

    def __init__(self) -> None:
        self.batch: Batch | None = None

    def offer(self, batch: Batch) -> None:
        """Keep a batch that was read for another purpose, and is to be fetched next."""
        if (
            self.batch is None
            and type(batch.body) is bytes
            and len(batch.body) <= _OFFERED_BYTES_MAX
            and batch.offset_deltas is None
            and batch.expires_at is None
        ):
            self.batch = batch

    def read(self, topic: TopicLog, start: int, end: int, now: int) -> Iterator[Slice | Gap]:
        """Read as `read_living` does, beginning with the batch at hand."""
        batch, self.batch = self.batch, None
        if (
            batch is not None
            and 0 <= start - batch.base_offset < batch.count
            and start >= topic.earliest
            and not topic.history.deleted
            and topic.options.ttl is None
        ):
            stop = min(end, batch.base_offset + batch.count)
            yield Slice(batch, start - batch.base_offset, stop - batch.base_offset)
            if stop < batch.base_offset + batch.count:
                self._keep(topic, batch, stop)
            start = stop
        if start < end:
            for part in read_living(topic, start, end, now):
                yield part
                if type(part) is Slice:
                    self._keep(topic, part.batch, part.batch.base_offset + part.end)

    def _keep(self, topic: TopicLog, batch: Batch, stop: int) -> None:
        """Keep a batch if some of it is left and nothing in it expires."""
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
    """Read the records at these ascending offsets; missing ones are left out."""
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
    """Give fields of the records at these offsets, batch by batch."""
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
