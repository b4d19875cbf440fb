"""Planning: which records a read wants, where they are, and who reads what.

Everything is taken from a view of the store: the snapshot, the ends of segments, the tail of the
log. A time becomes an offset, because times never go back within a topic; so a read is a range of
offsets per topic, and no batch outside of it is touched.

The pieces of all topics, one after the other, are cut into as many tasks of equal bytes as it
takes: a Python task costs about 60 ms by itself, so there are few and large ones.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from pyroaring import BitMap64
from pyspark.sql.datasource import InputPartition

from stratalog.errors import FormatError, OffsetOutOfRangeError
from stratalog.fs.cold import open_cold
from stratalog.log.index import FrameIndex
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.segments.read import offset_at
from stratalog.segments.segment import Loaded, Segment
from stratalog.spark.options import EARLIEST, LATEST, Position, ReadOptions
from stratalog.spark.pieces import (
    FILES_ROW,
    LENGTHS_ROW,
    LogFile,
    Piece,
    Task,
    is_loss,
    lost_error,
)
from stratalog.spark.places import find
from stratalog.spark.ship import Shipped
from stratalog.view import View

# More than this in one task, and one that fails has much to do again.
_TASK_BYTES_MAX = 1 << 30
# Less than this is not worth the 60 ms that a task costs.
_TASK_BYTES_MIN = 16 << 20


class TaskPartition(Shipped, InputPartition):
    """One task, as Spark carries it around."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


class Range(NamedTuple):
    """Offsets `start` to `end` (not included) of a topic."""

    topic: TopicLog
    start: int
    end: int


@contextlib.contextmanager
def open_view(options: ReadOptions) -> Iterator[View]:
    """The store, as it is now; its files are closed again."""
    view = view_of(options)
    try:
        yield view
    finally:
        view.close()


def view_of(options: ReadOptions) -> View:
    """The store, as it is now."""
    fs, root = find(options.path)
    view = View(fs, root)
    if options.cold is not None:
        view.replay.pool.cold = open_cold(options.cold, fs)
    return view


def resolve(view: View, names: Iterable[str], options: ReadOptions) -> list[Range]:
    """What a batch read wants of each topic."""
    names = list(names)
    options.start.check(names)
    options.end.check(names)
    ranges = []
    for name in names:
        topic = view.catalog.find(name)
        start = place(topic, options.start.of(name), options, is_start=True)
        end = place(topic, options.end.of(name), options, is_start=False)
        ranges.append(Range(topic, check_floor(topic, start, end, options), end))
    return ranges


def place(topic: TopicLog, position: Position, options: ReadOptions, *, is_start: bool) -> int:
    """The offset that a position means now."""
    if position.is_time:
        return offset_at(topic, position.number)
    if position.number == EARLIEST:
        return topic.earliest
    if position.number == LATEST:
        return topic.committed
    if position.number > topic.committed:
        if not options.fail_on_data_loss:
            return topic.committed
        option = (options.start if is_start else options.end).option
        raise OffsetOutOfRangeError(
            f"{option}={position.number} is out of range: topic {topic.name!r} has offsets "
            f"{topic.earliest} to {topic.committed - 1}, and the next one is {topic.committed}"
        )
    return position.number


def check_floor(topic: TopicLog, start: int, end: int, options: ReadOptions) -> int:
    """Where to begin, given what is gone; raises if some of it went by itself."""
    history = topic.history
    if start < min(end, topic.earliest) and not topic.is_ephemeral:
        gap = Gap(start, min(end, history.evicted_below) - 1, history.evicted_reason)
        if options.fail_on_data_loss and gap.last >= gap.first and is_loss(gap):
            raise lost_error(topic.name, gap)
    return max(start, topic.earliest)


# --- where the records are ------------------------------------------------------------------


class Span(NamedTuple):
    """Offsets `start` to `end` (not included) of a topic that are in one place."""

    topic: TopicLog
    start: int
    end: int
    size: int
    """About how many bytes have to be read."""
    segment: Segment | None
    log: FrameIndex
    """Of the log, if they are in no segment."""


def spans_of(wanted: Range) -> Iterator[Span]:
    """Where the records of a range are, in order."""
    topic, start, end = wanted
    # The log first: what a checkpoint moves meanwhile is then in both, and never in neither.
    index = topic.index
    for segment in topic.history.segments():
        if start >= end:
            return
        if segment.end <= start:
            continue
        if segment.first > start:  # in the log, or a hole: whoever reads it says what became of it
            stop = min(end, segment.first)
            yield _span(topic, start, stop, None, index)
            start = stop
        stop = min(end, segment.end)
        if start < stop:
            yield _span(topic, start, stop, segment, index)
            start = stop
    if start < end:
        yield _span(topic, start, end, None, index)


def _span(
    topic: TopicLog, start: int, end: int, segment: Segment | None, index: FrameIndex
) -> Span:
    if segment is None:
        first, stop = _frames(index, start, end)
        size = int(index.numbers(first, stop)[LENGTHS_ROW].sum())
    else:
        size = _segment_bytes(segment, start, end)
    return Span(topic, start, end, size, segment, index)


def _frames(index: FrameIndex, start: int, end: int) -> tuple[int, int]:
    """The frames that hold the offsets, from the first to the one behind the last."""
    first = index.find(start)
    last = index.find(end - 1)
    inside = last < len(index) and index.place(last).base_offset < end
    return first, max(first, last + inside)


def _segment_bytes(segment: Segment, start: int, end: int) -> int:
    """Bytes of the batches that hold the offsets: by the index, or about, if that is far away."""
    summary = segment.summary
    if start <= segment.first and end >= segment.end:
        return summary.bytes
    loaded = _load(segment)
    if loaded is None:
        return summary.bytes * (end - start) // (segment.end - segment.first)
    first = max(0, bisect_right(loaded.bases, start) - 1)
    stop = bisect_left(loaded.bases, end)
    return sum(loaded.lengths[first:stop])


def _load(segment: Segment) -> Loaded | None:
    """The index of a segment that is here; whoever reads one that is damaged will say so."""
    if segment.is_cold:
        return None
    try:
        return segment.load()
    except (FormatError, OSError):
        return None


def _cut(span: Span, size: int) -> int:
    """The offset in a span behind about so many bytes, between two batches if that is known."""
    if span.segment is None:
        first, stop = _frames(span.log, span.start, span.end)
        ends = np.cumsum(span.log.numbers(first, stop)[LENGTHS_ROW])
        number = first + int(np.searchsorted(ends, size))
        return span.log.place(number).base_offset if first < number < stop else span.end
    share = span.start + (span.end - span.start) * size // max(1, span.size)
    loaded = _load(span.segment)
    if loaded is None:
        return share
    number = bisect_right(loaded.bases, share)
    return loaded.bases[number] if number < len(loaded.bases) else span.end


# --- who reads what -------------------------------------------------------------------------


def pack(spans: Sequence[Span], options: ReadOptions) -> list[list[Span]]:
    """The spans, in order, for as many tasks as it takes, each with about as many bytes."""
    total = sum(span.size for span in spans)
    count = tasks_wanted(total, options)
    size = -(-total // count)
    tasks: list[list[Span]] = [[]]
    room = size
    for span in spans:
        while span.size > room + size // 16 and len(tasks) < count:
            offset = _cut(span, room)
            if span.start < offset < span.end:
                tasks[-1].append(_part(span, span.start, offset))
                span = _part(span, offset, span.end)
            elif not tasks[-1]:
                break  # one batch, however large
            tasks.append([])
            room = size
        tasks[-1].append(span)
        room -= span.size
        if room <= 0 and len(tasks) < count:
            tasks.append([])
            room = size
    return [task for task in tasks if task]


def cut_span(span: Span, size: int) -> tuple[Span, Span | None]:
    """A part of about so many bytes, one batch at least, and what is left."""
    offset = _cut(span, size)
    if not span.start < offset < span.end:
        return span, None
    return _part(span, span.start, offset), _part(span, offset, span.end)


def _part(span: Span, start: int, end: int) -> Span:
    return _span(span.topic, start, end, span.segment, span.log)


def tasks_wanted(total: int, options: ReadOptions) -> int:
    """One per core, more for more data, fewer for little; never less than was asked for."""
    cores = len(os.sched_getaffinity(0))
    rounds = -(-total // (cores * _TASK_BYTES_MAX))
    least = 1
    if options.partition_bytes_max is not None:
        least = -(-total // options.partition_bytes_max)
    elif rounds > 1:
        least = cores * rounds  # as many for each: of three, two cores would wait for the last
    usual = min(cores, -(-total // _TASK_BYTES_MIN))
    return max(1, least, options.partitions_min or usual)


def make_tasks(view: View, spans: Sequence[Span], options: ReadOptions, now: int) -> list[Task]:
    """What to send to whoever reads."""
    return [task_of(view, task, options, now) for task in pack(spans, options)]


def task_of(view: View, spans: Sequence[Span], options: ReadOptions, now: int) -> Task:
    """One task that reads all of these."""
    return Task(
        path=options.path,
        identity=view.store_file.identity,
        cold=options.cold or view.replay.pool.cold_location,
        now=now,
        fail_on_data_loss=options.fail_on_data_loss,
        verify=options.verify,
        pieces=tuple(_piece(span) for span in spans),
    )


def _piece(span: Span) -> Piece:
    topic, start, end = span.topic, span.start, span.end
    ttl = topic.options.ttl
    frames = None
    files: tuple[LogFile, ...] = ()
    if span.segment is None:
        frames = span.log.numbers(*_frames(span.log, start, end))
        numbers, frames[FILES_ROW] = np.unique(frames[FILES_ROW], return_inverse=True)
        files = tuple(LogFile(*topic.reader.origin(number)) for number in numbers.tolist())
    return Piece(
        topic_id=topic.id,
        topic=topic.name,
        start=start,
        end=end,
        size=span.size,
        segment=None if span.segment is None else span.segment.summary,
        staged=None if span.segment is None else span.segment.placed,
        frames=frames,
        files=files,
        deleted=_between(topic.history.deleted, start, end),
        lost=_between(topic.history.lost, start, end),
        ttl_ns=0 if ttl is None else round(ttl * 10**9),
        is_ephemeral=topic.is_ephemeral,
    )


def _between(offsets: BitMap64, start: int, end: int) -> bytes:
    """Those of a set that are between the two, for the way; nothing if there is none."""
    if not offsets or not offsets.range_cardinality(start, end):
        return b""
    inside = BitMap64()
    inside.add_range(start, end)
    inside &= offsets
    return bytes(inside.serialize())
