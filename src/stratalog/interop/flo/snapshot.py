"""Snapshots of Flo: which entries they cover.

Their sections are in an encoding that is not known. A snapshot shows up to which entry Flo may have
dropped segments.
"""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from stratalog.interop.flo import format as flo


class Snapshot(NamedTuple):
    """A snapshot of a partition."""

    partition: int
    last: int
    """Index of the last entry that is in it."""
    term: int
    timestamp: int
    sections: dict[int, bytes]
    """The bytes of each section by its type."""


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode a snapshot; raises `ValueError` with a sentence if it is invalid."""
    if len(data) < flo.SNAPSHOT_BYTES + flo.SNAPSHOT_FOOTER_BYTES:
        raise ValueError("The snapshot is cut short.")
    fields = flo.SNAPSHOT.unpack_from(data)
    magic, version, partition, last, term, timestamp, count, size, _ = fields
    if magic != flo.SNAPSHOT_MAGIC:
        raise ValueError("The file does not begin as a snapshot does.")
    if version != flo.SNAPSHOT_VERSION:
        raise ValueError(
            f"The snapshot is of version {version}, and this release reads {flo.SNAPSHOT_VERSION}."
        )
    end = len(data) - flo.SNAPSHOT_FOOTER_BYTES
    checksum, magic, _ = flo.SNAPSHOT_FOOTER.unpack_from(data, end)
    is_whole = size == len(data) and magic == flo.SNAPSHOT_FOOTER_MAGIC
    if not is_whole or checksum != crc32c(data[:end]) or count > flo.SECTIONS_MAX:
        raise ValueError("The snapshot does not match its checksum.")
    sections = {}
    position = flo.SNAPSHOT_BYTES
    for _ in range(count):
        if position + flo.SECTION_BYTES > end:
            raise ValueError("A section of the snapshot is cut short.")
        type, _, length = flo.SECTION.unpack_from(data, position)
        position += flo.SECTION_BYTES
        if length > end - position:
            raise ValueError("A section of the snapshot is cut short.")
        sections[type] = data[position : position + length]
        position += length
    return Snapshot(partition, last, term, timestamp, sections)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Encode a snapshot."""
    body = b"".join(
        flo.SECTION.pack(type, b"", len(data)) + data for type, data in snapshot.sections.items()
    )
    size = flo.SNAPSHOT_BYTES + len(body) + flo.SNAPSHOT_FOOTER_BYTES
    head = flo.SNAPSHOT.pack(
        flo.SNAPSHOT_MAGIC, flo.SNAPSHOT_VERSION, snapshot.partition, snapshot.last, snapshot.term,
        snapshot.timestamp, len(snapshot.sections), size, b"",
    )  # fmt: skip
    return head + body + flo.SNAPSHOT_FOOTER.pack(crc32c(head + body), flo.SNAPSHOT_FOOTER_MAGIC, 0)


__all__ = ["Snapshot", "decode_snapshot", "encode_snapshot"]
