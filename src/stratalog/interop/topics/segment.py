"""Sealed segments of topics: frames of records, an index beside them, and marks of deletion.

The reader needs one thing of a segment: which records it marks as deleted. Everything else is in
the snapshot and in the logs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from stratalog.interop.topics import format as topics


class SegmentRecord(NamedTuple):
    """A record to be written to a segment."""

    seq: int
    timestamp: int
    """Milliseconds since 1970."""
    node: bytes | None
    tag: bytes | None
    data: bytes
    """JSON envelope."""
    is_deleted: bool = False


class Marks(NamedTuple):
    """The marks of a segment."""

    deleted: list[int]
    """Numbers of the records that are marked as deleted."""
    broken: list[int]
    """Positions where a frame should begin, and none is whole."""


def read_marks(data: bytes, index: bytes = b"") -> Marks:
    """Read the marks of a segment; its index, if there is one, helps past broken frames."""
    deleted: list[int] = []
    broken: list[int] = []
    places = positions(index)
    position = 0
    while position < len(data):
        end = _end_of(data, position)
        if end is not None:
            if data[end - 1] == topics.DELETED:
                deleted.append(topics.SEGMENT_FRAME.unpack_from(data, position)[2])
            position = end
            continue
        broken.append(position)
        later = places[bisect_right(places, position) :]
        following = next((at for at in later if _end_of(data, at) is not None), None)
        if following is None:
            break
        position = following
    return Marks(deleted, broken)


def positions(index: bytes) -> list[int]:
    """Return where frames begin by the index; an incomplete last entry is ignored."""
    whole = len(index) - len(index) % topics.INDEX_BYTES
    return sorted({entry[0] for entry in topics.INDEX.iter_unpack(index[:whole])})


def _end_of(data: bytes, position: int) -> int | None:
    """Return where the frame at a position ends; None if it is not whole."""
    if not 0 <= position <= len(data) - topics.SEGMENT_FRAME_BYTES:
        return None
    length = topics.SEGMENT_FRAME.unpack_from(data, position)[0]
    end: int = position + 4 + length
    if length < topics.SEGMENT_LENGTH_MIN or end > len(data):
        return None
    stored = int.from_bytes(data[end - 9 : end - 1], "little")
    return end if xxh3_64_intdigest(data[position + 4 : end - 9]) == stored else None


def encode_segment(records: Iterable[SegmentRecord]) -> tuple[bytes, bytes]:
    """Encode a sealed segment of consecutive records, and its index."""
    frames: list[bytes] = []
    entries: list[bytes] = []
    position = 0
    for record in records:
        node, tag = record.node or b"", record.tag or b""
        flags = topics.HAS_TAG * (record.tag is not None) | topics.HAS_NODE * (
            record.node is not None
        )
        size = len(node) + len(tag) + len(record.data)
        head = topics.SEGMENT_FRAME.pack(
            topics.SEGMENT_LENGTH_MIN + size, flags, record.seq, record.timestamp, len(node),
            len(tag), len(record.data),
        )  # fmt: skip
        body = b"".join((head[4:], node, tag, record.data))
        checksum = xxh3_64_intdigest(body).to_bytes(8, "little")
        mark = bytes([topics.DELETED if record.is_deleted else 0])
        frames.append(b"".join((head[:4], body, checksum, mark)))
        entries.append(topics.INDEX.pack(position, len(frames[-1]), record.timestamp, flags, b""))
        position += len(frames[-1])
    return b"".join(frames), b"".join(entries)


__all__ = ["Marks", "SegmentRecord", "encode_segment", "positions", "read_marks"]
