"""A table's state in a file: all entries and their older versions, by column, in chunks.

A state file is a header, chunks one after the other, and a chunk without rows that ends it. It is
derived from the records of a table, and one that cannot be read is made again from those. A row is
one version of a key; rows of a key follow each other, the oldest first.

The records of a table have a key, and a value unless they are deletions (operation 1), which have
none. The tag is `bytes` where a key was put as bytes, and not there where it was put as text. A
counter's value is its decimal digits.

State file header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRATABL` |
| version | u32 | format version, 1 |
| reserved | u32 | zero |
| topic_id | u64 | of the table |
| applied | u64 | records below this offset are in the state, and later ones may be |
| horizon | u64 | below this offset, versions of keys may be missing |
| identity | 16s | of the store it belongs to |
| checksum | u64 | XXH3-64 of the bytes before it |

State chunk header, little-endian:

| field | type | meaning |
|---|---|---|
| count | u32 | rows; 0 in the chunk that ends the file |
| reserved | u32 | zero |
| key_bytes | u64 | of all keys |
| value_bytes | u64 | of all values |
| total | u64 | rows of the file up to the end of this chunk |
| checksum | u64 | XXH3-64 of this header's bytes before it, then of the body |

The body of a chunk has a section for each column, each padded with zeros to a multiple of 8:

| section | meaning |
|---|---|
| version | i64 x n, offsets of the records |
| timestamp | i64 x n, nanoseconds since 1970 |
| expires_at | i64 x n, nanoseconds since 1970, 0 is never |
| flag | u8 x n, 1 delete, 2 the key was put as bytes, 4 the value is in the record alone |
| key_end | u32 x n, where keys end |
| value_end | u32 x n, where values end |
| key | key_bytes |
| value | value_bytes |
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError
from stratalog.format.columns import pad

MAGIC = b"STRATABL"
VERSION = 1

HEADER = struct.Struct("<8sIIQQQ16sQ")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES

CHUNK = struct.Struct("<IIQQQQ")
CHUNK_BYTES = 40
assert CHUNK.size == CHUNK_BYTES

DELETED, BYTES_KEY, IN_LOG = 1, 2, 4
"""Flags of a row."""

_ALL_FLAGS = DELETED | BYTES_KEY | IN_LOG
_BODY_BYTES_MAX = 1 << 31


class StateHeader(NamedTuple):
    """The header of a state file."""

    topic_id: int
    applied: int
    horizon: int
    identity: bytes


class ChunkHeader(NamedTuple):
    """The header of a chunk, and how long its body is."""

    rows: int
    key_bytes: int
    value_bytes: int
    total: int
    checksum: int
    body_bytes: int


class Rows(NamedTuple):
    """Versions of keys, by column."""

    versions: Sequence[int]
    timestamps: Sequence[int]
    expires_at: Sequence[int]
    flags: bytes
    keys: list[bytes]
    values: list[bytes]
    """Empty where a row is a deletion, or its value is in the record alone."""


def encode_state_header(header: StateHeader) -> bytes:
    """Encode the first bytes of a state file."""
    head = HEADER.pack(
        MAGIC, VERSION, 0, header.topic_id, header.applied, header.horizon, header.identity, 0
    )[:-8]
    return head + struct.pack("<Q", _checksum(head))


def decode_state_header(data: bytes) -> StateHeader:
    """Read and verify the first bytes of a state file."""
    if data[:8] != MAGIC:
        raise BadMagicError(f"not a state file: it starts {data[:8]!r}, not {MAGIC!r}")
    if len(data) != HEADER_BYTES:
        raise CorruptionError(f"state file header cut short: {len(data)} of {HEADER_BYTES} bytes")
    _, version, reserved, topic_id, applied, horizon, identity, checksum = HEADER.unpack(data)
    if checksum != _checksum(data[:-8]):
        raise CorruptionError("state file header checksum does not match")
    if version > VERSION:
        raise UnsupportedVersionError(
            f"state file of format version {version}; this release reads up to {VERSION}: "
            "upgrade it"
        )
    if version != VERSION or reserved:
        raise CorruptionError(f"state file of format version {version}, which never was")
    return StateHeader(topic_id, applied, horizon, identity)


def encode_chunk(rows: Rows, total: int) -> bytes:
    """Encode rows as a chunk; `total` counts those of the file up to here. No rows end the file."""
    keys, values = b"".join(rows.keys), b"".join(rows.values)
    body = b"".join(
        (
            np.array(rows.versions, np.int64).tobytes(),
            np.array(rows.timestamps, np.int64).tobytes(),
            np.array(rows.expires_at, np.int64).tobytes(),
            pad(rows.flags),
            _encode_ends(rows.keys),
            _encode_ends(rows.values),
            pad(keys),
            pad(values),
        )
    )
    head = CHUNK.pack(len(rows.keys), 0, len(keys), len(values), total, 0)[:-8]
    return head + struct.pack("<Q", _checksum(head, body)) + body


def decode_chunk_header(data: bytes) -> ChunkHeader:
    """Read the header of a chunk, which says how long its body is; the checksum covers both."""
    if len(data) != CHUNK_BYTES:
        raise CorruptionError(f"state chunk header cut short: {len(data)} of {CHUNK_BYTES} bytes")
    count, reserved, key_bytes, value_bytes, total, checksum = CHUNK.unpack(data)
    body_bytes = 24 * count + _padded(count) + 2 * _padded(4 * count)
    body_bytes += _padded(key_bytes) + _padded(value_bytes)
    if reserved or body_bytes > _BODY_BYTES_MAX:
        raise CorruptionError(f"state chunk of {count} rows and {body_bytes} bytes cannot be")
    return ChunkHeader(count, key_bytes, value_bytes, total, checksum, body_bytes)


def decode_chunk(header: ChunkHeader, head: bytes, body: bytes) -> Rows:
    """Read and verify the body of a chunk."""
    if len(body) != header.body_bytes:
        raise CorruptionError(f"state chunk of {len(body)} bytes, {header.body_bytes} expected")
    if header.checksum != _checksum(head[:-8], body):
        raise CorruptionError("state chunk checksum does not match")
    count = header.rows
    numbers = np.frombuffer(body, np.int64, 3 * count)
    position = 24 * count
    flags = body[position : position + count]
    position += _padded(count)
    key_ends = np.frombuffer(body, np.uint32, count, position)
    position += _padded(4 * count)
    value_ends = np.frombuffer(body, np.uint32, count, position)
    position += _padded(4 * count)
    if any(byte > _ALL_FLAGS for byte in set(flags)):
        raise CorruptionError("state chunk with a flag that is not known")
    if (numbers < 0).any():
        raise CorruptionError("state chunk with a version or a time below zero")
    keys = _cut(body, position, key_ends, header.key_bytes)
    values = _cut(body, position + _padded(header.key_bytes), value_ends, header.value_bytes)
    return Rows(
        numbers[:count].tolist(),
        numbers[count : 2 * count].tolist(),
        numbers[2 * count :].tolist(),
        flags,
        keys,
        values,
    )


def _encode_ends(items: list[bytes]) -> bytes:
    return pad(np.cumsum(list(map(len, items)), dtype=np.int64).astype(np.uint32).tobytes())


def _cut(body: bytes, start: int, ends: np.ndarray, length: int) -> list[bytes]:
    """Cut a section at its ends, once they are known to lie inside of it."""
    bounds = np.concatenate((np.zeros(1, np.int64), ends.astype(np.int64)))
    if (np.diff(bounds) < 0).any() or bounds[-1] != length:
        raise CorruptionError("state chunk with ends that do not hold")
    places = (bounds + start).tolist()
    return [body[low:high] for low, high in pairwise(places)]


def _padded(length: int) -> int:
    return length + 7 & ~7


def _checksum(*parts: bytes) -> int:
    digest = xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()
