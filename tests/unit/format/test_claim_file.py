"""The claim file: written whole, and refused for the right reason."""

from __future__ import annotations

import struct

import pytest
from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError
from stratalog.format.claim import CLAIM_BYTES, ClaimFile, decode_claim, encode_claim

CLAIM = ClaimFile(bytes(range(16)), b"incarnat", 1 << 63)
DATA = encode_claim(CLAIM)


def _forge(version: int = 1, reserved: int = 0, rest: bytes = b"") -> bytes:
    data = struct.pack("<8sII16s8sQ", b"STRACLAM", version, reserved, *CLAIM)
    return data + struct.pack("<Q", xxh3_64_intdigest(data)) + rest


def test_a_claim_file_reads_back() -> None:
    """Identity, incarnation and inode survive, in 56 bytes."""
    assert len(DATA) == CLAIM_BYTES == 56
    assert decode_claim(DATA) == CLAIM
    assert _forge() == DATA


@pytest.mark.parametrize("data", [b"", b"\0" * 56, b"STRACLA1" + DATA[8:], b"#!/bin/sh\n"])
def test_another_file_is_not_a_claim_file(data: bytes) -> None:
    """Something else of that name is told from a damaged claim."""
    with pytest.raises(BadMagicError, match="not a claim file"):
        decode_claim(data)


@pytest.mark.parametrize("version", [2, 255, (1 << 32) - 1])
def test_a_newer_claim_says_to_upgrade(version: int) -> None:
    """Even when its checksum is elsewhere and it is longer than ours."""
    for data in (_forge(version), _forge(version)[:48] + bytes(100)):
        with pytest.raises(UnsupportedVersionError, match=f"version {version}.*upgrade"):
            decode_claim(data)


@pytest.mark.parametrize("length", [8, 12, 55])
def test_a_claim_file_cut_short_is_corruption(length: int) -> None:
    """A torn write of it is not taken for one."""
    with pytest.raises(CorruptionError, match=f"{length} of 56"):
        decode_claim(DATA[:length])


def test_every_flipped_bit_of_a_claim_file_is_noticed() -> None:
    """Magic, version, checksum: something always objects."""
    for bit in range(8 * len(DATA)):
        flipped = bytearray(DATA)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((BadMagicError, CorruptionError, UnsupportedVersionError)):
            decode_claim(bytes(flipped))


@pytest.mark.parametrize("data", [_forge(version=0), _forge(reserved=1), _forge(rest=b"x")])
def test_a_claim_file_no_release_writes_is_corruption(data: bytes) -> None:
    """A right checksum over wrong fields is still wrong."""
    with pytest.raises(CorruptionError, match="not valid"):
        decode_claim(data)
