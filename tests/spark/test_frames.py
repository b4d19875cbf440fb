"""DataFrames in Python's words, and what is known without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.spark.frames import offsets

from stratalog.errors import OptionError
from stratalog.model import Record
from stratalog.spark import explain, read, read_stream, topics


def test_columns_and_options_are_given_as_python_has_them(
    spark: Any, open_store: OpenStore
) -> None:
    """Names, numbers, flags, paths, and dictionaries by topic."""
    store = open_store()
    store.topic("t").append_many([b"%d" % n for n in range(10)])
    found = read(
        spark, Path(store.path), "t", columns=["offset", "value"], startingOffsets={"t": 3},
        failOnDataLoss=False,
    )  # fmt: skip
    assert found.columns == ["offset", "value"]
    assert offsets(found) == list(range(3, 10))
    assert read_stream(spark, store.path, "t", columns=["value"]).isStreaming
    with pytest.raises(OptionError, match="unknown column 'valu': did you mean 'value'"):
        read(spark, store.path, "t", columns=["valu"])


def test_topics_are_counted_without_being_read(
    spark: Any, open_store: OpenStore, tmp_path: Path
) -> None:
    """Records, ranges and times of all topics; the segments could as well be unreadable."""
    store = open_store(background=False, cold=str(tmp_path / "cold"), hot_segments=1)
    orders = store.create_topic("orders", segment_records=10)
    base = 10**18
    orders.append_many([Record(value=b"x", timestamp=base + n * 10**9) for n in range(35)])
    orders.delete(offsets=[3, 4])
    orders.delete(before=10)
    store.compact()
    latest = store.create_topic("latest", compact=True, segment_records=10)
    latest.append_many([Record(value=b"x", key=b"k%d" % (n % 3)) for n in range(20)])
    store.compact()
    log = store.topic("log")
    log.append_many([Record(value=b"x", timestamp=base), Record(value=b"y", timestamp=base + 1000)])
    store.topic("none")
    for segment in (tmp_path / "cold").rglob("*.seg"):
        segment.unlink()
    rows = {row["topic"]: row for row in topics(spark, store.path).collect()}
    assert set(rows) == {"latest", "log", "none", "orders"}
    one = rows["orders"]
    assert (one["earliest"], one["next_offset"], one["records"]) == (10, 35, 25)
    assert (one["segments"], one["cold_segments"]) == (3, 1)
    assert one["bytes"] > 0
    assert one["last_timestamp"].timestamp() == base / 10**9 + 34
    assert rows["latest"]["records"] < 20
    assert rows["log"]["first_timestamp"].timestamp() == base / 10**9
    assert rows["log"]["records"] == 2
    assert rows["none"]["first_timestamp"] is None


def test_a_plan_says_what_a_read_costs(open_store: OpenStore) -> None:
    """Ranges, bytes and tasks, from indexes alone; little of the time is little of the bytes."""
    store = open_store(background=False, durability="disk")
    topic = store.create_topic("t", segment_records=100_000)
    for n in range(40):
        stamps = range(n * 10_000, (n + 1) * 10_000)
        topic.append_many([Record(value=b"x" * 100, timestamp=10**18 + s * 10**6) for s in stamps])
    store.checkpoint()
    whole = explain(store.path, "t")
    assert whole.ranges == {"t": range(400_000)}
    assert whole.bytes == whole.total_bytes
    assert whole.tasks >= 1
    begin = 10**12 + 200_000
    part = explain(store.path, "t", startingTimestamp=begin, endingTimestamp=begin + 4000)
    assert part.ranges == {"t": range(200_000, 204_000)}
    assert 0.009 < part.bytes / part.total_bytes <= 0.03
    assert explain(store.path, "t", minPartitions=5).tasks == 5
