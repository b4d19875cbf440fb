"""The ends of the log: how far each shard's log was durable, at least.

A witness beside the log. Without it, a newest log file that was cut short, zeroed or replaced by
an older one is just a shorter log. It is written when a store is closed and with every snapshot;
a log only grows, so an old one is still right.

Ends file header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRAENDS` |
| version | u32 | format version, 1 |
| count | u32 | shards |
| identity | 16s | of the store |
| checksum | u64 | XXH3-64 of the bytes before it and of all entries |

Ends file entry, little-endian, in the order of shards:

| field | type | meaning |
|---|---|---|
| shard | u32 | number of the shard |
| reserved | u32 | zero, checked |
| first_lsn | u64 | the newest log file, by the lsn of its first byte |
| end_lsn | u64 | everything below it was durable |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from xxhash import xxh3_64

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError

MAGIC = b"STRAENDS"
VERSION = 1

HEADER = struct.Struct("<8sII16sQ")
HEADER_BYTES = 40
assert HEADER.size == HEADER_BYTES

ENTRY = struct.Struct("<IIQQ")
ENTRY_BYTES = 24
assert ENTRY.size == ENTRY_BYTES

_LSN_MAX = (1 << 63) - 1


class End(NamedTuple):
    """Where the log of a shard ended."""

    first_lsn: int
    end_lsn: int


class Ends(NamedTuple):
    """Where the log of a store ended."""

    identity: bytes
    shards: dict[int, End]


def encode_ends(ends: Ends) -> bytes:
    """The content of the file."""
    entries = b"".join(ENTRY.pack(n, 0, *end) for n, end in sorted(ends.shards.items()))
    head = HEADER.pack(MAGIC, VERSION, len(ends.shards), ends.identity, 0)[:-8]
    return head + struct.pack("<Q", _checksum(head, entries)) + entries


def decode_ends(data: bytes) -> Ends:
    """Read and verify the file."""
    if data[:8] != MAGIC:
        raise BadMagicError(f"not the ends of a log: it starts {data[:8]!r}, not {MAGIC!r}")
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"ends of the log cut short: {len(data)} of {HEADER_BYTES} bytes")
    _, version, count, identity, checksum = HEADER.unpack_from(data)
    if checksum != _checksum(data[: HEADER_BYTES - 8], data[HEADER_BYTES:]):
        raise CorruptionError("checksum of the ends of the log does not match")
    if version > VERSION:
        raise UnsupportedVersionError(
            f"ends of the log of format version {version}; this release reads up to {VERSION}: "
            "upgrade it"
        )
    if version != VERSION or len(data) != HEADER_BYTES + count * ENTRY_BYTES:
        raise CorruptionError(f"ends of the log of version {version} have {len(data)} bytes")
    shards: dict[int, End] = {}
    for shard, reserved, first_lsn, end_lsn in ENTRY.iter_unpack(data[HEADER_BYTES:]):
        if reserved or shard <= max(shards, default=-1) or not first_lsn <= end_lsn <= _LSN_MAX:
            raise CorruptionError("ends of the log have an entry that is not possible")
        shards[shard] = End(first_lsn, end_lsn)
    return Ends(identity, shards)


def _checksum(*parts: bytes) -> int:
    digest = xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()
