"""From points to frames: encoding of series writes, outside of any lock.

A write of many points becomes a few records of up to 65,536 points, in one frame as long as they
fit into `batch_bytes_max`; a frame is atomic.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from stratalog.errors import TooLargeError
from stratalog.format.columns import encode_values
from stratalog.format.points import (
    HEADER,
    MAGIC,
    VERSION,
    Column,
    FieldType,
    Points,
    encode_points,
)
from stratalog.format.series import Tier
from stratalog.log.commit_group import Entry, check_batch, records_entry
from stratalog.log.topic import TopicLog

RECORD_POINTS = 1 << 16
"""Points of a record at most."""

# Bytes of a record besides its points.
_SPARE_BYTES = 256

_FLOAT = struct.Struct("<d")
_INT = struct.Struct("<q")


def tier_name(source: str, tier: Tier) -> str:
    """Name the series that a rule downsamples into."""
    for unit, size in (("d", 86400 * 10**9), ("h", 3600 * 10**9), ("m", 60 * 10**9), ("s", 10**9)):
        if tier.window_ns % size == 0:
            return f"{source}@{tier.window_ns // size}{unit}.{tier.aggregate}"
    return f"{source}@{tier.window_ns}ns.{tier.aggregate}"


def encode_point(key: bytes, time: int, fields: dict[str, tuple[FieldType, Any]]) -> bytes:
    """Encode one point as the value of a record, as `encode_points` does."""
    names = [key, *(name.encode() for name in fields)]
    joined = b"".join(names)
    ends = np.cumsum([len(name) for name in names], dtype="<u4").tobytes()
    sections = [
        time.to_bytes(8, "little"),
        bytes(type for type, _ in fields.values()),
        b"\1\0\0\0",
        ends,
        joined,
    ]
    for type, value in fields.values():
        if type == FieldType.FLOAT:
            sections.append(_FLOAT.pack(value))
        elif type == FieldType.INT:
            sections.append(_INT.pack(value))
        elif type == FieldType.BOOL:
            sections.append(b"\1" if value else b"\0")
        else:
            text = value.encode()
            sections += [bytes(4) + len(text).to_bytes(4, "little"), text]
    padded = [section + bytes(-len(section) % 8) for section in sections]
    length = HEADER.size + sum(map(len, padded))
    header = HEADER.pack(MAGIC, VERSION, 0, len(fields), 1, 1, len(joined), length)
    return b"".join([header, *padded])


def encode_all(log: TopicLog, points: Points) -> list[bytes]:
    """Encode points as values of records, none larger than a record may be."""
    most = min(log.record_bytes_max, log.batch_bytes_max - _SPARE_BYTES)
    size = sum(map(_point_bytes, points.fields.values())) + 8
    part = max(1, min(RECORD_POINTS, (most - _SPARE_BYTES) // (size + 1)))
    found: list[bytes] = []
    for piece in points.split(part):
        found += _encode(log, piece, most)
    return found


def _point_bytes(column: Column) -> int:
    return {FieldType.BOOL: 1, FieldType.TEXT: 4}.get(column.type, 8)


def _encode(log: TopicLog, points: Points, most: int) -> list[bytes]:
    """Encode one record, or several if it is too large: texts and names may have any length."""
    try:
        data = encode_points(points)
    except TooLargeError:
        if len(points) < 2:
            raise
        data = b""
    if data and len(data) <= most:
        return [data]
    if len(points) < 2:
        raise TooLargeError(
            f"A point of series {log.name!r} takes {len(data)} bytes, and {most} are possible. "
            "Nothing was written."
        )
    halves = points.split((len(points) + 1) // 2)
    return [value for half in halves for value in _encode(log, half, most)]


def entry_of(log: TopicLog, values: list[bytes]) -> Entry:
    """Encode records as one frame."""
    encoded = encode_values(values)
    assert encoded is not None  # the values are bytes
    check_batch(log, len(encoded[0]))
    return records_entry(log, 0, *encoded)


def entries_of(log: TopicLog, values: list[bytes]) -> list[Entry]:
    """Encode records as frames, as few as possible."""
    entries: list[Entry] = []
    held: list[bytes] = []
    size = 0
    for value in values:
        if held and size + len(value) + _SPARE_BYTES + 4 * len(held) > log.batch_bytes_max:
            entries.append(entry_of(log, held))
            held, size = [], 0
        held.append(value)
        size += len(value)
    return [*entries, entry_of(log, held)]
