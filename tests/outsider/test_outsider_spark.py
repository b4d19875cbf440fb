"""DataFrames beside sixteen threads that append, delete, compact, evict, tier and are killed."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException

import stratalog
from stratalog import Gap, Record
from tests.outsider.journal import DENSE, TOPICS
from tests.outsider.test_outsider import Run

KILLS = int(os.environ.get("STRATALOG_OUTSIDER_SPARK_KILLS", "2"))

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("default"),
]


def rows(frame: Any) -> dict[tuple[str, int], bytes]:
    """Collect a DataFrame: values by topic and offset."""
    return {
        (row["topic"], row["offset"]): bytes(row["value"])
        for row in frame.select("topic", "offset", "value").collect()
    }


def told_as_lost(run: Run, topic: str) -> set[int]:
    """Offsets of a topic that a gap says are lost: an earlier kill took class `disk`, say."""
    with stratalog.open(run.path, read_only=True, cold=run.cold) as view:
        return {
            offset
            for item in view.topic(topic).read()
            if isinstance(item, Gap)
            for offset in range(item.first, item.last + 1)
        }


def frame_of(spark: Any, run: Run, topic: str, *, fail: bool) -> Any:
    """A DataFrame of a topic, which fails on data loss or passes over it."""
    reader = spark.read.format("stratalog").option("topic", topic)
    reader = reader.option("failOnDataLoss", str(fail).lower()).option("cold", str(run.cold))
    return reader.load(str(run.path))


def check_beside_it(spark: Any, run: Run, topic: str) -> dict[tuple[str, int], bytes]:
    """Use a DataFrame of a topic twice, beside the writer: everything but gaps is there."""
    with stratalog.open(run.path, read_only=True, cold=run.cold) as view:
        end = view.topic(topic).next_offset
    frame = frame_of(spark, run, topic, fail=False)
    below = frame.where("offset < 50").count()
    whole = rows(frame)
    assert below == sum(offset < 50 for _, offset in whole)
    assert whole == rows(frame)
    offsets = {offset for _, offset in whole}
    missing = set(range(max([end, *offsets]))) - offsets
    assert missing <= told_as_lost(run, topic)
    return whole


def check_strictly(spark: Any, run: Run, topic: str) -> None:
    """A DataFrame that fails on data loss does so because of gaps, and of nothing else."""
    before = told_as_lost(run, topic)
    frame = frame_of(spark, run, topic, fail=True)
    try:
        offsets = sorted(offset for _, offset in rows(frame))
    except PythonException as error:
        if "DataLossError" not in str(error):
            raise
        # A gap that a full disk left may have come since, and never goes.
        assert told_as_lost(run, topic)
    else:
        assert not before
        assert offsets == list(range(len(offsets)))


def test_a_dataframe_beside_a_writer_is_right_and_stays_the_same(
    tmp_path: Path, spark: Any
) -> None:
    """Made beside a writer, used twice with other filters: each time what it was made of."""
    seed = int(os.environ.get("STRATALOG_OUTSIDER_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    dice = random.Random(seed)
    run = Run(tmp_path / "store", dice)
    found: list[dict[tuple[str, int], bytes]] = []
    for _ in range(KILLS):
        with run.process():
            run.read_beside_it(1.0)
            for topic in dice.sample(DENSE, 2):
                found.append(check_beside_it(spark, run, topic))
                check_strictly(spark, run, topic)
        run.check()
    for whole in found:
        for (topic, offset), value in whole.items():
            run.promises.see(topic, Record(value=value, offset=offset))
    with stratalog.open(run.path, read_only=True, cold=run.cold) as view:
        for topic in TOPICS:
            live = {
                (topic, item.offset): item.value
                for item in view.topic(topic).read()
                if isinstance(item, Record)
            }
            assert rows(frame_of(spark, run, topic, fail=False)) == live
