"""Unexpected failures: errors in places where none is usual."""

from __future__ import annotations

import errno
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.crash.model import kill

import stratalog
from stratalog.errors import ClosedError, DiskFullError, PoisonedError, SyncFailedError
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, Fault, FaultFs

SMALL: dict[str, Any] = {"log_file_bytes": 4096, "log_chunk_bytes": 4096, "disk_reserve_bytes": 0}


@pytest.fixture
def disk() -> FakeDisk:
    """Where the store is."""
    return FakeDisk()


def open_store(fs: Any, **options: Any) -> Store:
    return Store(
        "/d", StoreOptions.build({"shards": 1, **SMALL, **options}), fs=fs, background=False
    )


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_new_file_whose_name_cannot_be_synced_poisons_the_shard(
    disk: FakeDisk, error: int
) -> None:
    """A full disk, too: were the old file written to again, the two would not fit together."""
    faults = FaultFs(disk)
    store = open_store(faults)
    topic = store.topic("t")
    topic.append(b"0" * 3000)
    faults.add(Fault(operation="sync_dir", error=error))
    with pytest.raises(SyncFailedError, match="new log file failed"):
        topic.append(b"1" * 3000)
    with pytest.raises(PoisonedError):
        topic.append(b"2" * 100)
    kill(store)
    store = open_store(disk.crash(1, damage="keep"))
    assert store.damage is None
    assert store.topic("t").read_values() == [b"0" * 3000]
    store.close()


@pytest.mark.parametrize("operation", ["free_bytes", "size"])
def test_a_disk_that_cannot_be_asked_fails_the_append_alone(disk: FakeDisk, operation: str) -> None:
    """With an error of ours, that names what could not be done."""
    faults = FaultFs(disk)
    store = open_store(faults)
    topic = store.topic("t")
    topic.append(b"0" * 3000)
    faults.add(Fault(operation=operation, error=errno.EIO))
    with pytest.raises(SyncFailedError, match=r"failed: .*Input/output error"):
        topic.append(b"1" * 3000)
    kill(store)
    store = open_store(disk.crash(1, damage="keep"))
    assert store.topic("t").read_values() == [b"0" * 3000]
    store.close()


def test_a_batch_over_two_shards_that_fails_early_loses_nothing_of_others(disk: FakeDisk) -> None:
    """An append that waited in the groups it closes has failed, or is there."""
    faults = FaultFs(disk)
    store = open_store(faults, shards=2)
    topics = {name: store.create_topic(name, durability="disk") for name in "abcdefgh"}
    first, second = store._log.shards  # type: ignore[union-attr]
    ours = [name for name, topic in topics.items() if topic.log.shard is first]
    theirs = [name for name, topic in topics.items() if topic.log.shard is second]
    other = topics[ours[1]]
    other.append_many([b"0"])
    store.sync()
    for _ in range(2):
        other.append_many([b"1" * 2500])
    faults.add(Fault(operation="free_bytes"))
    batch = store.batch()
    batch.__enter__()
    batch.topic(ours[0]).append(b"2")
    batch.topic(theirs[0]).append(b"2")
    with pytest.raises(SyncFailedError):
        batch.__exit__(None, None, None)
    with pytest.raises((SyncFailedError, PoisonedError)):
        other.append_many([b"3"], durability="fsync")
    assert other.read_values()[:1] == [b"0"]
    kill(store)
    store = open_store(disk.crash(1, damage="keep"), shards=2)
    assert store.damage is None
    assert store.topic(ours[1]).read_values()[:1] == [b"0"]
    store.close()


def test_a_group_that_does_not_fit_into_the_file_is_not_torn_apart(disk: FakeDisk) -> None:
    """The disk is full after the first file: no caller that got the error finds its record."""
    store = open_store(disk, log_file_bytes=1 << 20)
    topic = store.topic("t")
    shard = topic.log.shard
    while shard.files.position < (1 << 20) - 5000:
        topic.append(b"f" * 2000)
    before = topic.next_offset
    disk.capacity_bytes = sum(map(len, disk.image().values())) + 500
    outcomes: list[BaseException | None] = []

    def append(value: bytes) -> None:
        try:
            topic.append_many([value])
            outcomes.append(None)
        except DiskFullError as error:
            outcomes.append(error)

    with shard.commit_lock:  # another thread is syncing, and a group gathers
        threads = [threading.Thread(target=append, args=[bytes([n]) * 1500]) for n in range(3)]
        for thread in threads:
            thread.start()
        while len(shard.group.entries) < 3:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert None not in outcomes
    assert len(topic) == topic.next_offset == before
    kill(store)


def test_the_background_thread_survives_what_it_meets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else appends of class disk would never be written again."""
    with stratalog.open(
        tmp_path / "data", shards=1, durability="disk", sync_interval=0.001
    ) as store:
        log = store._log
        assert log is not None
        tick, times = log._ticker._tick, iter([ZeroDivisionError("once")])

        def fail_once() -> bool:
            for error in times:
                raise error
            return tick()

        log._ticker._tick = fail_once
        store.topic("t")
        topic = store.topic("t")
        topic.append(b"a")
        deadline = time.monotonic() + 10
        while topic.log.committed == 0:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    assert f"{tmp_path / 'data'}: the background writer failed, and will try again" in caplog.text


@pytest.mark.parametrize("is_mine", [True, False])
def test_a_leader_that_went_away_holds_nobody_up(tmp_path: Path, is_mine: bool) -> None:
    """Interrupted twice in a moment it could not say so; it comes back itself, or another does."""
    with stratalog.open(tmp_path / "data", shards=1) as store:
        topic = store.topic("t")
        topic.append(b"0")
        shard = topic.log.shard
        with shard.lock:
            shard.group.leader = threading.get_ident() if is_mine else 1
        begin = time.monotonic()
        assert topic.append(b"1") == 1
        assert time.monotonic() - begin < (0.9 if is_mine else 30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_two_interrupts_while_a_commit_waits_hold_nobody_up(tmp_path: Path) -> None:
    """The leader of the group leaves it to the others, at once."""
    store = stratalog.open(tmp_path / "data", shards=1)
    topic = store.topic("t")
    topic.append(b"0")
    shard = topic.log.shard
    may_end = threading.Event()

    def hold() -> Iterator[None]:
        with shard.commit_lock:  # stands for a sync that takes long
            yield
            may_end.wait(10)

    def sync() -> None:
        for _ in hold():
            is_held.set()

    is_held = threading.Event()
    before = signal.signal(signal.SIGALRM, _interrupt)
    with ThreadPoolExecutor(2) as executor:
        holder = executor.submit(sync)
        is_held.wait(10)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            try:
                topic.append(b"1")
            except KeyboardInterrupt:
                time.sleep(0.2)
        except KeyboardInterrupt:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        may_end.set()
        holder.result()
        offset = executor.submit(topic.append, b"2").result(timeout=10)
        assert topic.read_values()[offset] == b"2"
    store.close()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def test_appends_beside_a_close_are_kept_or_refused(tmp_path: Path) -> None:
    """Whatever returned is there afterwards; whatever is refused is told that it is closed."""
    store = stratalog.open(tmp_path / "data", shards=1, durability="disk")
    topic = store.topic("t")
    returned: list[int] = []
    refused: list[Exception] = []

    def work() -> None:
        try:
            while True:
                returned.append(topic.append(b"x"))
        except Exception as error:
            refused.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while len(returned) < 20_000:
        time.sleep(0.001)
    store.close()
    thread.join()
    assert [type(error) for error in refused] == [ClosedError]
    with stratalog.open(tmp_path / "data") as store:
        assert len(store.topic("t")) == len(returned)


def test_a_disk_that_cannot_be_asked_does_not_hold_syncs_up(disk: FakeDisk) -> None:
    """Nothing is filled ahead, and what is written is synced all the same."""
    faults = FaultFs(disk)
    store = open_store(faults, log_file_bytes=16 << 20, durability="disk", sync_interval=0.001)
    log = store._log
    assert log is not None
    store.topic("t").append_many([b"a"])
    log.tick()
    store.topic("t").append_many([b"b"])
    faults.add(Fault(operation="free_bytes", error=errno.EIO, always=True))
    time.sleep(0.002)
    log.tick()
    assert log.shards[0].refusal is None
    assert log.shards[0].files.synced == log.shards[0].files.position
    assert store.topic("t").read_values() == [b"a", b"b"]
    kill(store)


def test_a_store_that_cannot_write_while_it_closes_lets_go(
    disk: FakeDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """Records of the last moment are lost, which is reported; the directory can be opened again."""
    faults = FaultFs(disk)
    store = open_store(faults, durability="disk")
    topic = store.topic("t")
    log = store._log
    assert log is not None
    finish = log.finish

    def finish_and_append(topics: Any) -> None:
        finish(topics)
        topic.append(b"late")
        faults.add(Fault(operation="pwrite", error=errno.EIO))

    log.finish = finish_and_append  # type: ignore[method-assign]
    store.close()
    assert "appends were lost while it was closed" in caplog.text
    again = open_store(disk)
    assert again.damage is None
    assert again.topic("t").read_values() == []
    again.close()


def test_a_loss_is_told_to_a_user_and_not_to_the_background(disk: FakeDisk) -> None:
    """A checkpoint took it, and the next append was acknowledged as if nothing had been."""
    faults = FaultFs(disk)
    store = open_store(faults, durability="disk")
    topic = store.topic("t")
    topic.append(b"0")
    store.sync()
    assert store._log is not None
    assert store._upkeep is not None
    faults.add(Fault(operation="pwrite", error=errno.ENOSPC, path_contains=".log"))
    assert topic.append(b"lost") == 1
    store._log.tick()
    store._upkeep.checkpoint()
    store._upkeep.snapshot()
    with pytest.raises(DiskFullError):
        topic.append(b"next")
    assert topic.append(b"next") == 2
    assert [item.value for item in topic.read() if isinstance(item, Record)] == [b"0", b"next"]
    kill(store)


def test_what_a_future_has_told_is_not_told_again(disk: FakeDisk) -> None:
    """The next append, which had nothing to do with it, raised it once more."""
    faults = FaultFs(disk)
    store = open_store(faults)
    topic = store.topic("t")
    topic.append(b"0")
    faults.add(Fault(operation="pwrite", error=errno.ENOSPC, path_contains=".log"))
    future = topic.append_nowait(b"1")
    with pytest.raises(DiskFullError):
        future.result()
    assert topic.append(b"2") == 1
    kill(store)
