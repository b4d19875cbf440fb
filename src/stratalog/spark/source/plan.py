"""Planning: which records a read needs, where they are, and which task reads them.

Everything comes from a view of the store: the snapshot, the ends of segments, the tail of the log.
Times never go backwards within a topic, so a time becomes an offset, and a read is a range of
offsets per topic; no batch outside of it is touched.

The pieces of all topics are concatenated and cut into tasks of equal bytes: a Python task costs
about 60 ms by itself, so there are few and large ones.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from pyroaring import BitMap64
from pyspark.sql.datasource import InputPartition

from stratalog.errors import DataLossError, FormatError, OffsetOutOfRangeError
from stratalog.fs.cold import open_cold
from stratalog.log.index import FrameIndex
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.segments.read import offset_at
from stratalog.segments.segment import Loaded, Segment
from stratalog.spark.places import find
from stratalog.spark.ship import Shipped
from stratalog.spark.source.read_options import EARLIEST, LATEST, Position, ReadOptions
from stratalog.spark.source.read_task import (
    BASES_ROW,
    COUNTS_ROW,
    FILES_ROW,
    LENGTHS_ROW,
    LogFile,
    Piece,
    Task,
    is_loss,
    lost_error,
)
from stratalog.view import View

# A larger task would have to repeat too much after a failure.
_TASK_BYTES_MAX = 1 << 30
# Less than this is not worth the 60 ms that a task costs.
_TASK_BYTES_MIN = 16 << 20
# How often a plan is repeated that the writer has overtaken.
_ATTEMPTS_MAX = 5


Plan = TypeVar("Plan")


class TaskPartition(Shipped, InputPartition):
    """One task, as Spark transports it."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)


class OvertakenError(DataLossError):
    """The writer has moved or rewritten a segment while a read of it was planned."""

    def __init__(self, span: Span) -> None:
        super().__init__(
            f"topic {span.topic.name!r}: offsets {span.start} to {span.end - 1} were moved or "
            "rewritten while a read of them was planned. Run it again."
        )


class Range(NamedTuple):
    """Offsets `start` to `end` (exclusive) of a topic."""

    topic: TopicLog
    start: int
    end: int


@contextlib.contextmanager
def open_view(options: ReadOptions) -> Iterator[View]:
    """Open a view of the store as it is now, and close its files afterwards."""
    view = view_of(options)
    try:
        yield view
    finally:
        view.close()


def view_of(options: ReadOptions) -> View:
    """Return a view of the store as it is now."""
    fs, root = find(options.path)
    view = View(fs, root)
    if options.cold is not None:
        view.replay.pool.cold = open_cold(options.cold, fs)
    return view


def resolve(view: View, names: Iterable[str], options: ReadOptions) -> list[Range]:
    """Resolve the range that a batch read needs of each topic."""
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
    """Resolve a position to an offset as of now."""
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
    """Return where to begin, given what is gone; raises for records that were not deleted."""
    history = topic.history
    if start < min(end, topic.earliest) and not topic.is_ephemeral:
        gap = Gap(start, min(end, history.evicted_below) - 1, history.evicted_reason)
        if options.fail_on_data_loss and gap.last >= gap.first and is_loss(gap):
            raise lost_error(topic.name, gap)
    return max(start, topic.earliest)


def plan_read(options: ReadOptions, now: int) -> list[Task]:
    """Plan the tasks of a batch read as of now; they read the same records whenever they run."""

    def make(view: View) -> list[Task]:
        ranges = resolve(view, options.topics.choose(view.catalog), options)
        spans = [span for one in ranges for span in spans_of(one)]
        return make_tasks(view, spans, options, now)

    return plan_with(options, make)


def plan_with(options: ReadOptions, make: Callable[[View], Plan]) -> Plan:
    """Make a plan of the store at one moment; again if the writer has overtaken it."""
    attempts = 0
    while True:
        with open_view(options) as view:
            try:
                view.listen()
                return make(view)
            except OvertakenError:
                attempts += 1
                if attempts > _ATTEMPTS_MAX:
                    raise


# --- where the records are ------------------------------------------------------------------


class Span(NamedTuple):
    """Offsets `start` to `end` (exclusive) of a topic that are in one place."""

    topic: TopicLog
    start: int
    end: int
    size: int
    """Approximate bytes to read."""
    segment: Segment | None
    log: FrameIndex
    """Frames of the log, if the offsets are in no segment."""


def spans_of(wanted: Range) -> Iterator[Span]:
    """Give the places of the records of a range, in order."""
    topic, start, end = wanted
    # The log first: records that a checkpoint moves meanwhile are then in both, never in neither.
    index = topic.index
    for segment in topic.history.segments():
        if start >= end:
            return
        if segment.end <= start:
            continue
        if segment.first > start:  # in the log, or a hole: the task that reads it reports why
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
    """Return the first frame with the offsets, and the one after the last."""
    first = index.find(start)
    last = index.find(end - 1)
    inside = last < len(index) and index.place(last).base_offset < end
    return first, max(first, last + inside)


def _segment_bytes(segment: Segment, start: int, end: int) -> int:
    """Return the bytes of the batches with the offsets: by the index, or estimated if remote."""
    summary = segment.summary
    if start <= segment.first and end >= segment.end:
        return summary.bytes
    loaded = _load(segment)
    if loaded is None:
        return summary.bytes * (end - start) // (segment.end - segment.first)
    first = max(0, bisect_right(loaded.bases, start) - 1)
    stop = bisect_left(loaded.bases, end)
    return sum(loaded.lengths[first:stop])


def _records(span: Span) -> int:
    """Count the records of a span; 0 if that is unknown because reading it will fail.

    Raises `OvertakenError` if that needs the index of a segment that was replaced.
    """
    start, end, segment = span.start, span.end, span.segment
    if segment is None:
        frames = span.log.numbers(*_frames(span.log, start, end))
        bases, counts = frames[BASES_ROW], frames[COUNTS_ROW]
        return int((np.minimum(bases + counts, end) - np.maximum(bases, start)).sum())
    if segment.summary.records == segment.end - segment.first:
        return end - start
    if not segment.summary.records:
        return 0
    if start <= segment.first and end >= segment.end:
        return segment.summary.records
    try:
        loaded = segment.load()
        if sum(loaded.counts) != segment.summary.records or loaded.bases[-1] >= segment.end:
            raise OvertakenError(span)
        first = max(0, bisect_right(loaded.bases, start) - 1)
        stop = bisect_left(loaded.bases, end)
        if first >= stop:
            return 0
        edges = {first, stop - 1}  # all other batches lie inside
        low_high = (loaded.batch(number).range_of(start, end) for number in sorted(edges))
        return sum(loaded.counts[first + 1 : stop - 1]) + sum(high - low for low, high in low_high)
    except FileNotFoundError:
        raise OvertakenError(span) from None
    except FormatError:
        return 0


def _load(segment: Segment) -> Loaded | None:
    """Load the index of a local segment; the task that reads a damaged one reports it."""
    if segment.is_cold:
        return None
    try:
        return segment.load()
    except (FormatError, OSError):
        return None


def _cut(span: Span, size: int) -> int:
    """Return the offset after about that many bytes of a span, at a batch boundary if known."""
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
    """Distribute the spans, in order, over tasks of about equal bytes."""
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
    """Cut off a part of about that many bytes, at least one batch; returns it and the rest."""
    if span.segment is None:
        first, stop = _frames(span.log, span.start, span.end)
        if first < stop:
            size = max(size, int(span.log.numbers(first, first + 1)[LENGTHS_ROW][0]) + 1)
    offset = _cut(span, size)
    if not span.start < offset < span.end:
        return span, None
    return _part(span, span.start, offset), _part(span, offset, span.end)


def _part(span: Span, start: int, end: int) -> Span:
    return _span(span.topic, start, end, span.segment, span.log)


def tasks_wanted(total: int, options: ReadOptions) -> int:
    """Return one task per core, more for more data, fewer for little; at least the option's."""
    cores = len(os.sched_getaffinity(0))
    rounds = -(-total // (cores * _TASK_BYTES_MAX))
    least = 1
    if options.partition_bytes_max is not None:
        least = -(-total // options.partition_bytes_max)
    elif rounds > 1:
        least = cores * rounds  # a multiple of the cores: with three, one of two cores would idle
    usual = min(cores, -(-total // _TASK_BYTES_MIN))
    return max(1, least, options.partitions_min or usual)


def make_tasks(
    view: View, spans: Sequence[Span], options: ReadOptions, now: int, *, is_pinned: bool = True
) -> list[Task]:
    """Build the tasks to send to executors."""
    return [task_of(view, task, options, now, is_pinned=is_pinned) for task in pack(spans, options)]


def task_of(
    view: View, spans: Sequence[Span], options: ReadOptions, now: int, *, is_pinned: bool = True
) -> Task:
    """Build one task for all of these; if it `is_pinned`, it reads no less than exists now."""
    wanted = [span for span in spans if not (is_pinned and _is_expired(span, now))]
    is_strict = is_pinned and options.fail_on_data_loss
    return Task(
        path=options.path,
        identity=view.store_file.identity,
        cold=options.cold or view.replay.pool.cold_location,
        now=now,
        is_pinned=is_pinned,
        fail_on_data_loss=options.fail_on_data_loss,
        verify=options.verify,
        pieces=tuple(_piece(span, counts=is_strict) for span in wanted),
    )


def _is_expired(span: Span, now: int) -> bool:
    """Return whether a segment has only expired records: it may be removed, and is not missed."""
    if span.segment is None or not span.segment.summary.records:
        return False
    summary, ttl = span.segment.summary, span.topic.options.ttl
    is_old = ttl is not None and summary.max_timestamp + round(ttl * 10**9) <= now
    return is_old or 0 < summary.expires_at <= now


def _piece(span: Span, *, counts: bool) -> Piece:
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
        records=_records(span) if counts else 0,
        segment=None if span.segment is None else span.segment.summary,
        cold_name=span.segment.path if span.segment is not None and span.segment.is_cold else "",
        staged=None if span.segment is None else span.segment.placed,
        frames=frames,
        files=files,
        deleted=_between(topic.history.deleted, start, end),
        lost=_between(topic.history.lost, start, end),
        crashed=_between(topic.history.crashed, start, end),
        ttl_ns=0 if ttl is None else round(ttl * 10**9),
        is_ephemeral=topic.is_ephemeral,
    )


def _between(offsets: BitMap64, start: int, end: int) -> bytes:
    """Encode the offsets of a set between two; empty if there are none."""
    if not offsets or not offsets.range_cardinality(start, end):
        return b""
    inside = BitMap64()
    inside.add_range(start, end)
    inside &= offsets
    return bytes(inside.serialize())
