"""The store file: what makes a directory a store, and which format it speaks.

Store file, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRALOG\\0` |
| version | u32 | format version of the directory, 1 or 2 |
| reserved | u32 | zero, checked |
| identity | 16s | random, made once |
| created_at | i64 | nanoseconds since 1970 |
| checksum | u64 | XXH3-64 of the bytes before it |

In a directory of version 2 the frames of the log are bound to their store and shard by the seed of
their checksums: see frames. A directory keeps the version it was made with.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError

MAGIC = b"STRALOG\0"
VERSION = 2

STORE = struct.Struct("<8sII16sqQ")
STORE_BYTES = 48
assert STORE.size == STORE_BYTES

_CHECKSUM_AT = STORE_BYTES - 8


class StoreFile(NamedTuple):
    """Who a store is."""

    identity: bytes
    created_at: int
    version: int = 1

    @property
    def log_identity(self) -> bytes:
        """The identity that frames of the log are bound to; empty if they are bound to none."""
        return self.identity if self.version > 1 else b""


def encode_store(store: StoreFile) -> bytes:
    """The content of the store file."""
    data = STORE.pack(MAGIC, store.version, 0, store.identity, store.created_at, 0)[:_CHECKSUM_AT]
    return data + struct.pack("<Q", xxh3_64_intdigest(data))


def decode_store(data: bytes) -> StoreFile:
    """Read and verify the store file."""
    if data[: len(MAGIC)] != MAGIC:
        raise BadMagicError(f"not a store file: it starts {data[: len(MAGIC)]!r}")
    if len(data) < STORE_BYTES:
        raise CorruptionError(f"store file cut short: {len(data)} of {STORE_BYTES} bytes")
    _, version, reserved, identity, created_at, checksum = STORE.unpack_from(data)
    # Before the checksum: a later version may be longer and keep its checksum elsewhere.
    if version > VERSION:
        raise UnsupportedVersionError(
            f"the store has format version {version}; this release reads up to {VERSION}: "
            "upgrade stratalog to open it"
        )
    if checksum != xxh3_64_intdigest(data[:_CHECKSUM_AT]):
        raise CorruptionError("store file checksum does not match")
    if not 1 <= version <= VERSION or reserved != 0 or len(data) != STORE_BYTES:
        raise CorruptionError(f"store file of version {version}, reserved {reserved} is not valid")
    return StoreFile(identity, created_at, version)
