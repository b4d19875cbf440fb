"""Tables as users hold them: values, versions, conditions, time, and what they refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import Entry, Operation, Table
from stratalog.errors import (
    ClosedError,
    OffsetOutOfRangeError,
    OptionError,
    ReadOnlyError,
    TooLargeError,
    UnknownTopicError,
    VersionConflictError,
    VersionGoneError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import ManualClock


@pytest.fixture(params=["fsync", "disk", "memory"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store of each class that a table can have."""
    with stratalog.open(tmp_path / "store", durability=request.param) as opened:
        yield opened


@pytest.fixture
def table(store: Store) -> Table:
    """An empty table."""
    return store.table("users")


def _timed(path: Path, **options: Any) -> tuple[Store, ManualClock]:
    clock = ManualClock()
    built = StoreOptions.build(options, {})
    return Store(path, built, clock=clock, background=False), clock


def test_what_was_put_is_got(table: Table) -> None:
    """The newest value of a key, and the default where there is none."""
    assert table.put("ada", b"1") == 0
    assert table.put("ada", b"2") == 1
    assert table.put("bob", bytearray(b"3")) == 2
    assert (table.get("ada"), table.get("bob"), table.get("eve")) == (b"2", b"3", None)
    assert table.get("eve", b"default") == b"default"
    entry = table.entry("ada")
    assert entry is not None
    assert entry[:2] == (b"2", 1)
    assert table.entry("eve") is None
    assert table.version == 2


def test_an_empty_value_is_a_value_and_an_empty_key_a_key(table: Table) -> None:
    """None of both is the same as nothing."""
    table.put("", b"")
    assert table.get("") == b""
    assert list(table) == [""]
    assert "" in table


def test_a_deleted_key_is_gone_and_its_versions_are_not(table: Table) -> None:
    """A deletion is a version of its own; deleting what is not there writes nothing."""
    table.put("ada", b"1")
    assert table.delete("ada") == 1
    assert table.delete("ada") is None
    assert table.get("ada") is None
    assert len(table) == 0
    assert table.get("ada", at=0) == b"1"
    assert [entry.value for entry in table.history("ada")] == [b"1", None]
    assert table.put("ada", b"2") == 2
    assert table.get("ada") == b"2"


def test_keys_are_text_unless_bytes_were_put(table: Table) -> None:
    """One key may be put as either; it is given as it was put last."""
    table.put("größe", b"1")
    table.put(b"\xff\x00", b"2")
    table.put(b"plain", b"3")
    assert list(table.scan()) == [("größe", b"1"), (b"plain", b"3"), (b"\xff\x00", b"2")]
    assert table.get("plain") == b"3"
    table.put("plain", b"4")
    assert table.get(b"plain") == b"4"
    assert list(table) == ["größe", "plain", b"\xff\x00"]


def test_a_scan_is_in_order_and_stops_at_its_limit(table: Table) -> None:
    """Also while keys come and go, and over more keys than are taken at a time."""
    table.put_many({f"a{number:04d}": b"%d" % number for number in reversed(range(3000))})
    table.put_many({"b": b"x", "A": b"y"})
    assert [key for key, _ in table.scan("a")] == [f"a{number:04d}" for number in range(3000)]
    assert list(table.scan("a29", 2)) == [("a2900", b"2900"), ("a2901", b"2901")]
    assert list(table.scan("zzz")) == []
    assert list(table.scan("a", 0)) == []
    table.delete("a0001")
    table.put("a00005", b"new")
    assert [key for key, _ in table.scan("a000", 3)] == ["a0000", "a00005", "a0002"]


def test_a_condition_holds_or_nothing_is_written(table: Table) -> None:
    """By version, or that the key is not there; the error says what is."""
    first = table.put("ada", b"1", if_absent=True)
    second = table.put("ada", b"2", if_version=first)
    with pytest.raises(VersionConflictError, match="version 1") as caught:
        table.put("ada", b"3", if_version=first)
    assert caught.value.version == second
    with pytest.raises(VersionConflictError, match="there already") as caught:
        table.put("ada", b"3", if_absent=True)
    assert caught.value.version == second
    with pytest.raises(VersionConflictError, match="is not there") as caught:
        table.put("eve", b"3", if_version=7)
    assert caught.value.version is None
    with pytest.raises(VersionConflictError):
        table.delete("ada", if_version=first)
    assert table.delete("ada", if_version=second) == 2
    with pytest.raises(VersionConflictError):
        table.put("ada", b"3", if_version=second)
    assert table.put("ada", b"3", if_absent=True) == 3
    assert table.version == 3


@pytest.mark.slow
def test_of_many_threads_one_has_its_condition_hold(store: Store) -> None:
    """Every version is replaced by exactly one of those that saw it."""
    table = store.table("users")
    table.put("n", b"0")
    wins = []

    def work() -> None:
        for _ in range(50):
            while True:
                entry = table.entry("n")
                assert entry is not None
                assert entry.value is not None
                try:
                    table.put("n", b"%d" % (int(entry.value) + 1), if_version=entry.version)
                except VersionConflictError:
                    continue
                wins.append(1)
                break

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table["n"] == b"200" == b"%d" % len(wins)


def test_counters_add_up_over_threads(store: Store) -> None:
    """Each caller gets a result of its own; the log has results, not additions."""
    table = store.table("hits")
    results: list[int] = []

    def work() -> None:
        results.extend(table.add("page", 2) for _ in range(100))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(2, 802, 2))
    assert table["page"] == b"800"
    assert table.add("page", -900) == -100
    assert table.add("page", 0) == -100
    assert store.topic("hits").read_values()[-1] == b"-100"


def test_what_is_no_counter_is_not_added_to(table: Table) -> None:
    """Neither a value of other bytes, nor an amount that is no whole number."""
    table.put("ada", b"text")
    with pytest.raises(WrongKindError, match="no counter"):
        table.add("ada")
    with pytest.raises(WrongTypeError):
        table.add("n", 1.5)  # type: ignore[arg-type]
    with pytest.raises(TooLargeError):
        table.add("n", 10**70)
    assert table.version == 0


def test_a_table_is_a_mapping(table: Table) -> None:
    """Brackets, `in`, `del`, `len`, iteration and views, in the order of keys."""
    table["b"] = b"2"
    table["a"] = b"1"
    table.update({"c": b"3"}, d=b"4")
    assert table["a"] == b"1"
    assert ("a" in table, "x" in table, object() in table) == (True, False, False)
    assert (list(table), len(table)) == (["a", "b", "c", "d"], 4)
    assert list(table.keys()) == ["a", "b", "c", "d"]
    assert list(table.values()) == [b"1", b"2", b"3", b"4"]
    assert dict(table.items()) == {"a": b"1", "b": b"2", "c": b"3", "d": b"4"}
    del table["a"]
    with pytest.raises(KeyError):
        del table["a"]
    with pytest.raises(KeyError):
        table["a"]
    assert table.setdefault("a", b"new") == b"new"
    assert table.setdefault("a", b"other") == b"new"
    assert table.pop("a") == b"new"
    assert table.pop("a", None) is None
    with pytest.raises(KeyError):
        table.pop("a")
    assert table.popitem() == ("b", b"2")
    table.clear()
    assert len(table) == 0
    assert table


def test_reads_as_of_a_version_or_a_time(tmp_path: Path) -> None:
    """Versions are offsets: one number says what every key was."""
    store, clock = _timed(tmp_path / "store")
    with store:
        table = store.table("users")
        moments = []
        for number in range(3):
            table.put("ada", b"%d" % number)
            table.put(f"other-{number}", b"x")
            moments.append(clock.time_ns())
            clock.advance(10.0)
        assert [table.get("ada", at=at) for at in range(6)] == [b"0", b"0", b"1", b"1", b"2", b"2"]
        assert table.get("other-2", at=4) is None
        for number, moment in enumerate(moments):
            at = datetime.fromtimestamp(moment / 1e9 + 1.0, UTC)
            assert table.get("ada", at=at) == b"%d" % number
        assert table.get("ada", at=moments[0] / 1e9 - 5.0) is None
        entry = table.entry("ada", at=2)
        assert entry == Entry(b"1", 2, moments[1], 0)
        with pytest.raises(OffsetOutOfRangeError):
            table.get("ada", at=6)
        with pytest.raises(WrongTypeError):
            table.get("ada", at="yesterday")  # type: ignore[call-overload]


def test_old_versions_go_and_the_table_says_so(store: Store) -> None:
    """A chain is bounded; what it no longer has is an error and not an absence."""
    table = store.table("few", versions=3)
    for number in range(6):
        table.put("ada", b"%d" % number)
    assert [entry.version for entry in table.history("ada")] == [3, 4, 5]
    assert table.get("ada", at=3) == b"3"
    with pytest.raises(VersionGoneError, match="no longer knows") as caught:
        table.get("ada", at=2)
    assert caught.value.horizon == 3
    assert table.get("eve", at=2) is None


def test_the_expiry_of_a_value_that_nothing_reads_is_logged(tmp_path: Path) -> None:
    """Rows wait to be applied until they are read: those that expire are looked at before."""
    store, clock = _timed(tmp_path / "store")
    with store:
        table = store.table("sessions")
        table.put("kept", b"0")
        for number in range(3):
            table.put(f"key {number}", b"1", ttl=10.0)
        clock.advance(10.0)
        assert table.expire() == 3
    with stratalog.open(tmp_path / "store", read_only=True) as reader:
        changes = list(reader.table("sessions").watch(start=4, timeout=0))
        assert {(one.key, one.operation) for one in changes} == {  # type: ignore[union-attr]
            (f"key {number}", Operation.DELETE) for number in range(3)
        }


def test_a_value_that_expires_is_gone_at_once_and_deleted_later(tmp_path: Path) -> None:
    """Readers go by the clock, those who watch by the record that says so."""
    store, clock = _timed(tmp_path / "store")
    with store:
        table = store.table("sessions")
        table.put("a", b"1", ttl=10.0)
        table.put("b", b"2", ttl=timedelta(seconds=20))
        table.put("c", b"3")
        entry = table.entry("a")
        assert entry is not None
        assert entry.expires_at == entry.timestamp + 10 * 10**9
        clock.advance(10.0)
        assert (table.get("a"), "a" in table, len(table)) == (None, False, 2)
        assert list(table) == ["b", "c"]
        assert table.expire() == 1
        assert table.expire() == 0
        assert [one.value for one in table.history("a")] == [b"1", None]
        assert table.get("a", at=2) == b"1"
        assert table.get("a", at=(clock.time_ns() - 10**9) / 1e9) == b"1"
        clock.advance(10.0)
        assert table.put("b", b"again", if_absent=True) == 4
        assert table.expire() == 0
        assert table.get("b") == b"again"
        watched = list(table.watch(start=0, timeout=0))
        assert [(one.key, one.operation) for one in watched] == [  # type: ignore[union-attr]
            ("a", Operation.PUT), ("b", Operation.PUT), ("c", Operation.PUT),
            ("a", Operation.DELETE), ("b", Operation.PUT),
        ]  # fmt: skip


def test_a_counter_keeps_its_time_to_live(tmp_path: Path) -> None:
    """Unless it is given another; once expired it begins at 0 again."""
    store, clock = _timed(tmp_path / "store")
    with store:
        table = store.table("limits")
        table.add("a", ttl=10.0)
        clock.advance(6.0)
        assert table.add("a") == 2
        clock.advance(6.0)
        assert table.add("a") == 1
        clock.advance(100.0)
        assert table.get("a") == b"1"


def test_large_values_stay_in_the_log(store: Store) -> None:
    """They are read from their records, also after a checkpoint, and count in every way."""
    table = store.table("blobs")
    large = bytes(range(256)) * 256
    table.put("a", large)
    table.put("a", large + b"2")
    table.put("b", b"small")
    assert table._projection.held_bytes < 1 << 14
    for _ in range(2):
        assert table.get("a") == large + b"2"
        assert table.get("a", at=0) == large
        assert [entry.value for entry in table.history("a")] == [large, large + b"2"]
        assert list(table.scan()) == [("a", large + b"2"), ("b", b"small")]
        entries = list(table.watch(start="snapshot", timeout=0))
        assert [one.value for one in entries[:2]] == [large + b"2", b"small"]  # type: ignore[union-attr]
        store.checkpoint()


def test_bad_arguments_are_refused_and_nothing_is_written(table: Table) -> None:
    """Each with an error that names what is wrong."""
    calls: list[tuple[type[Exception], Any]] = [
        (WrongTypeError, lambda: table.put(7, b"")),  # type: ignore[arg-type]
        (WrongTypeError, lambda: table.put("a", "text")),  # type: ignore[arg-type]
        (WrongTypeError, lambda: table.put("a", None)),  # type: ignore[arg-type]
        (OptionError, lambda: table.put("\ud800", b"")),
        (OptionError, lambda: table.put("a", b"", ttl=0)),
        (WrongTypeError, lambda: table.put("a", b"", if_version="x")),  # type: ignore[arg-type]
        (WrongTypeError, lambda: table.put("a", b"", if_absent=1)),  # type: ignore[arg-type]
        (OptionError, lambda: table.put("a", b"", if_absent=True, if_version=1)),
        (OptionError, lambda: table.put("a", b"", durability="ephemeral")),
        (OptionError, lambda: table.put_many({})),
        (WrongTypeError, lambda: table.put_many([1, 2])),  # type: ignore[list-item]
        (WrongTypeError, lambda: table.put_many({"a": b"", "b": None})),
        (OptionError, lambda: table.put_many({"a": b"", "\ud800": b""})),
        (TooLargeError, lambda: table.put("a", bytes(17 << 20))),
        (TooLargeError, lambda: table.put_many({"a": bytes(17 << 20)})),
        (WrongTypeError, lambda: table.get(None)),  # type: ignore[call-overload]
        (OptionError, lambda: list(table.scan("", -1))),
        (WrongTypeError, lambda: table.watch(start="now")),  # type: ignore[arg-type]
        (OffsetOutOfRangeError, lambda: table.watch(start=1)),
    ]
    for error, call in calls:
        with pytest.raises(error):
            call()
    assert (table.version, len(table)) == (-1, 0)


def test_options_are_for_good_and_retention_is_refused(store: Store) -> None:
    """A table keeps versions, and nothing else decides what goes."""
    table = store.table("users", versions=2, compression="zstd")
    assert (table.options.versions, table.options.compact) == (2, True)
    assert store.table("users") is table
    assert store.table("users", versions=2) is table
    with pytest.raises(OptionError, match="versions=2"):
        store.table("users", versions=3)
    for option in ("retention_seconds", "retention_bytes", "ttl", "compact", "retention"):
        with pytest.raises(OptionError, match=option):
            store.table("other", **{option: 1})  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="ephemeral"):
        store.table("other", durability="ephemeral")
    with pytest.raises(OptionError, match="unknown table option"):
        store.table("other", version=3)
    with pytest.raises(OptionError):
        store.table("other", versions=0)
    assert store.tables() == ["users"]


def test_a_table_is_dropped_and_made_again(store: Store) -> None:
    """The old handle says so; the new table has nothing of it, and a topic is not dropped."""
    old = store.table("users")
    old.put("ada", b"1")
    store.drop_table("users")
    for call in (lambda: old.get("ada"), lambda: old.put("ada", b"2"), lambda: old.add("n")):
        with pytest.raises(UnknownTopicError):
            call()
    new = store.table("users")
    assert new.get("ada") is None
    assert new.put("ada", b"2") == 0
    store.topic("plain")
    with pytest.raises(WrongKindError):
        store.drop_table("plain")
    with pytest.raises(UnknownTopicError):
        store.drop_table("missing")
    with pytest.raises(WrongKindError):
        store.queue("users")


def test_a_closed_store_and_a_read_only_one_refuse_writes(tmp_path: Path) -> None:
    """Values that were read stay; later calls are refused."""
    with stratalog.open(tmp_path) as store:
        table = store.table("users")
        table.put("ada", b"1")
        with stratalog.open(tmp_path, read_only=True) as view:
            seen = view.table("users")
            assert seen.get("ada") == b"1"
            table.put("ada", b"2")
            assert (seen["ada"], len(seen), list(seen)) == (b"2", 1, ["ada"])
            for write in (
                lambda: seen.put("ada", b"3"),
                lambda: seen.delete("ada"),
                lambda: seen.add("n"),
                lambda: seen.put_many({"a": b""}),
            ):
                with pytest.raises(ReadOnlyError):
                    write()
            with pytest.raises(UnknownTopicError):
                view.table("missing")
    for call in (lambda: table.get("ada"), lambda: table.put("ada", b"3"), lambda: len(table)):
        with pytest.raises(ClosedError):
            call()


def test_put_many_is_one_batch_and_the_last_of_a_key_counts(table: Table) -> None:
    """Pairs may name a key twice, a mapping cannot."""
    assert table.put_many([("a", b"1"), (b"b", b"2"), ("a", b"3")], ttl=3600.0) == (0, 2)
    assert (table["a"], table[b"b"]) == (b"3", b"2")
    entry = table.entry("a")
    assert entry is not None
    assert entry.expires_at
    assert [one.value for one in table.history("a")] == [b"1", b"3"]


def test_a_projection_is_rebuilt_while_the_store_runs(store: Store) -> None:
    """The result is the same; what has no state of its own is refused."""
    table = store.table("users", versions=3)
    for number in range(50):
        table.put(f"k{number % 7}", b"%d" % number)
        if number % 5 == 0:
            table.delete(f"k{number % 3}")
    before = {key: table.history(key) for key in [f"k{n}" for n in range(7)]}
    listed = dict(table.items())
    store.rebuild("users")
    assert {key: table.history(key) for key in before} == before
    assert dict(table.items()) == listed
    table.put("k1", b"after")
    assert table["k1"] == b"after"
    store.topic("plain")
    with pytest.raises(WrongKindError):
        store.rebuild("plain")
    with pytest.raises(UnknownTopicError):
        store.rebuild("missing")


def test_a_series_is_rebuilt_as_a_table_is(tmp_path: Path) -> None:
    """One call for every projection; the points are the same afterwards."""
    with stratalog.open(tmp_path) as store:
        series = store.series("cpu")
        series.write(0.5, tags={"host": "a"})
        before = series.latest()
        store.rebuild("cpu")
        assert series.latest() == before
        assert len(before) == 1
