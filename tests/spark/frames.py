"""What Spark must find in a store, as the store itself reads it."""

from __future__ import annotations

import pickle
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from stratalog.model import Gap
from stratalog.spark.columns import COLUMNS, Columns, default_schema
from stratalog.spark.pieces import Task, read_task
from stratalog.spark.source import StratalogSource
from stratalog.store import Store

ALL = (
    "topic string, offset long, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, tag string, node string, "
    "priority smallint, expires_at timestamp, not_before timestamp, operation tinyint"
)


def frame(spark: Any, path: Path | str, topic: str, **options: Any) -> Any:
    """A DataFrame of a topic."""
    reader = spark.read.format("stratalog").option("topic", topic)
    return reader.options(**{name: str(value) for name, value in options.items()}).load(str(path))


def rows(data: Any) -> list[dict[str, Any]]:
    """All rows of a DataFrame or an Arrow table, by topic and offset, times as microseconds."""
    table = data.toArrow() if hasattr(data, "toArrow") else data
    found = []
    for row in table.to_pylist():
        for name in ("timestamp", "expires_at", "not_before"):
            if row.get(name) is not None:
                row[name] = _micros(row[name])
        found.append(row)
    return sorted(found, key=lambda row: (row["topic"], row["offset"]))


def expected(store: Store, *topics: str) -> list[dict[str, Any]]:
    """The same from the store, record by record."""
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
        }
        for topic in sorted(topics)
        for record in store.topic(topic).read()
        if not isinstance(record, Gap)
    ]


def offsets(data: Any) -> list[int]:
    """The offsets of a DataFrame, sorted."""
    return sorted(row["offset"] for row in data.select("offset").collect())


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
    """What the tasks give, each sent through a pickle first."""
    batches = [
        batch for task in tasks for batch in read_task(pickle.loads(pickle.dumps(task)), names)
    ]
    return pa.Table.from_batches(batches, Columns(names).schema)


def pickled(value: Any) -> bytes:
    """As Spark sends it."""
    pickler: Any = cloudpickle
    return bytes(pickler.dumps(value))


def read(path: Path | str, topic: str, **options: Any) -> pa.Table:
    """The same as `frame`, in this process."""
    return run(tasks(path, topic, **options))


def read_offsets(path: Path | str, topic: str, **options: Any) -> list[int]:
    """Offsets of a read, in the order they come."""
    found: list[int] = read(path, topic, **options)["offset"].to_pylist()
    return found
