"""Tables in atomic batches: a change and the event that caused it commit together, or neither."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.model import open_store

import stratalog
from stratalog import Table
from stratalog.errors import (
    DiskFullError,
    OptionError,
    StateError,
    TooLargeError,
    UnknownTopicError,
    VersionConflictError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.handles.batch_table import BatchTable
from stratalog.handles.store import Store
from stratalog.handles.table_change import encode_rows
from stratalog.log.append import enter_entries
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock

SHARDS = [1, 3]


@pytest.fixture(params=[("fsync", 1), ("fsync", 3), ("disk", 1), ("disk", 3)])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store whose topics share a shard, or do not."""
    durability, shards = request.param
    with stratalog.open(tmp_path / "store", durability=durability, shards=shards) as opened:
        yield opened


def _names(store: Store, count: int = 3) -> list[str]:
    """Names of tables, in several shards if the store has several."""
    names: dict[Any, str] = {}
    for number in range(64):
        name = f"t{number}"
        shard = store.table(name).topic.log.shard
        names.setdefault(shard if store.options.shards != 1 else number, name)
        if len(names) == count:
            return list(names.values())
    raise AssertionError("64 tables are in too few shards")


def test_a_change_and_its_event_are_one(store: Store) -> None:
    """Results are known when the block is left, and all of it can be read."""
    with store.batch() as batch:
        users = batch.table("users")
        put = users.put("ada", b"1")
        visits = users.add("visits", 3)
        event = batch.topic("events").append(b"ada came")
        with pytest.raises(StateError, match="not committed"):
            assert put.version
        assert "ada" not in store.table("users")
    table = store.table("users")
    assert (put.version, visits.version, visits.value, event.offset) == (0, 1, 3, 0)
    assert (table["ada"], table["visits"]) == (b"1", b"3")
    entry = table.entry("ada")
    assert entry is not None
    assert entry.version == put.version
    assert store.topic("events").read_values(0, 9) == [b"ada came"]


def test_all_kinds_are_in_one_batch(store: Store) -> None:
    """Topics, queues, groups, series and two tables."""
    jobs = store.queue("jobs")
    jobs.put(b"job")
    message = jobs.get(timeout=1.0)
    orders = store.topic("orders")
    orders.append(b"order")
    group = orders.group("billing")
    deliveries = group.poll("one")
    with store.batch() as batch:
        batch.queue("jobs").ack(message)
        batch.group("orders", "billing").ack(deliveries)
        batch.series("cpu").write(0.5)
        batch.topic("events").append(b"event")
        first = batch.table("first").put("k", b"1")
        second = batch.table("second").put_many({"a": b"2", "b": b"3"})
    assert len(jobs) == 0
    assert group.lag == 0
    assert [one.fields for one in store.series("cpu").latest()] == [{"value": 0.5}]
    assert (first.version, second.version, second.last) == (0, 0, 1)
    assert (store.table("first")["k"], dict(store.table("second").scan())) == (
        b"1", {"a": b"2", "b": b"3"},
    )  # fmt: skip


def test_changes_of_a_batch_see_those_before_them(store: Store) -> None:
    """Counters go on, a deleted key is absent, and what is put can be deleted."""
    table = store.table("t")
    table.put("n", b"5", ttl=3600.0)
    before = table.entry("n")
    with store.batch() as batch:
        part = batch.table("t")
        counts = [part.add("n", 2), part.add("n", 3), part.add("new")]
        part.delete("n")
        again = part.put("n", b"0", if_absent=True)
        gone = part.delete("nothing")
        part.put("x", b"1")
        deleted = part.delete("x")
    assert [count.value for count in counts] == [7, 10, 1]
    assert gone.version is None
    assert again.version == 5
    assert deleted.version == 7
    assert table.get("n") == b"0"
    assert "x" not in table
    assert before is not None
    assert [(one.value, one.expires_at) for one in table.history("n")] == [
        (b"5", before.expires_at), (b"7", before.expires_at), (b"10", before.expires_at),
        (None, 0), (b"0", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("condition", [{"if_version": 7}, {"if_absent": True}])
def test_a_condition_that_does_not_hold_discards_all(
    store: Store, condition: dict[str, Any]
) -> None:
    """In every table and topic, whatever their shards; a batch that follows is not affected."""
    names = _names(store)
    store.table(names[1]).put("k", b"old")
    events = store.topic("events")
    handles = []

    def change() -> None:
        with store.batch() as batch:
            batch.table(names[0]).put("k", b"new")
            handles.append(batch.table(names[1]).put("k", b"new", **condition))
            batch.table(names[2]).add("n")
            batch.topic("events").append(b"event")

    with pytest.raises(VersionConflictError) as caught:
        change()
    assert caught.value.version == 0
    with pytest.raises(StateError):
        assert handles[0].version
    assert [store.table(name).get("k") for name in names] == [None, b"old", None]
    assert events.next_offset == 0
    with store.batch() as batch:
        replaced = batch.table(names[1]).put("k", b"new", if_version=0)
        first = batch.table(names[0]).put("k", b"new", if_absent=True)
        batch.topic("events").append(b"event")
    assert (replaced.version, first.version, events.next_offset) == (1, 0, 1)
    with pytest.raises(VersionConflictError), store.batch() as batch:
        batch.table(names[0]).delete("k", if_version=9)


def test_a_time_to_live_begins_when_the_batch_is_committed(tmp_path: Path) -> None:
    """And the change that expires it follows."""
    disk, clock = FakeDisk(), ManualClock()
    with open_store(disk, clock) as store:
        table = store.table("t")
        with store.batch() as batch:
            clock.advance(100.0)
            batch.table("t").put("k", b"v", ttl=10.0)
            batch.table("t").add("n", ttl=10.0)
        clock.advance(9.0)
        assert (table.get("k"), table.get("n")) == (b"v", b"1")
        clock.advance(1.0)
        assert (table.get("k"), table.get("n")) == (None, None)
        assert table.expire() == 2


def test_what_is_wrong_is_told_in_the_call(store: Store) -> None:
    """The rest of the batch is committed."""
    with store.batch() as batch:
        table = batch.table("t")
        table.put("k", b"v")
        with pytest.raises(WrongTypeError):
            table.put(7, b"v")  # type: ignore[arg-type]
        with pytest.raises(WrongTypeError):
            table.put("k", None)  # type: ignore[arg-type]
        with pytest.raises(OptionError):
            table.put_many({})
        with pytest.raises(OptionError, match="exclude"):
            table.put("k", b"v", if_version=1, if_absent=True)
        with pytest.raises(WrongTypeError):
            table.add("k", 1.5)  # type: ignore[arg-type]
        with pytest.raises(TooLargeError):
            table.put("k", bytes(store.options.record_bytes_max + 1))
        with pytest.raises(WrongKindError):
            batch.topic("t").append(b"not for tables")
        with pytest.raises(WrongKindError):
            batch.table("jobs" if store.queue("jobs") else "")
    assert dict(store.table("t").scan()) == {"k": b"v"}
    with pytest.raises(StateError):
        batch.table("t")


def test_a_counter_that_is_none_discards_all(store: Store) -> None:
    """It is found out when the batch is committed."""
    store.table("t").put("k", b"text")
    batch = store.batch()
    with pytest.raises(WrongKindError), batch:
        handle = batch.table("t").add("k")
    assert store.table("t").version == 0
    with pytest.raises(StateError):
        assert handle.value
    with store.batch() as batch:
        put = batch.table("t").put("k", b"1")
    with pytest.raises(WrongKindError, match="counter"):
        assert put.value


def test_an_exception_or_nothing_to_do_writes_nothing(store: Store) -> None:
    """A block that is left by an exception, and deletions of keys that are not there."""
    table = store.table("t")
    with contextlib.suppress(KeyError), store.batch() as batch:
        batch.table("t").put("k", b"v")
        raise KeyError
    with store.batch() as batch:
        handle = batch.table("t").delete("k")
    assert handle.version is None
    assert table.version == -1


def test_a_dropped_table_fails_the_batch(store: Store) -> None:
    """It was there when it was named."""
    store.table("t").put("k", b"v")

    def change() -> None:
        with store.batch() as batch:
            batch.table("t").put("k", b"w")
            batch.topic("events").append(b"event")
            store.drop_table("t")

    with pytest.raises(UnknownTopicError):
        change()
    assert store.table("t").get("k") is None


def test_keys_and_values_are_what_was_put(store: Store) -> None:
    """Bytes keys, empty and large values, and mutable ones that change after the call."""
    value = bytearray(b"before")
    large = bytes(20_000)
    with store.batch() as batch:
        part = batch.table("t")
        part.put(b"\xff", b"")
        part.put("m", value)
        part.put_many([("l", large), (b"l2", b"x")])
        value[:] = b"after!"
    table = store.table("t")
    assert list(table.scan()) == [("l", large), (b"l2", b"x"), ("m", b"before"), (b"\xff", b"")]


def test_batches_and_puts_of_many_threads_lose_nothing(tmp_path: Path) -> None:
    """Counters in two tables of two shards move together, whatever else is written."""
    with stratalog.open(tmp_path / "s", shards=2, durability="disk") as store:
        names = _names(store, 2)
        tables = [store.table(name) for name in names]
        rounds, threads = 30, 4

        def count(number: int) -> None:
            for turn in range(rounds):
                with store.batch() as batch:
                    for name in names if number % 2 else reversed(names):
                        batch.table(name).add("n")
                tables[0].put(f"{number}", b"%d" % turn)
                tables[1].add("other")

        workers = [threading.Thread(target=count, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [table["n"] for table in tables] == [b"%d" % (rounds * threads)] * 2
        assert tables[1]["other"] == b"%d" % (rounds * threads)
        for name, table in zip(names, tables, strict=True):
            found = dict(table.scan())
            store.rebuild(name)
            assert dict(table.scan()) == found


@pytest.mark.parametrize("shards", SHARDS)
def test_a_batch_that_fails_leaves_tables_as_they_were(shards: int) -> None:
    """Its offsets are used again, and its rows are forgotten."""
    fs = FaultFs(FakeDisk())
    with open_store(fs, ManualClock(), shards=shards) as store:
        names = _names(store)
        for name in names:
            store.table(name).put("n", b"1")

        def add_ten(batch: stratalog.Batch) -> list[stratalog.Written]:
            return [batch.table(name).add("n", 10) for name in names]

        fs.add(Fault(operation="pwrite", error=errno.ENOSPC, path_contains="log/"))
        batch = store.batch()
        with pytest.raises(DiskFullError), batch:
            add_ten(batch)
        fs.clear()
        assert [store.table(name)["n"] for name in names] == [b"1"] * 3
        with store.batch() as batch:
            handles = add_ten(batch)
        assert [handle.value for handle in handles] == [11] * 3
        assert [store.table(name)["n"] for name in names] == [b"11"] * 3


@pytest.mark.parametrize("shards", SHARDS)
def test_conditions_are_judged_again_when_records_came_another_way(
    shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adopted records enter a table without its lock, between the judgement and the entry."""
    with open_store(FakeDisk(), ManualClock(), shards=shards) as store:
        table = store.table("t1")
        table.put("n", b"1")
        calls: list[int] = []

        def enter_meanwhile(self: Any, now: int) -> Any:
            judged = judge(self, now)
            if not calls:
                calls.append(now)
                _enter_record(table, b"5")
            return judged

        judge = BatchTable.judge
        monkeypatch.setattr(BatchTable, "judge", enter_meanwhile)
        with store.batch() as batch:
            handle = batch.table("t1").add("n", 1)
            batch.topic("events").append(b"event")
            batch.topic("more events").append(b"event")
        assert (handle.version, handle.value, table["n"]) == (2, 6, b"6")
        calls.clear()
        with pytest.raises(VersionConflictError) as caught, store.batch() as batch:
            batch.table("t1").put("n", b"7", if_version=2)
        assert caught.value.version == 3


def _enter_record(table: Table, value: bytes) -> None:
    """Put a record of key `n` into the log as adoption does: past the table's lock."""
    log = table.topic.log
    enter_entries(log, [encode_rows(log, [b"n"], [value], None, 0)], log.rank)
