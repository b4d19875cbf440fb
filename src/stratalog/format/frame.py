"""The frame: a 64-byte header in front of every batch and every control message.

Frame header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 4s | `STRA` |
| version | u8 | format version, 1 |
| type | u8 | what the body is: see `FrameType`; 0 is never written (preallocated zeros) |
| flags | u16 | bits 0-2 the codec, bits 3-14 the optional columns, bit 15 zero |
| body_length | u32 | bytes after the header, a multiple of 8 |
| count | u32 | records in the body; frames in that of a `MULTI` frame; 0 for control frames |
| topic_id | u64 | interned id of the topic |
| base_offset | u64 | offset of the first record |
| base_timestamp | i64 | nanoseconds, of the first record |
| max_timestamp | i64 | nanoseconds, the largest, which is that of the last record |
| body_checksum | u64 | XXH3-64 of the body as stored |
| header_checksum | u32 | low half of the seeded XXH3-64 of this header with this field zero |
| unsynced | u32 | in a log: 8-byte words before this frame not known durable when it was written |

Two checksums: headers can be scanned alone, and a batch can be given its offset without reading its
body again. In a log file the header checksum is seeded with the file's place, so that neither a
frame left over in a recycled file nor a file of another store or shard ever validates; elsewhere
the seed is 0. The seed is the low 63 bits of the XXH3-64 of the store's identity (16 bytes), the
shard (u32) and the file's first lsn (u64); in a directory of version 1, the first lsn alone. Frames
inside a `MULTI` frame have a seed of their own. After the last frame of a recycled file, and at the
front of one that is to be recycled, stand eight zeros: the end mark. Those of a new file are zeros
anyway.

`unsynced` distinguishes a torn tail from damage. A valid frame after a broken place proves damage
only if the broken place was durable before that frame was written; without a sync in between, a
crash may well keep the later write and lose the earlier one.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError

MAGIC = b"STRA"
VERSION = 1
ALIGNMENT = 8

# A body is mapped to Arrow, whose offsets are signed 32-bit; half of that leaves no corner case.
BODY_BYTES_MAX = 1 << 30

_PLACE = struct.Struct("<16sIQ")
_SEED_MASK = (1 << 63) - 1

HEADER = struct.Struct("<4sBBHIIQQqqQII")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES

_CHECKSUM_AT = 56
_ZERO4 = bytes(4)


class FrameType(enum.IntEnum):
    """The content of a frame. Numbers are for ever."""

    RECORDS = 1
    TOPIC = 2
    DELETE = 3
    GROUP = 4
    CHECKPOINT = 5
    MULTI = 6
    """Has frames of several topics inside: all of them are there or none."""
    ADOPT = 7
    RESERVE = 8
    """Offsets below `base_offset` may have been given out by an ephemeral topic."""
    FLOOR = 9
    """Records below `base_offset` are gone for good."""
    TIER = 10
    """The segment that starts at `base_offset` is in the cold store."""
    DROP = 11
    """The topic is gone; its id is never used again."""
    LOST = 12
    """Offsets of a topic that were damaged and given up."""
    SKIP = 13
    """Stands where a repair found damage, so that the frames after it are reached."""
    ROUTE = 14
    """A route between topics: made, paused, resumed or dropped."""
    FORWARD = 15
    """Records of a route's source below `base_offset` were forwarded."""
    LAKE = 16
    """A manifest lists the files of the topic's lake; `base_offset` is its generation."""
    SCHEDULE = 17
    """A schedule of messages: made, changed, paused, resumed or dropped."""
    DUE = 18
    """The message of a due time was put; `base_offset` is the schedule's change."""


class Flag:
    """Optional columns of a record batch. Bits 0 to 2 are the codec; none is free any more.

    Plain numbers: `&` with an `IntFlag` costs 2 us, and a parser asks twelve times a batch.
    """

    TIMESTAMPS = 1 << 3
    OFFSETS = 1 << 4
    KEYS = 1 << 5
    NULL_VALUES = 1 << 6
    HEADERS = 1 << 7
    TAGS = 1 << 8
    NODES = 1 << 9
    PRIORITIES = 1 << 10
    EXPIRES_AT = 1 << 11
    NOT_BEFORE = 1 << 12
    OPERATIONS = 1 << 13
    SHORT_TIMESTAMPS = 1 << 14
    EVENT_TIMES = 1 << 15


CODEC_MASK = 0b111
# Plain numbers, as they come from a header: they are found without asking an enum's `==`.
_TYPES = frozenset(map(int, FrameType))


class FrameHeader(NamedTuple):
    """A decoded header, its checksum verified."""

    type: int
    flags: int
    body_length: int
    count: int  # type: ignore[assignment]  # a tuple's own count() is not missed
    topic_id: int
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    body_checksum: int
    unsynced: int


def log_seed(identity: bytes, shard: int, first_lsn: int) -> int:
    """The seed of the header checksums in a log file; `identity` is empty in version 1."""
    if not identity:
        return first_lsn
    return xxh3_64_intdigest(_PLACE.pack(identity, shard, first_lsn)) & _SEED_MASK


def encode_header(
    type: int,
    flags: int,
    body_length: int,
    count: int,
    topic_id: int,
    base_offset: int,
    base_timestamp: int,
    max_timestamp: int,
    body_checksum: int,
    seed: int,
    unsynced: int = 0,
) -> bytes:
    """The 64 bytes that go in front of a body."""
    # Packed twice: that is cheaper than cutting the checksum into the first result.
    header = HEADER.pack(
        MAGIC, VERSION, type, flags, body_length, count, topic_id, base_offset,
        base_timestamp, max_timestamp, body_checksum, 0, unsynced,
    )  # fmt: skip
    return HEADER.pack(
        MAGIC, VERSION, type, flags, body_length, count, topic_id, base_offset,
        base_timestamp, max_timestamp, body_checksum,
        xxh3_64_intdigest(header, seed) & 0xFFFFFFFF, unsynced,
    )  # fmt: skip


def decode_header(data: bytes, position: int = 0, *, seed: int) -> FrameHeader:
    """Read and verify the header at `position`; raises a `FormatError` that says what is wrong."""
    if len(data) - position < HEADER_BYTES:
        have = max(0, len(data) - position)
        raise CorruptionError(f"frame header cut short: {have} of {HEADER_BYTES} bytes")
    (
        magic, version, type, flags, body_length, count, topic_id, base_offset,
        base_timestamp, max_timestamp, body_checksum, checksum, unsynced,
    ) = HEADER.unpack_from(data, position)  # fmt: skip
    if magic != MAGIC:
        raise BadMagicError(f"no frame here: it starts {magic!r}, not {MAGIC!r}")
    gap = position + _CHECKSUM_AT
    zeroed = data[position:gap] + _ZERO4 + data[gap + 4 : position + HEADER_BYTES]
    if checksum != xxh3_64_intdigest(zeroed, seed) & 0xFFFFFFFF:
        raise CorruptionError("frame header checksum does not match")
    # The checksum keeps its place in all versions, so a newer frame is known from a broken one.
    if version > VERSION:
        raise UnsupportedVersionError(
            f"frame of format version {version}; this release reads up to {VERSION}: upgrade it"
        )
    if version != VERSION:
        raise CorruptionError(f"frame of format version {version}, which never was")
    if type not in _TYPES:
        if type == 0:
            raise CorruptionError("frame type 0 is never written")
        raise UnsupportedVersionError(
            f"frame of type {type}, which this release does not know: upgrade it"
        )
    if body_length > BODY_BYTES_MAX or body_length % ALIGNMENT:
        raise CorruptionError(f"frame body length {body_length} is not possible")
    # As the tuple it is: the class's own constructor is a function in Python, 250 ns more.
    return tuple.__new__(FrameHeader, (
        type, flags, body_length, count, topic_id, base_offset,
        base_timestamp, max_timestamp, body_checksum, unsynced,
    ))  # fmt: skip


def check_body(header: FrameHeader, data: bytes | memoryview, start: int = 0) -> None:
    """Verify the body at `start` against its header; raises `CorruptionError`."""
    body = memoryview(data)[start : start + header.body_length]
    if len(body) != header.body_length:
        raise CorruptionError(f"frame body cut short: {len(body)} of {header.body_length} bytes")
    if xxh3_64_intdigest(body) != header.body_checksum:
        raise CorruptionError("frame body checksum does not match")


body_checksum = xxh3_64_intdigest
"""The checksum of a body that goes into the header: the function itself, without a call between."""
