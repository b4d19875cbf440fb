"""The lake: the body of a `LAKE` frame, and the manifest that it names.

A `LAKE` frame says which files of a topic's lake count from now on: those that a manifest lists.
`base_offset` has the number of the manifest, its generation, from 1; the highest wins, wherever it
is replayed from. The body is wrapped as other control bodies are. It begins with the fields below;
UTF-8 follows: the address of the lake, a zero byte, and the name of the manifest there, which ends
with the checksum of the manifest's bytes.

Lake body, little-endian:

| field | type | meaning |
|---|---|---|
| start | u64 | first offset that the files answer for |
| end | u64 | first offset after them: from here on, the log |
| records | u64 | in all files |
| bytes | u64 | of all files |
| files | u64 | how many there are |
| manifest_bytes | u64 | of the manifest |

A manifest never changes. It is a header, and a `LakeManifest` as MessagePack: the files in the
order of their offsets, and what they took the place of.

Lake manifest header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRALAKE` |
| version | u32 | format version, 1 |
| reserved | u32 | zero, checked |
| identity | 16s | of the store |
| topic_id | u64 | of the topic |
| epoch | u64 | of the topic |
| generation | u64 | as in the frame |
| length | u64 | bytes that follow |
| checksum | u64 | XXH3-64 of this header's bytes before it, then of the bytes that follow |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError
from stratalog.format.control import unwrap, wrap
from stratalog.format.names import LakeName, parse_lake_name

LAKE = struct.Struct("<QQQQQQ")
LAKE_BYTES = 48
assert LAKE.size == LAKE_BYTES

MAGIC = b"STRALAKE"
VERSION = 1

HEADER = struct.Struct("<8sII16sQQQQQ")
HEADER_BYTES = 72
assert HEADER.size == HEADER_BYTES

MANIFEST_BYTES_MAX = 1 << 30
_NUMBER_MAX = (1 << 63) - 1


class LakeBody(NamedTuple):
    """The newest `LAKE` frame of a topic."""

    generation: int
    start: int
    end: int
    records: int
    bytes: int
    files: int
    manifest_bytes: int
    location: str
    """Address of the lake, without credentials."""
    name: str
    """Name of the manifest there."""


class LakeSource(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A segment that a file was made of, as it was then."""

    first_offset: int
    end_offset: int
    records: int
    bytes: int


class LakeFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A Parquet file: the records between two offsets that were not gone when it was made."""

    name: str
    first_offset: int
    end_offset: int
    records: int
    bytes: int
    min_timestamp: int
    """Nanoseconds, of the first record; 0 without any."""
    max_timestamp: int
    expires_at: int
    """When the first of its records expires; 0 for never. A topic's `ttl` is not in it."""
    deleted: int
    """How many of its offsets had been deleted: the file is without those."""
    sources: list[LakeSource]


class LakeSuperseded(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file or a manifest that no longer counts; readers may hold on to it for a while."""

    name: str
    at: int
    """When it was superseded, in nanoseconds."""


class LakeContent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a manifest besides its header."""

    created_at: int
    start: int
    end: int
    files: list[LakeFile]
    superseded: list[LakeSuperseded]


class LakeManifest(NamedTuple):
    """A decoded manifest."""

    identity: bytes
    topic_id: int
    epoch: int
    generation: int
    content: LakeContent


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LakeContent)


def encode_lake(lake: LakeBody) -> bytes:
    """The body of a `LAKE` frame; its generation is in the header of the frame."""
    return wrap(LAKE.pack(*lake[1:7]) + f"{lake.location}\0{lake.name}".encode())


def decode_lake(body: bytes) -> LakeBody:
    """Read the body of a `LAKE` frame; its generation is in the name of the manifest, too."""
    data = unwrap(body)
    if len(data) < LAKE_BYTES:
        raise CorruptionError("lake frame cut short")
    start, end, records, size, files, manifest_bytes = LAKE.unpack_from(data)
    try:
        location, _, name = data[LAKE_BYTES:].decode().partition("\0")
    except UnicodeDecodeError as error:
        raise CorruptionError(f"lake frame has an address that is not UTF-8: {error}") from error
    told = parse_lake_name(name)
    lake = LakeBody(
        0 if told is None else told.number, start, end, records, size, files, manifest_bytes,
        location, name,
    )  # fmt: skip
    check_lake(lake)
    return lake


def check_lake(lake: LakeBody) -> None:
    """Raise `CorruptionError` unless a lake can be as it says."""
    told = parse_lake_name(lake.name)
    is_possible = (
        0 < lake.generation <= _NUMBER_MAX
        and all(0 <= number <= _NUMBER_MAX for number in lake[1:7])
        and lake.start <= lake.end
        and lake.records <= lake.end - lake.start
        and lake.manifest_bytes <= MANIFEST_BYTES_MAX
    )
    if not is_possible:
        raise CorruptionError("lake frame has a number that cannot be")
    if told is None or not told.is_manifest or told.number != lake.generation:
        raise CorruptionError(f"lake frame names a manifest {lake.name!r}, which cannot be")


def encode_lake_manifest(manifest: LakeManifest) -> bytes:
    """The bytes of a manifest."""
    body = _encoder.encode(manifest.content)
    head = HEADER.pack(MAGIC, VERSION, 0, *manifest[:4], len(body), 0)[:-8]
    return head + struct.pack("<Q", _checksum(head, body)) + body


def decode_lake_manifest(data: bytes) -> LakeManifest:
    """Read and verify a manifest."""
    if data[:8] != MAGIC:
        raise BadMagicError(f"not a manifest of a lake: it starts {data[:8]!r}, not {MAGIC!r}")
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"lake manifest cut short: {len(data)} of {HEADER_BYTES} bytes")
    _, version, reserved, identity, topic_id, epoch, generation, length, checksum = (
        HEADER.unpack_from(data)
    )
    # Before the checksum: a later version may keep that elsewhere.
    if version > VERSION:
        raise UnsupportedVersionError(
            f"the lake manifest has format version {version}; this release reads up to {VERSION}: "
            "upgrade stratalog"
        )
    body = data[HEADER_BYTES:]
    if length != len(body):
        raise CorruptionError(f"lake manifest has {len(body)} bytes of {length}")
    if checksum != _checksum(data[: HEADER_BYTES - 8], body):
        raise CorruptionError("lake manifest checksum does not match")
    if version != VERSION or reserved != 0:
        raise CorruptionError(f"lake manifest of version {version}, reserved {reserved}")
    try:
        content = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"lake manifest does not decode: {error}") from error
    manifest = LakeManifest(identity, topic_id, epoch, generation, content)
    _check_manifest(manifest)
    return manifest


def _check_manifest(manifest: LakeManifest) -> None:
    content = manifest.content
    end = content.start
    _check_numbers(content.created_at, content.start, content.end)
    for file in content.files:
        _check_numbers(
            file.first_offset, file.end_offset, file.records, file.bytes, file.min_timestamp,
            file.max_timestamp, file.expires_at, file.deleted,
        )  # fmt: skip
        told = _check_name(manifest, file.name)
        if told.is_manifest or told.number != file.first_offset:
            raise CorruptionError(f"lake manifest names a file {file.name!r}, which cannot be")
        is_possible = (
            end <= file.first_offset < file.end_offset
            and file.records <= file.end_offset - file.first_offset
            and file.min_timestamp <= file.max_timestamp
        )
        if not is_possible:
            raise CorruptionError(f"lake manifest has a file {file.name!r} that cannot be")
        for source in file.sources:
            _check_numbers(source.first_offset, source.end_offset, source.records, source.bytes)
        end = file.end_offset
    if end > content.end:
        raise CorruptionError(f"lake manifest ends at {content.end}, its files at {end}")
    for one in content.superseded:
        _check_name(manifest, one.name)
        _check_numbers(one.at)


def _check_name(manifest: LakeManifest, name: str) -> LakeName:
    told = parse_lake_name(name)
    if told is None or (told.topic_id, told.epoch) != (manifest.topic_id, manifest.epoch):
        raise CorruptionError(f"lake manifest names {name!r}, which cannot be")
    return told


def _check_numbers(*numbers: int) -> None:
    if not all(0 <= number <= _NUMBER_MAX for number in numbers):
        raise CorruptionError("lake manifest has a number that cannot be")


def _checksum(*parts: bytes) -> int:
    digest = xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()
