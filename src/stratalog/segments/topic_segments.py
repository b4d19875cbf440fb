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
from typing import NamedTuple

from pyroaring import BitMap64

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.lake import LakeBody
from stratalog.format.manifest import Placed
from stratalog.format.names import parse_numbered, topic_path
from stratalog.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    UNBOUND,
    Index,
    State,
    Summary,
    decode_footer,
)
from stratalog.fs import File, FileSystem
from stratalog.reports import SegmentStats
from stratalog.segments.chain import Chain, Mark
from stratalog.segments.pool import SegmentPool
from stratalog.segments.segment import Segment, check_segment_header, scan_index
from stratalog.segments.writer import SegmentWriter

_ATTEMPTS_MAX = 5

# Where the header of a segment has the identity of its store.
_IDENTITY_AT = slice(40, 56)


def _nothing() -> None:
    pass


class Flaw(NamedTuple):
    """Something that is wrong with a file of a topic."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class History:
    """Where a topic's records are that left the log."""

    __slots__ = (
        "adopted_end", "ahead", "chain", "checked", "checkpointed", "cold", "compacted_below",
        "consumed_below", "copied", "crashed", "delete_lock", "deleted", "directory",
        "evicted_below", "evicted_reason", "examined", "is_stale", "lake", "lake_floor",
        "looked_to", "lost", "mark", "objects", "pool", "refresh", "replaced", "rewriting",
        "tombstone_due", "topic_id", "writer",
    )  # fmt: skip

    def __init__(self, pool: SegmentPool, topic_id: int) -> None:
        self.pool = pool
        self.topic_id = topic_id
        self.directory = topic_path(pool.root, topic_id)
        self.chain = Chain.of(())
        self.ahead = Chain.of(())
        """Segments that were adopted, where they were staged, until a checkpoint reaches them."""
        self.adopted_end = 0
        """The first offset after all that was adopted since the snapshot."""
        self.replaced: dict[int, int] = {}
        """Where segments end that take the place of others, by first offset, until they do."""
        self.rewriting: set[int] = set()
        """First offsets of segments whose files are being replaced, until the chain has the new
        ones and their names are durable. What a failure leaves here, `finish_rewrites` takes."""
        self.copied: list[Segment] = []
        """Those of them that a checkpoint has copied, and whose files may go once it is marked."""
        self.checkpointed = 0
        """The first offset that is not in a segment of the chain."""
        self.looked_to = 0
        """The value of `checkpointed` when the directory was last listed."""
        self.mark = Mark(0, 0)
        self.checked = Mark(0, 0)
        """Up to where the headers in the open segment's file were looked at."""
        self.evicted_below = 0
        """Below this, records went without being asked for."""
        self.evicted_reason = ""
        self.deleted = BitMap64()
        """Offsets that callers deleted."""
        self.delete_lock = threading.Lock()
        """Held from the search for records to delete until they are deleted."""
        self.crashed = BitMap64()
        """Those of `lost` that a crash took or a full disk refused, or that no append ever got."""
        self.lost = BitMap64()
        """Offsets that were given up: by a repair, or because their records never came."""
        self.cold: dict[int, Summary] = {}
        """Segments that are in the cold store, by first offset."""
        self.objects: dict[int, str] = {}
        """Their names there; one that an earlier release has moved has none."""
        self.consumed_below = 0
        """Below this, every group that shares the topic's records has consumed them."""
        self.compacted_below = 0
        """Below this, sealed segments were compacted since the store was opened."""
        self.tombstone_due = 0
        """When the first deletion of a key that compaction kept may go; 0 for none."""
        self.examined: dict[int, int] = {}
        """Deleted offsets in a segment when it was last looked at, by first offset."""
        self.lake: LakeBody | None = None
        """The files of the topic's lake; None before there are any."""
        self.lake_floor = 0
        """Below this no file of the lake may have a record: they were deleted, not evicted."""
        self.writer: SegmentWriter | None = None
        self.refresh: Callable[[], None] = _nothing
        """Has another process' changes taken in, where there is another process."""
        self.is_stale = True
        """Whether the directory has to be looked at: it never was, or frames spoke of it since."""

    def restore(self, summaries: list[Summary], checkpointed: int, objects: dict[int, str]) -> None:
        """Take over what a snapshot says."""
        self.cold = {s.first_offset: s for s in summaries if s.state == State.COLD}
        self.objects = dict(objects)
        self.chain = Chain.of(map(self._segment, summaries))
        self.checkpointed = checkpointed
        if summaries and summaries[-1].state == State.OPEN:
            self.mark = Mark(summaries[-1].first_offset, summaries[-1].bytes)
        self.is_stale = True

    def summaries(self) -> list[Summary]:
        """The segments, as a snapshot keeps them; cold ones that are to be removed come first."""
        chain = [segment.summary for segment in self.chain.segments]
        first = chain[0].first_offset if chain else self.checkpointed
        return [self.cold[key] for key in sorted(self.cold) if key < first] + chain

    def object_names(self) -> dict[int, str]:
        """Names of the cold segments among `summaries`, as a snapshot keeps them."""
        return {s.first_offset: self.objects[s.first_offset] for s in self.summaries()
                if s.state == State.COLD and s.first_offset in self.objects}  # fmt: skip

    def _segment(self, summary: Summary) -> Segment:
        name = self.objects.get(summary.first_offset, "")
        return self.pool.segment(self.topic_id, summary, name)

    def find(self, offset: int) -> Segment | None:
        """The segment that answers for an offset; None if that is the log."""
        # In this order: a checkpoint adds to the chain before it takes from those ahead.
        ahead, chain = self.ahead, self.chain
        found = chain.find(offset) if chain.segments else None
        return ahead.find(offset) if found is None and ahead.segments else found

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

    def count(self, start: int, end: int) -> int:
        """Count the records from one offset to another that were neither deleted nor lost.

        A compacted segment counts what it holds, also what was deleted of it until it is rewritten.
        Expired records count until they are evicted.
        """
        gone = self.deleted | self.lost if self.lost else self.deleted
        total = end - start - gone.range_cardinality(start, end)
        for segment in self.segments():
            if segment.is_open or segment.first < start or segment.end > end:
                continue
            deleted = gone.range_cardinality(segment.first, segment.end) if gone else 0
            left = segment.end - segment.first - deleted
            total -= max(left - segment.summary.records, 0)
        return int(total)

    def stats(self) -> dict[str, int]:
        """Numbers for the topic's statistics."""
        segments = self.segments()
        return {
            "segments": len(segments),
            "cold_segments": sum(segment.is_cold for segment in segments),
            "deleted": len(self.deleted),
            "evicted_below": self.evicted_below,
        }

    def sealed_end(self) -> int:
        """Return the offset below which all records are in sealed segments."""
        sealed = [segment.end for segment in self.segments() if not segment.is_open]
        return max(sealed, default=0)

    def segment_stats(self) -> list[SegmentStats]:
        """Describe every segment, oldest first."""
        return [
            SegmentStats(
                segment.first, segment.end, segment.summary.records, segment.summary.bytes,
                segment.summary.min_timestamp, segment.summary.max_timestamp,
                segment.summary.created_at,
                "cold" if segment.is_cold else "open" if segment.is_open else "sealed",
            )
            for segment in self.segments()
        ]  # fmt: skip

    # --- what control frames say ----------------------------------------------------------

    def note_checkpoint(self, offset: int, segment: int, position: int) -> None:
        """Records below `offset` are in segments."""
        if offset >= self.checkpointed:
            self.checkpointed = offset
            self.mark = Mark(segment, position)
            self.is_stale = True

    def note_tier(self, summary: Summary, name: str) -> None:
        """Remember that a segment is in the cold store, under a name or under the old one."""
        self.cold[summary.first_offset] = summary
        self.objects.pop(summary.first_offset, None)
        if name:
            self.objects[summary.first_offset] = name
        self.is_stale = True

    def note_lake(self, lake: LakeBody) -> None:
        """Remember which files of the lake count, unless later ones are known."""
        if self.lake is None or lake.generation > self.lake.generation:
            self.lake = lake

    def forget_cold(self, first: int) -> None:
        """Forget that a segment is in the cold store."""
        self.cold.pop(first, None)
        self.objects.pop(first, None)

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

    def discover(self, earliest: int) -> list[Flaw]:
        """Make the chain of the files that are there; returns what is wrong with them.

        `holes` lists what is missing.
        """
        for _ in range(_ATTEMPTS_MAX):
            # A writer beside us may rename or remove what was listed before it is looked at.
            with contextlib.suppress(FileNotFoundError):
                return self._discover(earliest)
        # One that moves many files at once: what goes meanwhile counts as gone before.
        return self._discover(earliest, may_go=True)

    def _discover(self, earliest: int, *, may_go: bool = False) -> list[Flaw]:
        self.is_stale = False
        names = self.pool.fs.listdir(self.directory)
        sealed = _numbers(names, ".seg")
        known = {segment.first: segment for segment in self.chain.segments}
        problems: list[Flaw] = []
        found: list[Segment] = []
        for first in sorted(sealed | set(self.cold)):
            segment = known.get(first)
            try:
                summary = self._summary(segment, first, is_here=first in sealed)
            except FormatError as error:
                path = self.pool.path(self.topic_id, first, State.SEALED)
                problems.append(Flaw(path, str(error).removeprefix(f"{path}: ")))
                continue
            except FileNotFoundError:
                if not may_go:
                    raise
                if first not in self.cold:
                    continue
                summary = self.cold[first]
            # A segment inside the one before it was replaced by that one.
            is_covered = bool(found) and summary.end_offset <= found[-1].end
            if summary.end_offset > earliest and not is_covered:
                if segment is None or segment.summary != summary:
                    segment = self._segment(summary)
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

    def _missing_ahead(self, earliest: int) -> list[Flaw]:
        """Return what is wrong with segments ahead; they are forgotten and leave a hole."""
        problems = []
        for segment in self.ahead.segments:
            size = _size(self.pool.fs, segment.path)
            if size == segment.summary.bytes:
                continue
            self.ahead = Chain.of(one for one in self.ahead.segments if one is not segment)
            # One below the floor may have had its place, and was not looked at there.
            if segment.end > earliest and not self.is_given_up(segment.first, segment.end - 1):
                message = (
                    f"it has {size} of the {segment.summary.bytes} bytes that were adopted (topic "
                    f"{self.topic_id}, offsets {segment.first} to {segment.end - 1})"
                )
                problems.append(Flaw(segment.path, message))
        return problems

    def _summary(self, segment: Segment | None, first: int, *, is_here: bool) -> Summary:
        """Summarise a segment: as known, or as its file says."""
        if not is_here:
            return self.cold[first]
        is_same = segment is not None and segment.end == self.replaced.get(first, segment.end)
        if segment is not None and is_same and segment.summary.state == State.SEALED:
            file = self.pool.fs.open(segment.path, "read")
            try:
                if _is_unchanged(file, segment.summary, self.pool.identity):
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

    def _open_segment(self, known: dict[int, Segment], problems: list[Flaw]) -> list[Segment]:
        """The open segment, up to what the newest checkpoint says is durable."""
        first, position = self.mark
        segment = known.get(first)
        is_known = segment is not None and segment.is_open and segment.summary.bytes == position
        if segment is not None and is_known and self.checked == self.mark:
            return [segment]
        path = self.pool.path(self.topic_id, first, State.OPEN)
        file = self.pool.fs.open(path, "read")

        def fetch(position: int, length: int) -> bytes:
            return file.pread(length, position)

        try:
            created_at = check_segment_header(fetch, self.topic_id, first, self.pool.identity)
            index = scan_index(fetch, self.topic_id, position)
            summary = open_summary(first, self.checkpointed, created_at, index)
            if summary.bytes != position:
                raise CorruptionError(
                    f"its batches end at position {summary.bytes}, {position} bytes were durable"
                )
            self.checked = self.mark
            if segment is not None and is_known:
                return [segment]
            return [self.pool.segment(self.topic_id, summary)]
        except FormatError as error:
            problems.append(Flaw(path, str(error)))
            return []
        finally:
            file.close()

    def holes(self, earliest: int) -> list[str]:
        """Return what the directory lacked when listed, unless a frame read since explains it.

        The writer logs a frame before it removes files. So list the directory first, then read the
        log: it has the reason.
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

    def note_lost(self, offsets: BitMap64, *, is_crash: bool) -> None:
        """Give offsets up; readers go on with the sets they hold."""
        self.lost = self.lost | offsets
        if is_crash:
            self.crashed = self.crashed | offsets

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
            elif suffix == ".open" and segment is not None:
                if segment.is_open:
                    self._cut(segment)
                else:
                    fs.unlink(path)

    def prefer_hot(self, earliest: int) -> None:
        """Forget moves whose last step, removing the file here, was not made; for the writer.

        The object may be missing, or be of a segment that was since replaced. The next move of the
        segment finds out: it looks at the object before the file here goes.
        """
        cold = {segment.first for segment in self.chain.segments if segment.is_cold}
        for first, summary in list(self.cold.items()):
            if first not in cold and summary.end_offset > earliest:
                self.forget_cold(first)

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


def _is_unchanged(file: File, summary: Summary, identity: bytes) -> bool:
    """Whether a sealed segment is the one that a summary is of, and was not rewritten since.

    A rewrite takes records away and adds their offsets, and may come to the same number of bytes.
    """
    size = file.size()
    if size != summary.bytes:
        return False
    try:
        footer = decode_footer(file.pread(FOOTER_BYTES, max(0, size - FOOTER_BYTES)), size)
    except FormatError:
        return True  # damaged, which a read of it reports
    owner = file.pread(HEADER_BYTES, 0)[_IDENTITY_AT]
    if UNBOUND not in (owner, identity) and owner != identity:
        return False
    return footer[1:7] == (*summary[:3], *summary[4:7])  # no other of this store ends the same


def open_summary(first: int, end: int, created_at: int, index: Index) -> Summary:
    """Summarise an open segment by its index alone; when its records expire is not in it."""
    if not len(index):
        return Summary(first, end, 0, HEADER_BYTES, 0, 0, 0, created_at, State.OPEN)
    return Summary(
        first, end, int(index["count"].sum()), int(index["position"][-1] + index["length"][-1]),
        int(index["min_timestamp"][0]), int(index["max_timestamp"][-1]), 0, created_at, State.OPEN,
    )  # fmt: skip


def _numbers(names: list[str], suffix: str) -> set[int]:
    return {number for name in names if (number := parse_numbered(name, suffix)) is not None}
