"""The store file: made once, and refused for the right reason."""

from __future__ import annotations

import struct

import pytest
from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError
from stratalog.format.store import STORE_BYTES, StoreFile, decode_store, encode_store

STORE = StoreFile(bytes(range(16)), 1_700_000_000_123_456_789, 2)
DATA = encode_store(STORE)


def _forge(version: int = 2, reserved: int = 0, rest: bytes = b"") -> bytes:
    data = struct.pack("<8sII16sq", b"STRALOG\0", version, reserved, *STORE[:2])
    return data + struct.pack("<Q", xxh3_64_intdigest(data)) + rest


def test_a_store_file_reads_back() -> None:
    """Identity and time of birth survive, in 48 bytes."""
    assert len(DATA) == STORE_BYTES == 48
    assert decode_store(DATA) == STORE
    assert _forge() == DATA


def test_a_store_of_the_first_version_stays_one() -> None:
    """Its log is not bound to its identity, and is not taken for one that is."""
    old = decode_store(_forge(version=1))
    assert old == STORE._replace(version=1)
    assert encode_store(old) == _forge(version=1)
    assert (old.log_identity, STORE.log_identity) == (b"", STORE.identity)


@pytest.mark.parametrize("data", [b"", b"\0" * 48, b"STRALOG1" + DATA[8:], b"#!/bin/sh\n"])
def test_another_file_is_not_a_store_file(data: bytes) -> None:
    """Something else of that name is told from a damaged store."""
    with pytest.raises(BadMagicError, match="not a store file"):
        decode_store(data)


@pytest.mark.parametrize("version", [3, 255, (1 << 32) - 1])
def test_a_newer_store_says_to_upgrade(version: int) -> None:
    """Even when its checksum is elsewhere and it is longer than ours."""
    for data in (_forge(version), _forge(version)[:40] + bytes(100)):
        with pytest.raises(UnsupportedVersionError, match=f"version {version}.*upgrade"):
            decode_store(data)


@pytest.mark.parametrize("length", [8, 12, 47])
def test_a_store_file_cut_short_is_corruption(length: int) -> None:
    """A torn write of the store file is not opened."""
    with pytest.raises(CorruptionError, match=f"{length} of 48"):
        decode_store(DATA[:length])


def test_every_flipped_bit_of_a_store_file_is_noticed() -> None:
    """Magic, version, checksum: something always objects."""
    for bit in range(8 * len(DATA)):
        flipped = bytearray(DATA)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BadMagicError, CorruptionError, UnsupportedVersionError)):
            decode_store(bytes(flipped))


@pytest.mark.parametrize("data", [_forge(version=0), _forge(reserved=1), _forge(rest=b"x")])
def test_a_store_file_no_release_writes_is_corruption(data: bytes) -> None:
    """A right checksum over wrong fields is still wrong."""
    with pytest.raises(CorruptionError, match="not valid"):
        decode_store(data)
