"""Manifests and `ADOPT` frames, forged and damaged: what decodes is consistent."""

from __future__ import annotations

import struct
from random import Random

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.control import wrap
from stratalog.format.manifest import (
    HEADER,
    MAGIC,
    AdoptedPart,
    Adoption,
    Manifest,
    Part,
    StagedSegment,
    decode_adoption,
    decode_manifest,
    encode_adoption,
    encode_manifest,
)
from stratalog.format.names import is_staged_name, unique_name
from tests.fuzz.inputs import NOW, Fuzz, Outcome, anything, mutate, some_number


def _staged(rng: Random, *, first: int = 0) -> StagedSegment:
    records, batches = rng.randrange(1, 99), rng.randrange(1, 4)
    place = 64 + 8 * rng.randrange(99)
    return StagedSegment(
        unique_name(NOW), place + 40 * batches + 104, NOW, first, first + records, records, NOW,
        NOW + rng.randrange(9), 0, NOW, place, batches, rng.getrandbits(64),
    )  # fmt: skip


def _manifest(rng: Random) -> Manifest:
    parts = [
        Part("append", rng.choice(("orders", "Grüße")), 0, 0, [_staged(rng), _staged(rng)]),
        Part("backlog", "", rng.randrange(1, 9), 0, [_staged(rng, first=10)]),
        Part("upsert", "users", 0, 0, [_staged(rng)]),
    ]
    return Manifest("query", rng.randrange(9), False, NOW, parts[: rng.randrange(1, 4)])


def _adoption(rng: Random) -> Adoption:
    parts = [
        AdoptedPart(part.adopted_kind, 7, rng.randrange(99), NOW, part.segments)
        for part in _manifest(rng).parts
    ]
    return Adoption("query", 3, True, parts)


def _changed(rng: Random, plain: object) -> object:
    """Replace one number, text or list somewhere in it."""
    if isinstance(plain, dict) and plain:
        key = rng.choice(sorted(plain))
        return plain | {key: _changed(rng, plain[key])}
    if isinstance(plain, list) and plain and rng.random() < 0.9:
        at = rng.randrange(len(plain))
        return [*plain[:at], _changed(rng, plain[at]), *plain[at + 1 :]]
    return some_number(rng) if rng.random() < 0.6 else anything(rng)


def _seal(body: bytes) -> bytes:
    head = HEADER.pack(MAGIC, 1, 0, len(body), 0)[:-8]
    return head + struct.pack("<Q", xxh3_64_intdigest(head + body)) + body


def _check(segments: list[StagedSegment]) -> None:
    for staged in segments:
        assert is_staged_name(staged.name)
        assert 0 <= staged.first_offset < staged.end_offset
        assert 0 <= staged.index_position < staged.bytes


def _forged(rng: Random, plain: object) -> bytes:
    data = msgspec.msgpack.encode(plain)
    kind = rng.random()
    if kind < 0.1:
        return data
    if kind < 0.7:
        return msgspec.msgpack.encode(_changed(rng, msgspec.msgpack.decode(data)))
    return mutate(rng, data, word=1)


def test_a_forged_manifest_is_consistent_or_refused(fuzz: Fuzz) -> None:
    """Any bytes and numbers changed, under a checksum that is right."""

    def check(rng: Random) -> Outcome:
        manifest = decode_manifest(_seal(_forged(rng, _manifest(rng))))
        for part in manifest.parts:
            _check(part.segments)
        assert decode_manifest(encode_manifest(manifest)) == manifest
        return "good"

    outcomes = fuzz.run(0.2, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_a_forged_adoption_is_consistent_or_refused(fuzz: Fuzz) -> None:
    """Staged records get offsets that exist."""

    def check(rng: Random) -> Outcome:
        adoption = decode_adoption(wrap(_forged(rng, _adoption(rng))))
        for part in adoption.parts:
            _check(part.segments)
            for placed in part.placed():
                assert 0 <= placed.footer.first_offset < placed.footer.end_offset < 1 << 63
        assert decode_adoption(encode_adoption(adoption)) == adoption
        return "good"

    outcomes = fuzz.run(0.2, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_damage_to_a_manifest_is_always_noticed(fuzz: Fuzz) -> None:
    """Flipped bits and lost bytes."""

    def check(rng: Random) -> Outcome:
        whole = encode_manifest(_manifest(rng))
        damaged = mutate(rng, whole, word=1)
        if damaged == whole:
            return "unchanged"
        try:
            found = decode_manifest(damaged)
        except FormatError:
            return "noticed"
        raise AssertionError(f"decoded {damaged!r} to {found!r}")

    assert fuzz.run(0.05, check)["noticed"]


@pytest.mark.parametrize("name", ["", "../orders", "x" * 53, f"{1:020d}-{'g' * 32}"])
def test_a_name_that_is_no_name_of_ours_is_refused(name: str) -> None:
    """A manifest cannot make the store look elsewhere."""
    staged = msgspec.structs.replace(_staged(Random(1)), name=name)
    manifest = Manifest("query", 0, False, NOW, [Part("append", "orders", 0, 0, [staged])])
    with pytest.raises(CorruptionError, match="not the name of a staged segment"):
        decode_manifest(encode_manifest(manifest))
