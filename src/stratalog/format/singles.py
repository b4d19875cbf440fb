"""Frames of one record each, with whatever columns, as one batch.

That is what single appends leave that are synced one by one. Parsed by itself each of them takes
10 to 20 us; here a column is found in all of them at once, and one that a record does not have
counts as empty. Batches of several records and compressed ones are left alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stratalog.errors import CorruptionError
from stratalog.format.batch import Batch
from stratalog.format.columns import add_timestamps, pad, validity_bits
from stratalog.format.frame import Flag, FrameHeader, FrameType
from stratalog.format.runs import Headers, Int64s, numbers_of

_COLUMNS = (
    Flag.KEYS | Flag.NULL_VALUES | Flag.HEADERS | Flag.TAGS | Flag.NODES | Flag.PRIORITIES
    | Flag.EXPIRES_AT | Flag.NOT_BEFORE | Flag.OPERATIONS | Flag.EVENT_TIMES
)  # fmt: skip
_WORD = 8

Mask = npt.NDArray[np.bool_]


class _OtherError(Exception):
    """These frames are something else, or do not hold together."""


def merge_singles(headers: Headers, data: bytes, starts: Int64s) -> Batch | None:
    """Verified batches of one record, whose offsets follow each other, as one.

    Their bodies start at `starts`. None if one of them is something else, or does not hold
    together: `Batch.parse` tells which, and why.
    """
    stamps = headers["base_timestamp"]
    if not are_single(headers).all() or (stamps[1:] < stamps[:-1]).any():
        return None
    try:
        return _merge(headers, _Columns(data, starts, headers["body_length"]))
    except (_OtherError, CorruptionError):
        return None


def are_single(headers: Headers) -> Mask:
    """Which frames say that they are of one record, with columns that can be merged."""
    mask: Mask = (
        (headers["count"] == 1)
        & (headers["flags"] & ~np.uint16(_COLUMNS) == 0)
        & (headers["base_timestamp"] == headers["max_timestamp"])
    )
    return mask


def _merge(headers: Headers, columns: _Columns) -> Batch:
    count, flags, stamps = len(headers), headers["flags"], headers["base_timestamp"]
    parts: list[bytes] = []
    merged = add_timestamps(parts, stamps) if stamps[0] != stamps[-1] else 0

    def nullable(flag: int) -> None:
        nonlocal merged
        present = flags & flag != 0
        if present.any():
            merged |= flag
            parts.append(validity_bits(columns.validity(present) & present))
            parts.append(columns.binary(present))

    def numbers(flag: int, dtype: type[np.generic]) -> None:
        nonlocal merged
        present = flags & flag != 0
        if present.any():
            merged |= flag
            parts.append(pad(columns.numbers(present).astype(dtype).tobytes()))

    nullable(Flag.KEYS)
    has_nulls = flags & Flag.NULL_VALUES != 0
    if has_nulls.any():
        merged |= Flag.NULL_VALUES
        parts.append(validity_bits(columns.validity(has_nulls) | ~has_nulls))
    parts.append(columns.binary(np.ones(count, np.bool_)))
    has_headers = flags & Flag.HEADERS != 0
    if has_headers.any():
        merged |= Flag.HEADERS
        parts += columns.headers(has_headers)
    nullable(Flag.TAGS)
    nullable(Flag.NODES)
    numbers(Flag.PRIORITIES, np.uint8)
    numbers(Flag.EXPIRES_AT, np.int64)
    numbers(Flag.NOT_BEFORE, np.int64)
    numbers(Flag.OPERATIONS, np.uint8)
    numbers(Flag.EVENT_TIMES, np.int64)
    columns.finish()
    body = b"".join(parts)
    first = headers[0]
    header = FrameHeader(
        FrameType.RECORDS, merged, len(body), count, int(first["topic_id"]),
        int(first["base_offset"]), int(stamps[0]), int(stamps[-1]), 0, 0,
    )  # fmt: skip
    return Batch.parse(header, body)


class _Columns:
    """Takes sections off many bodies at once, never past the end of one."""

    def __init__(self, data: bytes, starts: Int64s, lengths: npt.NDArray[np.uint32]) -> None:
        self._data = data
        self._words = numbers_of(data, np.uint64)
        self._at = starts.copy()
        self._ends = starts + lengths

    def validity(self, present: Mask) -> Mask:
        """Whether the item is there, of bodies that have the section; anything for others."""
        return (self.numbers(present) & np.uint64(1)).astype(np.bool_)

    def numbers(self, present: Mask) -> npt.NDArray[np.uint64]:
        """A section of one number, of bodies that have it; 0 for others."""
        after = self._at + np.where(present, _WORD, 0)
        if (after > self._ends).any():
            raise _OtherError
        found = np.zeros(len(present), np.uint64)
        found[present] = self._words[self._at[present] // _WORD]
        self._at = after
        return found

    def binary(self, present: Mask) -> bytes:
        """Ends and bytes of a column; empty where a body does not have it."""
        lengths = self._length(present)
        return _ends(np.cumsum(lengths)) + pad(self._take(lengths))

    def headers(self, present: Mask) -> list[bytes]:
        """Ends of pairs, their names and their values; none where a body does not have them."""
        pairs = self._length(present)
        return [_ends(np.cumsum(pairs)), self._items(present, pairs), self._items(present, pairs)]

    def _length(self, present: Mask) -> Int64s:
        """Two ends in one word: the first is 0, the second is how much there is."""
        ends = self.numbers(present).view(np.int64)
        lengths: Int64s = ends >> 32
        if (ends & 0xFFFFFFFF).any() or (lengths < 0).any():
            raise _OtherError
        return lengths

    def _items(self, present: Mask, counts: Int64s) -> bytes:
        """Ends and bytes of so many items."""
        numbers = self._words.view(np.int32)
        first = self._at // 4
        # One end more than items, padded, and one word at least if there are any.
        section = np.where(present, 4 * counts + 11 & ~7, 0)
        if (self._at + section > self._ends).any() or numbers[first[present]].any():
            raise _OtherError
        lengths = np.zeros(len(counts), np.int64)
        lengths[present] = numbers[(first + counts)[present]]
        own_ends = b"".join(self._cut(self._at + 4, 4 * counts))
        self._at = self._at + section
        before = np.cumsum(lengths) - lengths
        ends = np.frombuffer(own_ends, np.int32) + before.repeat(counts)
        return _ends(ends) + pad(self._take(lengths))

    def _take(self, lengths: Int64s) -> bytes:
        """The next bytes of each body, padded there, joined."""
        after = self._at + (lengths + 7 & ~7)
        if (lengths < 0).any() or (after > self._ends).any():
            raise _OtherError
        taken = b"".join(self._cut(self._at, lengths))
        self._at = after
        return taken

    def _cut(self, starts: Int64s, lengths: Int64s) -> list[bytes]:
        spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        return [self._data[start:end] for start, end in spans]

    def finish(self) -> None:
        """Raise unless every byte was taken."""
        if (self._at != self._ends).any():
            raise _OtherError


def _ends(ends: Int64s) -> bytes:
    """A section of ends; the first one, 0, is put in front."""
    section = np.zeros(len(ends) + 1, np.int32)
    section[1:] = ends
    return pad(section.tobytes())
