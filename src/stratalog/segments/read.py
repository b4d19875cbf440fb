"""From offsets to verified batches: the way out, from segments and from the log.

Every frame is verified when it is read, header and body.

A reader holds no lock. What it is about to read may be moved meanwhile, from the log to a segment,
from there to the cold store, or be evicted: it then looks again where the offset is now.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from stratalog.errors import ColdStoreError, CorruptionError, StratalogError
from stratalog.fs.os_errors import out_of_memory
from stratalog.log.frame_reader import damaged, read_frames, read_run
from stratalog.log.topic import TopicLog
from stratalog.model import Gap, Record
from stratalog.segments.offset_runs import ranges_of
from stratalog.segments.segment import Segment, Slice
from stratalog.segments.topic_segments import History

# How often a reader looks again for records that were moved meanwhile: once is enough unless the
# writer is another process, and busy.
_ATTEMPTS_MAX = 5

_EXPIRED, _DELETED = 1, 2


class _MovedError(Exception):
    """The records to be read may have moved; if they have not, `instead` is the error to raise."""

    def __init__(self, instead: StratalogError) -> None:
        super().__init__()
        self.instead = instead


def read_batches(
    topic: TopicLog, start: int, end: int, cold: set[int] | None = None
) -> Iterator[Slice | Gap]:
    """Read everything published between two offsets, in order, with gaps.

    First offsets of cold segments that were read are added to `cold`.
    """
    attempts = 0
    pool = topic.history.pool
    begin = perf_counter_ns()
    while start < end:
        try:
            for part, following in _next_parts(topic, start, end, cold):
                if part is not None:
                    pool.times.record(perf_counter_ns() - begin)
                    if type(part) is Slice:
                        pool.records_read += part.end - part.first
                    yield part
                    begin = perf_counter_ns()
                start = following
                attempts = 0
        except _MovedError as moved:
            attempts += 1
            if attempts > _ATTEMPTS_MAX:
                raise moved.instead from moved.__cause__
            topic.history.refresh()
            topic.check_dropped()  # its files were removed, which is no damage
        except MemoryError as error:
            what = f"read topic {topic.name!r} at offset {start}"
            raise out_of_memory(what, topic.history.pool.root) from error


def _next_parts(
    topic: TopicLog, start: int, end: int, cold: set[int] | None
) -> Iterator[tuple[Slice | Gap | None, int]]:
    """Yield the parts that follow at `start`, from one place, with the offsets to continue from."""
    history = topic.history
    if start < topic.earliest:
        yield from _below_floor(topic, start, min(end, topic.earliest))
        return
    segment = history.find(start)
    if segment is not None:
        if cold is not None and segment.is_cold:
            cold.add(segment.first)
        try:
            yield from _segment_parts(history, segment, start, min(end, segment.end))
        except ColdStoreError as error:
            if _is_gone(topic, segment):
                raise _MovedError(error) from error
            raise
    else:
        yield from _log_parts(topic, start, end)


def _is_gone(topic: TopicLog, segment: Segment) -> bool:
    """Return whether a segment that the cold store lacks is no longer part of the topic."""
    topic.history.refresh()
    topic.check_dropped()
    current = topic.history.find(segment.first)
    return segment.end <= topic.earliest or current is not segment


def _below_floor(topic: TopicLog, start: int, end: int) -> Iterator[tuple[Slice | Gap | None, int]]:
    """Evicted records become a gap; deleted records are left out."""
    history = topic.history
    if topic.is_ephemeral:
        yield Gap(start, end - 1, "ephemeral"), end
    elif start < history.evicted_below:
        stop = min(end, history.evicted_below)
        yield Gap(start, stop - 1, history.evicted_reason), stop
    else:
        yield None, end


def _segment_parts(
    history: History, segment: Segment, start: int, end: int
) -> Iterator[tuple[Slice | Gap | None, int]]:
    try:
        for part in segment.batches(start, end):
            following = part.batch.offset_of(part.end - 1) + 1
            if history.lost:
                yield from _with_gaps(part, lost_gaps(history, start, following))
            else:
                yield part, following
            start = following
    except FileNotFoundError as error:
        missing = (
            f"{segment.path} is missing (topic {history.topic_id}, offsets {segment.first} to "
            f"{segment.end - 1}): restore it from a copy, or run `stratalog repair`"
        )
        raise _MovedError(CorruptionError(missing)) from error
    if history.lost:
        for gap in lost_gaps(history, start, end):
            yield gap, gap.last + 1
    yield None, end


def _with_gaps(part: Slice, gaps: list[Gap]) -> Iterator[tuple[Slice | Gap, int]]:
    """Give a slice, the gaps before it and those between its offsets, in order."""
    batch, first, end = part
    for gap in gaps:
        low, high = batch.range_of(gap.first, gap.last + 1)
        if low < high:
            continue  # given up by a repair, and still there
        if low > first:
            yield Slice(batch, first, low), gap.first
            first = low
        yield gap, gap.last + 1
    yield Slice(batch, first, end), batch.offset_of(end - 1) + 1


def lost_gaps(history: History, start: int, end: int) -> list[Gap]:
    """Give offsets between two that a repair gave up, or that a crash took.

    What was deleted is not missed.
    """
    if not history.lost or not history.lost.range_cardinality(start, end):
        return []
    missed = BitMap64()
    missed.add_range(start, end)
    missed &= history.lost
    missed -= history.deleted
    crashed = missed & history.crashed
    gaps = [
        Gap(first, last, reason)
        for offsets, reason in ((missed - crashed, "damaged"), (crashed, "crash"))
        for first, last in ranges_of(offsets)
    ]
    return sorted(gaps, key=lambda gap: gap.first)


def _log_parts(topic: TopicLog, start: int, end: int) -> Iterator[tuple[Slice | Gap | None, int]]:
    index = topic.index
    frames = len(index)
    number = index.find(start)
    base = index.place(number).base_offset if number < frames else end
    if base > start:
        yield from _hole(topic, start, min(base, end))
        return
    try:
        for batch in read_frames(topic, index, number, end):
            base = batch.base_offset
            last = min(base + batch.count, end)
            yield Slice(batch, start - base, last - base), last
            start = last
    except (CorruptionError, FileNotFoundError) as error:
        # The file may have been given up since: then a segment has it, or it is gone for good.
        if not isinstance(error, CorruptionError):
            raise _MovedError(damaged(topic, index.place(number), error)) from error
        raise _MovedError(error) from error


def _hole(topic: TopicLog, start: int, end: int) -> Iterator[tuple[Slice | Gap | None, int]]:
    """Find out why the log has nothing at `start`: it was moved, given up, or is damaged."""
    history = topic.history
    if topic.is_ephemeral:
        yield Gap(start, end - 1, "ephemeral"), end
        return
    # The records of the next segment are not part of the hole.
    end = min(end, next((s.first for s in history.segments() if s.first > start), end))
    gaps = lost_gaps(history, start, end)
    if gaps and gaps[0].first == start:
        yield gaps[0], gaps[0].last + 1
        return
    end = gaps[0].first if gaps else end
    if history.is_given_up(start, end - 1):  # also deleted: no gap is reported
        yield None, end
        return
    raise _MovedError(
        CorruptionError(
            f"topic {topic.name!r}: offsets {start} to {end - 1} are in a damaged part of the "
            "store. Nothing damaged is ever returned; read around these offsets, restore the "
            "damaged file from a copy, or run `stratalog repair`."
        )
    )


def read_stored(topic: TopicLog, start: int, end: int) -> Iterator[Slice]:
    """Yield what local segments and the log have between two offsets, also below the floor."""
    for segment in topic.history.chain.segments:
        if not segment.is_cold and segment.first < end and segment.end > start:
            yield from segment.batches(max(start, segment.first), min(end, segment.end))
    index = topic.index
    while (number := index.find(start)) < len(index):
        if max(start, index.place(number).base_offset) >= end:
            break
        for batch in read_frames(topic, index, number, end):
            base = batch.base_offset
            last = min(base + batch.count, end)
            if start < last:
                yield Slice(batch, max(start - base, 0), last - base)
            start = max(start, last)


def read_living(
    topic: TopicLog, start: int, end: int, now: int, cold: set[int] | None = None
) -> Iterator[Slice | Gap]:
    """Yield stored records without the deleted ones, and expired ones (by `now`) as gaps.

    Neighbouring gaps become one.
    """
    ttl_ns = 0 if topic.options.ttl is None else round(topic.options.ttl * 10**9)
    deleted = topic.history.deleted
    gap: Gap | None = None
    for part in read_batches(topic, start, end, cold):
        if (
            not ttl_ns and not deleted and gap is None
            and type(part) is Slice and part.batch.expires_at is None
        ):  # fmt: skip
            yield part  # the common case, without a generator in between
            continue
        for piece in _living(part, ttl_ns, now, deleted):
            if isinstance(piece, Slice):
                if gap is not None:
                    yield gap
                    gap = None
                yield piece
            elif gap is not None and gap.reason == piece.reason:
                gap = Gap(gap.first, piece.last, gap.reason)
            else:
                if gap is not None:
                    yield gap
                gap = piece
    if gap is not None:
        yield gap


def read_one(topic: TopicLog, offset: int) -> Record | None:
    """Fast path for one living record of a segment; None if the general way has to decide.

    `read_living` gives the same record, through six generators and 10 us slower.
    """
    history = topic.history
    if offset < topic.earliest or topic.options.ttl is not None or offset in history.deleted:
        return None
    segment = history.find(offset)
    if segment is None:
        return None
    try:
        found = segment.find(offset)
    except FileNotFoundError:
        return None  # moved meanwhile
    if found is None or found[0].expires_at is not None:
        return None
    return found[0].record(found[1])


def offset_at(topic: TopicLog, timestamp: int) -> int:
    """Find the first offset whose record has this time or a later one, or the next offset."""
    for attempt in range(_ATTEMPTS_MAX):
        # The log first: what a checkpoint moves meanwhile is then in both, and never in neither.
        index = topic.index
        # One that was rewritten to nothing has no times.
        segments = [
            one
            for one in topic.history.segments()
            if one.summary.records and one.end > topic.earliest
        ]
        number = bisect_left(segments, timestamp, key=lambda one: one.summary.max_timestamp)
        in_log = index.find_time(timestamp)
        place = index.place(in_log) if in_log < len(index) else None
        try:
            # Records before an adopted segment may be in the log.
            first = segments[number].first if number < len(segments) else topic.committed
            if number < len(segments) and (place is None or place.base_offset >= first):
                return max(segments[number].offset_at(timestamp), topic.earliest)
            if place is None:
                return topic.committed
            for batch in read_run(topic, [place]):
                return max(batch.offset_at(timestamp), topic.earliest)
        except ColdStoreError:
            if not _is_gone(topic, segments[number]):
                raise
        except (CorruptionError, FileNotFoundError):
            if attempt + 1 == _ATTEMPTS_MAX:
                raise
            topic.history.refresh()
            topic.check_dropped()
    return topic.committed


def _living(part: Slice | Gap, ttl_ns: int, now: int, deleted: BitMap64) -> Iterator[Slice | Gap]:
    """Remove deleted and expired records from a slice."""
    if isinstance(part, Gap) or not (deleted or ttl_ns or part.batch.expires_at is not None):
        yield part
        return
    batch, first, end = part
    offsets = batch.offsets(first, end)
    dead = deleted_mask(deleted, offsets)
    state = np.zeros(end - first, np.int8)
    if ttl_ns:
        state[batch.timestamps(first, end) + ttl_ns <= now] = _EXPIRED
    if batch.expires_at is not None:
        times = batch.expires_at[first:end]
        state[(times != 0) & (times <= now)] = _EXPIRED
    if dead is not None:
        state[dead] = _DELETED
    edges = [0, *(np.flatnonzero(state[1:] != state[:-1]) + 1).tolist(), end - first]
    for low, high in pairwise(edges):
        if state[low] == _EXPIRED:
            yield Gap(int(offsets[low]), int(offsets[high - 1]), "expired")
        elif state[low] != _DELETED:
            yield Slice(batch, first + low, first + high)


def deleted_mask(deleted: BitMap64, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_] | None:
    """Return which of these ascending offsets were deleted; None if none was."""
    first, last = int(offsets[0]), int(offsets[-1])
    if not deleted or not deleted.range_cardinality(first, last + 1):
        return None
    if deleted.contains_range(first, last + 1):
        return np.ones(len(offsets), np.bool_)
    return np.isin(offsets, offsets_between(deleted, first, last + 1), assume_unique=True)


def offsets_between(chosen: BitMap64, start: int, end: int) -> npt.NDArray[np.int64]:
    """Return the offsets of a set between two, ascending."""
    inside = BitMap64()
    inside.add_range(start, end)
    inside &= chosen
    return np.array(inside.to_array(), np.int64)
