"""Changes of a table that have entered the log and are not in its state yet, by column.

Single puts are gathered by column in the log until their group is written (`Pending`). Those same
lists are read here: a put notes nothing. Changes that enter as a frame are noted as the columns
they were encoded from. The newest change of a key is looked for only where a condition is judged.

Invariants:
- Runs are in the order of their offsets. A run that may still grow is not let go of.
- A row is let go of only after it is in the state, so that a condition finds it in one of both.

Concurrency: the log adds to `gathered` with the shard's lock held. Everything else needs the
projection's `lock`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.format.table import BYTES_KEY, DELETED
from stratalog.model import Operation
from stratalog.state.table_state import Version

if TYPE_CHECKING:
    from stratalog.log.commit_group import Pending

# Keys whose newest change is remembered, beyond those that are not in the state yet.
_KNOWN_MAX = 8192


class RowColumns(NamedTuple):
    """Some rows, as `TableState.take_columns` takes them."""

    versions: range
    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    expires_at: Sequence[int] | None
    flags: Sequence[int] | None


class _Frame:
    """Rows that entered as one frame."""

    __slots__ = ("_expires_at", "_flags", "_keys", "_timestamp", "_values", "first", "size")

    is_growing = False

    @property
    def is_plain(self) -> bool:
        """Whether no row of it is a deletion, and none expires."""
        return self._expires_at is None and self._flags is None

    def __init__(
        self, first: int, keys: Sequence[bytes], values: Sequence[bytes | None], timestamp: int,
        expires_at: Sequence[int] | None, flags: Sequence[int] | None,
    ) -> None:  # fmt: skip
        self.first = first
        self.size = len(keys)
        self._keys = keys
        self._values = values
        self._timestamp = timestamp
        self._expires_at = expires_at
        self._flags = flags

    def keys(self, start: int, end: int) -> Sequence[bytes]:
        return self._keys[start:end]

    def columns(self, start: int, end: int) -> RowColumns:
        return RowColumns(
            range(self.first + start, self.first + end),
            self._keys[start:end],
            self._values[start:end],
            [self._timestamp] * (end - start),
            None if self._expires_at is None else self._expires_at[start:end],
            None if self._flags is None else self._flags[start:end],
        )


class _Batch:
    """Rows that were gathered one by one; there may be more by the next look."""

    __slots__ = ("_pending", "first")

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self.first = pending.base_offset

    @property
    def is_plain(self) -> bool:
        """Whether no row of it is a deletion, and none expires."""
        named = self._pending.columns
        return "operations" not in named and "expires_at" not in named

    @property
    def is_growing(self) -> bool:
        """Whether records may still be added to it."""
        return self._pending.topic.pending is self._pending

    @property
    def size(self) -> int:
        return len(self._pending.values)

    def keys(self, start: int, end: int) -> Sequence[bytes]:
        found: list[bytes] = self._pending.columns["keys"][start:end]
        return found

    def columns(self, start: int, end: int) -> RowColumns:
        pending = self._pending
        named = pending.columns
        return RowColumns(
            range(self.first + start, self.first + end),
            named["keys"][start:end],
            pending.values[start:end],
            pending.timestamps[start:end],
            _cut(named, "expires_at", start, end, 0),
            self._flags(start, end),
        )

    def _flags(self, start: int, end: int) -> list[int] | None:
        named = self._pending.columns
        operations = _cut(named, "operations", start, end, 0)
        tags = _cut(named, "tags", start, end, None)
        if operations is None and tags is None:
            return None
        none: list[Any] = [None] * (end - start)
        return [
            (DELETED if operation == Operation.DELETE else 0) | (BYTES_KEY if tag else 0)
            for operation, tag in zip(operations or none, tags or none, strict=True)
        ]


def _cut(
    columns: dict[str, list[Any]], name: str, start: int, end: int, absent: Any
) -> list[Any] | None:
    """Cut a column that ends with the last row that has something in it."""
    column = columns.get(name)
    if column is None:
        return None
    found = column[start:end]
    return found + [absent] * (end - start - len(found))


class EnteredRows:
    """All runs of rows that a projection has not let go of."""

    def __init__(self) -> None:
        self.gathered: deque[Pending] = deque()
        """Batches of the log since the last look, in order: see `TopicLog.gathered`."""
        self._runs: deque[_Frame | _Batch] = deque()
        self._known: dict[bytes, int] = {}
        """The newest version of keys, as far as it was looked for."""
        self._known_end = 0

    def clear(self) -> None:
        """Forget everything."""
        self.gathered.clear()
        self._runs.clear()
        self._known.clear()
        self._known_end = 0

    def add(
        self, first: int, keys: Sequence[bytes], values: Sequence[bytes | None], timestamp: int,
        expires_at: Sequence[int] | None, flags: Sequence[int] | None,
    ) -> None:  # fmt: skip
        """Note rows that entered as one frame."""
        self._collect()
        self._runs.append(_Frame(first, keys, values, timestamp, expires_at, flags))

    def _collect(self) -> None:
        gathered = self.gathered
        while gathered:
            # Last: after Ctrl-C in between it is there twice, which does no harm.
            self._runs.append(_Batch(gathered[0]))
            gathered.popleft()

    def rows(self, start: int, end: int) -> RowColumns | None:
        """Return rows from `start` on, to `end` at most; None if the next one is not here."""
        self._collect()
        for run in self._runs:
            if run.first <= start < run.first + run.size:
                low, high = start - run.first, min(end - run.first, run.size)
                return run.columns(low, high)
        return None

    def release(self, applied: int) -> None:
        """Let go of rows below an offset, which are in the state."""
        runs = self._runs
        while runs and runs[0].first + runs[0].size <= applied and not runs[0].is_growing:
            runs.popleft()

    def newest(self, key: bytes, applied: int, end: int) -> Version | None:
        """Find the newest change of a key among rows from `applied` to `end`."""
        version = self._find(key, applied, end)
        if version < 0:
            return None
        found = self.rows(version, version + 1)
        assert found is not None
        return Version(
            version, found.values[0], found.timestamps[0],
            found.expires_at[0] if found.expires_at else 0, found.flags[0] if found.flags else 0,
        )  # fmt: skip

    def plain_version(self, key: bytes, applied: int, end: int) -> int:
        """Find the newest version of a key, -1 if there is none; -2 if it may not count."""
        version = self._find(key, applied, end)
        if version < 0:
            return -1
        for run in reversed(self._runs):
            if run.first <= version:
                return version if run.is_plain else -2
        return -2

    def know(self, key: bytes, version: int) -> None:
        """Note the newest version of a key, so that it need not be looked for; `writing` is held.

        Called after a condition was judged, which has looked at all before.
        """
        if self._known_end == version:
            self._known[key] = version
            self._known_end = version + 1

    def _find(self, key: bytes, applied: int, end: int) -> int:
        if self._known_end < end:
            self._look(applied, end)
        version = self._known.get(key, -1)
        return version if version >= applied else -1

    def _look(self, applied: int, end: int) -> None:
        """Remember the newest version of every key up to `end`."""
        self._collect()
        if len(self._known) > _KNOWN_MAX:
            self._known.clear()
            self._known_end = 0
        start = max(self._known_end, applied)
        runs: Iterable[_Frame | _Batch] = self._runs
        if self._runs and self._runs[-1].first <= start:
            runs = (self._runs[-1],)
        for run in runs:
            low, high = max(start - run.first, 0), min(end - run.first, run.size)
            if low < high:
                self._known.update(
                    zip(run.keys(low, high), range(run.first + low, run.first + high), strict=True)
                )
        self._known_end = end
