"""Directories of other systems as DataFrames."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

FOREIGN = Path(__file__).parents[1] / "golden" / "foreign"


def frame(spark: Any, layout: str, case: str, **options: str) -> Any:
    """A foreign directory as a DataFrame."""
    data = FOREIGN / layout / case / "data"
    reader = spark.read.format("stratalog").option("layout", layout)
    return reader.options(**options).load(str(data / "hot" if layout == "topics" else data))


def expected_of(layout: str, case: str) -> Any:
    """Load what the program itself returned."""
    return json.loads((FOREIGN / layout / case / "expected.json").read_text())


def test_segments_of_ledgerq_are_read_in_parallel(spark: Any) -> None:
    """A task per segment, and every message once, however often it is asked."""
    made = frame(spark, "ledgerq", "plain")
    assert made.rdd.getNumPartitions() == 3
    wanted = {
        record["id"]: base64.b64decode(record["value_b64"])
        for record in expected_of("ledgerq", "plain")["records"]
    }
    for _ in range(2):
        assert {row["offset"]: bytes(row["value"]) for row in made.collect()} == wanted
    assert made.where("offset < 10").count() == 9
    assert made.count() == 300


def test_topics_of_fluxmq_are_chosen_by_name(spark: Any) -> None:
    """One of several, with keys and headers."""
    made = frame(spark, "fluxmq", "group_compacted", topic="orders", includeHeaders="true")
    rows = made.orderBy("offset").collect()
    expected = expected_of("fluxmq", "group_compacted")["queues"]["orders"]["records"]
    assert [row["topic"] for row in rows] == ["orders"] * len(expected)
    assert [
        {header["key"]: base64.b64encode(header["value"]).decode() for header in row["headers"]}
        for row in rows
    ] == [record["headers_b64"] for record in expected]


def test_records_of_topics_have_tags(spark: Any) -> None:
    """A projection, as for a store."""
    made = frame(spark, "topics", "shard1_clean", columns="topic,offset,tag")
    live = [
        (name, record["seq"], record["tag"])
        for name, topic in expected_of("topics", "shard1_clean")["topics"].items()
        for record in topic["records"]
        if not record["deleted"]
    ]
    assert sorted(map(tuple, made.collect()), key=str) == sorted(live, key=str)


def test_damage_is_an_error_unless_it_may_be_lost(spark: Any) -> None:
    """It names the file and the place."""
    with pytest.raises(PySparkException, match="failOnDataLoss"):
        frame(spark, "fluxmq", "bit_flip").count()
    assert frame(spark, "fluxmq", "bit_flip", failOnDataLoss="false").count() == 293


@pytest.mark.parametrize(
    ("layout", "options", "message"),
    [
        ("rabbit", {}, "use one of"),
        ("fluxmq", {"startingOffsets": "3"}, "unknown option"),
        ("fluxmq", {"topic": "nosuch"}, "No topic matches"),
    ],
)
def test_what_cannot_be_read_is_said(
    spark: Any, layout: str, options: dict[str, str], message: str
) -> None:
    """Before anything is read."""
    reader = spark.read.format("stratalog").option("layout", layout).options(**options)
    with pytest.raises(PySparkException, match=message):
        reader.load(str(FOREIGN / "fluxmq" / "none" / "data")).count()
