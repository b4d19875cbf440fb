"""A table whose values have a type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, cast

from stratalog.errors import WrongKindError
from stratalog.format.values import Codec
from stratalog.handles.table import _MISSING, At, Table
from stratalog.handles.table_change import Buffer, Key
from stratalog.handles.table_watch import Start
from stratalog.handles.topic import Topic
from stratalog.model import CaughtUp, Change, Durability, Entry, V


class TypedTable(Table[V]):
    """A table whose values are encoded and checked on the way in, and read on the way out.

    Bytes are put and got by the handle without a type. A version that is not of the type raises
    `UndecodableValueError` where it is read.
    """

    def __init__(self, plain: Table, topic: Topic[Any], codec: Codec[V]) -> None:
        super().__init__(plain._store, plain._log, topic)
        self._plain = plain
        self._codec = codec

    def __repr__(self) -> str:
        return f"<stratalog.Table {self.name!r} of {self._codec.name}>"

    # --- in -------------------------------------------------------------------------------

    def put(
        self,
        key: Key,
        value: V | Buffer,
        ttl: float | timedelta | None = None,
        if_version: int | None = None,
        if_absent: bool = False,
        durability: Durability | str | None = None,
    ) -> int:
        """Put a value: see `Table.put`. Raises `InvalidValueError` if it does not fit the type."""
        data = self._codec.encode(value)
        return self._plain.put(key, data, ttl, if_version, if_absent, durability)

    def encode_value(self, value: V | Buffer) -> bytes:
        """Encode a value; raises `InvalidValueError` if it does not fit the type."""
        return self._codec.encode(value)

    def put_many(
        self,
        entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        *,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> tuple[int, int]:
        """Put values as one atomic batch; returns the first and the last version."""
        return self._plain.put_many(self._encoded(entries), ttl=ttl, durability=durability)

    def _encoded(
        self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]
    ) -> list[tuple[Any, bytes]]:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        encode = self._codec.encode
        return [(key, encode(value)) for key, value in pairs]

    def add(
        self,
        key: Key,
        amount: int = 1,
        *,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Add to a counter: see `Table.add`. The type must be `int`."""
        self.check_counts()
        return self._plain.add(key, amount, ttl=ttl, durability=durability)

    def check_counts(self) -> None:
        """Raise unless values are counters; they are decimal digits, as an int is in JSON."""
        if self._codec.type is not int or self._codec.encoding != "json":
            raise WrongKindError(
                f"Table {self.name!r} holds values of type {self._codec.name} as "
                f"{self._codec.encoding}. Counters are for tables of bytes, or of int as json."
            )

    # --- out ------------------------------------------------------------------------------

    def get(self, key: Key, default: Any = None, *, at: At | None = None) -> Any:
        """Get the value of a key, or the default if it is not there: see `Table.get`."""
        raw = self._plain.get(key, _MISSING, at=at)
        if raw is _MISSING:
            return default
        try:
            return self._codec.decode(raw)  # type: ignore[arg-type]  # bytes
        except Exception:
            entry = self.entry(key, at=at)  # says what is wrong, and with which version
            return default if entry is None else entry.value

    def _read(self, raw: bytes | None, version: int) -> V:
        return cast("V", self._codec.value(raw, version))

    def _typed(self, found: Entry) -> Entry[V]:
        if found.value is None:
            return cast("Entry[V]", found)  # deleted or expired
        return Entry(self._read(*found[:2]), *found[1:])

    def entry(self, key: Key, *, at: At | None = None) -> Entry[V] | None:
        """Get the value of a key with its version, its time and when it expires; or None."""
        found = self._plain.entry(key, at=at)
        return None if found is None else self._typed(found)

    def history(self, key: Key) -> list[Entry[V]]:
        """List the versions of a key that are kept, the oldest first; a deletion has no value."""
        return [self._typed(found) for found in self._plain.history(key)]

    def scan(self, prefix: Key = "", limit: int | None = None) -> Iterator[tuple[Key, V]]:
        """Give keys that begin with a prefix, with their values: see `Table.scan`."""
        return self._scanned(self._plain.scan(prefix, limit))

    def _scanned(self, found: Iterator[tuple[Key, bytes]]) -> Iterator[tuple[Key, V]]:
        decode = self._codec.decode
        for key, raw in found:
            try:
                value = decode(raw)
            except Exception:
                entry = self.entry(key)
                if entry is None or entry.value is None:
                    continue  # deleted since
                value = entry.value
            yield key, value

    def watch(
        self, prefix: Key = "", start: Start = None, timeout: float | None = None
    ) -> Iterator[Change[V] | CaughtUp]:
        """Give changes of keys with a prefix as they come: see `Table.watch`."""
        return self.typed_changes(self._plain.watch(prefix, start, timeout))

    def typed_changes(self, found: Iterator[Change | CaughtUp]) -> Iterator[Change[V] | CaughtUp]:
        """Give changes with values of the type; one that does not fit raises."""
        for change in found:
            if isinstance(change, CaughtUp):
                yield change
            elif change.value is None:
                yield cast("Change[V]", change)
            else:
                value = self._read(change.value, change.version)
                yield Change(change.key, value, change.version, change.timestamp, change.operation)
