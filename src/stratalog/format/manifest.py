"""Staged segments and the manifest that publishes them; what an `ADOPT` frame says of both.

A staged segment is a sealed one that has no topic yet: its records count from 0, and the topic's
id is 0 in its header, frames and footer. When it is adopted its footer is written again, with the
topic's id, the offsets its records got, and their times; nothing else in it changes. So where a
frame has the topic's id 0, the segment's first offset is added to its own, and where the index
begins with an earlier time than the footer, that of the footer is the time of all records before.
A staged segment that replaces others keeps their offsets and has the topic's id from the start.

A manifest is a header and a MessagePack map.

Manifest header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRAMANI` |
| version | u32 | format version, 1 |
| reserved | u32 | zero, checked |
| length | u64 | bytes that follow |
| checksum | u64 | XXH3-64 of this header's bytes before it, then of the bytes that follow |

The map has `writer` (text: who writes), `batch` (whole number), `once` (whether the writer has
this batch alone), `created_at` (nanoseconds) and `parts`, a list. Each part is a list: kind
(`append`, `upsert`, `replace` or `backlog`), the topic's name (of an append or an upsert; else
empty), its id and epoch (else 0), the staged segments, and what they replace, as `Segment summary`
structures. An `upsert` is an append to a table, and adopted as one.

The body of an `ADOPT` frame is a map of `writer`, `batch`, `once` and `parts`. Each part of it is
a list: kind, the topic's id, the first offset, the least time of the records, and the staged
segments.

A staged segment is a list of its file's name, bytes and time of creation, then of its footer as it
was staged: first and end offset, records, least and greatest time, `expires_at`, `sealed_at`,
position, entries and checksum of the index.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

import msgspec
from xxhash import xxh3_64

from stratalog.errors import (
    BadMagicError,
    CorruptionError,
    OptionError,
    TooLargeError,
    UnsupportedVersionError,
)
from stratalog.format.control import unwrap, wrap
from stratalog.format.names import check_topic_name, is_staged_name
from stratalog.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_BYTES,
    SegmentFooter,
    State,
    Summary,
    decode_summaries,
)

MAGIC = b"STRAMANI"
VERSION = 1

HEADER = struct.Struct("<8sIIQQ")
assert HEADER.size == 32

WRITER_BYTES_MAX = 255

_OFFSET_MAX = (1 << 63) - 1

Kind = Literal["append", "replace", "backlog"]
"""After what there is, in the place of sealed segments, or in that of records in the log."""

PartKind = Literal["append", "upsert", "replace", "backlog"]
"""The kind of what is adopted; `upsert` is an append to a table."""

NEW = ("append", "upsert")
"""Kinds of parts whose records have no offsets yet."""


class StagedSegment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A sealed segment that waits to be adopted."""

    name: str
    bytes: int
    created_at: int
    first_offset: int
    end_offset: int
    records: int
    min_timestamp: int
    max_timestamp: int
    expires_at: int
    sealed_at: int
    index_position: int
    index_count: int
    index_checksum: int

    def footer(self, topic_id: int, first: int, floor: int) -> SegmentFooter:
        """Its footer, once it has a place; no time is below the floor."""
        end = first + self.end_offset - self.first_offset
        least, greatest = max(self.min_timestamp, floor), max(self.max_timestamp, floor)
        return SegmentFooter(
            topic_id, first, end, self.records, least, greatest, self.expires_at, self.sealed_at,
            self.index_position, self.index_count, self.index_checksum,
        )  # fmt: skip


class Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a manifest for one topic."""

    kind: PartKind
    topic: str
    topic_id: int
    epoch: int
    segments: list[StagedSegment]
    expected: bytes = b""
    """Summaries of the segments to be replaced, as they were found."""

    @property
    def adopted_kind(self) -> Kind:
        """The kind that it has in the log."""
        return "append" if self.kind == "upsert" else self.kind


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Staged segments that are adopted together or not at all."""

    writer: str
    batch: int
    once: bool
    created_at: int
    parts: list[Part]


class AdoptedPart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The segments that were adopted into one topic."""

    kind: Kind
    topic_id: int
    first_offset: int
    floor: int
    """Records of an append with an earlier time have this one."""
    segments: list[StagedSegment]

    def placed(self) -> list[Placed]:
        """The segments, each with its place in the topic."""
        found = []
        first, floor = self.first_offset, self.floor
        for staged in self.segments:
            if self.kind == "append":
                # Nothing is before the first offset of all.
                footer = staged.footer(self.topic_id, first, floor if first else 0)
                first, floor = footer.end_offset, footer.max_timestamp
            else:
                footer = staged.footer(self.topic_id, staged.first_offset, 0)
            found.append(Placed(staged, footer))
        return found


class Adoption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of an `ADOPT` frame."""

    writer: str
    batch: int
    once: bool
    parts: list[AdoptedPart]


class Placed(NamedTuple):
    """A staged segment and the footer that it gets."""

    staged: StagedSegment
    footer: SegmentFooter

    def summary(self) -> Summary:
        """The segment in short."""
        footer = self.footer
        return Summary(
            footer.first_offset, footer.end_offset, footer.records, self.staged.bytes,
            footer.min_timestamp, footer.max_timestamp, footer.expires_at, self.staged.created_at,
            State.SEALED,
        )  # fmt: skip


_encoder = msgspec.msgpack.Encoder()
_manifests = msgspec.msgpack.Decoder(Manifest)
_adoptions = msgspec.msgpack.Decoder(Adoption)


def encode_manifest(manifest: Manifest) -> bytes:
    """The content of a manifest file."""
    check_writer(manifest.writer, manifest.batch)
    body = _encoder.encode(manifest)
    head = HEADER.pack(MAGIC, VERSION, 0, len(body), 0)[:-8]
    return head + struct.pack("<Q", _checksum(head, body)) + body


def decode_manifest(data: bytes) -> Manifest:
    """Read and verify a manifest file."""
    if data[:8] != MAGIC:
        raise BadMagicError(f"not a manifest: it starts {data[:8]!r}, not {MAGIC!r}")
    if len(data) < HEADER.size:
        raise CorruptionError(f"manifest header cut short: {len(data)} of {HEADER.size} bytes")
    _, version, reserved, length, checksum = HEADER.unpack_from(data)
    if checksum != _checksum(data[: HEADER.size - 8], data[HEADER.size :]):
        raise CorruptionError("manifest checksum does not match")
    if version > VERSION:
        raise UnsupportedVersionError(
            f"manifest of format version {version}; this release reads up to {VERSION}: upgrade it"
        )
    if version != VERSION or reserved or length != len(data) - HEADER.size:
        raise CorruptionError(f"manifest of version {version} claims {length} bytes")
    try:
        manifest = _manifests.decode(data[HEADER.size :])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"manifest does not decode: {error}") from error
    _check_manifest(manifest)
    return manifest


def encode_adoption(adoption: Adoption) -> bytes:
    """The body of an `ADOPT` frame."""
    return wrap(_encoder.encode(adoption))


def decode_adoption(body: bytes) -> Adoption:
    """Read the body of an `ADOPT` frame."""
    try:
        adoption = _adoptions.decode(unwrap(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"adopt frame does not decode: {error}") from error
    for part in adoption.parts:
        _check_numbers(part.topic_id, part.first_offset, part.floor)
        _check_segments(part.segments, is_append=part.kind == "append")
        if part.placed()[-1].footer.end_offset > _OFFSET_MAX:
            raise CorruptionError("adopt frame has an offset that is too large")
    return adoption


def check_writer(writer: str, batch: int) -> None:
    """Raise unless a batch of a writer can be told by these."""
    if not writer or not isinstance(writer, str):
        raise OptionError(f"writer={writer!r} must be text that says who writes")
    if len(writer.encode()) > WRITER_BYTES_MAX:
        raise TooLargeError(f"a writer's name has at most {WRITER_BYTES_MAX} bytes: {writer!r}")
    if not 0 <= batch <= _OFFSET_MAX:
        raise OptionError(f"batch={batch!r} must be 0 or more, and less than 2^63")


def _check_manifest(manifest: Manifest) -> None:
    try:
        check_writer(manifest.writer, manifest.batch)
        for part in manifest.parts:
            if part.kind in NEW:
                check_topic_name(part.topic)
    except (OptionError, TooLargeError) as error:
        raise CorruptionError(f"manifest: {error}") from error
    if not manifest.parts:
        raise CorruptionError("manifest of nothing")
    names = [staged.name for part in manifest.parts for staged in part.segments]
    if len(set(names)) != len(names):
        raise CorruptionError("manifest names a staged segment twice")
    for part in manifest.parts:
        _check_numbers(part.topic_id, part.epoch)
        _check_segments(part.segments, is_append=part.kind in NEW)
        decode_summaries(part.expected)


def _check_segments(segments: list[StagedSegment], *, is_append: bool) -> None:
    if not segments:
        raise CorruptionError("a part without a staged segment")
    end = 0
    for staged in segments:
        if not is_staged_name(staged.name):
            raise CorruptionError(f"{staged.name!r} is not the name of a staged segment")
        _check_numbers(*msgspec.structs.astuple(staged)[1:-1])
        if not 0 <= staged.index_checksum < 1 << 64:
            raise CorruptionError("a staged segment has a checksum that is none")
        span = staged.end_offset - staged.first_offset
        if is_append:
            is_right = staged.first_offset == 0 and span == staged.records > 0
        else:
            is_right = staged.first_offset >= end and span >= max(1, staged.records)
            end = staged.end_offset
        if not is_right or staged.min_timestamp > staged.max_timestamp:
            raise CorruptionError(f"staged segment {staged.name} has numbers that cannot be")
        size = staged.index_position + staged.index_count * INDEX_BYTES + FOOTER_BYTES
        if size != staged.bytes or staged.index_position < HEADER_BYTES:
            raise CorruptionError(f"staged segment {staged.name} has a length that cannot be")


def _check_numbers(*numbers: int) -> None:
    if not all(0 <= number <= _OFFSET_MAX for number in numbers):
        raise CorruptionError("a number is negative or too large")


def _checksum(*parts: bytes) -> int:
    digest = xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()
