"""A series, as users hold it: points in, ranges, windows and newest points out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stratalog.arguments import check_time
from stratalog.errors import OptionError, WrongTypeError
from stratalog.format.points import Column, FieldType, Int64s, Points, arrange, series_key
from stratalog.format.series import TIERS_MAX, Rules, Tier, encode_rules
from stratalog.handles.documented import Documented
from stratalog.handles.downsampled import Found, compose, find_rule, join, rule_name
from stratalog.handles.downsampled import aggregate as aggregate_windows
from stratalog.handles.series_columns import (
    VALUE,
    as_known,
    check_duration,
    check_fields,
    check_tags,
    field_column,
    series_columns,
    time_column,
    value_type,
)
from stratalog.log.append import append_entries, append_record
from stratalog.log.topic import EPHEMERAL, RANKS, SYNCED, TopicLog
from stratalog.model import Durability, Latest
from stratalog.options import TIME_MAX, TopicOptions, check_durability
from stratalog.state.aggregate import Aggregate, Windows, check_aggregate, check_type
from stratalog.state.series_scan import Request, read_points
from stratalog.state.series_state import SeriesState
from stratalog.state.series_write import (
    encode_all,
    encode_point,
    entries_of,
    entry_of,
    tier_name,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.handles.store import Store

Time = float | datetime
Duration = str | float | timedelta

FILLS = ("none", "null", "previous", "zero")

ROWS_MAX = 10_000_000
"""The most rows of a table that `query` fills."""

# Caches encoded names of series by their tags, for single writes.
_KEYS_MAX = 1 << 14


class Series(Documented):
    """A handle on one series topic: cheap to make, safe to share between threads."""

    def __init__(self, store: Store, log: TopicLog, state: SeriesState) -> None:
        self._store = store
        self._log = log
        self._state = state
        self._keys: dict[tuple[tuple[str, str], ...], bytes] = {}

    def __repr__(self) -> str:
        return f"<stratalog.Series {self.name!r}>"

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._log.name

    @property
    def options(self) -> TopicOptions:
        """The options of its topic."""
        return self._log.options

    @property
    def is_dropped(self) -> bool:
        """Whether it was dropped; another of its name may exist."""
        return self._log.is_dropped

    @property
    def log(self) -> TopicLog:
        """The topic's log, for other handles."""
        return self._log

    @property
    def state(self) -> SeriesState:
        """The projection, for other handles."""
        return self._state

    def __len__(self) -> int:
        """Count the sets of tags that have points."""
        self._advance()
        return len(self._state.registry)

    def __bool__(self) -> bool:
        return True  # a handle, even on an empty series

    def fields(self) -> dict[str, str]:
        """Return names and types of all fields: float, int, bool or text."""
        self._advance()
        known = self._state.registry.fields
        return {name: newest.type.name.lower() for name, newest in known.items()}

    # --- write ---------------------------------------------------------------------------

    def write(
        self,
        value: Any,
        *,
        tags: Mapping[str, str] | None = None,
        timestamp: Time | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Write one point and return the offset of its record, once its class is satisfied.

        `value` is a number, a bool or text, which becomes the field "value", or a mapping of fields
        to values. Without a timestamp the point has the time of the call.
        """
        data = self.encode_one(value, tags, timestamp)
        rank = self._rank(durability)
        return append_record(self._log, data, len(data), rank)

    def encode_one(
        self, value: Any, tags: Mapping[str, str] | None, timestamp: Time | None
    ) -> bytes:
        """Check, admit and encode one point as the value of a record."""
        self._store.check_writable()
        key = self._key(tags)
        time = (
            self._store.clock.time_ns() if timestamp is None else check_time("timestamp", timestamp)
        )
        fields: dict[str, tuple[FieldType, Any]] = {}
        for name, item in check_fields(value).items():
            type = value_type(name, item)
            if type == FieldType.INT and self._state.field_type(name) == FieldType.FLOAT:
                type, item = FieldType.FLOAT, float(item)
            fields[name] = type, item
        data = encode_point(key, time, fields)
        self._log.check_dropped()
        if len(data) > self._log.record_bytes_max:
            encode_all(self._log, _one(key, time, fields))  # raises, and names what is too large
        self._state.admit([key], {name: type for name, (type, _) in fields.items()})
        return data

    def _key(self, tags: Mapping[str, str] | None) -> bytes:
        if not tags:
            return series_key(check_tags(tags))
        try:
            pairs = tuple(tags.items())
            key = self._keys.get(pairs)
        except (AttributeError, TypeError):
            return series_key(check_tags(tags))
        if key is None:
            key = series_key(check_tags(tags))
            if len(self._keys) >= _KEYS_MAX:
                self._keys.clear()
            self._keys[pairs] = key
        return key

    def write_many(
        self,
        times: Any,
        fields: Mapping[str, Any],
        *,
        tags: Mapping[str, Any] | None = None,
        durability: Durability | str | None = None,
    ) -> tuple[int, int]:
        """Write points by column; returns the first and the last offset of their records.

        Columns are lists, NumPy or Arrow arrays; a tag is one value or a column. Up to
        `batch_bytes_max`, 32 MiB, are atomic; more is written in several parts, all of which share
        one sync.
        """
        points = self.arrange(times, fields, tags)
        rank = self._rank(durability)
        return append_entries(self._log, entries_of(self._log, encode_all(self._log, points)), rank)

    def arrange(
        self, times: Any, fields: Mapping[str, Any], tags: Mapping[str, Any] | None
    ) -> Points:
        """Check and admit points by column, and sort them into the order of records."""
        self._store.check_writable()
        if not isinstance(fields, Mapping):
            raise WrongTypeError(
                f"fields are a mapping of names to columns, not {type(fields).__name__}"
            )
        stamps = time_column(times)
        if not len(stamps):
            raise OptionError("write_many needs at least one point.")
        columns = {
            name: as_known(field_column(name, given, len(stamps)), self._state.field_type(name))
            for name, given in check_fields(fields).items()
        }
        keys, codes = series_columns(tags, len(stamps))
        points = arrange(keys, codes, stamps, columns)
        self._log.check_dropped()
        self._state.admit(points.series, {name: c.type for name, c in columns.items()})
        return points

    def _rank(self, durability: Durability | str | None) -> int:
        if durability is None:
            return self._log.rank
        rank = RANKS[check_durability(durability)]
        if rank == EPHEMERAL:
            raise OptionError(
                f"durability={durability!r} is not possible for a series: its points are records "
                "of the log"
            )
        return rank

    # --- rules ---------------------------------------------------------------------------

    def retention(
        self,
        raw: Duration | None = None,
        downsample: Sequence[tuple[Duration, str, Duration | None]] = (),
    ) -> None:
        """Set how long points are kept, and what is kept in their place; durable at once.

        `raw` is the age at which points are removed; None is never. Each rule of `downsample` is a
        window, an aggregate, and how long its values are kept (None is for ever): `("1m", "avg",
        "30d")`. These rules replace the previous ones. Upkeep applies them in the background.
        """
        self._store.check_writable()
        self._advance()
        self._state.check_source()
        tiers = [_check_tier(rule) for rule in _listed(downsample)]
        if len(tiers) > TIERS_MAX:
            raise OptionError(f"{len(tiers)} rules are too many: {TIERS_MAX} are possible")
        names = [tier_name(self.name, tier) for tier in tiers]
        if len(set(names)) < len(names):
            raise OptionError("Two rules have one window and one aggregate: leave one out.")
        raw_ns = 0 if raw is None else check_duration("raw", raw)
        for tier in tiers:
            if raw_ns and tier.window_ns > raw_ns:
                raise OptionError(
                    f"A window of {tier.window_ns} ns is longer than points are kept, {raw_ns} ns: "
                    "it could never be computed."
                )
        for name, tier in zip(names, tiers, strict=True):
            self._store.make_tier(self._log, name, tier)
        rules = Rules(raw_ns, tiers, self._state.rules.evicted_before)
        append_entries(self._log, [entry_of(self._log, [encode_rules(rules)])], SYNCED)

    def downsampled(self, window: Duration, aggregate: str = "avg") -> Series:
        """Get the series that a rule writes: to be read and queried, not written."""
        self._advance()
        tier = Tier(check_duration("window", window), _aggregate_name(aggregate), 0)
        return self._store.find_tier(self._log, tier_name(self.name, tier))

    @property
    def rules(self) -> Rules:
        """Return the rules that `retention` set last, in nanoseconds."""
        self._advance()
        return self._state.rules

    # --- read ----------------------------------------------------------------------------

    def read(
        self,
        start: Time | None = None,
        end: Time | None = None,
        *,
        tags: Mapping[str, str] | None = None,
        field: str | None = None,
    ) -> tuple[Int64s, npt.NDArray[Any]]:
        """Return timestamps (int64, nanoseconds) and values of points in [`start`, `end`).

        They come from all series with these tags, ordered by time. `field` may be left out if there
        is only one, or one called "value".
        """
        request = self._request(start, end, tags, field)
        return read_points(self._state, request)

    def query(
        self,
        start: Time | None = None,
        end: Time | None = None,
        *,
        window: Duration | None = None,
        aggregate: str = "avg",
        by: Sequence[str] = (),
        tags: Mapping[str, str] | None = None,
        field: str | None = None,
        fill: str = "none",
        percentile: float | None = None,
    ) -> pa.Table:
        """Compute one value for each window and group, as an Arrow table.

        Its columns are those of `by`, then `window_start` and `value`. Windows begin at multiples
        of their length since 1970; without `window` there is a single one. `fill` sets what empty
        windows between the first and the last of the range get: no row, a null, the previous
        value, or zero.
        """
        how = check_aggregate(aggregate, percentile)
        width = 0 if window is None else check_duration("window", window)
        names = _check_by(by)
        if fill not in FILLS:
            raise OptionError(f"fill={fill!r} is not known: use one of {', '.join(FILLS)}")
        request = self._request(start, end, tags, field)
        check_type(how, request.field, request.type)
        first = 0 if start is None else check_time("start", start)
        older = self._older(request, first, how, width, names, tags) if width else None
        if older is None:
            found = aggregate_windows(self._state, request, how, width, names)
            return _table(found.windows, names, found.columns, request, width, fill)
        # Windows that are partly gone are among the older ones.
        rest = request._replace(start=min(-(-request.start // width) * width, request.end))
        found = join(older, aggregate_windows(self._state, rest, how, width, names))
        request = request._replace(start=first)
        return _table(found.windows, names, found.columns, request, width, fill)

    def _older(
        self, request: Request, first: int, how: Aggregate, width: int, by: list[str], tags: Any
    ) -> Found | None:
        """Compute windows whose points are gone from those that a rule keeps; None for none."""
        if first >= request.start:
            return None
        tier = find_rule(self._state.rules, how, width)
        if tier is None:
            return None
        kept = self._store.find_tier(self._log, tier_name(self.name, tier))
        if request.field not in kept.fields():
            return None
        end = min(request.end, -(-request.start // width) * width)
        return compose(kept.state, kept.request(first, end, tags, request.field), how, width, by)

    def latest(self, tags: Mapping[str, str] | None = None) -> list[Latest]:
        """Return the newest point of each series with these tags, ordered by name."""
        state = self._state
        self._advance()
        with state.lock:
            return self._latest(check_tags(tags), self._horizon())

    def _latest(self, tags: dict[str, str], horizon: int) -> list[Latest]:
        registry = self._state.registry
        found = []
        for id in registry.find(tags).tolist():
            time, fields = registry.newest(id)
            if time >= horizon:
                found.append(Latest(registry.tags_of(id), time, fields))
        return found

    def _request(
        self, start: Time | None, end: Time | None, tags: Any, field: str | None
    ) -> Request:
        first = 0 if start is None else check_time("start", start)
        last = TIME_MAX + 1 if end is None else check_time("end", end)
        if last < first:
            raise OptionError(f"end={end!r} is before start={start!r}")
        return self.request(first, last, tags, field)

    def request(self, first: int, last: int, tags: Any, field: str | None) -> Request:
        """Ask for points between two times in nanoseconds, as far as they are there."""
        wanted = check_tags(tags)
        self._advance()
        with self._state.lock:
            registry = self._state.registry
            name = self._field(field)
            newest = registry.fields.get(name)
            kind = FieldType.FLOAT if newest is None else newest.type
            start = max(first, self._horizon())
            return Request(start, last, registry.find(wanted), name, kind, registry)

    def _field(self, field: str | None) -> str:
        known = self._state.registry.fields
        if field is not None:
            if known and field not in known:
                raise OptionError(
                    f"Series {self.name!r} has no field {field!r}. It has {', '.join(known)}."
                )
            return field
        if VALUE in known or not known:
            return VALUE
        if len(known) > 1:
            raise OptionError(
                f"Series {self.name!r} has the fields {', '.join(known)}. Say which with field=."
            )
        return next(iter(known))

    def _horizon(self) -> int:
        """Return the time before which points are no longer kept."""
        rules: Rules = self._state.rules
        kept = self._store.clock.time_ns() - rules.raw_ns if rules.raw_ns else 0
        return max(kept, rules.evicted_before)

    def _advance(self) -> None:
        """Apply everything that was acknowledged before this call."""
        self._store.make_readable(self._log)
        state = self._state
        if state.applied != self._log.committed or not state.is_ready:
            with state.lock:
                state.advance()


def _one(key: bytes, time: int, fields: Mapping[str, tuple[FieldType, Any]]) -> Points:
    columns = {
        name: Column(type, np.array([value], np.object_ if type == FieldType.TEXT else None))
        for name, (type, value) in fields.items()
    }
    return arrange([key], None, np.array([time], np.int64), columns)


def _listed(downsample: Any) -> list[Any]:
    if isinstance(downsample, str) or not isinstance(downsample, Sequence):
        raise WrongTypeError(f"downsample={downsample!r} must be a list of rules")
    return list(downsample)


def _check_tier(rule: Any) -> Tier:
    if isinstance(rule, str) or not isinstance(rule, Sequence) or len(rule) != 3:
        raise WrongTypeError(
            f"A rule is (window, aggregate, keep), such as ('1m', 'avg', '30d'): {rule!r}"
        )
    window, aggregate, keep = rule
    keep_ns = 0 if keep is None else check_duration("keep", keep)
    return Tier(check_duration("window", window), _aggregate_name(aggregate), keep_ns)


def _aggregate_name(aggregate: Any) -> str:
    """Normalise the name of an aggregate: percentiles become p95 and so on."""
    return rule_name(check_aggregate(aggregate))


def _check_by(by: Any) -> list[str]:
    if isinstance(by, str) or not isinstance(by, Sequence):
        raise WrongTypeError(f"by={by!r} must be a list of tags")
    names = list(by)
    if not all(isinstance(name, str) and name for name in names):
        raise WrongTypeError(f"by={by!r} must be a list of tags")
    if len(set(names)) < len(names) or {"window_start", "value"} & set(names):
        raise OptionError(f"by={names!r}: columns of the result need names of their own")
    return names


def _table(
    found: list[Windows], names: list[str], columns: list[list[str | None]], request: Request,
    width: int, fill: str,
) -> pa.Table:  # fmt: skip
    import pyarrow as pa

    groups = np.concatenate([one.groups for one in found]) if found else np.zeros(0, np.int64)
    windows = np.concatenate([one.starts for one in found]) if found else np.zeros(0, np.int64)
    filled = [one for one in found if len(one.groups)]
    valid = np.concatenate([one.valid for one in filled]) if filled else np.zeros(0, np.bool_)
    kind: Any = pa.float64() if request.type != FieldType.TEXT else pa.string()
    values: npt.NDArray[Any] = np.zeros(0)
    if filled:
        values = np.concatenate([one.values for one in filled])
        kind = pa.string() if values.dtype == np.object_ else pa.from_numpy_dtype(values.dtype)
    order = np.lexsort((windows, groups))
    groups, windows, values, valid = groups[order], windows[order], values[order], valid[order]
    if fill != "none" and width and len(groups):
        groups, windows, values, valid = _filled(
            groups, windows, values, valid, request, width, fill
        )
    starts = windows * width if width else np.full(len(windows), request.start, np.int64)
    table = {
        name: pa.array(column, pa.string()).take(pa.array(groups))
        for name, column in zip(names, columns, strict=True)
    }
    table["window_start"] = pa.array(starts, pa.int64()).cast(pa.timestamp("ns", "UTC"))
    mask = None if valid.all() else ~valid
    table["value"] = pa.array(values, kind, mask=mask)
    return pa.table(table)


def _filled(
    groups: Int64s, windows: Int64s, values: npt.NDArray[Any], valid: npt.NDArray[np.bool_],
    request: Request, width: int, fill: str,
) -> tuple[Int64s, Int64s, npt.NDArray[Any], npt.NDArray[np.bool_]]:  # fmt: skip
    """Add every empty window of the range to every group; the range defaults to all points."""
    first = max(request.start // width, 0) if request.start else int(windows.min())
    last = int(windows.max()) if request.end > TIME_MAX else -(-request.end // width) - 1
    count = last - first + 1
    present, places = np.unique(groups, return_inverse=True)
    if count * len(present) > ROWS_MAX:
        raise OptionError(
            f"The result would have {count * len(present)} rows, and {ROWS_MAX} are possible. Use "
            "larger windows, a shorter range, or fill='none'."
        )
    at = places * count + (windows - first)
    size = count * len(present)
    is_there = np.zeros(size, np.bool_)
    whole: npt.NDArray[Any] = np.zeros(size, values.dtype)
    if values.dtype == np.object_:
        whole[:] = ""
    whole[at], is_there[at] = values, valid
    if fill == "zero":
        if values.dtype == np.object_:
            raise OptionError("fill='zero' is not possible for text: use null or previous")
        is_there[:] = True
    elif fill == "previous":
        known = np.where(is_there, np.arange(size), -1).reshape(len(present), count)
        source = np.maximum.accumulate(known, axis=1).ravel()
        is_there = source >= 0
        whole = np.where(is_there, whole[np.maximum(source, 0)], whole)
    numbers = np.tile(np.arange(first, last + 1), len(present))
    return np.repeat(present, count), numbers, whole, is_there
