"""Manifests of lakes and `LAKE` frames, forged and damaged: what decodes is consistent."""

from __future__ import annotations

import struct
from random import Random

import msgspec
from xxhash import xxh3_64_intdigest

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.control import wrap
from stratalog.format.lake import (
    HEADER,
    LAKE,
    MAGIC,
    LakeBody,
    LakeContent,
    LakeFile,
    LakeManifest,
    LakeSource,
    LakeSuperseded,
    decode_lake,
    decode_lake_manifest,
    encode_lake,
    encode_lake_manifest,
)
from stratalog.format.names import LakeName, lake_name, parse_lake_name
from tests.fuzz.inputs import NOW, Fuzz, Outcome, anything, mutate, some_number

DIRECTORY = f"{'ab' * 16}-{'cd' * 8}"
IDENTITY = bytes(range(16))


def _name(rng: Random, number: int, *, is_manifest: bool = False) -> str:
    return lake_name(LakeName(DIRECTORY, 7, 2, number, rng.getrandbits(64), is_manifest))


def _manifest(rng: Random) -> LakeManifest:
    files: list[LakeFile] = []
    start = end = rng.randrange(99)
    for _ in range(rng.randrange(4)):
        first, end = end, end + rng.randrange(1, 50)
        records = rng.randrange(end - first + 1)
        files.append(
            LakeFile(
                _name(rng, first), first, end, records, rng.randrange(9999), NOW, NOW + 5, 0,
                end - first - records, [LakeSource(first, end, records, 4096)],
            )
        )  # fmt: skip
    old = [LakeSuperseded(_name(rng, n, is_manifest=True), NOW) for n in range(rng.randrange(3))]
    content = LakeContent(NOW, start, end, files, old)
    return LakeManifest(IDENTITY, 7, 2, rng.randrange(1, 9), content)


def _body(rng: Random) -> LakeBody:
    generation = rng.randrange(1, 99)
    name = _name(rng, generation, is_manifest=True)
    return LakeBody(generation, 5, 5 + rng.randrange(9), 3, 4000, 2, 300, "s3://a/b", name)


def _changed(rng: Random, plain: object) -> object:
    """Replace one number, text or list, somewhere in it."""
    if isinstance(plain, dict) and plain:
        key = rng.choice(sorted(plain))
        return plain | {key: _changed(rng, plain[key])}
    if isinstance(plain, list) and plain and rng.random() < 0.9:
        at = rng.randrange(len(plain))
        return [*plain[:at], _changed(rng, plain[at]), *plain[at + 1 :]]
    return some_number(rng) if rng.random() < 0.6 else anything(rng)


def _check(manifest: LakeManifest) -> None:
    """Hold a decoded manifest against what its readers rely on."""
    end = manifest.content.start
    for file in manifest.content.files:
        told = parse_lake_name(file.name)
        assert told is not None
        assert (told.topic_id, told.epoch, told.number) == (7, 2, file.first_offset)
        assert end <= file.first_offset < file.end_offset < 1 << 63
        assert 0 <= file.records <= file.end_offset - file.first_offset
        end = file.end_offset
    assert end <= manifest.content.end


def test_a_forged_manifest_of_a_lake_is_consistent_or_refused(fuzz: Fuzz) -> None:
    """Any bytes and numbers changed, under a checksum that is right."""

    def check(rng: Random) -> Outcome:
        data = msgspec.msgpack.encode(_manifest(rng).content)
        if rng.random() < 0.7:
            data = msgspec.msgpack.encode(_changed(rng, msgspec.msgpack.decode(data)))
        elif rng.random() < 0.7:
            data = mutate(rng, data, word=1)
        head = HEADER.pack(MAGIC, 1, 0, IDENTITY, 7, 2, 3, len(data), 0)[:-8]
        sealed = head + struct.pack("<Q", xxh3_64_intdigest(head + data)) + data
        manifest = decode_lake_manifest(sealed)
        _check(manifest)
        assert decode_lake_manifest(encode_lake_manifest(manifest)) == manifest
        return "good"

    outcomes = fuzz.run(0.2, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_a_forged_lake_frame_is_consistent_or_refused(fuzz: Fuzz) -> None:
    """Numbers, the address and the name, each of them changed."""

    def check(rng: Random) -> Outcome:
        body = _body(rng)
        numbers = [some_number(rng) if rng.random() < 0.1 else n for n in body[1:7]]
        numbers = [number & (1 << 64) - 1 for number in numbers]
        place = f"{body.location}\0{body.name}".encode()
        if rng.random() < 0.4:
            place = mutate(rng, place, word=1)
        lake = decode_lake(wrap(LAKE.pack(*numbers) + place))
        assert 0 < lake.generation < 1 << 63
        assert 0 <= lake.start <= lake.end < 1 << 63
        assert decode_lake(encode_lake(lake)) == lake
        return "good"

    outcomes = fuzz.run(0.2, check)
    assert min(outcomes["good"], outcomes["CorruptionError"]) > outcomes.total() / 20


def test_damage_to_a_manifest_of_a_lake_is_always_noticed(fuzz: Fuzz) -> None:
    """Flipped bits and lost bytes."""

    def check(rng: Random) -> Outcome:
        whole = encode_lake_manifest(_manifest(rng))
        damaged = mutate(rng, whole, word=1)
        if damaged == whole:
            return "unchanged"
        try:
            found = decode_lake_manifest(damaged)
        except FormatError:
            return "noticed"
        raise AssertionError(f"decoded {damaged!r} to {found!r}")

    assert fuzz.run(0.05, check)["noticed"]


def test_a_lake_frame_that_is_cut_short_is_refused() -> None:
    """Wherever it is cut."""
    body = encode_lake(_body(Random(1)))
    for length in range(0, len(body) - 8, 8):
        try:
            decode_lake(body[:length])
        except CorruptionError:
            continue
        raise AssertionError(f"decoded {length} of {len(body)} bytes")
