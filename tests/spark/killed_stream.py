"""A program that copies a topic with a stream, to be killed while it does."""

from __future__ import annotations

import sys

from stratalog.spark import session


def main(source: str, target: str, checkpoint: str) -> None:
    """Copy topic `in` of one store to topics of another, a few records at a time."""
    spark = session(
        "local[2]",
        config={
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    records = (
        spark.readStream.format("stratalog")
        .option("topic", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50)
        .option("minPartitions", 2)
        .load(source)
    )
    query = (
        records.selectExpr("value", "concat('out-', length(value) % 2) as topic")
        .writeStream.format("stratalog")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
