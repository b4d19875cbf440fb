"""Bodies of control frames: MessagePack maps, padded with zeros to a multiple of 8.

Control body, little-endian:

| field | type | meaning |
|---|---|---|
| length | u32 | bytes of MessagePack that follow |
| reserved | u32 | zero, checked |

A `TOPIC` frame's body is a `TopicBody`; its header has the topic's id, and the number of the
change (0 when created) in `base_offset`: the highest number wins, wherever it is replayed from.
A `RESERVE` frame's body is its number, again the highest wins; the offset that an ephemeral
topic goes on from is in `base_offset`.

Reserve body, little-endian:

| field | type | meaning |
|---|---|---|
| number | u64 | of the reservation, from 1 |
"""

from __future__ import annotations

import struct

import msgspec

from stratalog.errors import CorruptionError
from stratalog.format.frame import ALIGNMENT

PREFIX = struct.Struct("<II")
assert PREFIX.size == 8


RESERVE = struct.Struct("<Q")
assert RESERVE.size == 8


# Nothing nested: decoding takes no more memory and no deeper a stack than the body has bytes.
Option = str | int | float | bool | None


class TopicBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic as the log remembers it."""

    name: str
    kind: str
    created_at: int
    options: dict[str, Option]


_encoder = msgspec.msgpack.Encoder()
_topic_decoder = msgspec.msgpack.Decoder(TopicBody)


def encode_topic(topic: TopicBody) -> bytes:
    """The body of a `TOPIC` frame."""
    data = _encoder.encode(topic)
    return b"".join((PREFIX.pack(len(data), 0), data, bytes(-len(data) % ALIGNMENT)))


def decode_topic(body: bytes) -> TopicBody:
    """Read the body of a `TOPIC` frame."""
    if len(body) < PREFIX.size:
        raise CorruptionError("control body cut short")
    length, reserved = PREFIX.unpack_from(body)
    if reserved != 0 or not 0 <= len(body) - PREFIX.size - length < ALIGNMENT:
        raise CorruptionError(f"control body of {len(body)} bytes claims {length}")
    try:
        return _topic_decoder.decode(body[PREFIX.size : PREFIX.size + length])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"topic frame does not decode: {error}") from error


def encode_reserve(number: int) -> bytes:
    """The body of a `RESERVE` frame."""
    return RESERVE.pack(number)


def decode_reserve(body: bytes) -> int:
    """Read the body of a `RESERVE` frame."""
    if len(body) != RESERVE.size:
        raise CorruptionError(f"reserve body of {len(body)} bytes, {RESERVE.size} expected")
    number: int = RESERVE.unpack(body)[0]
    return number
