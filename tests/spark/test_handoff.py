"""Spark and the log hand each other Arrow: no file in between, nothing lost on the way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import OpenStore

from stratalog.model import Record

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session for all tests here: starting one takes ten seconds."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.mark.filterwarnings("default")  # what Spark warns about is not ours to mend
def test_a_topic_becomes_a_dataframe_and_a_dataframe_a_topic(
    spark: Any, open_store: OpenStore
) -> None:
    """Read by column, queried, and appended by column again."""
    store = open_store()
    orders = store.topic("orders")
    orders.append_many(
        [Record(value=b"%d" % n, key=b"even" if n % 2 == 0 else b"odd") for n in range(1000)]
    )
    columns = ["offset", "key", "value"]
    frame = spark.createDataFrame(orders.read_arrow(columns=columns).read_all())
    assert frame.count() == 1000
    counts = frame.selectExpr("decode(key, 'UTF-8') AS key").groupBy("key").count().collect()
    assert {row["key"]: row["count"] for row in counts} == {"even": 500, "odd": 500}
    result = frame.where("offset >= 990").orderBy("offset").select("key", "value").toArrow()
    store.topic("clean").append_arrow(result)
    assert store.topic("clean").read_values() == [b"%d" % n for n in range(990, 1000)]
