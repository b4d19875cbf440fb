"""A cold store that hangs: nothing but cold reads waits for it, and those not for ever.

Moving shared its thread with checkpoints, snapshots and retention: one `put` that did not return
stopped them all, the log grew without end, and `close` never returned.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.unit.segments.topics import check, files, fill, segments, upkeep

from stratalog.errors import ColdStoreError
from stratalog.handles.store import Store
from stratalog.segments import cold_reader
from stratalog.testing import FaultyCold
from stratalog.upkeep import remote_rounds as mover

WAIT_SECONDS = 30.0


@pytest.fixture
def colds() -> Iterator[list[FaultyCold]]:
    """Cold stores that are let go of in the end, so that no thread is left."""
    found: list[FaultyCold] = []
    yield found
    for cold in found:
        cold.let_go()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting times that a test can wait for."""
    monkeypatch.setattr(mover, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(mover, "_BUSY_SECONDS", 0.2)
    monkeypatch.setattr(mover, "_SLOW_SECONDS", 0.05)
    monkeypatch.setattr(cold_reader, "_ANSWER_SECONDS", 0.2)


def _hang(store: Store, colds: list[FaultyCold], *operations: str) -> FaultyCold:
    pool = store._replay.pool
    assert pool.cold is not None
    pool.cold = cold = FaultyCold(pool.cold)
    colds.append(cold)
    cold.hang(operations)
    return cold


def _until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


@pytest.mark.parametrize("operation", ["put", "size", "names", "delete"])
def test_upkeep_goes_on_while_the_cold_store_hangs(
    open_store: OpenStore, tmp_path: Path, colds: list[FaultyCold], operation: str, quick: None
) -> None:
    """Checkpoints, snapshots, eviction and drops, in the background; and `close` returns."""
    cold = tmp_path / "cold"
    options = {"cold": str(cold), "hot_segments": 1, "checkpoint_interval": 0.05}
    store = open_store(**options, snapshot_interval=0.05, snapshot_bytes=1)
    topic = store.create_topic("t", segment_records=10)
    gone = store.create_topic("gone", segment_records=10)
    other = store.create_topic("u", segment_records=10, retention_records=10)
    segments(store, gone, 3)
    store.compact()
    faulty = _hang(store, colds, operation)
    store.drop_topic("gone")
    segments(store, topic, 4)
    upkeep(store).mover.wake()
    assert faulty.hung.acquire(timeout=WAIT_SECONDS)
    before = store.stats()
    segments(store, other, 4)
    _until(lambda: other.earliest == 30)
    _until(lambda: other.append(b"x") and store.stats().snapshots > before.snapshots + 2)
    _until(lambda: store.stats().cold)
    assert str(cold) in (store.stats().cold or "")
    assert " s" in (store.stats().cold or "")
    check(topic, range(40))
    with pytest.raises(ColdStoreError, match="does not answer"):
        store.compact()
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < WAIT_SECONDS
    with open_store(**options) as again:
        check(again.topic("t"), range(40))
        faulty.let_go()
        again.compact()
        check(again.topic("t"), range(40))
        assert again.topic("t").stats().cold_segments == 3


def test_a_put_that_comes_back_after_the_store_was_closed_changes_nothing(
    open_store: OpenStore, tmp_path: Path, colds: list[FaultyCold], quick: None
) -> None:
    """Another writer has the directory by then: no frame is written, and no file is removed."""
    options = {"cold": str(tmp_path / "cold"), "hot_segments": 1}
    store = open_store(**options)
    topic = store.create_topic("t", segment_records=10)
    faulty = _hang(store, colds, "put")
    segments(store, topic, 4)
    upkeep(store).mover.wake()
    assert faulty.hung.acquire(timeout=WAIT_SECONDS)
    moving = upkeep(store).mover._thread
    store.close()
    here = files(tmp_path / "data")
    with open_store(**options, background=False) as again:
        faulty.let_go()
        assert moving.wait(WAIT_SECONDS)
        assert files(tmp_path / "data") == here
        assert again.topic("t").stats().cold_segments == 0
        check(again.topic("t"), range(40))
        assert again.compact().segments_moved == 3
        check(again.topic("t"), range(40))


def test_what_is_dropped_or_rewritten_during_a_put_is_not_moved(
    open_store: OpenStore, tmp_path: Path, colds: list[FaultyCold]
) -> None:
    """The object is of something that is no longer there: the topic is as it is without it."""
    store = open_store(cold=str(tmp_path / "cold"), hot_segments=1, rewrite_ratio=0.2)
    topic, gone = (store.create_topic(name, segment_records=10) for name in ("t", "gone"))
    faulty = _hang(store, colds, "put")
    segments(store, topic, 2)
    segments(store, gone, 2)
    upkeep(store).mover.wake()
    assert faulty.hung.acquire(timeout=WAIT_SECONDS)
    topic.delete(offsets=range(8))
    upkeep(store).round()
    store.drop_topic("gone")
    faulty.let_go()
    store.compact()
    check(topic, range(8, 20))
    assert topic.stats().cold_segments == 1
    store.topic("gone").append(b"new")
    assert store.topic("gone").read_values() == [b"new"]
    with open_store(read_only=True) as view:
        check(view.topic("t"), range(8, 20))


def test_a_cold_read_that_hangs_ends_with_an_error(
    open_store: OpenStore, tmp_path: Path, colds: list[FaultyCold], quick: None
) -> None:
    """Others that come after it, too; appends and hot reads never wait, and it goes on later."""
    store = open_store(cold=str(tmp_path / "cold"), hot_segments=1)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 4)
    store.compact()
    for segment in topic._log.history.chain.segments:
        segment.forget()
    faulty = _hang(store, colds, "read")
    for _ in range(3):
        with pytest.raises(ColdStoreError, match="has not answered"):
            topic.read_values(0, 1)
    fill(topic, 1)
    assert len(topic.read_values(30)) == 11
    faulty.let_go()
    check(topic, range(41))


@pytest.mark.slow
def test_a_program_ends_while_cold_reads_and_moves_hang(tmp_path: Path) -> None:
    """Threads that hang are not waited for at the end."""
    program = f"""
import stratalog
from stratalog.upkeep import remote_rounds as mover
from stratalog.segments import cold_reader
from stratalog.testing import FaultyCold
mover.CLOSE_SECONDS = cold_reader._ANSWER_SECONDS = 0.1
store = stratalog.open({str(tmp_path / "data")!r}, cold={str(tmp_path / "cold")!r}, hot_segments=0)
topic = store.create_topic("t", segment_records=10)
topic.append_many([b"x"] * 10)
store.compact()
topic.append_many([b"x"] * 10)
store.checkpoint()
pool = store._replay.pool
pool.cold = FaultyCold(pool.cold)
pool.cold.hang()
for segment in topic._log.history.chain.segments:
    segment.forget()
store._upkeep.mover.wake()
try:
    topic.read_values(0, 1)
except stratalog.ColdStoreError:
    print("hangs")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "hangs\n", done.stderr
