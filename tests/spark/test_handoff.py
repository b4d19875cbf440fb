"""Spark and the log hand each other Arrow: no file in between, nothing lost on the way."""

from __future__ import annotations

from typing import Any

from tests.conftest import OpenStore

from stratalog.model import Record


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
