"""Aggregation of windows of points by column: two rounds of sums, and no loop over points.

A piece has the points of each series in time order, one series after the other, so a window of a
series is a run. The first round computes partial results of runs; the second combines those of one
group and window, which may come from several series and several pieces.

| aggregate | value of a window |
|---|---|
| avg, sum, count, min, max | of its points |
| first, last | the value of its earliest or latest point |
| stddev | of a sample; null for one point |
| p50, p99.9, ... | the percentile, interpolated linearly between two points |
| delta | last minus first, summed over the series |
| rate | delta per second, between the first and the last point; null for one point |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.errors import OptionError
from stratalog.format.points import Bools, FieldType, Int64s
from stratalog.state.series_scan import Piece

AGGREGATES = (
    "avg", "sum", "count", "min", "max", "first", "last", "stddev", "percentile", "rate", "delta",
)  # fmt: skip
_OF_TEXT = ("count", "first", "last")
_FLOATS = ("avg", "stddev", "percentile", "rate")

# Groups of percentiles from this size on are computed one by one; smaller ones together, this many
# numbers at a time.
_LARGE = 1 << 12
_TOGETHER_MAX = 1 << 22


class Aggregate(NamedTuple):
    """A function from a window to a value."""

    name: str
    percentile: float = 0.0


class Windows(NamedTuple):
    """Values of windows, ordered by group, then by time."""

    groups: Int64s
    starts: Int64s
    values: npt.NDArray[Any]
    valid: Bools


def check_aggregate(name: Any, percentile: Any = None) -> Aggregate:
    """Return the aggregate of that name; `p95` equals `percentile` with 95."""
    if isinstance(name, str) and (match := re.fullmatch(r"p([0-9]{1,3}(?:\.[0-9]+)?)", name)):
        name, percentile = "percentile", float(match[1]) if percentile is None else percentile
    if name not in AGGREGATES:
        raise OptionError(
            f"aggregate={name!r} is not known: use one of {', '.join(AGGREGATES)}, or p95 and such"
        )
    if name != "percentile":
        if percentile is not None:
            raise OptionError(f"percentile={percentile!r} is for aggregate='percentile' alone")
        return Aggregate(name)
    if percentile is None:
        raise OptionError("aggregate='percentile' needs percentile=95, say; or use 'p95'")
    is_number = isinstance(percentile, int | float) and not isinstance(percentile, bool)
    if not is_number or not 0 <= percentile <= 100:
        raise OptionError(f"percentile={percentile!r} must be a number from 0 to 100")
    return Aggregate(name, float(percentile))


def is_possible(aggregate: Aggregate, type: FieldType) -> bool:
    """Return whether an aggregate can be computed from values of a type."""
    return type != FieldType.TEXT or aggregate.name in _OF_TEXT


def check_type(aggregate: Aggregate, field: str, type: FieldType) -> None:
    """Refuse an aggregate that cannot be computed from a field."""
    if not is_possible(aggregate, type):
        raise OptionError(
            f"aggregate={aggregate.name!r} of field {field!r}, which is text, cannot be. Possible "
            f"are {', '.join(_OF_TEXT)}."
        )


class _Runs(NamedTuple):
    """Consecutive points of one series and window."""

    ids: Int64s
    windows: Int64s
    starts: Int64s
    counts: Int64s


def aggregate_pieces(
    pieces: Iterable[Piece], aggregate: Aggregate, groups: Int64s, ranks: Int64s, window: int
) -> Windows:
    """Aggregate windows of points; `groups` and `ranks` are indexed by series number.

    Windows begin at multiples of `window` nanoseconds; 0 is one window for everything.
    """
    found = [piece.compact() for piece in pieces]
    found = [piece for piece in found if len(piece.times)]
    if not found:
        empty = np.zeros(0, np.int64)
        return Windows(empty, empty, np.zeros(0), np.zeros(0, np.bool_))
    runs = [_runs(piece, window) for piece in found]
    values = [_numbers(piece.values, aggregate) for piece in found]
    ids = np.concatenate([one.ids for one in runs])
    windows = np.concatenate([one.windows for one in runs])
    counts = np.concatenate([one.counts for one in runs])
    name = aggregate.name
    if name == "percentile":
        return _percentiles(runs, values, groups[ids], windows, counts, aggregate.percentile)
    if name in ("first", "last", "delta", "rate"):
        edges = _edges(found, runs, values)
        if name in ("first", "last"):
            return _first_or_last(name, groups[ids], ranks[ids], windows, *edges)
        return _changes(name, groups, ids, windows, *edges)
    if name == "stddev":
        return _deviations(runs, values, groups[ids], windows, counts)
    order, starts = _put_together(groups[ids], windows)
    if name == "count":
        result: npt.NDArray[Any] = np.add.reduceat(counts[order], starts)
    elif name in ("min", "max"):
        reduce = np.minimum if name == "min" else np.maximum
        parts = [reduce.reduceat(v, one.starts) for v, one in zip(values, runs, strict=True)]
        result = reduce.reduceat(np.concatenate(parts)[order], starts)
    else:
        sums = np.concatenate(
            [np.add.reduceat(v, one.starts) for v, one in zip(values, runs, strict=True)]
        )
        result = np.add.reduceat(sums[order], starts)
        if name == "avg":
            result = result / np.add.reduceat(counts[order], starts)
        elif result.dtype == np.int64:
            _check_overflow(values)
    return _windows(groups[ids], windows, order, starts, result)


def _numbers(values: npt.NDArray[Any], aggregate: Aggregate) -> npt.NDArray[Any]:
    """Convert values for computing: floats where the result has fractions, bools to numbers."""
    if aggregate.name in _FLOATS:
        return values.astype(np.float64, copy=False)
    if values.dtype == np.bool_ and aggregate.name not in ("first", "last", "count"):
        return values.astype(np.int64)
    return values


def _check_overflow(values: list[npt.NDArray[Any]], instead: str = "avg") -> None:
    """Raise if a sum of whole numbers exceeds 64 bits."""
    total = sum(float(np.abs(own.astype(np.float64)).sum()) for own in values)
    if total >= 2.0**63:
        raise OptionError(f"A sum does not fit into 64 bits. Use {instead}, or smaller windows.")


def _runs(piece: Piece, window: int) -> _Runs:
    ends = np.cumsum(piece.counts)
    begins = ends - piece.counts
    if window:
        numbers = piece.times // window
        is_start = np.empty(len(numbers), np.bool_)
        np.not_equal(numbers[1:], numbers[:-1], out=is_start[1:])
        is_start[begins] = True
        starts = np.flatnonzero(is_start)
        windows = numbers[starts]
        ids = piece.ids[np.searchsorted(begins, starts, side="right") - 1]
    else:
        starts, ids = begins, piece.ids
        windows = np.zeros(len(starts), np.int64)
    return _Runs(ids, windows, starts, np.diff(np.append(starts, len(piece.times))))


def _put_together(groups: Int64s, windows: Int64s) -> tuple[Int64s, Int64s]:
    """Sort groups and windows; returns their order, and where each begins in it."""
    order = np.lexsort((windows, groups))
    return order, _starts(groups[order], windows[order])


def _starts(*columns: Int64s) -> Int64s:
    """Find where rows differ from the row before."""
    is_start = np.ones(len(columns[0]), np.bool_)
    is_start[1:] = False
    for column in columns:
        is_start[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(is_start)


def _windows(
    groups: Int64s, windows: Int64s, order: Int64s, starts: Int64s, values: npt.NDArray[Any],
    valid: Bools | None = None,
) -> Windows:  # fmt: skip
    at = order[starts]
    return Windows(
        groups[at], windows[at], values, np.ones(len(at), np.bool_) if valid is None else valid
    )


def _edges(
    pieces: list[Piece], runs: list[_Runs], values: list[npt.NDArray[Any]]
) -> tuple[Int64s, npt.NDArray[Any], Int64s, npt.NDArray[Any]]:
    """Return times and values of the first and the last point of every run."""
    last = [one.starts + one.counts - 1 for one in runs]
    return (
        np.concatenate([piece.times[one.starts] for piece, one in zip(pieces, runs, strict=True)]),
        np.concatenate([own[one.starts] for own, one in zip(values, runs, strict=True)]),
        np.concatenate([piece.times[at] for piece, at in zip(pieces, last, strict=True)]),
        np.concatenate([own[at] for own, at in zip(values, last, strict=True)]),
    )


def _first_or_last(
    name: str, groups: Int64s, ranks: Int64s, windows: Int64s, first_times: Int64s,
    firsts: npt.NDArray[Any], last_times: Int64s, lasts: npt.NDArray[Any],
) -> Windows:  # fmt: skip
    times, values = (first_times, firsts) if name == "first" else (last_times, lasts)
    order = np.lexsort((ranks, times, windows, groups))
    starts = _starts(groups[order], windows[order])
    places = starts if name == "first" else np.append(starts[1:], len(order)) - 1
    return _windows(groups, windows, order, starts, values[order[places]])


def _changes(
    name: str, groups: Int64s, ids: Int64s, windows: Int64s, first_times: Int64s,
    firsts: npt.NDArray[Any], last_times: Int64s, lasts: npt.NDArray[Any],
) -> Windows:  # fmt: skip
    """Compute the change from the first to the last point of each series, summed by group."""
    order = np.lexsort((first_times, windows, ids))
    starts = _starts(ids[order], windows[order])
    begin, end = order[starts], order[np.append(starts[1:], len(order)) - 1]
    if lasts.dtype == np.int64:
        _check_overflow([lasts[end].astype(np.float64) - firsts[begin].astype(np.float64)], "rate")
    changes = lasts[end] - firsts[begin]
    own_groups, own_windows = groups[ids[begin]], windows[begin]
    valid = np.ones(len(begin), np.bool_)
    if name == "rate":
        seconds = (last_times[end] - first_times[begin]) / 1e9
        valid = seconds > 0
        changes = np.divide(changes, seconds, out=np.zeros(len(begin)), where=valid)
    order, starts = _put_together(own_groups, own_windows)
    total = np.add.reduceat(changes[order], starts)
    is_there = np.logical_or.reduceat(valid[order], starts)
    return _windows(own_groups, own_windows, order, starts, total, is_there)


def _deviations(
    runs: list[_Runs], values: list[npt.NDArray[Any]], groups: Int64s, windows: Int64s,
    counts: Int64s,
) -> Windows:  # fmt: skip
    """Compute standard deviations from squared distances to the mean, which loses no digits."""
    means, squares = [], []
    for own, one in zip(values, runs, strict=True):
        mean = np.add.reduceat(own, one.starts) / one.counts
        left = own - np.repeat(mean, one.counts)
        means.append(mean)
        squares.append(np.add.reduceat(left * left, one.starts))
    mean, square = np.concatenate(means), np.concatenate(squares)
    order, starts = _put_together(groups, windows)
    mean, square, counts = mean[order], square[order], counts[order]
    total = np.add.reduceat(counts, starts)
    middle = np.add.reduceat(mean * counts, starts) / total
    away = mean - np.repeat(middle, np.diff(np.append(starts, len(order))))
    square = np.add.reduceat(square + counts * away * away, starts)
    valid = total > 1
    result = np.sqrt(np.divide(square, total - 1, out=np.zeros(len(total)), where=valid))
    return _windows(groups, windows, order, starts, result, valid)


def _percentiles(
    runs: list[_Runs], values: list[npt.NDArray[Any]], groups: Int64s, windows: Int64s,
    counts: Int64s, percentile: float,
) -> Windows:  # fmt: skip
    order, starts = _put_together(groups, windows)
    joined = np.concatenate(values)
    shift = np.cumsum([0, *(len(own) for own in values[:-1])])
    begins = np.concatenate([one.starts + at for one, at in zip(runs, shift, strict=True)])
    if not bool((order[1:] == order[:-1] + 1).all()):
        own_counts = counts[order]
        places = np.cumsum(own_counts) - own_counts
        joined = joined[np.repeat(begins[order] - places, own_counts) + np.arange(len(joined))]
    sizes = np.add.reduceat(counts[order], starts)
    result = _sorted_percentiles(joined, sizes, percentile / 100)
    return _windows(groups, windows, order, starts, result)


def _sorted_percentiles(
    values: npt.NDArray[np.float64], sizes: Int64s, share: float
) -> npt.NDArray[np.float64]:
    """Compute a percentile of each group of values, which are contiguous.

    Large groups are computed one by one, small ones of equal size as rows of a matrix.
    """
    begins = np.cumsum(sizes) - sizes
    result = np.zeros(len(sizes))
    for group in np.flatnonzero(sizes >= _LARGE).tolist():
        begin, size = int(begins[group]), int(sizes[group])
        result[group] = _rank(values[begin : begin + size][None, :], share)[0]
    for size in np.unique(sizes[sizes < _LARGE]).tolist():
        rows = np.flatnonzero(sizes == size)
        for first in range(0, len(rows), max(1, _TOGETHER_MAX // size)):
            own = rows[first : first + max(1, _TOGETHER_MAX // size)]
            result[own] = _rank(values[begins[own][:, None] + np.arange(size)], share)
    return result


def _rank(table: npt.NDArray[np.float64], share: float) -> npt.NDArray[np.float64]:
    """Compute a percentile of each row; all rows have one length."""
    at = share * (table.shape[1] - 1)
    low = int(at)
    high = min(low + 1, table.shape[1] - 1)
    # Partition at one index, and take the maximum below it: two indexes take three times as long.
    found = np.partition(table, high, axis=1)
    above = found[:, high]
    below = found[:, :high].max(axis=1) if high > low else above
    ranked: npt.NDArray[np.float64] = below + (above - below) * (at - low)
    return ranked
