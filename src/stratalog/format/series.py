"""Two things of a series topic that are not points: its rules, and its state in a snapshot.

Rules are a record of the topic like any other, told from points by their magic: what keeps and what
downsamples points changes at one offset, for live stores, recovery and Spark alike.

Rules header, little-endian, followed by MessagePack (`Rules`):

| field | type | meaning |
|---|---|---|
| magic | 4s | `STRU` |
| version | u8 | format version, 1 |
| reserved | 3s | zero |

A downsampled series has a cursor as well: the offset of its source up to which its points are
computed. It stands in one frame with the points.

Cursor, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 4s | `STCU` |
| version | u8 | format version, 1 |
| reserved | 3s | zero |
| source_id | u64 | id of the topic that it is computed from |
| offset | u64 | records of it below this are in the points |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from stratalog.errors import CorruptionError, UnsupportedVersionError

RULES_MAGIC = b"STRU"
CURSOR_MAGIC = b"STCU"
VERSION = 1

RULES = struct.Struct("<4sB3s")
RULES_BYTES = 8
assert RULES.size == RULES_BYTES

CURSOR = struct.Struct("<4sB3sQQ")
CURSOR_BYTES = 24
assert CURSOR.size == CURSOR_BYTES

TIERS_MAX = 16
"""Downsampling rules of one series topic."""


class Tier(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A rule that downsamples: one point for each window of each series."""

    window_ns: int
    aggregate: str
    keep_ns: int
    """How long its points are kept; 0 is for ever."""


class Rules(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The rules for points as they grow old."""

    raw_ns: int = 0
    """Age at which points go; 0 is never."""
    tiers: list[Tier] = []
    evicted_before: int = 0
    """Points before this time may be gone already, whatever the rules say now."""


class Cursor(NamedTuple):
    """How far a downsampled series is."""

    source_id: int
    offset: int


class FieldState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A field, with its values in the newest point of each series."""

    name: str
    type: int
    values: bytes
    """Numbers as a record of points has them; texts as MessagePack."""
    valid: bytes
    """A byte of 0 or 1 for each series."""


class SeriesSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of a series topic."""

    version: int
    keys: list[bytes]
    times: bytes
    """Times of the newest points, i64 each."""
    offsets: bytes
    """Offsets of the records that have those, i64 each."""
    fields: list[FieldState]
    blocks: bytes
    """Five columns of i64: first and end offset, least and greatest time, points."""
    block_series: list[bytes | None]
    """Sets of series, u32 each, by their place in `keys`; None is any."""
    block_sets: bytes
    """For each block the place of its set, u32."""
    rules: Rules
    cursor: tuple[int, int] | None


_rules_decoder = msgspec.msgpack.Decoder(Rules)
_decoder = msgspec.msgpack.Decoder(SeriesSnapshot)


def encode_rules(rules: Rules) -> bytes:
    """Rules as the value of a record."""
    return RULES.pack(RULES_MAGIC, VERSION, bytes(3)) + msgspec.msgpack.encode(rules)


def decode_rules(data: bytes | memoryview) -> Rules:
    """Rules of a record."""
    if len(data) < RULES_BYTES:
        raise CorruptionError(f"rules of a series cut short: {len(data)} bytes")
    _check("rules of a series", *RULES.unpack_from(data)[1:3])
    try:
        rules = _rules_decoder.decode(data[RULES_BYTES:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"rules of a series do not decode: {error}") from error
    tiers = rules.tiers
    numbers = [rules.raw_ns, rules.evicted_before, *(tier.keep_ns for tier in tiers)]
    if len(tiers) > TIERS_MAX or any(tier.window_ns < 1 for tier in tiers) or min(numbers) < 0:
        raise CorruptionError("rules of a series cannot be")
    return rules


def encode_cursor(cursor: Cursor) -> bytes:
    """A cursor as the value of a record."""
    return CURSOR.pack(CURSOR_MAGIC, VERSION, bytes(3), *cursor)


def decode_cursor(data: bytes | memoryview) -> Cursor:
    """The cursor of a record."""
    if len(data) != CURSOR_BYTES:
        raise CorruptionError(f"cursor of a series has {len(data)} bytes of {CURSOR_BYTES}")
    _, version, reserved, source_id, offset = CURSOR.unpack(data)
    _check("cursor of a series", version, reserved)
    return Cursor(source_id, offset)


def _check(what: str, version: int, reserved: bytes) -> None:
    if version > VERSION:
        raise UnsupportedVersionError(
            f"{what} of format version {version}; this release reads up to {VERSION}: upgrade it"
        )
    if version != VERSION or any(reserved):
        raise CorruptionError(f"{what}: its header does not hold")


def encode_series(state: SeriesSnapshot) -> bytes:
    """The state of a series topic, for a snapshot."""
    return msgspec.msgpack.encode(state)


def decode_series(data: bytes) -> SeriesSnapshot:
    """Decode what `encode_series` made; every length is checked."""
    try:
        state = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"state of a series does not decode: {error}") from error
    if state.version != VERSION:
        raise CorruptionError(f"state of a series has version {state.version}")
    count = len(state.keys)
    blocks = len(state.block_sets) // 4
    if len(set(state.keys)) != count or len(state.times) != 8 * count:
        raise CorruptionError("state of a series: its series do not hold")
    if len(state.offsets) != 8 * count or len(state.block_sets) % 4:
        raise CorruptionError("state of a series: its columns do not hold")
    if len(state.blocks) != 40 * blocks or any(len(one or b"") % 4 for one in state.block_series):
        raise CorruptionError("state of a series: its blocks do not hold")
    return state
