"""Writes to a table: puts, deletions and counters, with their conditions.

| caller | function |
|---|---|
| `put` of text and bytes, with a condition or without | `TableWriting.put`, the fast path |
| every other `put`, `delete`, `add` | `TableWriting._write` |
| `put_many`, expiry | `TableWriting._write_many` |

All of them hold the projection's `writing` lock from before a condition is checked until the rows
are known, so that a condition sees everything that has entered the log before. Single records are
known as soon as they enter: see `EnteredRows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic

from stratalog.format.table import BYTES_KEY, DELETED
from stratalog.handles.documented import Documented
from stratalog.handles.table_change import (
    Buffer,
    Change,
    Condition,
    Key,
    check_amount,
    columns_of,
    encode_rows,
    key_of,
    text,
    ttl_of,
    value_of,
)
from stratalog.log.append import enter_entries, enter_record
from stratalog.log.commit_group import GROUP_BYTES_MAX, SYNCED, TTL, Group, Item
from stratalog.log.topic import TopicLog
from stratalog.model import Durability, Operation, V
from stratalog.state.table_projection import BYTES_TAG, SHARE, TableProjection
from stratalog.state.table_state import KEY_BYTES, Version

if TYPE_CHECKING:
    from stratalog.handles.store import Store
    from stratalog.handles.topic import Topic

# Rows and bytes that may wait for the state before a writer moves them there.
_ENTERED_MAX = 1024
_ENTERED_BYTES_MAX = 1 << 20


class TableWriting(Documented, Generic[V]):
    """The writing methods of a table's handle."""

    _store: Store
    _log: TopicLog
    _topic: Topic
    _projection: TableProjection
    _entered_bytes = 0

    def put(
        self,
        key: Key,
        value: V | Buffer,
        # Not keyword-only: see `Topic.append`.
        ttl: float | timedelta | None = None,
        if_version: int | None = None,
        if_absent: bool = False,
        durability: Durability | str | None = None,
    ) -> int:
        """Put a value and return its version, once its durability class is satisfied.

        The key expires after `ttl` seconds. With `if_version` the key must have that version, with
        `if_absent` it must not exist; otherwise `VersionConflictError` has its version.
        """
        projection = self._projection
        if not (
            projection.is_quick and type(key) is str and type(value) is bytes and ttl is None
            and durability is None and len(key) + len(value) <= projection.quick_bytes_max
        ):  # fmt: skip
            return self._put(key, value, ttl, if_version, if_absent, durability)
        data = key.encode() if key.isascii() else text(key)
        log = self._log
        rank = log.rank
        has_condition = if_version is not None or if_absent is not False
        offset = -1
        with projection.writing:
            if not has_condition or self._holds(data, if_version, if_absent):
                offset, group = enter_record(
                    log, value, len(data) + len(value), rank, (), False, data
                )
                if projection.entered_end == offset:
                    projection.entered_end = offset + 1
                if has_condition:
                    projection.entered.know(data, offset)
        if offset < 0:
            return self._put(key, value, ttl, if_version, if_absent, durability)
        if offset - projection.applied > _ENTERED_MAX:
            self.relieve()
        if rank == SYNCED or group.bytes > GROUP_BYTES_MAX:  # looked at here: a call costs 50 ns
            log.shard.wait(group, rank)
        return offset

    def _holds(self, data: bytes, if_version: Any, if_absent: Any) -> bool:
        """Whether a condition holds, as far as that is seen at once; `writing` is held.

        The general way judges again where this says no, and knows what to raise.
        """
        version = self._projection.plain_version(data)
        if type(if_version) is int and if_absent is False:
            return 0 <= if_version == version
        return if_version is None and if_absent is True and version == -1

    def _put(
        self, key: Any, value: Any, ttl: Any, if_version: Any, if_absent: Any, durability: Any
    ) -> int:
        self.check_writable()
        data, flags = key_of(key)
        value = value_of(value)
        ttl_ns = ttl_of(ttl)
        judge = Condition(self._log.name, key, if_version, if_absent)
        change = Change(data, value, flags, ttl_ns)
        version = self._write(change, judge, self.rank(durability))
        assert version is not None
        return version

    def encode_value(self, value: V | Buffer) -> bytes:
        """Encode a value as the log has it."""
        return value_of(value)

    def check_counts(self) -> None:
        """Raise unless values can be counters, as bytes can."""
        return

    def delete(
        self,
        key: Key,
        *,
        if_version: int | None = None,
        durability: Durability | str | None = None,
    ) -> int | None:
        """Delete a key and return the version of the deletion; None if there is no such key."""
        self.check_writable()
        data, flags = key_of(key)
        judge = Condition(self._log.name, key, if_version, False)
        return self._write(Change(data, None, flags, 0), judge, self.rank(durability))

    def add(
        self,
        key: Key,
        amount: int = 1,
        *,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Add to a counter and return the sum; a missing key counts as 0.

        A counter is a value of decimal digits. It keeps its expiry unless `ttl` is given.
        """
        self.check_writable()
        data, flags = key_of(key)
        change = Change(data, None, flags, ttl_of(ttl), check_amount(amount))
        self._write(change, None, self.rank(durability))
        assert change.value is not None
        return int(change.value)

    def put_many(
        self,
        entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
        *,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> tuple[int, int]:
        """Put values as one atomic batch; returns the first and the last version."""
        self.check_writable()
        datas, flags, values = columns_of(entries)
        rank = self.rank(durability)
        sizes = sum(map(len, datas)) + sum(map(len, values))
        if sizes > self._log.plain_bytes_max:
            for data, value in zip(datas, values, strict=True):
                self._topic.check_size(len(data) + len(value))
        self.make_room(sizes + KEY_BYTES * len(datas))
        return self._write_many(datas, values, flags, ttl_of(ttl), rank, sizes)

    # --- one -------------------------------------------------------------------------------

    def _write(self, change: Change, judge: Condition | None, rank: int) -> int | None:
        """Write one change if its condition holds; None for the deletion of a missing key."""
        entered = self.enter(change, judge, rank)
        if entered is None:
            return None
        offset, group = entered
        self.note_bytes(len(change.key) + len(change.value or b""))
        self._log.shard.wait(group, rank)
        return offset

    def enter(
        self, change: Change, judge: Condition | None, rank: int, *, is_left: bool = False
    ) -> tuple[int, Group] | None:
        """Let one change into the log if its condition holds; returns its version and its group.

        None for the deletion of a missing key. `is_left` leaves the group to the ticker, unless a
        thread commits it before.
        """
        projection = self._projection
        size = len(change.key) + len(change.value or b"")
        self._topic.check_size(size + 64)
        if change.value is not None or change.amount is not None:  # a deletion makes room itself
            self.make_room(size + KEY_BYTES)
        with projection.writing:
            projection.prepare()
            now = self._store.clock.time_ns()
            found = self.living(change.key, now)
            if judge is not None:
                judge.check(found)
            if not change.apply(found, self.read_version):
                return None
            offset, group = self._enter(change, rank, is_left)
            projection.entered_end = offset + 1
        return offset, group

    def living(self, key: bytes, now: int) -> Version | None:
        """Find the newest version of a key that has entered; `writing` is held."""
        found = self._projection.newest(key)
        if found is None or found.is_deleted or 0 < found.expires_at <= now:
            return None
        return found

    def _enter(self, change: Change, rank: int, is_left: bool) -> tuple[int, Group]:
        items: list[Item] = [("keys", change.key)]
        if change.flags & BYTES_KEY:
            items.append(("tags", BYTES_TAG))
        if change.flags & DELETED:
            items.append(("operations", int(Operation.DELETE)))
        if change.ttl:
            items.append((TTL, change.ttl))
        elif change.expiry:
            items.append(("expires_at", change.expiry))
        size = len(change.key) + len(change.value or b"")
        return enter_record(self._log, change.value, size, rank, items, is_left)

    # --- many ------------------------------------------------------------------------------

    def _write_many(
        self, keys: list[bytes], values: Sequence[bytes | None], flags: list[int] | None, ttl: int,
        rank: int, size: int,
    ) -> tuple[int, int]:  # fmt: skip
        projection, log = self._projection, self._log
        with projection.writing:
            expires_at = self._store.clock.time_ns() + ttl if ttl else 0
            entry = encode_rows(log, keys, values, flags, expires_at)
            group, first, last = enter_entries(log, [entry], rank)
            expiries = [expires_at] * len(keys) if expires_at else None
            projection.note(first, keys, values, entry.base_timestamp, expiries, flags)
        self.note_bytes(size)
        log.shard.wait(group, rank)
        return first, last

    def expire(self) -> int:
        """Delete expired keys, so that watchers see it; returns how many."""
        projection, log = self._projection, self._log
        now = self._store.clock.time_ns()
        log.check_dropped()
        if not projection.is_live:
            return 0
        if projection.applied < log.committed:
            projection.advance()  # the newest puts, which nothing may have read yet, expire too
        if not 0 < projection.state.next_expiry <= now:
            return 0
        with projection.writing:
            projection.prepare()
            with projection.lock:
                keys = projection.current().expired(now)
            due = self._expired(keys, now)
            if not due:
                return 0
            flags = [DELETED | found.flags & BYTES_KEY for _, found in due]
            datas = [key for key, _ in due]
            nothing: list[bytes | None] = [None] * len(due)
            entry = encode_rows(log, datas, nothing, flags, 0)
            _, first, _ = enter_entries(log, [entry], log.rank, is_left=True)
            projection.note(first, datas, nothing, entry.base_timestamp, None, flags)
        return len(due)

    def _expired(self, keys: Iterable[bytes], now: int) -> list[tuple[bytes, Version]]:
        return [(key, found) for key in keys if (found := self._is_expired(key, now))]

    def _is_expired(self, key: bytes, now: int) -> Version | None:
        found = self._projection.newest(key)
        is_due = found is not None and not found.is_deleted and 0 < found.expires_at <= now
        return found if is_due else None

    # --- memory ----------------------------------------------------------------------------

    def make_room(self, size: int) -> None:
        """Reserve memory for a put; no lock is held."""
        projection = self._projection
        if projection.is_tight:
            projection.advance()
            waiting = self._log.next_offset - projection.applied
            if not waiting:
                self._entered_bytes = 0
            # Rows that have entered are not accounted for yet, and may all be new keys.
            self._store.budget.ensure(SHARE, size + waiting * KEY_BYTES + self._entered_bytes)

    def has_much_waiting(self, size: int) -> bool:
        """Count what has entered; returns whether `relieve` has something to do."""
        self._entered_bytes += size
        waiting = self._log.next_offset - self._projection.applied
        return waiting > _ENTERED_MAX or self._entered_bytes > _ENTERED_BYTES_MAX

    def note_bytes(self, size: int) -> None:
        """Count what has entered, and move it into the state if it is much; no lock is held."""
        if self.has_much_waiting(size):
            self.relieve()

    def relieve(self) -> None:
        """Move committed rows into the state, once enough of them wait."""
        projection, log = self._projection, self._log
        if not self.has_much_waiting(0):
            return
        waiting = log.next_offset - projection.applied
        self._entered_bytes = 0
        if log.committed - projection.applied < waiting // 2:
            log.flush()
        projection.advance()

    def check_writable(self) -> None:
        """Raise unless changes are possible, and load the state if that was not done yet."""
        self._store.check_writable()
        self._log.check_dropped()
        if not self._projection.is_live:
            self._projection.advance()

    def rank(self, durability: Any) -> int:
        """Return the rank of a durability class, the table's own if none is given."""
        return self._log.rank if durability is None else self._topic.rank(durability)

    def read_version(self, found: Version) -> bytes:
        """Get the value of a version, from its record if need be."""
        if not found.is_in_log:
            return found.value or b""
        return self._projection.read_value(found.version) or b""
