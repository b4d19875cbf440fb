"""DataFrames into topics: every record once, in all topics or in none, beside other writers."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)
from tests.spark import frames

import stratalog
from stratalog.errors import (
    NotAStoreError,
    OptionError,
    PressureError,
    SyncFailedError,
    TooLargeError,
    UsageError,
)
from stratalog.format.arrow import TYPES
from stratalog.fs.posix import PosixFile
from stratalog.handles.publish import is_adopted, publish
from stratalog.model import Record
from stratalog.segments.staging import StageWriter, append_part, manifest_of
from stratalog.spark.source import sink
from stratalog.spark.source.sink import StagedByTask, batch_writer, stream_writer

VALUE = StructType([StructField("value", BinaryType())])


def read(path: Path, topic: str) -> list[Record]:
    """Read the records of a topic beside a writer."""
    with stratalog.open(path, read_only=True) as store:
        records = list(store.topic(topic).read())
    assert all(isinstance(record, Record) for record in records)
    return records  # type: ignore[return-value]


def values(path: Path, topic: str) -> list[bytes | None]:
    return [record.value for record in read(path, topic)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where nothing is yet."""
    return tmp_path / "data"


# --- what can be asked for ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "which store"),
        ({"topic": "orders", "path": "s3://bucket/x"}, "can be read, but not written"),
        ({"topik": "orders"}, "did you mean 'topic'"),
        ({"topic": ""}, "empty"),
        ({"topic": "orders", "compression": "zst"}, "did you mean 'zstd'"),
        ({"topic": "orders", "adoptTimeoutSeconds": "soon"}, "0 or more seconds"),
        ({"topic": "orders", "recordBytesMax": "much"}, "whole number of bytes"),
        ({"topic": "orders", "recordBytesMax": "0"}, "record_bytes_max"),
        ({"topic": "orders", "writerId": "me"}, "go together"),
        ({"topic": "orders", "writerId": "me", "batchId": "-1"}, "whole number"),
        ({}, "which topic"),
    ],
)
def test_a_wrong_option_says_what_is_wrong(
    path: Path, options: dict[str, str], reason: str
) -> None:
    """Before anything is written."""
    given = options if reason == "which store" else {"path": str(path)} | options
    with pytest.raises(OptionError, match=reason):
        batch_writer(VALUE, given, False)
    assert not path.exists()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([("valeu", BinaryType())], "unknown column 'valeu': did you mean 'value'"),
        ([("value", DoubleType())], "column 'value' of double cannot be written: cast it to"),
        ([("timestamp", TimestampType())], "nothing to write"),
        ([("value", BinaryType()), ("key", LongType())], "column 'key' of bigint"),
    ],
)
def test_a_wrong_column_says_what_is_wrong(path: Path, fields: Any, reason: str) -> None:
    """By name, and what it may be instead."""
    schema = StructType([StructField(*field) for field in fields])
    with pytest.raises(OptionError, match=reason):
        batch_writer(schema, {"path": str(path), "topic": "orders"}, False)


def test_topics_are_appended_to_and_never_overwritten(path: Path) -> None:
    """Neither by a batch nor by a stream."""
    options = {"path": str(path), "topic": "orders"}
    with pytest.raises(OptionError, match=r"mode\('append'\)"):
        batch_writer(VALUE, options, True)
    with pytest.raises(OptionError, match=r"outputMode\('append'\)"):
        stream_writer(VALUE, options, True)
    with pytest.raises(OptionError, match=r"for df\.write"):
        stream_writer(VALUE, options | {"writerId": "me", "batchId": "1"}, False)


def test_a_directory_of_something_else_is_not_written_to(path: Path) -> None:
    """An empty one becomes a store."""
    path.mkdir()
    (path / "notes.txt").write_text("mine")
    with pytest.raises(NotAStoreError, match="not empty"):
        batch_writer(VALUE, {"path": str(path), "topic": "orders"}, False)


# --- without Spark: as it calls ---------------------------------------------------------------


def _batch(*given: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(given, pa.binary())})


def test_what_is_committed_is_adopted_and_what_is_not_is_not(path: Path) -> None:
    """An abort after a commit that failed late takes nothing away."""
    writer = batch_writer(VALUE, {"path": str(path), "topic": "orders"}, False)
    messages = [writer.write(iter([_batch(b"a", b"b"), _batch(b"c")])), writer.write(iter([]))]
    writer.write(iter([_batch(b"of a task that is tried again")]))
    assert values_or_none(path) is None
    writer.commit([*messages, None])
    writer.abort([*messages, None])
    assert values(path, "orders") == [b"a", b"b", b"c"]


def values_or_none(path: Path) -> list[bytes | None] | None:
    with stratalog.open(path, read_only=True) as store:
        return store.topic("orders").read_values() if "orders" in store.topics() else None


def test_a_task_that_fails_leaves_nothing(path: Path) -> None:
    """Not even a file."""
    writer = batch_writer(VALUE, {"path": str(path), "topic": "orders"}, False)

    def batches() -> Iterator[pa.RecordBatch]:
        yield _batch(b"a")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writer.write(batches())
    assert list((path / "incoming").iterdir()) == []


# Spark writes did not look at the limit: a record that `append` refuses came in this way.
@pytest.mark.parametrize("column", ["value", "key", "tag", "headers"])
def test_a_record_over_the_limit_fails_the_write(
    path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """Whatever column makes it large; one at the limit is written, and nothing else is left."""
    options = {"path": str(path), "topic": "orders"}

    def batch(size: int) -> pa.RecordBatch:
        item: Any = [("h", b"x" * (size - 1))] if column == "headers" else b"x" * size
        return pa.record_batch({column: pa.array([item], TYPES[column])})

    at_limit = batch_writer(VALUE, options | {"recordBytesMax": "3000000"}, False)
    at_limit.commit([at_limit.write(iter([_batch(b"small"), batch(3_000_000)]))])
    assert len(read(path, "orders")) == 2
    before = list((path / "incoming").iterdir())
    with pytest.raises(TooLargeError, match=r"3000001 bytes .* record_bytes_max is 3000000"):
        at_limit.write(iter([_batch(b"small"), batch(3_000_001)]))
    monkeypatch.setenv("STRATALOG_RECORD_BYTES_MAX", "2000")
    with pytest.raises(TooLargeError, match="record_bytes_max is 2000"):
        batch_writer(VALUE, options, False).write(iter([batch(2001)]))
    assert list((path / "incoming").iterdir()) == before
    assert len(read(path, "orders")) == 2


def test_a_writer_that_does_not_adopt_is_named(path: Path, monkeypatch: Any) -> None:
    """The data is published, and must not be written again."""
    options = {"path": str(path), "topic": "orders", "adoptTimeoutSeconds": "0"}
    writer = batch_writer(VALUE, options, False)
    message = writer.write(iter([_batch(b"a")]))
    with stratalog.open(path) as store:
        # As if it was another process, and stuck.
        monkeypatch.setattr("stratalog.handles.publish.open_writer", lambda root: None)
        held = store._upkeep._lock  # type: ignore[union-attr]
        with held, pytest.raises(PressureError, match="do not write it again"):
            writer.commit([message])
    monkeypatch.undo()
    with stratalog.open(path) as store:
        store.adopt()
        assert store.topic("orders").read_values() == [b"a"]


def test_large_tasks_make_segments_of_a_usual_size(path: Path, monkeypatch: Any) -> None:
    """In the order of their records."""
    monkeypatch.setattr(sink, "TopicOptions", lambda: stratalog.TopicOptions(segment_bytes=1 << 20))
    writer = batch_writer(VALUE, {"path": str(path), "topic": "orders"}, False)
    given = [bytes([n]) * (1 << 19) for n in range(9)]
    message = writer.write(iter([_batch(value) for value in given]))
    assert isinstance(message, StagedByTask)
    assert len(message.segments) > 3
    writer.commit([message])
    assert values(path, "orders") == given


def test_what_was_adopted_is_read_wherever_it_is(path: Path) -> None:
    """Where it was staged, and by a plan from before it was moved, too."""
    with stratalog.open(path, checkpoint_interval=3600) as store:
        orders = store.create_topic("orders", segment_bytes=1 << 16)
        orders.append_many([b"own"] * 10)
        writer = batch_writer(VALUE, {"path": str(path), "topic": "orders"}, False)
        small = writer.write(iter([_batch(*[b"small"] * 10)]))
        large = writer.write(iter([_batch(*[b"large" * 1000] * 10)]))
        with store._upkeep._lock:  # type: ignore[union-attr]
            parts = [append_part("orders", [s for _, s in m.segments]) for m in (small, large)]  # type: ignore[attr-defined]
            publish(path, manifest_of("job", None, parts))
            store._upkeep._adopter.adopt()  # type: ignore[union-attr]
            orders.append_many([b"own"] * 10)
            planned = frames.tasks(path, "orders")
            wanted = frames.expected(store, "orders")
            assert len(wanted) == 40
            assert frames.rows(frames.run(planned)) == wanted
        store.checkpoint()
        assert frames.rows(frames.run(planned)) == wanted
        assert frames.rows(frames.read(path, "orders")) == wanted


# --- with Spark -------------------------------------------------------------------------------


def test_every_column_arrives(spark: Any, path: Path) -> None:
    """Text is stored as UTF-8, what is null is not there, and a new directory becomes a store."""
    when = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    schema = (
        "value string, key binary, headers array<struct<key:string,value:binary>>, tag string, "
        "node string, timestamp timestamp, priority int, expires_at timestamp"
    )
    later = datetime(2200, 1, 1, tzinfo=UTC)
    rows = [
        ("grüße", b"k", [("h", b"1"), ("i", b"2")], "t", "n", when, 7, later),
        (None, None, None, None, None, when, None, None),
    ]
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    frame.write.format("stratalog").mode("append").option("topic", "orders").option(
        "compression", "zstd"
    ).save(str(path))
    first, second = read(path, "orders")
    assert (first.value, first.key, first.tag, first.node) == ("grüße".encode(), b"k", "t", "n")
    assert dict(first.headers) == {"h": b"1", "i": b"2"}
    assert first.timestamp == 1767323045678901000
    assert (first.priority, first.expires_at) == (7, int(later.timestamp()) * 10**9)
    assert (second.value, second.key, second.tag, dict(second.headers)) == (None, None, None, {})


def test_a_column_says_the_topic_of_every_record(spark: Any, path: Path) -> None:
    """All of them become visible at once, beside a writer in this process."""
    with stratalog.open(path) as store:
        store.topic("t0").append(b"own")
        frame = spark.range(0, 10000, 1, 4).selectExpr(
            "concat('t', id % 3) as topic", "cast(id as string) as value"
        )
        frame.write.format("stratalog").mode("append").save(str(path))
        store.topic("t0").append(b"own")
        found = {name: store.topic(name).read_values() for name in ("t0", "t1", "t2")}
    assert found["t0"][0] == found["t0"][-1] == b"own"
    numbers = {name: [int(v or b"") for v in some if v != b"own"] for name, some in found.items()}
    for index, name in enumerate(("t0", "t1", "t2")):
        assert numbers[name] == [n for n in range(10000) if n % 3 == index]


HOLDER = """
import sys, stratalog
with stratalog.open(sys.argv[1]) as store:
    store.topic("orders").append(b"theirs")
    print("ready", flush=True)
    sys.stdin.read()
    store.topic("orders").append(b"theirs")
"""


def test_a_writer_in_another_process_adopts(spark: Any, path: Path) -> None:
    """It knows nothing of Spark, and goes on appending."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        frame = spark.range(0, 100, 1, 2).selectExpr("cast(id as string) as value")
        frame.write.format("stratalog").mode("append").option("topic", "orders").save(str(path))
        assert len(values(path, "orders")) == 101
    finally:
        holder.communicate(b"", timeout=60)
    found = values(path, "orders")
    assert found[0] == found[-1] == b"theirs"
    assert sorted(int(v or b"") for v in found[1:-1]) == list(range(100))


def test_a_batch_that_says_which_it_is_is_written_once(spark: Any, path: Path) -> None:
    """As `foreachBatch` needs it."""
    frame = spark.range(3).selectExpr("cast(id as string) as value").coalesce(1)
    write = frame.write.format("stratalog").mode("append").option("topic", "orders")
    for batch in (0, 0, 1, 0, 1):
        write.option("writerId", "job").option("batchId", batch).save(str(path))
    assert values(path, "orders") == [b"0", b"1", b"2"] * 2
    assert is_adopted(path, "job", 1)
    assert not is_adopted(path, "job", 2)


def test_what_was_read_can_be_written_elsewhere(spark: Any, path: Path, tmp_path: Path) -> None:
    """A topic is copied with its times, keys and tags; its offsets are new."""
    with stratalog.open(tmp_path / "from") as store:
        for n in range(50):
            store.topic("orders").append(b"%d" % n, key=b"k", tag=f"t{n}", timestamp=float(n + 1))
    source = spark.read.format("stratalog").option("topic", "orders").load(str(tmp_path / "from"))
    source.write.format("stratalog").mode("append").option("topic", "copy").save(str(path))
    copied = read(path, "copy")
    assert [record.value for record in copied] == [b"%d" % n for n in range(50)]
    assert [record.timestamp for record in copied] == [(n + 1) * 10**9 for n in range(50)]
    assert copied[7].tag == "t7"


def test_an_error_reaches_the_user(spark: Any, path: Path) -> None:
    """In an option, and in a record of a task."""
    frame = spark.range(3).selectExpr("cast(id as string) as value")
    write = frame.write.format("stratalog").mode("append")
    with pytest.raises(PySparkException, match="which topic"):
        write.save(str(path))
    with pytest.raises(PySparkException, match="did you mean 'topic'"):
        write.option("topics", "orders").save(str(path))
    nameless = frame.selectExpr("value", "if(value = '1', null, 'orders') as topic")
    with pytest.raises(PySparkException, match="column 'topic' has nulls"):
        nameless.write.format("stratalog").mode("append").save(str(path))
    with pytest.raises((PySparkException, UsageError), match=r"mode\('append'\)"):
        frame.write.format("stratalog").mode("overwrite").option("topic", "o").save(str(path))
    assert values_or_none(path) is None


def test_a_stream_goes_on_where_it_stopped(spark: Any, path: Path, tmp_path: Path) -> None:
    """From a topic to another of the same store, beside its writer; each record once."""
    with stratalog.open(path) as store:
        for turn in range(3):
            store.topic("in").append_many([b"%d" % n for n in range(turn * 100, turn * 100 + 100)])
            source = (
                spark.readStream.format("stratalog")
                .option("topic", "in")
                .option("startingOffsets", "earliest")
                .option("maxOffsetsPerTrigger", 60)
                .load(str(path))
            )
            query = (
                source.selectExpr("value", "'out' as topic")
                .writeStream.format("stratalog")
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(path))
            )
            assert query.awaitTermination(120)
        assert store.topic("out").read_values() == [b"%d" % n for n in range(300)]
        assert store.is_adopted(f"spark-query-{query.id}", 5)


# --- synced while it is written --------------------------------------------------------------


def test_what_is_written_is_synced_meanwhile(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many bytes, and never the same ones twice."""
    monkeypatch.setattr(sink, "_SYNC_BYTES", 1 << 20)
    synced: list[int] = []
    begin = StageWriter.begin_sync

    def begin_sync(writer: StageWriter) -> Callable[[], None]:
        synced.append(writer.unsynced)
        sync = begin(writer)
        assert writer.unsynced == 0
        return sync

    monkeypatch.setattr(StageWriter, "begin_sync", begin_sync)
    writer = batch_writer(VALUE, {"path": str(path), "topic": "a"}, False)
    batch = pa.record_batch({"value": pa.array([bytes(1 << 19)] * 2)})
    message = writer.write(iter([batch] * 4))
    assert len(synced) == 4
    assert all(1 << 20 <= length < 1.1 * (1 << 20) for length in synced)
    writer.commit([message])
    assert len(values(path, "a")) == 8


@pytest.mark.parametrize("every", [1, 1 << 40])
def test_a_sync_that_fails_fails_the_task(
    path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """On the way, of which the sync at the end would not know: the system tells of it once. And at
    the end.
    """
    monkeypatch.setattr(sink, "_SYNC_BYTES", every)

    sync = PosixFile.fdatasync
    failures = iter([OSError(errno.EIO, "a bad sector")])

    def fail_once(file: PosixFile) -> None:
        if (error := next(failures, None)) is not None:
            raise error
        sync(file)

    writer = batch_writer(VALUE, {"path": str(path), "topic": "a"}, False)
    monkeypatch.setattr(PosixFile, "fdatasync", fail_once)
    batch = pa.record_batch({"value": pa.array([bytes(1 << 20)])})
    with pytest.raises(SyncFailedError, match=r"tmp: sync failed: .*a bad sector.*write it again"):
        writer.write(iter([batch]))
