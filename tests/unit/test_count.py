"""How many records a topic has: those that can be read."""

from __future__ import annotations

from pathlib import Path

import stratalog
from stratalog import Gap, Record, Store


def _count(store: Store, name: str) -> int:
    topic = store.topic(name)
    found = sum(isinstance(item, Record) for item in topic.read(topic.earliest))
    assert len(topic) == topic.stats().records == found
    return found


def test_deleted_records_do_not_count(tmp_path: Path) -> None:
    """In the log, in segments, after these were rewritten, and after the store was opened again."""
    with stratalog.open(tmp_path / "data", shards=1, durability="memory") as store:
        topic = store.create_topic("t", segment_records=10)
        topic.append_many([Record(b"%d" % n, tag="odd" if n % 2 else "even") for n in range(35)])
        assert _count(store, "t") == 35
        topic.delete(offsets=[0, 33])
        assert _count(store, "t") == 33
        store.checkpoint()
        topic.delete(tag="odd")
        assert _count(store, "t") == 17
        store.compact(purge=True)
        assert _count(store, "t") == 17
        topic.append(b"later")
        topic.delete(before=12)
        assert _count(store, "t") == 13
        assert store.stats().records == 13
    with stratalog.open(tmp_path / "data") as store:
        assert _count(store, "t") == 13
        assert not any(isinstance(item, Gap) for item in store.topic("t").read(12))


def test_replaced_records_do_not_count(tmp_path: Path) -> None:
    """A compacted segment counts what it holds."""
    with stratalog.open(tmp_path / "data", shards=1, durability="memory") as store:
        topic = store.create_topic("t", segment_records=10, compact=True)
        for n in range(40):
            topic.append(b"%d" % n, key=b"%d" % (n % 4))
        store.compact()
        assert _count(store, "t") < 40
        topic.delete(key=b"3")
        store.compact(purge=True)  # until then, it counts in a compacted segment
        assert _count(store, "t") == 3
