"""Records on their way to consumers: read many at a time, as columns, and made one by one.

A delivery is made when it is delivered, lease and all, by one call for as many as are wanted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from itertools import compress, islice, repeat
from operator import attrgetter, neg
from typing import Any

from stratalog.model import NO_HEADERS, Delivery, Lease

_MORE = ("key", "headers", "tag", "node", "priority", "expires_at", "not_before", "operation")
_NOTHING: tuple[Any, ...] = (None, NO_HEADERS, None, None, 0, 0, 0, 0)
_EXPIRES_AT = _MORE.index("expires_at")
_more_of: Callable[[Delivery], tuple[Any, ...]] = attrgetter(*_MORE)


class Rows:
    """Columns of records; `values`, `timestamps` and `offsets` are there for all of them.

    Those who take records out have reversed them before: the next one is the last.
    """

    __slots__ = ("has_expiry", "more", "offsets", "timestamps", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.offsets: list[int] = []
        self.more: list[list[Any]] | None = None
        """The other fields of a `Delivery`, in its order; None if no record has any."""
        self.has_expiry = False
        """Whether one of them may have a time to live."""

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, fields: list[Any]) -> None:
        """Add the records of a batch, given by the columns of `Record`."""
        values, key, headers, tag, node, timestamps, offsets, *rest = fields
        more = (key, headers, tag, node, *rest)
        if self.more is None and any(type(column) is not repeat for column in more):
            self._widen()
        count = len(offsets)
        if not self.offsets and type(timestamps) is list:
            self.values, self.timestamps, self.offsets = values, timestamps, offsets
        else:
            self.values += values
            self.timestamps += islice(timestamps, count)
            self.offsets += offsets
        if self.more is not None:
            for column, items in zip(self.more, more, strict=True):
                column += islice(items, count)
            self.has_expiry |= type(more[_EXPIRES_AT]) is not repeat

    def _widen(self) -> None:
        count = len(self.offsets)
        self.more = [[nothing] * count for nothing in _NOTHING]

    def reverse(self) -> None:
        """Have the next one last."""
        for column in self._columns():
            column.reverse()

    def _columns(self) -> tuple[list[Any], ...]:
        return (self.values, self.timestamps, self.offsets, *(self.more or ()))

    def deliveries(self, make: Callable[..., Any], source: Any, lease: Lease) -> list[Any]:
        """All of them, in the order they are in."""
        more = self.more or ()
        return list(
            map(
                make, self.values, self.timestamps, self.offsets, repeat(source), repeat(lease),
                *more,
            )
        )  # fmt: skip

    def take(self, limit: int) -> Rows:
        """Take out the next so many, which are then in the order they are delivered in."""
        found = Rows()
        found.values = self.values[: -limit - 1 : -1]
        found.timestamps = self.timestamps[: -limit - 1 : -1]
        found.offsets = self.offsets[: -limit - 1 : -1]
        if self.more is not None:
            found.more = [column[: -limit - 1 : -1] for column in self.more]
            found.has_expiry = self.has_expiry
        for column in self._columns():
            del column[-limit:]
        return found

    def pop(self, make: Callable[..., Any], source: Any, lease: Lease) -> Any:
        """Take out the next one."""
        value, timestamp, offset = self.values.pop(), self.timestamps.pop(), self.offsets.pop()
        if self.more is None:
            return make(value, timestamp, offset, source, lease)
        return make(
            value, timestamp, offset, source, lease, *[column.pop() for column in self.more]
        )

    def expired(self, now: int) -> set[int]:
        """Offsets of those whose time is up."""
        if self.more is None:
            return set()
        pairs = zip(self.offsets, self.more[_EXPIRES_AT], strict=True)
        return {offset for offset, expires in pairs if expires and expires <= now}

    def leave_out(self, offsets: set[int]) -> None:
        """Do without the records at these offsets."""
        is_kept = [offset not in offsets for offset in self.offsets]
        for column in self._columns():
            column[:] = compress(column, is_kept)

    def insert(self, delivery: Delivery) -> None:
        """Have one that was given back in its old place."""
        more = _more_of(delivery)
        if self.more is None and more != _NOTHING:
            self._widen()
        self.has_expiry |= bool(delivery.expires_at)
        place = bisect_left(self.offsets, -delivery.offset, key=neg)
        fields = (delivery.value, delivery.timestamp, delivery.offset, *more)
        for column, item in zip(self._columns(), fields, strict=False):
            column.insert(place, item)

    def clear(self) -> None:
        """Forget all."""
        for column in self._columns():
            column.clear()
        self.more, self.has_expiry = None, False
