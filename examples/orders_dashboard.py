"""From a service to a dashboard: orders are appended, cleaned by a stream, and become a table.

Needs `pip install 'stratalog[spark]'` and Java 17 or newer.
"""

import json
import random
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import stratalog
import stratalog.spark

ORDERS = 5_000
ORDER = "id long, country string, total long"


def serve(data: str, first: int) -> None:
    """Take orders as a service does: an order is on the disk when `append_nowait` resolves."""
    chance = random.Random(first)
    with stratalog.open(data) as store:
        orders = store.topic("orders")
        futures = [
            orders.append_nowait(
                json.dumps(
                    {"id": id, "country": chance.choice(["de", "fr", "jp"]), "total": id % 100}
                ).encode()
                if chance.random() > 0.01
                else b"not JSON at all",
                key=str(id).encode(),
            )
            for id in range(first, first + ORDERS)
        ]
        assert all(future.result() >= 0 for future in futures)


def clean(spark: SparkSession, data: str, checkpoint: str) -> None:
    """Take in what is new, exactly once: run it from a timer, and again after any crash."""
    parsed = (
        spark.readStream.format("stratalog")
        .option("topic", "orders")
        .option("startingOffsets", "earliest")
        .load(data)
        .selectExpr("key", f"from_json(decode(value, 'UTF-8'), '{ORDER}') AS o")
        .where("o.id IS NOT NULL")
    )
    query = (
        parsed.selectExpr("key", "to_json(o) AS value")
        .writeStream.format("stratalog")
        .option("topic", "orders-clean")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(data)
    )
    query.awaitTermination()


def publish(spark: SparkSession, data: str, table: str) -> None:
    """The table that a dashboard reads: revenue by day and country."""
    orders = spark.read.format("stratalog").option("topic", "orders-clean").load(data)
    orders.createOrReplaceTempView("orders")
    revenue = spark.sql(
        """
        SELECT date(timestamp) AS day, o.country, count(*) AS orders, sum(o.total) AS revenue
        FROM (
          SELECT timestamp, from_json(decode(value, 'UTF-8'), 'country string, total long') AS o
          FROM orders
        )
        GROUP BY day, country ORDER BY day, country
        """
    )
    revenue.write.mode("overwrite").partitionBy("day").parquet(table)


with tempfile.TemporaryDirectory() as directory:
    data, checkpoint, table = (str(Path(directory, name)) for name in ("data", "state", "revenue"))
    spark = stratalog.spark.session("local[2]")
    for first in (0, ORDERS):  # twice: the second round takes in what came since the first
        serve(data, first)
        clean(spark, data, checkpoint)
    publish(spark, data, table)
    spark.read.parquet(table).orderBy("day", "country").show()
    with stratalog.open(data, read_only=True) as store:
        seen = store.topic("orders-clean").read_values()
    print(len(seen), "orders, each once:", len(seen) == len(set(seen)))
    assert len(seen) == len(set(seen)) > 1.9 * ORDERS
    spark.stop()
