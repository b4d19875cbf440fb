"""Writing segments again: from the batches that are whole, and from what the log still has.

Crash: the old file is there until the rename, which puts the whole new one in its place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from stratalog.errors import FormatError
from stratalog.format.batch import Batch
from stratalog.format.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    FrameHeader,
    FrameType,
    decode_header,
    log_seed,
)
from stratalog.format.merge import Block, Part, merge
from stratalog.format.multi import decode_multi, inner_seed
from stratalog.format.names import log_file_path, log_path, parse_numbered, parse_shard, shard_path
from stratalog.fs import FileSystem
from stratalog.log.scan import find_frame, frames
from stratalog.log.topic import TopicLog
from stratalog.options import expanded_bytes_max
from stratalog.segments.writer import SegmentWriter
from stratalog.state.recovery import Replay
from stratalog.tools.segments import SegmentCheck
from stratalog.tools.topics import Range


class Place(NamedTuple):
    """A frame of records somewhere in the log."""

    first: int
    end: int
    path: str
    seed: int
    position: int
    length: int


@dataclass(slots=True)
class Rewrite:
    """A segment that is to be written again, or for the first time."""

    topic: TopicLog
    first: int
    end: int
    check: SegmentCheck | None
    """The file as it is; None if there is none."""
    places: list[tuple[Place, Range]] = field(default_factory=list)
    """Places in the log to take records from, with their offsets."""


class Archive:
    """Where the log has records, also those that it no longer needs to have."""

    def __init__(self, fs: FileSystem, root: str, replay: Replay) -> None:
        self._fs = fs
        self._places: dict[int, list[Place]] = {}
        for name in fs.listdir(log_path(root)):
            number = parse_shard(name)
            if number is None:
                continue
            directory = shard_path(root, number)
            scanner = replay.scanners.get(number)
            for file_name in fs.listdir(directory):
                lsn = parse_numbered(file_name)
                if lsn is not None:
                    is_newest = scanner is not None and lsn == scanner.first_lsn
                    end = scanner.position if scanner is not None and is_newest else 1 << 62
                    seed = log_seed(replay.reader.identity, number, lsn)
                    self._scan(log_file_path(directory, lsn), seed, end)
        for places in self._places.values():
            places.sort()

    def _scan(self, path: str, seed: int, end: int) -> None:
        file = self._fs.open(path, "read")
        position = 0
        try:
            while position < end:
                with contextlib.suppress(FormatError):
                    for at, header, body in frames(file, seed, position):
                        position = at + HEADER_BYTES + header.body_length
                        if position > end:
                            return
                        self._add(path, seed, at, header)
                        if header.type == FrameType.MULTI:
                            for inner, one in decode_multi(header, body, seed):
                                place = at + HEADER_BYTES + inner
                                self._add(path, inner_seed(seed), place, one)
                found = find_frame(file, seed, position + ALIGNMENT)
                if found is None:
                    return
                position = found[0]
        finally:
            file.close()

    def _add(self, path: str, seed: int, position: int, header: FrameHeader) -> None:
        if header.type == FrameType.RECORDS:
            first, length = header.base_offset, HEADER_BYTES + header.body_length
            place = Place(first, first + header.count, path, seed, position, length)
            self._places.setdefault(header.topic_id, []).append(place)

    def find(
        self, topic_id: int, first: int, last: int
    ) -> tuple[list[tuple[Place, Range]], list[Range]]:
        """Frames with records between two offsets, and the offsets that are in none."""
        found: list[tuple[Place, Range]] = []
        lost: list[Range] = []
        for place in self._places.get(topic_id, []):
            if place.end <= first or place.first > last or first > last:
                continue
            if place.first > first:
                lost.append((first, place.first - 1))
                first = place.first
            found.append((place, (first, min(last, place.end - 1))))
            first = place.end
        if first <= last:
            lost.append((first, last))
        return found, lost


def write_segment(fs: FileSystem, rewrite: Rewrite, now: int) -> str:
    """Write a segment; returns its path."""
    topic, check = rewrite.topic, rewrite.check
    directory = topic.history.directory
    created_at = check.created_at if check is not None and check.created_at else now
    sealed_at = check.sealed_at if check is not None and check.sealed_at else now
    writer = SegmentWriter(
        fs, directory, topic.id, rewrite.first, created_at, ".tmp",
        identity=topic.history.pool.identity,
    )  # fmt: skip
    writer.create()
    try:
        for block in _blocks(fs, rewrite):
            writer.append(block)
        writer.seal(rewrite.end, sealed_at)
    finally:
        writer.close()
    if check is not None and check.is_open:
        fs.unlink(check.path)
        fs.sync_dir(directory)
    return os.path.splitext(writer.path)[0] + ".seg"


def _blocks(fs: FileSystem, rewrite: Rewrite) -> Iterator[Block]:
    """Batches that are whole as they are, and those of the log between them."""
    pieces = [] if rewrite.check is None else list(rewrite.check.pieces)
    places = list(rewrite.places)
    while pieces or places:
        if not places or (pieces and pieces[0].header.base_offset < places[0][1][0]):
            assert rewrite.check is not None
            piece = pieces.pop(0)
            header = piece.header
            body = _read(fs, rewrite.check.path, piece.position + HEADER_BYTES, header.body_length)
            if header.base_timestamp < piece.floor:
                held = Batch.parse(header, body, 0, expanded_bytes_max())
                held.hold(piece.floor)
                yield merge([Part(held, 0, held.count)], rewrite.topic.codec)
                continue
            yield Block(
                header.flags, body, header.count, header.base_offset, header.base_timestamp,
                header.max_timestamp, piece.expires_at,
            )  # fmt: skip
            continue
        place, (first, last) = places.pop(0)
        data = _read(fs, place.path, place.position, place.length)
        header = decode_header(data, seed=place.seed)
        batch = Batch.parse(header, data, HEADER_BYTES, expanded_bytes_max())
        yield merge([Part(batch, *batch.range_of(first, last + 1))], rewrite.topic.codec)


def _read(fs: FileSystem, path: str, position: int, length: int) -> bytes:
    file = fs.open(path, "read")
    try:
        return file.pread(length, position)
    finally:
        file.close()
