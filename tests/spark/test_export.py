"""Exports: every record once, in files that any reader reads, however often a run is cut short."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from tests.conftest import OpenStore

from stratalog.errors import DataLossError, LockedError, OptionError
from stratalog.model import Record
from stratalog.spark import jobs
from stratalog.spark.jobs import day_files as dayfiles
from stratalog.spark.jobs.destination import DirectoryLake, open_lake
from stratalog.spark.jobs.ledger import ExportUnit, Ledger

# The package has the function of that name.
export_module = importlib.import_module("stratalog.spark.jobs.export")


DAY = 86400 * 10**9
START = 1_700_000_000 * 10**9


def _fill(store: Any, count: int, name: str = "orders", start: int = 0) -> None:
    """Records of several days: some in segments, some in the log."""
    topic = store.topic(name)
    records = [
        Record(
            value=b'{"id": %d, "amount": %d.5}' % (n, n) if n % 10 else b"not JSON %d" % n,
            key=b"k%d" % (n % 3),
            headers={"n": b"%d" % n},
            timestamp=START + n * DAY // 40,
        )
        for n in range(start, start + count)
    ]
    topic.append_many(records[: count // 2])
    store.checkpoint()
    topic.append_many(records[count // 2 :])


def _read(path: Path) -> list[dict[str, Any]]:
    """All rows, as a reader sees them that knows nothing of us."""
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["offset"]))


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of few records."""
    monkeypatch.setattr(export_module, "_UNIT_BYTES_MIN", 1000)
    monkeypatch.setattr(export_module, "_UNIT_BYTES_MAX", 2000)


@pytest.mark.usefixtures("small_units")
def test_what_is_new_is_exported_once(spark: Any, tmp_path: Path, open_store: OpenStore) -> None:
    """By topic and day, again and again, beside a live writer; what was deleted is not there."""
    store = open_store(shards=1)
    _fill(store, 200)
    _fill(store, 10, "a/b c%")
    store.topic("orders").delete(offsets=[3, 150])
    out = tmp_path / "out"
    report = jobs.export(store.path, out, spark=spark)
    assert report.topics == {"a/b c%": 10, "orders": 198}
    assert report.files > 6
    rows = _read(out)
    assert {str(row["day"]) for row in rows} >= {"2023-11-14", "2023-11-15"}
    orders = [row for row in rows if row["topic"] == "orders"]
    expected = [item for item in store.topic("orders").read() if isinstance(item, Record)]
    assert [row["offset"] for row in orders] == [r.offset for r in expected]
    assert [row["value"] for row in orders] == [r.value for r in expected]
    assert [row["key"] for row in orders] == [r.key for r in expected]
    assert orders[7]["headers"] == [{"key": "n", "value": b"8"}]
    assert all(str(row["timestamp"])[:10] == str(row["day"]) for row in rows)
    again = jobs.export(store.path, out, spark=spark)
    assert (again.rounds, again.records) == (0, 0)
    _fill(store, 50, start=200)
    third = jobs.export(store.path, out, spark=spark)
    assert third.topics == {"orders": 50}
    offsets = [row["offset"] for row in _read(out) if row["topic"] == "orders"]
    assert offsets == [n for n in range(250) if n not in (3, 150)]
    assert spark.read.parquet(str(out)).where("topic = 'orders'").count() == 248


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("put", range(0, 40, 3))
def test_a_run_that_is_cut_short_is_finished_by_the_next(
    spark: Any, tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, put: int
) -> None:
    """Cut before any of its writes, and though there is more to export by then."""
    store = open_store(shards=1)
    _fill(store, 100)
    out = tmp_path / "out"
    jobs.export(store.path, out, spark=spark)
    _fill(store, 100, start=100)
    puts = [0]
    real = DirectoryLake.put

    def failing(lake: DirectoryLake, name: str, data: Any) -> None:
        if puts[0] == put:
            raise KeyboardInterrupt
        puts[0] += 1
        real(lake, name, data)

    monkeypatch.setattr(DirectoryLake, "put", failing)
    monkeypatch.setattr(export_module, "run", _run_here)
    try:
        jobs.export(store.path, out, spark=spark)
    except KeyboardInterrupt:
        pass
    else:
        assert put > puts[0] - 1, "it was never cut"
    monkeypatch.undo()
    _fill(store, 30, start=200)
    jobs.export(store.path, out, spark=spark)
    assert [row["offset"] for row in _read(out)] == list(range(230))


def _run_here(_: Any, function: Any, pieces: Any, *__: Any) -> list[Any]:
    return [function(piece) for piece in pieces]


@pytest.mark.usefixtures("small_units")
def test_json_becomes_columns(spark: Any, tmp_path: Path, open_store: OpenStore) -> None:
    """A value that cannot be read is kept in a column of its own, and counted."""
    store = open_store(shards=1)
    _fill(store, 100)
    out = tmp_path / "out"
    report = jobs.export(store.path, out, spark=spark, schema="id long, amount double")
    assert (report.records, report.bad) == (100, 10)
    rows = _read(out)
    assert [row["offset"] for row in rows] == list(range(100))
    assert "value" not in rows[0]
    good = [row for row in rows if row["offset"] % 10]
    assert all(row["id"] == row["offset"] and row["amount"] == row["offset"] + 0.5 for row in good)
    assert [row["_corrupt"] for row in rows[::10]] == [f"not JSON {n}" for n in range(0, 100, 10)]
    with pytest.raises(OptionError, match="begun with format"):
        jobs.export(store.path, out, spark=spark)
    with pytest.raises(OptionError, match="every export has already: offset"):
        jobs.export(store.path, tmp_path / "x", spark=spark, schema="offset long")
    with pytest.raises(OptionError, match="is not one"):
        jobs.export(store.path, tmp_path / "x", spark=spark, schema="id lung")


def test_what_does_not_fit_is_refused(spark: Any, tmp_path: Path, open_store: OpenStore) -> None:
    """Another store, another export at the same time, records that went unseen."""
    store = open_store(shards=1)
    topic = store.create_topic("orders", segment_records=10, retention_records=20)
    topic.append_many([b"x"] * 30)
    out = tmp_path / "out"
    jobs.export(store.path, out, spark=spark)
    topic.append_many([b"x"] * 100)
    store.compact()
    with pytest.raises(DataLossError, match="retention has evicted them"):
        jobs.export(store.path, out, spark=spark)
    report = jobs.export(store.path, out, spark=spark, fail_on_data_loss=False)
    assert report.records == len(topic)
    other = open_store(tmp_path / "other", shards=1)
    other.topic("x").append(b"x")
    with pytest.raises(OptionError, match="another store"):
        jobs.export(other.path, out, spark=spark)
    lock = open_lake(str(out)).lock()
    assert lock is not None
    with pytest.raises(LockedError):
        jobs.export(store.path, out, spark=spark)
    lock.close()
    with pytest.raises(OptionError, match="use one of parquet"):
        jobs.export(store.path, out, spark=spark, format="orc")
    commit = Ledger(open_lake(str(out))).last()
    assert commit is not None
    assert json.loads((out / "_stratalog/commits" / f"{commit.number:020d}.json").read_text())


def test_a_file_is_named_by_what_is_in_it() -> None:
    """So that writing it again replaces it."""
    unit = ExportUnit("a/b", 3, 10, 20)
    name = "topic=a%2Fb/day=2026-01-31/0000000000000003-00000000000000000010-"
    assert dayfiles.file_name(unit, "2026-01-31") == name + "00000000000000000020.parquet"
