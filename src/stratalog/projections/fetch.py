"""Records by their offsets, as what consumers are given: many at a time, from few batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, repeat
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stratalog.format.batch import Batch
from stratalog.format.pick import pick
from stratalog.log.topic import TopicLog
from stratalog.model import Delivery, Gap, Record
from stratalog.segments.read import read_living
from stratalog.segments.segment import Slice

_T = TypeVar("_T", bound=Delivery)

# Offsets further apart than this are looked up each by itself: less is read over faster.
_APART = 4096

_EXPIRES_AT = Record.__struct_fields__.index("expires_at")


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
    topic: TopicLog,
    offsets: npt.NDArray[np.int64],
    now: int,
    make: Callable[..., _T],
    source: Any,
    kept: Kept | None = None,
) -> tuple[list[_T], bool]:
    """The records at these offsets, which rise; those that are gone are left out.

    And whether one of them may have a time to live.
    """
    found: list[_T] = []
    has_expiry = False
    kept = kept or Kept()
    if not len(offsets):
        return found, has_expiry
    cuts = [0, len(offsets)]
    if int(offsets[-1] - offsets[0]) >= _APART:
        cuts[1:1] = (np.flatnonzero(np.diff(offsets) > _APART) + 1).tolist()
    for low, high in pairwise(cuts):
        for fields in _fields(topic, offsets[low:high], now, kept):
            has_expiry |= type(fields[_EXPIRES_AT]) is list
            found += deliveries(make, fields, source)
    return found, has_expiry


def deliveries(make: Callable[..., _T], fields: list[Any], source: Any) -> Iterator[_T]:
    """Records made of their fields; of those that have nothing but a value in half the time."""
    value, key, headers, tag, node, timestamp, offset, *rest = fields
    first = (value, timestamp, offset, repeat(source))
    more = (key, headers, tag, node, *rest)
    if all(type(field) is repeat for field in more):
        return map(make, *first)
    return map(make, *first, *more)


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
