"""Compression: worth it or not done, and never more than its bound on the way back."""

from __future__ import annotations

import random
import tracemalloc

import pyarrow as pa
import pytest

from stratalog.errors import CorruptionError, TooLargeError
from stratalog.format.codec import CODECS, PREFIX, compress, decompress
from stratalog.format.frame import BODY_BYTES_MAX
from stratalog.options import COMPRESSIONS

TEXT = b"a body that repeats itself, as bodies do; " * 40
NUMBERS = [number for number in CODECS.values() if number]
each_codec = pytest.mark.parametrize("codec", NUMBERS)


def _stored(codec: int, body: bytes = TEXT) -> bytes:
    stored = compress(body, codec)
    assert stored is not None
    return stored


def _claiming(stored: bytes, raw_length: int) -> bytes:
    return PREFIX.pack(raw_length, PREFIX.unpack_from(stored)[1]) + stored[PREFIX.size :]


@each_codec
def test_a_compressed_body_reads_back(codec: int) -> None:
    """Each codec gives back what it took, in fewer bytes and a multiple of 8."""
    stored = _stored(codec)
    assert decompress(stored, codec) == TEXT
    assert len(stored) < len(TEXT) / 2
    assert len(stored) % 8 == 0


def test_codec_numbers_are_for_ever() -> None:
    """The numbers are on disk; the names are what options offer."""
    assert CODECS == {"none": 0, "zstd": 1, "lz4": 2, "gzip": 3}
    assert tuple(CODECS) == COMPRESSIONS


def test_no_codec_compresses_nothing() -> None:
    """Codec 0 is the plain body both ways."""
    assert compress(TEXT, 0) is None
    assert decompress(TEXT, 0) == TEXT


@each_codec
def test_what_does_not_shrink_stays_plain(codec: int) -> None:
    """Random bytes are not made larger."""
    assert compress(random.Random(1).randbytes(4096), codec) is None


@each_codec
def test_a_small_body_stays_plain(codec: int) -> None:
    """Below 256 bytes nothing is tried."""
    assert compress(bytes(255), codec) is None
    assert compress(bytes(256), codec) is not None


@each_codec
def test_a_body_is_stored_compressed_from_5_percent_on(codec: int) -> None:
    """As the compressible share grows, the step from plain to compressed is at 95 %."""
    noise = random.Random(2).randbytes(8192)
    outcomes = set()
    for zeros in range(0, 1024, 16):
        body = noise[zeros:] + bytes(zeros)
        data = pa.Codec(COMPRESSIONS[codec]).compress(body, asbytes=True)
        length = (PREFIX.size + len(data) + 7) // 8 * 8
        pays = length <= 0.95 * len(body)
        assert (compress(body, codec) is not None) is pays, f"{zeros} zeros, {length} bytes"
        outcomes.add(pays)
    assert outcomes == {True, False}


@pytest.mark.parametrize("codec", [4, 7])
def test_an_unknown_codec_is_corruption(codec: int) -> None:
    """Three bits have room for codecs that do not exist."""
    with pytest.raises(CorruptionError, match=f"codec {codec}"):
        decompress(_stored(1), codec)


@each_codec
@pytest.mark.parametrize("difference", [-len(TEXT), -8, -1, 1, 8, 4096])
def test_a_wrong_plain_length_is_corruption(codec: int, difference: int) -> None:
    """A body that is not as long as it claims is not returned, longer or shorter.

    Arrow's lz4 and gzip codecs did not notice data that ended early: the rest of the body was
    whatever had been in memory.
    """
    with pytest.raises(CorruptionError, match=r"does not (have|decompress)"):
        decompress(_claiming(_stored(codec), len(TEXT) + difference), codec)


@each_codec
@pytest.mark.parametrize("length", [BODY_BYTES_MAX, BODY_BYTES_MAX + 8, (1 << 32) - 1])
def test_a_bomb_is_refused_before_anything_is_allocated(codec: int, length: int) -> None:
    """A few bytes that claim a gigabyte get none of it."""
    bomb = _claiming(_stored(codec), length)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptionError, match=f"{length} plain"):
            decompress(bomb, codec)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


@each_codec
def test_a_body_over_the_bound_of_its_reader_is_refused(codec: int) -> None:
    """Whole as it is: told apart from damage, so that nothing gives it up."""
    body = bytes(1 << 20)
    stored = _stored(codec, body)
    assert decompress(stored, codec, len(body)) == body
    with pytest.raises(TooLargeError, match=f"expanded_bytes_max={len(body) - 1}"):
        decompress(stored, codec, len(body) - 1)


@each_codec
def test_the_densest_body_there_is_still_reads_back(codec: int) -> None:
    """The bound on the ratio is never in the way of a real body."""
    body = bytes(32 << 20)
    assert decompress(_stored(codec, body), codec) == body


@each_codec
@pytest.mark.parametrize("cut", [8, 16, 32])
def test_a_compressed_body_cut_short_is_corruption(codec: int, cut: int) -> None:
    """Neither a lost tail nor a lost prefix gets through."""
    with pytest.raises(CorruptionError):
        decompress(_stored(codec)[:-cut], codec)
    with pytest.raises(CorruptionError, match="cut short"):
        decompress(_stored(codec)[: PREFIX.size - 1], codec)


@each_codec
def test_more_than_padding_behind_the_data_is_corruption(codec: int) -> None:
    """Up to 7 bytes fill a word; 8 are not padding."""
    raw_length, _ = PREFIX.unpack_from(_stored(codec))
    data = _stored(codec)[PREFIX.size :].rstrip(b"\0")
    with pytest.raises(CorruptionError, match="bytes stored"):
        decompress(PREFIX.pack(raw_length, len(data)) + data + bytes(8), codec)


@each_codec
def test_garbage_is_corruption(codec: int) -> None:
    """Bytes that were never compressed raise our error, not the codec's."""
    with pytest.raises(CorruptionError, match="does not"):
        decompress(PREFIX.pack(100, 16) + b"not compressed!!", codec)
