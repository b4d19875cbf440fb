"""The claim: which objects of a cold store a directory has put there itself, and may delete.

Objects are put under the store's identity and an incarnation. A copy of the directory has the same
identity and refers to the same objects, but it gets an incarnation of its own before it puts or
deletes anything: the two never overwrite or delete each other's objects.

Claim file, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRACLAM` |
| version | u32 | format version, 1 |
| reserved | u32 | zero, checked |
| identity | 16s | of the store |
| incarnation | 8s | random |
| inode | u64 | of this file: a copy of it has another |
| checksum | u64 | XXH3-64 of the bytes before it |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError

MAGIC = b"STRACLAM"
VERSION = 1
INCARNATION_BYTES = 8

CLAIM = struct.Struct("<8sII16s8sQQ")
CLAIM_BYTES = 56
assert CLAIM.size == CLAIM_BYTES

_CHECKSUM_AT = CLAIM_BYTES - 8


class ClaimFile(NamedTuple):
    """Who puts objects into a cold store."""

    identity: bytes
    incarnation: bytes
    inode: int


def encode_claim(claim: ClaimFile) -> bytes:
    """The content of the claim file."""
    data = CLAIM.pack(MAGIC, VERSION, 0, *claim, 0)[:_CHECKSUM_AT]
    return data + struct.pack("<Q", xxh3_64_intdigest(data))


def decode_claim(data: bytes) -> ClaimFile:
    """Read and verify the claim file."""
    if data[: len(MAGIC)] != MAGIC:
        raise BadMagicError(f"not a claim file: it starts {data[: len(MAGIC)]!r}")
    if len(data) < CLAIM_BYTES:
        raise CorruptionError(f"claim file cut short: {len(data)} of {CLAIM_BYTES} bytes")
    _, version, reserved, identity, incarnation, inode, checksum = CLAIM.unpack_from(data)
    # Before the checksum: a later version may be longer and keep its checksum elsewhere.
    if version > VERSION:
        raise UnsupportedVersionError(
            f"the claim file has format version {version}; this release reads up to {VERSION}: "
            "upgrade stratalog to open the store"
        )
    if checksum != xxh3_64_intdigest(data[:_CHECKSUM_AT]):
        raise CorruptionError("claim file checksum does not match")
    if version != VERSION or reserved != 0 or len(data) != CLAIM_BYTES:
        raise CorruptionError(f"claim file of version {version}, reserved {reserved} is not valid")
    return ClaimFile(identity, incarnation, inode)
