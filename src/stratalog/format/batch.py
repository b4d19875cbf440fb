"""A record batch read back: the sections of a body found and checked, then taken as values.

`Batch.parse` looks at a few numbers per section and at no record: every length, every end and
every bit of padding that could lead outside of the body is checked there, vectorised, so that
what follows can slice without looking. What it returns holds references into the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.errors import CorruptionError
from stratalog.format.codec import EXPANDED_BYTES_MAX, decompress
from stratalog.format.frame import CODEC_MASK, Flag, FrameHeader
from stratalog.format.runs import Headers, Int64s, numbers_of
from stratalog.format.sections import (
    BASE_OFFSET_MAX,
    Binary,
    Cursor,
    Int32s,
    cut_evenly,
    ends_rise,
    find_ends,
    find_values,
    rises,
)
from stratalog.model import NO_HEADERS, Record


class Batch:
    """One parsed batch: offsets, times and columns, whole or from index `first` to `end`."""

    __slots__ = (
        "base_offset", "base_timestamp", "body", "count", "event_time", "expires_at", "headers",
        "key", "node", "not_before", "offset_deltas", "operation", "priority", "size", "tag",
        "timestamp_deltas", "value",
    )  # fmt: skip

    base_offset: int
    base_timestamp: int
    body: bytes | memoryview
    count: int
    size: int
    """Bytes of its sections, decompressed; `body` may hold more than them."""
    timestamp_deltas: Int64s | npt.NDArray[np.uint32] | None
    offset_deltas: npt.NDArray[np.uint32] | None
    key: Binary | None
    value: Binary
    headers: tuple[int, Int32s, Binary, Binary] | None
    tag: Binary | None
    node: Binary | None
    priority: npt.NDArray[np.uint8] | None
    expires_at: Int64s | None
    not_before: Int64s | None
    operation: npt.NDArray[np.uint8] | None
    event_time: Int64s | None
    """Times that records were given, where they are not their times in the log; else 0."""

    @classmethod
    def parse(
        cls,
        header: FrameHeader,
        body: bytes | memoryview,
        start: int = 0,
        expanded_bytes_max: int = EXPANDED_BYTES_MAX,
    ) -> Batch:
        """Find the sections of a verified body at `start`; raises `CorruptionError`."""
        # Values alone, the common case; errors in them are raised further down.
        if (found := find_values(header, body, start)) is not None:
            ends = np.frombuffer(body, np.int32, header.count + 1, start)
            if ends_rise(body, start, ends):
                value = Binary(-1, start, ends, found[0])
                return cls._of_values(header[5:7], header.count, body, value, header.body_length)
        if header.flags == Flag.SHORT_TIMESTAMPS:
            batch = cls._parse_stamped(header, body, start)
            if batch is not None:
                return batch
        if header.count == 0:
            raise CorruptionError("batch of no records")
        if header.base_offset > BASE_OFFSET_MAX:
            raise CorruptionError(f"batch offset {header.base_offset} is too large")
        flags = header.flags
        end = start + header.body_length
        if flags & CODEC_MASK:
            body = decompress(bytes(body[start:end]), flags & CODEC_MASK, expanded_bytes_max)
            start, end = 0, len(body)
        batch = cls()
        count = batch.count = header.count
        batch.body = body
        batch.size = end - start
        batch.base_offset = header.base_offset
        batch.base_timestamp = header.base_timestamp
        cursor = Cursor(body, start, end, count)

        def optional(flag: int, dtype: type[np.generic]) -> npt.NDArray[Any] | None:
            return cursor.array(dtype, count) if flags & flag else None

        is_short = bool(flags & Flag.SHORT_TIMESTAMPS)
        if is_short and flags & Flag.TIMESTAMPS:
            raise CorruptionError("batch has its timestamps twice")
        batch.timestamp_deltas = (
            optional(Flag.SHORT_TIMESTAMPS, np.uint32)
            if is_short
            else optional(Flag.TIMESTAMPS, np.int64)
        )
        batch.offset_deltas = optional(Flag.OFFSETS, np.uint32)
        batch.key = cursor.binary(count, nullable=True) if flags & Flag.KEYS else None
        batch.value = cursor.binary(count, nullable=bool(flags & Flag.NULL_VALUES))
        batch.headers = _parse_headers(cursor, count) if flags & Flag.HEADERS else None
        batch.tag = cursor.binary(count, nullable=True) if flags & Flag.TAGS else None
        batch.node = cursor.binary(count, nullable=True) if flags & Flag.NODES else None
        batch.priority = optional(Flag.PRIORITIES, np.uint8)
        batch.expires_at = optional(Flag.EXPIRES_AT, np.int64)
        batch.not_before = optional(Flag.NOT_BEFORE, np.int64)
        batch.operation = optional(Flag.OPERATIONS, np.uint8)
        batch.event_time = optional(Flag.EVENT_TIMES, np.int64)
        cursor.finish()
        _check_deltas(batch, header.max_timestamp)
        return batch

    @classmethod
    def _parse_stamped(
        cls, header: FrameHeader, body: bytes | memoryview, start: int
    ) -> Batch | None:
        """Values and short timestamps, which is what a checkpoint makes; None if that is wrong."""
        count = header.count
        ends_at = start + (4 * count + 7 & ~7)
        found = find_ends(header, body, ends_at, start + header.body_length)
        if found is None:
            return None
        deltas = np.frombuffer(body, np.uint32, count, start)
        ends = np.frombuffer(body, np.int32, count + 1, ends_at)
        if not ends_rise(body, ends_at, ends) or not rises(deltas) or deltas[0]:
            return None
        # In Python's numbers, so that the sum does not overflow.
        if header.base_timestamp + int(deltas[-1]) != header.max_timestamp:
            return None
        value = Binary(-1, ends_at, ends, found[0])
        batch = cls._of_values(header[5:7], count, body, value, header.body_length)
        batch.timestamp_deltas = deltas
        return batch

    @classmethod
    def merge(cls, headers: Headers, data: bytes, starts: Int64s) -> Batch | None:
        """Verified batches of values alone, whose offsets follow each other, as one.

        Their bodies start at `starts`. None if one of them is something else, or does not hold
        together: `parse` tells which, and why.
        """
        counts, body_lengths = headers["count"].astype(np.int64), headers["body_length"]
        ends_lengths = 4 * counts + 11 & ~7  # one end more than records, padded
        is_other = (
            (headers["flags"] != 0)
            | (counts == 0)
            | (headers["base_offset"] > BASE_OFFSET_MAX)
            | (headers["base_timestamp"] != headers["max_timestamp"])
            | (ends_lengths > body_lengths)
        )
        if is_other.any():
            return None
        numbers = numbers_of(data, np.int32)
        first = starts // 4
        lengths = numbers[first + counts].astype(np.int64)
        is_other = (
            (numbers[first] != 0)
            | (lengths < 0)
            | (ends_lengths + (lengths + 7 & ~7) != body_lengths)
        )
        if is_other.any():
            return None
        count = int(counts.sum())
        # Each batch's ends begin where the values of those before it end.
        value_ends = np.cumsum(lengths)
        ends = np.zeros(count + 2 & ~1, np.int32)  # even, so that it needs no padding
        if count == len(counts):
            ends[1 : count + 1] = value_ends
        else:
            spans = zip((starts + 4).tolist(), (starts + 4 + 4 * counts).tolist(), strict=True)
            own_ends = np.frombuffer(b"".join([data[a:b] for a, b in spans]), np.int32)
            np.add(own_ends, (value_ends - lengths).repeat(counts), out=ends[1 : count + 1])
            if not rises(ends[: count + 1]):
                return None
        values = starts + ends_lengths
        spans = zip(values.tolist(), (values + lengths).tolist(), strict=True)
        body = b"".join([ends.tobytes(), *[data[a:b] for a, b in spans]])
        value = Binary(-1, 0, ends[: count + 1], ends.nbytes)
        base = int(headers["base_offset"][0]), int(headers["base_timestamp"][0])
        batch = cls._of_values(base, count, body, value, len(body))
        times = headers["base_timestamp"]
        batch.timestamp_deltas = (times - times[0]).repeat(counts)
        return batch

    @classmethod
    def _of_values(
        cls, base: tuple[int, int], count: int, body: bytes | memoryview, value: Binary, size: int
    ) -> Batch:
        """A batch without any optional column; `base` are its offset and its time."""
        batch = cls()
        batch.count = count
        batch.body = body
        batch.size = size
        batch.base_offset, batch.base_timestamp = base
        batch.value = value
        batch.timestamp_deltas = batch.offset_deltas = batch.key = batch.headers = None
        batch.tag = batch.node = batch.priority = batch.expires_at = None
        batch.not_before = batch.operation = batch.event_time = None
        return batch

    def hold(self, floor: int) -> None:
        """Let no record have an earlier time than this one."""
        given = self.timestamps()
        stamps = np.maximum(given, floor)
        # What the records were given stays known.
        raised = np.where(stamps > given, given, 0)
        if raised.any():
            known = self.event_time
            self.event_time = raised if known is None else np.where(known, known, raised)
        self.base_timestamp = int(stamps[0])
        is_even = stamps[0] == stamps[-1]
        self.timestamp_deltas = None if is_even else stamps - self.base_timestamp

    def has_values_only(self) -> bool:
        """Whether values, offsets and times are all there is."""
        return (
            self.key is None and self.headers is None and self.tag is None and self.node is None
            and self.priority is None and self.expires_at is None and self.not_before is None
            and self.operation is None and self.event_time is None
        )  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing but values, none of them None, and their times."""
        rest: tuple[object, ...] = (
            self.offset_deltas, self.key, self.headers, self.tag, self.node, self.priority,
            self.expires_at, self.not_before, self.operation, self.event_time,
        )  # fmt: skip
        # `is`, item by item: an array compared with None is an array.
        return self.value.validity < 0 and all(column is None for column in rest)

    def range_of(self, start: int, end: int) -> tuple[int, int]:
        """Return the records between two offsets, by index: the first and the one after them."""
        low, high = start - self.base_offset, end - self.base_offset
        if self.offset_deltas is None:
            return min(max(low, 0), self.count), min(max(high, 0), self.count)
        bounds = np.array([max(low, 0), max(high, 0)], np.int64)
        first, last = np.searchsorted(self.offset_deltas, bounds).tolist()
        return first, last

    def offset_of(self, index: int) -> int:
        """The offset of one record."""
        if self.offset_deltas is None:
            return self.base_offset + index
        return self.base_offset + int(self.offset_deltas[index])

    def offset_at(self, timestamp: int) -> int:
        """The first offset with this time or a later one; there is one."""
        if self.timestamp_deltas is None:
            return self.base_offset
        after = max(timestamp - self.base_timestamp, 0)
        return self.offset_of(int(np.searchsorted(self.timestamp_deltas, after)))

    def offsets(self, first: int = 0, end: int | None = None) -> npt.NDArray[np.int64]:
        """Offsets of the records."""
        end = self.count if end is None else end
        if self.offset_deltas is not None:
            return self.offset_deltas[first:end].astype(np.int64) + self.base_offset
        return np.arange(self.base_offset + first, self.base_offset + end, dtype=np.int64)

    def timestamps(self, first: int = 0, end: int | None = None) -> Int64s:
        """Nanoseconds of the records."""
        end = self.count if end is None else end
        if self.timestamp_deltas is not None:
            deltas = self.timestamp_deltas[first:end].astype(np.int64, copy=False)
            return deltas + self.base_timestamp
        return np.full(end - first, self.base_timestamp, np.int64)

    def event_times(self, first: int = 0, end: int | None = None) -> Int64s:
        """Nanoseconds that the records were given: those of the log, or earlier ones."""
        stamps = self.timestamps(first, end)
        if self.event_time is None:
            return stamps
        known = self.event_time[first : self.count if end is None else end]
        return np.where(known, known, stamps)

    def _times(self, first: int, end: int) -> Any:
        if self.timestamp_deltas is None:
            return [self.base_timestamp] * (end - first)  # one number, not as many as records
        return self.timestamps(first, end).tolist()

    def values(self, first: int = 0, end: int | None = None) -> list[bytes | None]:
        """Payloads alone."""
        return self._items(self.value, first, self.count if end is None else end)

    def value_views(self, first: int, end: int) -> list[memoryview]:
        """Payloads without a copy; one that is None is empty."""
        body, start = memoryview(self.body), self.value.start
        places = (self.value.ends[first : end + 1] + start).tolist()
        return [body[low:high] for low, high in pairwise(places)]

    def keys(self, first: int = 0, end: int | None = None) -> list[bytes | None]:
        """Keys alone."""
        end = self.count if end is None else end
        return [None] * (end - first) if self.key is None else self._items(self.key, first, end)

    def records(self, first: int = 0, end: int | None = None) -> list[Record]:
        """Whole records. One C-level `map` over the columns: no Python code per record."""
        return list(map(Record, *self.fields(first, self.count if end is None else end)))

    def fields(self, first: int, end: int, *, whole: bool = False) -> list[Any]:
        """The fields of records, in the order `Record` has them, an iterable for each.

        Those at the end that no record has are left out, unless they are wanted as a whole.
        """
        fields: list[Any] = [
            self.values(first, end),
            repeat(None) if self.key is None else self._items(self.key, first, end),
            repeat(NO_HEADERS) if self.headers is None else self.header_dicts(first, end),
            repeat(None) if self.tag is None else self.text(self.tag, first, end),
            repeat(None) if self.node is None else self.text(self.node, first, end),
            self._times(first, end),
            self.offsets(first, end).tolist(),
        ]
        rest = (
            self.priority, self.expires_at, self.not_before, self.operation, self.event_time,
        )  # fmt: skip
        if whole or any(column is not None for column in rest):
            fields += [repeat(0) if c is None else c[first:end].tolist() for c in rest]
        return fields

    def record(self, index: int) -> Record:
        """One whole record. Plain ones without an array in between: 2 us instead of 10."""
        if self.value.validity >= 0 or not self.has_values_only():
            return self.records(index, index + 1)[0]
        _, _, ends, start = self.value
        value = bytes(self.body[start + int(ends[index]) : start + int(ends[index + 1])])
        deltas = self.timestamp_deltas
        timestamp = self.base_timestamp + (0 if deltas is None else int(deltas[index]))
        return Record(value, None, NO_HEADERS, None, None, timestamp, self.offset_of(index))

    def _items(self, column: Binary, first: int, end: int) -> list[bytes | None]:
        body, start = self.body, column.start
        ends = column.ends[first : end + 1]
        if type(body) is not bytes:  # a map: what is wanted of it is copied at once
            low, high = int(ends[0]), int(ends[-1])
            body, start = bytes(body[start + low : start + high]), -low
        items = cut_evenly(body, start, ends)
        if items is None:
            items = [body[a:b] for a, b in pairwise((ends + start).tolist())]
        if column.validity >= 0:
            for index in np.flatnonzero(~self.valid(column)[first:end]).tolist():
                items[index] = None
        return items

    def valid(self, column: Binary) -> npt.NDArray[np.bool_]:
        """Which items of a nullable column are there."""
        bits = np.frombuffer(self.body, np.uint8, (self.count + 7) // 8, column.validity)
        return np.unpackbits(bits, count=self.count, bitorder="little").view(np.bool_)

    def text(self, column: Binary | None, first: int, end: int) -> Any:
        """The items of a column of text."""
        if column is None:
            return repeat(None)
        items = self._items(column, first, end)
        try:
            return [item if item is None else item.decode() for item in items]
        except UnicodeDecodeError as error:
            raise CorruptionError(f"batch has a tag or node that is not UTF-8: {error}") from error

    def header_dicts(self, first: int, end: int) -> list[Mapping[str, bytes]]:
        """The headers of records; there are some."""
        assert self.headers is not None
        _, ends, keys, values = self.headers
        places = ends[first : end + 1].tolist()
        low, high = places[0], places[-1]
        try:
            names = [k.decode() for k in self._items(keys, low, high) if k is not None]
        except UnicodeDecodeError as error:
            raise CorruptionError(f"batch has a header name that is not UTF-8: {error}") from error
        pairs = list(zip(names, self._items(values, low, high), strict=True))
        return [
            dict(pairs[a - low : b - low]) if b > a else NO_HEADERS  # type: ignore[arg-type]
            for a, b in pairwise(places)
        ]


def _parse_headers(cursor: Cursor, count: int) -> tuple[int, Int32s, Binary, Binary]:
    at, ends = cursor.ends(count)
    pairs = int(ends[-1])
    return at, ends, cursor.binary(pairs, nullable=False), cursor.binary(pairs, nullable=False)


def _check_deltas(batch: Batch, max_timestamp: int) -> None:
    deltas = batch.timestamp_deltas
    if deltas is not None and (deltas[0] != 0 or bool((deltas[1:] < deltas[:-1]).any())):
        raise CorruptionError("batch timestamps do not rise from the base")
    offsets = batch.offset_deltas
    if offsets is not None and (offsets[0] != 0 or bool((offsets[1:] <= offsets[:-1]).any())):
        raise CorruptionError("batch offsets do not rise from the base")
    # In Python's numbers, so that no sum of base and delta overflows its 64 bits.
    if batch.base_timestamp + (0 if deltas is None else int(deltas[-1])) != max_timestamp:
        raise CorruptionError("batch timestamps do not end at the largest of its header")
