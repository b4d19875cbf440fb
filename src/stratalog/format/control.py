"""Bodies of control frames: MessagePack maps and a few numbers, padded to a multiple of 8.

Control body, little-endian:

| field | type | meaning |
|---|---|---|
| length | u32 | bytes that follow: MessagePack, or what the type of the frame says |
| reserved | u32 | zero, checked |

A `TOPIC` frame's body is a `TopicBody`; its header has the topic's id, and the number of the
change (0 when created) in `base_offset`: the highest number wins, wherever it is replayed from.
A `DELETE` frame's body is a set of offsets in the portable format of 64-bit Roaring bitmaps.
A `LOST` frame's body is one too: offsets that are given up, and why in `base_offset`: 0 they were
damaged, 1 a crash took them, a full disk refused them, or it is open whether they were given out.
A `TIER` frame's body is a `Segment summary`, then UTF-8: the address of the cold store, a zero
byte, and the name of the object there. Earlier releases wrote neither that byte nor a name. A
`DROP` frame's body is the topic's last `TopicBody`; that of a `SKIP` frame means nothing. That of
an `ADOPT` frame is told of under manifests; it belongs to no topic, and its header has the id 0.

A `RESERVE` frame's body is its number, again the highest wins; the offset that an ephemeral
topic goes on from is in `base_offset`.

Reserve body, little-endian:

| field | type | meaning |
|---|---|---|
| number | u64 | of the reservation, from 1 |

A `CHECKPOINT` frame says that records below `base_offset` are in segments, durably.

Checkpoint body, little-endian:

| field | type | meaning |
|---|---|---|
| segment | u64 | first offset of the open segment |
| position | u64 | its durable bytes, which end with a whole batch; 0 when none is open |

A `FLOOR` frame says that records below `base_offset` are gone. Both numbers only ever rise.

Floor body, little-endian:

| field | type | meaning |
|---|---|---|
| evicted_below | u64 | below this they went without being asked for: readers see a gap |
| reason | u64 | why they last did: 0 never, 1 retention, 2 time to live, 3 damage |
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
from pyroaring import BitMap64

from stratalog.errors import CorruptionError
from stratalog.format.frame import ALIGNMENT
from stratalog.format.names import parse_cold_name
from stratalog.format.segment import SUMMARY, SUMMARY_BYTES, Summary, decode_summaries

PREFIX = struct.Struct("<II")
assert PREFIX.size == 8


RESERVE = struct.Struct("<Q")
assert RESERVE.size == 8

CHECKPOINT = struct.Struct("<QQ")
assert CHECKPOINT.size == 16

FLOOR = struct.Struct("<QQ")
assert FLOOR.size == 16

REASONS = ("", "evicted", "expired", "damaged")
"""Why records are gone, by the number in a `FLOOR` frame."""

LOST_DAMAGED, LOST_CRASH = range(2)
"""Why offsets were given up, in `base_offset` of a `LOST` frame."""

_OFFSET_MAX = (1 << 63) - 1

# Nothing nested: decoding takes no more memory and no deeper a stack than the body has bytes.
Option = str | int | float | bool | None


class TopicBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topic as the log remembers it."""

    name: str
    kind: str
    created_at: int
    options: dict[str, Option]
    epoch: int = 0


_encoder = msgspec.msgpack.Encoder()
_topic_decoder = msgspec.msgpack.Decoder(TopicBody)


def encode_topic(topic: TopicBody) -> bytes:
    """The body of a `TOPIC` frame."""
    return wrap(_encoder.encode(topic))


def decode_topic(body: bytes) -> TopicBody:
    """Read the body of a `TOPIC` frame."""
    try:
        return _topic_decoder.decode(unwrap(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"topic frame does not decode: {error}") from error


def encode_delete(offsets: BitMap64) -> bytes:
    """The body of a `DELETE` frame."""
    return wrap(offsets.serialize())


def encode_deletes(offsets: BitMap64, bytes_max: int) -> Iterator[bytes]:
    """The bodies of as many `DELETE` frames as it takes; none for no offsets."""
    body = encode_delete(offsets)
    if offsets and (len(body) <= bytes_max or len(offsets) == 1):
        yield body
    elif offsets:
        middle = offsets[len(offsets) // 2]
        low = offsets.copy()
        low.remove_range(middle, _OFFSET_MAX + 1)
        yield from encode_deletes(low, bytes_max)
        yield from encode_deletes(offsets - low, bytes_max)


def decode_delete(body: bytes) -> BitMap64:
    """Read the body of a `DELETE` frame."""
    return decode_offsets(unwrap(body))


def decode_offsets(data: bytes) -> BitMap64:
    """Read a set of offsets."""
    if not data:
        raise CorruptionError("a set of offsets is cut short")
    try:
        offsets = BitMap64.deserialize(data)
    except ValueError as error:
        raise CorruptionError(f"a set of offsets does not decode: {error}") from error
    if offsets and offsets.max() > _OFFSET_MAX:
        raise CorruptionError(f"a set of offsets has {offsets.max()}, which is too large")
    return offsets


def encode_tier(summary: Summary, location: str, name: str = "") -> bytes:
    """The body of a `TIER` frame; without a name, as earlier releases wrote it."""
    place = f"{location}\0{name}" if name else location
    return wrap(SUMMARY.pack(*summary) + place.encode())


def decode_tier(body: bytes) -> tuple[Summary, str, str]:
    """Read the body of a `TIER` frame: the segment, where it is, and its name if it says so."""
    data = unwrap(body)
    summaries = decode_summaries(data[:SUMMARY_BYTES])
    if not summaries:
        raise CorruptionError("tier frame cut short")
    try:
        location, has_name, name = data[SUMMARY_BYTES:].decode().partition("\0")
    except UnicodeDecodeError as error:
        raise CorruptionError(f"tier frame has an address that is not UTF-8: {error}") from error
    told = parse_cold_name(name)
    if has_name and (told is None or told.first_offset != summaries[0].first_offset):
        raise CorruptionError(f"tier frame names an object {name!r}, which cannot be")
    return summaries[0], location, name


def encode_checkpoint(segment: int, position: int) -> bytes:
    """The body of a `CHECKPOINT` frame."""
    return CHECKPOINT.pack(segment, position)


def decode_checkpoint(body: bytes) -> tuple[int, int]:
    """Read the body of a `CHECKPOINT` frame: the open segment and its durable bytes."""
    _check_length("checkpoint", body, CHECKPOINT.size)
    segment, position = CHECKPOINT.unpack(body)
    if segment > _OFFSET_MAX or position > _OFFSET_MAX:
        raise CorruptionError("checkpoint frame has a number that is too large")
    return segment, position


def encode_floor(evicted_below: int, reason: str) -> bytes:
    """The body of a `FLOOR` frame."""
    return FLOOR.pack(evicted_below, REASONS.index(reason))


def decode_floor(body: bytes) -> tuple[int, str]:
    """Read the body of a `FLOOR` frame: where evicted records end, and the reason."""
    _check_length("floor", body, FLOOR.size)
    evicted_below, reason = FLOOR.unpack(body)
    if evicted_below > _OFFSET_MAX or reason >= len(REASONS):
        raise CorruptionError(f"floor frame with offset {evicted_below} and reason {reason}")
    return evicted_below, REASONS[reason]


def wrap(data: bytes) -> bytes:
    """A control body around bytes of any length."""
    return b"".join((PREFIX.pack(len(data), 0), data, bytes(-len(data) % ALIGNMENT)))


def unwrap(body: bytes) -> bytes:
    """The bytes in a control body; raises `CorruptionError`."""
    if len(body) < PREFIX.size:
        raise CorruptionError("control body cut short")
    length, reserved = PREFIX.unpack_from(body)
    if reserved != 0 or not 0 <= len(body) - PREFIX.size - length < ALIGNMENT:
        raise CorruptionError(f"control body of {len(body)} bytes claims {length}")
    return body[PREFIX.size : PREFIX.size + length]


def _check_length(what: str, body: bytes, length: int) -> None:
    if len(body) != length:
        raise CorruptionError(f"{what} body of {len(body)} bytes, {length} expected")


def encode_reserve(number: int) -> bytes:
    """The body of a `RESERVE` frame."""
    return RESERVE.pack(number)


def decode_reserve(body: bytes) -> int:
    """Read the body of a `RESERVE` frame."""
    _check_length("reserve", body, RESERVE.size)
    number: int = RESERVE.unpack(body)[0]
    return number
