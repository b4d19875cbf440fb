"""Who reads what: ranges, tasks, and what becomes of a plan when the store changes under it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from tests.conftest import OpenStore
from tests.spark.frames import expected, read, read_offsets, rows, run, tasks

from stratalog.errors import (
    CorruptionError,
    DataLossError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicError,
)
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.spark.source.columns import check_schema
from stratalog.spark.source.plan import tasks_wanted
from stratalog.spark.source.read_options import ReadOptions
from stratalog.spark.source.read_task import PieceReader


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """Offsets 0 to 249: two sealed segments, an open one, and 30 records in the log."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=100)
    for first in range(0, 220, 20):
        start = first * 10**12 + 10**18
        topic.append_many(
            [Record(value=b"%d" % n, timestamp=start + n) for n in range(first, first + 20)]
        )
        store.checkpoint()
    topic.append_many([Record(value=b"%d" % n, timestamp=10**18 + 10**15) for n in range(220, 250)])
    return store


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        ("a", ["a"]),
        ("a, b", ["a", "b"]),
        ("a*", ["a*"]),  # a topic of that very name
        ("?,b", ["a", "b"]),
        ("a?*", ["a*", "a,b"]),
        ("[ab]", ["a", "b"]),
        ('["a,b"]', ["a,b"]),
        ('["a*", "b"]', ["a*", "b"]),
    ],
)
def test_topics_are_named_or_matched(open_store: OpenStore, topic: str, found: list[str]) -> None:
    """By list, by pattern, and exactly, whatever characters they have."""
    store = open_store(durability="disk")
    for name in ("a", "b", "a,b", "a*"):
        store.topic(name).append(name.encode())
    store.sync()
    assert sorted(set(read(store.path, topic)["topic"].to_pylist())) == sorted(found)


@pytest.mark.parametrize(
    ("options", "first", "end"),
    [
        ({}, 0, 250),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 0, 250),
        ({"startingOffsets": "latest"}, 250, 250),
        ({"startingOffsets": "99", "endingOffsets": "101"}, 99, 101),
        ({"startingOffsets": '{"t": 240}'}, 240, 250),
        ({"startingOffsets": '{"t": {"0": -2}}', "endingOffsets": '{"t": {"0": 7}}'}, 0, 7),
        ({"startingTimestamp": str(10**12 + 10**9)}, 220, 250),
        ({"endingTimestamp": str(10**12 + 10**9)}, 0, 220),
        ({"startingTimestamp": "2001-09-09T01:46:40Z"}, 0, 250),
        ({"endingTimestamp": "2001-09-09"}, 0, 0),
        ({"startingTimestamp": '{"t": "2999-01-01"}'}, None, None),
        ({"startingTimestamp": "2100-01-01T00:00:00+02:00"}, 250, 250),
        ({"startingOffsets": "999", "failOnDataLoss": "false"}, 250, 250),
        ({"endingOffsets": "999", "failOnDataLoss": "False"}, 0, 250),
    ],
)
def test_a_range_is_what_it_says(
    store: Store, options: dict[str, str], first: int | None, end: int
) -> None:
    """By offset and by time, for all topics or for one."""
    if first is None:
        with pytest.raises(OptionError, match="not a time between 1970 and 2230"):
            tasks(store.path, "t", **options)
        return
    assert read_offsets(store.path, "t", **options) == list(range(first, end))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxBytesPerTrigger": "much"}, "must be bytes"),
        ({"minOffsetsPerTrigger": "0"}, "must be a whole number above 0"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "no micro-batch can be both"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "such as 500ms"),
        ({"maxTriggerDelay": "1s"}, "give that, too"),
    ],
)
def test_options_of_streams_that_make_no_sense_are_refused(
    options: dict[str, str], message: str
) -> None:
    """Before the query starts."""
    with pytest.raises(OptionError, match=message):
        ReadOptions.parse({"path": "data", "topic": "t"} | options, is_stream=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "first"}, "startingOffsets='first' is not a place"),
        ({"startingOffsets": "-3"}, "not a place"),
        ({"startingOffsets": '{"u": 1}'}, "unknown topic in startingOffsets 'u'"),
        ({"startingOffsets": '{"t": {"0": 1, "1": 2}}'}, "has one partition"),
        ({"startingOffsets": "{"}, "is not JSON"),
        ({"startingOffsets": "1", "startingTimestamp": "1"}, "give one of them"),
        ({"endingTimestamp": "yesterday"}, "not a time"),
        ({"failOnDataLoss": "maybe"}, "must be true or false"),
        ({"minPartitions": "0"}, "must be a whole number above 0"),
        ({"maxPartitionBytes": "1x"}, "must be bytes"),
        ({"maxOffsetsPerTrigger": "1"}, "is for spark.readStream"),
        ({"topic": '["a", 1]'}, "must be a list of names"),
        ({"verfy": "false"}, "did you mean 'verify'"),
        ({"path": "http://x/y"}, "no store can be read at http://"),
        ({"path": ""}, "which store"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    store: Store, options: dict[str, str], message: str
) -> None:
    """With what is wrong about them, and what to write instead."""
    given: dict[str, Any] = {"path": store.path, "topic": "t"} | options
    with pytest.raises(OptionError, match=message):
        tasks(**given)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (["ofset long"], "unknown column 'ofset': did you mean 'offset'"),
        (["offset integer"], "column 'offset' is bigint, not int"),
        (["value string"], "column 'value' is binary, not string"),
        (["offset long", "offset long"], "each can be there once only"),
        ([], "a schema without a column"),
    ],
)
def test_a_schema_that_is_not_ours_is_refused(schema: list[str], message: str) -> None:
    """By name and by type."""
    fields = StructType()
    for field in schema:
        name, kind = field.split()
        fields.add(name, kind)
    with pytest.raises(OptionError, match=message):
        check_schema(fields)


def test_an_offset_that_is_not_there_yet_is_an_error(store: Store) -> None:
    """At either end of the range."""
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(OffsetOutOfRangeError, match=f"{option}=251 .* the next one is 250"):
            tasks(store.path, "t", **{option: "251"})


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_tasks_share_the_work_evenly(store: Store, count: int) -> None:
    """Every record is in one of them, and none has much more to do than the others."""
    for _ in range(20):
        store.topic("u").append_many([b"x" * 200 for _ in range(5)])
    made = tasks(store.path, "*", minPartitions=count)
    assert rows(run(made)) == expected(store, "t", "u")
    if count <= 3:
        assert len(made) == count
        sizes = [sum(piece.size for piece in task.pieces) for task in made]
        assert max(sizes) < 2 * min(sizes)
    assert len(tasks(store.path, "*")) == 1
    assert len(tasks(store.path, "*", maxPartitionBytes="8k")) > 3


@pytest.mark.parametrize(
    ("gib", "options", "count"),
    [
        (0.001, {}, 1),
        (0.5, {}, 2),
        (2, {}, 2),
        (2.1, {}, 4),
        (2.1, {"minPartitions": 7}, 7),
        (5, {"minPartitions": 1}, 6),
        (2.1, {"maxPartitionBytes": "3g"}, 2),
        (2.1, {"maxPartitionBytes": "1g"}, 3),
        (0, {}, 1),
    ],
)
def test_two_cores_have_as_many_tasks_each(
    monkeypatch: pytest.MonkeyPatch, gib: float, options: dict[str, Any], count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    given = {name: str(value) for name, value in options.items()}
    parsed = ReadOptions.parse({"path": "data", "topic": "t"} | given)
    assert tasks_wanted(int(gib * 2**30), parsed) == count


def test_a_time_range_reads_no_more_than_it_must(open_store: OpenStore) -> None:
    """One percent of the records for about one percent of the bytes, by our own count."""
    store = open_store(background=False, durability="disk")
    topic = store.create_topic("t", segment_bytes=1 << 20)
    for n in range(20):
        stamps = range(n * 10_000, (n + 1) * 10_000)
        topic.append_many([Record(value=b"x" * 100, timestamp=10**18 + s * 10**6) for s in stamps])
    store.checkpoint()
    begin = 10**12 + 100_000
    options = {"startingTimestamp": begin, "endingTimestamp": begin + 2000}
    made = tasks(store.path, "t", **options)
    assert run(made).num_rows == 2000
    planned = sum(piece.size for task in made for piece in task.pieces)
    total = topic.stats().bytes
    readers = [PieceReader(task) for task in made]
    for task, one in zip(made, readers, strict=True):
        for piece in task.pieces:
            assert list(one.read(piece))
    took = sum(one.bytes for one in readers)
    assert 0.005 * total < took <= planned < 0.06 * total


# --- a plan that was overtaken --------------------------------------------------------------

Change = Callable[[Store], object]


def _evict(store: Store) -> None:
    store.topic("t").delete(before=150)
    store.compact()


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.checkpoint(),
        lambda store: (store.snapshot(), store.snapshot(), store.snapshot()),
        lambda store: store.topic("t").append_many([b"more"] * 300),
        lambda store: (store.topic("t").append_many([b"more"] * 300), store.checkpoint()),
        lambda store: store.compact(),
        lambda store: store.close(),
    ],
    ids=["checkpoint", "snapshots", "append", "seal", "compact", "close"],
)
def test_what_was_planned_is_read_wherever_it_is_by_now(
    open_store: OpenStore, tmp_path: Path, change: Change
) -> None:
    """Moved from the log to a segment, sealed, renamed, moved to the cold store: nothing shows."""
    store = open_store(
        background=False, cold=str(tmp_path / "cold"), hot_segments=0, log_file_bytes=1 << 14,
        log_chunk_bytes=1 << 12,
    )  # fmt: skip
    topic = store.create_topic("t", segment_records=100)
    topic.append_many([Record(value=b"%d" % n, key=b"k") for n in range(150)])
    store.checkpoint()
    for n in range(150, 250):
        topic.append(b"%d" % n, key=b"k")
    wanted = expected(store, "t")
    made = tasks(store.path, "t", minPartitions=4)
    change(store)
    assert rows(run(made)) == wanted


def test_records_that_went_meanwhile_are_a_loss_or_a_gap(open_store: OpenStore) -> None:
    """As `failOnDataLoss` says; records that were deleted are neither."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=100, retention_records=120)
    topic.append_many([b"%d" % n for n in range(350)])
    store.checkpoint()
    strict, lax = tasks(store.path, "t"), tasks(store.path, "t", failOnDataLoss="false")
    store.compact()
    assert topic.earliest == 200
    with pytest.raises(DataLossError, match=r"offsets 0 to 99 .* retention has evicted them"):
        run(strict)
    assert run(lax)["offset"].to_pylist() == list(range(200, 350))
    assert read_offsets(store.path, "t") == list(range(200, 350))
    with pytest.raises(DataLossError, match="offsets 5 to 199 "):
        tasks(store.path, "t", startingOffsets="5")
    found = read_offsets(store.path, "t", startingOffsets="5", failOnDataLoss="false")
    assert found == list(range(200, 350))
    topic.delete(before=250)
    assert read_offsets(store.path, "t", startingOffsets="200") == list(range(250, 350))


def test_a_topic_that_was_dropped_meanwhile_is_said(store: Store) -> None:
    """Also if there is a new one of the same name."""
    made = tasks(store.path, "t")
    store.drop_topic("t")
    store.compact()
    store.topic("t").append(b"another")
    with pytest.raises(UnknownTopicError, match=r"'t' of .* was dropped while it was read"):
        run(made)


def test_another_store_in_the_same_place_is_said(store: Store, tmp_path: Path) -> None:
    """Its files have the same names."""
    made = tasks(store.path, "t")
    other = Store(tmp_path / "other", store.options)
    other.close()
    (tmp_path / "other" / "store").rename(tmp_path / "data" / "store")
    with pytest.raises(NotAStoreError, match="replaced meanwhile"):
        run(made)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_meanwhile_what_is_read_is_right(
    open_store: OpenStore, tmp_path: Path, seed: int
) -> None:
    """Plans are made, the store lives on for a while, the plans are read: never a wrong byte."""
    dice = random.Random(seed)
    store = open_store(
        background=False, durability="disk", cold=str(tmp_path / "cold"), hot_segments=1,
        log_file_bytes=1 << 14, log_chunk_bytes=1 << 12, shards=dice.choice([1, 3]),
    )  # fmt: skip
    topic = store.create_topic("t", segment_records=30, retention_records=150)
    gone: set[int] = set()
    plans: list[tuple[int, set[int], Any]] = []
    steps: list[Callable[[], object]] = [
        lambda: topic.append_many([b"%d" % (topic.next_offset + n) for n in range(17)]),
        lambda: [topic.append(b"%d" % topic.next_offset, key=b"k") for _ in range(5)],
        store.checkpoint,
        store.snapshot,
        store.compact,
        lambda: gone.update(delete()),
        lambda: plans.append((topic.next_offset, set(gone), plan())),
    ]

    def delete() -> list[int]:
        some = range(topic.earliest, topic.next_offset)
        chosen = dice.sample(some, min(3, len(some)))
        topic.delete(offsets=chosen)
        return chosen

    def plan() -> Any:
        store.sync()
        return tasks(store.path, "t", failOnDataLoss="false", minPartitions=dice.choice([1, 3]))

    for _ in range(60):
        dice.choice(steps)()
    plans.append((topic.next_offset, set(gone), plan()))
    for end, deleted, made in plans:
        table = run(made)
        found = table["offset"].to_pylist()
        assert table["value"].to_pylist() == [b"%d" % offset for offset in found]
        assert set(found) >= set(range(topic.earliest, end)) - gone
        assert not set(found) & deleted
        assert found == sorted(set(found))
        assert not found or found[-1] < end


def test_records_of_a_batch_over_topics_are_read(open_store: OpenStore) -> None:
    """They are frames inside of a frame; those of every topic are found among the others."""
    store = open_store(background=False)
    store.topic("a").append(b"before")
    with store.batch() as batch:
        batch.topic("a").append(b"1", key=b"k")
        batch.topic("b").append(b"2")
    store.topic("a").append(b"after")
    for _ in range(2):
        assert rows(read(store.path, "a,b")) == expected(store, "a", "b")
        store.checkpoint()


# --- what must not be read ------------------------------------------------------------------


def test_expired_records_are_left_out_and_no_loss(open_store: OpenStore) -> None:
    """By their own time and by the topic's, as of when the read was planned."""
    store = open_store(background=False)
    own = store.topic("own")
    own.append_many([b"stays", b"stays too"])
    own.append(b"goes", ttl=0.001)
    old = store.create_topic("old", ttl=3600)
    hours_ago = time.time_ns() - 2 * 3600 * 10**9
    old.append_many([Record(value=b"old", timestamp=hours_ago), Record(value=b"new")])
    while time.time_ns() < own.stats().newest_timestamp + 2 * 10**6:
        pass
    for _ in range(2):
        assert read(store.path, "own")["value"].to_pylist() == [b"stays", b"stays too"]
        assert read(store.path, "old")["value"].to_pylist() == [b"new"]
        store.checkpoint()


def test_damage_is_an_error_with_a_place_or_not_looked_at(store: Store) -> None:
    """A damaged batch is never given out, unless verification is turned off."""
    sealed = sorted(Path(store.path).glob("topics/*/*.seg"))[1]
    data = bytearray(sealed.read_bytes())
    data[200] ^= 1
    sealed.write_bytes(data)
    assert read_offsets(store.path, "t", endingOffsets="100") == list(range(100))
    with pytest.raises(CorruptionError, match=rf"{sealed.name} at position 64: .* offsets 100 to"):
        read(store.path, "t")
    assert len(read_offsets(store.path, "t", verify="false")) == 250


def test_times_are_cut_to_microseconds_everywhere(open_store: OpenStore) -> None:
    """However a batch has them: one for all, short, or long."""
    store = open_store(background=False)
    base = int(datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()) * 10**9 + 999
    spread = [0, 1, 999, 1000, 10**9, 2**32 - 1, 2**32, 10**12]
    for count in (1, 3, 6, 8):
        stamps = [base + add for add in spread[:count]]
        topic = store.topic(f"t{count}")
        topic.append_many([Record(value=b"", timestamp=stamp) for stamp in stamps])
        for _ in range(2):
            found = read(store.path, f"t{count}")["timestamp"].cast("int64").to_pylist()
            assert found == [stamp // 1000 for stamp in stamps]
            store.checkpoint()
