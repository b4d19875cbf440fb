"""DataFrames and streams into a table: keys are put and deleted, every batch once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType
from tests.conftest import OpenStore

import stratalog
from stratalog.errors import OptionError
from stratalog.spark import table
from stratalog.spark.source.sink import StagedByTask, batch_writer, stream_writer

ENTRY = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ([("key", StringType())], {}, "needs the column 'value'"),
        ([("value", BinaryType())], {}, "needs the column 'key'"),
        ([("key", LongType()), ("value", BinaryType())], {}, "column 'key' of bigint"),
        ([("key", StringType()), ("tag", StringType())], {}, "unknown column 'tag'"),
        ([("key", StringType())], {"topic": "a"}, "a topic or to a table. Give one"),
        ([("key", StringType())], {"table": ""}, "empty"),
    ],
)
def test_what_a_table_does_not_take_is_told(
    tmp_path: Path, fields: Any, options: dict[str, str], reason: str
) -> None:
    """Before anything is written."""
    schema = StructType([StructField(*field) for field in fields])
    given = {"path": str(tmp_path / "data"), "table": "users"} | options
    with pytest.raises(OptionError, match=reason):
        batch_writer(schema, given, False)
    assert not (tmp_path / "data").exists()


def test_a_table_is_not_overwritten(tmp_path: Path) -> None:
    """By a batch; a query in complete mode puts all of its rows again."""
    given = {"path": str(tmp_path / "data"), "table": "users"}
    with pytest.raises(OptionError, match=r"changed key by key: write with mode\('append'\)"):
        batch_writer(ENTRY, given, True)
    assert stream_writer(ENTRY, given, True)


def test_a_batch_that_is_written_again_changes_a_table_once(tmp_path: Path) -> None:
    """As after a crash of the driver, when Spark has not noted that the batch was committed."""
    path = str(tmp_path / "data")
    writer = stream_writer(ENTRY, {"path": path, "table": "users"}, False)
    for batch, value in ((0, b"1"), (1, b"2"), (0, b"again"), (1, b"again")):
        rows = pa.RecordBatch.from_pydict(
            {"key": ["ada", "bob"], "value": pa.array([value, None], pa.binary())}
        )
        staged = writer.write(iter([rows]))
        assert isinstance(staged, StagedByTask)
        staged.query = "some-query"
        writer.commit([staged, None], batch)
    with stratalog.open(path) as store:
        users = store.table("users")
        assert dict(users) == {"ada": b"2"}
        assert users.version == 3


def test_a_dataframe_changes_a_table_beside_its_writer(spark: Any, open_store: OpenStore) -> None:
    """Text keys stay text and others bytes; null deletes; what was read can be written back."""
    store = open_store()
    users = store.table("users")
    users.put("ada", b"admin")
    users.put("bob", b"guest")
    rows = [("ada", "owner"), ("bob", None), ("eve", "guest")]
    frame = spark.createDataFrame(rows, "key string, value string")

    def write(frame: Any, name: str) -> None:
        writer = frame.write.format("stratalog").mode("append").option("table", name)
        writer.save(store.path)

    write(frame, "users")
    assert dict(users) == {"ada": b"owner", "eve": b"guest"}
    write(table(spark, store.path, "users"), "copy")
    assert dict(store.table("copy")) == {b"ada": b"owner", b"eve": b"guest"}
    assert store.table("copy")["ada"] == b"owner"
    with pytest.raises(PySparkException, match="Column 'key' has nulls"):
        write(spark.createDataFrame([(None, "x")], "key string, value string"), "users")
    store.topic("orders").append(b"x")
    with pytest.raises(PySparkException, match="'orders' is a topic, not a table"):
        write(frame, "orders")


def test_a_stream_keeps_a_table(spark: Any, open_store: OpenStore, tmp_path: Path) -> None:
    """Changes as they come, and counts in complete mode; each over a restart of its query."""
    store = open_store()
    events = store.topic("events")

    def run(name: str, mode: str, select: Any) -> None:
        source = spark.readStream.format("stratalog").option("topic", "events")
        source = source.option("startingOffsets", "earliest").load(store.path)
        sink = select(source).writeStream.format("stratalog").option("table", name)
        sink = sink.outputMode(mode).option("checkpointLocation", str(tmp_path / name))
        sink.trigger(availableNow=True).start(store.path).awaitTermination()

    def changes(source: Any) -> Any:
        return source.selectExpr("cast(key AS string) AS key", "value")

    def counts(source: Any) -> Any:
        counted = source.groupBy(source.key.cast("string").alias("key")).count()
        return counted.selectExpr("key", "cast(count AS string) AS value")

    for value in (b"1", b"2", None):
        events.append(value, key=b"ada")
        events.append(b"kept", key=b"bob")
        run("newest", "append", changes)
        run("counts", "complete", counts)
    assert dict(store.table("newest")) == {"bob": b"kept"}
    assert [entry.value for entry in store.table("newest").history("ada")] == [b"1", b"2", None]
    assert dict(store.table("counts")) == {"ada": b"3", "bob": b"3"}
    assert store.table("newest").version == 5
