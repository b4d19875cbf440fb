"""S2 blocks: Snappy's, and the repeated offset that only S2 has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.interop.codecs.s2 import decompress_s2


@given(st.lists(st.binary(max_size=40), max_size=60).map(lambda parts: b"ab".join(parts * 3)))
def test_a_snappy_block_is_an_s2_block(data: bytes) -> None:
    """Whatever Snappy wrote is read."""
    block = pa.Codec("snappy").compress(data, asbytes=True)
    assert decompress_s2(block, 1 << 20) == data


def literal(data: bytes) -> bytes:
    """A literal of up to 60 bytes."""
    return bytes([(len(data) - 1) << 2]) + data


def repeat(length: int) -> bytes:
    """A copy that repeats the offset before it."""
    if length < 9:
        return bytes([(length - 4) << 2 | 1, 0])
    if length < 8 + 256:
        return bytes([5 << 2 | 1, 0, length - 8])
    if length < 260 + 65536:
        return bytes([6 << 2 | 1, 0]) + (length - 260).to_bytes(2, "little")
    return bytes([7 << 2 | 1, 0]) + (length - 65540).to_bytes(3, "little")


def size(number: int) -> bytes:
    """A length as unsigned LEB128."""
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


@pytest.mark.parametrize("length", [4, 8, 9, 64, 65, 263, 264, 300, 65795, 65796, 200_000])
def test_a_repeated_offset_copies_on(length: int) -> None:
    """Every form of its length, across what one copy of Snappy's can hold."""
    start = b"abcdefg"
    # Seven bytes, a copy of four from seven before, `!`, and a copy from seven before again.
    block = literal(start) + bytes([(4 - 4) << 2 | 1, 7]) + literal(b"!") + repeat(length)
    content = bytearray(start + b"abcd" + b"!")
    for _ in range(length):
        content.append(content[-7])
    assert decompress_s2(size(len(content)) + block, 1 << 20) == bytes(content)


def copied(offset: int, length: int) -> bytes:
    """A copy with an offset of its own, in the shortest form there is."""
    if offset < 2048 and 4 <= length < 12:
        return bytes([offset >> 8 << 5 | (length - 4) << 2 | 1, offset & 255])
    if offset < 1 << 16:
        return bytes([(length - 1) << 2 | 2]) + offset.to_bytes(2, "little")
    return bytes([(length - 1) << 2 | 3]) + offset.to_bytes(4, "little")


lengths = st.one_of(st.integers(4, 80), st.integers(250, 270), st.integers(65780, 65810))
parts = st.one_of(
    st.binary(min_size=1, max_size=60),
    st.tuples(st.floats(0, 1), st.integers(1, 64)),
    lengths,
)


@given(st.integers(0, 70_000), st.lists(parts, max_size=30))
def test_literals_copies_and_repeats_of_every_kind_are_read(start: int, given: list[Any]) -> None:
    """As a decoder has them that looks at one byte after the other."""
    content = bytearray(b"0123456789" * (start // 10 + 1))
    block = bytearray(literal_of(bytes(content)))
    offset = 0
    for part in given:
        if isinstance(part, bytes):
            block += literal(part)
            content += part
            continue
        if isinstance(part, tuple):
            offset, length = max(1, round(part[0] * len(content))), part[1]
            block += copied(offset, length)
        else:
            if not offset:
                continue
            length = part
            block += repeat(length)
        for _ in range(length):
            content.append(content[-offset])
    data = size(len(content)) + bytes(block)
    assert decompress_s2(data, 1 << 24) == bytes(content)


def literal_of(data: bytes) -> bytes:
    """A literal of any length."""
    return bytes([62 << 2]) + (len(data) - 1).to_bytes(3, "little") + data


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"", "does not begin with its length"),
        (b"\xff" * 9, "does not begin with its length"),
        (size(1 << 21), "at most"),
        (size(8) + repeat(8), "before there was one"),
        (size(20) + literal(b"abcdefg")[:4], "cut short"),
        (size(9) + literal(b"ab") + bytes([1, 2]) + repeat(100), "more content than it claims"),
        (size(9) + literal(b"ab"), "does not decode"),
    ],
)
def test_a_block_that_is_none_is_refused(block: bytes, message: str) -> None:
    """With a `ValueError`, and before anything large is allocated."""
    with pytest.raises(ValueError, match=message):
        decompress_s2(block, 1 << 20)
