"""Contestants for stores whose records are in segments: opening them and scanning them."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from contextlib import contextmanager

import stratalog
from benchmarks.model import RECORD_BYTES, SEED, Trial, records
from benchmarks.own import scan_arrow

TOPIC = "log"
_BATCH = 1000


@functools.cache
def values_of(length: int) -> list[bytes]:
    """A batch of records of that length, the same in every run."""
    if length == RECORD_BYTES:
        return records(_BATCH)
    source = random.Random(SEED)
    return [source.randbytes(length) for _ in range(_BATCH)]


def build(
    path: str, count: int, *, topics: int = 1, segment_records: int = 1_000_000,
    length: int = RECORD_BYTES,
) -> None:  # fmt: skip
    """A store of so many records, evenly over its topics, cleanly closed."""
    values = values_of(length)
    with stratalog.open(path, durability="disk") as store:
        names = [TOPIC] if topics == 1 else [f"{TOPIC}-{number}" for number in range(topics)]
        handles = [store.create_topic(name, segment_records=segment_records) for name in names]
        for _ in range(count // len(values) // topics):
            for topic in handles:
                topic.append_many(values)


@contextmanager
def open_closed(
    directory: str, *, count: int, topics: int = 1, segment_records: int = 1_000_000
) -> Iterator[Trial]:
    """Opening a store that was closed; closing it again is not timed."""
    build(directory, count, topics=topics, segment_records=segment_records)
    opened: list[stratalog.Store] = []

    def prepare() -> None:
        for store in opened:
            store.close()
        opened.clear()

    def work() -> int:
        store = stratalog.open(directory)
        opened.append(store)
        return count

    try:
        yield Trial(work, prepare)
        for store in opened:
            found = store.stats().records
            assert found == count, f"{found} of {count} records are left"
    finally:
        prepare()


@contextmanager
def scan_sealed(
    directory: str, *, count: int, segment_records: int, length: int
) -> Iterator[Trial]:
    """`read_arrow`, all columns, of sealed segments in the page cache; all checksums verified."""
    build(directory, count, segment_records=segment_records, length=length)
    with stratalog.open(directory) as store:
        topic = store.topic(TOPIC)
        segments = topic.stats().segments
        assert segments * segment_records == count, f"{segments} segments: not all are full"
        yield Trial(lambda: scan_arrow(topic))
