"""Ceilings: up to where offsets may have been given out, of topics below `fsync`.

An append of class `disk` or `memory` gets its offset before its record is durable, or even
written. After a crash that took the record the offset must not be given to another one. So a file
says, ahead of time, below which offset all of them are: `reserved` is durable before an offset at
or above the one before it is given out, and so holds after a crash of the machine. `given` is
closer, and written without a sync: it holds after a process was killed on a machine that went on.
A clean close removes the file.

A ceilings file is a header and slots, each in one sector, in no order. A slot of zeros is unused.

Ceilings header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRACEIL` |
| version | u32 | format version, 1 |
| reserved | u32 | zero, checked |
| identity | 16s | of the store it belongs to |
| boot | 16s | XXH3-128 of the boot id of the machine that wrote it; zeros if that is not known |
| padding | u64 | zero, checked |
| checksum | u64 | XXH3-64 of the bytes before it |

Ceilings slot, little-endian:

| field | type | meaning |
|---|---|---|
| topic_id | u64 | interned id of the topic; never 0 |
| reserved | u64 | below it are all offsets that may have been given out, durably |
| given | u64 | the same, as long as the machine did not go down |
| checksum | u64 | XXH3-64 of the bytes before it |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError

MAGIC = b"STRACEIL"
VERSION = 1

HEADER = struct.Struct("<8sII16s16sQQ")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES

SLOT = struct.Struct("<QQQQ")
SLOT_BYTES = 32
assert SLOT.size == SLOT_BYTES

_OFFSET_MAX = (1 << 63) - 1
_UNUSED = bytes(SLOT_BYTES)


class Ceiling(NamedTuple):
    """The two ceilings of a topic."""

    reserved: int
    given: int


class CeilingsFile(NamedTuple):
    """The content of a ceilings file."""

    identity: bytes
    boot: bytes
    ceilings: dict[int, Ceiling]
    """By topic id."""
    damaged: int
    """Slots that do not validate."""


def boot_digest(boot_id: str) -> bytes:
    """A boot id as the header has it."""
    return xxh3_128_digest(boot_id.encode()) if boot_id else bytes(16)


def encode_ceilings_header(identity: bytes, boot: bytes) -> bytes:
    """The first bytes of the file."""
    head = HEADER.pack(MAGIC, VERSION, 0, identity, boot, 0, 0)[:-8]
    return head + struct.pack("<Q", xxh3_64_intdigest(head))


def encode_slot(topic_id: int, ceiling: Ceiling) -> bytes:
    """One slot."""
    head = SLOT.pack(topic_id, ceiling.reserved, ceiling.given, 0)[:-8]
    return head + struct.pack("<Q", xxh3_64_intdigest(head))


def decode_ceilings(data: bytes) -> CeilingsFile:
    """Read a ceilings file; a damaged slot is counted, a damaged header raises."""
    if data[:8] != MAGIC:
        raise BadMagicError(f"not a ceilings file: it starts {data[:8]!r}, not {MAGIC!r}")
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"ceilings header cut short: {len(data)} of {HEADER_BYTES} bytes")
    _, version, reserved, identity, boot, padding, checksum = HEADER.unpack_from(data)
    if checksum != xxh3_64_intdigest(data[: HEADER_BYTES - 8]):
        raise CorruptionError("ceilings header checksum does not match")
    if version > VERSION:
        raise UnsupportedVersionError(
            f"ceilings of format version {version}; this release reads up to {VERSION}: upgrade it"
        )
    if version != VERSION or reserved or padding:
        raise CorruptionError("ceilings header has reserved bits set, or a version that never was")
    ceilings: dict[int, Ceiling] = {}
    damaged = 0
    for position in range(HEADER_BYTES, len(data) - SLOT_BYTES + 1, SLOT_BYTES):
        slot = data[position : position + SLOT_BYTES]
        if slot == _UNUSED:
            continue
        topic_id, most, given, checksum = SLOT.unpack(slot)
        is_whole = checksum == xxh3_64_intdigest(slot[:-8])
        if not is_whole or not topic_id or not given <= most <= _OFFSET_MAX:
            damaged += 1
        else:
            ceilings[topic_id] = Ceiling(most, given)
    return CeilingsFile(identity, boot, ceilings, damaged)
