"""A record of a series topic: a batch of points by column.

The points of one series stand together, their times rise, and no two of them have the same time: a
reader needs no series id per point, finds the first and the last of a series at the ends of its
run, and adds up a window with one vectorised sum.

The header is followed by sections, each padded with zeros to 8 bytes: the times (i64 a point), the
type of each field (u8; 128 more if some points lack the field), the number of points of each series
(u32), the ends of the names (u32: series first, then fields), the names (UTF-8, joined), and then
for each field its validity bits if some points lack it, and its values: f64, i64, a byte of 0 or 1,
or ends (u32, one more than points) and UTF-8 text. A value that a point lacks is zero or empty.

Points header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 4s | `STPT` |
| version | u8 | format version, 1 |
| reserved | u8 | zero |
| field_count | u16 | fields that the points have |
| series_count | u32 | series that they are of |
| point_count | u32 | points |
| names_length | u32 | bytes of all names |
| length | u32 | of the whole record |

A series is named by its tags as the line protocol writes them, sorted by tag: `host=a,region=eu`,
with a backslash before a comma, an equals sign, a space or a backslash. One without tags is empty.
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.errors import (
    BadMagicError,
    CorruptionError,
    OptionError,
    TooLargeError,
    UnsupportedVersionError,
)
from stratalog.options import TIME_MAX

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAGIC = b"STPT"
VERSION = 1

HEADER = struct.Struct("<4sBBHIIII")
HEADER_BYTES = 24
assert HEADER.size == HEADER_BYTES

FIELDS_MAX = 1000
"""Fields of a point."""
NAME_BYTES_MAX = 1024
"""Longest name of a field, and of all tags of a series together, as they are stored."""

_LACKING = 128


class FieldType(enum.IntEnum):
    """Types of a field; numbers are for ever."""

    FLOAT = 1
    INT = 2
    BOOL = 3
    TEXT = 4


DTYPES: dict[FieldType, type[Any]] = {
    FieldType.FLOAT: np.float64,
    FieldType.INT: np.int64,
    FieldType.BOOL: np.bool_,
    FieldType.TEXT: np.object_,
}


# As they are stored; text has ends and bytes instead.
_CODES: dict[int, str] = {FieldType.FLOAT: "<f8", FieldType.INT: "<i8", FieldType.BOOL: "u1"}


class Column(NamedTuple):
    """The values of a field: float64, int64, bool, or objects that are text."""

    type: FieldType
    values: npt.NDArray[Any]
    valid: Bools | None = None
    """Which points have the field; None if all do."""

    def take(self, chosen: Any) -> Column:
        """The values at these places, or where a mask says so."""
        return Column(
            self.type, self.values[chosen], None if self.valid is None else self.valid[chosen]
        )


class Points:
    """Points of some series, ordered by series and time."""

    __slots__ = ("counts", "fields", "series", "times")

    def __init__(
        self,
        series: list[bytes],
        counts: npt.NDArray[np.uint32],
        times: Int64s,
        fields: Mapping[str, Column],
    ) -> None:
        self.series = series
        self.counts = counts
        """Points of each series."""
        self.times = times
        self.fields = fields

    def __len__(self) -> int:
        return len(self.times)

    @property
    def ends(self) -> Int64s:
        """The place after the last point of each series."""
        return np.cumsum(self.counts, dtype=np.int64)

    def split(self, points_max: int) -> Iterator[Points]:
        """Cut into parts of so many points at most."""
        if len(self) <= points_max:
            yield self
            return
        codes = np.repeat(np.arange(len(self.series)), self.counts)
        for start in range(0, len(self), points_max):
            part = slice(start, start + points_max)
            chosen = codes[part]
            first = int(chosen[0])
            counts = np.bincount(chosen - first)
            yield Points(
                self.series[first : int(chosen[-1]) + 1],
                counts.astype(np.uint32),
                self.times[part],
                {name: column.take(part) for name, column in self.fields.items()},
            )


# --- names of series --------------------------------------------------------------------

_SPECIAL = re.compile(r"([,= \\])")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_TAG = re.compile(r"((?:[^\\,=]|\\.)+)=((?:[^\\,=]|\\.)+)(?:,|\Z)", re.DOTALL)


def series_key(tags: Mapping[str, str]) -> bytes:
    """The name of a series by its tags."""
    pairs = sorted(tags.items())
    text = ",".join(f"{escape(name)}={escape(value)}" for name, value in pairs)
    key = text.encode()
    if len(key) > NAME_BYTES_MAX:
        raise TooLargeError(
            f"The tags of a series take {len(key)} bytes, {NAME_BYTES_MAX} are possible: "
            f"{text[:60]!r}..."
        )
    return key


def series_tags(key: bytes) -> dict[str, str]:
    """The tags of a series by its name."""
    tags = {}
    position, text = 0, key.decode()
    while position < len(text):
        match = _TAG.match(text, position)
        if match is None:
            raise CorruptionError(f"{text[:80]!r} is not the name of a series")
        tags[unescape(match[1])] = unescape(match[2])
        position = match.end()
    return tags


def escape(text: str) -> str:
    """A tag's name or value with a backslash before what would end it."""
    return _SPECIAL.sub(r"\\\1", text)


def unescape(text: str) -> str:
    """A tag's name or value as it was before `escape`."""
    return _ESCAPED.sub(r"\1", text) if "\\" in text else text


def combine_tags(
    names: list[str], values: list[list[str]], codes: list[npt.NDArray[Any]], count: int
) -> tuple[list[bytes], npt.NDArray[Any]]:
    """Names of series, and which of them each point is of, from tags by column."""
    if not names:
        return [b""], np.zeros(count, np.uint8)
    combined = codes[0].astype(np.int64)
    for more, texts in zip(codes[1:], values[1:], strict=True):
        combined = combined * len(texts) + more
    size = int(np.prod([len(texts) for texts in values], dtype=np.float64))
    if size <= 1 << 20:
        there = np.flatnonzero(np.bincount(combined, minlength=size))
        place = np.zeros(size, np.int64)
        place[there] = np.arange(len(there))
        combined = place[combined]
    else:
        there, combined = np.unique(combined, return_inverse=True)
    chosen: list[npt.NDArray[Any]] = []
    rest = there
    for texts in reversed(values):
        chosen.append(rest % len(texts))
        rest = rest // len(texts)
    columns = [
        [texts[place] for place in places.tolist()]
        for texts, places in zip(values, reversed(chosen), strict=True)
    ]
    keys = [series_key(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]
    return keys, combined


# --- order ------------------------------------------------------------------------------


def arrange(
    series: Sequence[bytes],
    codes: npt.NDArray[Any] | None,
    times: Int64s,
    fields: Mapping[str, Column],
) -> Points:
    """Points in the order that a record has; of two with one series and time the later counts.

    `codes` says for each point which of the series it is of; None if there is one series.
    """
    count = len(times)
    if codes is None or len(series) == 1:
        order, is_last = _order_one(times)
        counts = np.array([count], np.uint32)
        names = list(series)
    else:
        order, is_last = _order_many(codes, times, len(series))
        counts = np.bincount(codes, minlength=len(series)).astype(np.uint32)
        names = list(series)
    if is_last is not None:
        chosen = order[is_last] if order is not None else np.flatnonzero(is_last)
        if codes is None:
            counts = np.array([len(chosen)], np.uint32)
        else:
            counts = np.bincount(codes[chosen], minlength=len(series)).astype(np.uint32)
        order = chosen
    if order is not None:
        times = times[order]
        fields = {name: column.take(order) for name, column in fields.items()}
    if not counts.all():  # a series that no point is of
        names = [name for name, number in zip(names, counts.tolist(), strict=True) if number]
        counts = counts[counts > 0]
    return Points(names, counts, times, fields)


def _order_one(times: Int64s) -> tuple[Any, Bools | None]:
    steps = times[1:] > times[:-1]
    if steps.all():
        return None, None
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    return order, _is_last(ordered[1:] != ordered[:-1])


def _order_many(
    codes: npt.NDArray[Any], times: Int64s, series_count: int
) -> tuple[Any, Bools | None]:
    # NumPy sorts 16 bits and less by radix, in a fifth of the time.
    narrow = np.uint8 if series_count <= 1 << 8 else np.uint16
    narrow = narrow if series_count <= 1 << 16 else np.uint32  # type: ignore[assignment]
    small = codes.astype(narrow, copy=False)
    if bool((times[1:] >= times[:-1]).all()):
        order = np.argsort(small, kind="stable")
    else:
        order = np.lexsort((times, small))
    ordered, sorted_codes = times[order], small[order]
    differs = (ordered[1:] != ordered[:-1]) | (sorted_codes[1:] != sorted_codes[:-1])
    return order, _is_last(differs)


def _is_last(differs: Bools) -> Bools | None:
    """Which points are the last of theirs with one time; None if all are."""
    return None if differs.all() else np.append(differs, True)


# --- bytes ------------------------------------------------------------------------------


def encode_points(points: Points) -> bytes:
    """Points as the value of a record."""
    names = [*points.series, *(name.encode() for name in points.fields)]
    joined = b"".join(names)
    sections = [
        points.times.astype("<i8", copy=False).tobytes(),
        bytes(
            column.type | (_LACKING if column.valid is not None else 0)
            for column in points.fields.values()
        ),
        points.counts.astype("<u4", copy=False).tobytes(),
        np.cumsum([len(name) for name in names], dtype="<u4").tobytes(),
        joined,
    ]
    for column in points.fields.values():
        sections += _encode_column(column)
    padded = [section + bytes(-len(section) % 8) for section in sections]
    length = HEADER_BYTES + sum(map(len, padded))
    if length >= 1 << 31:
        raise TooLargeError(f"A record of {length} bytes is too large: write fewer points at once.")
    header = HEADER.pack(
        MAGIC, VERSION, 0, len(points.fields), len(points.series), len(points), len(joined), length
    )
    return b"".join([header, *padded])


def _encode_column(column: Column) -> list[bytes]:
    values, valid = column.values, column.valid
    sections = []
    if valid is not None:
        sections.append(np.packbits(valid, bitorder="little").tobytes())
    if column.type == FieldType.TEXT:
        ends, data = _encode_texts(values, valid)
        return [*sections, ends, data]
    if valid is not None:
        values = np.where(valid, values, values.dtype.type(0))
    return [*sections, values.astype(_CODES[column.type], copy=False).tobytes()]


def _encode_texts(values: npt.NDArray[np.object_], valid: Bools | None) -> tuple[bytes, bytes]:
    import pyarrow as pa

    texts = pa.array(values, pa.string(), mask=None if valid is None else ~valid)
    if isinstance(texts, pa.ChunkedArray):  # Arrow cuts where 31 bits end
        raise TooLargeError("Texts of 2 GiB are too large: write fewer points at once.")
    _, ends, data = texts.buffers()
    size = 4 * (len(values) + 1)
    if ends is None or ends.size < size:  # of no values
        return bytes(size), b""
    raw = ends.slice(0, size).to_pybytes()
    length = int.from_bytes(raw[-4:], "little")
    return raw, b"" if data is None else data.slice(0, length).to_pybytes()


def decode_points(
    data: bytes | memoryview, wanted: Sequence[str] | None = None, *, check: bool = False
) -> Points:
    """Points of a record; only the `wanted` fields, without a copy of their numbers.

    All lengths are checked. `check` looks at every byte as well: order, padding, text.
    """
    if bytes(data[:4]) != MAGIC:
        raise BadMagicError(f"not a record of points: it starts {bytes(data[:4])!r}")
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"points header cut short: {len(data)} of {HEADER_BYTES} bytes")
    _, version, reserved, field_count, series_count, count, names_length, length = (
        HEADER.unpack_from(data)
    )
    if version > VERSION:
        raise UnsupportedVersionError(
            f"points of format version {version}; this release reads up to {VERSION}: upgrade it"
        )
    if version != VERSION or reserved or length != len(data):
        raise CorruptionError("points header does not hold")
    if field_count > FIELDS_MAX or series_count > count or not (series_count or not count):
        raise CorruptionError(f"{count} points of {series_count} series, {field_count} fields")
    cursor = _Cursor(data, check)
    times: Int64s = cursor.take("<i8", count)
    types: list[int] = cursor.take("u1", field_count).tolist()
    counts: npt.NDArray[np.uint32] = cursor.take("<u4", series_count)
    ends: list[int] = cursor.take("<u4", series_count + field_count).tolist()
    names = _names(bytes(cursor.take("u1", names_length)), ends)
    if int(counts.sum(dtype=np.int64)) != count or not counts.all():
        raise CorruptionError("points of its series are not those of the record")
    try:
        fields = [name.decode() for name in names[series_count:]]
        if check:
            for key in names[:series_count]:
                key.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"a name of the points is not UTF-8: {error}") from error
    if len(set(fields)) != field_count or len(set(names[:series_count])) != series_count:
        raise CorruptionError("a name of the points is there twice")
    columns = {}
    for name, type in zip(fields, types, strict=True):
        column = cursor.column(type, count, is_wanted=wanted is None or name in wanted)
        if column is not None:
            columns[name] = column
    cursor.finish()
    points = Points(names[:series_count], counts, times, columns)
    if check:
        _check_times(points)
    return points


def _check_times(points: Points) -> None:
    times = points.times
    if not len(times):
        return
    rises = times[1:] > times[:-1]
    rises[points.ends[:-1] - 1] = True  # the next series begins
    if not rises.all() or int(times.min()) < 0 or int(times.max()) > TIME_MAX:
        raise CorruptionError("times of a series do not rise")


def _names(joined: bytes, ends: list[int]) -> list[bytes]:
    starts = [0, *ends]
    if starts != sorted(starts) or starts[-1] != len(joined):
        raise CorruptionError("ends of names do not rise to the end of them")
    return [joined[start:end] for start, end in zip(starts, ends, strict=False)]


class _Cursor:
    """Takes sections off a record in order, never past its end."""

    def __init__(self, data: bytes | memoryview, check: bool) -> None:
        self._data = data
        self._position = HEADER_BYTES
        self._check = check

    def take(self, dtype: str, count: int) -> npt.NDArray[Any]:
        """A section of so many numbers."""
        start, size = self._position, np.dtype(dtype).itemsize * count
        end = start + (size + 7 & ~7)
        if end > len(self._data):
            raise CorruptionError(f"points cut short by {end - len(self._data)} bytes")
        if self._check and any(self._data[start + size : end]):
            raise CorruptionError("padding of points is not zero")
        self._position = end
        return np.frombuffer(self._data, dtype, count, start)

    def column(self, type: int, count: int, *, is_wanted: bool) -> Column | None:
        """The sections of a field; None unless it is wanted."""
        is_lacking, kind = type & _LACKING, type & ~_LACKING
        if kind not in _CODES and kind != FieldType.TEXT:
            raise CorruptionError(f"a field of points has type {kind}, which never was")
        valid = None
        if is_lacking:
            bits = self.take("u1", (count + 7) // 8)
            if is_wanted or self._check:
                valid = np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
        if kind == FieldType.TEXT:
            ends = self.take("<u4", count + 1)
            data = self.take("u1", int(ends[-1]))
            if not (is_wanted or self._check):
                return None
            return Column(FieldType.TEXT, _texts(ends, data), valid)
        values = self.take(_CODES[kind], count)
        if kind == FieldType.BOOL:
            if self._check and bool((values > 1).any()):
                raise CorruptionError("a bool of points is neither 0 nor 1")
            values = values != 0
        return Column(FieldType(kind), values, valid) if is_wanted else None

    def finish(self) -> None:
        """Raise unless every byte was taken."""
        if self._position != len(self._data):
            raise CorruptionError(f"points end at {self._position}, not at {len(self._data)}")


def _texts(ends: npt.NDArray[np.uint32], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.object_]:
    if ends[0] or bool((ends[1:] < ends[:-1]).any()):
        raise CorruptionError("ends of texts do not rise from 0")
    import pyarrow as pa

    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    texts = pa.Array.from_buffers(pa.string(), len(ends) - 1, buffers)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"a text of points is not UTF-8: {error}") from error
    values: npt.NDArray[np.object_] = texts.to_numpy(zero_copy_only=False)
    return values


def check_field_name(name: Any) -> str:
    """The name of a field, which is text that is not empty."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"A field has a name that is text, not {name!r}.")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise TooLargeError(
            f"The field name {name[:40]!r}... has {size} bytes of {NAME_BYTES_MAX}."
        )
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"Field {name!r} cannot be written as UTF-8: {error}") from None
    return name
