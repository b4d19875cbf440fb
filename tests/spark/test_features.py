"""Older releases of Spark, which offer less: tested in this process, with what 4.3 has."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from pyspark.sql import Row
from tests.conftest import OpenStore

from stratalog.errors import OptionError
from stratalog.spark.source import stream
from stratalog.spark.source.columns import schema_of
from stratalog.spark.source.features import rows_to_batches
from stratalog.spark.source.read_options import ReadOptions
from stratalog.spark.source.stream import StreamReader


def test_rows_become_record_batches() -> None:
    """Times, headers and nulls included; of many rows, several batches."""
    schema = schema_of(("value", "timestamp", "headers"))
    moment = datetime.fromtimestamp(1_700_000_000)  # in the zone of this process, as Spark's are
    headers = [Row(key="h", value=bytearray(b"x"))]
    rows = [Row(value=bytearray(b"v"), timestamp=moment, headers=headers)]
    rows += [Row(value=None, timestamp=None, headers=None)] * 10_000
    first, second = rows_to_batches(iter(rows), schema)
    assert (first.num_rows, second.num_rows) == (10_000, 1)
    assert first.column("timestamp")[0].value == 1_700_000_000 * 10**6
    assert first.column("headers")[0].as_py() == [{"key": "h", "value": b"x"}]
    assert first.slice(1, 1).to_pylist() == [{"value": None, "timestamp": None, "headers": None}]


def test_a_stream_goes_on_where_spark_does_not_say_where_it_is(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads all that there is; an option that would limit it is refused."""
    store = open_store(background=False)
    store.topic("t").append_many([b"x"] * 7)
    given = {"path": str(Path(store.path)), "topic": "t", "startingOffsets": "earliest"}
    reader = StreamReader(ReadOptions.parse(given, is_stream=True), ("offset",))
    assert reader.initialOffset()["t"] == 0
    assert reader.latestOffset()["t"] == 7
    monkeypatch.setattr(stream, "HAS_LIMITS", False)
    options = ReadOptions.parse(given | {"maxBytesPerTrigger": "1m"}, is_stream=True)
    with pytest.raises(OptionError, match=r"needs PySpark 4\.2"):
        StreamReader(options, ("offset",)).latestOffset()
