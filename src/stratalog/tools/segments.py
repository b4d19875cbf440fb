"""One segment file, read from its first byte to its last: what is good of it and what is not.

A segment is checked at once, or, if sealed, range by range, in any order and in any process, and
then joined: `split_segment`, `check_range` and `join_ranges` give what `check_segment` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from stratalog.errors import CorruptionError, FormatError, UnsupportedVersionError
from stratalog.format.batch import Batch
from stratalog.format.frame import (
    ALIGNMENT,
    MAGIC,
    FrameHeader,
    FrameType,
    check_body,
    decode_header,
)
from stratalog.format.frame import HEADER_BYTES as FRAME_BYTES
from stratalog.format.merge import expiry
from stratalog.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX,
    INDEX_BYTES,
    UNBOUND,
    Index,
    SegmentFooter,
)
from stratalog.fs import FileSystem
from stratalog.fs.cold import Source
from stratalog.options import expanded_bytes_max
from stratalog.segments.segment import (
    check_segment_header,
    place_header,
    read_footer,
    read_index,
)
from stratalog.tools.report import Tally

_CHUNK_BYTES = 1 << 20


class Piece(NamedTuple):
    """A batch that is whole."""

    position: int
    length: int
    header: FrameHeader
    end: int
    """The offset after its last record."""
    expires_at: int
    floor: int = 0
    """No record of it has an earlier time, whatever its header says."""

    @property
    def min_timestamp(self) -> int:
        """Nanoseconds of the first record."""
        return max(self.header.base_timestamp, self.floor)

    @property
    def max_timestamp(self) -> int:
        """Nanoseconds of the last record."""
        return max(self.header.max_timestamp, self.floor)


class Bad(NamedTuple):
    """A part of the file without a whole batch, and the offsets that were in it."""

    position: int
    end_position: int
    first: int
    last: int
    """Below `first` when no offset is missing."""
    reason: str


class Fault(NamedTuple):
    """Something else that is wrong with the file."""

    kind: str
    position: int
    message: str


@dataclass(slots=True)
class SegmentCheck:
    """A segment file as it was found."""

    path: str
    topic_id: int
    first: int
    is_open: bool
    size: int = 0
    end: int = 0
    """The first offset it does not answer for, as far as is known."""
    created_at: int = 0
    sealed_at: int = 0
    pieces: list[Piece] = field(default_factory=list)
    bad: list[Bad] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether there is nothing to repair."""
        return not self.bad and not any(fault.kind == "segment" for fault in self.faults)


class SegmentTask(NamedTuple):
    """A segment that is to be read."""

    path: str
    topic_id: int
    first: int
    end_hint: int
    """Its end where the file itself cannot say."""
    mark: int | None = None
    """How much of an open one was durable; None for a sealed one."""
    footer: SegmentFooter | None = None
    """Footer that an adopted segment will have; it is still where it was staged."""
    identity: bytes = UNBOUND
    """Identity of the store that it should belong to."""


class RangeFound(NamedTuple):
    """A part of the file, and its batches."""

    pieces: list[Piece]
    bad: list[Bad]
    end: int
    """The position that was come to."""
    has_index: bool = False
    """Whether there the index begins, of a file whose footer is damaged."""


def check_segment(fs: FileSystem, task: SegmentTask, tally: Tally) -> SegmentCheck:
    """Read a segment; raises `FileNotFoundError`."""
    file = fs.open(task.path, "read")
    try:
        return check_file(file, task, tally)
    finally:
        file.close()


def check_file(file: Source, task: SegmentTask, tally: Tally) -> SegmentCheck:
    """Read a segment that is open, here or in the cold store."""
    check = _Check(file, task, tally)
    check.read_ends()
    return check.finish(check.read_batches(HEADER_BYTES, check.limit))


def split_segment(fs: FileSystem, task: SegmentTask, bytes_max: int) -> list[tuple[int, int]]:
    """Start and end of parts of about so many bytes, none if its index cannot be relied on."""
    file = fs.open(task.path, "read")
    try:
        check = _Check(file, task, Tally())
        check.read_ends()
    finally:
        file.close()
    starts: list[int] = []
    for position in check.entries:
        if not starts or position - starts[-1] >= bytes_max:
            starts.append(position)
    return list(pairwise([*starts, check.limit])) if starts else []


def check_range(
    fs: FileSystem, task: SegmentTask, start: int, end: int, tally: Tally
) -> RangeFound | None:
    """Read a part of a segment; None if the index cannot be relied on any more."""
    file = fs.open(task.path, "read")
    try:
        check = _Check(file, task, Tally())
        check.read_ends()
        check.tally = tally
        return check.read_batches(start, end) if start in check.entries else None
    finally:
        file.close()


def join_ranges(
    fs: FileSystem, task: SegmentTask, parts: Sequence[tuple[int, int, RangeFound | None]],
    tally: Tally,
) -> SegmentCheck | None:  # fmt: skip
    """All parts of a segment as one; None if they do not fit: it is to be read as a whole then."""
    file = fs.open(task.path, "read")
    try:
        check = _Check(file, task, tally)
        check.read_ends()
        pieces: list[Piece] = []
        bad: list[Bad] = []
        position = HEADER_BYTES
        for start, end, found in parts:
            if found is None or start != position or found.end != end:
                return None
            pieces += found.pieces
            bad += found.bad
            position = end
        return check.finish(RangeFound(pieces, bad, position)) if position == check.limit else None
    finally:
        file.close()


class _Check:
    def __init__(self, file: Source, task: SegmentTask, tally: Tally) -> None:
        self.file = file
        self.tally = tally
        self.mark = task.mark
        self.end_hint = task.end_hint
        self.footer = task.footer
        self.identity = task.identity
        self.entries: dict[int, tuple[int, ...]] = {}
        """The index by position; empty if there is none to be trusted."""
        self.check = SegmentCheck(
            file.path, task.topic_id, task.first, task.mark is not None, file.size()
        )

    def fetch(self, position: int, length: int) -> bytes:
        return self.file.pread(length, position)

    @property
    def limit(self) -> int:
        """Where its batches end."""
        if self.mark is not None:
            return self.mark
        return self.check.size if self.footer is None else self.footer.index_position

    def read_ends(self) -> None:
        """The header and, of a sealed one, index and footer."""
        check = self.check
        self.tally.files += 1
        self.tally.read(min(check.size, HEADER_BYTES), check.path)
        try:
            check.created_at = check_segment_header(
                self.fetch, check.topic_id, check.first, self.identity
            )
        except UnsupportedVersionError:
            raise
        except FormatError as error:
            check.faults.append(Fault("segment", 0, str(error)))
        if self.mark is None:
            self._read_end()

    def _read_end(self) -> None:
        check = self.check
        try:
            if self.footer is None:
                self.footer = read_footer(self.fetch, check.size, check.topic_id, check.first)
            index = read_index(self.fetch, self.footer)
        except UnsupportedVersionError:
            raise
        except FormatError as error:
            at = check.size - FOOTER_BYTES if self.footer is None else self.footer.index_position
            check.faults.append(Fault("segment", max(0, at), str(error)))
        else:
            self.entries = _by_position(index)
        if self.footer is not None:
            check.sealed_at = self.footer.sealed_at
            self.tally.read(check.size - self.footer.index_position, check.path)

    def read_batches(self, position: int, end: int) -> RangeFound:
        """Everything between two positions; the first is one where a batch should be."""
        limit = self.limit
        pieces: list[Piece] = []
        found: list[Bad] = []
        while position < end:
            try:
                piece = self._piece(position, limit)
            except UnsupportedVersionError:
                raise
            except FormatError as error:
                following = self._resync(position, limit)
                if following == limit and self._is_index(pieces, position, limit):
                    return RangeFound(pieces, found, position, has_index=True)
                # The offsets are known once the next batch is.
                found.append(Bad(position, following, -1, -1, str(error)))
                position = following
            else:
                pieces.append(piece)
                position += piece.length
        return RangeFound(pieces, found, position)

    def _piece(self, position: int, limit: int) -> Piece:
        head = self.fetch(position, FRAME_BYTES)
        header = self._header(head)
        if header.type != FrameType.RECORDS or header.topic_id != self.check.topic_id:
            raise CorruptionError("a frame that does not belong here")
        if header.base_offset < self.check.first:  # a copy of another segment, without its header
            raise CorruptionError(
                f"a batch of an earlier segment, from offset {header.base_offset}"
            )
        length = FRAME_BYTES + header.body_length
        if position + length > limit:
            raise CorruptionError(f"the batch of {length} bytes is cut short")
        body = self.fetch(position + FRAME_BYTES, header.body_length)
        check_body(header, body)
        batch = Batch.parse(header, body, 0, expanded_bytes_max())
        floor = 0 if self.footer is None else self.footer.min_timestamp
        if header.base_timestamp < floor:
            batch.hold(floor)
        self.tally.batches += 1
        self.tally.records += header.count
        self.tally.read(length, self.check.path)
        end = batch.offset_of(header.count - 1) + 1
        return Piece(position, length, header, end, expiry(batch), floor)

    def _header(self, head: bytes) -> FrameHeader:
        """A header; of a segment that was adopted, as it is in its place."""
        header = decode_header(head, seed=0)
        if not header.topic_id:
            header = place_header(header, self.check.topic_id, self.check.first)
        return header

    def _resync(self, position: int, limit: int) -> int:
        """Where the next batch is that may be whole."""
        later = [at for at in self.entries if at > position]
        if self.entries:
            return min(later, default=limit)
        search = position + ALIGNMENT
        while search < limit:
            chunk = self.fetch(search, min(_CHUNK_BYTES, limit - search))
            at = chunk.find(MAGIC)
            while at >= 0:
                if (search + at) % ALIGNMENT == 0 and self._is_whole(search + at, limit):
                    return search + at
                at = chunk.find(MAGIC, at + 1)
            if not chunk:
                break
            search += len(chunk)
        return limit

    def _is_whole(self, position: int, limit: int) -> bool:
        try:
            header = self._header(self.fetch(position, FRAME_BYTES))
            if position + FRAME_BYTES + header.body_length > limit:
                return False
            check_body(header, self.fetch(position + FRAME_BYTES, header.body_length))
        except FormatError:
            return False
        return header.topic_id == self.check.topic_id and header.type == FrameType.RECORDS

    def _is_index(self, pieces: list[Piece], position: int, limit: int) -> bool:
        """Whether the rest of a file without a footer is the index of just these batches."""
        length = len(pieces) * INDEX_BYTES
        if self.footer or self.mark is not None or limit - position != length + FOOTER_BYTES:
            return False
        end = pieces[-1].end if pieces else self.check.first
        index = b"".join(INDEX.pack(*_entry(piece)) for piece in pieces)
        return end >= self.end_hint or (bool(index) and self.fetch(position, length) == index)

    def _compare(self, piece: Piece) -> None:
        """Hold a batch against what the index says of it."""
        header = piece.header
        if self.entries and self.entries.get(piece.position) != _entry(piece):
            message = f"the index does not say what the batch at {piece.position} says"
            self.check.faults.append(Fault("segment", piece.position, message))
        if self.check.pieces:
            before = self.check.pieces[-1]
            if header.base_offset < before.end:
                message = f"offset {header.base_offset} comes after {before.end - 1}"
                self.check.faults.append(Fault("order", piece.position, message))
            if piece.min_timestamp < before.max_timestamp:
                message = "its records are older than those before it"
                self.check.faults.append(Fault("order", piece.position, message))

    def finish(self, found: RangeFound) -> SegmentCheck:
        """Hold batches against each other, say where the segment ends, and what is missing."""
        check = self.check
        for piece in found.pieces:
            self._compare(piece)
            check.pieces.append(piece)
        check.bad += found.bad
        known = check.pieces[-1].end if check.pieces else check.first
        is_cut = self.footer is None and self.mark is None and not found.has_index
        if is_cut and not check.bad and known < self.end_hint:
            # Cut between two batches, or before the first: what is left does not look damaged.
            check.bad.append(Bad(found.end, found.end, -1, -1, "the file ends here"))
        if self.footer is not None:
            check.end = self.footer.end_offset
        else:
            check.end = max(self.end_hint, known)
        bases = {position: entry[0] for position, entry in self.entries.items()}
        located: list[Bad] = []
        for bad in check.bad:
            before = [p.end for p in check.pieces if p.position < bad.position]
            following = [p.header.base_offset for p in check.pieces if p.position > bad.position]
            first = bases.get(bad.position, max(before, default=check.first))
            last = bases.get(bad.end_position, min(following, default=check.end)) - 1
            located.append(bad._replace(first=first, last=last))
        check.bad = located
        return check


def _entry(piece: Piece) -> tuple[int, ...]:
    """Return the index entry of a batch."""
    header = piece.header
    return (
        header.base_offset, piece.position, piece.length, header.count, piece.min_timestamp,
        piece.max_timestamp,
    )  # fmt: skip


def _by_position(index: Index) -> dict[int, tuple[int, ...]]:
    return {entry[1]: entry for entry in index.tolist()}
