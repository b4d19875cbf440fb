"""The contents that Spark must find in a store, as the store itself reads it."""

from __future__ import annotations

import pickle
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType
from tests.spark.reuse import pushdown

from stratalog.format.record_columns import Columns
from stratalog.handles.store import Store
from stratalog.model import Gap
from stratalog.spark.source.columns import COLUMNS, default_schema
from stratalog.spark.source.data_source import StratalogSource
from stratalog.spark.source.read_task import Task, read_task

ALL = (
    "topic string, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, tag string, node string, "
    "priority smallint, expires_at timestamp, not_before timestamp, operation tinyint, "
    "event_time timestamp"
)


def frame(spark: Any, path: Path | str, topic: str, **options: Any) -> Any:
    """A DataFrame of a topic."""
    reader = spark.read.format("stratalog").option("topic", topic)
    return reader.options(**{name: str(value) for name, value in options.items()}).load(str(path))


def rows(data: Any) -> list[dict[str, Any]]:
    """All rows of a DataFrame or an Arrow table, by topic and offset, times as microseconds."""
    table = used_twice(data) if hasattr(data, "toArrow") else data
    found = []
    for row in table.to_pylist():
        for name in ("timestamp", "expires_at", "not_before", "event_time"):
            if row.get(name) is not None:
                row[name] = _micros(row[name])
        found.append(row)
    return sorted(found, key=lambda row: (row["topic"], row["offset"]))


def used_twice(data: Any) -> pa.Table:
    """All rows of a DataFrame that was filtered before, by a user who has filters pushed.

    Spark plans once for every DataFrame: neither the filter nor the first use may show in the next.
    """
    with pushdown(data.sparkSession, "true"):
        some = data.where("offset < 7").toArrow()
        table = data.toArrow()
    offsets = [offset for offset in table["offset"].to_pylist() if offset < 7]
    assert sorted(some["offset"].to_pylist()) == sorted(offsets)
    return table


def expected(store: Store, *topics: str) -> list[dict[str, Any]]:
    """Read them from the store, record by record."""
    return [
        {
            "topic": topic,
            "offset": record.offset,
            "timestamp": record.timestamp // 1000,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": k, "value": v} for k, v in record.headers.items()] or None,
            "tag": record.tag,
            "node": record.node,
            "priority": record.priority,
            "expires_at": record.expires_at // 1000 or None,
            "not_before": record.not_before // 1000 or None,
            "operation": record.operation,
            "event_time": record.event_time // 1000,
        }
        for topic in sorted(topics)
        for record in store.topic(topic).read()
        if not isinstance(record, Gap)
    ]


def offsets(data: Any) -> list[int]:
    """The offsets of a DataFrame, sorted."""
    return sorted(used_twice(data)["offset"].to_pylist())


def _micros(when: datetime) -> int:
    return round(when.timestamp() * 10**6)


def reader(path: Path | str, topic: str, schema: StructType | None = None, **options: Any) -> Any:
    """A reader as Spark would make it, in this process."""
    given = {name: str(value) for name, value in options.items()}
    source = StratalogSource(CaseInsensitiveDict(given | {"path": str(path), "topic": topic}))
    return source.reader(schema or default_schema(include_headers=True))


def tasks(path: Path | str, topic: str, **options: Any) -> list[Task]:
    """The tasks of a read."""
    return [partition.value for partition in reader(path, topic, **options).partitions()]


def run(tasks: list[Task], names: tuple[str, ...] = tuple(COLUMNS)) -> pa.Table:
    """Read what the tasks give, each sent through a pickle first."""
    batches = [
        batch for task in tasks for batch in read_task(pickle.loads(pickle.dumps(task)), names)
    ]
    return pa.Table.from_batches(batches, Columns(names).schema)


def pickled(value: Any) -> bytes:
    """As Spark sends it."""
    pickler: Any = cloudpickle
    return bytes(pickler.dumps(value))


def read(path: Path | str, topic: str, **options: Any) -> pa.Table:
    """Read as `frame` does, in this process."""
    return run(tasks(path, topic, **options))


def read_offsets(path: Path | str, topic: str, **options: Any) -> list[int]:
    """Offsets of a read, in the order they come."""
    found: list[int] = read(path, topic, **options)["offset"].to_pylist()
    return found
