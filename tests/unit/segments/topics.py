"""Topics to test with: values that say their offset, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.model import Gap, Record
from stratalog.upkeep.rounds import Upkeep

KEYS = (None, b"k1", b"k2", b"k3", b"")
"""Keys of the records by offset: none, some, and an empty one."""


def value(offset: int) -> bytes:
    """Compute the value of the record at an offset."""
    return b"record %d " % offset * 5


def fill(
    topic: Topic, count: int, *, tags: int = 3, keys: Sequence[bytes | None] = (None,)
) -> None:
    """So many records more, each with a tag `t0`, `t1`, ... and one of the keys by its offset."""
    first = topic.next_offset
    topic.append_many(
        [
            Record(value(n), keys[n % len(keys)], tag=f"t{n % tags}", node=f"n{n % 2}")
            for n in range(first, first + count)
        ]
    )


def segments(store: Store, topic: Topic, batches: int, size: int = 10) -> None:
    """So many checkpoints of `size` records each: segments, if that is what a segment holds."""
    for _ in range(batches):
        fill(topic, size)
        store.checkpoint()


def check(topic: Topic, living: Iterable[int], gaps: Iterable[Gap] = ()) -> None:
    """Every way to read gives these offsets, with the values that belong to them."""
    offsets, gaps = sorted(living), list(gaps)
    items = list(topic.read())
    records = [item for item in items if isinstance(item, Record)]
    assert [record.offset for record in records] == offsets
    assert [record.value for record in records] == [value(n) for n in offsets]
    assert [item for item in items if isinstance(item, Gap)] == gaps
    places = [item.offset if isinstance(item, Record) else item.first for item in items]
    assert places == sorted(places)
    assert topic.read_values() == [value(n) for n in offsets]
    assert topic.read_values(0, 3) == [value(n) for n in offsets[:3]]
    assert topic.read_arrow().read_all()["offset"].to_pylist() == offsets
    diff = topic.diff(limit=1 << 20)
    assert [record.offset for record in diff.records] == offsets
    assert diff.gap == next((gap for gap in gaps if gap.reason != "expired"), None)
    watched = list(topic.watch(0, timeout=0))
    assert watched == items
    if records:
        assert topic.offset_at(records[-1].timestamp) <= offsets[-1]


def upkeep(store: Store) -> Upkeep:
    """Do what the background thread would do."""
    assert store._upkeep is not None
    return store._upkeep


def files(root: Path, suffix: str = ".seg") -> list[str]:
    """Names of the segments below a directory, sorted."""
    return sorted(path.name for path in root.rglob(f"*{suffix}"))
