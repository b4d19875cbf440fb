"""Bugs of the engine that damage brought to light; each test tells its story."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import OpenStore

import stratalog


def test_a_shard_without_files_does_not_begin_again_at_0(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """All log files of a shard were deleted, and a snapshot was at lsn 4096 of it.

    The store opened without a word, and wrote a file that begins at lsn 0: the next open started
    past its end, at the snapshot's position, and found damage.
    """
    with open_store(shards=1) as store:
        for number in range(10):
            store.topic("orders").append(b"order %d" % number)
        store.snapshot()
    for path in tmp_path.rglob("*.log"):
        path.unlink()
    store = open_store(shards=1)
    assert store.damage is not None
    assert "are missing" in store.damage
    store.close()
    assert stratalog.repair(tmp_path / "data").ok
    store = open_store(shards=1)
    assert store.damage is None
    assert store.topic("orders").append(b"goes on") == 10
    store.close()
    assert len(open_store(shards=1).topic("orders").read_values()) == 11


def test_segments_of_a_topic_that_no_checkpoint_speaks_of_are_found(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """The log was cut after the TOPIC frame, and no snapshot was left.

    Nothing made the store look into the topic's directory, and when it was opened for writing its
    segments were removed as the leftovers of a crash.
    """
    with open_store(shards=1) as store:
        topic = store.create_topic("orders", segment_records=10)
        assert store._log is not None
        end = store._log.shards[0].files.position
        topic.append_many([b"order"] * 20)
        store.checkpoint()
    path = next(tmp_path.rglob("*.log"))
    path.write_bytes(path.read_bytes()[:end])
    (tmp_path / "data" / "log" / "ends").unlink()  # it would say that this is not the end
    store = open_store(shards=1)
    assert store.damage is None
    assert len(store.topic("orders").read_values()) == 20
