"""The part of a store that makes and finds series, and reads line protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from stratalog.consume.atomic_frame import AtomicFrame, Records
from stratalog.errors import BadLineError, OptionError, StratalogError, UnknownTopicError
from stratalog.format.line import Line
from stratalog.format.lines import Rows, parse_lines
from stratalog.format.names import check_topic_name
from stratalog.format.points import Points, arrange
from stratalog.format.series import Cursor, Rules, Tier, encode_cursor, encode_rules
from stratalog.handles.kinds import SERIES, check_is
from stratalog.handles.series import Series
from stratalog.handles.series_columns import as_known
from stratalog.log.append import append_entries
from stratalog.log.topic import EPHEMERAL, RANKS, SYNCED, TopicLog
from stratalog.model import Durability
from stratalog.options import StoreOptions, TopicOptions, check_durability
from stratalog.state.catalog import Catalog
from stratalog.state.series_state import SeriesState
from stratalog.state.series_write import encode_all, entry_of, tier_name

if TYPE_CHECKING:
    from stratalog.handles.store import Store

# Points are retained by their own times: see `Series.retention`.
_REFUSED = (
    "ttl", "retention", "retention_seconds", "retention_bytes", "retention_records",
    "retention_segments_min", "compact", "tombstone_seconds",
)  # fmt: skip


class SeriesStore:
    """The methods of a store for series."""

    options: StoreOptions
    is_read_only: bool
    _catalog: Catalog

    def series(self, name: str, **options: Any) -> Series:
        """Get the series of that name; a writer creates it on first use.

        Options are those of its topic: `durability`, `compression`, and the sizes of segments. They
        never change.
        """
        for option in _REFUSED:
            if option in options:
                raise OptionError(
                    f"{option}= is not possible for a series. Use series.retention(raw='7d')."
                )
        kept = TopicOptions.build(options)
        if kept.durability == Durability.EPHEMERAL:
            raise _ephemeral(name)
        log = self._store.log_of_kind(name, SERIES, self._series_options(kept))
        for option, value in options.items():
            if getattr(log.options, option) != getattr(kept, option):
                raise OptionError(
                    f"Series {name!r} has {option}={getattr(log.options, option)!r}, and "
                    f"{value!r} was given. Options of a series are for good."
                )
        return self.open_series(log)

    def _series_options(self, options: TopicOptions) -> TopicOptions:
        if options.durability is None and self.options.durability == Durability.EPHEMERAL:
            given = options.to_dict() | {"durability": Durability.MEMORY}
            return TopicOptions.build(given)  # points are always written to the log
        return options

    def open_series(self, log: TopicLog) -> Series:
        """Open a handle on a topic of kind series."""
        state = log.projection
        assert isinstance(state, SeriesState)
        if not self.is_read_only:
            state.attach(self._store.budget, self.options.series_max)
        return Series(self._store, log, state)

    def series_names(self) -> list[str]:
        """List the names of all series, sorted."""
        return self._store.names_of_kind(SERIES)

    def drop_series(self, name: str) -> None:
        """Remove a series with all its points and those it was downsampled to, permanently."""
        self._store.check_writable()
        name = check_topic_name(name)
        log = self._catalog.find(name)
        check_is(log, SERIES)
        self._check_no_rule_fills(log)
        rules = self.open_series(log).rules
        self._store.drop_topic(name)
        for tier in rules.tiers:
            if self._catalog.get(tier_name(name, tier)) is not None:
                self._store.drop_topic(tier_name(name, tier))

    # --- downsampling --------------------------------------------------------------------

    def _check_no_rule_fills(self, log: TopicLog) -> None:
        """Raise if a series is what another one is downsampled into."""
        state = log.projection
        if not isinstance(state, SeriesState):
            return
        with state.lock:
            state.advance()
            cursor = state.cursor
        source = None if cursor is None else self._store.log_by_id(cursor.source_id)
        if source is None:
            return
        if any(
            tier_name(source.name, one) == log.name for one in self.open_series(source).rules.tiers
        ):
            raise OptionError(
                f"Series {source.name!r} is downsampled into {log.name!r}. Call retention() of "
                f"{source.name!r} without that rule first, or drop {source.name!r}."
            )

    def make_tier(self, source: TopicLog, name: str, tier: Tier) -> None:
        """Create the series that a rule downsamples into, if there is none, with its retention."""
        options = TopicOptions.build({"durability": source.options.durability or None})
        log = self._store.log_of_kind(name, SERIES, self._series_options(options))
        state = self.open_series(log).state
        with state.lock:
            state.advance()
            cursor, rules, is_used = state.cursor, state.rules, bool(len(state.blocks))
        if cursor is None and is_used:
            raise OptionError(
                f"Series {name!r} has points of its own, and cannot take those that "
                f"{source.name!r} is downsampled to. Drop it, or use another window."
            )
        values = []
        if cursor is None or cursor.source_id != source.id:
            values.append(encode_cursor(Cursor(source.id, 0)))
        if rules.raw_ns != tier.keep_ns:
            values.append(encode_rules(Rules(tier.keep_ns, [], rules.evicted_before)))
        if values:
            append_entries(log, [entry_of(log, values)], SYNCED)
        with state.lock:
            state.advance()  # from now on other writes are refused

    def find_tier(self, source: TopicLog, name: str) -> Series:
        """Find the series that a rule downsamples into."""
        log = self._catalog.get(name)
        if log is None:
            raise UnknownTopicError(
                f"Series {source.name!r} is not downsampled into {name!r}. Call its retention() "
                "with a rule of that window and aggregate."
            )
        check_is(log, SERIES)
        return self.open_series(log)

    @property
    def _store(self) -> Store:
        return cast("Store", self)  # Store is the only subclass

    # --- line protocol -------------------------------------------------------------------

    def write_lines(
        self,
        text: str | bytes,
        precision: str = "ns",
        *,
        durability: Durability | str | None = None,
    ) -> int:
        """Write points given as line protocol, all of them or none; returns how many.

        A line's measurement is the name of its series, which is created if necessary. Times are in
        `precision`: ns, us, ms, s, m or h; a line without one gets the time of the call. A wrong
        line raises `BadLineError` with its `line` and `column`.
        """
        store = self._store
        store.check_writable()
        rank = None if durability is None else RANKS[check_durability(durability)]
        if rank == EPHEMERAL:
            raise OptionError("durability='ephemeral' is not possible for points: they are written")
        measured = parse_lines(text, precision, store.clock.time_ns())
        if not measured:
            return 0
        # Everything is checked before the first series is created.
        for name, rows in measured.items():
            self._check_lines(text, name, rows)
        records, count = [], 0
        for name, rows in measured.items():
            series = self.series(name)
            points = _points(series, rows)
            count += len(rows.times)
            types = {field: column.type for field, column in points.fields.items()}
            series.state.admit(points.series, types)
            values = encode_all(series.log, points)
            records.append(Records(series.log, [entry_of(series.log, values)], None))
        atomic = AtomicFrame(self._store.cross_shard, records, [])
        atomic.commit(atomic.rank if rank is None else rank)
        return count

    def _check_lines(self, text: str | bytes, name: str, rows: Rows) -> None:
        """Raise if lines cannot be points of their series, and name the line."""
        try:
            check_topic_name(name)
            log = self._catalog.get(name)
            if log is None:
                return
            check_is(log, SERIES)
        except StratalogError as error:
            line = rows.line(0)
            raise BadLineError(
                f"Line {line}, column 1: {error} Nothing was written.", line, 1
            ) from error
        state = self.open_series(log).state
        if not state.is_ready:
            with state.lock:
                state.advance()
        field = state.conflict({name: column.type for name, column in rows.fields.items()})
        if field is not None:
            column = rows.fields[field]
            place = 0 if column.valid is None else int(column.valid.argmax())
            known = state.field_type(field)
            assert known is not None
            _refuse(text, rows.line(place), field, column.type.name, known.name, name)


def _points(series: Series, rows: Rows) -> Points:
    fields = {
        name: as_known(column, series.state.field_type(name))
        for name, column in rows.fields.items()
    }
    return arrange(rows.series, rows.codes, rows.times, fields)


def _refuse(
    text: str | bytes, number: int, field: str, given: str, known: str, series: str
) -> None:
    """Raise the error about a field's type, at the place of its value."""
    data = text.encode() if isinstance(text, str) else text
    start = 0
    for _ in range(number - 1):
        start = data.index(b"\n", start) + 1
    line = Line(data, start, number)
    line.skip_spaces()
    line.head()
    line.skip_spaces()
    _, _, position = line.fields()[field]
    line.fail(
        f"the field {field!r} is {given.lower()} here, and {known.lower()} in series {series!r}",
        position,
    )


def _ephemeral(name: str) -> OptionError:
    return OptionError(
        f"durability='ephemeral' is not possible for series {name!r}: its points are records of "
        "the log. Use 'memory' if they may be lost."
    )
