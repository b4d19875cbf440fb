"""A table against a list of versions per key: conditions, time, crashes, restarts, compaction.

The model has every version that was ever acknowledged. The table has the newest of each key, says
what it no longer knows, and never tells anything else.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog import Batch, CaughtUp, Table, Written
from stratalog.errors import VersionConflictError, VersionGoneError
from stratalog.handles.store import Store
from stratalog.model import Operation
from stratalog.state import table_projection
from stratalog.testing import Crashed, FakeDisk, ManualClock, MonitorFs
from tests.crash.model import kill, open_store

SECOND = 10**9
KEYS = ["a", "b", "ab", "é", ""]
keys = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"1", b"22", b"x" * 300, b"y" * 20_000])

Asked = tuple[str, bytes | int | None]
"""A key, and what is put, added to the counter `n`, or (None) deleted."""
changes = st.lists(
    st.tuples(keys, st.one_of(values, st.none(), st.integers(-3, 9))), min_size=1, max_size=5
)

Version = tuple[int, bytes | None, int, int]
"""Version, value (None for a deletion), timestamp, expires_at."""


class TableMachine(RuleBasedStateMachine):
    """A table of class `fsync` on a fake disk."""

    @initialize(shards=st.integers(1, 3), versions=st.sampled_from([1, 2, 8]))
    def begin(self, shards: int, versions: int) -> None:
        """Start with a new directory."""
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.versions = versions
        self.model: dict[str, list[Version]] = {}
        self.next = 0
        self.events = 0
        self.store: Store
        self.table: Table
        self._open(shards)

    def _open(self, shards: int) -> None:
        self.store = open_store(
            MonitorFs(self.disk), self.clock, shards=shards, log_file_bytes=1 << 16,
            rewrite_ratio=0.01,
        )  # fmt: skip
        self.table = self.store.table(
            "t", versions=self.versions, segment_records=7, tombstone_seconds=60.0
        )
        self.store.topic("events")

    def _note(self, key: str, value: bytes | None, version: int | None, ttl: float = 0) -> None:
        assert version == self.next
        now = self.clock.time_ns()
        expires = now + round(ttl * SECOND) if ttl else 0
        self.model.setdefault(key, []).append((self.next, value, now, expires))
        self.next += 1

    def _current(self, key: str) -> Version | None:
        found = self.model.get(key)
        if not found or found[-1][1] is None or 0 < found[-1][3] <= self.clock.time_ns():
            return None
        return found[-1]

    # --- what users do --------------------------------------------------------------------

    @rule(key=keys, value=values, ttl=st.sampled_from([None, None, 3.0]))
    def put(self, key: str, value: bytes, ttl: float | None) -> None:
        """Put without a condition."""
        self._note(key, value, self.table.put(key, value, ttl=ttl), ttl or 0)

    @rule(key=keys, value=values, is_right=st.booleans(), absent=st.booleans())
    def put_if(self, key: str, value: bytes, is_right: bool, absent: bool) -> None:
        """Put with a condition that holds, or does not."""
        current = self._current(key)
        wanted: dict[str, Any] = {"if_absent": True}
        holds = current is None
        if not absent:
            version = current[0] if current is not None and is_right else self.next + 5
            wanted, holds = {"if_version": version}, current is not None and is_right
        if holds:
            self._note(key, value, self.table.put(key, value, **wanted))
            return
        with pytest.raises(VersionConflictError) as caught:
            self.table.put(key, value, **wanted)
        assert caught.value.version == (None if current is None else current[0])

    @rule(pairs=st.lists(st.tuples(keys, values), min_size=1, max_size=4))
    def put_many(self, pairs: list[tuple[str, bytes]]) -> None:
        """Put several, some of them twice."""
        first, last = self.table.put_many(pairs)
        assert (first, last) == (self.next, self.next + len(pairs) - 1)
        for key, value in pairs:
            self._note(key, value, self.next)

    @rule(key=keys)
    def delete(self, key: str) -> None:
        """Delete a key, which may not be there."""
        deleted = self.table.delete(key)
        if self._current(key) is None:
            assert deleted is None
        else:
            self._note(key, None, deleted)

    @rule(key=st.sampled_from(["n", "m"]), amount=st.integers(-3, 9))
    def add(self, key: str, amount: int) -> None:
        """Count."""
        current = self._current(key)
        before = 0 if current is None else int(current[1] or b"")
        assert self.table.add(key, amount) == before + amount
        self._note(key, b"%d" % (before + amount), self.next)

    @rule(changes=changes, is_right=st.booleans())
    def batch(self, changes: list[Asked], is_right: bool) -> None:
        """Change the table and say so in a topic, at once; or meet a condition and do neither."""
        if is_right:
            self._batch(changes)
            self._note_batch(changes)
            return
        with pytest.raises(VersionConflictError), self.store.batch() as batch:
            self._fill(batch, changes, if_version=1 << 40)

    def _batch(self, changes: list[Asked]) -> None:
        with self.store.batch() as batch:
            handles = self._fill(batch, changes)
        for (version, total), handle in zip(self._expect(changes), handles, strict=True):
            assert handle.version == version
            if total is not None:
                assert handle.value == total

    def _fill(self, batch: Batch, changes: list[Asked], **condition: Any) -> list[Written]:
        batch.topic("events").append(b"%d" % self.next)
        table = batch.table("t")
        handles = [
            table.put(key, asked) if isinstance(asked, bytes)
            else table.delete(key) if asked is None else table.add("n", asked)
            for key, asked in changes
        ]  # fmt: skip
        if condition:
            table.put("a", b"never", **condition)
        return handles

    def _expect(self, changes: list[Asked]) -> list[tuple[int | None, int | None]]:
        """Compute the version of every change, and what a counter is then."""
        version = self.next
        expected: list[tuple[int | None, int | None]] = []
        now: dict[str, bytes | None] = {}
        for name, asked in changes:
            key = "n" if isinstance(asked, int) else name
            current = self._current(key)
            before = now.get(key, None if current is None else current[1])
            total = int(before or b"0") + asked if isinstance(asked, int) else None
            if asked is None and before is None:
                expected.append((None, None))
                continue
            now[key] = asked if not isinstance(asked, int) else b"%d" % int(total or 0)
            expected.append((version, total))
            version += 1
        return expected

    def _note_batch(self, changes: list[Asked]) -> None:
        expected = self._expect(changes)
        self.events += 1
        for (key, asked), (version, total) in zip(changes, expected, strict=True):
            if version is not None and total is not None:
                self._note("n", b"%d" % total, version)
            elif version is not None:
                self._note(key, asked, version)  # type: ignore[arg-type]

    @rule(seconds=st.sampled_from([0.5, 2.0, 100.0]))
    def pass_time(self, seconds: float) -> None:
        """Let time pass, and what has expired be deleted."""
        self.clock.advance(seconds)
        now = self.clock.time_ns()
        due = {
            key for key, found in self.model.items()
            if found[-1][1] is not None and 0 < found[-1][3] <= now
        }  # fmt: skip
        assert self.table.expire() == len(due)
        self.store.sync()
        self.next = self.table.version + 1
        for key in due:
            expiry = self.table.history(key)[-1]
            assert expiry.value is None
            self.model[key].append((expiry.version, None, now, 0))

    # --- what happens to the store ----------------------------------------------------------

    @rule(what=st.sampled_from(["checkpoint", "snapshot", "compact", "rebuild"]))
    def keep_up(self, what: str) -> None:
        """Do what runs in the background."""
        if what == "rebuild":
            self.store.rebuild("t")
        else:
            getattr(self.store, what)()

    @rule(seed=st.integers(0, 99), shards=st.integers(1, 3))
    def crash(self, seed: int, shards: int) -> None:
        """The machine goes down, and comes back."""
        kill(self.store)
        self.disk = self.disk.crash(seed)
        self._open(shards)

    @rule(
        seed=st.integers(0, 99), shards=st.integers(1, 3), operations=st.integers(0, 9),
        changes=changes,
    )  # fmt: skip
    def crash_in_a_batch(
        self, seed: int, shards: int, operations: int, changes: list[Asked]
    ) -> None:
        """The machine goes down while a batch is written: all of it is there, or nothing."""
        self.disk.crash_after = self.disk.operations + operations
        is_acknowledged = False
        with contextlib.suppress(Crashed):
            self._batch(changes)
            is_acknowledged = True
        kill(self.store)
        self.disk = self.disk.crash(seed)
        self._open(shards)
        if self.store.topic("events").next_offset > self.events:
            self._note_batch(changes)
        else:
            assert not is_acknowledged
        self.next = self.table.version + 1

    @rule(shards=st.integers(1, 3))
    def reopen(self, shards: int) -> None:
        """Close and open again."""
        self.store.close()
        self._open(shards)

    # --- what must be so ----------------------------------------------------------------------

    @invariant()
    def entries_are_the_newest(self) -> None:
        """By get, by scan, by length and by membership."""
        living = {key: found for key in self.model if (found := self._current(key)) is not None}
        ordered = sorted(living, key=lambda key: key.encode())
        assert list(self.table.scan()) == [(key, living[key][1]) for key in ordered]
        assert len(self.table) == len(living)
        for key in [*KEYS, "n", "m"]:
            entry = self.table.entry(key)
            assert (None if entry is None else tuple(entry)) == self._shown(living.get(key))
            assert (key in self.table) == (key in living)

    def _shown(self, one: Version | None) -> tuple[Any, ...] | None:
        return None if one is None else (one[1], one[0], one[2], one[3])

    @invariant()
    def every_batch_left_its_event(self) -> None:
        """A change without its event, or an event without its change, would not match."""
        assert self.store.topic("events").next_offset == self.events
        assert self.table.version + 1 == self.next

    @invariant()
    def histories_are_the_newest_versions(self) -> None:
        """Never more than are kept, never another; deletions go after their time."""
        for key, found in self.model.items():
            history = [self._shown(one) for one in found]
            told = [tuple(entry) for entry in self.table.history(key)]
            assert told == history[len(history) - len(told) :]
            assert len(told) <= self.versions
            is_old = found[-1][1] is None
            assert told or is_old

    @rule(key=keys, at=st.integers(0, 60))
    def as_of(self, key: str, at: int) -> None:
        """Return what a key was, or that it is not known any more."""
        if at >= self.next:
            return
        before = [one for one in self.model.get(key, []) if one[0] <= at]
        expected = before[-1][1] if before else None
        try:
            assert self.table.get(key, at=at) == expected
        except VersionGoneError:
            found = self.model.get(key, [])
            newest = [one for one in found if one[0] > at]
            is_compacted = any(one[1] is None for one in found) or not found
            assert len(newest) >= self.versions or is_compacted

    @rule(prefix=st.sampled_from(["", "a"]))
    def watch(self, prefix: str) -> None:
        """The entries, a marker, and nothing more until something changes; then that."""
        items = list(self.table.watch(prefix, start="snapshot", timeout=0))
        assert items[-1] == CaughtUp(self.table.version)
        entries = {one.key: one.value for one in items[:-1]}  # type: ignore[union-attr]
        expected = {
            key: found[-1][1] for key, found in self.model.items()
            if found[-1][1] is not None and key.startswith(prefix)
        }  # fmt: skip
        assert entries == expected
        assert len(entries) == len(items) - 1

    @rule(start=st.integers(0, 60))
    def watch_from(self, start: int) -> None:
        """All changes from a version on, or an error: never some of them."""
        if start > self.next:
            return
        changes = sorted(
            (one[0], key, one[1]) for key, found in self.model.items() for one in found
            if one[0] >= start
        )  # fmt: skip
        try:
            told = list(self.table.watch(start=start, timeout=0))
        except VersionGoneError:
            return
        assert [(one.version, one.key, one.value) for one in told] == changes  # type: ignore[union-attr]
        for one in told:
            assert (one.operation == Operation.DELETE) == (one.value is None)  # type: ignore[union-attr]

    def teardown(self) -> None:
        """Close what is open."""
        if hasattr(self, "store"):
            self.store.close()


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state file is written for a few changes."""
    monkeypatch.setattr(table_projection, "_CHANGES_MIN", 3)
    monkeypatch.setattr(table_projection, "_CHUNK_KEYS", 2)
    monkeypatch.setattr(table_projection, "_REST_SECONDS", 0.0)


TestTable = TableMachine.TestCase
TestTable.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "25")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
