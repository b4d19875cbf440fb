"""Batches that would take too much memory once decompressed: refused wherever they are read."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog import TooLargeError, options
from stratalog.spark.source.data_source import StratalogSource

BOMB_BYTES = 8 << 20


@pytest.fixture
def small_bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tools and Spark tasks with a bound that the records below are over."""
    monkeypatch.setenv("STRATALOG_EXPANDED_BYTES_MAX", str(1 << 20))
    monkeypatch.setenv("STRATALOG_BATCH_BYTES_MAX", str(1 << 20))
    options.expanded_bytes_max.cache_clear()
    yield
    options.expanded_bytes_max.cache_clear()


def read(path: Path) -> Any:
    """All values, through a store that is only read."""
    with stratalog.open(path, read_only=True) as store:
        return store.topic("t").read_values(0)


def read_arrow(path: Path) -> Any:
    """Read as Arrow."""
    with stratalog.open(path, read_only=True) as store:
        return store.topic("t").read_arrow().read_all()


READS: dict[str, Callable[[Path], Any]] = {
    "read": read,
    "read_arrow": read_arrow,
    "verify": stratalog.verify,
    "repair": stratalog.repair,
}


# A gzip body of 200 KB once became 200 MB in memory: the only bound was 1 GiB.
@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
@pytest.mark.parametrize("place", ["log", "segment"])
@pytest.mark.parametrize("call", READS.values(), ids=READS.keys())
@pytest.mark.usefixtures("small_bound")
def test_a_bomb_is_refused_before_memory_is_taken(
    tmp_path: Path, call: Callable[[Path], Any], place: str, codec: str
) -> None:
    """The reader's error names the option, repair gives nothing up, and a larger bound reads it."""
    write(tmp_path, place, codec)
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError, match="expanded_bytes_max=1048576"):
            call(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < BOMB_BYTES
    finally:
        tracemalloc.stop()
    with stratalog.open(tmp_path, batch_bytes_max=BOMB_BYTES * 2) as store:
        assert store.topic("t").read_values(0) == [bytes(BOMB_BYTES)]


@pytest.mark.usefixtures("small_bound")
@pytest.mark.parametrize("place", ["log", "segment"])
def test_a_spark_task_refuses_a_bomb(tmp_path: Path, place: str) -> None:
    """Executors read with the same bound as all other readers."""
    write(tmp_path, place, "gzip")
    source = StratalogSource({"path": str(tmp_path), "topic": "t"})
    reader = source.reader(source.schema())
    [partition] = reader.partitions()
    with pytest.raises(TooLargeError, match="expanded_bytes_max=1048576"):
        list(reader.read(partition))


def write(path: Path, place: str, codec: str) -> None:
    """A store with one record that is small as long as it is compressed."""
    with stratalog.open(path, batch_bytes_max=BOMB_BYTES * 2) as store:
        topic = store.create_topic("t", compression=codec, segment_bytes=4096)
        topic.append(bytes(BOMB_BYTES))
        if place == "segment":
            store.checkpoint()
