"""DataFrames are pinned: however often and in whatever way they are used, they give the same.

Once, Spark was told to push filters into our source, and a reader that was narrowed by the filters
of one query served all later ones: after `df.where("offset < 10")`, all of `df` had 10 rows.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.spark.frames import frame, offsets
from tests.spark.reuse import PUSHDOWN, check, pushdown

import stratalog.spark
from stratalog.errors import OptionError
from stratalog.handles.store import Store
from stratalog.model import Record

FRAMES = int(os.environ.get("STRATALOG_FRAMES", "8"))


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """1,000 records, a second apart, in segments of 100."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=100)
    topic.append_many([Record(value=b"%d" % n, timestamp=(10**9 + n) * 10**9) for n in range(1000)])
    store.checkpoint()
    return store


@pytest.mark.parametrize("setting", ["true", "false"])
def test_a_frame_that_was_filtered_is_still_the_whole_frame(
    spark: Any, store: Store, setting: str
) -> None:
    """Whether or not the user has Spark push filters into Python sources."""
    with pushdown(spark, setting):
        data = frame(spark, store.path, "t")
        assert data.where("offset < 10").count() == 10
        assert data.count() == 1000
        both = data.where("offset < 10").union(data.where("offset >= 990"))
        assert offsets(both) == [*range(10), *range(990, 1000)]
        data.createOrReplaceTempView("t")
        assert spark.sql("SELECT * FROM t WHERE offset = 7").count() == 1
        assert spark.sql("SELECT * FROM t").count() == 1000


def test_no_session_of_ours_has_filters_pushed(spark: Any) -> None:
    """Spark keeps one plan per DataFrame, narrowed or not."""
    assert spark.conf.get(PUSHDOWN) == "false"


def change(store: Store) -> None:
    """Append, delete, and move what there is."""
    store.topic("t").append_many([b"new"] * 50)
    store.topic("t").delete(offsets=[5, 6, 7])
    store.snapshot()


@pytest.mark.parametrize("kind", ["load", "read", "columns", "view", "sql view", "schema"])
def test_a_frame_is_pinned_when_it_is_made(spark: Any, store: Store, kind: str) -> None:
    """All actions see the same; with a schema of one's own, what the first of them saw."""
    if kind == "sql view":
        text = f"USING stratalog OPTIONS (path '{store.path}', topic 't')"
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW pinned {text}")
        data = spark.table("pinned")
    elif kind == "schema":
        reader = spark.read.format("stratalog").option("topic", "t")
        data = reader.schema("offset bigint").load(store.path)
        assert data.count() == 1000
    elif kind in ("read", "columns"):
        columns = ["offset"] if kind == "columns" else None
        data = stratalog.spark.read(spark, store.path, "t", columns=columns)
    else:
        data = frame(spark, store.path, "t")
        if kind == "view":
            data.createOrReplaceTempView("pinned")
            data = spark.table("pinned")
    change(store)
    for _ in range(2):
        assert offsets(data) == list(range(1000))
        assert data.where("offset < 10").count() == 10
        change(store)
    again = stratalog.spark.read(spark, store.path, "t")
    assert again.count() == 1000 + 3 * 50 - 3


def test_a_topic_that_was_made_again_is_not_taken_for_the_pinned_one(
    spark: Any, store: Store
) -> None:
    """Pinned records are read as long as their files are there; then it is an error."""
    data = frame(spark, store.path, "t")
    data.createOrReplaceTempView("pinned")
    assert data.count() == 1000
    store.drop_topic("t")
    store.topic("t").append_many([b"another"] * 3)
    store.compact()
    for one in (data, spark.table("pinned"), data.where("offset < 2")):
        with pytest.raises(Exception, match=r"UnknownTopicError: topic 't' of .* was dropped"):
            one.count()
    assert frame(spark, store.path, "t").count() == 3


def test_a_topic_that_was_evicted_is_an_error_not_less(spark: Any, open_store: OpenStore) -> None:
    """Neither is it what the first action saw, in part."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=100, retention_records=100)
    topic.append_many([b"%d" % n for n in range(200)])
    store.checkpoint()
    data = frame(spark, store.path, "t")
    assert data.count() == 200
    topic.append_many([b"more"] * 300)
    store.compact()
    with pytest.raises(Exception, match=r"DataLossError: .* retention has evicted them"):
        data.count()
    assert frame(spark, store.path, "t").count() == 500 - topic.earliest


def test_ranges_are_given_in_words_of_python(spark: Any, store: Store) -> None:
    """By offset and by time, for all topics or one; the end is not included."""
    begin = datetime.fromtimestamp(10**9, UTC)

    def found(**given: Any) -> list[int]:
        return offsets(stratalog.spark.read(spark, store.path, "t", columns=["offset"], **given))

    assert found(start=990) == list(range(990, 1000))
    assert found(start=10, end={"t": 20}) == list(range(10, 20))
    assert found(since=begin + timedelta(seconds=995)) == list(range(995, 1000))
    assert found(since="2001-09-09T01:46:41Z", until=10**9 + 3) == [1, 2]
    assert found(since=10**18 + 1, until={"t": 10**18 + 4 * 10**9}) == [1, 2, 3]
    plan = stratalog.spark.explain(store.path, "t", startingOffsets=0, endingOffsets=10)
    assert plan.bytes < plan.total_bytes / 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"start": 1, "since": 2}, "start and since say where the same end"),
        ({"end": 1, "until": 2}, "end and until say where the same end"),
        ({"start": "first"}, "startingOffsets='first' is not a place"),
        ({"since": "yesterday"}, "startingTimestamp='yesterday' is not a time"),
        ({"columns": ["ofset"]}, "unknown column 'ofset': did you mean 'offset'"),
        ({"columns": ["offset", "offset"]}, "each can be there once only"),
        ({"columns": []}, "names no column"),
        ({"colums": "offset"}, "did you mean 'columns'"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_at_once(
    spark: Any, store: Store, given: dict[str, Any], message: str
) -> None:
    """In the caller's own process, before Spark is asked."""
    with pytest.raises(OptionError, match=message):
        stratalog.spark.read(spark, store.path, "t", **given)


def test_columns_and_a_schema_that_contradict_each_other_are_refused(
    spark: Any, store: Store
) -> None:
    """One of them would have no effect."""
    reader = spark.read.format("stratalog").option("topic", "t").option("columns", "value")
    assert reader.schema("value binary").load(store.path).count() == 1000
    with pytest.raises(Exception, match="OptionError: option columns='value' and a schema"):
        reader.schema("offset bigint").load(store.path).count()


# --- beside a writer ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1))
def test_frames_used_again_beside_a_writer_are_right(spark: Any, tmp_path: Path, seed: int) -> None:
    """In a session of ours; as many frames as `STRATALOG_FRAMES` says."""
    outcomes = check(spark, str(tmp_path / "data"), seed, FRAMES)
    assert outcomes["whole"] > FRAMES // 2, outcomes


def test_frames_used_again_in_a_session_of_the_users_are_right(tmp_path: Path) -> None:
    """A session that knows nothing of us but what Spark finds by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.reuse", str(tmp_path / "data"), "7", str(FRAMES)],
        capture_output=True, text=True, timeout=1800, check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5000:]
    outcomes = ast.literal_eval(done.stdout.strip().splitlines()[-1])
    assert outcomes["whole"] > FRAMES // 2, outcomes
