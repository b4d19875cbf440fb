"""Ageing of points: they are downsampled by rule, then evicted.

A rule has a series of its own, named after the source: one point for each window of each series.
Its cursor is the offset of the source up to which its points are computed. New records of the
source, late ones as well, show which windows are to be computed again, and their points and the
cursor enter the log in one frame: after a crash a window is either computed, or its records are
still after the cursor.

Invariants:
- The source's records are synced before they are computed with: a cursor never counts what a crash
  can take.
- No segment of the source goes that has a record at or above a cursor.
- A window that has times before `evicted_before` is never computed again: some of its points may be
  gone, and its value would be that of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.errors import UnknownTopicError
from stratalog.format.control import encode_floor
from stratalog.format.frame import FrameType
from stratalog.format.point_records import Part
from stratalog.format.points import Column, FieldType, Int64s, arrange
from stratalog.format.series import Cursor, Rules, Tier, encode_cursor, encode_rules
from stratalog.log.append import append_entries
from stratalog.log.log import Log
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.state.aggregate import Windows, aggregate_pieces, check_aggregate, is_possible
from stratalog.state.catalog import Catalog
from stratalog.state.router import control
from stratalog.state.series_scan import Request, read_parts, scan
from stratalog.state.series_state import SeriesState
from stratalog.state.series_write import encode_all, entry_of, tier_name

# Approximate points that are read for one frame: the windows of so many always fit into one.
_STEP_POINTS = 1 << 16
# Windows are computed together with those in between, up to this many.
_NEAR = 16


class Downsampler:
    """Rules of all series of a store, as upkeep follows them."""

    def __init__(self, log: Log, catalog: Catalog) -> None:
        self._log = log
        self._catalog = catalog

    def run(self, topic: TopicLog, now: int) -> None:
        """Apply the rules of a series at this time; the lock of upkeep is held."""
        state = topic.projection
        if not isinstance(state, SeriesState):
            return
        with state.lock:
            state.advance()
            rules = state.rules
        end = topic.committed
        for tier in rules.tiers:
            target = self._target(topic, tier)
            self._compute(topic, state, tier, target, end)
            end = min(end, _cursor(topic, target))
        if rules.raw_ns:
            self._evict(topic, state, now - rules.raw_ns, end)

    def _target(self, topic: TopicLog, tier: Tier) -> TopicLog:
        name = tier_name(topic.name, tier)
        target = self._catalog.get(name)
        if target is None or not isinstance(target.projection, SeriesState):
            raise UnknownTopicError(
                f"Series {topic.name!r} is to be downsampled into {name!r}, which is gone. Call "
                f"retention() of {topic.name!r} again, with this rule or without it."
            )
        return target

    # --- downsampling --------------------------------------------------------------------

    def _compute(
        self, topic: TopicLog, state: SeriesState, tier: Tier, target: TopicLog, end: int
    ) -> None:
        start = _cursor(topic, target)
        if start >= end:
            return
        self._log.sync(reports_loss=False)
        for dirty, following in _steps(topic, state, tier, start, end):
            values = list(_downsampled(state, tier, dirty, target)) if len(dirty.ids) else []
            values.append(encode_cursor(Cursor(topic.id, following)))
            append_entries(target, [entry_of(target, values)], SYNCED)

    # --- eviction ------------------------------------------------------------------------

    def _evict(self, topic: TopicLog, state: SeriesState, horizon: int, end: int) -> None:
        """Evict segments whose points are all before a time, and which no cursor needs."""
        with state.lock:
            below = _evictable(topic, state, horizon, end)
            rules = state.rules
        if below <= topic.earliest:
            return
        # Write rules and cursor once more: the records that have them may be among those that go.
        kept = Rules(rules.raw_ns, rules.tiers, max(horizon, rules.evicted_before))
        values = [encode_rules(kept)]
        if state.cursor is not None:
            values.append(encode_cursor(state.cursor))
        append_entries(topic, [entry_of(topic, values)], SYNCED)
        body = encode_floor(below, "evicted")
        self._log.write([control(topic, FrameType.FLOOR, below, body)])


def _cursor(topic: TopicLog, target: TopicLog) -> int:
    state = target.projection
    assert isinstance(state, SeriesState)
    with state.lock:
        state.advance()
        cursor = state.cursor
    return 0 if cursor is None or cursor.source_id != topic.id else cursor.offset


def _evictable(topic: TopicLog, state: SeriesState, horizon: int, end: int) -> int:
    """Return the offset below which everything can be evicted; the lock is held."""
    kept = [block.first for block in state.blocks.all() if block.greatest >= horizon]
    limit = min([end, *kept])
    below = 0
    for segment in topic.history.chain.segments:
        if segment.is_open or segment.end > limit:
            break
        below = segment.end
    return below


class _Dirty(NamedTuple):
    """Windows to be computed, ordered: each with the series that has new points in it."""

    windows: Int64s
    ids: Int64s


def _steps(
    topic: TopicLog, state: SeriesState, tier: Tier, start: int, end: int
) -> Iterator[tuple[_Dirty, int]]:
    """Give the windows with points of records between two offsets, and where each step ends."""
    found: list[_Dirty] = []
    points = 0
    for part, following in read_parts(topic, start, end):
        found.append(_windows_of(part, state, tier))
        points += len(part.points)
        if points >= _STEP_POINTS:
            yield _unique(found), following
            found, points = [], 0
    yield _unique(found), end


def _windows_of(part: Part, state: SeriesState, tier: Tier) -> _Dirty:
    points = part.points
    with state.lock:
        known = [state.registry.ids.get(key, -1) for key in points.series]
        oldest = state.rules.evicted_before
    ids = np.repeat(np.array(known, np.int64), points.counts)
    windows = points.times // tier.window_ns
    is_whole = (ids >= 0) & (windows * tier.window_ns >= oldest)
    return _Dirty(windows[is_whole], ids[is_whole])


def _unique(found: list[_Dirty]) -> _Dirty:
    if not found:
        return _Dirty(np.zeros(0, np.int64), np.zeros(0, np.int64))
    windows = np.concatenate([one.windows for one in found])
    ids = np.concatenate([one.ids for one in found])
    order = np.lexsort((ids, windows))
    windows, ids = windows[order], ids[order]
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = (windows[1:] != windows[:-1]) | (ids[1:] != ids[:-1])
    return _Dirty(windows[is_first], ids[is_first])


def _downsampled(
    state: SeriesState, tier: Tier, dirty: _Dirty, target: TopicLog
) -> Iterator[bytes]:
    """Compute the points of these windows, as records."""
    how = check_aggregate(tier.aggregate)
    with state.lock:
        fields = {name: newest.type for name, newest in state.registry.fields.items()}
        registry = state.registry
        keys = list(registry.keys)
    own = np.arange(len(keys))
    gaps = np.flatnonzero(np.diff(dirty.windows) > _NEAR) + 1
    columns: dict[str, list[Windows]] = {}
    for windows, ids in zip(np.split(dirty.windows, gaps), np.split(dirty.ids, gaps), strict=True):
        first, end = int(windows[0]) * tier.window_ns, (int(windows[-1]) + 1) * tier.window_ns
        for name, type in fields.items():
            if is_possible(how, type):
                request = Request(first, end, np.unique(ids), name, type, registry)
                for pieces in scan(state, request, tier.window_ns):
                    found = aggregate_pieces(pieces, how, own, own, tier.window_ns)
                    columns.setdefault(name, []).append(found)
    yield from _encode(target, tier, dirty, columns, keys)


def _encode(
    target: TopicLog, tier: Tier, dirty: _Dirty, columns: dict[str, list[Windows]],
    keys: list[bytes | None],
) -> Iterator[bytes]:  # fmt: skip
    """One point for each window that has new points; fields that it has no value of are lacking."""
    # Windows and series as one number each, by which values find their points.
    width = len(keys) + 1
    places = dirty.windows * width + dirty.ids  # rises, as they are ordered
    fields: dict[str, Column] = {}
    for name, found in columns.items():
        there = np.concatenate([one.starts * width + one.groups for one in found])
        values = np.concatenate([one.values for one in found if len(one.groups)] or [np.zeros(0)])
        valid = np.concatenate([one.valid for one in found])
        at = np.searchsorted(places, there)
        is_own = valid & (at < len(places))
        is_own[is_own] = places[at[is_own]] == there[is_own]
        if is_own.any():
            fields[name] = _column(values[is_own], at[is_own], len(places))
    if not fields:
        return
    names = [key or b"" for key in keys]
    points = arrange(names, dirty.ids, dirty.windows * tier.window_ns, fields)
    yield from encode_all(target, points)


def _column(values: npt.NDArray[Any], at: Int64s, count: int) -> Column:
    kinds = {"f": FieldType.FLOAT, "i": FieldType.INT, "b": FieldType.BOOL, "O": FieldType.TEXT}
    type = kinds[values.dtype.kind]
    whole: npt.NDArray[Any] = np.zeros(count, values.dtype)
    if type == FieldType.TEXT:
        whole[:] = ""
    whole[at] = values
    valid = np.zeros(count, np.bool_)
    valid[at] = True
    return Column(type, whole, None if valid.all() else valid)
