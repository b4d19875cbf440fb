"""A table: the newest value of every key, and a few before it.

A handle is a mapping of keys to bytes. It reads committed entries: a reader sees every put that was
acknowledged before its own call, and none that could still fail.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from stratalog.arguments import check_time, check_timeout
from stratalog.errors import OffsetOutOfRangeError, VersionConflictError, VersionGoneError
from stratalog.handles.table_change import Buffer, Key, key_of
from stratalog.handles.table_watch import Start, watch, watch_start
from stratalog.handles.table_write import TableWriting
from stratalog.log.topic import TopicLog
from stratalog.model import CaughtUp, Change, Durability, Entry, V
from stratalog.options import TopicOptions, check_range
from stratalog.segments.read import offset_at
from stratalog.state.table_projection import TableProjection
from stratalog.state.table_state import Gone, Page, Version, text_of, texts_of

if TYPE_CHECKING:
    from stratalog.handles.store import Store
    from stratalog.handles.topic import Topic

At = int | float | datetime

# Keys that a scan reads at a time: the state is locked for half a millisecond meanwhile.
_PAGE_KEYS = 1024

_MISSING = object()
_Default = TypeVar("_Default")


class Table(TableWriting[V], MutableMapping[Key, V]):
    """A handle on one table: cheap to make, safe to share between threads."""

    def __init__(self, store: Store, log: TopicLog, topic: Topic) -> None:
        projection = log.projection
        assert isinstance(projection, TableProjection)
        self._store = store
        self._log = log
        self._topic = topic
        self._projection = projection

    def __repr__(self) -> str:
        return f"<stratalog.Table {self.name!r} next version {self._log.next_offset}>"

    @property
    def name(self) -> str:
        """The name it was created with."""
        return self._log.name

    @property
    def topic(self) -> Topic:
        """The records of the table, to be read as a topic."""
        return self._topic

    @property
    def projection(self) -> TableProjection:
        """Its state, and what has entered the log since."""
        return self._projection

    @property
    def options(self) -> TopicOptions:
        """The options it was created with; `versions` is how many of a key are kept."""
        return self._log.options

    @property
    def durability(self) -> Durability:
        """The class of writes that do not give another."""
        return self._topic.durability

    @property
    def is_dropped(self) -> bool:
        """Whether the table was dropped; another of its name may exist."""
        return self._log.is_dropped

    @property
    def version(self) -> int:
        """The newest version of any key; -1 in a table that was never written to."""
        self.refresh()
        return self._projection.applied - 1

    # --- read ------------------------------------------------------------------------------

    @overload
    def get(self, key: Key, default: None = None, *, at: At | None = None) -> V | None: ...

    @overload
    def get(self, key: Key, default: V | _Default, *, at: At | None = None) -> V | _Default: ...

    def get(self, key: Key, default: Any = None, *, at: At | None = None) -> Any:
        """Get the value of a key, or the default if there is none.

        `at` is a version (an int) or a time (a float or a datetime), and gives the value then.
        Raises `VersionGoneError` if the table no longer has it.
        """
        projection, log = self._projection, self._log
        if at is not None:
            found = self._at(key, at)
            return default if found is None else found.value
        if not (
            projection.is_live and log.next_offset == projection.applied == log.committed
            and not self._store.is_read_only
        ):  # fmt: skip
            self.refresh()
        data = key.encode() if type(key) is str and key.isascii() else key_of(key)[0]
        with projection.lock:
            state = projection.current() if projection.is_torn else projection.state
            slot = state.slots.get(data)
            if slot is None:
                return default
            value = state.value_at(slot)
        if value is not None:
            return value
        entry = self.entry(key)
        return default if entry is None else entry.value

    def entry(self, key: Key, *, at: At | None = None) -> Entry[V] | None:
        """Get the value of a key with its version, time and expiry; or None."""
        if at is not None:
            return self._at(key, at)
        data, _ = key_of(key)
        self.refresh()
        while True:
            now = self._now()
            with self._projection.lock:
                found = self._projection.current().get(data, now)
            entry = None if found is None else self._entry(found)
            if found is None or entry is not None:
                return entry
            self.refresh()  # replaced and compacted since

    def history(self, key: Key) -> list[Entry[V]]:
        """List the versions of a key that are kept, oldest first; a deletion has no value."""
        data, _ = key_of(key)
        self.refresh()
        with self._projection.lock:
            found = self._projection.current().history(data)
        entries = (self._entry(one) for one in found)
        return [entry for entry in entries if entry is not None]

    def scan(self, prefix: Key = "", limit: int | None = None) -> Iterator[tuple[Key, V]]:
        """Give keys that begin with a prefix, with their values, in byte order.

        Each thousand keys are read at one moment; keys put or deleted meanwhile may or may not
        show.
        """
        data, _ = key_of(prefix)
        left = 1 << 63 if limit is None else check_range("limit", limit, 0, 1 << 63)
        self.refresh()
        return self._scan(data, left)

    def _scan(self, prefix: bytes, left: int) -> Iterator[tuple[Key, Any]]:
        after: bytes | None = None
        while left > 0:
            page = self._page(prefix, after, min(left, _PAGE_KEYS))
            values: list[Any] = page.values
            if None in values:
                values = [self._value(*one) for one in zip(page.keys, values, strict=True)]
            pairs = zip(texts_of(page.keys, page.flags), values, strict=True)
            if None in values:  # deleted while the others were read from the log
                yield from ((key, value) for key, value in pairs if value is not None)
            else:
                yield from pairs
            left -= len(page.keys)
            after = page.last
            if page.is_last:
                return
            self.refresh()

    def _page(self, prefix: bytes, after: bytes | None, count: int) -> Page:
        now = self._now()
        with self._projection.lock:
            return self._projection.current().page(prefix, after, count, now)

    def _value(self, key: bytes, value: bytes | None) -> Any:
        if value is not None:
            return value
        entry = self.entry(key)
        return None if entry is None else entry.value

    def watch(
        self, prefix: Key = "", start: Start = None, timeout: float | None = None
    ) -> Iterator[Change[V] | CaughtUp]:
        """Give changes of keys with a prefix as they come; ends when none came for `timeout`.

        `start=None` begins now. `"snapshot"` gives every entry first, then one `CaughtUp`, then
        changes. A version gives every change from that version on, inclusive: `change.next` is the
        start for continuing after a change. Raises `VersionGoneError` if compaction has removed
        some of them.
        """
        data, _ = key_of(prefix)
        self.refresh()
        begin = watch_start(self._log, self._projection, start)
        found: Iterator[Any] = watch(
            self._store, self._projection, data, begin, check_timeout(timeout)
        )
        return found

    def typed_changes(self, found: Iterator[Change | CaughtUp]) -> Iterator[Change[V] | CaughtUp]:
        """Give changes with values as this handle has them."""
        return cast("Iterator[Change[V] | CaughtUp]", found)

    def _at(self, key: Key, at: At) -> Entry[V] | None:
        data, _ = key_of(key)
        version = self._version_at(at)
        if version < 0:
            return None  # before the first version
        with self._projection.lock:
            found = self._projection.current().at(data, version)
        if isinstance(found, Gone):
            raise _gone(self.name, key, at, found.horizon)
        if found is None or found.is_deleted:
            return None
        if not isinstance(at, int) and 0 < found.expires_at <= check_time("at", at):
            return None
        entry = self._entry(found)
        if entry is None:
            raise _gone(self.name, key, at, found.version + 1)
        return entry

    def _version_at(self, at: At) -> int:
        """Resolve a version, which must exist, or a time to the newest version then."""
        if isinstance(at, int) and not isinstance(at, bool):
            version = check_range("at", at, 0, 1 << 63)
            self.refresh()
            if version >= self._log.committed:
                raise OffsetOutOfRangeError(
                    f"Table {self.name!r} has no version {version} yet: the newest is "
                    f"{self._log.committed - 1}."
                )
            return version
        time = check_time("at", at)
        self.refresh()
        return offset_at(self._log, time + 1) - 1

    def _entry(self, found: Version) -> Entry[V] | None:
        """Convert a version to an entry; None if its value was removed meanwhile."""
        value: Any = found.value
        if found.is_in_log and not found.is_deleted:
            value = self._projection.read_value(found.version)
            if value is None:
                return None
        return Entry(value, found.version, found.timestamp, found.expires_at)

    def refresh(self) -> None:
        """Bring the state up to what was acknowledged, or written by another process."""
        self._store.make_readable(self._log)
        self._projection.advance()

    def _now(self) -> int:
        return self._store.clock.time_ns()

    # --- a mapping --------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> V:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Key, value: V | Buffer) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        if self.delete(key) is None:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str | bytes):
            return False
        data, _ = key_of(key)
        self.refresh()
        now = self._now()
        with self._projection.lock:
            return self._projection.current().get(data, now) is not None

    def __iter__(self) -> Iterator[Key]:
        self.refresh()
        return self._keys()

    def _keys(self) -> Iterator[Key]:
        after: bytes | None = None
        while True:
            page = self._page(b"", after, _PAGE_KEYS)
            yield from texts_of(page.keys, page.flags)
            if page.is_last:
                return
            after = page.last

    def __len__(self) -> int:
        self.refresh()
        now = self._now()
        with self._projection.lock:
            state = self._projection.current()
            return len(state) - len(state.expired(now))

    def __bool__(self) -> bool:
        return True  # a handle, even on an empty table

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def setdefault(self, key: Key, default: Any = b"") -> V:
        """Get the value of a key, or put the default if there is none, atomically."""
        while True:
            found = self.get(key)
            if found is not None:
                return found
            try:
                self.put(key, default, if_absent=True)
            except VersionConflictError:
                continue  # put by another thread meanwhile
            kept: Any = bytes(default) if isinstance(default, Buffer) else default
            return cast("V", kept)

    def pop(self, key: Key, default: Any = _MISSING) -> Any:
        """Delete a key and return its value; no other caller gets the same one."""
        while True:
            entry = self.entry(key)
            if entry is None:
                if default is _MISSING:
                    raise KeyError(key)
                return default
            try:
                if self.delete(key, if_version=entry.version) is not None:
                    return entry.value
            except VersionConflictError:
                continue

    def update(self, *args: Any, **more: Any) -> None:
        """Put all entries of a mapping as one atomic batch, as `put_many`."""
        entries = dict(*args, **more)
        if entries:
            self.put_many(entries)


def _gone(name: str, key: Key, at: At, horizon: int) -> VersionGoneError:
    shown = text_of(*key_of(key))
    return VersionGoneError(
        f"Table {name!r} no longer knows what {shown!r} was at {at}: versions before {horizon} "
        "are gone. Ask for a later one, or create the table with more versions.",
        horizon,
    )
