"""Many records of points decoded at once: a record of one point costs no call of its own.

Single writes leave records of one point each. Those of numbers that every point has are gathered by
column, whatever their number; the others are decoded one by one. `decode_points` is the general
way, and a test shows that both come to the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.format.points import (
    HEADER_BYTES,
    Column,
    FieldType,
    Int64s,
    Points,
    arrange,
    decode_points,
)

# One series and one point, as the header has them.
_SINGLE = 1 | 1 << 32
# Fewer are decoded one by one in less time.
_SINGLES_MIN = 4
# Times, then types of up to eight fields and the one count.
_SHAPE_AT = HEADER_BYTES + 8

_ORDER = "\0offset"


class Part(NamedTuple):
    """Points, and the offset of the record that each is from."""

    points: Points
    offsets: Int64s
    """Per point."""


def decode_records(
    values: Sequence[bytes | memoryview], offsets: Int64s, wanted: Sequence[str] | None = None
) -> list[Part]:
    """Points of records with these offsets; only the `wanted` fields."""
    if len(values) < _SINGLES_MIN:
        return [_part(value, int(at), wanted) for value, at in zip(values, offsets, strict=True)]
    heads = b"".join([bytes(value[:HEADER_BYTES]).ljust(HEADER_BYTES, b"\0") for value in values])
    words = np.frombuffer(heads, "<u8").reshape(-1, HEADER_BYTES // 8)
    is_single = (words[:, 1] == _SINGLE) & (words[:, 0] >> 48 <= 8)
    parts: list[Part] = []
    chosen = np.flatnonzero(is_single)
    left = np.flatnonzero(~is_single)
    if len(chosen) < _SINGLES_MIN:
        left = np.arange(len(values))
    else:
        parts, more = _singles(values, chosen, words, offsets, wanted)
        left = np.sort(np.concatenate([left, more]))
    parts += [_part(values[place], int(offsets[place]), wanted) for place in left.tolist()]
    return parts


def _part(value: bytes | memoryview, offset: int, wanted: Sequence[str] | None) -> Part:
    points = decode_points(value, wanted)
    return Part(points, np.broadcast_to(np.int64(offset), len(points)))


def _singles(
    values: Sequence[bytes | memoryview],
    places: Int64s,
    words: npt.NDArray[np.uint64],
    offsets: Int64s,
    wanted: Sequence[str] | None,
) -> tuple[list[Part], Int64s]:
    """Parts of records that have one point of numbers, and the places of those that do not."""
    chosen = [bytes(values[place]) for place in places.tolist()]
    counts = (words[places, 0] >> np.uint64(48)).astype(np.int64)
    names = (words[places, 2] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    # Types, the count, ends of names and names: alike in all records of one series and its fields.
    ends = _SHAPE_AT + 8 * (counts > 0) + 8 + (4 * (1 + counts) + 7 & ~7) + (names + 7 & ~7)
    lengths = np.fromiter(map(len, chosen), np.int64, len(chosen))
    shapes = [value[_SHAPE_AT:end] for value, end in zip(chosen, ends.tolist(), strict=True)]
    # The head as well: a length that is wrong must not pass for one that is right.
    known: dict[bytes, int] = {}
    codes = np.array(
        [
            known.setdefault(value[:HEADER_BYTES] + shape, len(known))
            for value, shape in zip(chosen, shapes, strict=True)
        ]
    )
    firsts = np.full(len(known), -1, np.int64)
    firsts[codes[::-1]] = np.arange(len(codes))[::-1]
    groups: dict[tuple[tuple[str, FieldType], ...], dict[int, bytes]] = {}
    is_left = np.ones(len(codes), np.bool_)
    for code, first in enumerate(firsts.tolist()):
        points = decode_points(chosen[first])  # raises if the shape is wrong
        fields = points.fields
        if all(_is_plain(column) for column in fields.values()):
            signature = tuple((name, column.type) for name, column in fields.items())
            groups.setdefault(signature, {})[code] = points.series[0]
    parts = []
    for signature, keys in groups.items():
        is_own = np.isin(codes, np.fromiter(keys, np.int64, len(keys)))
        own = np.flatnonzero(is_own & (lengths == ends + 8 * counts))
        if len(own):
            is_left[own] = False
            parts.append(
                _gather(chosen, own, codes, ends, offsets[places], signature, keys, wanted)
            )
    return parts, places[is_left]


def _is_plain(column: Column) -> bool:
    return column.valid is None and column.type != FieldType.TEXT


def _gather(
    values: list[bytes], own: Int64s, codes: npt.NDArray[Any], ends: Int64s, offsets: Int64s,
    signature: tuple[tuple[str, FieldType], ...], keys: dict[int, bytes],
    wanted: Sequence[str] | None,
) -> Part:  # fmt: skip
    """Points of one kind, by column."""
    joined = np.frombuffer(b"".join([values[place] for place in own.tolist()]), "<i8")
    sizes = (ends[own] + 8 * len(signature)) // 8
    starts = np.cumsum(sizes) - sizes
    times = joined[starts + HEADER_BYTES // 8]
    at = starts + ends[own] // 8
    fields: dict[str, Column] = {}
    for place, (name, type) in enumerate(signature):
        if wanted is None or name in wanted:
            numbers = joined[at + place]
            if type == FieldType.FLOAT:
                fields[name] = Column(type, numbers.view(np.float64))
            else:
                is_bool = type == FieldType.BOOL  # a byte, the rest is padding
                fields[name] = Column(type, numbers & 0xFF != 0 if is_bool else numbers)
    fields[_ORDER] = Column(FieldType.INT, offsets[own])
    series = list(dict.fromkeys(keys.values()))
    place_of = {key: place for place, key in enumerate(series)}
    code_places = np.zeros(max(keys) + 1, np.int64)
    for code, key in keys.items():
        code_places[code] = place_of[key]
    points = arrange(series, code_places[codes[own]], times, fields)
    columns = dict(points.fields)
    orders = columns.pop(_ORDER).values
    return Part(Points(points.series, points.counts, points.times, columns), orders)
