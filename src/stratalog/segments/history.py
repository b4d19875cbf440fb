"""A topic's past: its segments in order, and which records of them are gone.

Owns: `topics/<id>/`, and what control frames said about the topic's records.

Invariants:
- The segments of the chain follow each other without a hole, from the topic's earliest offset to
  `checkpointed`. Everything from there on is in the log, or in a segment that was adopted and that
  no checkpoint has reached yet: those are `ahead`.
- Floors only rise, and `deleted` and `lost` only grow.
- While a segment is both here and in the cold store, the one here is read.

Concurrency: readers take `chain` once and go on with it; the store's upkeep, or the view's refresh,
puts a new one in its place.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable

from pyroaring import BitMap64

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.manifest import Placed
from stratalog.format.names import parse_numbered, topic_path
from stratalog.format.segment import HEADER_BYTES, Index, State, Summary
from stratalog.fs import FileSystem
from stratalog.segments.chain import Chain, Mark
from stratalog.segments.pool import SegmentPool
from stratalog.segments.segment import Segment, check_segment_header, scan_index
from stratalog.segments.writer import SegmentWriter

_ATTEMPTS_MAX = 5


def _nothing() -> None:
    pass


class History:
    """Where a topic's records are that left the log."""

    __slots__ = (
        "adopted_end", "ahead", "chain", "checkpointed", "cold", "compacted_below",
        "consumed_below", "copied", "delete_lock", "deleted", "directory", "evicted_below",
        "evicted_reason", "examined", "is_stale", "looked_to", "lost", "mark", "pool", "refresh",
        "replaced", "tombstone_due", "topic_id", "writer",
    )  # fmt: skip

    def __init__(self, pool: SegmentPool, topic_id: int) -> None:
        self.pool = pool
        self.topic_id = topic_id
        self.directory = topic_path(pool.root, topic_id)
        self.chain = Chain.of(())
        self.ahead = Chain.of(())
        """Segments that were adopted, where they were staged, until a checkpoint reaches them."""
        self.adopted_end = 0
        """The first offset behind all that was adopted since the snapshot."""
        self.replaced: dict[int, int] = {}
        """Where segments end that take the place of others, by first offset, until they do."""
        self.copied: list[Segment] = []
        """Those of them that a checkpoint has copied, and whose files may go once it is marked."""
        self.checkpointed = 0
        """The first offset that is not in a segment of the chain."""
        self.looked_to = 0
        """What `checkpointed` was when the directory was last looked at."""
        self.mark = Mark(0, 0)
        self.evicted_below = 0
        """Below this, records went without being asked for."""
        self.evicted_reason = ""
        self.deleted = BitMap64()
        """Offsets that somebody deleted."""
        self.delete_lock = threading.Lock()
        """Held by whoever looks for what is to be deleted, until it is."""
        self.lost = BitMap64()
        """Offsets that a repair gave up."""
        self.cold: dict[int, Summary] = {}
        """Segments that are in the cold store, by first offset."""
        self.consumed_below = 0
        """Below this, every group that shares the topic's records has consumed them."""
        self.compacted_below = 0
        """Below this, sealed segments were compacted since the store was opened."""
        self.tombstone_due = 0
        """When the first deletion of a key that compaction kept may go; 0 for none."""
        self.examined: dict[int, int] = {}
        """Deleted offsets in a segment when it was last looked at, by first offset."""
        self.writer: SegmentWriter | None = None
        self.refresh: Callable[[], None] = _nothing
        """Has another process' changes taken in, where there is another process."""
        self.is_stale = True
        """Whether the directory has to be looked at: it never was, or frames spoke of it since."""

    def restore(self, summaries: list[Summary], checkpointed: int) -> None:
        """Take over what a snapshot says."""
        self.cold = {s.first_offset: s for s in summaries if s.state == State.COLD}
        self.chain = Chain.of(self.pool.segment(self.topic_id, s) for s in summaries)
        self.checkpointed = checkpointed
        if summaries and summaries[-1].state == State.OPEN:
            self.mark = Mark(summaries[-1].first_offset, summaries[-1].bytes)
        self.is_stale = True

    def summaries(self) -> list[Summary]:
        """The segments, as a snapshot keeps them; cold ones that are to be removed come first."""
        chain = [segment.summary for segment in self.chain.segments]
        first = chain[0].first_offset if chain else self.checkpointed
        return [self.cold[key] for key in sorted(self.cold) if key < first] + chain

    def find(self, offset: int) -> Segment | None:
        """The segment that answers for an offset; None if that is the log."""
        # In this order: a checkpoint adds to the chain before it takes from those ahead.
        ahead = self.ahead
        return self.chain.find(offset) or ahead.find(offset)

    def segments(self) -> list[Segment]:
        """All segments in order, those ahead included, each once."""
        ahead, chain = self.ahead.segments, self.chain
        return [*chain.segments, *(one for one in ahead if one.first >= chain.end)]

    def newest_timestamp(self) -> int:
        """Nanoseconds of the newest record in a segment; 0 if there is none."""
        return max((s.summary.max_timestamp for s in self.segments()), default=0)

    def total_bytes(self) -> int:
        """Bytes of all segments, wherever they are."""
        return sum(segment.summary.bytes for segment in self.segments())

    def stats(self) -> dict[str, int]:
        """Numbers for the topic's statistics."""
        segments = self.segments()
        return {
            "segments": len(segments),
            "cold_segments": sum(segment.is_cold for segment in segments),
            "deleted": len(self.deleted),
            "evicted_below": self.evicted_below,
        }

    # --- what control frames say ----------------------------------------------------------

    def note_checkpoint(self, offset: int, segment: int, position: int) -> None:
        """Records below `offset` are in segments."""
        if offset >= self.checkpointed:
            self.checkpointed = offset
            self.mark = Mark(segment, position)
            self.is_stale = True

    def note_tier(self, summary: Summary) -> None:
        """A segment is in the cold store."""
        self.cold[summary.first_offset] = summary
        self.is_stale = True

    def note_adopted(self, segments: Iterable[Segment]) -> None:
        """Segments were adopted: the topic has them, where they were staged."""
        known = {segment.first for segment in self.ahead.segments}
        new = [one for one in segments if one.end > self.checkpointed and one.first not in known]
        if new:
            together = sorted([*self.ahead.segments, *new], key=lambda one: one.first)
            self.ahead = Chain.of(together)
            self.adopted_end = max(self.adopted_end, self.ahead.end)
            self.is_stale = True

    def leave_behind(self) -> list[Segment]:
        """Forget segments ahead that the chain has caught up with; returns them."""
        ahead = self.ahead.segments
        if not ahead or ahead[0].end > self.checkpointed:
            return []
        self.ahead = Chain.of(one for one in ahead if one.end > self.checkpointed)
        return [one for one in ahead if one.end <= self.checkpointed]

    def staged_names(self) -> set[str]:
        """Names of segments whose files are needed where they were staged."""
        paths = [segment.path for segment in (*self.ahead.segments, *self.copied)]
        return {os.path.splitext(os.path.basename(path))[0] for path in paths}

    def remove_copied(self) -> None:
        """Remove staged files whose records are in the chain, and durably known to be."""
        while self.copied:
            self.pool.fs.unlink(self.copied[-1].path)
            self.copied.pop()

    # --- what the directory says ----------------------------------------------------------

    def discover(self, earliest: int) -> list[str]:
        """Make the chain of the files that are there; returns what is wrong with them.

        What is not there is told by `holes`.
        """
        for _ in range(_ATTEMPTS_MAX):
            # A writer beside us may rename or remove what was listed before it is looked at.
            with contextlib.suppress(FileNotFoundError):
                return self._discover(earliest)
        # One that moves many files at once: what goes meanwhile counts as gone before.
        return self._discover(earliest, may_go=True)

    def _discover(self, earliest: int, *, may_go: bool = False) -> list[str]:
        self.is_stale = False
        names = self.pool.fs.listdir(self.directory)
        sealed = _numbers(names, ".seg")
        known = {segment.first: segment for segment in self.chain.segments}
        problems: list[str] = []
        found: list[Segment] = []
        for first in sorted(sealed | set(self.cold)):
            segment = known.get(first)
            try:
                summary = self._summary(segment, first, is_here=first in sealed)
            except FormatError as error:
                problems.append(str(error))
                continue
            except FileNotFoundError:
                if not may_go:
                    raise
                if first not in self.cold:
                    continue
                summary = self.cold[first]
            # One that is inside of the one before it was replaced by that.
            is_covered = bool(found) and summary.end_offset <= found[-1].end
            if summary.end_offset > earliest and not is_covered:
                if segment is None or segment.summary != summary:
                    segment = self.pool.segment(self.topic_id, summary)
                found.append(segment)
        if found:
            self.checkpointed = max(self.checkpointed, found[-1].end)
        if self.mark.position and self.mark.segment in _numbers(names, ".open") - sealed:
            with contextlib.suppress(*((FileNotFoundError,) if may_go else ())):
                found += self._open_segment(known, problems)
        self.chain = Chain.of(found)
        self.looked_to = self.checkpointed
        self.leave_behind()
        return problems + self._missing_ahead(earliest)

    def _missing_ahead(self, earliest: int) -> list[str]:
        """What is wrong with segments ahead; they are forgotten, and what they had is a hole."""
        problems = []
        for segment in self.ahead.segments:
            size = _size(self.pool.fs, segment.path)
            if size == segment.summary.bytes:
                continue
            self.ahead = Chain.of(one for one in self.ahead.segments if one is not segment)
            # One below the floor may have had its place, and was not looked at there.
            if segment.end > earliest and not self.is_given_up(segment.first, segment.end - 1):
                problems.append(
                    f"{segment.path} has {size} of the {segment.summary.bytes} bytes that were "
                    f"adopted (topic {self.topic_id}, offsets {segment.first} to {segment.end - 1})"
                )
        return problems

    def _summary(self, segment: Segment | None, first: int, *, is_here: bool) -> Summary:
        """What a segment holds: as known, or as its file says."""
        if not is_here:
            return self.cold[first]
        is_same = segment is not None and segment.end == self.replaced.get(first, segment.end)
        if segment is not None and is_same and segment.summary.state == State.SEALED:
            file = self.pool.fs.open(segment.path, "read")
            try:
                if file.size() == segment.summary.bytes:  # not rewritten since
                    return segment.summary
            finally:
                file.close()
        summary = self.pool.summarise(self.topic_id, first)
        if summary.end_offset == self.replaced.get(first):
            del self.replaced[first]
        return summary

    def note_replaced(self, placed: Placed) -> None:
        """A segment takes the place of others; it may well be as large as the first of them."""
        self.replaced[placed.footer.first_offset] = placed.footer.end_offset
        self.is_stale = True

    def _open_segment(self, known: dict[int, Segment], problems: list[str]) -> list[Segment]:
        """The open segment, up to what the newest checkpoint says is durable."""
        first, position = self.mark
        segment = known.get(first)
        if segment is not None and segment.is_open and segment.summary.bytes == position:
            return [segment]
        path = self.pool.path(self.topic_id, first, State.OPEN)
        file = self.pool.fs.open(path, "read")

        def fetch(position: int, length: int) -> bytes:
            return file.pread(length, position)

        try:
            created_at = check_segment_header(fetch, self.topic_id, first)
            index = scan_index(fetch, self.topic_id, position)
            summary = open_summary(first, self.checkpointed, created_at, index)
            if summary.bytes != position:
                raise CorruptionError(
                    f"its batches end at position {summary.bytes}, {position} bytes were durable"
                )
            return [self.pool.segment(self.topic_id, summary)]
        except FormatError as error:
            problems.append(f"{path}: {error}")
            return []
        finally:
            file.close()

    def holes(self, earliest: int) -> list[str]:
        """What the directory lacked when it was looked at, and no frame read since accounts for.

        Frames come before the files go. So one who looks, and then reads the log, knows why.
        """
        holes = []
        end = earliest
        known = [segment.summary for segment in self.chain.segments] + list(self.cold.values())
        for first, stop in sorted((one.first_offset, one.end_offset) for one in known):
            if first > end:
                holes.append((end, first - 1))
            end = max(end, stop)
        if end < self.looked_to:
            holes.append((end, self.looked_to - 1))
        return [
            f"{self.directory}: no segment holds offsets {first} to {last}"
            for first, last in holes
            if not self.is_given_up(first, last)
        ]

    def is_given_up(self, first: int, last: int) -> bool:
        """Whether a repair gave up every offset from the first to the last."""
        return bool(self.lost.range_cardinality(first, last + 1) == last + 1 - first)

    def clean_up(self, earliest: int) -> None:
        """Remove what a crash left: files no longer part of the chain, bytes not known durable.

        For the writer, before it writes.
        """
        fs = self.pool.fs
        chain = {segment.first: segment for segment in self.chain.segments}
        for name in fs.listdir(self.directory):
            path = os.path.join(self.directory, name)
            suffix = os.path.splitext(name)[1]
            first = parse_numbered(name, suffix)
            if first is None:
                continue  # not ours
            segment = chain.get(first)
            if suffix == ".tmp" or (suffix in (".seg", ".open") and segment is None):
                fs.unlink(path)
            elif suffix == ".seg" and segment is not None and self._is_moved(segment):
                fs.unlink(path)  # the flip to the cold store is durable, and it has a copy
                self.replace(self.pool.segment(self.topic_id, self.cold[first]))
            elif suffix == ".open" and segment is not None:
                if segment.is_open:
                    self._cut(segment)
                else:
                    fs.unlink(path)

    def _is_moved(self, segment: Segment) -> bool:
        """Whether the cold store has all of a segment, and not just what it has replaced."""
        moved = self.cold.get(segment.first)
        return moved is not None and moved.end_offset == segment.end

    def _cut(self, segment: Segment) -> None:
        file = self.pool.fs.open(segment.path, "write")
        try:
            if file.size() > segment.summary.bytes:
                file.truncate(segment.summary.bytes)
                file.fdatasync()
        finally:
            file.close()

    def replace(self, segment: Segment) -> None:
        """Put another in the place of the segment with the same first offset."""
        self.chain = Chain.of(
            segment if one.first == segment.first else one for one in self.chain.segments
        )


def _size(fs: FileSystem, path: str) -> int:
    """Bytes of a file; 0 if it is gone."""
    try:
        file = fs.open(path, "read")
    except FileNotFoundError:
        return 0
    try:
        return file.size()
    finally:
        file.close()


def open_summary(first: int, end: int, created_at: int, index: Index) -> Summary:
    """An open segment in short, as far as its index tells; not when its records expire."""
    if not len(index):
        return Summary(first, end, 0, HEADER_BYTES, 0, 0, 0, created_at, State.OPEN)
    return Summary(
        first, end, int(index["count"].sum()), int(index["position"][-1] + index["length"][-1]),
        int(index["min_timestamp"][0]), int(index["max_timestamp"][-1]), 0, created_at, State.OPEN,
    )  # fmt: skip


def _numbers(names: list[str], suffix: str) -> set[int]:
    return {number for name in names if (number := parse_numbered(name, suffix)) is not None}
