"""Log files that are no longer needed, of shards that are no longer written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import stratalog


def logs(path: Path, shard: int) -> int:
    """How many log files a shard has."""
    return len(list((path / "log" / f"shard-{shard:02d}").glob("*.log")))


def test_a_shard_that_is_no_longer_written_gives_its_files_up(tmp_path: Path) -> None:
    """All but the newest, which says where the shard ended."""
    options: dict[str, Any] = {"log_file_bytes": 1 << 16, "durability": "disk"}
    with stratalog.open(tmp_path, shards=4, **options) as store:
        for number in range(12):
            topic = store.topic(f"t{number}")
            for _ in range(20):
                topic.append_many([bytes(1000)] * 10)
        store.sync()
        before = [logs(tmp_path, shard) for shard in range(4)]
        assert max(before) > 3
        assert store._upkeep is not None
        store._upkeep.stop()
        store._upkeep = None  # as a killed process: nothing is put into segments on close
    with stratalog.open(tmp_path, shards=1, **options) as store:
        store.snapshot()
        store.snapshot()
        assert [logs(tmp_path, shard) for shard in range(1, 4)] == [1, 1, 1]
        assert all(len(store.topic(name).read_values()) == 200 for name in store.topics())


def test_a_closed_store_does_not_keep_log_that_is_in_segments(tmp_path: Path) -> None:
    """Also when a snapshot was made just before, and nothing is new."""
    with stratalog.open(tmp_path, durability="disk") as store:
        store.topic("t").append_many([bytes(1000)] * 1000)
        store.snapshot()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) == 0
    with stratalog.open(tmp_path) as store:
        assert len(store.topic("t").read_values()) == 1000


@pytest.mark.slow
def test_what_a_recycled_file_held_is_no_torn_tail(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither after the end, nor before anything was written into it again."""
    ends = set()
    options: dict[str, Any] = {"shards": 1, "log_file_bytes": 1 << 14, "disk_reserve_bytes": 0}
    with stratalog.open(tmp_path / "data", **options) as store:
        topic = store.topic("t")
        for number in range(60):
            topic.append_many([b"%d" % number * 100] * 10)
            if number % 10 == 9:
                store.compact()
            killed = tmp_path / f"killed-{number}"
            shutil.copytree(tmp_path / "data", killed)
            report = stratalog.verify(killed)
            assert report.ok, str(report)
            with stratalog.open(killed) as copy:
                ends.add(copy.stats().torn_bytes)
                assert len(copy.topic("t")) == len(topic)
            shutil.rmtree(killed)
    assert caplog.messages == []
    assert ends == {0}


def test_zeros_that_were_filled_in_beside_a_rotation_are_synced_before_a_file_is_recycled(
    open_store: OpenStore,
) -> None:
    """The last frame was synced, then zeros were filled in ahead, then the log was rotated.

    The sync that follows a fill goes to the file that is then the newest. The old one was renamed
    with unsynced bytes; the monitor of the fixture raises.
    """
    store = open_store(background=False, shards=1, durability="disk")
    topic = store.topic("t")
    topic.append_many([bytes(100)] * 10)
    assert store._log is not None
    files = store._log.shards[0].files
    store.sync()
    assert files.fill_ahead()
    assert files.synced == files.position
    store._log.rotate()
    for _ in range(3):
        topic.append(b"more")
        store.snapshot()
    assert files._spare
    assert len(topic) == 13
