"""The scenes of `stratalog demo` that are played on Spark."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any

import stratalog
from stratalog.cli.demo.scenes import TOPIC, Scene
from stratalog.cli.output import count_text

CLEAN = "payments-clean"


def missing() -> str | None:
    """Return what Spark lacks here; None if it can run."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed (pip install 'stratalog[spark]')"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no Java 17 or newer"
    return None


class SparkPlay:
    """The topic of the demo as a DataFrame, and as a stream that is copied exactly once."""

    def __init__(self, path: str, scratch: str) -> None:
        self._path = path
        self._checkpoint = os.path.join(scratch, "checkpoint")
        self._spark: Any = None

    def scenes(self) -> list[tuple[str, Callable[[], Scene]]]:
        """A line to show while a scene runs, and the scene."""
        return [
            ("starting Spark", self.query),
            ("streaming into another topic", self.stream),
        ]

    def close(self) -> None:
        """Let the session go."""
        if self._spark is not None:
            self._spark.stop()

    def query(self) -> Scene:
        """A query over the topic, and the same numbers from the log itself."""
        from stratalog import spark

        self._spark = spark.session("local[2]", name="stratalog demo")
        frame = self._spark.read.format("stratalog").option("topic", TOPIC).load(self._path)
        frame.createOrReplaceTempView("payments")
        rows = self._spark.sql(
            "SELECT split(decode(value, 'UTF-8'), '-')[0] AS writer, count(*) AS records "
            "FROM payments GROUP BY writer ORDER BY writer"
        ).collect()
        found = {row["writer"]: row["records"] for row in rows}
        with stratalog.open(self._path, read_only=True) as store:
            values = store.topic(TOPIC).read_values()
        expected: dict[str, int] = {}
        for value in values:
            writer = (value or b"").partition(b"-")[0].decode()
            expected[writer] = expected.get(writer, 0) + 1
        counts = ", ".join(f"{count:,} by {writer}" for writer, count in found.items())
        return Scene(
            "spark", found == expected,
            f"SELECT writer, count(*) over {TOPIC!r}: {counts}",
            "a query gives the numbers that the log itself gives",
            {"records": sum(found.values())},
        )  # fmt: skip

    def stream(self) -> Scene:
        """Stream what is there, then what came since: every record once in the other topic."""
        self._copy()
        with stratalog.open(self._path) as store:
            store.topic(TOPIC).append_many([b"late-%d" % n for n in range(100)])
        self._copy()
        with stratalog.open(self._path, read_only=True) as store:
            source, copy = store.topic(TOPIC).read_values(), store.topic(CLEAN).read_values()
        return Scene(
            "stream", sorted(map(bytes.upper, filter(None, source))) == sorted(filter(None, copy)),
            f"a streaming query into {CLEAN!r}, stopped and started again from its checkpoint",
            f"all {count_text(len(copy), 'record')} arrived, each exactly once",
            {"records": len(copy)},
        )  # fmt: skip

    def _copy(self) -> None:
        query = (
            self._spark.readStream.format("stratalog")
            .option("topic", TOPIC)
            .option("startingOffsets", "earliest")
            .load(self._path)
            .selectExpr("key", "upper(decode(value, 'UTF-8')) AS value")
            .writeStream.format("stratalog")
            .option("topic", CLEAN)
            .option("checkpointLocation", self._checkpoint)
            .trigger(availableNow=True)
            .start(self._path)
        )
        query.awaitTermination()
