"""A real cluster: a master, two workers, executors that have Stratalog only because it is shipped.

One test in several acts: starting the cluster takes half a minute on a small machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.cluster import cluster

import stratalog

RECORDS = 60_000

DRIVER = """
import os
import signal
import sys
import threading
import time

import stratalog.spark

address, data, scratch = sys.argv[1:4]
victim = int(sys.argv[4])

spark = stratalog.spark.session(
    address,
    config={
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "600m",
        "spark.task.maxFailures": "8",
        "spark.sql.shuffle.partitions": "2",
    },
)

def read(topic):
    return spark.read.format("stratalog").option("topic", topic).load(data)

stratalog.spark.register(spark)  # sends the package along: no executor has it

row = read("numbers").selectExpr("count(*)", "sum(cast(decode(value, 'UTF-8') AS long))").first()
print("BATCH", row[0], row[1])

read("numbers").selectExpr("key", "value").write.format("stratalog").option(
    "topic", "copy").mode("append").save(data)
row = read("copy").selectExpr("count(*)", "count(DISTINCT value)").first()
print("WRITE", row[0], row[1])

# A worker dies, with its executor, while tasks are running on both.
def kill():
    while (query.lastProgress or {"batchId": 0})["batchId"] < 2:
        time.sleep(0.05)
    os.kill(victim, signal.SIGKILL)

query = (
    spark.readStream.format("stratalog").option("topic", "numbers")
    .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "6000").load(data)
    .selectExpr("key", "value")
    .writeStream.format("stratalog").option("topic", "streamed")
    .option("checkpointLocation", scratch + "/checkpoint")
    .trigger(availableNow=True).start(data)
)
threading.Thread(target=kill, daemon=True).start()
query.awaitTermination()
row = read("streamed").selectExpr("count(*)", "count(DISTINCT value)").first()
print("STREAM", row[0], row[1])
row = read("numbers").selectExpr("count(*)", "sum(cast(decode(value, 'UTF-8') AS long))").first()
print("AFTER", row[0], row[1])
spark.stop()
"""


def test_jobs_on_a_cluster_are_exact_even_when_a_worker_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with stratalog.open(data) as store:
        for first in range(0, RECORDS, 1000):
            store.topic("numbers").append_many([b"%d" % n for n in range(first, first + 1000)])
    with cluster(tmp_path / "cluster") as running:
        # The worker's own process: its executor goes with it.
        arguments = [running.address, str(data), str(tmp_path)]
        environment = os.environ | {"PYSPARK_PYTHON": running.python}
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, *arguments, str(running.workers[0].pid)],
            capture_output=True, text=True, timeout=400, env=environment,
        )  # fmt: skip
    total = sum(range(RECORDS))
    assert done.stdout.splitlines() == [
        f"BATCH {RECORDS} {total}",
        f"WRITE {RECORDS} {RECORDS}",
        f"STREAM {RECORDS} {RECORDS}",
        f"AFTER {RECORDS} {total}",
    ], done.stderr[-4000:]
    assert running.workers[0].returncode == -9
