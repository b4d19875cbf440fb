"""Frame headers and bodies: what is written is read back, and nothing else is."""

from __future__ import annotations

import struct

import pytest
from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError
from stratalog.format.frame import (
    BODY_BYTES_MAX,
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    Flag,
    FrameHeader,
    FrameType,
    body_checksum,
    check_body,
    decode_header,
    encode_header,
)

SEED = 4096
BODY = b"a body..a second" * 3
FIELDS = FrameHeader(
    type=FrameType.RECORDS,
    flags=Flag.KEYS | 1,
    body_length=len(BODY),
    count=3,
    topic_id=(1 << 64) - 1,
    base_offset=1 << 40,
    base_timestamp=-5,
    max_timestamp=(1 << 63) - 1,
    body_checksum=body_checksum(BODY),
    unsynced=77,
)


def _encode(fields: FrameHeader, seed: int = SEED) -> bytes:
    return encode_header(**fields._asdict(), seed=seed)


def _forge(seed: int = SEED, **changes: object) -> bytes:
    """A header with any field changed and the checksum right for it."""
    names = ["magic", "version", *FrameHeader._fields[:-1], "header_checksum", "unsynced"]
    values = dict(zip(names, HEADER.unpack(_encode(FIELDS)), strict=True))
    zeroed = HEADER.pack(*(values | changes | {"header_checksum": 0}).values())
    checksum = xxh3_64_intdigest(zeroed, seed) & 0xFFFFFFFF
    return zeroed[:56] + struct.pack("<I", checksum) + zeroed[60:]


def test_a_header_is_64_bytes_and_reads_back_as_it_was() -> None:
    """Every field survives, at the ends of its range too."""
    data = _encode(FIELDS)
    assert len(data) == HEADER_BYTES == 64
    assert decode_header(data, seed=SEED) == FIELDS


def test_a_header_is_read_at_its_position() -> None:
    """Bytes before and after it do not matter."""
    data = b"12345678" + _encode(FIELDS) + b"rest"
    assert decode_header(data, 8, seed=SEED) == FIELDS


def test_forging_without_a_change_gives_the_same_header() -> None:
    """The helper the tests below lean on is right."""
    assert _forge() == _encode(FIELDS)


@pytest.mark.parametrize("length", [0, 1, 63])
def test_a_header_cut_short_is_corruption(length: int) -> None:
    """The end of a file in the middle of a header is not an index error."""
    with pytest.raises(CorruptionError, match=f"{length} of 64 bytes"):
        decode_header(_encode(FIELDS)[:length], seed=SEED)


def test_zeros_are_no_frame() -> None:
    """Preallocated space is told from a frame by its magic."""
    with pytest.raises(BadMagicError, match="no frame here"):
        decode_header(bytes(64), seed=SEED)


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    """The checksum covers all 64 bytes, itself included."""
    data = _encode(FIELDS)
    for bit in range(8 * HEADER_BYTES):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptionError, BadMagicError)):
            decode_header(bytes(flipped), seed=SEED)


def test_a_frame_of_another_file_does_not_validate() -> None:
    """A recycled file has a new seed, so its old frames are dead."""
    with pytest.raises(CorruptionError, match="checksum"):
        decode_header(_encode(FIELDS, SEED), seed=SEED + 8)


def test_a_newer_version_is_told_from_damage() -> None:
    """A whole frame of version 2 says to upgrade; a broken one does not."""
    newer = _forge(version=2)
    with pytest.raises(UnsupportedVersionError, match=r"version 2.*upgrade"):
        decode_header(newer, seed=SEED)
    with pytest.raises(CorruptionError, match="checksum"):
        decode_header(newer[:-1] + b"\1", seed=SEED)


def test_version_0_is_corruption_not_something_to_upgrade_for() -> None:
    """There never was a version 0, so upgrading would not help."""
    with pytest.raises(CorruptionError, match="never was"):
        decode_header(_forge(version=0), seed=SEED)


def test_type_0_is_corruption() -> None:
    """Preallocated zeros are no frame, whatever the checksum says."""
    with pytest.raises(CorruptionError, match="type 0"):
        decode_header(_forge(type=0), seed=SEED)


@pytest.mark.parametrize("type", [max(FrameType) + 1, 99, 255])
def test_an_unknown_type_is_of_a_later_release(type: int) -> None:
    """Its checksum is right, so it was written so: it must not be cut off as damage."""
    with pytest.raises(UnsupportedVersionError, match=f"type {type}"):
        decode_header(_forge(type=type), seed=SEED)


def test_flags_do_not_overlap_each_other_or_the_codec() -> None:
    """Twelve columns, one of them in two forms, and the codec fill all bits exactly."""
    flags = [value for name, value in vars(Flag).items() if name.isupper()]
    assert len(flags) == 13
    assert sum(flags) + CODEC_MASK == (1 << 16) - 1


@pytest.mark.parametrize("length", [1, 12, BODY_BYTES_MAX + 8, (1 << 32) - 8])
def test_an_impossible_body_length_is_corruption(length: int) -> None:
    """The length is bounded here, before anything is allocated."""
    with pytest.raises(CorruptionError, match="body length"):
        decode_header(_forge(body_length=length), seed=SEED)


def test_the_largest_body_length_is_possible() -> None:
    """The bound itself is allowed."""
    assert decode_header(_forge(body_length=BODY_BYTES_MAX), seed=SEED).body_length == 1 << 30


def test_a_body_is_checked_where_it_stands() -> None:
    """The body may be anywhere in what was read."""
    check_body(FIELDS, BODY)
    check_body(FIELDS, MAGIC + BODY + MAGIC, 4)


def test_a_body_with_a_flipped_bit_is_corruption() -> None:
    """Every byte of the body is under its checksum."""
    for at in range(len(BODY)):
        with pytest.raises(CorruptionError, match="checksum"):
            check_body(FIELDS, BODY[:at] + bytes([BODY[at] ^ 1]) + BODY[at + 1 :])


def test_a_body_cut_short_is_corruption() -> None:
    """A torn write is not mistaken for a shorter body."""
    with pytest.raises(CorruptionError, match="47 of 48 bytes"):
        check_body(FIELDS, BODY[:-1])
