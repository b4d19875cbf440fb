"""Records on their way to consumers: read many at a time as columns, and created one by one.

Delivery objects, with their lease, are created only when they are delivered, in one call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import compress, islice, repeat
from operator import neg
from typing import Any

from stratalog.model import NOTHING_MORE, Delivery, Lease

_EXPIRES_AT = 5


class Rows:
    """Columns of records, as `Delivery` has them.

    Reverse them before taking records out: the next one is the last.
    """

    __slots__ = ("has_expiry", "more", "offsets", "timestamps", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.offsets: list[int] = []
        self.more: list[tuple[Any, ...]] | None = None
        """None if no record has more than a value."""
        self.has_expiry = False
        """Whether one of them may have a time to live."""

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, fields: list[Any]) -> None:
        """Add the records of a batch, given by the columns of `Record`."""
        values, key, headers, tag, node, timestamps, offsets, *rest = fields
        more = (key, headers, tag, node, *rest)
        count = len(offsets)
        if set(map(type, more)) != {repeat}:
            self._widen()
            self.has_expiry |= type(more[_EXPIRES_AT]) is not repeat
            self.more += islice(zip(*more, strict=False), count)  # type: ignore[operator]
        elif self.more is not None:
            self.more += [NOTHING_MORE] * count
        is_list = type(timestamps) is list  # else one time for all of them, without end
        if is_list and not self.offsets:
            self.values, self.timestamps, self.offsets = values, timestamps, offsets
        else:
            self.values += values
            self.timestamps += timestamps if is_list else islice(timestamps, count)
            self.offsets += offsets

    def _widen(self) -> None:
        if self.more is None:
            self.more = [NOTHING_MORE] * len(self.offsets)

    def reverse(self) -> None:
        """Reverse the columns, so that the next record is the last."""
        for column in self._columns():
            column.reverse()

    def _columns(self) -> tuple[list[Any], ...]:
        if self.more is None:
            return self.values, self.timestamps, self.offsets
        return self.values, self.timestamps, self.offsets, self.more

    def deliveries(self, make: Callable[..., Any], source: Any, lease: Lease) -> list[Any]:
        """Create all deliveries, in the current order."""
        columns = (self.values, self.timestamps, self.offsets, repeat(source), repeat(lease))
        return list(map(make, *columns) if self.more is None else map(make, *columns, self.more))

    def take(self, limit: int) -> Rows:
        """Take out the next `limit` records, in delivery order."""
        found = Rows()
        found.values = self.values[-limit:]
        found.timestamps = self.timestamps[-limit:]
        found.offsets = self.offsets[-limit:]
        del self.values[-limit:], self.timestamps[-limit:], self.offsets[-limit:]
        if self.more is not None:
            found.more = self.more[-limit:]
            found.has_expiry = self.has_expiry
            del self.more[-limit:]
        if len(found.offsets) > 1:
            found.reverse()
        return found

    def pop(self, make: Callable[..., Any], source: Any, lease: Lease) -> Any:
        """Take out the next record."""
        value, timestamp, offset = self.values.pop(), self.timestamps.pop(), self.offsets.pop()
        if self.more is None:
            return make(value, timestamp, offset, source, lease)
        return make(value, timestamp, offset, source, lease, self.more.pop())

    def expired(self, now: int) -> set[int]:
        """Return the offsets of expired records."""
        pairs = zip(self.offsets, self.more or (), strict=False)
        return {offset for offset, more in pairs if 0 < more[_EXPIRES_AT] <= now}

    def leave_out(self, offsets: set[int]) -> None:
        """Remove the records at these offsets."""
        is_kept = [offset not in offsets for offset in self.offsets]
        for column in self._columns():
            column[:] = compress(column, is_kept)

    def insert(self, delivery: Delivery) -> None:
        """Insert a record that was given back in its old place."""
        if delivery.more is not NOTHING_MORE:
            self._widen()
            self.has_expiry |= bool(delivery.expires_at)
        place = bisect_left(self.offsets, -delivery.offset, key=neg)
        self.values.insert(place, delivery.raw)
        self.timestamps.insert(place, delivery.timestamp)
        self.offsets.insert(place, delivery.offset)
        if self.more is not None:
            self.more.insert(place, delivery.more)

    def clear(self) -> None:
        """Remove all records."""
        for column in self._columns():
            column.clear()
        self.more, self.has_expiry = None, False
