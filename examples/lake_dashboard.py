"""From service code to a dashboard, in DuckDB and in Spark: the same numbers from the same history.

A service appends payments. The store keeps their history as Parquet in its lake by itself, in the
background. DuckDB reads the lake's files and the live log; Spark reads both as one DataFrame.

Needs `pip install 'stratalog[spark]' duckdb` and Java 17 or newer.
"""

import json
import random
import tempfile
from pathlib import Path

import duckdb

import stratalog
import stratalog.spark

PAYMENTS = 20_000
QUERY = """
    SELECT {country} AS country, count(*) AS payments, sum({cents}) AS cents
    FROM payments GROUP BY {country} ORDER BY country
"""


def serve(topic: stratalog.Topic, count: int, seed: int) -> None:
    """Take payments, as a service does."""
    chance = random.Random(seed)
    for _ in range(count // 1000):
        topic.append_many(
            [
                stratalog.Record(
                    value=str(chance.randrange(100, 10_000)).encode(),
                    key=chance.choice([b"de", b"fr", b"jp"]),
                )
                for _ in range(1000)
            ]
        )


def in_duckdb(topic: stratalog.Topic) -> list[tuple[str, int, int]]:
    """Read the files of the lake, and from where they end, the log: each record once."""
    lake = topic.lake()
    history = duckdb.read_parquet(lake.files()).select("key, value")
    newest = duckdb.from_arrow(topic.read_arrow(lake.end_offset, columns=["key", "value"]))
    text = QUERY.format(country="decode(key)", cents="CAST(decode(value) AS BIGINT)")
    found = history.union(newest).query("payments", text)
    return [] if found is None else found.fetchall()


def in_spark(path: str) -> list[tuple[str, int, int]]:
    """Query a view, which has the lake and the log as one table."""
    spark = stratalog.spark.session("local[2]")
    stratalog.spark.views(spark, path)
    text = QUERY.format(
        country="CAST(key AS STRING)", cents="CAST(CAST(value AS STRING) AS BIGINT)"
    )
    return [tuple(row) for row in spark.sql(text).collect()]


def main() -> None:
    """Take payments, and look at them twice."""
    with tempfile.TemporaryDirectory() as scratch:
        data, lake = str(Path(scratch, "data")), str(Path(scratch, "lake"))
        with stratalog.open(data, lake=lake) as store:
            payments = store.create_topic("payments", lake=True, segment_records=5000)
            serve(payments, PAYMENTS, seed=1)
            store.checkpoint()
            store.compact()  # it happens by itself, too; the example does not wait for that
            serve(payments, 3000, seed=2)
            print(f"{payments.lake().end_offset} of {len(payments)} payments are in the lake")
            found = in_duckdb(payments)
            assert found == in_spark(data), "DuckDB and Spark differ"
        print(json.dumps(found))
        print(f"each once: {sum(row[1] for row in found) == PAYMENTS + 3000}")


if __name__ == "__main__":
    main()
