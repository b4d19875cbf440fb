"""A segment: one topic's records from one offset to another, in one file.

A segment starts with its header; record batches follow, each a frame with seed 0. Sealing adds the
index (an entry per batch) and the footer, which ends the file. An open segment has neither: both
can be made again from the frames' headers.

Segment header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRASEGM` |
| version | u32 | format version, 1 |
| reserved | u32 | zero, checked |
| topic_id | u64 | interned id of the topic |
| first_offset | u64 | the first offset it answers for, which is also its name |
| created_at | i64 | nanoseconds since 1970 |
| identity | 16s | of the store; zero in a segment that was staged, or made by an older release |
| checksum | u64 | XXH3-64 of the bytes before it |

Index entry, little-endian:

| field | type | meaning |
|---|---|---|
| base_offset | u64 | offset of the batch's first record |
| position | u64 | byte place of its frame in the file |
| length | u32 | bytes of the frame, header and body |
| count | u32 | records in it |
| min_timestamp | i64 | nanoseconds, of its first record |
| max_timestamp | i64 | nanoseconds, of its last record |

Segment footer, little-endian:

| field | type | meaning |
|---|---|---|
| topic_id | u64 | as in the header |
| first_offset | u64 | as in the header |
| end_offset | u64 | the first offset it does not answer for |
| records | u64 | records in all batches; fewer than offsets where some were removed |
| min_timestamp | i64 | nanoseconds, of the first record; 0 when there is none |
| max_timestamp | i64 | nanoseconds, of the last record; 0 when there is none |
| expires_at | i64 | when the last record expires by itself, in nanoseconds; 0 is never |
| sealed_at | i64 | nanoseconds since 1970 |
| index_position | u64 | where the index starts; the batches end there |
| index_count | u32 | entries of the index |
| version | u32 | format version, 1 |
| index_checksum | u64 | XXH3-64 of the index |
| checksum | u64 | XXH3-64 of the footer's bytes before it |
| magic | 8s | `STRASEAL` |

Segment summary, little-endian, one per segment in a topic's state:

| field | type | meaning |
|---|---|---|
| first_offset | u64 | the first offset it answers for |
| end_offset | u64 | the first it does not |
| records | u64 | records in it |
| bytes | u64 | length of the file; of an open segment, how much of it is durable |
| min_timestamp | i64 | nanoseconds, of the first record |
| max_timestamp | i64 | nanoseconds, of the last record |
| expires_at | i64 | when the last record expires by itself; 0 is never |
| created_at | i64 | nanoseconds since 1970, when it was begun |
| state | u64 | 0 open, 1 sealed, 2 sealed and in the cold store |

Offsets between two batches, and at the end of the segment after the last one, were removed by a
rewrite: the segment answers for them, and the answer is that there is nothing.

A segment that was staged and adopted has the topic's id 0 everywhere but in its footer, and its
frames and its index count from 0: see manifests.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError
from stratalog.format.frame import HEADER_BYTES as FRAME_HEADER_BYTES

HEADER_MAGIC = b"STRASEGM"
FOOTER_MAGIC = b"STRASEAL"
VERSION = 1

HEADER = struct.Struct("<8sIIQQq16sQ")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES

INDEX = struct.Struct("<QQIIqq")
INDEX_BYTES = 40
assert INDEX.size == INDEX_BYTES

FOOTER = struct.Struct("<QQQQqqqqQIIQQ8s")
FOOTER_BYTES = 104
assert FOOTER.size == FOOTER_BYTES

SUMMARY = struct.Struct("<QQQQqqqqQ")
SUMMARY_BYTES = 72
assert SUMMARY.size == SUMMARY_BYTES

INDEX_DTYPE = np.dtype(
    [
        ("base_offset", "<u8"),
        ("position", "<u8"),
        ("length", "<u4"),
        ("count", "<u4"),
        ("min_timestamp", "<i8"),
        ("max_timestamp", "<i8"),
    ]
)
"""Layout of `INDEX` for an index as a whole."""
assert INDEX_DTYPE.itemsize == INDEX_BYTES

Index = npt.NDArray[np.void]

UNBOUND = bytes(16)
"""Stands for the identity of a store where none is known."""

_OFFSET_MAX = (1 << 63) - 1


class State(enum.IntEnum):
    """Where a segment is in its life. Numbers are for ever."""

    OPEN = 0
    SEALED = 1
    COLD = 2


class Summary(NamedTuple):
    """One segment, in short."""

    first_offset: int
    end_offset: int
    records: int
    bytes: int
    min_timestamp: int
    max_timestamp: int
    expires_at: int
    created_at: int
    state: int


class SegmentHeader(NamedTuple):
    """Whose segment it is, and from where on."""

    topic_id: int
    first_offset: int
    created_at: int
    identity: bytes = UNBOUND


class SegmentFooter(NamedTuple):
    """The footer of a sealed segment: a summary of its records."""

    topic_id: int
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


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The first bytes of a segment."""
    data = HEADER.pack(HEADER_MAGIC, VERSION, 0, *header, 0)[:-8]
    return data + struct.pack("<Q", xxh3_64_intdigest(data))


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Read and verify the first bytes of a segment."""
    if data[:8] != HEADER_MAGIC:
        raise BadMagicError(f"not a segment: it starts {data[:8]!r}, not {HEADER_MAGIC!r}")
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"segment header cut short: {len(data)} of {HEADER_BYTES} bytes")
    _, version, reserved, *fields, checksum = HEADER.unpack_from(data)
    if checksum != xxh3_64_intdigest(data[: HEADER_BYTES - 8]):
        raise CorruptionError("segment header checksum does not match")
    _check_version("segment", version)
    if reserved:
        raise CorruptionError("segment header has reserved bytes set")
    return SegmentHeader._make(fields)


def encode_index(entries: Index) -> bytes:
    """The index section."""
    return entries.tobytes()


def decode_index(data: bytes, footer: SegmentFooter) -> Index:
    """Read and verify the index section: batches in order, each inside of the file.

    That of a segment which was staged becomes what it would be, had it been written in its place.
    """
    if len(data) != footer.index_count * INDEX_BYTES:
        raise CorruptionError(f"segment index cut short: {len(data)} bytes")
    if xxh3_64_intdigest(data) != footer.index_checksum:
        raise CorruptionError("segment index checksum does not match")
    index = np.frombuffer(data, INDEX_DTYPE)
    if len(index) and footer.first_offset > int(index["base_offset"][0]) == 0:
        index = place_index(index, footer.first_offset, footer.min_timestamp)
    if len(index):
        check_index(index, footer.index_position)
        bases, counts = index["base_offset"], index["count"]
        if (
            int(bases[0]) < footer.first_offset
            or int(bases[-1]) + int(counts[-1]) > footer.end_offset
            or int(counts.sum(dtype=np.uint64)) != footer.records
            or int(index["min_timestamp"][0]) != footer.min_timestamp
            or int(index["max_timestamp"][-1]) != footer.max_timestamp
        ):
            raise CorruptionError("segment index and footer do not agree")
    elif (
        footer.records
        or footer.min_timestamp
        or footer.max_timestamp
        or footer.index_position != HEADER_BYTES
    ):
        raise CorruptionError("segment index is empty, and the segment is not")
    return index


def place_index(index: Index, first: int, floor: int) -> Index:
    """The index of a staged segment, once its first record has an offset and a least time."""
    placed = index.copy()
    placed["base_offset"] += np.uint64(first)
    for name in ("min_timestamp", "max_timestamp"):
        placed[name] = np.maximum(placed[name], floor)
    return placed


def check_index(index: Index, end: int) -> None:
    """Raise unless the batches follow each other from the header to `end`, in order and time."""
    positions, lengths = index["position"], index["length"].astype(np.uint64)
    bases, counts = index["base_offset"], index["count"].astype(np.uint64)
    if int(positions.max()) > _OFFSET_MAX or int(bases.max()) > _OFFSET_MAX:
        raise CorruptionError("segment index has a number that is too large")
    ends = positions + lengths
    if (
        int(positions[0]) != HEADER_BYTES
        or int(ends[-1]) != end
        or bool((positions[1:] != ends[:-1]).any())
        or bool((lengths < FRAME_HEADER_BYTES).any())
    ):
        raise CorruptionError("segment index has batches that do not follow each other")
    low, high = index["min_timestamp"], index["max_timestamp"]
    if (
        bool((counts == 0).any())
        or bool((bases[1:] < bases[:-1] + counts[:-1]).any())
        or bool((high < low).any())
        or bool((low[1:] < high[:-1]).any())
    ):
        raise CorruptionError("segment index is not in the order of offsets and times")


def encode_footer(footer: SegmentFooter) -> bytes:
    """The last bytes of a sealed segment."""
    data = FOOTER.pack(*footer[:10], VERSION, footer.index_checksum, 0, FOOTER_MAGIC)
    checksum = xxh3_64_intdigest(data[:-16])
    return data[:-16] + struct.pack("<Q8s", checksum, FOOTER_MAGIC)


def decode_footer(data: bytes, size: int) -> SegmentFooter:
    """Read and verify the last bytes of a sealed segment of `size` bytes."""
    if len(data) < FOOTER_BYTES:
        raise CorruptionError(f"segment footer cut short: {len(data)} of {FOOTER_BYTES} bytes")
    *fields, version, index_checksum, checksum, magic = FOOTER.unpack(data[-FOOTER_BYTES:])
    if magic != FOOTER_MAGIC:
        raise BadMagicError(f"segment footer ends {magic!r}, not {FOOTER_MAGIC!r}")
    if checksum != xxh3_64_intdigest(data[-FOOTER_BYTES:-16]):
        raise CorruptionError("segment footer checksum does not match")
    _check_version("segment", version)
    footer = SegmentFooter._make((*fields, index_checksum))
    if footer.index_position + footer.index_count * INDEX_BYTES + FOOTER_BYTES != size:
        raise CorruptionError(f"segment of {size} bytes does not end where its footer says")
    if not footer.first_offset <= footer.end_offset <= _OFFSET_MAX:
        raise CorruptionError("segment footer has offsets that do not rise")
    if footer.index_position < HEADER_BYTES:
        raise CorruptionError("segment footer has its index inside of the header")
    return footer


def encode_summaries(summaries: list[Summary]) -> bytes:
    """Segments of a topic, as its state holds them."""
    return b"".join(SUMMARY.pack(*summary) for summary in summaries)


def decode_summaries(data: bytes) -> list[Summary]:
    """Read the segments of a topic: in order."""
    if len(data) % SUMMARY_BYTES:
        raise CorruptionError(f"segment summaries of {len(data)} bytes are cut short")
    summaries = list(map(Summary._make, SUMMARY.iter_unpack(data)))
    end = 0
    for summary in summaries:
        if not end <= summary.first_offset <= summary.end_offset <= _OFFSET_MAX:
            raise CorruptionError("segment summaries are not in the order of their offsets")
        if summary.state > max(State):
            raise CorruptionError(f"segment state {summary.state} is not known")
        end = summary.end_offset
    return summaries


def _check_version(what: str, version: int) -> None:
    if version > VERSION:
        raise UnsupportedVersionError(
            f"{what} of format version {version}; this release reads up to {VERSION}: upgrade it"
        )
    if version != VERSION:
        raise CorruptionError(f"{what} of format version {version}, which never was")
