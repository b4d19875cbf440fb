"""A table in an atomic batch.

Conditions are checked, and counters computed, when the batch is committed: against everything that
has entered the log by then, and against earlier changes of the batch. The table's `writing` lock is
held meanwhile. Adopted records, which enter without that lock, and failed commits are noticed with
the shards' locks held: then everything is checked again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic

from stratalog.consume.atomic_frame import Records
from stratalog.errors import StateError, TooLargeError, WrongKindError
from stratalog.format.frame import HEADER_BYTES
from stratalog.handles.table_change import (
    Change,
    Condition,
    Key,
    Value,
    check_amount,
    columns_of,
    encode_rows,
    key_of,
    ttl_of,
    value_of,
)
from stratalog.handles.typed_table import TypedTable
from stratalog.model import V
from stratalog.state.table_state import KEY_BYTES, Row, Version

if TYPE_CHECKING:
    from stratalog.handles.batch import Batch
    from stratalog.handles.table import Table

# Bytes of a change in the frame besides key and value: their ends, a time and a mark.
_CHANGE_BYTES = 32


class Written:
    """A change of a table in a batch; its results are known once the batch is committed."""

    __slots__ = ("_count", "_first", "_is_committed", "_total")

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._first: int | None = None
        self._total: int | None = None
        self._is_committed = False

    def __repr__(self) -> str:
        if not self._is_committed:
            return "<stratalog.Written, not committed>"
        return f"<stratalog.Written {self._first}>"

    @property
    def version(self) -> int | None:
        """The version it made, or the first of several; None if there was no key to delete."""
        if not self._is_committed:
            raise StateError(
                "The batch is not committed. Versions and counters are known when its `with` "
                "block is left."
            )
        return self._first

    @property
    def last(self) -> int | None:
        """The last version that a `put_many` made."""
        first = self.version
        return None if first is None else first + self._count - 1

    @property
    def value(self) -> int:
        """The counter after the addition."""
        if self.version is None or self._total is None:
            raise WrongKindError("Only an addition to a counter has a value. Read the key instead.")
        return self._total

    def resolve(self, first: int | None, total: int | None) -> None:
        """Set the results; called by the batch."""
        self._first, self._total, self._is_committed = first, total, True


class BatchTable:
    """A table in a batch; nothing is written before the batch is committed."""

    def __init__(self, batch: Batch, table: Table) -> None:
        self._batch = batch
        self._table = table
        self.log = table.topic.log
        self.projection = table.projection
        self._changes: list[tuple[Change, Condition | None]] = []
        self._handles: list[tuple[Written, int]] = []
        """The handles that were returned, each with the number of its first change."""
        self._size = 0
        self._rows: list[Row | None] = []
        """Rows by change, once they are checked; None for those that change nothing."""
        self._base = 0

    def __bool__(self) -> bool:
        return bool(self._changes)

    @property
    def name(self) -> str:
        """The table's name."""
        return self._table.name

    def put(
        self,
        key: Key,
        value: Value,
        *,
        ttl: float | timedelta | None = None,
        if_version: int | None = None,
        if_absent: bool = False,
    ) -> Written:
        """Put a value when the batch is committed; its version is known then.

        If the condition does not hold then, the whole batch fails with `VersionConflictError`.
        """
        data, flags = key_of(key)
        condition = Condition(self.name, key, if_version, if_absent)
        change = Change(data, value_of(value), flags, ttl_of(ttl))
        return self._add([change], condition)

    def put_many(
        self,
        entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        *,
        ttl: float | timedelta | None = None,
    ) -> Written:
        """Put values when the batch is committed; `version` and `last` are known then."""
        keys, flags, values = columns_of(entries)
        ttl_ns = ttl_of(ttl)
        return self._add(
            [
                Change(key, value, flag, ttl_ns)
                for key, value, flag in zip(keys, values, flags or [0] * len(keys), strict=True)
            ]
        )

    def delete(self, key: Key, *, if_version: int | None = None) -> Written:
        """Delete a key when the batch is committed; does nothing if there is no such key then."""
        data, flags = key_of(key)
        condition = Condition(self.name, key, if_version, False)
        return self._add([Change(data, None, flags, 0)], condition)

    def add(self, key: Key, amount: int = 1, *, ttl: float | timedelta | None = None) -> Written:
        """Add to a counter when the batch is committed; the sum is known then."""
        data, flags = key_of(key)
        return self._add([Change(data, None, flags, ttl_of(ttl), check_amount(amount))])

    def _add(self, changes: list[Change], condition: Condition | None = None) -> Written:
        self._batch.check()
        sizes = [len(change.key) + len(change.value or b"") for change in changes]
        if max(sizes) > self.log.record_bytes_max:
            raise TooLargeError(
                f"A record of {max(sizes)} bytes is too large for table {self.name!r}: at most "
                f"{self.log.record_bytes_max} are possible."
            )
        size = sum(sizes) + _CHANGE_BYTES * len(changes)
        self._batch.add_bytes(size + (0 if self._changes else HEADER_BYTES))
        handle = Written(len(changes))
        self._handles.append((handle, len(self._changes)))
        self._changes += [(change, condition) for change in changes]
        self._size += size
        return handle

    # --- commit -----------------------------------------------------------------------------

    def make_room(self) -> None:
        """Reserve memory for the changes; no lock is held."""
        if not self.projection.is_live:
            self.projection.advance()
        self._table.make_room(self._size + KEY_BYTES * len(self._changes))

    def judge(self, now: int) -> Records | None:
        """Check all conditions, and encode the rows to write; `writing` is held.

        None if there is nothing to write.
        """
        table, projection = self._table, self.projection
        projection.prepare()
        self._base = projection.entered_end
        self._rows = []
        made: dict[bytes, Version | None] = {}
        version = self._base
        for change, condition in self._changes:
            key = change.key
            found = made[key] if key in made else table.living(key, now)
            if condition is not None:
                condition.check(found)
            if not change.apply(found, table.read_version):
                self._rows.append(None)
                continue
            row = (version, key, change.value, 0, change.expires_at(now), change.flags)
            self._rows.append(row)
            made[key] = None if change.is_deletion else Version(version, *row[2:])
            version += 1
        rows = [row for row in self._rows if row is not None]
        if not rows:
            return None
        _, keys, values, _, expiries, flags = map(list, zip(*rows, strict=True))
        entry = encode_rows(self.log, keys, values, flags, expiries)
        return Records(self.log, [entry], None)

    @property
    def is_current(self) -> bool:
        """Return whether nothing has entered or failed since the conditions were checked.

        Exact if the shard's lock is held.
        """
        return self.projection.is_prepared and self.projection.entered_end == self._base

    def note(self, records: Records) -> None:
        """Note the rows, which have entered the log; `writing` is held."""
        rows = [row for row in self._rows if row is not None]
        _, keys, values, _, expiries, flags = zip(*rows, strict=True)
        stamp = records.entries[0].base_timestamp
        self.projection.note(self._base, keys, values, stamp, expiries, flags)

    def resolve(self) -> None:
        """Set the results of the handles: the batch is committed."""
        for handle, index in self._handles:
            change, row = self._changes[index][0], self._rows[index]
            is_counter = row is not None and change.amount is not None
            handle.resolve(
                None if row is None else row[0], int(change.value or b"") if is_counter else None
            )
        self._table.relieve()


class TypedBatchTable(Generic[V]):
    """A table with a type as a batch changes it."""

    def __init__(self, changes: BatchTable, table: TypedTable[V]) -> None:
        self._changes = changes
        self._table = table

    @property
    def name(self) -> str:
        """The table's name."""
        return self._changes.name

    def put(
        self,
        key: Key,
        value: V,
        *,
        ttl: float | timedelta | None = None,
        if_version: int | None = None,
        if_absent: bool = False,
    ) -> Written:
        """Put a value when the batch is committed: see `BatchTable.put`."""
        data = self._table._codec.encode(value)
        return self._changes.put(key, data, ttl=ttl, if_version=if_version, if_absent=if_absent)

    def put_many(
        self,
        entries: Mapping[Any, V] | Iterable[tuple[Any, V]],
        *,
        ttl: float | timedelta | None = None,
    ) -> Written:
        """Put values when the batch is committed; `version` and `last` are known then."""
        return self._changes.put_many(self._table._encoded(entries), ttl=ttl)

    def delete(self, key: Key, *, if_version: int | None = None) -> Written:
        """Delete a key when the batch is committed; nothing happens if it is not there then."""
        return self._changes.delete(key, if_version=if_version)

    def add(self, key: Key, amount: int = 1, *, ttl: float | timedelta | None = None) -> Written:
        """Add to a counter when the batch is committed; the type must be `int`."""
        self._table.check_counts()
        return self._changes.add(key, amount, ttl=ttl)
