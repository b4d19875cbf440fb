"""Scans of a series topic: the points between two times, each once, by column.

Points come from the buffer and from blocks that may have some. Runs of one series that overlap in
time are merged, so that of two points with one time the one with the higher offset counts; all
other runs are left unchanged, which for points that arrived in order is all of them.

Memory: a range with more than `SLICE_POINTS` points is read in slices of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.errors import FormatError
from stratalog.format.batch import Batch
from stratalog.format.point_records import Part, decode_records
from stratalog.format.points import DTYPES, MAGIC, Bools, Column, FieldType, Int64s
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.segments.read import read_batches
from stratalog.state.series_blocks import Block
from stratalog.state.series_registry import Registry, typed
from stratalog.state.series_state import SeriesState

SLICE_POINTS = 1 << 24
"""Approximate points held at a time: 16 bytes each, and intermediate results."""


# Records that are decoded at a time.
_RECORDS = 1 << 14

# Smaller records are copied: many are decoded together, from bytes.
_COPIED_BYTES = 1 << 12


class Piece(NamedTuple):
    """Points of one field: of several series, and of each in time order."""

    ids: Int64s
    """Numbers of the series, one for each run."""
    counts: Int64s
    """Number of points of each run."""
    times: Int64s
    values: npt.NDArray[Any]
    valid: Bools | None
    """Which points have the field; None if all do."""
    offsets: Int64s

    def compact(self) -> Piece:
        """Keep only the points that have the field."""
        if self.valid is None:
            return self
        return _chosen(self, self.valid)._replace(valid=None)


class Request(NamedTuple):
    """The points that a query needs."""

    start: int
    end: int
    ids: Int64s
    """Numbers of the series."""
    field: str
    type: FieldType
    registry: Registry
    """The registry at the time when the numbers were found."""


def scan(state: SeriesState, request: Request, window: int = 1) -> Iterator[list[Piece]]:
    """Read all requested points, one slice of time after another; windows are never split."""
    with state.lock:
        registry = request.registry.ids
        wanted = request.registry.mask(request.ids)
        # After a rebuild series have other numbers: blocks are then selected by time alone.
        is_same = state.registry is request.registry
        blocks, parts = state.find(request.start, request.end, wanted if is_same else None)
    bounds = _bounds(request, blocks, parts, window)
    for start, end in pairwise(bounds):
        inside = [block for block in blocks if block.greatest >= start and block.least < end]
        found: list[Piece] = []
        for part in _parts(state.topic, inside, parts, request.field):
            piece = _piece(part, request, registry, wanted, start, end)
            if piece is not None:
                found.append(piece)
        yield merge(found)


def _bounds(request: Request, blocks: list[Block], parts: Iterable[Part], window: int) -> list[int]:
    """Return the times that slices begin with, and the end of the last."""
    filled = [part.points.times for part in parts if len(part.points)]
    least = [*(block.least for block in blocks), *(int(times.min()) for times in filled)]
    greatest = [*(block.greatest for block in blocks), *(int(times.max()) for times in filled)]
    if not least:
        return [request.start]
    start, end = max(request.start, min(least)), min(request.end, max(greatest) + 1)
    count = sum(block.points for block in blocks)
    slices = -(-count // SLICE_POINTS)
    cuts = [start + (end - start) * number // slices for number in range(1, slices)]
    inner = {cut - cut % window for cut in cuts}
    return [start, *sorted(cut for cut in inner if start < cut < end), max(end, start)]


def _parts(
    topic: TopicLog, blocks: list[Block], buffered: Iterable[Part], field: str
) -> Iterator[Part]:
    ranges: list[list[int]] = []
    for block in blocks:
        if ranges and ranges[-1][1] == block.first:
            ranges[-1][1] = block.end
        else:
            ranges.append([block.first, block.end])
    for first, end in ranges:
        for part, _ in read_parts(topic, first, end, [field]):
            yield part
    yield from buffered


def read_parts(
    topic: TopicLog, first: int, end: int, fields: Sequence[str] = ()
) -> Iterator[tuple[Part, int]]:
    """Read points of records between two offsets; each part with the offset read so far."""
    for read in read_batches(topic, first, end):
        if isinstance(read, Gap):
            continue  # evicted since: those points are gone
        batch, low, high = read
        for start in range(low, high, _RECORDS):
            stop = min(high, start + _RECORDS)
            values, offsets = point_values(batch, start, stop)
            try:
                parts = decode_records(values, offsets, fields)
            except FormatError as error:
                raise type(error)(f"series {topic.name!r}: {error}") from error
            following = batch.offset_of(stop - 1) + 1
            for number, part in enumerate(parts, 1):
                yield part, following if number == len(parts) else first
            first = following


def point_values(batch: Batch, first: int, end: int) -> tuple[Sequence[bytes | memoryview], Int64s]:
    """Return records of points, large ones without a copy, and their offsets."""
    offsets = batch.offsets(first, end)
    values: Sequence[bytes | memoryview]
    if batch.size < _COPIED_BYTES * batch.count:
        values = [value or b"" for value in batch.values(first, end)]
    else:
        values = batch.value_views(first, end)
    is_points = [value[:4] == MAGIC for value in values]
    if not all(is_points):  # others are rules and cursors
        values = [value for value, is_own in zip(values, is_points, strict=True) if is_own]
        offsets = offsets[np.array(is_points, np.bool_)]
    return values, offsets


def _piece(
    part: Part, request: Request, registry: dict[bytes, int], wanted: Bools, start: int, end: int
) -> Piece | None:
    """Select the requested points of a part; None if there are none."""
    points = part.points
    # A series that was forgotten or added since is not requested.
    found = [registry.get(key, -1) for key in points.series]
    ids = np.array(found, np.int64)
    is_wanted = (ids >= 0) & (ids < len(wanted))
    is_wanted[is_wanted] = wanted[ids[is_wanted]]
    if not is_wanted.any():
        return None
    column = typed(points.fields.get(request.field), request.type)
    if column is None:  # these points still hide older ones with their times
        empty = np.zeros(len(points), DTYPES[request.type])
        column = Column(request.type, empty, np.zeros(len(points), np.bool_))
    counts = points.counts.astype(np.int64)
    piece = Piece(ids, counts, points.times, column.values, column.valid, part.offsets)
    is_whole = is_wanted.all()
    ends = points.ends
    # Times of a series ascend: its first and last time show whether all points are inside.
    if points.times[ends - counts].min() < start or points.times[ends - 1].max() >= end:
        chosen = (points.times >= start) & (points.times < end)
        if not is_whole:
            chosen &= np.repeat(is_wanted, counts)
        piece = _chosen(piece, chosen)
    elif not is_whole:
        piece = _chosen(piece, np.repeat(is_wanted, counts))
    return piece if len(piece.times) else None


def _chosen(piece: Piece, chosen: Bools) -> Piece:
    runs = np.repeat(np.arange(len(piece.ids)), piece.counts)[chosen]
    counts = np.bincount(runs, minlength=len(piece.ids)).astype(np.int64)
    there = counts > 0
    return Piece(
        piece.ids[there],
        counts[there],
        piece.times[chosen],
        piece.values[chosen],
        None if piece.valid is None else piece.valid[chosen],
        piece.offsets[chosen],
    )


# --- points that may be there twice ---------------------------------------------------------


def merge(pieces: list[Piece]) -> list[Piece]:
    """Merge pieces so that no series has two points of one time; the higher offset stays."""
    if len(pieces) < 2:
        return pieces
    ids = np.concatenate([piece.ids for piece in pieces])
    firsts = np.concatenate([_run_times(piece, 0) for piece in pieces])
    lasts = np.concatenate([_run_times(piece, 1) for piece in pieces])
    is_joint = _overlaps(ids, firsts, lasts)
    if not is_joint.any():
        return pieces
    apart: list[Piece] = []
    joint: list[tuple[Piece, Bools]] = []
    begin = 0
    for piece in pieces:
        own = is_joint[begin : begin + len(piece.ids)]
        begin += len(piece.ids)
        if not own.any():
            apart.append(piece)
            continue
        chosen = np.repeat(own, piece.counts)
        joint.append((piece, chosen))
        if not own.all():
            apart.append(_chosen(piece, ~chosen))
    return [*apart, _joined(joint)]


def _run_times(piece: Piece, end: int) -> Int64s:
    """Return the first or the last times of the runs of a piece."""
    ends = np.cumsum(piece.counts)
    times: Int64s = piece.times[ends - 1] if end else piece.times[ends - piece.counts]
    return times


def _overlaps(ids: Int64s, firsts: Int64s, lasts: Int64s) -> Bools:
    """Find runs that share a time with another run of the same series."""
    order = np.lexsort((lasts, firsts, ids))
    ids, firsts, lasts = ids[order], firsts[order], lasts[order]
    # Ranks instead of times: the number of the series then fits above them in 64 bits.
    times = np.unique(lasts)
    ranks = np.searchsorted(times, lasts)
    begins = np.searchsorted(times, firsts)  # the first time that is not before it
    base = ids * (len(times) + 1)
    reach = np.maximum.accumulate(base + ranks)  # grows with the series, which are sorted
    is_next = np.zeros(len(ids), np.bool_)
    is_next[1:] = reach[:-1] >= base[1:] + begins[1:]
    joint = is_next.copy()
    joint[:-1] |= is_next[1:]
    found = np.zeros(len(ids), np.bool_)
    found[order] = joint
    return found


def _joined(joint: list[tuple[Piece, Bools]]) -> Piece:
    """Join the selected points of pieces in order, each series and time once."""
    ids = np.concatenate([np.repeat(piece.ids, piece.counts)[mask] for piece, mask in joint])
    times = np.concatenate([piece.times[mask] for piece, mask in joint])
    values = np.concatenate([piece.values[mask] for piece, mask in joint])
    offsets = np.concatenate([piece.offsets[mask] for piece, mask in joint])
    valid = None
    if any(piece.valid is not None for piece, _ in joint):
        masks = [
            np.ones(int(mask.sum()), np.bool_) if piece.valid is None else piece.valid[mask]
            for piece, mask in joint
        ]
        valid = np.concatenate(masks)
    order = np.lexsort((offsets, times, ids))
    ids, times = ids[order], times[order]
    is_last = np.ones(len(ids), np.bool_)
    is_last[:-1] = (ids[1:] != ids[:-1]) | (times[1:] != times[:-1])
    order, ids, times = order[is_last], ids[is_last], times[is_last]
    edges = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    starts = np.concatenate([np.zeros(1, np.int64), edges])
    counts = np.diff(np.append(starts, len(ids)))
    return Piece(
        ids[starts], counts, times, values[order], None if valid is None else valid[order],
        offsets[order],
    )  # fmt: skip


def read_points(state: SeriesState, request: Request) -> tuple[Int64s, npt.NDArray[Any]]:
    """Read times and values of all requested points, ordered by time, then by series name."""
    pieces = [piece.compact() for found in scan(state, request) for piece in found]
    if not pieces:
        return np.zeros(0, np.int64), np.zeros(0, DTYPES[request.type])
    times = np.concatenate([piece.times for piece in pieces])
    values = np.concatenate([piece.values for piece in pieces])
    if len(request.ids) > 1:
        rank = ranks(request.ids)
        series = np.concatenate([np.repeat(rank[piece.ids], piece.counts) for piece in pieces])
        order = np.lexsort((series, times))
    elif bool((times[1:] < times[:-1]).any()):
        order = np.argsort(times, kind="stable")
    else:
        return times, values
    return times[order], values[order]


def ranks(ids: Int64s) -> Int64s:
    """Return the rank of each requested series, by its number."""
    places = np.zeros(int(ids.max(initial=0)) + 1, np.int64)
    places[ids] = np.arange(len(ids))
    return places
