"""What Spark's filters say about where to look.

Spark checks every filter again, on every row: what is taken from them here may be less than they
say, and never more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclasses.dataclass
class Wanted:
    """Bounds on offset and time (the end not included), and which topics and keys."""

    offset_start: int = 0
    offset_end: int = 1 << 63
    time_start: int = 0
    """Nanoseconds."""
    time_end: int = 1 << 63
    topics: frozenset[str] | None = None
    keys: frozenset[bytes] | None = None
    """None for any."""

    def add(self, filters: Iterable[Filter]) -> None:
        """Take in filters, all of which must hold."""
        for one in filters:
            attribute: tuple[str, ...] = getattr(one, "attribute", ())
            if len(attribute) == 1:
                self._add(attribute[0], one)

    def _add(self, column: str, one: Filter) -> None:
        if column == "topic":
            self.topics = _among(self.topics, one, str)
        elif column == "key":
            self.keys = _among(self.keys, one, bytes)
        elif column == "offset":
            start, end = _bounds(one, lambda value: value if isinstance(value, int) else None)
            self.offset_start = max(self.offset_start, start)
            self.offset_end = min(self.offset_end, end)
        elif column == "timestamp":
            start, end = _bounds(one, _microseconds)
            # A record's nanoseconds are cut off in Spark: all of a microsecond belong to it.
            self.time_start = max(self.time_start, start * 1000)
            self.time_end = min(self.time_end, end * 1000)


def _bounds(one: Filter, number: Any) -> tuple[int, int]:
    """The least value that a filter lets through, and the first that it does not."""
    start, end = 0, 1 << 63
    values = one.value if isinstance(one, In) else [getattr(one, "value", None)]
    numbers = [number(value) for value in values]
    if not numbers or None in numbers:
        return start, end
    if isinstance(one, EqualTo | EqualNullSafe | In):
        return min(numbers), max(numbers) + 1
    if isinstance(one, GreaterThan):
        start = numbers[0] + 1
    elif isinstance(one, GreaterThanOrEqual):
        start = numbers[0]
    elif isinstance(one, LessThan):
        end = numbers[0]
    elif isinstance(one, LessThanOrEqual):
        end = numbers[0] + 1
    return start, end


def _among(known: frozenset[Any] | None, one: Filter, kind: type) -> frozenset[Any] | None:
    """Which values a filter leaves of those known so far."""
    if isinstance(one, In):
        values = list(one.value)
    elif isinstance(one, EqualTo | EqualNullSafe):
        values = [one.value]
    else:
        return known
    values = [bytes(v) if isinstance(v, bytearray) else v for v in values]
    if not all(isinstance(value, kind) for value in values):
        return known
    return frozenset(values) if known is None else known & frozenset(values)


def _microseconds(value: Any) -> int | None:
    """Of a moment; None for anything else, such as one without a time zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - _EPOCH
    return (since.days * 86400 + since.seconds) * 10**6 + since.microseconds
