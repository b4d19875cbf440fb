"""How a table comes back: from its state file, from its records, and from both."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.crash.model import kill, open_store

import stratalog
from stratalog import Entry, Table
from stratalog.errors import VersionGoneError
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.state import table_projection
from stratalog.testing import Crashed, FakeDisk, ManualClock

KEYS = [f"k{number}" for number in range(12)]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state file is written for a few changes, in chunks of a few keys."""
    monkeypatch.setattr(table_projection, "_CHANGES_MIN", 4)
    monkeypatch.setattr(table_projection, "_CHUNK_KEYS", 3)


def _open(path: Path, clock: ManualClock, **options: Any) -> Store:
    built = StoreOptions.build({"rewrite_ratio": 0.01} | options, {})
    return Store(path, built, clock=clock, background=False)


def _kill(store: Store) -> None:
    """Leave a store as a killed process does, whose lock goes with it."""
    kill(store)
    assert store._lock is not None
    store._lock.close()


def _work(table: Table, clock: ManualClock, rng: random.Random, count: int) -> None:
    for number in range(count):
        key = rng.choice(KEYS)
        choice = rng.random()
        if choice < 0.2:
            table.delete(key)
        elif choice < 0.3:
            table.put(key, b"%d" % number, ttl=5.0)
        elif choice < 0.4:
            table.put_many(dict.fromkeys(rng.sample(KEYS, 3), b"many"))
        elif choice < 0.45:
            table.put(key.encode(), bytes(20_000))
        else:
            table.put(key, b"%d" % number)
        clock.advance(rng.random())
        if rng.random() < 0.1:
            table.expire()


def _content(table: Table) -> dict[str, list[Entry]]:
    return {key: table.history(key) for key in KEYS}


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_and_recovery_equal_recovery_from_zero(tmp_path: Path, seed: int) -> None:
    """Whether a state file is used, is missing or is damaged: values and histories are the same."""
    rng = random.Random(seed)
    clock = ManualClock()
    store = _open(tmp_path, clock)
    table = store.table("t", versions=rng.choice([1, 2, 8]))
    for _ in range(3):
        _work(table, clock, rng, 30)
        store.snapshot()
    _work(table, clock, rng, 10)
    expected, listed, version = _content(table), dict(table.items()), table.version
    if seed % 2:
        store.close()
    else:
        store.sync()
        _kill(store)
    paths = sorted(tmp_path.glob("topics/*/*.state"))
    assert 1 <= len(paths) <= 2
    for case in ("whole", "from zero", "cut", "flipped", "missing"):
        newest = paths[-1]
        data = newest.read_bytes() if newest.exists() else b""
        if case == "cut":
            newest.write_bytes(data[: rng.randrange(len(data))])
        elif case == "flipped":
            place = rng.randrange(len(data))
            newest.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        elif case == "missing":
            newest.unlink()
        with stratalog.open(tmp_path, read_only=True) as view:
            view.clock = clock
            table = view.table("t")
            if case == "from zero":
                view.rebuild("t")
            assert (_content(table), table.version) == (expected, version), case
            assert dict(table.items()) == listed, case
        if case != "missing":
            newest.write_bytes(data)
    with _open(tmp_path, clock) as store:
        assert _content(store.table("t")) == expected


def test_an_unused_table_keeps_its_state_file(tmp_path: Path) -> None:
    """A snapshot names the file that the one before named, without reading it."""
    with stratalog.open(tmp_path) as store:
        store.table("t").put_many({f"{n}": b"v" for n in range(100)})
        store.snapshot()
    for _ in range(3):
        with stratalog.open(tmp_path) as store:
            store.topic("other").append(b"x")
            store.snapshot()
            store.snapshot()
    with stratalog.open(tmp_path) as store:
        projection = store.log_named("t").projection
        assert projection is not None
        assert projection.applied == 100
        assert len(store.table("t")) == 100


def test_few_changes_write_no_state_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger a table is, the more of it has to change."""
    monkeypatch.setattr(table_projection, "_CHANGES_MIN", 1)
    with stratalog.open(tmp_path) as store:
        table = store.table("t")
        table.put_many({f"{n}": b"v" for n in range(100)})
        store.snapshot()
        (before,) = tmp_path.glob("topics/*/*.state")
        table.put_many({f"{n}": b"w" for n in range(20)})
        store.snapshot()
        assert list(tmp_path.glob("topics/*/*.state")) == [before]
        table.put_many({f"{n}": b"w" for n in range(20)})
        store.snapshot()
        assert len(list(tmp_path.glob("topics/*/*.state"))) == 2


def test_compaction_keeps_the_newest_versions_of_a_key(tmp_path: Path) -> None:
    """In segments too; what it took is told as gone, to reads and to a resumed watch."""
    clock = ManualClock()
    store = _open(tmp_path, clock)
    table = store.table("t", versions=2, segment_records=5, tombstone_seconds=100.0)
    for number in range(20):
        table.put(f"k{number % 2}", b"%d" % number)
        store.checkpoint()
    table.delete("k0")
    table.put("other", b"x")
    store.checkpoint()
    store.compact()
    kept = [record.offset for record in store.topic("t").read()]  # type: ignore[union-attr]
    assert len(kept) < 22
    expected = {key: table.history(key) for key in ("k0", "k1")}
    store.rebuild("t")
    assert {key: table.history(key) for key in ("k0", "k1")} == expected
    assert [entry.version for entry in expected["k0"]] == [18, 20]
    for at in (0, 15):
        with pytest.raises(VersionGoneError):
            table.get("k0", at=at)
    with pytest.raises(VersionGoneError, match="start='snapshot'"):
        table.watch(start=0)
    assert [one.version for one in table.watch(start=20, timeout=0)] == [20, 21]
    store.close()


def test_a_deletion_that_compaction_removed_is_not_missed(tmp_path: Path) -> None:
    """A state file from before it would have the key again: all records are read instead."""
    clock = ManualClock()
    store = _open(tmp_path, clock)
    table = store.table("t", segment_records=4, tombstone_seconds=10.0)
    table.put_many({f"k{n}": b"v" for n in range(20)})
    store.snapshot()
    assert list(tmp_path.glob("topics/*/*.state"))
    table.delete("k3")
    for _ in range(3):
        table.put("k4", b"w")
    store.checkpoint()
    clock.advance(100.0)
    table.put("k5", b"w")
    store.checkpoint()
    store.compact()
    kept = [record.key for record in store.topic("t").read()]  # type: ignore[union-attr]
    assert b"k3" not in kept
    _kill(store)
    store = _open(tmp_path, clock)
    table = store.table("t")
    assert "k3" not in table
    assert len(table) == 19
    store.close()


def test_deleted_keys_leave_memory_after_their_time(tmp_path: Path) -> None:
    """As long as a deletion is kept in the log, and no longer."""
    clock = ManualClock()
    with _open(tmp_path, clock) as store:
        table = store.table("t", tombstone_seconds=10.0)
        table.put("a", b"1")
        table.delete("a")
        clock.advance(20.0)
        table.put("b", b"2")
        assert len(table) == 1
        assert list(table._projection.state.slots) == [b"b"]
        with pytest.raises(VersionGoneError):
            table.get("a", at=0)
        table.put("a", b"3")
        assert list(table) == ["a", "b"]


@pytest.mark.parametrize("is_used", [True, False])
def test_a_purge_leaves_no_byte_of_a_replaced_value(tmp_path: Path, is_used: bool) -> None:
    """Not in a state file either, whether the table was used since the store was opened or not."""
    with stratalog.open(tmp_path) as store:
        table = store.table("t", versions=1)
        table.put_many({f"k{n}": b"secret-%d" % n for n in range(10)})
        store.snapshot()
        table.put_many({f"k{n}": b"public" for n in range(10)})
        if is_used:
            store.compact(purge=True)
    with stratalog.open(tmp_path) as store:
        store.compact(purge=True)
        assert store.table("t")["k3"] == b"public"
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"secret" not in path.read_bytes(), path


def test_a_state_file_says_what_went_while_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions that memory pressure takes between two chunks are gone, not unknown."""
    clock = ManualClock()
    store = _open(tmp_path, clock)
    table = store.table("t")
    for value in (b"old", b"new"):
        table.put_many(dict.fromkeys(KEYS, value))
    projection = table._projection
    monkeypatch.setattr(time, "sleep", lambda seconds: projection.shed())
    store.snapshot()
    _kill(store)
    assert list(tmp_path.glob("topics/*/*.state"))
    with _open(tmp_path, clock) as store:
        table = store.table("t")
        for number, key in enumerate(KEYS):
            assert table.get(key) == b"new"
            try:
                assert table.get(key, at=number) == b"old"
            except VersionGoneError:
                continue


def test_a_purge_writes_no_row_that_a_crash_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state file that a snapshot names once got rows whose records were not durable yet.

    A purge at an unchanged position writes the file of that position again. Puts of class `disk`
    that came meanwhile were in it, and after a crash the table had them without their records.
    """
    monkeypatch.setattr(table_projection, "_CHUNK_KEYS", 1)
    point = 0
    while True:
        disk, clock = FakeDisk(), ManualClock()
        store = open_store(disk, clock, shards=1)
        table = store.table("t", versions=1, durability="disk")
        table.put_many(dict.fromkeys(KEYS, b"old"))
        store.snapshot()

        def put_meanwhile(_: float, table: Table = table) -> None:
            if table.get(KEYS[-1]) == b"old":
                table.put(KEYS[-1], b"new")
                assert table.get(KEYS[-1]) == b"new"

        disk.crash_after = disk.operations + point
        is_over = False
        with monkeypatch.context() as patched, contextlib.suppress(Crashed):
            patched.setattr(time, "sleep", put_meanwhile)
            store.compact(purge=True)
            is_over = True
        kill(store)
        again = open_store(disk.crash(0, damage="drop"), clock, shards=1)
        found = dict(again.table("t").scan())
        again.rebuild("t")
        assert dict(again.table("t").scan()) == found, f"after {point} operations"
        again.close()
        if is_over:
            break
        point += 1
    assert point > 10
