"""A store in memory: everything works, and no file is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import stratalog
from stratalog.errors import OptionError


def test_everything_works_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics, queues, tables, series, routes, schedules, batches, upkeep; and no file is made."""
    monkeypatch.chdir(tmp_path)
    with stratalog.open(":memory:") as store:
        orders = store.create_topic("orders", segment_records=10, compact=True)
        for number in range(50):
            orders.append(b"%d" % number, key=b"%d" % (number % 5))
        jobs = store.queue("jobs")
        with store.batch() as batch:
            batch.topic("orders").append(b"last", key=b"k")
            batch.queue("jobs").put(b"job")
        with jobs.get(timeout=30.0) as message:
            assert message.value == b"job"
        store.table("users").put("ada", b"1815")
        store.series("cpu").write(0.5)
        store.schedule("tick", cron="@daily", queue="jobs")
        store.checkpoint()
        store.snapshot()
        store.compact(purge=True)
        assert store.route("orders", "copy").wait(30.0)
        assert [r.value for r in orders.records(gaps="skip")][-1] == b"last"
        assert pytest.importorskip("pyarrow").table(store.topic("copy")).num_rows >= 6
        assert repr(store) == "<stratalog.Store '/:memory:' open>"
        with pytest.raises(OptionError, match="in memory"):
            store.backup(tmp_path / "copy")
    assert os.listdir(tmp_path) == []


def test_every_one_is_new() -> None:
    """Two at a time share nothing, and one that is closed is gone."""
    with stratalog.open(":memory:") as one, stratalog.open(":memory:") as other:
        one.topic("orders").append(b"x")
        assert other.topics() == []
    with stratalog.open(":memory:") as again:
        assert again.topics() == []


def test_options_count_and_nonsense_is_refused() -> None:
    """As with a directory."""
    with stratalog.open(":memory:", shards=3, record_bytes_max=10) as store:
        assert store.stats().shards == 3
        with pytest.raises(stratalog.TooLargeError):
            store.topic("orders").append(bytes(11))
    with pytest.raises(OptionError, match="new whenever it is opened"):
        stratalog.open(":memory:", read_only=True)
    with pytest.raises(OptionError):
        stratalog.open(":memory:", shards=0)


def test_the_environment_can_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """`STRATALOG_PATH=:memory:` has a program leave nothing."""
    monkeypatch.setenv("STRATALOG_PATH", ":memory:")
    with stratalog.open() as store:
        assert store.path == "/:memory:"
