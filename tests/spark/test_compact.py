"""Compaction and backfill on Spark come to what the engine comes to."""

from __future__ import annotations

import random
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog.errors import OptionError
from stratalog.model import Record
from stratalog.spark import jobs
from stratalog.upkeep.rounds import _RATIO_MIN


def _items(store: Any, name: str) -> list[Any]:
    return list(store.topic(name).read())


def _segments(store: Any, name: str) -> list[Any]:
    return [one.summary for one in store.topic(name)._log.history.chain.segments]


def _fill_keys(store: Any, seed: int, tombstone_seconds: float) -> None:
    """Keys that come again, are deleted, come back; records without one; records deleted."""
    rng = random.Random(seed)
    topic = store.create_topic(
        "keys", segment_records=100, compact=True, tombstone_seconds=tombstone_seconds
    )
    for _ in range(30):
        records = [
            Record(
                value=None if rng.random() < 0.2 else b"value %d" % rng.randrange(1000),
                key=None if rng.random() < 0.1 else b"key %d" % rng.randrange(60),
            )
            for _ in range(rng.randrange(1, 30))
        ]
        topic.append_many(records)
    topic.delete(offsets=rng.sample(range(topic.next_offset), 20))
    store.checkpoint()
    for _ in range(5):
        topic.append(b"newest", key=b"key %d" % rng.randrange(60))
    store.snapshot()


def _compact_sealed(store: Any) -> None:
    """Compact as `store.compact()` does, but leave the open segment alone, as the job has to."""
    upkeep = store._upkeep
    with upkeep._lock:
        upkeep._checkpoint()
        upkeep._tidy(partial(upkeep._rewrite, _RATIO_MIN))


@pytest.mark.parametrize("tombstone_seconds", [0.001, 86400.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_it_keeps_what_the_engine_keeps(
    spark: Any, tmp_path: Path, open_store: OpenStore, seed: int, tombstone_seconds: float
) -> None:
    """Records stay at their offsets, deletions of keys included."""
    with open_store(shards=1, background=False) as store:
        _fill_keys(store, seed, tombstone_seconds)
        newest = {r.key: r for r in _items(store, "keys")}
    shutil.copytree(tmp_path / "data", tmp_path / "other")
    report = jobs.compact(tmp_path / "other", spark=spark)
    with open_store(shards=1, background=False) as store:
        _compact_sealed(store)
        expected = _items(store, "keys")
        records = [one.records for one in _segments(store, "keys")]
    with open_store(tmp_path / "other", shards=1, background=False) as other:
        assert _items(other, "keys") == expected
        assert sum(one.records for one in _segments(other, "keys")) == sum(records)
        assert len(_segments(other, "keys")) < len(records), "small ones were not merged"
        assert all(r in expected for k, r in newest.items() if k is not None and r.value)
    (done,) = report.topics
    assert done.records_removed > 0
    assert stratalog.verify(tmp_path / "other").ok
    assert jobs.compact(tmp_path / "other", spark=spark).topics == [], "nothing is left to do"


def test_small_segments_become_large_and_codecs_change(
    spark: Any, tmp_path: Path, open_store: OpenStore
) -> None:
    """Nothing else changes: offsets, times, headers and what was deleted."""
    with open_store(shards=1) as store:
        topic = store.create_topic("orders", segment_seconds=None, segment_records=10)
        for number in range(95):
            topic.append(b"order %d " % number * 20, headers={"n": b"%d" % number}, tag="t")
        topic.delete(offsets=[3, 44])
        store.checkpoint()
        expected = _items(store, "orders")
        store.create_topic("untouched").append(b"x")
    for path in tmp_path.rglob("*.seg"):
        assert path.stat().st_size > 0
    assert jobs.compact(tmp_path / "data", topics="untouched", spark=spark).topics == []
    done = jobs.compact(tmp_path / "data", spark=spark, compression="zstd").topics[0]
    assert (done.name, done.segments_before, done.records_removed) == ("orders", 9, 2)
    assert done.bytes_after < done.bytes_before / 2
    with open_store(shards=1) as store:
        assert _items(store, "orders") == expected
    assert stratalog.verify(tmp_path / "data").ok
    assert jobs.compact(tmp_path / "data", spark=spark, compression="zstd").topics == []
    with pytest.raises(OptionError, match="compression"):
        jobs.compact(tmp_path / "data", spark=spark, compression="rar")


def test_a_live_writer_goes_on(spark: Any, open_store: OpenStore) -> None:
    """It appends and deletes while segments are swapped under its hands, and others read.

    One of the new segments is just as large as the first of the two that it replaces: it was taken
    for that one, and the offsets of the other were missing.
    """
    store = open_store(shards=1)
    topic = store.create_topic("orders", segment_records=50)
    topic.append_many([b"%d" % n for n in range(1000)])
    store.checkpoint()
    beside = open_store(read_only=True)
    assert len(beside.topic("orders").read_values(0, 1000)) == 1000
    done = threading.Event()
    sent = [1000]

    def write() -> None:
        while not done.is_set():
            topic.append_many([b"%d" % n for n in range(sent[0], sent[0] + 10)])
            sent[0] += 10
            if sent[0] % 100 == 0:
                store.checkpoint()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        topic.delete(offsets=range(100, 150))
        report = jobs.compact(store.path, spark=spark)
    finally:
        done.set()
        writer.join()
    assert report.topics[0].records_removed >= 50
    expected = [b"%d" % n for n in range(sent[0]) if not 100 <= n < 150]
    assert topic.read_values(0, sent[0]) == expected
    assert beside.topic("orders").read_values(0, sent[0]) == expected


def test_backfill_makes_the_segments_of_a_checkpoint(
    spark: Any, tmp_path: Path, open_store: OpenStore
) -> None:
    """All that is in the log alone; the topic continues after it."""
    store = open_store(shards=2, background=False, checkpoint_bytes=1 << 40)
    plain = store.create_topic("plain", segment_records=1000)
    rich = store.create_topic("rich", segment_records=300, compression="zstd", ttl=3600.0)
    plain.append_many([b"first"] * 10)
    store.checkpoint()
    for number in range(50):
        plain.append_many([b"%d.%d" % (number, n) * 10 for n in range(70)])
        rich.append_many(
            [Record(value=b"%d" % n, key=b"k", headers={"h": b"v"}) for n in range(20)]
        )
    plain.delete(offsets=[5, 500])
    expected = {name: _items(store, name) for name in ("plain", "rich")}
    store.sync()
    store._log.close()  # type: ignore[union-attr]
    store._lock.close()  # type: ignore[union-attr]
    store.is_closed = store._has_let_go = True  # as if it was killed
    report = jobs.backfill(tmp_path / "data", spark=spark, bytes_min=1)
    assert [(one.name, one.records) for one in report.topics] == [("plain", 3500), ("rich", 1000)]
    assert report.topics[1].segments >= 3
    with open_store(shards=2, background=False) as again:
        for name, items in expected.items():
            topic = again.topic(name)
            assert _items(again, name) == items
            assert topic._log.history.checkpointed == topic.next_offset
            assert len(topic._log.index) == 0
        assert again.topic("plain").append(b"goes on") == 3510
    assert stratalog.verify(tmp_path / "data").ok
    assert jobs.backfill(tmp_path / "data", spark=spark).topics == []
