"""Control bodies: topics and reservations."""

from __future__ import annotations

import msgspec
import pytest

from stratalog.errors import CorruptionError
from stratalog.format.control import (
    PREFIX,
    TopicBody,
    decode_reserve,
    decode_topic,
    encode_reserve,
    encode_topic,
)

TOPIC = TopicBody(
    "orders/größe ✓", "topic", 1_700_000_000_000_000_000, {"compression": "zstd", "ttl": 1.5}
)
FIELDS = msgspec.to_builtins(TOPIC)


def _body(data: bytes) -> bytes:
    return PREFIX.pack(len(data), 0) + data + bytes(-len(data) % 8)


def test_a_topic_reads_back() -> None:
    """Name, kind, time and options survive, padded to a multiple of 8."""
    body = encode_topic(TOPIC)
    assert decode_topic(body) == TOPIC
    assert len(body) % 8 == 0
    assert decode_topic(_body(msgspec.msgpack.encode(FIELDS))) == TOPIC


def test_every_length_of_name_is_padded_right() -> None:
    """No remainder of the division by 8 is a special case."""
    for length in range(1, 20):
        topic = TopicBody("n" * length, "topic", 0, {})
        body = encode_topic(topic)
        assert len(body) % 8 == 0
        assert decode_topic(body) == topic


@pytest.mark.parametrize("length", [0, 4, 7])
def test_a_topic_without_its_prefix_is_corruption(length: int) -> None:
    """Too short for its own length is not an index error."""
    with pytest.raises(CorruptionError, match="cut short"):
        decode_topic(encode_topic(TOPIC)[:length])


@pytest.mark.parametrize("difference", [-8, -100, 8, 1 << 31])
def test_a_topic_whose_length_is_wrong_is_corruption(difference: int) -> None:
    """The length must reach into the last word, and no further."""
    body = encode_topic(TOPIC)
    length = PREFIX.unpack_from(body)[0] + difference
    with pytest.raises(CorruptionError, match=f"claims {max(length, 0)}"):
        decode_topic(PREFIX.pack(max(length, 0), 0) + body[8:])


def test_reserved_bytes_of_a_topic_are_checked() -> None:
    """They are zero until they mean something."""
    body = encode_topic(TOPIC)
    with pytest.raises(CorruptionError):
        decode_topic(body[:4] + b"\1" + body[5:])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"name": "x"},
        FIELDS | {"name": 5},
        FIELDS | {"created_at": "now"},
        FIELDS | {"surprise": 1},
        FIELDS | {"options": [1]},
        FIELDS | {"options": {1: 2}},
    ],
)
def test_a_topic_with_wrong_fields_is_corruption(fields: dict[str, object]) -> None:
    """Missing, mistyped and unknown fields are all errors with a name."""
    with pytest.raises(CorruptionError, match="topic frame does not decode"):
        decode_topic(_body(msgspec.msgpack.encode(fields)))


def test_options_nested_without_end_are_corruption() -> None:
    """A hundred thousand lists in each other are an error, not a stack overflow.

    Options used to be decoded as anything at all, and the decoder raised a RecursionError.
    """
    data = msgspec.msgpack.encode(FIELDS | {"options": {"a": None}})
    assert data.endswith(b"\xc0")
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_topic(_body(data[:-1] + b"\x91" * 100_000 + b"\xc0"))


def test_a_name_that_is_not_utf_8_is_corruption() -> None:
    """Text is checked when it is read."""
    data = msgspec.msgpack.encode(FIELDS | {"kind": "####"}).replace(b"####", b"\xff\xff\xff\xff")
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_topic(_body(data))


@pytest.mark.parametrize("number", [1, 77, (1 << 64) - 1])
def test_a_reservation_reads_back(number: int) -> None:
    """Eight bytes, any number."""
    assert decode_reserve(encode_reserve(number)) == number


@pytest.mark.parametrize("length", [0, 7, 9, 16])
def test_a_reservation_of_another_length_is_corruption(length: int) -> None:
    """It is 8 bytes or it is not one."""
    with pytest.raises(CorruptionError, match=f"{length} bytes"):
        decode_reserve(bytes(length))
