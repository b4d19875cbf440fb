"""The part of a store that makes and finds tables, and rebuilds projections."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast, overload

from stratalog.errors import OptionError, WrongKindError
from stratalog.format.names import check_topic_name
from stratalog.format.values import Encoding
from stratalog.handles.kinds import TABLE, check_is
from stratalog.handles.table import Table
from stratalog.handles.typed import codec_of, is_raw
from stratalog.handles.typed_table import TypedTable
from stratalog.log.topic import TopicLog
from stratalog.model import Durability, V
from stratalog.options import TopicOptions, check_durability, check_known
from stratalog.state.table_projection import TableProjection

if TYPE_CHECKING:
    from stratalog.handles.store import Store

VERSIONS = 8
"""Default number of versions of a key that a table keeps."""

OPTIONS = (
    "compression", "segment_bytes", "segment_records", "segment_seconds", "tombstone_seconds",
)  # fmt: skip
"""Topic options that a table accepts."""
_REFUSED = (
    "compact", "retention", "retention_bytes", "retention_records", "retention_seconds",
    "retention_segments_min", "ttl",
)  # fmt: skip


class TableStore:
    """The methods of a store for tables."""

    _tables: dict[str, Table]

    @overload
    def table(
        self,
        name: str,
        *,
        type: None = None,
        encoding: None = None,
        versions: int | None = None,
        durability: Durability | str | None = None,
        **options: Any,
    ) -> Table: ...

    @overload
    def table(
        self,
        name: str,
        *,
        type: builtins.type[V],
        encoding: Encoding | None = None,
        versions: int | None = None,
        durability: Durability | str | None = None,
        **options: Any,
    ) -> Table[V]: ...

    def table(
        self,
        name: str,
        *,
        type: Any = None,
        encoding: Encoding | None = None,
        versions: int | None = None,
        durability: Durability | str | None = None,
        **options: Any,
    ) -> Table[Any]:
        """Get the table of that name; a writer makes it on first use.

        `versions` is how many versions of a key are kept, 8 by default. Other options are
        `compression`, `tombstone_seconds` and the `segment_...` of `TopicOptions`. They never
        change: giving other options for an existing table is an error. `type` and `encoding` are
        those of its values, as in `topic`.
        """
        store = self._store
        if not is_raw(type, encoding):
            plain = self.table(name, versions=versions, durability=durability, **options)
            codec = codec_of(plain._log, type, encoding, name)
            topic = store.typed_handle(plain._log, codec, encoding)
            return TypedTable(plain, topic, codec)
        handle = self._tables.get(name) if isinstance(name, str) else None
        is_plain = versions is None and durability is None and not options
        if handle is not None and is_plain and not store.is_closed and not handle.is_dropped:
            return handle
        wanted = table_options(store, versions, durability, options)
        log = store.log_of_kind(name, TABLE, wanted)
        given = {"versions": versions, "durability": durability} | options
        _check_same(log, wanted, [one for one, value in given.items() if value is not None])
        return self._handle(log)

    def _handle(self, log: TopicLog) -> Table:
        store = self._store
        handle = self._tables.get(log.name)
        if handle is None or handle.is_dropped:
            handle = self._tables[log.name] = Table(store, log, store.handle(log.name, log))
            if not store.is_read_only:
                projection = log.projection
                assert isinstance(projection, TableProjection)
                projection.attach(store.budget)
                store.each_look(handle.expire)
        return handle

    def create_adopted(self, name: str, kind: str, plain: TopicOptions) -> TopicLog:
        """Find the topic or table that records are adopted into, created if it is not there."""
        store = self._store
        options = table_options(store) if kind == TABLE else plain
        return store.create(name, options, may_exist=True, kind=kind)

    def tables(self) -> list[str]:
        """List the names of all tables, sorted."""
        return self._store.names_of_kind(TABLE)

    def drop_table(self, name: str) -> None:
        """Remove a table with all its versions, permanently."""
        store = self._store
        store.check_writable()
        name = check_topic_name(name)
        check_is(store.log_named(name), TABLE)
        store.drop_topic(name)
        self._tables.pop(name, None)

    def rebuild(self, name: str) -> None:
        """Discard the state of a table or a series, and compute it from its records again.

        The store keeps running; calls that need the state wait.
        """
        store = self._store
        log = store.log_named(check_topic_name(name))
        if log.projection is None:
            raise WrongKindError(
                f"{name!r} is a {log.kind}, which has no state of its own: tables and series can "
                "be rebuilt."
            )
        store.make_readable(log)
        log.projection.rebuild()

    @property
    def _store(self) -> Store:
        return cast("Store", self)  # Store is the only subclass


def table_options(
    store: Store,
    versions: int | None = None,
    durability: Durability | str | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> TopicOptions:
    """Build the options of a table's topic; raises for options that tables do not have."""
    for option in options:
        if option in _REFUSED:
            raise OptionError(
                f"{option} is not for tables: a table keeps the newest versions of every key, and "
                "nothing else decides what goes. Give versions, and a ttl with a put."
            )
    check_known("table option", options, OPTIONS)
    wanted = durability or (None if store.options.durability != "ephemeral" else "memory")
    if wanted is not None and check_durability(wanted) == Durability.EPHEMERAL:
        raise OptionError(
            "durability='ephemeral' is not possible for a table: its state is computed from "
            "records that last. Use 'memory'."
        )
    kept = VERSIONS if versions is None else versions
    given = {"durability": wanted, "versions": kept, "compact": True, **options}
    return TopicOptions.build(given)


def _check_same(log: TopicLog, wanted: TopicOptions, given: list[str]) -> None:
    """Raise if a given option differs from the table's."""
    for option in given:
        has, value = getattr(log.options, option), getattr(wanted, option)
        if has != value:
            raise OptionError(
                f"Table {log.name!r} was made with {option}={has!s}, not {value!s}, and keeps it. "
                "Leave the option out, or drop the table first."
            )
