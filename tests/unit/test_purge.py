"""A purge beside everything else: appends, readers, upkeep, a cold store that fails, a close."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.grep import search

import stratalog
from stratalog import ClosedError, Gap, Record, StratalogError
from stratalog.testing import ManualClock
from stratalog.upkeep.purge import Purge

WAIT_SECONDS = 60.0


def persons(topic: stratalog.Topic, first: int, count: int) -> None:
    """Records of so many persons, with a key each."""
    topic.append_many(
        [Record(b"person%05d " % n * 5, b"person%05d" % n) for n in range(first, first + count)]
    )


def test_a_busy_store_is_purged_all_the_same(open_store: OpenStore, tmp_path: Path) -> None:
    """Appends rotate the log all the time, readers read, and the background makes its rounds."""
    store = open_store(
        shards=2, log_file_bytes=1 << 14, log_chunk_bytes=1 << 12, checkpoint_bytes=1 << 15,
        snapshot_bytes=1 << 15, durability="disk",
    )  # fmt: skip
    topic = store.create_topic("t", segment_records=500)
    stopped = threading.Event()

    def append(name: str) -> None:
        while not stopped.wait(0.005):
            store.topic(name).append_many([b"noise " * 20] * 20)

    def read() -> None:
        while not stopped.wait(0.005):
            for item in topic.read():
                assert isinstance(item, Gap) or (item.value or b"").startswith(b"person")

    failures: list[BaseException] = []

    def kept(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            failures.append(error)

    actions: list[Callable[[], None]] = [lambda: append("a"), lambda: append("b"), read]
    threads = [threading.Thread(target=kept, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    gone: set[bytes] = set()
    try:
        for number in range(2):
            persons(topic, 100 * number, 100)
            for n in range(100 * number, 100 * number + 100, 7):
                topic.delete(key=b"person%05d" % n)
            gone |= {b"person%05d" % n for n in range(100 * number, 100 * number + 100, 7)}
            store.compact(purge=True)
            assert not gone & search(rb"person[0-9]{5}", tmp_path).keys()
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert len(topic.read_values()) == 200 - len(gone)


def test_no_log_file_is_used_again_while_a_purge_runs(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation took a log file that the purge had just released, deleted bytes after its end.

    The appends come when the old log is released, and before what is left of it is removed.
    """
    store = open_store(background=False, shards=1, log_file_bytes=1 << 14, log_chunk_bytes=1 << 12)
    topic = store.create_topic("t", segment_records=500)
    for first in range(0, 500, 100):
        persons(topic, first, 100)
    topic.delete(before=topic.next_offset)
    clean_up = Purge.clean_up
    rotations = []

    def append_first(purge: Purge) -> None:
        log_files = {path.name for path in (tmp_path / "data" / "log").rglob("*.log")}
        for _ in range(150):
            store.topic("noise").append(b"noise " * 20)
        after = {path.name for path in (tmp_path / "data" / "log").rglob("*.log")}
        rotations.append(len(after - log_files))
        clean_up(purge)

    monkeypatch.setattr(Purge, "clean_up", append_first)
    store.compact(purge=True)
    assert rotations == [1]
    assert not search(rb"person[0-9]{5}", tmp_path)
    assert len(store.topic("noise").read_values()) == 150


def test_a_pinned_reader_gets_records_or_an_error(open_store: OpenStore) -> None:
    """One in another process reads on while the files under it are replaced and removed."""
    store = open_store(background=False, shards=1)
    topic = store.create_topic("t", segment_records=50)
    persons(topic, 0, 120)
    store.checkpoint()
    persons(topic, 120, 50)
    view = open_store(read_only=True).topic("t")
    items = view.read()
    seen = [next(items) for _ in range(10)]
    for n in range(0, 170, 5):
        topic.delete(key=b"person%05d" % n)
    store.compact(purge=True)
    with contextlib.suppress(StratalogError):  # a clear one: what was seen until then is right
        seen += items
    kept = {n for n in range(170) if n % 5}
    offsets = [item.offset for item in seen if isinstance(item, Record)]
    assert offsets == sorted(offsets)
    assert all(isinstance(i, Record) and i.value == b"person%05d " % i.offset * 5 for i in seen)
    assert {item.offset for item in view.read() if isinstance(item, Record)} == kept


def test_objects_that_a_backup_refers_to_are_named(open_store: OpenStore, tmp_path: Path) -> None:
    """They are not deleted, and the report says so; the store no longer reads them."""
    store = open_store(background=False, cold=str(tmp_path / "cold"), hot_segments=1)
    topic = store.create_topic("t", segment_records=10)
    for number in range(3):
        persons(topic, 10 * number, 10)
        store.compact()
    store.backup(tmp_path / "copy")
    topic.delete(key=b"person00004")
    report = store.compact(purge=True).purge
    assert report is not None
    assert [one for one in report.unreached if "in the cold store" in one]
    assert search(b"person00004", tmp_path / "cold")
    assert not search(b"person00004", tmp_path / "data")
    assert len(topic.read_values()) == 29


def test_a_message_that_expired_leaves_no_dead_letter_of_nothing(open_store: OpenStore) -> None:
    """Its bytes were purged while a consumer held it; it then was delivered too often."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    queue = store.queue("q", max_deliveries=1, lease=10.0)
    queue.put(b"secret", ttl=20.0, dedup_id="once")
    assert queue.get_nowait() is not None
    clock.advance(60.0)
    store.compact(purge=True)
    assert queue.get_nowait() is None
    assert len(queue.dead) == 0
    assert queue.stats().pending == 0
    assert queue.put(b"again", dedup_id="once").duplicate
    assert not search(b"secret", Path(store.path))


def test_a_purge_ends_with_the_store(open_store: OpenStore) -> None:
    """Closed in between, it raises, and touches no file of a directory that is let go."""
    store = open_store()
    topic = store.topic("t")
    persons(topic, 0, 50)
    topic.delete(key=b"person00004")
    upkeep = store._upkeep
    assert upkeep is not None
    store.close()
    with pytest.raises(ClosedError):
        upkeep.purge()
    with pytest.raises(ClosedError):
        store.compact(purge=True)
