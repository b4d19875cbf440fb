"""A topic as a stream: every record once, across triggers, restarts and whatever the store does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from tests.conftest import OpenStore
from tests.spark.frames import pickled, run

from stratalog.errors import (
    DataLossError,
    NotAStoreError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.spark.source.columns import default_schema
from stratalog.spark.source.data_source import StratalogSource
from stratalog.spark.source.stream import StreamReader

ALL = ReadAllAvailable()


def follow(path: Path | str, topic: str, **options: Any) -> StreamReader:
    """A reader as Spark would make it, in this process."""
    given = {name: str(value) for name, value in options.items()}
    source = StratalogSource(CaseInsensitiveDict(given | {"path": str(path), "topic": topic}))
    reader = source.streamReader(default_schema(include_headers=False))
    assert isinstance(reader, StreamReader)
    return reader


def step(reader: StreamReader, start: dict[str, Any], limit: Any = ALL) -> Any:
    """One micro-batch: its records as topic and offset, and where it ended."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    parts = reader.partitions(start, end)
    table = run([part.value for part in parts])
    found = list(zip(table["topic"].to_pylist(), table["offset"].to_pylist(), strict=True))
    return sorted(found), end


def positions(offsets: dict[str, Any]) -> dict[str, int]:
    """Keep the offsets of the topics alone."""
    return {name: place for name, place in offsets.items() if name}


# --- with Spark ------------------------------------------------------------------------------


def test_a_query_follows_a_writer(spark: Any, open_store: OpenStore, tmp_path: Path) -> None:
    """Through checkpoints and new topics, and goes on where it stopped when it is started again."""
    store = open_store(background=False)
    store.create_topic("orders-1", segment_records=10).append_many([b"0", b"1"])

    def start(name: str) -> Any:
        source = spark.readStream.format("stratalog").option("topic", "orders-*")
        frame = source.option("startingOffsets", "earliest").load(store.path)
        stream = frame.selectExpr("topic", "offset", "decode(value, 'UTF-8') AS value")
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        return writer.option("checkpointLocation", str(tmp_path / "mark")).queryName(name).start()

    def found() -> list[tuple[str, int]]:
        table = spark.read.parquet(str(tmp_path / "out")).collect()
        return sorted((row["topic"], row["offset"]) for row in table)

    query = start("first")
    query.processAllAvailable()
    assert found() == [("orders-1", 0), ("orders-1", 1)]
    store.topic("orders-1").append_many([b"%d" % n for n in range(2, 25)])
    store.checkpoint()
    store.topic("orders-2").append(b"0")
    query.processAllAvailable()
    wanted = [("orders-1", n) for n in range(25)] + [("orders-2", 0)]
    assert found() == wanted
    assert positions(json.loads(query.lastProgress["sources"][0]["endOffset"])) == {
        "orders-1": 25, "orders-2": 1,
    }  # fmt: skip
    query.stop()
    store.topic("orders-2").append(b"1")
    store.compact()
    query = start("second")
    query.processAllAvailable()
    assert found() == [*wanted, ("orders-2", 1)]
    query.stop()
    store.drop_topic("orders-2")
    store.topic("orders-2").append(b"another")
    query = start("third")
    with pytest.raises(Exception, match="topic 'orders-2' was dropped and made again"):
        query.processAllAvailable()


def test_what_is_available_now_comes_in_steps(
    spark: Any, open_store: OpenStore, tmp_path: Path
) -> None:
    """No larger than asked for, all of it, and then the query ends by itself."""
    store = open_store(background=False)
    store.topic("a").append_many([b"%d" % n for n in range(25)])
    source = spark.readStream.format("stratalog").option("topic", "a")
    source = source.option("startingOffsets", "5").option("maxOffsetsPerTrigger", 8)
    writer = source.load(store.path).writeStream.format("memory").queryName("steps")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert [progress["numInputRows"] for progress in query.recentProgress] == [8, 8, 4]
    rows = spark.table("steps").collect()
    assert sorted(row["offset"] for row in rows) == list(range(5, 25))


# --- in this process -------------------------------------------------------------------------


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    store = open_store(background=False)
    store.create_topic("t", segment_records=10, retention_records=20).append_many([b"x"] * 7)
    return store


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, 7),
        ({"startingOffsets": "earliest"}, 0),
        ({"startingOffsets": '{"t": 3}'}, 3),
        ({"startingTimestamp": "0"}, 0),
        ({"startingTimestamp": "2200-01-01"}, 7),
    ],
)
def test_a_new_query_begins_where_it_is_told(
    store: Store, options: dict[str, str], start: int
) -> None:
    """By default with what comes from now on."""
    reader = follow(store.path, "t", **options)
    assert positions(reader.initialOffset()) == {"t": start}
    with pytest.raises(OffsetOutOfRangeError, match="the next one is 7"):
        follow(store.path, "t", startingOffsets="8").initialOffset()
    with pytest.raises(UnknownTopicError, match="no topic 'u'"):
        follow(store.path, "u").initialOffset()
    assert positions(follow(store.path, "u*").initialOffset()) == {}


@pytest.mark.parametrize("ending", [{"endingOffsets": "9"}, {"endingTimestamp": "2000-01-01"}])
def test_a_query_ends_where_it_is_told(open_store: OpenStore, ending: dict[str, str]) -> None:
    """Though there is more, and though its end was yet to come when it began."""
    store = open_store(background=False)
    topic = store.topic("t")
    moment = 946684800 * 10**9
    topic.append_many([Record(value=b"", timestamp=moment - 10 + n) for n in range(7)])
    reader = follow(store.path, "t", startingOffsets="earliest", **ending)
    first, end = step(reader, reader.initialOffset())
    assert first == [("t", n) for n in range(7)]
    times = [moment - 1, moment - 1, moment, moment + 1]
    topic.append_many([Record(value=b"", timestamp=time) for time in times])
    second, end = step(reader, end)
    assert second == [("t", 7), ("t", 8)]
    assert step(reader, end) == ([], end)


def test_a_limit_is_shared_by_the_topics(open_store: OpenStore) -> None:
    """Each gets on, and none waits for another to be done."""
    store = open_store(background=False)
    for name, count in (("a", 90), ("b", 9), ("c", 1), ("d", 0)):
        store.topic(name).append_many([b""] * count) if count else store.topic(name)
    reader = follow(store.path, "*", startingOffsets="earliest", maxOffsetsPerTrigger=10)
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    offsets = reader.initialOffset()
    seen: list[tuple[str, int]] = []
    for number in range(10):
        found, offsets = step(reader, offsets, ReadMaxRows(10))
        assert len(found) == 10
        if number == 0:
            assert [name for name, _ in found] == ["a"] * 8 + ["b", "c"]
        seen += found
    assert len(set(seen)) == 100
    assert step(reader, offsets, ReadMaxRows(10)) == ([], offsets)
    assert follow(store.path, "a").getDefaultReadLimit() == ALL
    seen = []
    offsets = reader.initialOffset()
    for _ in range(3):  # fewer than there are topics
        found, offsets = step(reader, offsets, ReadMaxRows(1))
        seen += found
    assert len({name for name, _ in seen}) > 1


def test_a_limit_of_bytes_is_shared_by_the_topics(open_store: OpenStore) -> None:
    """A batch at least and about as many bytes at most, and every record once."""
    store = open_store(background=False)
    for name, count in (("a", 40), ("b", 10)):
        for _ in range(count):
            store.topic(name).append_many([bytes(100)] * 10)
    reader = follow(store.path, "*", startingOffsets="earliest", maxBytesPerTrigger="8k")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxBytes(8 << 10)
    offsets, seen, batches = reader.initialOffset(), [], 0
    while True:
        found, offsets = step(reader, offsets, limit)
        if not found:
            break
        assert len(found) <= 90  # 8 KiB, and a batch of ten more
        seen += found
        batches += 1
    assert len(seen) == len(set(seen)) == 500
    assert batches < 12
    one = follow(store.path, "*", startingOffsets="earliest", maxBytesPerTrigger="1")
    found, _ = step(one, one.initialOffset(), one.getDefaultReadLimit())
    assert len(found) == 10
    everything, _ = step(reader, reader.initialOffset(), ALL)  # as for a trigger of one batch
    assert len(everything) == 500


def test_a_query_waits_for_as_much_as_it_was_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first micro-batch comes at once, later ones when there is enough, or it took long."""
    now = [0.0]
    monkeypatch.setattr(StreamReader, "_seconds", staticmethod(lambda: now[0]))
    wanted = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 5, "maxTriggerDelay": "30s"}
    reader = follow(store.path, "t", **wanted)
    limit = reader.getDefaultReadLimit()
    found, end = step(reader, reader.initialOffset(), limit)
    assert len(found) == 7
    store.topic("t").append_many([b"x"] * 4)
    assert step(reader, end, limit) == ([], end)
    store.topic("t").append(b"x")
    found, end = step(reader, end, limit)
    assert len(found) == 5
    store.topic("t").append(b"x")
    now[0] = 29.0
    assert step(reader, end, limit) == ([], end)
    now[0] = 30.0
    found, end = step(reader, end, limit)
    assert len(found) == 1
    store.topic("t").append(b"x")
    reader.prepareForTriggerAvailableNow()  # then there is nothing to wait for
    assert len(step(reader, end, limit)[0]) == 1


def test_progress_says_how_much_is_left(store: Store) -> None:
    """Covers every topic, as of the newest micro-batch."""
    reader = follow(store.path, "t", startingOffsets="earliest", maxOffsetsPerTrigger=3)
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))
    store.topic("t").append_many([b"x"] * 4)
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["t"] == 11
    assert report[""]["lag"] == {"t": 8}


def test_what_comes_later_is_not_available_now(store: Store) -> None:
    """Neither records nor topics."""
    reader = follow(store.path, "*", startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    store.topic("t").append(b"late")
    store.topic("u").append(b"later")
    found, end = step(reader, start)
    assert found == [("t", n) for n in range(7)]
    assert step(reader, end) == ([], end)
    assert step(follow(store.path, "*"), end)[0] == [("t", 7), ("u", 0)]


def test_records_that_went_before_they_were_seen(store: Store) -> None:
    """Are a loss, or are passed over, as `failOnDataLoss` says."""
    strict = follow(store.path, "t", startingOffsets="earliest")
    lax = follow(store.path, "t", startingOffsets="earliest", failOnDataLoss="false")
    start = strict.initialOffset()
    store.topic("t").append_many([b"y"] * 40)
    store.compact()
    assert store.topic("t").earliest == 20
    with pytest.raises(DataLossError, match="offsets 0 to 19 "):
        step(strict, start)
    assert step(lax, start)[0] == [("t", n) for n in range(20, 47)]


def test_a_store_that_went_back_is_noticed(store: Store) -> None:
    """It was restored from an older copy: a query that was ahead of it has to be told."""
    strict, lax = follow(store.path, "t"), follow(store.path, "t", failOnDataLoss="false")
    ahead = strict.initialOffset() | {"t": 9}
    with pytest.raises(DataLossError, match="ends at offset 7, but this query has seen 9"):
        strict.latestOffset(ahead, ALL)
    with pytest.raises(DataLossError, match="ends at offset 7"):
        strict.partitions(strict.initialOffset(), ahead)
    nothing, end = step(lax, ahead)
    assert (nothing, positions(end)) == ([], {"t": 7})
    store.topic("t").append(b"new")
    assert step(lax, end)[0] == [("t", 7)]


def test_another_store_in_its_place_is_noticed(store: Store, tmp_path: Path) -> None:
    """While a query runs, and when it is started again."""
    reader = follow(store.path, "t")
    start = reader.initialOffset()
    other = Store(tmp_path / "other", store.options)
    other.topic("t").append_many([b"z"] * 20)
    other.close()
    with pytest.raises(NotAStoreError, match="another store than the one that this query began"):
        follow(other.path, "t").latestOffset(start, ALL)
    (tmp_path / "other" / "store").rename(tmp_path / "data" / "store")
    with pytest.raises(NotAStoreError, match="another store"):
        reader.latestOffset(start, ALL)


def test_a_topic_that_was_dropped_is_noticed(store: Store) -> None:
    """Gone, or gone and made again."""
    store.topic("u").append(b"u")
    strict, lax = follow(store.path, "*"), follow(store.path, "*", failOnDataLoss="false")
    start = strict.initialOffset()
    store.drop_topic("t")
    store.topic("u").append(b"u")
    with pytest.raises(UnknownTopicError, match="'t' was dropped while this query followed it"):
        strict.latestOffset(start, ALL)
    found, end = step(lax, start)
    assert found == [("u", 1)]
    assert positions(end) == {"u": 2}
    store.topic("t").append(b"again")
    with pytest.raises(UnknownTopicError, match="'t' was dropped and made again"):
        strict.latestOffset(start, ALL)
    assert step(lax, end)[0] == [("t", 0)]


# A topic that was given by name, not by a pattern, was looked for again with every batch: the query
# ended when it was dropped, whatever failOnDataLoss said.
@pytest.mark.parametrize("topics", ["t,u", "t", "*", '["t", "u"]'])
def test_a_query_that_may_lose_data_survives_a_dropped_topic(store: Store, topics: str) -> None:
    """It goes on with the others, and reads the topic from its first record when it comes again."""
    store.topic("u").append(b"u")
    lax = follow(store.path, topics, startingOffsets="earliest", failOnDataLoss="false")
    found, end = step(lax, lax.initialOffset())
    assert ("t", 6) in found
    store.drop_topic("t")
    for _ in range(3):  # the offsets of the first know it, those of the others do not
        assert lax.reportLatestOffset() is not None
        lax.prepareForTriggerAvailableNow()
        nothing, end = step(lax, end)
        assert nothing == []
    lax = follow(store.path, topics, startingOffsets="earliest", failOnDataLoss="false")
    store.topic("t").append_many([b"again", b"and again"])
    found, _ = step(lax, end)
    assert found == [("t", 0), ("t", 1)]


def test_a_query_that_may_lose_data_survives_a_topic_made_again(store: Store) -> None:
    """Between two of its batches, and between the plan of one and its reading."""
    lax = follow(store.path, "t", startingOffsets="earliest", failOnDataLoss="false")
    start = lax.initialOffset()
    end = lax.latestOffset(start, ALL)
    store.drop_topic("t")
    store.topic("t").append_many([b"again"] * 20)
    assert run([part.value for part in lax.partitions(start, end)]).num_rows == 0
    found, end = step(lax, end)
    assert found == [("t", n) for n in range(20)]
    assert step(lax, end)[0] == []


def test_a_new_query_of_a_topic_that_is_not_there_is_an_error(store: Store) -> None:
    """Whether or not it may lose data: it is a name that was misspelt."""
    for option in ("true", "false"):
        with pytest.raises(UnknownTopicError, match="'tt'"):
            follow(store.path, "tt", failOnDataLoss=option).initialOffset()


def test_a_micro_batch_is_planned_again_as_it_was(store: Store) -> None:
    """From the offsets alone, by another process, after the store went on."""
    first = follow(store.path, "t", startingOffsets="earliest")
    start = first.initialOffset()
    found, end = step(first, start)
    first.stop()
    store.topic("t").append_many([b"y"] * 10)
    store.checkpoint()
    again = cloudpickle.loads(pickled(first))
    assert sorted(
        run([part.value for part in again.partitions(start, end)])["offset"].to_pylist()
    ) == [offset for _, offset in found]
    again.stop()
