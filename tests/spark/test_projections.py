"""Tables and series as DataFrames: equal to the live ones on random histories, as of any moment."""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from tests.conftest import OpenStore

from stratalog import Series, Table
from stratalog.errors import (
    OffsetOutOfRangeError,
    UnknownTopicError,
    VersionGoneError,
    WrongKindError,
)
from stratalog.handles.store import Store
from stratalog.spark import series, table
from stratalog.testing import ManualClock

HISTORIES = int(os.environ.get("STRATALOG_EXAMPLES", "200"))
TOPICS = 2
"""Histories of keys and of sets of tags share topics: a job of Spark takes half a second."""

Version = tuple[int, bytes | None, int, int]
"""Version, value (None for a deletion), timestamp, expires_at."""
Row = tuple[bytes, int, int, int]
"""Value, version, and timestamp and expires_at in microseconds."""


def _micros(when: datetime | None) -> int:
    return 0 if when is None else round(when.timestamp() * 10**6)


def _when(nanoseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=nanoseconds // 1000)


def _rows(frame: Any) -> dict[bytes, Row]:
    rows = frame.collect()
    found = {
        bytes(row.key): (
            bytes(row.value), row.version, _micros(row.timestamp), _micros(row.expires_at)
        )
        for row in rows
    }  # fmt: skip
    assert len(found) == len(rows)
    return found


# --- tables -------------------------------------------------------------------------------


class _TableHistory:
    """A table, and every version that it ever had."""

    def __init__(self, store: Store, clock: ManualClock, name: str, versions: int) -> None:
        self.clock = clock
        self.store = store
        self.table: Table = store.table(
            name, versions=versions, segment_records=40, durability="disk",
            tombstone_seconds=20.0 if versions < 10 else 1e8,
        )  # fmt: skip
        self.versions: dict[str, list[Version]] = {}
        self.moments: list[tuple[int, int]] = []

    def note(self, key: str, value: bytes | None, version: int, ttl: float | None = None) -> None:
        now = self.clock.time_ns()
        expires = round(ttl * 10**9) + now if ttl else 0
        self.versions.setdefault(key, []).append((version, value, now, expires))

    def step(self, chance: random.Random, histories: int) -> None:
        """One change of one key, or what happens to a table in between."""
        key = f"{chance.randrange(histories)}/{chance.choice('abc')}"
        what = chance.randrange(20)
        if what < 10:
            ttl = chance.choice([None, None, 2.0, 50.0, 10 * 365 * 86400.0])
            value = b"%d" % chance.randrange(1000) * chance.choice([1, 1, 50])
            self.note(key, value, self.table.put(key, value, ttl=ttl), ttl)
        elif what < 13:
            version = self.table.delete(key)
            if version is not None:
                self.note(key, None, version)
        elif what < 15:
            entries = {f"{chance.randrange(histories)}/m": b"%d" % what for _ in range(5)}
            first, _ = self.table.put_many(entries)
            for number, (name, value) in enumerate(entries.items()):
                self.note(name, value, first + number)
        elif what == 15:
            self.expire()
        elif what < 18:
            self.clock.advance(chance.random())
        elif self.table.version >= 0:
            # Nothing else happens within the second: a time then means one version.
            self.clock.advance(1)
            self.moments.append((self.table.version, self.clock.time_ns() // 1000 * 1000))
            self.clock.advance(1)

    def expire(self) -> None:
        """Have the table log which keys have expired."""
        before = self.table.version + 1
        self.table.expire()
        for record in self.table.topic.records(start=before):
            assert record.key is not None
            self.note(record.key.decode(), None, record.offset)

    def at(self, version: int, now: int) -> dict[bytes, Row]:
        """The living keys at a version and a time; 0 for no time."""
        found = {}
        for key, versions in self.versions.items():
            known = [one for one in versions if one[0] <= version]
            if not known or known[-1][1] is None or 0 < known[-1][3] <= now:
                continue
            last, value, stamp, expires = known[-1]
            assert value is not None
            found[key.encode()] = (value, last, stamp // 1000, expires // 1000)
        return found

    def live(self, at: Any) -> dict[bytes, Row]:
        """Those keys, as the table itself answers it."""
        found = {}
        for key in self.versions:
            entry = self.table.entry(key, at=at)
            if entry is not None:
                assert entry.value is not None
                found[key.encode()] = (
                    entry.value, entry.version, entry.timestamp // 1000, entry.expires_at // 1000
                )  # fmt: skip
        return found


def _known(spark: Any, store: Store, name: str, at: Any) -> dict[bytes, Row] | None:
    """A table at a moment; None if it says that it no longer knows."""
    try:
        return _rows(table(spark, store.path, name, at))
    except (VersionGoneError, PySparkException) as error:
        if "no longer knows what every key was" in str(error):
            return None
        raise


def test_a_table_is_the_live_one_at_every_moment(spark: Any, open_store: OpenStore) -> None:
    """As of now, of a version and of a time; with deletions, expiry, counters and compaction."""
    chance = random.Random(71)
    clock = ManualClock()
    store = open_store(clock=clock, background=False, shards=2, rewrite_ratio=0.01)
    refused = 0
    for number in range(TOPICS):
        is_compacted = number == TOPICS - 1
        history = _TableHistory(store, clock, f"t{number}", 2 if is_compacted else 100)
        for _ in range(HISTORIES // TOPICS * 8):
            history.step(chance, HISTORIES // TOPICS)
            if chance.random() < 0.02:
                store.checkpoint()
        chosen = chance.sample(history.moments, 3)
        if is_compacted:
            clock.advance(3600)
            history.expire()
            store.compact()
            for _ in range(HISTORIES // TOPICS):
                history.step(chance, HISTORIES // TOPICS)
            chosen += history.moments[-2:]
        clock.advance(max(0, time.time_ns() - clock.time_ns()) / 1e9)
        name = history.table.name
        newest = history.table.version
        store.sync()
        found = _rows(table(spark, store.path, name))
        assert found == history.live(None) == history.at(newest, clock.time_ns())
        for version, moment in chosen:
            for at in (version, _when(moment)):
                expected = history.at(version, 0 if isinstance(at, int) else moment)
                known = _known(spark, store, name, at)
                if is_compacted and known is None:
                    refused += 1
                    continue
                assert known == expected
                if not is_compacted:
                    assert known == history.live(at)
    assert 0 < refused < 10


def test_a_table_is_pinned_and_says_what_is_wrong(spark: Any, open_store: OpenStore) -> None:
    """A DataFrame stays as it was made; bad moments, names and kinds are errors of ours."""
    store = open_store(background=False)
    users = store.table("users")
    assert table(spark, store.path, "users").collect() == []
    version = users.put("ada", b"admin")
    users.put(b"\xff", b"bytes")
    frame = table(spark, store.path, "users")
    assert frame.columns == ["key", "value", "version", "timestamp", "expires_at"]
    users.put("ada", b"owner")
    users.delete(b"\xff")
    assert {key: row[0] for key, row in _rows(frame).items()} == {
        b"ada": b"admin",
        b"\xff": b"bytes",
    }
    (row,) = frame.where("key = cast('ada' AS binary)").collect()
    assert row.version == version
    assert [row[0] for row in _rows(table(spark, store.path, "users")).values()] == [b"owner"]
    assert table(spark, store.path, "users", at=1.0).collect() == []
    with pytest.raises(OffsetOutOfRangeError, match=r"at=9 is out of range: .* table 'users' .* 3"):
        table(spark, store.path, "users", at=9)
    with pytest.raises(UnknownTopicError):
        table(spark, store.path, "absent")
    store.series("cpu").write(1.0)
    with pytest.raises(WrongKindError, match="'cpu' is not a table, but a series"):
        table(spark, store.path, "cpu")
    with pytest.raises(WrongKindError, match="'users' is not a series, but a table"):
        series(spark, store.path, "users")


def test_a_moment_before_compaction_is_refused(spark: Any, open_store: OpenStore) -> None:
    """Rather than to leave out a key that was there, or to show it as it was before."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False, rewrite_ratio=0.01)
    users = store.table("users", versions=1, segment_records=4, tombstone_seconds=1.0)
    for number in range(8):
        users.put("ada", b"%d" % number)
        users.put("bob", b"%d" % number)
    users.delete("bob")
    users.put_many({f"k{number}": b"" for number in range(8)})
    store.checkpoint()
    clock.advance(10)
    store.compact()
    newest = users.version
    assert _rows(table(spark, store.path, "users", at=newest))[b"ada"][0] == b"7"
    users.put("ada", b"new")
    users.put_many({f"k{number}": b"new" for number in range(8)})
    store.checkpoint()
    store.compact()
    with pytest.raises(VersionGoneError, match="no longer knows what every key was at version 3"):
        table(spark, store.path, "users", at=3)
    # Nothing after it is missing, and yet it is not known what ada was.
    with pytest.raises(PySparkException, match="no longer knows what every key was"):
        table(spark, store.path, "users", at=newest).collect()
    found = _rows(table(spark, store.path, "users"))
    assert set(found) == {b"ada", *(b"k%d" % number for number in range(8))}
    assert found[b"ada"][0] == b"new"


# --- series -------------------------------------------------------------------------------

Points = dict[tuple[str, int], dict[str, Any]]
"""Fields by series and time."""

BASE = 1_600_000_000 * 10**9


class _SeriesHistory:
    """A series topic, and every point that was ever written to it."""

    def __init__(self, store: Store, name: str) -> None:
        self.series: Series = store.series(name, durability="disk")
        self.written: list[tuple[int, str, int, dict[str, Any]]] = []

    def step(self, chance: random.Random, histories: int) -> None:
        """Points of some series: in order, late, again, with other fields."""
        host = str(chance.randrange(histories))
        moment = BASE + chance.randrange(12) * 10**9 + chance.randrange(3)
        what = chance.randrange(4)
        if what < 2:
            fields = self._fields(chance)
            offset = self.series.write(fields, tags={"h": host}, timestamp=moment)
            self._note(offset, host, moment, fields)
        elif what == 2:
            times = [moment + number * chance.choice([0, 7, 10**9]) for number in range(6)]
            values = [chance.random() for _ in times]
            hosts = [chance.choice([host, "0"]) for _ in times]
            offset, _ = self.series.write_many(times, {"user": values}, tags={"h": hosts})
            for where, at, value in zip(hosts, times, values, strict=True):
                self._note(offset, where, at, {"user": value})
        else:
            fields = {"user": chance.random()}
            offset = self.series.write(fields, timestamp=moment)
            self._note(offset, "", moment, fields)

    def _fields(self, chance: random.Random) -> dict[str, Any]:
        known = {
            "user": chance.random(), "jobs": chance.randrange(9), "up": chance.random() < 0.5,
            "state": chance.choice(["ok", "", "é,= x"]),
        }  # fmt: skip
        chosen = chance.sample(sorted(known), chance.randrange(1, 5))
        return {name: known[name] for name in chosen}

    def _note(self, offset: int, host: str, at: int, fields: dict[str, Any]) -> None:
        self.written.append((offset, host, at, fields))

    def at(self, offset: int) -> Points:
        """The points that count, of those that were written until then."""
        return {(host, at): fields for last, host, at, fields in self.written if last <= offset}

    def live(self, host: str) -> Points:
        """The points of a host, as the series itself answers it."""
        found: Points = {}
        for field in self.series.fields():
            times, values = self.series.read(tags={"h": host}, field=field)
            for at, value in zip(times.tolist(), values.tolist(), strict=True):
                found.setdefault((host, at), {})[field] = value
        return found


def _points(frame: Any) -> Points:
    rows = frame.collect()
    found = {
        (row.tags.get("h", ""), _micros(row.time) * 1000 + row.time_ns): {
            name: value for name, value in row.fields.asDict().items() if value is not None
        }
        for row in rows
    }
    assert len(found) == len(rows)
    return found


def test_a_series_is_the_live_one_at_every_moment(spark: Any, open_store: OpenStore) -> None:
    """As of now, of an offset and of a time; with late points and points written again."""
    chance = random.Random(72)
    clock = ManualClock()
    store = open_store(clock=clock, background=False, shards=2)
    for number in range(TOPICS):
        history = _SeriesHistory(store, f"s{number}")
        moments = []
        for step in range(HISTORIES // TOPICS * 5):
            history.step(chance, HISTORIES // TOPICS)
            if chance.random() < 0.02:
                store.checkpoint()
            if step % 100 == 50:
                clock.advance(1)
                moments.append((history.written[-1][0], clock.time_ns()))
                clock.advance(1)
        name = history.series.name
        store.sync()
        found = _points(series(spark, store.path, name))
        assert found == history.at(1 << 60)
        for host in map(str, range(0, HISTORIES // TOPICS, 5)):
            own = {key: fields for key, fields in found.items() if key[0] == host}
            assert own == history.live(host)
        for offset, moment in chance.sample(moments, 2):
            for at in (offset, _when(moment)):
                assert _points(series(spark, store.path, name, at)) == history.at(offset)


def test_a_series_is_pinned_and_keeps_its_rules(spark: Any, open_store: OpenStore) -> None:
    """A DataFrame stays as it was made; points that retention took are not in it."""
    store = open_store(background=False)
    cpu = store.series("cpu")
    assert series(spark, store.path, "cpu").collect() == []
    now = time.time_ns()
    cpu.write(1, tags={"host": "a", "zone": "eu west"}, timestamp=now - 3600 * 10**9)
    cpu.write(2, tags={"host": "a"}, timestamp=now)
    frame = series(spark, store.path, "cpu")
    assert frame.columns == ["time", "time_ns", "tags", "fields"]
    cpu.write(2.5, tags={"host": "b"}, timestamp=now)  # whole numbers become floats
    rows = frame.orderBy("time").collect()
    assert [(row.tags, row.fields.value) for row in rows] == [
        ({"host": "a", "zone": "eu west"}, 1), ({"host": "a"}, 2)
    ]  # fmt: skip
    assert type(rows[0].fields.value) is int
    frame = series(spark, store.path, "cpu")
    hosts = frame.groupBy("tags.host").sum("fields.value").collect()
    assert {row[0]: row[1] for row in hosts} == {"a": 3.0, "b": 2.5}
    cpu.retention(raw="30m")
    assert sorted(row.fields.value for row in series(spark, store.path, "cpu").collect()) == [
        2.0, 2.5
    ]  # fmt: skip
    assert len(series(spark, store.path, "cpu", at=1).collect()) == 2
    with pytest.raises(OffsetOutOfRangeError, match="series 'cpu'"):
        series(spark, store.path, "cpu", at=4)
