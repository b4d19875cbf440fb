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

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.batch import Batch
from stratalog.format.frame import HEADER_BYTES as FRAME_BYTES
from stratalog.format.frame import MAGIC, FrameHeader, FrameType, check_body, decode_header
from stratalog.format.manifest import Placed
from stratalog.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_BYTES,
    INDEX_DTYPE,
    Index,
    SegmentFooter,
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
    """A file of records: what it holds in short, and the way to them."""

    __slots__ = ("_loaded", "_pool", "is_used", "path", "placed", "summary", "topic_id")

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
        self.is_used = False
        """Whether it was read again since the pool last looked."""
        self.topic_id = topic_id
        self.path = path
        """Of the file; of a cold one, its name in the cold store."""
        self.summary = summary
        self.placed = placed
        """Of one that was adopted and still is where it was staged: its name and its place."""

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
    def is_open(self) -> bool:
        """Whether it is still being written."""
        return self.summary.state == State.OPEN

    @property
    def is_cold(self) -> bool:
        """Whether it is in the cold store."""
        return self.summary.state == State.COLD

    def load(self) -> Loaded:
        """Its index and the way to its batches; kept by the pool for a while."""
        loaded = self._loaded
        if loaded is None:
            loaded = self._loaded = self._pool.load(self)
        else:
            self.is_used = True
        return loaded

    def forget(self) -> None:
        """Let go of what was loaded; those who are reading it go on."""
        self._loaded = None
        self.is_used = False

    def batches(self, start: int, end: int) -> Iterator[Slice]:
        """The records between two offsets, in order; what was removed is not there."""
        loaded = self.load()
        number = max(0, bisect_right(loaded.bases, start) - 1)
        while number < len(loaded.bases) and loaded.bases[number] < end:
            batch = loaded.batch(number)
            first, last = batch.range_of(start, end)
            if first < last:
                yield Slice(batch, first, last)
            number += 1

    def find(self, offset: int) -> tuple[Batch, int] | None:
        """The batch that has an offset, and its place there; None if the offset was removed."""
        loaded = self.load()
        number = bisect_right(loaded.bases, offset) - 1
        if number < 0:
            return None
        batch = loaded.recent(number)
        first, last = batch.range_of(offset, offset + 1)
        return (batch, first) if first < last else None

    def offset_at(self, timestamp: int) -> int:
        """The first offset with this time or a later one; the end if there is none."""
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

    def release(self) -> None:
        """Give memory back; what it held is read again when it is next asked for."""
        if self._release is not None:
            self._release()

    def batch(self, number: int) -> Batch:
        """One batch, verified."""
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
        return batch

    def _parse(self, number: int, data: bytes | memoryview) -> Batch:
        header, body = self._verify(number, data)
        try:
            if self._whole is None:
                batch = Batch.parse(header, body)
            else:
                batch = Batch.parse(header, self._whole, self.positions[number] + FRAME_BYTES)
            if header.base_timestamp < self.floors[number]:
                batch.hold(self.floors[number])
            return batch
        except FormatError as error:
            raise self._damaged(number, error) from error

    def frame(self, number: int) -> tuple[FrameHeader, memoryview]:
        """One frame, verified and not parsed."""
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
    """The footer of a sealed segment; raises a `FormatError` if it is not one of this topic."""
    footer = decode_footer(bytes(fetch(max(0, size - FOOTER_BYTES), min(size, FOOTER_BYTES))), size)
    if (footer.topic_id, footer.first_offset) != (topic_id, first):
        raise CorruptionError(
            f"segment of topic {footer.topic_id} from offset {footer.first_offset} is where that "
            f"of topic {topic_id} from offset {first} should be"
        )
    return footer


def read_index(fetch: Fetch, footer: SegmentFooter) -> Index:
    """The index of a sealed segment."""
    length = footer.index_count * INDEX_BYTES
    return decode_index(bytes(fetch(footer.index_position, length)), footer)


def check_segment_header(fetch: Fetch, topic_id: int, first: int) -> int:
    """Raise unless a segment starts as this one must; returns when it was begun."""
    header = decode_segment_header(bytes(fetch(0, HEADER_BYTES)))
    # One that was adopted has its topic and its offsets in the footer alone.
    if (header.topic_id, header.first_offset) not in ((topic_id, first), (0, 0)):
        raise CorruptionError(
            f"segment of topic {header.topic_id} from offset {header.first_offset} is where that "
            f"of topic {topic_id} from offset {first} should be"
        )
    return header.created_at


def index_end(index: Index) -> int:
    """Where the batches of an index end."""
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
