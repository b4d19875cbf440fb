"""Topics with a lake as DataFrames: files by Spark's own scan and the log after them, as one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

import stratalog.spark
from stratalog import DataLossError, Record, Store, Topic
from stratalog.spark import lake_read
from stratalog.testing import ManualClock


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with a lake, whose upkeep is called by the test."""
    from stratalog.options import StoreOptions

    options = StoreOptions.build({"shards": 1, "lake": str(tmp_path / "lake [a]")}, {})
    made = Store(tmp_path / "store", options, background=False)
    yield made
    made.close()


def _fill(topic: Topic, count: int) -> None:
    first = topic.next_offset
    topic.append_many(
        [Record(b"%d" % n, b"k%d" % (n % 3), tag=f"t{n % 2}") for n in range(first, first + count)]
    )


def _rows(frame: Any) -> list[tuple[Any, ...]]:
    found = frame.select("offset", "key", "value", "tag", "topic").orderBy("offset").collect()
    return [(r[0], bytes(r[1]), bytes(r[2]), r[3], r[4]) for r in found]


def _model(topic: Topic, start: int = 0) -> list[tuple[Any, ...]]:
    records = topic.records(max(start, topic.earliest))
    return [(r.offset, r.key, r.value, r.tag, topic.name) for r in records]


def _keep_up(store: Store) -> None:
    store.checkpoint()
    store.compact()


@pytest.mark.parametrize("tail_bytes", [lake_read._TAIL_BYTES_MAX, 0])
def test_files_and_the_log_are_one_dataframe(
    spark: Any, store: Store, monkeypatch: pytest.MonkeyPatch, tail_bytes: int
) -> None:
    """Every record once, deleted ones not, pinned; the rest by a file, or by tasks in Python."""
    monkeypatch.setattr(lake_read, "_TAIL_BYTES_MAX", tail_bytes)
    topic = store.create_topic("orders", lake=True, segment_records=50)
    _fill(topic, 230)
    _keep_up(store)
    _fill(topic, 7)
    assert topic.lake().end_offset == 200
    frame = stratalog.spark.read(spark, store.path, "orders")
    pinned = _model(topic)
    assert _rows(frame) == pinned
    topic.delete(offsets=[3, 4, 5, 120, 231])
    topic.delete(before=2)
    later = stratalog.spark.read(spark, store.path, "orders")
    assert _rows(later) == _model(topic)
    assert later.count() == len(_model(topic))
    assert later.where("offset < 10").count() == len([r for r in _model(topic) if r[0] < 10])
    _keep_up(store)
    assert _rows(frame) == pinned
    part = stratalog.spark.read(spark, store.path, "orders", columns=["offset"], start=100, end=233)
    assert sorted(r[0] for r in part.collect()) == [r[0] for r in _model(topic, 100) if r[0] < 233]


def test_many_deleted_records_are_left_out(spark: Any, store: Store) -> None:
    """By a join, where a filter would be too long; also of files that only the lake has."""
    topic = store.create_topic(
        "orders", lake=True, segment_records=100, retention_records=100, retention_segments_min=0,
        lake_retention=3600.0,
    )  # fmt: skip
    _fill(topic, 400)
    _keep_up(store)
    topic.delete(offsets=range(0, 400, 2))
    frame = stratalog.spark.read(spark, store.path, "orders")
    assert sorted(r[0] for r in frame.select("offset").collect()) == list(range(1, 400, 2))
    _keep_up(store)
    _keep_up(store)
    assert topic.earliest == 300
    assert _rows(stratalog.spark.read(spark, store.path, "orders"))[-50:] == _model(topic)
    frame = stratalog.spark.read(spark, store.path, "orders")
    assert sorted(r[0] for r in frame.select("offset").collect()) == list(range(1, 400, 2))


def test_a_file_that_is_missing_or_another_is_an_error(spark: Any, store: Store) -> None:
    """Also where the session says that missing and damaged files are to be ignored."""
    topic = store.create_topic("orders", lake=True, segment_records=50)
    _fill(topic, 100)
    _keep_up(store)
    frame = stratalog.spark.read(spark, store.path, "orders")
    assert frame.count() == 100
    path = topic.lake().files()[0]
    keys = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    try:
        for key in keys:
            spark.conf.set(key, "true")
        whole = pq.read_table(path)
        data = Path(path).read_bytes()
        changes: list[Callable[[], object]] = [
            lambda: Path(path).write_bytes(data[: len(data) // 2]),
            lambda: pq.write_table(whole.slice(10), path),  # a file that is right by itself
            lambda: pq.write_table(pa.concat_tables([whole, whole]), path),
            lambda: os.unlink(path),
        ]
        for change in changes:
            change()
            for query in (frame.count, frame.agg({"value": "max"}).collect):
                with pytest.raises((PySparkException, Py4JJavaError)):
                    query()
    finally:
        for key in keys:
            spark.conf.unset(key)


def test_expired_records_are_not_read(spark: Any, tmp_path: Path) -> None:
    """By the time of the topic and by times of records, at the moment the DataFrame is made."""
    clock = ManualClock()
    now = clock.time_ns()
    from stratalog.options import StoreOptions
    from stratalog.spark.source.read_options import ReadOptions

    options = StoreOptions.build({"shards": 1, "lake": str(tmp_path / "lake")}, {})
    store = Store(tmp_path / "store", options, background=False, clock=clock)
    topic = store.create_topic("orders", lake=True, segment_records=10, ttl=100.0)
    for number in range(20):
        topic.append(b"%d" % number, ttl=5.0 if number % 2 else None)
        clock.advance(1.0)
    _keep_up(store)
    wanted = ReadOptions.parse({"path": store.path, "topic": "orders"})
    for seconds in (20, 22, 109, 200):  # what had expired before is in no file
        moment = now + seconds * 10**9 + 500_000_000
        frame = lake_read.read_with_lake(spark, wanted, ("offset",), moment)
        assert frame is not None
        offsets = sorted(row[0] for row in frame.collect())
        alive = [
            n for n in range(20)
            if now + (n + 100) * 10**9 > moment and not (n % 2 and now + (n + 5) * 10**9 <= moment)
        ]  # fmt: skip
        assert offsets == alive
    store.close()


def test_records_that_are_gone_are_a_loss(spark: Any, store: Store) -> None:
    """As without a lake: where a read asks for them by offset, and does not say to pass over."""
    kept: Any = {"segment_records": 10, "retention_records": 10, "retention_segments_min": 0}
    short = store.create_topic("short", lake=True, **kept)
    long = store.create_topic("long", lake=True, lake_retention=3600.0, **kept)
    for topic in (short, long):
        _fill(topic, 50)
    for _ in range(2):
        _keep_up(store)
    assert short.earliest == long.earliest == 40
    with pytest.raises(DataLossError, match="offsets 0 to 39"):
        stratalog.spark.read(spark, store.path, "short", start=0)
    frame = stratalog.spark.read(spark, store.path, "short", start=0, failOnDataLoss=False)
    assert frame.count() == 10
    assert stratalog.spark.read(spark, store.path, "long", start=3, end=44).count() == 41
    long.delete(before=7)
    assert stratalog.spark.read(spark, store.path, "long", start=3, end=44).count() == 37


@pytest.mark.parametrize("name", ["lake #1%20, {a}?", "_lake", ".lake", "offset=7"])
def test_a_lake_may_have_any_name(spark: Any, tmp_path: Path, name: str) -> None:
    """Spark takes some characters for patterns, and some names for hidden or for columns."""
    with stratalog.open(tmp_path / "store", lake=tmp_path / name) as store:
        topic = store.create_topic("orders", lake=True, segment_records=10)
        _fill(topic, 25)
        _keep_up(store)
        assert _rows(stratalog.spark.read(spark, store.path, "orders")) == _model(topic)


class _Writer(threading.Thread):
    """Appends, deletes, seals, compacts and uploads, and says what can be read after each step."""

    def __init__(self, store: Store) -> None:
        super().__init__(daemon=True)
        self._store = store
        self._topic = store.topic("orders")
        self.states: list[tuple[int, frozenset[int]]] = [(0, frozenset())]
        """How many records there were, and which had been deleted."""
        self.steps = 0
        """How many have begun: the next state may be there before it is in `states`."""
        self.is_over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Go on until it is over."""
        try:
            self._run(Random(11))
        except BaseException as error:
            self.error = error

    def _run(self, rng: Random) -> None:
        count, deleted = self.states[-1]
        while not self.is_over.is_set():
            self.steps += 1
            if count and not rng.randrange(4):
                chosen = rng.sample(range(count), min(3, count))
                self._topic.delete(offsets=chosen)
                deleted |= set(chosen)
            else:
                _fill(self._topic, rng.randrange(1, 40))
                count = self._topic.next_offset
            self.states.append((count, deleted))
            if not rng.randrange(5):
                self._store.checkpoint()
            if not rng.randrange(9):
                self._store.compact()


def test_queries_beside_a_writer_equal_the_model_at_their_moment(
    spark: Any, tmp_path: Path
) -> None:
    """The lake's own thread works beside them; each result is a state that there was meanwhile."""
    queries = int(os.environ.get("STRATALOG_LAKE_QUERIES", "8"))
    path, lake = tmp_path / "store", tmp_path / "lake"
    with stratalog.open(path, lake=lake, checkpoint_interval=0.05, durability="disk") as store:
        store.create_topic("orders", lake=True, segment_records=60)
        writer = _Writer(store)
        writer.start()
        try:
            for number in range(queries):
                before = len(writer.states) - 1
                frame = stratalog.spark.read(spark, path, "orders", columns=["offset"])
                after = writer.steps
                found = sorted(row[0] for row in frame.collect())
                # The step that had begun has come to an end, or the writer has.
                while len(writer.states) <= after and writer.is_alive():
                    writer.join(0.01)
                assert writer.error is None, writer.error
                candidates = writer.states[before : after + 1]
                assert any(
                    found == [n for n in range(count) if n not in deleted]
                    for count, deleted in candidates
                ), f"query {number} is no state from {before} to {after}"
        finally:
            writer.is_over.set()
            writer.join()


def test_results_equal_the_model_while_the_store_changes(spark: Any, store: Store) -> None:
    """Appends, seals, deletes, compactions and files of the lake between the queries."""
    queries = int(os.environ.get("STRATALOG_LAKE_QUERIES", "8"))
    rng = Random(7)
    topic = store.create_topic("orders", lake=True, segment_records=40)
    frames: list[tuple[Any, list[tuple[Any, ...]]]] = []
    for _ in range(queries):
        _fill(topic, rng.randrange(1, 90))
        for step in rng.sample(["checkpoint", "compact", "delete", "snapshot"], 2):
            if step == "delete":
                topic.delete(offsets=rng.sample(range(topic.next_offset), 3))
            else:
                getattr(store, step)()
        frames.append((stratalog.spark.read(spark, store.path, "orders"), _model(topic)))
        frame, model = frames[-1]
        assert _rows(frame) == model
    old, model = frames[rng.randrange(len(frames))]
    assert old.count() == len(model)
