"""One segment, read: its index in memory, its batches from wherever the file is.

A sealed segment is mapped; its batches are views into the map. An open one is read by `pread`, up
to the bytes that are known to be durable. One in the cold store is read in ranges, in a pool of
threads that belongs to cold reads alone.

Every batch is verified when it is read: its header, its body, and that it is the batch the index
says. Lookups of single records and of times take a verification of the last minute for good.

Concurrency: any thread may read. A segment's fields never change: what changes is which `Segment`
a topic's chain holds.
"""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stratalog.errors import CorruptionError, FormatError, TooLargeError
from stratalog.format.batch import Batch
from stratalog.format.frame import HEADER_BYTES as FRAME_BYTES
from stratalog.format.frame import MAGIC, FrameHeader, FrameType, check_body, decode_header
from stratalog.format.manifest import Placed
from stratalog.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_BYTES,
    INDEX_DTYPE,
    UNBOUND,
    Index,
    SegmentFooter,
    SegmentHeader,
    State,
    Summary,
    check_index,
    decode_footer,
    decode_index,
    decode_segment_header,
)

if TYPE_CHECKING:
    from stratalog.segments.pool import SegmentPool

Fetch = Callable[[int, int], "bytes | memoryview"]
"""Bytes of a file: position and length."""

_OPEN_GATE = contextlib.nullcontext()


# How long lookups rely on a batch that was verified.
_RECENT_SECONDS = 60.0


class Slice(NamedTuple):
    """Records `first` to `end` (not included) of a batch."""

    batch: Batch
    first: int
    end: int


class Segment:
    """A file of records: its summary, and access to them."""

    __slots__ = ("_flags", "_loaded", "_pool", "is_used", "path", "placed", "summary", "topic_id")

    def __init__(
        self,
        pool: SegmentPool,
        topic_id: int,
        path: str,
        summary: Summary,
        placed: Placed | None = None,
    ) -> None:
        self._pool = pool
        self._loaded: Loaded | None = None
        self._flags: int | None = None
        self.is_used = False
        """Whether it was read since the pool last checked."""
        self.topic_id = topic_id
        self.path = path
        """Path of the file; for a cold segment, its name in the cold store."""
        self.summary = summary
        self.placed = placed
        """Name and place of an adopted segment that is still where it was staged."""

    @property
    def first(self) -> int:
        """The first offset it answers for."""
        return self.summary.first_offset

    @property
    def end(self) -> int:
        """The first offset it does not answer for."""
        return self.summary.end_offset

    @property
    def is_verified(self) -> bool:
        """Whether bodies are checked against their checksums."""
        return self._pool.is_verified

    @property
    def expanded_bytes_max(self) -> int:
        """Largest batch that is decompressed."""
        return self._pool.expanded_bytes_max

    @property
    def is_open(self) -> bool:
        """Whether it is still being written."""
        return self.summary.state == State.OPEN

    @property
    def is_cold(self) -> bool:
        """Whether it is in the cold store."""
        return self.summary.state == State.COLD

    def load(self) -> Loaded:
        """Load its index and file; the pool keeps them for a while."""
        loaded = self._loaded
        if loaded is None:
            loaded = self._loaded = self._pool.load(self)
        else:
            self.is_used = True
        return loaded

    def forget(self) -> None:
        """Drop what was loaded; readers that hold it continue."""
        self._loaded = None
        self.is_used = False

    def has_column(self, flag: int) -> bool:
        """Return whether one of its batches has a column; reads the headers once."""
        if self._flags is None:
            loaded = self.load()
            flags = 0
            for number in range(len(loaded.bases)):
                flags |= loaded.flags(number)
            self._flags = flags
        return bool(self._flags & flag)

    def batches(self, start: int, end: int) -> Iterator[Slice]:
        """Read the records between two offsets, in order; removed ones are missing."""
        loaded = self.load()
        number = max(0, bisect_right(loaded.bases, start) - 1)
        while number < len(loaded.bases) and loaded.bases[number] < end:
            batch = loaded.batch(number)
            first, last = batch.range_of(start, end)
            if first < last:
                yield Slice(batch, first, last)
            number += 1

    def find(self, offset: int) -> tuple[Batch, int] | None:
        """Find the batch with an offset, and its place there; None if the offset was removed."""
        loaded = self.load()
        number = bisect_right(loaded.bases, offset) - 1
        if number < 0:
            return None
        batch = loaded.recent(number)
        first, last = batch.range_of(offset, offset + 1)
        return (batch, first) if first < last else None

    def offset_at(self, timestamp: int) -> int:
        """Find the first offset with this time or a later one; the end if there is none."""
        loaded = self.load()
        number = bisect_left(loaded.max_timestamps, timestamp)
        if number == len(loaded.bases):
            return self.end
        return loaded.recent(number).offset_at(timestamp)


class Loaded:
    """The index of a segment, as lists, and its batches as they are asked for."""

    __slots__ = (
        "_fetch", "_gate", "_note", "_recent", "_release", "_segment", "_whole", "bases",
        "counts", "floors", "index", "lengths", "max_timestamps", "positions",
    )  # fmt: skip

    def __init__(
        self,
        segment: Segment,
        index: Index,
        fetch: Fetch,
        note: Callable[[int], None],
        release: Callable[[], None] | None = None,
        whole: memoryview | None = None,
        gate: AbstractContextManager[object] = _OPEN_GATE,
    ) -> None:
        self._segment = segment
        self._gate = gate
        """Entered to verify and parse a batch."""
        self._whole = whole
        """All of a file that is mapped: its batches are known to lie in one piece of memory."""
        self._fetch = fetch
        self._note = note
        self._release = release
        self._recent: dict[int, tuple[Batch, float]] = {}
        self.index = index
        """As it is on disk."""
        self.bases: list[int] = index["base_offset"].tolist()
        self.positions: list[int] = index["position"].tolist()
        self.lengths: list[int] = index["length"].tolist()
        self.counts: list[int] = index["count"].tolist()
        self.floors: list[int] = index["min_timestamp"].tolist()
        self.max_timestamps: list[int] = index["max_timestamp"].tolist()

    @property
    def is_mapped(self) -> bool:
        """Whether its file is mapped."""
        return self._whole is not None

    def release(self) -> None:
        """Release memory; the pages are read again when they are needed."""
        if self._release is not None:
            self._release()

    def batch(self, number: int) -> Batch:
        """Read and verify one batch."""
        data = self._fetch(self.positions[number], self.lengths[number])
        with self._gate:
            batch = self._parse(number, data)
        if self._whole is not None:  # else it holds memory of its own, not the disk's
            self._note(self.lengths[number])
        return batch

    def recent(self, number: int) -> Batch:
        """One batch, verified within the last minute: for those who want one record of it.

        To hash all of a batch that is not in the processor's cache takes ten times as long as
        everything else. What is kept of it is a view of the map.
        """
        now = time.monotonic()
        batch, verified_at = self._recent.get(number, (None, 0.0))
        if batch is None or now - verified_at > _RECENT_SECONDS:
            batch = self.batch(number)
            if self._whole is not None:
                self._recent[number] = (batch, now)
        elif self._whole is not None:
            self._fetch(self.positions[number], self.lengths[number])  # its pages may be gone
        return batch

    def _parse(self, number: int, data: bytes | memoryview) -> Batch:
        header, body = self._verify(number, data)
        try:
            if self._whole is None:
                batch = Batch.parse(header, body, 0, self._segment.expanded_bytes_max)
            else:
                start = self.positions[number] + FRAME_BYTES
                batch = Batch.parse(header, self._whole, start, self._segment.expanded_bytes_max)
            if header.base_timestamp < self.floors[number]:
                batch.hold(self.floors[number])
            return batch
        except FormatError as error:
            raise self._damaged(number, error) from error
        except TooLargeError as error:
            place = f"{self._segment.path} at position {self.positions[number]}"
            raise TooLargeError(f"{place}: {error}") from error

    def flags(self, number: int) -> int:
        """Return the columns of a batch, by its header alone."""
        data = self._fetch(self.positions[number], FRAME_BYTES)
        try:
            return decode_header(bytes(data), seed=0).flags
        except FormatError as error:
            raise self._damaged(number, error) from error

    def frame(self, number: int) -> tuple[FrameHeader, memoryview]:
        """Read and verify one frame, without parsing it."""
        return self._verify(number, self._fetch(self.positions[number], self.lengths[number]))

    def _verify(self, number: int, data: bytes | memoryview) -> tuple[FrameHeader, memoryview]:
        try:
            header = decode_header(bytes(data[:FRAME_BYTES]), seed=0)
            if not header.topic_id:
                header = place_header(header, self._segment.topic_id, self._segment.first)
            if (
                header.type != FrameType.RECORDS
                or header.topic_id != self._segment.topic_id
                or header.base_offset != self.bases[number]
                or header.count != self.counts[number]
                or header.body_length != self.lengths[number] - FRAME_BYTES
            ):
                raise CorruptionError("another frame is where this one was")
            body = memoryview(data)[FRAME_BYTES:]  # of bytes too: a slice of those is a copy
            if self._segment.is_verified:
                check_body(header, body)
        except FormatError as error:
            raise self._damaged(number, error) from error
        return header, body

    def _damaged(self, number: int, error: FormatError) -> CorruptionError:
        first = self.bases[number]
        following = self.bases[number + 1 : number + 2] or [self._segment.end]
        return CorruptionError(
            f"{self._segment.path} at position {self.positions[number]}: {error} (topic "
            f"{self._segment.topic_id}, offsets {first} to {following[0] - 1}). Nothing damaged is "
            "ever returned; read around these offsets, restore the file from a copy, or run "
            "`stratalog repair`."
        )


def read_footer(fetch: Fetch, size: int, topic_id: int, first: int) -> SegmentFooter:
    """Read the footer of a sealed segment; raises a `FormatError` for one of another topic."""
    footer = decode_footer(bytes(fetch(max(0, size - FOOTER_BYTES), min(size, FOOTER_BYTES))), size)
    if (footer.topic_id, footer.first_offset) != (topic_id, first):
        raise CorruptionError(
            f"segment of topic {footer.topic_id} from offset {footer.first_offset} is where that "
            f"of topic {topic_id} from offset {first} should be"
        )
    return footer


def read_index(fetch: Fetch, footer: SegmentFooter) -> Index:
    """Read the index of a sealed segment."""
    length = footer.index_count * INDEX_BYTES
    return decode_index(bytes(fetch(footer.index_position, length)), footer)


def check_segment_header(fetch: Fetch, topic_id: int, first: int, identity: bytes = UNBOUND) -> int:
    """Raise unless a segment has the expected header; returns when it was created."""
    header = decode_segment_header(bytes(fetch(0, HEADER_BYTES)))
    if is_foreign(header, identity):
        raise CorruptionError("segment of another store")
    # One that was adopted has its topic and its offsets in the footer alone.
    if (header.topic_id, header.first_offset) not in ((topic_id, first), (0, 0)):
        raise CorruptionError(
            f"segment of topic {header.topic_id} from offset {header.first_offset} is where that "
            f"of topic {topic_id} from offset {first} should be"
        )
    return header.created_at


def is_foreign(header: SegmentHeader, identity: bytes) -> bool:
    """Return whether a segment belongs to another store, as far as both are known."""
    return UNBOUND not in (header.identity, identity) and header.identity != identity


def index_end(index: Index) -> int:
    """Return where the batches of an index end."""
    return int(index["position"][-1] + index["length"][-1]) if len(index) else HEADER_BYTES


def place_header(header: FrameHeader, topic_id: int, first: int) -> FrameHeader:
    """The header of a frame that was staged, in a segment that starts with this offset.

    Its times stay what they are: a least time is applied to the batch.
    """
    return header._replace(topic_id=topic_id, base_offset=header.base_offset + first)


def scan_index(fetch: Fetch, topic_id: int, end: int, first: int = 0) -> Index:
    """The index, made again from the headers of the frames up to `end`.

    Stops where no header is valid: at the index of a sealed segment, or at damage.
    """
    entries: list[tuple[int, ...]] = []
    position = HEADER_BYTES
    while position + FRAME_BYTES <= end:
        head = bytes(fetch(position, FRAME_BYTES))
        if head[:4] != MAGIC:
            break
        with contextlib.suppress(FormatError):
            header = decode_header(head, seed=0)
            if not header.topic_id:
                header = place_header(header, topic_id, first)
            length = FRAME_BYTES + header.body_length
            if header.topic_id == topic_id and header.type == FrameType.RECORDS:
                if position + length > end:
                    break
                entries.append(
                    (
                        header.base_offset, position, length, header.count,
                        header.base_timestamp, header.max_timestamp,
                    )
                )  # fmt: skip
                position += length
                continue
        break
    index = np.array(entries, INDEX_DTYPE)
    if len(index):
        check_index(index, position)
    return index
