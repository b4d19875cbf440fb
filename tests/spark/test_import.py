"""Imports: files into topics, each row once, however often and wherever a run is cut."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog.errors import NotAStoreError, OptionError
from stratalog.model import Record
from stratalog.spark import importing, jobs
from stratalog.spark.staging import publish


def _records(store: Any, topic: str) -> list[Record]:
    return [item for item in store.topic(topic).read() if isinstance(item, Record)]


def test_whole_rows_become_json(spark: Any, tmp_path: Path, open_store: OpenStore) -> None:
    """Of every format, by the name of the file; run again nothing comes twice."""
    store = open_store(shards=1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "day=1").mkdir()
    (tmp_path / "in" / "day=1" / "x.csv").write_text("not this one")
    (tmp_path / "in" / "a.csv").write_text("id,name\n1,ada\n2,bob\n")
    (tmp_path / "in" / "b.jsonl").write_text('{"id": 3, "tags": ["x"]}\n{"id": 4}\n')
    pq.write_table(pa.table({"id": [5, 6], "raw": [b"\x00", None]}), tmp_path / "in" / "c.parquet")
    expected = {
        "a.csv": [{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}],
        "b.jsonl": [{"id": 3, "tags": ["x"]}, {"id": 4}],
        "c.parquet": [{"id": 5, "raw": "AA=="}, {"id": 6}],
    }
    for name, rows in expected.items():
        report = jobs.import_from(store.path, tmp_path / "in" / name, name, spark=spark)
        assert (report.records, report.batches) == (2, 1)
        assert [json.loads(r.value or b"") for r in _records(store, name)] == rows
        again = jobs.import_from(store.path, tmp_path / "in" / name, name, spark=spark)
        assert again.records == 0
        assert len(store.topic(name)) == 2


def test_columns_become_what_they_are_said_to_be(
    spark: Any, tmp_path: Path, open_store: OpenStore
) -> None:
    """Value, key, time and headers; rows in the order of their times; more files later."""
    store = open_store(shards=1)
    source = tmp_path / "in"
    source.mkdir()
    (source / "1.csv").write_text("who,at,what,from\nb,1700000002,two,eu\na,1700000001,one,\n")
    settings: dict[str, Any] = {
        "format": "csv", "value": "what", "key": "who", "timestamp": "at", "headers": ["from"],
        "spark": spark,
    }  # fmt: skip
    jobs.import_from(store.path, source, "events", **settings)
    (source / "2.csv").write_text("who,at,what,from\nc,1700000003000,three,us\n")
    report = jobs.import_from(store.path, source, "events", **settings)
    assert report.records == 1
    second = 1_700_000_000
    assert [
        (r.value, r.key, r.timestamp // 10**9, r.headers) for r in _records(store, "events")
    ] == [
        (b"one", b"a", second + 1, {}),
        (b"two", b"b", second + 2, {"from": b"eu"}),
        (b"three", b"c", second + 3, {"from": b"us"}),
    ]


def test_what_was_adopted_is_not_adopted_again(
    spark: Any, tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut behind the adoption, before Spark could note it: the batch comes again, and is known."""
    store = open_store(shards=1)
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n')
    monkeypatch.setattr(importing, "_FILES_PER_BATCH", 1)
    real = publish
    calls = [0]

    def cut(*arguments: Any) -> bool:
        done = real(*arguments)
        calls[0] += 1
        if calls[0] == 2:
            raise RuntimeError("cut short")
        return done

    monkeypatch.setattr(importing, "publish", cut)
    source = tmp_path / "in"
    with pytest.raises(Exception, match="cut short"):
        jobs.import_from(store.path, source, "numbers", format="json", spark=spark)
    jobs.import_from(store.path, source, "numbers", format="json", spark=spark)
    values = sorted(json.loads(r.value or b"")["n"] for r in _records(store, "numbers"))
    assert values == [0, 1, 2]


_KILLED = """
import sys
from stratalog.spark import importing, jobs
from stratalog.spark.staging import publish
importing._FILES_PER_BATCH = 1
jobs.import_from(sys.argv[1], sys.argv[2], "numbers", format="json", master="local[2]")
"""


def test_a_killed_import_is_finished_by_the_next(spark: Any, tmp_path: Path) -> None:
    """A process killed in the middle, and another run after it: every row is there once."""
    with stratalog.open(tmp_path / "data", shards=1):
        pass
    source = tmp_path / "in"
    source.mkdir()
    for number in range(20):
        lines = [json.dumps({"n": number * 100 + n}) for n in range(100)]
        (source / f"{number:02d}.jsonl").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "data"), str(source)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 150
        with stratalog.open(tmp_path / "data", read_only=True) as store:
            while "numbers" not in store.topics() or len(store.topic("numbers")) < 300:
                assert process.poll() is None, "it was done before it was killed"
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with the JVM and the workers that it started
        process.wait()
    report = jobs.import_from(tmp_path / "data", source, "numbers", format="json", spark=spark)
    assert 0 < report.records < 2000
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        found = sorted(json.loads(r.value or b"")["n"] for r in _records(store, "numbers"))
    assert found == list(range(2000))


def test_what_cannot_be_imported_is_said(spark: Any, tmp_path: Path, open_store: OpenStore) -> None:
    """No store, no format, no such column, no Kafka source in this Spark."""
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "rows.txt").write_text("a")
    with pytest.raises(NotAStoreError):
        jobs.import_from(tmp_path / "nothing", tmp_path / "rows.csv", "x", spark=spark)
    store = open_store(shards=1)
    with pytest.raises(OptionError, match="give format, one of parquet"):
        jobs.import_from(store.path, tmp_path / "rows.txt", "x", spark=spark)
    with pytest.raises(OptionError, match=r"cannot read .*none.csv"):
        jobs.import_from(store.path, tmp_path / "none.csv", "x", spark=spark)
    with pytest.raises(OptionError, match="'c'"):
        jobs.import_from(store.path, tmp_path / "rows.csv", "x", key="c", spark=spark)
    with pytest.raises(OptionError, match="spark-sql-kafka"):
        jobs.import_from(store.path, "kafka://localhost:1/orders", "x", spark=spark)
    with pytest.raises(OptionError, match="names no topic"):
        jobs.import_from(store.path, "kafka://localhost:1", "x", spark=spark)
    assert store.topics() == []
