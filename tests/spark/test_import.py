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
from stratalog.spark import jobs
from stratalog.spark.jobs import import_rows as importing
from stratalog.spark.jobs.stage_segments import publish


def _records(store: Any, topic: str) -> list[Record]:
    return [item for item in store.topic(topic).read() if isinstance(item, Record)]


def test_whole_rows_become_json(spark: Any, tmp_path: Path, open_store: OpenStore) -> None:
    """Every format, by the name of the file; run again nothing comes twice."""
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


# A time that was empty was null, sorted first, and became the time of the import; because times
# never go back, every other row of the batch got it, too, and nothing said so. Text that was no
# time ended the run in a stack of Java's, and a line that was no JSON became a record.
_GOOD_ROWS = [("a", "2024-01-02T00:00:00Z"), ("b", "2024-01-01T00:00:00Z")]
_BAD_TIMES = {
    "without a time": None,
    "with a time that cannot be read": "yesterday",
    "with a time before 1970 or after 2230": "1969-12-31T23:59:59Z",
}
_FORMATS = ["csv", "tsv", "json", "parquet"]


def _write_rows(path: Path, rows: list[tuple[str, str | None]]) -> None:
    if path.suffix == ".parquet":
        names, times = zip(*rows, strict=True)
        pq.write_table(pa.table({"name": pa.array(names), "at": pa.array(times)}), path)
    elif path.suffix == ".json":
        path.write_text("".join(json.dumps({"name": n, "at": t}) + "\n" for n, t in rows))
    else:
        mark = "," if path.suffix == ".csv" else "\t"
        path.write_text("".join(f"{n}{mark}{t or ''}\n" for n, t in [("name", "at"), *rows]))


@pytest.mark.parametrize("ending", _FORMATS)
def test_a_row_with_a_bad_time_is_refused_left_out_or_set_aside(
    spark: Any, tmp_path: Path, open_store: OpenStore, ending: str
) -> None:
    """As it was asked for, counted by reason; the other rows keep their times, and come once."""
    store = open_store(shards=1)
    source = tmp_path / f"rows.{ending}"
    bad = [(f"bad-{number}", time) for number, time in enumerate(_BAD_TIMES.values())]
    _write_rows(source, [*bad, *_GOOD_ROWS])
    settings: dict[str, Any] = {"value": "name", "timestamp": "at", "spark": spark}
    with pytest.raises(OptionError, match=r"3 of 5 rows in .* cannot become records") as caught:
        jobs.import_from(store.path, source, "events", **settings)
    for reason in _BAD_TIMES:
        assert f"1 {reason}" in str(caught.value)
    assert "rows." in str(caught.value).partition("One of them: ")[2]
    assert store.topics() == []
    assert not list(Path(store.path).glob("incoming/*.seg"))

    report = jobs.import_from(store.path, source, "events", bad_rows="aside", **settings)
    assert (report.records, report.bad, report.without_time) == (2, 3, 0)
    assert report.bad_reasons == dict.fromkeys(_BAD_TIMES, 1)
    seconds = [(r.value, r.timestamp // 10**9) for r in _records(store, "events")]
    assert seconds == [(b"b", 1_704_067_200), (b"a", 1_704_153_600)]
    found = {r.headers["reason"].decode(): r for r in _records(store, "events.bad")}
    assert set(found) == set(_BAD_TIMES)
    for number, reason in enumerate(_BAD_TIMES):
        assert json.loads(found[reason].value or b"")["name"] == f"bad-{number}"
        assert found[reason].headers["file"].endswith(f"rows.{ending}".encode())

    skipped = jobs.import_from(store.path, source, "others", bad_rows="skip", **settings)
    assert (skipped.records, skipped.bad) == (2, 3)
    assert sorted(store.topics()) == ["events", "events.bad", "others"]
    assert jobs.import_from(store.path, source, "others", bad_rows="skip", **settings).bad == 0


@pytest.mark.parametrize("ending", _FORMATS)
def test_rows_without_a_time_may_have_the_time_of_the_import(
    spark: Any, tmp_path: Path, open_store: OpenStore, ending: str
) -> None:
    """When requested: they alone, after those that have a time, and counted."""
    store = open_store(shards=1)
    source = tmp_path / f"rows.{ending}"
    _write_rows(source, [("untimed", None), *_GOOD_ROWS])
    began = time.time_ns()
    report = jobs.import_from(
        store.path, source, "events", value="name", timestamp="at", without_time="now", spark=spark
    )
    assert (report.records, report.bad, report.without_time) == (3, 0, 1)
    first, second, third = _records(store, "events")
    assert [first.value, second.value, third.value] == [b"b", b"a", b"untimed"]
    assert second.timestamp // 10**9 == 1_704_153_600
    assert third.timestamp >= began


@pytest.mark.parametrize("ending", _FORMATS)
def test_rows_older_than_the_topic_are_counted(
    spark: Any, tmp_path: Path, open_store: OpenStore, ending: str
) -> None:
    """They get the time of its newest record, and the report says how many did."""
    store = open_store(shards=1)
    store.topic("events").append(b"now")
    source = tmp_path / f"rows.{ending}"
    _write_rows(source, [*_GOOD_ROWS, ("later", "2200-01-01T00:00:00Z")])
    report = jobs.import_from(
        store.path, source, "events", value="name", timestamp="at", spark=spark
    )
    assert (report.records, report.late) == (3, 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", "id,name\n1,ada\n2\n3,bob,and more\n"),
        ("rows.tsv", "id\tname\n1\tada\n2\n3\tbob\tand more\n"),
        ("rows.json", '{"id": 1, "name": "ada"}\n{"id": 2, "na\nnot JSON at all\n'),
    ],
)
def test_a_row_that_cannot_be_parsed_is_never_a_record(
    spark: Any, tmp_path: Path, open_store: OpenStore, name: str, text: str
) -> None:
    """It is refused, left out and counted, or set aside as the text that it is."""
    store = open_store(shards=1)
    source = tmp_path / name
    source.write_text(text)
    with pytest.raises(OptionError, match="2 could not be parsed"):
        jobs.import_from(store.path, source, "people", spark=spark)
    report = jobs.import_from(store.path, source, "people", bad_rows="aside", spark=spark)
    assert (report.records, report.bad_reasons) == (1, {"could not be parsed": 2})
    (good,) = _records(store, "people")
    assert json.loads(good.value or b"") == {"id": 1, "name": "ada"}
    texts = sorted((r.value or b"").decode() for r in _records(store, "people.bad"))
    assert texts == sorted(text.splitlines()[-2:])


def test_a_mended_file_is_imported_by_the_next_run(
    spark: Any, tmp_path: Path, open_store: OpenStore
) -> None:
    """A refusal leaves nothing that stands in the way."""
    store = open_store(shards=1)
    source = tmp_path / "rows.csv"
    source.write_text("name,at\nada,2024-01-01\nbob,\n")
    settings: dict[str, Any] = {"value": "name", "timestamp": "at", "spark": spark}
    with pytest.raises(OptionError, match="1 without a time"):
        jobs.import_from(store.path, source, "people", **settings)
    source.write_text("name,at\nada,2024-01-01\nbob,2024-01-02\n")
    assert jobs.import_from(store.path, source, "people", **settings).records == 2
    assert store.topic("people").read_values() == [b"ada", b"bob"]


def test_numbers_beside_text_are_times_still(
    spark: Any, tmp_path: Path, open_store: OpenStore
) -> None:
    """One row that is no number makes a column of seconds one of text: it alone is bad."""
    store = open_store(shards=1)
    source = tmp_path / "rows.csv"
    source.write_text("name,at\nada,1700000001\nbob,soon\ncy,1700000002000\n")
    report = jobs.import_from(
        store.path, source, "people", value="name", timestamp="at", bad_rows="skip", spark=spark
    )
    assert (report.records, report.bad) == (2, 1)
    assert [r.timestamp // 10**9 for r in _records(store, "people")] == [1700000001, 1700000002]


@pytest.mark.parametrize("ending", _FORMATS)
def test_a_row_larger_than_a_record_may_be_is_bad(
    spark: Any,
    tmp_path: Path,
    open_store: OpenStore,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
) -> None:
    """The limit is the store's own; the row is set aside, cut, or left out."""
    monkeypatch.setenv("STRATALOG_RECORD_BYTES_MAX", "20000")
    store = open_store(shards=1)
    source = tmp_path / f"rows.{ending}"
    _write_rows(source, [("x" * 30_000, "2024-01-01"), ("small", "2024-01-01")])
    report = jobs.import_from(
        store.path, source, "events", value="name", bad_rows="aside", spark=spark
    )
    assert (report.records, report.bad_reasons) == (1, {"too large": 1})
    assert store.topic("events").read_values() == [b"small"]
    (kept,) = _records(store, "events.bad")
    assert 10_000 < len(kept.value or b"") <= 20_000


def test_files_that_cannot_be_read_are_said(
    spark: Any, tmp_path: Path, open_store: OpenStore
) -> None:
    """A file that is no Parquet, and columns in another order, are an error in one sentence."""
    store = open_store(shards=1)
    for name in ("csv", "parquet"):
        (tmp_path / name).mkdir()
    (tmp_path / "csv" / "1.csv").write_text("id,name\n1,ada\n")
    (tmp_path / "csv" / "2.csv").write_text("name,id\nbob,2\n")
    with pytest.raises(OptionError, match=r"cannot read .*csv: .*header") as caught:
        jobs.import_from(store.path, tmp_path / "csv", "x", format="csv", spark=spark)
    pq.write_table(pa.table({"id": [1]}), tmp_path / "parquet" / "1.parquet")
    (tmp_path / "parquet" / "2.parquet").write_bytes(b"PAR1 no more than that PAR1")
    with pytest.raises(OptionError, match=r"cannot read .*parquet") as other:
        jobs.import_from(store.path, tmp_path / "parquet", "x", format="parquet", spark=spark)
    for error in (caught, other):
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 600
    (tmp_path / "rows.json").write_text('{"at": {"x": 1}}\n')
    with pytest.raises(OptionError, match="is no time"):
        jobs.import_from(store.path, tmp_path / "rows.json", "x", timestamp="at", spark=spark)
    (tmp_path / "none.json").write_text("this\nis a poem\n")
    with pytest.raises(OptionError, match="no row could be parsed: is this json"):
        jobs.import_from(store.path, tmp_path / "none.json", "x", spark=spark)
    assert store.topics() == []


def test_what_was_adopted_is_not_adopted_again(
    spark: Any, tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after the adoption, before Spark could note it: the batch comes again, and is known."""
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
from stratalog.spark import jobs
from stratalog.spark.jobs import import_rows as importing
from stratalog.spark.jobs.stage_segments import publish
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
        deadline = time.monotonic() + 600
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
