"""Control bodies: topics, reservations, and what happened to records."""

from __future__ import annotations

import struct

import msgspec
import pytest
from pyroaring import BitMap64

from stratalog.errors import CorruptionError
from stratalog.format.control import (
    CHECKPOINT,
    FLOOR,
    PREFIX,
    REASONS,
    TopicBody,
    decode_checkpoint,
    decode_delete,
    decode_floor,
    decode_offsets,
    decode_reserve,
    decode_tier,
    decode_topic,
    encode_checkpoint,
    encode_delete,
    encode_floor,
    encode_reserve,
    encode_tier,
    encode_topic,
)
from stratalog.format.names import cold_directory, cold_name
from stratalog.format.segment import SUMMARY_BYTES, State, Summary

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


# --- epochs ----------------------------------------------------------------------------------


def test_the_epoch_of_a_topic_reads_back() -> None:
    """How often the name was dropped before is part of what a topic is."""
    topic = msgspec.structs.replace(TOPIC, epoch=3)
    assert decode_topic(encode_topic(topic)) == topic


def test_a_topic_whose_name_is_new_is_written_without_an_epoch() -> None:
    """As it was before there were any, so that old files and new ones are the same bytes."""
    assert b"epoch" not in encode_topic(TOPIC)
    assert decode_topic(_body(msgspec.msgpack.encode(FIELDS))).epoch == 0


@pytest.mark.parametrize("epoch", ["1", None, 1.5])
def test_an_epoch_that_is_no_number_is_corruption(epoch: object) -> None:
    """It is checked like all other fields."""
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_topic(_body(msgspec.msgpack.encode(FIELDS | {"epoch": epoch})))


# --- sets of offsets -------------------------------------------------------------------------

SETS = [
    BitMap64(),
    BitMap64([0]),
    BitMap64([5, 7, (1 << 63) - 1]),
    BitMap64(range(100_000)),
    BitMap64(range(0, 60_000, 2)),
    BitMap64(offset << 40 for offset in range(100)),
]


@pytest.mark.parametrize("offsets", SETS)
def test_a_set_of_offsets_reads_back(offsets: BitMap64) -> None:
    """Sparse, dense, far apart and empty; as they are and with runs made of them."""
    body = encode_delete(offsets)
    assert len(body) % 8 == 0
    assert decode_delete(body) == offsets
    offsets = offsets.copy()
    offsets.run_optimize()
    assert decode_delete(encode_delete(offsets)) == offsets


@pytest.mark.parametrize("offsets", SETS)
def test_a_set_of_offsets_cut_short_is_corruption(offsets: BitMap64) -> None:
    """At every length, also at none at all, which was an IndexError."""
    data = offsets.serialize()
    for length in range(0, len(data), 1 + len(data) // 500):
        with pytest.raises(CorruptionError, match="a set of offsets"):
            decode_offsets(data[:length])
        with pytest.raises(CorruptionError, match="a set of offsets"):
            decode_delete(_body(data[:length]))


@pytest.mark.parametrize("offset", [1 << 63, (1 << 64) - 1])
def test_an_offset_that_cannot_be_is_corruption(offset: int) -> None:
    """Offsets stay below 2**63, also those that are gone."""
    with pytest.raises(CorruptionError, match="too large"):
        decode_delete(encode_delete(BitMap64([1, offset])))


def _set(containers: int, content: bytes, high: int = 0) -> bytes:
    """A set with one part, whose own header claims `containers`."""
    return struct.pack("<QI", 1, high) + struct.pack("<II", 12346, containers) + content


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 1 << 60) + bytes(100),
        _set(1 << 30, bytes(100)),
        _set(1, struct.pack("<HHI", 0, 2, 16) + struct.pack("<HHH", 9, 3, 3)),  # does not rise
        _set(1, struct.pack("<HHI", 0, 65535, 16) + bytes(8192)),  # 65536 items, no bit set
        struct.pack("<QII", 1, 0, 12347) + b"\1" + struct.pack("<HHHHH", 0, 0, 1, 65535, 65535),
        struct.pack("<QII", 1, 0, 99),
    ],
)
def test_a_set_of_offsets_that_is_not_well_formed_is_corruption(data: bytes) -> None:
    """Counts that lie, items out of order, a run past the end: nothing reads outside of them."""
    with pytest.raises(CorruptionError, match="does not decode"):
        decode_offsets(data)


# --- tiers -----------------------------------------------------------------------------------

SUMMARY = Summary(5, 100, 90, 4096, -3, 1 << 60, 0, 77, State.COLD)


NAME = cold_name(cold_directory(bytes(range(16)), bytes(8)), 7, SUMMARY.first_offset, 1 << 63)


@pytest.mark.parametrize("name", ["", NAME])
@pytest.mark.parametrize("location", ["", "s3://bucket/größe", "/mnt/cold", "x" * 7])
def test_a_tier_reads_back(location: str, name: str) -> None:
    """The segment in short, where it went, and its name there: earlier releases wrote none."""
    body = encode_tier(SUMMARY, location, name)
    assert len(body) % 8 == 0
    assert decode_tier(body) == (SUMMARY, location, name)


@pytest.mark.parametrize(
    "name", ["x", "../" + NAME, NAME + "\0", cold_name("-".join(NAME.split("-")[:1]), 7, 5, 0),
             NAME.replace("0005-", "0006-")],
)  # fmt: skip
def test_a_tier_with_another_name_than_its_own_is_corruption(name: str) -> None:
    """A name is a place: it must not lead anywhere else, nor to another segment."""
    with pytest.raises(CorruptionError, match="cannot be"):
        decode_tier(encode_tier(SUMMARY, "/cold", name))


def test_a_tier_cut_short_is_corruption() -> None:
    """Below the length of a summary there is no segment to speak of."""
    body = encode_tier(SUMMARY, "")
    for length in range(SUMMARY_BYTES):
        with pytest.raises(CorruptionError, match="cut short"):
            decode_tier(_body(body[8 : 8 + length]))
    with pytest.raises(CorruptionError, match="cut short"):
        decode_tier(b"")


@pytest.mark.parametrize(
    "summary",
    [
        SUMMARY._replace(first_offset=101),
        SUMMARY._replace(end_offset=1 << 63),
        SUMMARY._replace(state=3),
    ],
)
def test_a_tier_of_an_impossible_segment_is_corruption(summary: Summary) -> None:
    """The description of a segment is checked as in a snapshot."""
    with pytest.raises(CorruptionError, match="segment"):
        decode_tier(encode_tier(summary, "/cold"))


def test_an_address_that_is_not_utf_8_is_corruption() -> None:
    """Text is checked when it is read."""
    body = encode_tier(SUMMARY, "####").replace(b"####", b"\xff\xff\xff\xff")
    with pytest.raises(CorruptionError, match="not UTF-8"):
        decode_tier(body)


# --- checkpoints and floors ------------------------------------------------------------------


@pytest.mark.parametrize(("segment", "position"), [(0, 0), (7, 64), ((1 << 63) - 1,) * 2])
def test_a_checkpoint_reads_back(segment: int, position: int) -> None:
    """Sixteen bytes, up to the largest offset there is."""
    body = encode_checkpoint(segment, position)
    assert len(body) == 16
    assert decode_checkpoint(body) == (segment, position)


@pytest.mark.parametrize("numbers", [(1 << 63, 0), (0, 1 << 63), ((1 << 64) - 1,) * 2])
def test_a_checkpoint_with_an_impossible_number_is_corruption(numbers: tuple[int, int]) -> None:
    """No file and no topic is that long."""
    with pytest.raises(CorruptionError, match="too large"):
        decode_checkpoint(CHECKPOINT.pack(*numbers))


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("offset", [0, 9, (1 << 63) - 1])
def test_a_floor_reads_back(offset: int, reason: str) -> None:
    """Every reason has its number."""
    body = encode_floor(offset, reason)
    assert len(body) == 16
    assert decode_floor(body) == (offset, reason)


def test_reasons_keep_their_numbers() -> None:
    """They are on disk: a new one goes to the end."""
    assert REASONS[:4] == ("", "evicted", "expired", "damaged")


@pytest.mark.parametrize("numbers", [(1 << 63, 0), (0, len(REASONS)), (0, (1 << 64) - 1)])
def test_a_floor_with_an_impossible_number_is_corruption(numbers: tuple[int, int]) -> None:
    """An impossible offset, or an unknown reason."""
    with pytest.raises(CorruptionError, match=f"offset {numbers[0]} and reason {numbers[1]}"):
        decode_floor(FLOOR.pack(*numbers))


@pytest.mark.parametrize("length", [*range(16), 17, 24])
def test_a_checkpoint_or_a_floor_of_another_length_is_corruption(length: int) -> None:
    """They are 16 bytes or they are not one."""
    for decode in (decode_checkpoint, decode_floor):
        with pytest.raises(CorruptionError, match=f"{length} bytes, 16 expected"):
            decode(bytes(length))
