"""Tables crashed after every file operation, or met by an error: nothing that was promised is lost.

`STRATALOG_SWEEP=exhaustive` crashes after every single operation, and has every one of them fail.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from stratalog import Batch, Table, Written
from stratalog.errors import (
    RejectedError,
    StratalogError,
    VersionConflictError,
    VersionGoneError,
)
from stratalog.handles.store import Store
from stratalog.segments.staging import StageWriter, manifest_of, publish, upsert_part
from stratalog.state import table_projection
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, ManualClock, MonitorFs
from stratalog.testing.inode import Damage
from tests.crash.model import ROOT, kept_end, kill, open_store

EXHAUSTIVE = os.environ.get("STRATALOG_SWEEP") == "exhaustive"
POINTS = 20
FAULTS = 25
SECOND = 10**9
DAMAGES: list[tuple[Damage, int]] = [("keep", 0), ("drop", 0), ("random", 1)]
ERRORS = [errno.EIO, errno.ENOSPC, errno.EMFILE]

Shown = tuple[bytes | None, int, int, int]
"""Value (None for a deletion), version, timestamp and expires_at, as in an `Entry`."""
Rows = list[tuple[str, bytes | None, int]]
"""Key, value and expires_at of changes that are made at once."""


@dataclasses.dataclass
class TableModel:
    """Everything that one table was told."""

    versions: int
    changes: dict[str, list[Shown]] = dataclasses.field(default_factory=dict)
    """By key, in the order of versions."""
    writes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    """Start and end of what is all there or not at all."""
    next: int = 0
    durable: int = 0
    """Versions below this were acknowledged as on the disk."""

    def newest(self, key: str, now: int) -> Shown | None:
        """Find what a key is now."""
        found = self.changes.get(key)
        if not found or found[-1][0] is None or 0 < found[-1][3] <= now:
            return None
        return found[-1]


class TableSession:
    """A store whose tables are told to a model first."""

    def __init__(self, disk: Any, clock: ManualClock) -> None:
        self.disk = disk
        self.clock = clock
        self.models: dict[str, TableModel] = {}
        self.joints: list[tuple[dict[str, int], int]] = []
        """The version by table and the event of every atomic batch."""
        self.options: dict[str, Any] = {"rewrite_ratio": 0.01}
        self.store: Store

    def open(self, **options: Any) -> None:
        """Open the store with small files."""
        self.options |= options
        self.store = open_store(MonitorFs(self.disk), self.clock, **self.options)

    def reopen(self, **options: Any) -> None:
        """Close, which makes everything durable, and open again."""
        self.store.close()
        self.all_durable()
        self.open(**options)
        for name, model in self.models.items():
            model.next = self.store.log_named(name).next_offset

    def all_durable(self) -> None:
        """Everything so far is on the disk."""
        for model in self.models.values():
            model.durable = model.next

    def table(self, name: str) -> tuple[Table, TableModel]:
        """A table, named by how many versions it keeps, and its model."""
        versions = int(name[-1])
        model = self.models.setdefault(name, TableModel(versions))
        table = self.store.table(name, versions=versions, segment_records=7, tombstone_seconds=60.0)
        return table, model

    def _note(self, model: TableModel, rows: Rows) -> tuple[int, int]:
        now, start = self.clock.time_ns(), model.next
        for key, value, expires_at in rows:
            model.changes.setdefault(key, []).append((value, model.next, now, expires_at))
            model.next += 1
        model.writes.append((start, model.next))
        return start, model.next

    def put(self, name: str, key: str, value: bytes, ttl: float = 0, **options: Any) -> None:
        """Put one value."""
        table, model = self.table(name)
        expires_at = self.clock.time_ns() + round(ttl * SECOND) if ttl else 0
        start, end = self._note(model, [(key, value, expires_at)])
        assert table.put(key, value, ttl=ttl or None, **options) == start
        if options.get("durability", "fsync") == "fsync":
            model.durable = end

    def put_many(self, name: str, entries: dict[str, bytes], ttl: float = 0) -> None:
        """Put values at once."""
        table, model = self.table(name)
        expires_at = self.clock.time_ns() + round(ttl * SECOND) if ttl else 0
        start, end = self._note(model, [(key, one, expires_at) for key, one in entries.items()])
        assert table.put_many(entries, ttl=ttl or None) == (start, end - 1)
        model.durable = end

    def put_if(self, name: str, key: str, value: bytes) -> None:
        """Put a value on the condition that holds, after one that does not."""
        table, model = self.table(name)
        found = model.newest(key, self.clock.time_ns())
        with pytest.raises(VersionConflictError):
            table.put(key, value, if_version=model.next + 7)
        condition = {"if_absent": True} if found is None else {"if_version": found[1]}
        self.put(name, key, value, **condition)

    def delete(self, name: str, key: str) -> None:
        """Delete a key, which may not be there."""
        table, model = self.table(name)
        if model.newest(key, self.clock.time_ns()) is None:
            assert table.delete(key) is None
            return
        start, end = self._note(model, [(key, None, 0)])
        assert table.delete(key) == start
        model.durable = end

    def add(self, name: str, key: str, amount: int) -> None:
        """Count."""
        table, model = self.table(name)
        found = model.newest(key, self.clock.time_ns())
        total = amount if found is None else int(found[0] or b"") + amount
        _, end = self._note(model, [(key, b"%d" % total, 0 if found is None else found[3])])
        assert table.add(key, amount) == total
        model.durable = end

    def batch(self, number: int, names: list[str], **options: Any) -> None:
        """Count, put and delete in tables, and say so in a topic, at once.

        One whose condition does not hold, in the last of the tables, leaves no trace.
        """
        now = self.clock.time_ns()
        wanted, totals = [], {}
        for name in names:
            _, model = self.table(name)
            found = model.newest("n", now)
            total = totals[name] = number + int((found[0] or b"") if found else b"0")
            rows: Rows = [("n", b"%d" % total, 0), (f"k{number % 3}", b"%d" % number, 0)]
            if model.newest(f"k{(number + 1) % 3}", now) is not None:
                rows.append((f"k{(number + 1) % 3}", None, 0))
            wanted.append((name, rows))
        with pytest.raises(VersionConflictError), self.store.batch() as batch:
            self._fill(batch, wanted, number, if_version=1 << 40)
        ends = {name: self._note(self.models[name], rows)[1] for name, rows in wanted}
        self.joints.append((ends, len(self.joints)))
        with self.store.batch(**options) as batch:
            counters = self._fill(batch, wanted, number)
            batch.topic("events").append(b"%d" % number)
        assert [one.value for one in counters] == list(totals.values())
        for name, end in ends.items():
            assert self.store.table(name).version == end - 1
            if not options:
                self.models[name].durable = end

    def _fill(
        self, batch: Batch, wanted: list[tuple[str, Rows]], number: int, **condition: Any
    ) -> list[Written]:
        counters = []
        for name, rows in wanted:
            table = batch.table(name)
            counters.append(table.add("n", number))
            table.put(*rows[1][:2], **condition)  # type: ignore[arg-type]
            for key, _, _ in rows[2:]:
                table.delete(key)
            table.delete("never there")
        return counters

    def adopt(self, name: str, batch: int, rows: dict[str, bytes | None]) -> None:
        """Have changes adopted that another process has staged."""
        _, model = self.table(name)
        now, count = self.clock.time_ns(), len(rows)
        staged = StageWriter(self.disk, ROOT)
        columns = {
            "key": pa.array(list(rows), pa.string()),
            "value": pa.array(rows.values(), pa.binary()),
            "timestamp": pa.array([now] * count, pa.timestamp("ns", "UTC")),
        }
        staged.write(pa.table(columns))
        segment = staged.finish()
        assert segment is not None
        _, end = self._note(model, [(key, value, 0) for key, value in rows.items()])
        publish(self.disk, ROOT, manifest_of("query", batch, [upsert_part(name, [segment])]))
        self.store.adopt()
        if not self.store.is_adopted("query", batch):
            raise RejectedError("an error of the disk")
        model.durable = end

    def pass_time(self, name: str, seconds: float) -> None:
        """Let time pass, and what has expired be deleted, which waits for no disk."""
        table, model = self.table(name)
        self.clock.advance(seconds)
        now = self.clock.time_ns()
        assert len(table) >= 0  # so that the state can be asked
        due = [key.decode() for key in table._projection.state.expired(now)]
        assert set(due) == {
            key for key, found in model.changes.items()
            if found[-1][0] is not None and 0 < found[-1][3] <= now
        }  # fmt: skip
        if due:
            self._note(model, [(key, None, 0) for key in due])
        assert table.expire() == len(due)

    def keep_up(self, *steps: str) -> None:
        """Do what runs in the background, which makes everything durable."""
        for step in steps:
            getattr(self.store, step)()
            self.all_durable()

    # --- after a crash, or an error -----------------------------------------------------------

    def check(self, store: Store) -> None:
        """Hold every table against what it was told."""
        for name in self.models:
            self._check(store, name)
        for ends, event in self.joints:
            kept = {name: kept_end(store.table(name).topic) >= end for name, end in ends.items()}
            events = kept_end(store.topic("events"))
            assert set(kept.values()) == {events > event}, f"half of a batch: {kept}, {events}"

    def _check(self, store: Store, name: str) -> None:
        model = self.models[name]
        if name not in store.tables():
            assert not model.durable, f"table {name!r} is gone"
            return
        table = store.table(name)
        kept = kept_end(table.topic)
        assert kept >= model.durable, f"{name} has {kept} versions, {model.durable} were durable"
        assert all(not start < kept < end for start, end in model.writes), "half of a write"
        histories = {
            key: cut for key, all in model.changes.items()
            if (cut := [one for one in all if one[1] < kept])
        }  # fmt: skip
        recovered = self._look(table, model, histories, kept)
        store.rebuild(name)
        assert self._look(table, model, histories, kept)[:2] == recovered[:2]

    def _look(
        self, table: Table, model: TableModel, histories: dict[str, list[Shown]], kept: int
    ) -> tuple[Any, ...]:
        """Read all that can be read, and compare each with what it must be."""
        now = self.clock.time_ns()
        living = {
            key: found[-1][0] for key, found in histories.items()
            if found[-1][0] is not None and not 0 < found[-1][3] <= now
        }  # fmt: skip
        entries = dict(table.scan())
        assert entries == living
        assert len(table) == len(living)
        told = {key: [tuple(entry) for entry in table.history(key)] for key in model.changes}
        for key, found in histories.items():
            is_deleted = found[-1][0] is None
            wanted = found[-model.versions :]
            assert told[key] == wanted or (is_deleted and not told[key]) or (
                any(one[0] is None for one in wanted) and told[key] == wanted[-len(told[key]) :]
            ), f"{key}: {told[key]}, not {wanted}"  # fmt: skip
            for at in range(kept):
                self._check_at(table, model, key, found, at)
        return entries, told

    def _check_at(
        self, table: Table, model: TableModel, key: str, found: list[Shown], at: int
    ) -> None:
        before = [one for one in found if one[1] <= at]
        try:
            assert table.get(key, at=at) == (before[-1][0] if before else None), f"{key} at {at}"
        except VersionGoneError:
            later = [one for one in found if one[1] > at]
            has_deletion = any(one[0] is None for one in found)
            # Compaction takes a deletion with all before it, and says so by a horizon for all.
            is_compacted = any(one[0] is None for other in model.changes.values() for one in other)
            assert len(later) >= model.versions or has_deletion or is_compacted, f"{key} at {at}"


def single_puts(session: TableSession) -> None:
    """One put after the other in two tables, with conditions, deletions and counters."""
    session.open(log_file_bytes=1 << 16)
    for number in range(9):
        key = "abc"[number % 3]
        session.put("few 2", key, b"%d" % number * 50)
        session.put("many 8", key, b"late %d" % number, durability="disk")
        session.add("many 8", "counter", number)
        session.put_if("few 2", "cond", b"%d" % number)
        if number % 4 == 3:
            session.delete("few 2", key)
            session.keep_up("snapshot")
        session.clock.advance(0.5)
    session.put("few 2", "large", bytes(17_000))
    session.add("many 8", "counter", 1)


def batches_and_expiry(session: TableSession) -> None:
    """Batches, times to live and deletions over snapshots, compaction and a reopen."""
    session.open()
    for number in range(4):
        session.put_many("many 8", {f"k{n}": b"%d" % number for n in range(5)})
        session.put_many("few 2", {"short": b"lived", f"t{number}": b"too"}, ttl=3.0)
        session.put("few 2", "count", b"0", ttl=1.0)
        session.add("few 2", "count", 1)
        session.delete("many 8", f"k{number}")
        session.pass_time("few 2", 2.0)
        session.keep_up("checkpoint" if number % 2 else "snapshot")
        session.pass_time("few 2", 2.0)
        if number == 2:
            session.reopen(shards=1)


def compacted(session: TableSession) -> None:
    """Keys that are replaced again and again, and deletions that outlive their time."""
    session.open(shards=1)
    for number in range(5):
        for turn in range(6):
            session.put("one 1", f"k{turn % 3}", b"%d %d" % (number, turn), durability="disk")
            session.put("few 2", f"k{turn % 2}", b"%d %d" % (number, turn), durability="disk")
        session.delete("one 1", "k1")
        session.put("few 2", "gone soon", b"x")
        session.delete("few 2", "gone soon")
        session.keep_up("checkpoint", "compact")
        session.pass_time("few 2", 50.0)
        if number == 3:
            session.keep_up("snapshot", "compact", "snapshot")
    session.put("one 1", "last", b"1")


def atomic_batches(session: TableSession) -> None:
    """Batches over tables and a topic in several shards, beside puts that wait for no disk."""
    session.open(shards=3, log_file_bytes=1 << 16)
    session.store.topic("events")
    for number in range(6):
        session.put("many 8", "other", b"%d" % number, durability="disk")
        session.batch(number, ["few 2", "many 8"])
        session.put("few 2", "other", b"%d" % number, durability="disk")
        session.batch(number, ["one 1", "few 2", "many 8"])
        session.batch(number, ["few 2"], durability="disk")
        if number % 3 == 1:
            session.keep_up("snapshot")
        if number == 3:
            session.reopen(shards=2)


def adopted(session: TableSession) -> None:
    """Changes of another process between those of the store's own, over snapshots."""
    session.open(shards=1)
    for number in range(4):
        session.put("few 2", "own", b"%d" % number)
        session.adopt("few 2", 2 * number, {"own": b"adopted %d" % number, f"k{number}": b"x"})
        session.put_if("few 2", "own", b"after %d" % number)
        session.adopt("few 2", 2 * number + 1, {f"k{number}": None, "kept": b"%d" % number})
        if number == 2:
            session.keep_up("snapshot", "checkpoint")


WORKLOADS = [single_puts, batches_and_expiry, compacted, atomic_batches, adopted]
Workload = Callable[[TableSession], None]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state file is written for a few changes, in chunks of a few keys."""
    monkeypatch.setattr(table_projection, "_CHANGES_MIN", 4)
    monkeypatch.setattr(table_projection, "_CHUNK_KEYS", 2)
    monkeypatch.setattr(table_projection, "_REST_SECONDS", 0.0)


def run(workload: Workload, crash_after: int | None) -> TableSession:
    """Run a workload until its disk crashes, or to its end."""
    session = TableSession(FakeDisk(crash_after=crash_after), ManualClock())
    with contextlib.suppress(Crashed):
        workload(session)
    if hasattr(session, "store"):
        kill(session.store)
    return session


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_crash_of_a_table_is_recovered(workload: Workload) -> None:
    """Acknowledged puts are there, batches whole, and the state is that of the records."""
    whole = run(workload, None)
    assert any(path.endswith(".state") for path in whole.disk.image())
    operations = whole.disk.operations
    step = 1 if EXHAUSTIVE else max(1, operations // POINTS)
    for point in range(0, operations + 1, step):
        session = run(workload, point)
        for damage, seed in DAMAGES:
            disk = session.disk.crash(seed, damage=damage)
            try:
                store = open_store(MonitorFs(disk), session.clock, **session.options)
                assert store.damage is None
                session.check(store)
                kill(store)
                again = open_store(MonitorFs(disk.crash(0, damage="keep")), session.clock)
                session.check(again)
                version = again.table("few 2", versions=2).put("x", b"life goes on")
                assert again.table("few 2").get("x", at=version) == b"life goes on"
                again.close()
            except BaseException as error:
                error.add_note(f"{workload.__name__}, {point} operations, {damage} {seed}")
                raise


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_an_error_of_any_file_operation_leaves_a_table_whole(workload: Workload) -> None:
    """The live table and the reopened one have what was acknowledged, and nothing half."""
    whole = FaultFs(FakeDisk())
    session = TableSession(whole, ManualClock())
    workload(session)
    kill(session.store)
    calls = sum(whole.calls.values())
    for turn, call in enumerate(range(1, calls + 1, 1 if EXHAUSTIVE else max(1, calls // FAULTS))):
        code = ERRORS[turn % len(ERRORS)]
        disk = FakeDisk()
        fs = FaultFs(disk, [Fault(operation="any", call=call, error=code)])
        session = TableSession(fs, ManualClock())
        raised: StratalogError | None = None
        try:
            try:
                workload(session)
            except StratalogError as error:
                raised = error
            fs.clear()
            if hasattr(session, "store"):
                if not session.store.is_closed:
                    session.check(session.store)
                kill(session.store)
            for damage in ("keep", "drop"):
                after = disk.crash(call, damage=damage)
                store = open_store(after, session.clock, **session.options)
                session.check(store)
                store.close()
        except BaseException as problem:
            problem.add_note(f"{workload.__name__}: call {call}, {errno.errorcode[code]}: {raised}")
            raise


@pytest.mark.parametrize("operation", ["open", "pread"])
@pytest.mark.parametrize("code", ERRORS, ids=errno.errorcode.get)
def test_a_state_file_that_cannot_be_read_costs_no_key(operation: str, code: int) -> None:
    """The table is made again from its records, and the next state file has all of it.

    A table that met an error in the middle of its file once had the keys before it alone.
    """
    session = run(batches_and_expiry, None)
    for call in range(1, 12):
        disk = session.disk.crash(0, damage="keep")
        fs = FaultFs(disk)
        store = open_store(fs, session.clock, **session.options)
        fs.add(Fault(operation=operation, call=call, error=code, path_contains=".state"))
        with contextlib.suppress(StratalogError):
            store.table("many 8").get("k0")
        session.check(store)
        store.snapshot()
        store.close()
        store = open_store(disk, session.clock, **session.options)
        session.check(store)
        store.close()
