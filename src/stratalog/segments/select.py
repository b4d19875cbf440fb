"""Read a range of a topic by condition: by key, tag and node, forwards or backwards.

Times are no condition here: they rise with the offsets, so a range of time is a range of offsets.

Conditions are compared column by column, on the bytes as they are stored. A record that does not
match is never made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.arguments import check_bytes, check_text, check_time
from stratalog.format.batch import Batch
from stratalog.format.pick import pick, pick_values
from stratalog.format.sections import Binary
from stratalog.format.values import Codec
from stratalog.log.topic import TopicLog
from stratalog.model import Gap, Record, T
from stratalog.segments.read import read_living
from stratalog.segments.segment import Slice

Indexes = npt.NDArray[np.int64]

_FORWARD_WINDOW_MIN = 1 << 12
_BACKWARD_WINDOW = 1 << 6
# A window of a backward read is held in memory as a whole.
_WINDOW_BYTES = 4 << 20
# Up to here a key is compared by column, byte after byte; the rest of it record by record.
_PREFIX_BYTES = 32
# A record that is picked alone takes about as long as 16 that are made in one go.
_DENSE = 16


class Rows(NamedTuple):
    """Records of a batch by index, in the order in which they are wanted."""

    batch: Batch
    indexes: Indexes


Part = Slice | Rows
"""Records of one batch, in the order in which they are wanted."""


class Filter(NamedTuple):
    """Conditions on a record, as bytes; None is any."""

    key: bytes | None
    tag: bytes | None
    node: bytes | None
    event_since: int | None = None
    event_until: int | None = None
    """Times that records were given, the second not included; they need not rise."""

    @classmethod
    def check(
        cls, key: Any, tag: Any, node: Any, event_since: Any = None, event_until: Any = None
    ) -> Filter | None:
        """Conditions as a caller gives them; None if there is none."""
        times = [
            None if time is None else check_time(name, time)
            for name, time in (("event_since", event_since), ("event_until", event_until))
        ]
        if key is None and tag is None and node is None and times == [None, None]:
            return None
        return cls(
            check_bytes("key", key), check_text("tag", tag), check_text("node", node), *times
        )

    def choose(self, part: Slice) -> Rows:
        """Find the records of a slice that meet every condition."""
        batch = part.batch
        indexes = np.arange(part.first, part.end, dtype=np.int64)
        wanted = ((batch.key, self.key), (batch.tag, self.tag), (batch.node, self.node))
        for column, item in wanted:
            if item is None:
                continue
            if column is None:
                return Rows(batch, indexes[:0])
            indexes = _equal(batch, column, item, indexes)
        if self.event_since is not None or self.event_until is not None:
            times = batch.event_times()[indexes]
            meant = np.ones(len(indexes), np.bool_)
            if self.event_since is not None:
                meant &= times >= self.event_since
            if self.event_until is not None:
                meant &= times < self.event_until
            indexes = indexes[meant]
        return Rows(batch, indexes)


def _equal(batch: Batch, column: Binary, item: bytes, indexes: Indexes) -> Indexes:
    """Those of some records whose item of a column is this one."""
    ends = column.ends
    indexes = indexes[ends[indexes + 1] - ends[indexes] == len(item)]
    if column.validity >= 0 and len(indexes):
        indexes = indexes[batch.valid(column)[indexes]]
    body = np.frombuffer(batch.body, np.uint8)
    for place, byte in enumerate(item[:_PREFIX_BYTES]):
        if not len(indexes):
            return indexes
        indexes = indexes[body[column.start + place + ends[indexes].astype(np.int64)] == byte]
    if len(item) > _PREFIX_BYTES and len(indexes):
        starts = (column.start + ends[indexes].astype(np.int64)).tolist()
        same = [bytes(batch.body[low : low + len(item)]) == item for low in starts]
        indexes = indexes[np.array(same, np.bool_)]
    return indexes


# --- ranges ------------------------------------------------------------------------------


def read_forward(
    topic: TopicLog, start: int, end: int, limit: int, now: int, chosen: Filter | None = None
) -> Iterator[Part | Gap]:
    """Yield so many records at most, and the gaps before them, each whole."""
    gap: Gap | None = None
    window = limit if chosen is None else max(limit, _FORWARD_WINDOW_MIN)
    while limit > 0 and start < end:
        # No more than can be wanted; if much of it turns out to be gone, more and more.
        stop = min(end, start + window)
        for piece in read_living(topic, start, stop, now):
            if isinstance(piece, Gap):
                gap, passed = merge(gap, piece, backward=False)
                if passed is not None:
                    yield passed
                continue
            part, count = _take(piece, limit, chosen)
            if not count:
                continue
            if gap is not None:
                yield gap
                gap = None
            limit -= count
            yield part
            if not limit:
                return
        start = stop
        window *= 2
    if gap is not None:
        yield gap


def _take(piece: Slice, limit: int, chosen: Filter | None) -> tuple[Part, int]:
    if chosen is None:
        count = min(limit, piece.end - piece.first)
        return Slice(piece.batch, piece.first, piece.first + count), count
    rows = chosen.choose(piece)
    count = min(limit, len(rows.indexes))
    return Rows(rows.batch, rows.indexes[:count]), count


def read_backward(
    topic: TopicLog, start: int, end: int, limit: int, now: int, chosen: Filter | None = None
) -> Iterator[Part | Gap]:
    """As `read_forward` from the newest to the oldest: the records and the gaps between them."""
    gap: Gap | None = None
    window = _BACKWARD_WINDOW if chosen is not None else min(limit, _BACKWARD_WINDOW)
    while limit > 0 and start < end:
        low = max(start, end - window)
        pieces = list(read_living(topic, low, end, now))
        for piece in reversed(pieces):
            if isinstance(piece, Gap):
                gap, passed = merge(gap, piece, backward=True)
                if passed is not None:
                    yield passed
                continue
            indexes = (
                np.arange(piece.first, piece.end, dtype=np.int64)
                if chosen is None
                else chosen.choose(piece).indexes
            )[::-1][:limit]
            if not len(indexes):
                continue
            if gap is not None:
                yield gap
                gap = None
            limit -= len(indexes)
            yield Rows(piece.batch, indexes)
            if not limit:
                return
        window = _next_window(pieces, end - low, 2 * window)
        end = low
    if gap is not None:
        yield gap


def _next_window(pieces: list[Slice | Gap], offsets: int, wanted: int) -> int:
    """Widen the window, as long as it holds no more than a few megabytes."""
    size = sum(
        piece.batch.size * (piece.end - piece.first) // piece.batch.count
        for piece in pieces
        if isinstance(piece, Slice)
    )
    return wanted if not size else max(1, min(wanted, _WINDOW_BYTES * offsets // size))


def merge(gap: Gap | None, other: Gap, *, backward: bool) -> tuple[Gap, Gap | None]:
    """Join a gap with the one before; returns the gap so far, and one that is complete."""
    if gap is None:
        return other, None
    if gap.reason != other.reason:
        return other, gap
    first, last = (other.first, gap.last) if backward else (gap.first, other.last)
    return Gap(first, last, gap.reason), None


# --- records -----------------------------------------------------------------------------


def records_of(part: Part) -> list[Record]:
    """Make the records of a part."""
    if isinstance(part, Slice):
        return part.batch.records(part.first, part.end)
    batch, indexes = part
    low, high = _span(indexes)
    if high - low > _DENSE * len(indexes):
        return list(map(Record, *pick(batch, indexes)))
    records = batch.records(low, high)
    return [records[index] for index in (indexes - low).tolist()]


def typed_records_of(part: Part, codec: Codec[T]) -> list[Record[T]]:
    """Make the records of a part, with values of a type."""
    if isinstance(part, Slice):
        return codec.records(part.batch.fields(part.first, part.end, whole=True))
    return codec.records(pick(part.batch, part.indexes))


def values_of(part: Part) -> list[bytes | None]:
    """Take the payloads of a part."""
    if isinstance(part, Slice):
        return part.batch.values(part.first, part.end)
    batch, indexes = part
    low, high = _span(indexes)
    if high - low > _DENSE * len(indexes):
        return pick_values(batch, indexes)
    values = batch.values(low, high)
    return [values[index] for index in (indexes - low).tolist()]


def _span(indexes: Indexes) -> tuple[int, int]:
    first, last = int(indexes[0]), int(indexes[-1])
    return (first, last + 1) if first <= last else (last, first + 1)
