"""Segments: header, index, footer and summaries read back, and nothing else does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, FormatError, UnsupportedVersionError
from stratalog.format.segment import (
    FOOTER,
    FOOTER_BYTES,
    FOOTER_MAGIC,
    HEADER,
    HEADER_BYTES,
    HEADER_MAGIC,
    INDEX,
    INDEX_BYTES,
    INDEX_DTYPE,
    SUMMARY,
    SUMMARY_BYTES,
    Index,
    SegmentFooter,
    SegmentHeader,
    State,
    Summary,
    check_index,
    decode_footer,
    decode_index,
    decode_segment_header,
    decode_summaries,
    encode_footer,
    encode_index,
    encode_segment_header,
    encode_summaries,
)

NOW = 1_700_000_000_000_000_000
LARGEST = (1 << 63) - 1

SEGMENT = SegmentHeader((1 << 64) - 1, 100, NOW, bytes(range(16)))
HEAD = encode_segment_header(SEGMENT)

# base_offset, position, length, count, min_timestamp, max_timestamp; a hole before the last.
ENTRIES = [
    (100, 64, 80, 10, NOW, NOW + 5),
    (110, 144, 64, 1, NOW + 5, NOW + 5),
    (200, 208, 1000, 50, NOW + 6, NOW + 9),
]
END = 1208
SIZE = END + 3 * INDEX_BYTES + FOOTER_BYTES


def _index(entries: Sequence[tuple[int, ...]]) -> Index:
    return np.array(entries, INDEX_DTYPE)


def _footer(index: Index, **changes: int) -> SegmentFooter:
    """The footer that goes with the index, unless told otherwise."""
    data = encode_index(index)
    footer = SegmentFooter(
        topic_id=SEGMENT.topic_id, first_offset=100, end_offset=260, records=61,
        min_timestamp=NOW, max_timestamp=NOW + 9, expires_at=NOW + 99, sealed_at=NOW + 10,
        index_position=END, index_count=len(index), index_checksum=xxh3_64_intdigest(data),
    )  # fmt: skip
    return footer._replace(**changes)


INDEXED = _index(ENTRIES)
SEALED = _footer(INDEXED)
FOOT = encode_footer(SEALED)


def _flips(data: bytes) -> list[bytes]:
    flipped = []
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(changed))
    return flipped


# --- the header ------------------------------------------------------------------------------


def _forge_header(**changes: Any) -> bytes:
    fields = {
        "magic": HEADER_MAGIC, "version": 1, "reserved": 0, **SEGMENT._asdict()
    } | changes  # fmt: skip
    data = HEADER.pack(*fields.values(), 0)[:-8]
    return data + struct.pack("<Q", xxh3_64_intdigest(data))


def test_a_header_is_64_bytes_and_reads_back() -> None:
    """Whatever follows it in the file."""
    assert len(HEAD) == HEADER_BYTES == 64
    assert decode_segment_header(HEAD) == SEGMENT
    assert decode_segment_header(HEAD + b"batches") == SEGMENT
    assert _forge_header() == HEAD


@pytest.mark.parametrize("data", [b"", bytes(64), b"STRASEGX" + HEAD[8:], b"#!/bin/sh\n"])
def test_another_file_is_not_a_segment(data: bytes) -> None:
    """Something else of that name is told from a damaged segment."""
    with pytest.raises(BadMagicError, match="not a segment"):
        decode_segment_header(data)


def test_a_header_cut_short_anywhere_is_an_error() -> None:
    """A file that ends in its header holds nothing."""
    for length in range(8):
        with pytest.raises(BadMagicError):
            decode_segment_header(HEAD[:length])
    for length in range(8, HEADER_BYTES):
        with pytest.raises(CorruptionError, match=f"{length} of 64 bytes"):
            decode_segment_header(HEAD[:length])


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    """The checksum covers all of it."""
    for flipped in _flips(HEAD):
        with pytest.raises((BadMagicError, CorruptionError)):
            decode_segment_header(flipped)


@pytest.mark.parametrize("version", [2, 255, (1 << 32) - 1])
def test_a_newer_header_is_told_from_damage(version: int) -> None:
    """A whole one says to upgrade; a broken one does not."""
    newer = _forge_header(version=version, reserved=7)
    with pytest.raises(UnsupportedVersionError, match=f"version {version}.*upgrade"):
        decode_segment_header(newer)
    with pytest.raises(CorruptionError, match="checksum"):
        decode_segment_header(newer[:-1] + bytes([newer[-1] ^ 1]))


def test_a_header_of_version_0_is_corruption() -> None:
    """There never was a version 0."""
    with pytest.raises(CorruptionError, match="never was"):
        decode_segment_header(_forge_header(version=0))


@pytest.mark.parametrize("changes", [{"reserved": 1}, {"reserved": 1 << 31}])
def test_reserved_bytes_of_a_header_are_checked(changes: dict[str, Any]) -> None:
    """They are zero until they mean something."""
    with pytest.raises(CorruptionError, match="reserved bytes"):
        decode_segment_header(_forge_header(**changes))


# --- the footer ------------------------------------------------------------------------------


def _forge_footer(**changes: Any) -> bytes:
    fields = SEALED._asdict()
    checksum = fields.pop("index_checksum")
    fields |= {"version": 1, "index_checksum": checksum} | changes
    data = FOOTER.pack(*fields.values(), 0, FOOTER_MAGIC)[:-16]
    return data + struct.pack("<Q8s", xxh3_64_intdigest(data), FOOTER_MAGIC)


def test_a_footer_is_104_bytes_and_reads_back() -> None:
    """From the end of whatever was read."""
    assert len(FOOT) == FOOTER_BYTES == 104
    assert decode_footer(FOOT, SIZE) == SEALED
    assert decode_footer(b"index" + FOOT, SIZE) == SEALED
    assert _forge_footer() == FOOT


def test_a_footer_cut_short_anywhere_is_an_error() -> None:
    """At its beginning, as in a short file, and at its end, as in a torn one."""
    for length in range(FOOTER_BYTES):
        with pytest.raises(CorruptionError, match=f"{length} of 104 bytes"):
            decode_footer(FOOT[FOOTER_BYTES - length :], SIZE)
        with pytest.raises(FormatError):
            decode_footer((bytes(200) + FOOT)[: 200 + length], SIZE)


def test_every_flipped_bit_of_a_footer_is_noticed() -> None:
    """Fields, checksum and magic."""
    for flipped in _flips(FOOT):
        with pytest.raises((BadMagicError, CorruptionError)):
            decode_footer(flipped, SIZE)


def test_a_file_without_a_footer_has_none() -> None:
    """An open segment ends with anything."""
    with pytest.raises(BadMagicError, match="segment footer ends"):
        decode_footer(bytes(FOOTER_BYTES), SIZE)


@pytest.mark.parametrize("version", [2, (1 << 32) - 1])
def test_a_newer_footer_says_to_upgrade(version: int) -> None:
    """Whatever else it says."""
    with pytest.raises(UnsupportedVersionError, match=f"version {version}.*upgrade"):
        decode_footer(_forge_footer(version=version, index_position=0), SIZE)


def test_a_footer_of_version_0_is_corruption() -> None:
    """There never was a version 0."""
    with pytest.raises(CorruptionError, match="never was"):
        decode_footer(_forge_footer(version=0), SIZE)


@pytest.mark.parametrize(
    "changes",
    [
        {"index_position": END - 40},
        {"index_position": END + 8},
        {"index_position": (1 << 64) - 1},
        {"index_count": 2},
        {"index_count": (1 << 32) - 1},
        {"index_count": 0, "index_position": END},
    ],
)
def test_an_index_that_does_not_fit_the_file_is_corruption(changes: dict[str, int]) -> None:
    """Its place and length are held to the size of the file before anything is read."""
    with pytest.raises(CorruptionError, match=f"{SIZE} bytes does not end where"):
        decode_footer(_forge_footer(**changes), SIZE)


@pytest.mark.parametrize("size", [0, FOOTER_BYTES, SIZE - 1, SIZE + 1])
def test_a_footer_of_a_file_of_another_size_is_corruption(size: int) -> None:
    """Bytes went missing or were added in the middle."""
    with pytest.raises(CorruptionError, match="does not end where"):
        decode_footer(FOOT, size)


@pytest.mark.parametrize("position", [0, HEADER_BYTES - 1])
def test_an_index_inside_of_the_header_is_corruption(position: int) -> None:
    """Even when the sizes add up."""
    size = position + 3 * INDEX_BYTES + FOOTER_BYTES
    with pytest.raises(CorruptionError, match="inside of the header"):
        decode_footer(_forge_footer(index_position=position), size)


@pytest.mark.parametrize(
    "changes", [{"end_offset": 99}, {"end_offset": LARGEST + 1}, {"first_offset": 261}]
)
def test_a_footer_whose_offsets_do_not_rise_is_corruption(changes: dict[str, int]) -> None:
    """And those that cannot be are as well."""
    with pytest.raises(CorruptionError, match="do not rise"):
        decode_footer(_forge_footer(**changes), SIZE)


# --- the index -------------------------------------------------------------------------------


def test_an_index_reads_back() -> None:
    """Every entry, with the holes between them."""
    data = encode_index(INDEXED)
    assert len(data) == 3 * INDEX_BYTES
    assert decode_index(data, SEALED).tolist() == ENTRIES
    assert data == b"".join(INDEX.pack(*entry) for entry in ENTRIES)


def test_an_index_of_nothing_reads_back() -> None:
    """A segment all of whose records were removed answers for them all the same."""
    empty = _index([])
    changes = {"records": 0, "min_timestamp": 0, "max_timestamp": 0}
    footer = _footer(empty, index_position=HEADER_BYTES, **changes)
    assert len(decode_index(b"", footer)) == 0


def test_an_index_cut_short_anywhere_is_corruption() -> None:
    """Also between two entries, and when it is too long."""
    data = encode_index(INDEXED)
    for length in range(len(data)):
        with pytest.raises(CorruptionError, match=f"cut short: {length} bytes"):
            decode_index(data[:length], SEALED)
    with pytest.raises(CorruptionError, match="cut short"):
        decode_index(data + data[:40], SEALED)


def test_every_flipped_bit_of_an_index_is_noticed() -> None:
    """Its checksum is in the footer."""
    for flipped in _flips(encode_index(INDEXED)):
        with pytest.raises(CorruptionError, match="checksum"):
            decode_index(flipped, SEALED)


def _changed(number: int, **changes: int) -> Index:
    index = INDEXED.copy()
    for name, value in changes.items():
        index[name][number] = value
    return index


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, {"position": 0}),
        (0, {"position": 72}),
        (0, {"length": 88}),
        (1, {"position": 145}),
        (1, {"position": 136}),
        (2, {"length": 999}),
        (2, {"length": (1 << 32) - 1}),
        (2, {"position": LARGEST}),
    ],
)
def test_batches_that_do_not_follow_each_other_are_corruption(
    number: int, changes: dict[str, int]
) -> None:
    """From the header to the index without a seam, under a right checksum."""
    index = _changed(number, **changes)
    with pytest.raises(CorruptionError, match="follow each other"):
        decode_index(encode_index(index), _footer(index))


def test_a_batch_shorter_than_its_header_is_corruption() -> None:
    """Even when the next one begins where it says."""
    index = _index([(100, 64, 63, 10, NOW, NOW), (110, 127, END - 127, 51, NOW, NOW + 9)])
    with pytest.raises(CorruptionError, match="follow each other"):
        decode_index(encode_index(index), _footer(index))


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, {"count": 0}),
        (0, {"count": 11}),
        (0, {"count": (1 << 32) - 1}),
        (1, {"base_offset": 109}),
        (2, {"base_offset": 110}),
        (1, {"max_timestamp": NOW + 4}),
        (1, {"min_timestamp": NOW + 4}),
        (2, {"min_timestamp": NOW + 4}),
        (0, {"min_timestamp": NOW + 6}),
        (0, {"max_timestamp": NOW + 6}),
    ],
)
def test_an_index_that_is_not_in_order_is_corruption(number: int, changes: dict[str, int]) -> None:
    """A search in it would find the wrong batch."""
    index = _changed(number, **changes)
    with pytest.raises(CorruptionError, match="order of offsets and times"):
        decode_index(encode_index(index), _footer(index))


@pytest.mark.parametrize("name", ["base_offset", "position"])
@pytest.mark.parametrize("number", range(3))
def test_a_number_too_large_is_corruption_and_does_not_wrap(name: str, number: int) -> None:
    """Sums of what is in an entry stay within 64 bits."""
    for value in (LARGEST + 1, (1 << 64) - 1):
        index = _changed(number, **{name: value})
        with pytest.raises(CorruptionError, match="too large"):
            check_index(index, END)


@pytest.mark.parametrize(
    "changes",
    [
        {"first_offset": 101},
        {"end_offset": 200},
        {"end_offset": 249},
        {"records": 60},
        {"records": 0},
        {"min_timestamp": NOW + 1},
        {"max_timestamp": NOW + 8},
    ],
)
def test_an_index_and_a_footer_that_do_not_agree_are_corruption(changes: dict[str, int]) -> None:
    """Offsets, records and times are said twice, and must be the same.

    A last batch that reached past the end of its segment was let through.
    """
    with pytest.raises(CorruptionError, match="do not agree"):
        decode_index(encode_index(INDEXED), _footer(INDEXED, **changes))
    assert len(decode_index(encode_index(INDEXED), _footer(INDEXED, end_offset=250))) == 3


@pytest.mark.parametrize("name", ["records", "min_timestamp", "max_timestamp", "index_position"])
def test_an_empty_index_of_a_segment_that_is_not_is_corruption(name: str) -> None:
    """Records without a batch cannot be read."""
    changes = {"records": 0, "min_timestamp": 0, "max_timestamp": 0, "index_position": 64}
    footer = _footer(_index([]), **changes | {name: 72})
    with pytest.raises(CorruptionError, match="is empty, and the segment is not"):
        decode_index(b"", footer)


# --- summaries -------------------------------------------------------------------------------

SUMMARIES = [
    Summary(0, 10, 10, 4096, -5, NOW, 0, NOW, State.COLD),
    Summary(10, 10, 0, 168, 0, 0, 0, NOW, State.SEALED),
    Summary(50, LARGEST, 7, 264, NOW, NOW, NOW + 9, NOW, State.OPEN),
]


def test_summaries_read_back() -> None:
    """One after the other, with a hole between them, and none at all."""
    data = encode_summaries(SUMMARIES)
    assert len(data) == 3 * SUMMARY_BYTES
    assert decode_summaries(data) == SUMMARIES
    assert decode_summaries(b"") == []


def test_summaries_cut_short_are_corruption() -> None:
    """Anywhere but between two of them, where nothing can tell."""
    data = encode_summaries(SUMMARIES)
    for length in range(len(data)):
        if length % SUMMARY_BYTES:
            with pytest.raises(CorruptionError, match=f"{length} bytes are cut short"):
                decode_summaries(data[:length])
        else:
            assert decode_summaries(data[:length]) == SUMMARIES[: length // SUMMARY_BYTES]


@pytest.mark.parametrize(
    "summaries",
    [
        [SUMMARIES[1], SUMMARIES[0]],
        [SUMMARIES[0], SUMMARIES[0]],
        [SUMMARIES[0], SUMMARIES[1]._replace(first_offset=9)],
        [SUMMARIES[0]._replace(first_offset=11)],
        [SUMMARIES[2]._replace(end_offset=LARGEST + 1)],
        [Summary((1 << 64) - 1, (1 << 64) - 1, 0, 0, 0, 0, 0, 0, 0)],
    ],
)
def test_summaries_that_are_not_in_order_are_corruption(summaries: list[Summary]) -> None:
    """Segments do not overlap, and end where there can be an offset."""
    with pytest.raises(CorruptionError, match="order of their offsets"):
        decode_summaries(encode_summaries(summaries))


@pytest.mark.parametrize("state", [3, 255, (1 << 64) - 1])
def test_a_state_that_is_not_known_is_corruption(state: int) -> None:
    """A reader must not guess where the file is."""
    with pytest.raises(CorruptionError, match=f"state {state} is not known"):
        decode_summaries(SUMMARY.pack(*SUMMARIES[0][:-1], state))


def test_states_keep_their_numbers() -> None:
    """They are on disk."""
    assert [(state.name, state.value) for state in State] == [
        ("OPEN", 0), ("SEALED", 1), ("COLD", 2),
    ]  # fmt: skip
