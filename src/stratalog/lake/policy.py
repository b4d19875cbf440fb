"""Which files of a lake are to be made, joined, rewritten and removed: decided, not done.

Files are in the order of their offsets and do not overlap. One that is small is joined with its
neighbours once there are enough of them, so that there are few small ones, and each record is
written a few times at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyroaring import BitMap64

from stratalog.format.lake import LakeFile, LakeSource
from stratalog.log.topic import TopicLog
from stratalog.segments.segment import Segment

FILE_BYTES = 64 << 20
"""Segments are gathered for one file up to this."""
FILE_BYTES_MAX = 128 << 20
"""A file that comes to this is ended, whatever its segments have left."""
FILE_BYTES_MIN = 32 << 20
"""Files below this are joined with their neighbours."""

# So many neighbours of about one size become one file.
_FAN_IN = 8
# Below this, sizes make no difference.
_TINY_BITS = 16


def additions(topic: TopicLog, end: int) -> list[list[Segment]]:
    """Sealed segments that the lake does not have yet, those for one file together."""
    groups: list[list[Segment]] = []
    room = 0
    for segment in topic.history.chain.segments:
        if segment.is_open or segment.end <= max(end, topic.earliest):
            continue
        if not groups or room < segment.summary.bytes or groups[-1][-1].end != segment.first:
            groups.append([])
            room = FILE_BYTES
        groups[-1].append(segment)
        room -= segment.summary.bytes
    return groups


def source_of(segment: Segment) -> LakeSource:
    """A segment as a manifest names it."""
    summary = segment.summary
    return LakeSource(segment.first, segment.end, summary.records, summary.bytes)


def pending_deletes(file: LakeFile, deleted: BitMap64) -> int:
    """How many of a file's offsets were deleted since it was made."""
    found: int = deleted.range_cardinality(file.first_offset, file.end_offset)
    return found - file.deleted


def is_replaced(topic: TopicLog, file: LakeFile) -> bool:
    """Whether records of a file were since replaced by newer ones of their keys."""
    if not topic.options.compact:
        return False
    floor = max(topic.earliest, file.first_offset)
    here = [source_of(one) for one in segments_of(topic, file)]
    return here != [one for one in file.sources if one.end_offset > floor]


def segments_of(topic: TopicLog, file: LakeFile) -> list[Segment]:
    """The sealed segments that answer for a file's offsets now."""
    floor = max(topic.earliest, file.first_offset)
    return [
        one
        for one in topic.history.chain.segments
        if not one.is_open and one.end > floor and one.first < file.end_offset
    ]


def is_over(topic: TopicLog, file: LakeFile, now: int) -> bool:
    """Whether nothing of a file may be read any more."""
    options = topic.options
    if file.end_offset <= topic.history.lake_floor:
        return True
    if options.ttl is not None and file.max_timestamp + round(options.ttl * 10**9) <= now:
        return True
    if file.end_offset > topic.earliest:
        return False
    keep = options.lake_retention
    return keep is None or file.max_timestamp + round(keep * 10**9) <= now


def floor_of(topic: TopicLog) -> int:
    """The first offset that a reader of the lake may see."""
    floor = topic.history.lake_floor
    return floor if topic.options.lake_retention is not None else max(floor, topic.earliest)


def joins(files: Sequence[LakeFile]) -> list[range]:
    """Places of neighbours that are to become one file each."""
    found: list[range] = []
    for run in _small_runs(files):
        chosen = _join(files, run)
        if chosen is not None:
            found.append(chosen)
    return found


def _small_runs(files: Sequence[LakeFile]) -> Iterator[range]:
    """Runs of small files that follow each other without a hole."""
    start = 0
    for place, file in enumerate(files):
        if file.bytes >= FILE_BYTES_MIN:
            yield range(start, place)
            start = place + 1
        elif place > start and files[place - 1].end_offset != file.first_offset:
            yield range(start, place)
            start = place
    yield range(start, len(files))


def _join(files: Sequence[LakeFile], run: range) -> range | None:
    if len(run) < 2:
        return None
    if sum(files[place].bytes for place in run) >= FILE_BYTES_MIN:
        total = 0
        for place in run:
            total += files[place].bytes
            if total >= FILE_BYTES_MIN:
                return range(run.start, place + 1) if place > run.start else None
    for start in run[: 1 - _FAN_IN]:
        several = range(start, start + _FAN_IN)
        if len({_size_class(files[place]) for place in several}) == 1:
            return several
    return None


def _size_class(file: LakeFile) -> int:
    return (file.bytes >> _TINY_BITS).bit_length() // 3
