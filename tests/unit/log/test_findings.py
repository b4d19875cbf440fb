"""Bugs that were found in the log, each with its story."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.crash.ctrl_c import CtrlC, moments
from tests.crash.model import kill, open_store
from tests.crash.test_ctrl_c_and_faults import Meanwhile, append_to_both, in_two_shards

import stratalog
from stratalog.errors import (
    DiskFullError,
    PoisonedError,
    StorageError,
    SyncFailedError,
    TooManyFilesError,
)
from stratalog.format.columns import encode_value
from stratalog.fs import File
from stratalog.log.append import _enter_alone
from stratalog.log.commit_group import plain_entry
from stratalog.log.frame_reader import read_frames
from stratalog.log.index import FrameIndex
from stratalog.segments import read
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("does", ["append", "read"])
def test_a_callback_of_a_future_may_do_what_it_likes(
    tmp_path: Path, durability: str, does: str
) -> None:
    """It was called with the commit lock held: one that appended or read waited for itself."""
    done = threading.Event()
    with stratalog.open(tmp_path / "data", shards=1, durability=durability) as store:
        topic = store.topic("t")

        def callback(future: Future[int]) -> None:
            if does == "append":
                topic.append(b"from a callback", durability="fsync")
            else:
                topic.append_nowait(b"from a callback")
                topic.read_values()
            done.set()

        future = topic.append_nowait(b"first")
        future.add_done_callback(callback)
        assert done.wait(30)
        assert future.result() == 0
        assert topic.read_values() == [b"first", b"from a callback"]


@pytest.mark.parametrize(
    ("operation", "error"),
    [("sync_dir", errno.EIO), ("sync_dir", errno.ENOSPC), ("size", errno.EIO)],
)
def test_a_rotation_that_fails_poisons_whoever_asked_for_it(operation: str, error: int) -> None:
    """Closing rotates; an append after it went into a file whose successor was there already."""
    disk = FakeDisk()
    faults = FaultFs(disk)
    store = open_store(faults, ManualClock(), shards=1)
    topic = store.topic("t")
    topic.append(b"first")
    assert store._log is not None
    faults.add(Fault(operation=operation, error=error))
    with pytest.raises(SyncFailedError, match="new log file failed"):
        store._log.rotate()
    with pytest.raises(PoisonedError, match="new log file failed"):
        topic.append(b"refused")
    kill(store)
    again = open_store(disk.crash(0), ManualClock(), shards=1)
    assert again.damage is None
    assert again.topic("t").read_values() == [b"first"]
    kill(again)


def test_a_recycled_file_that_cannot_be_opened_under_its_new_name_is_opened_later() -> None:
    """Its name says that the file before ends there: that one must not be written to again."""
    disk = FakeDisk()
    faults = FaultFs(disk)
    store = open_store(faults, ManualClock(), shards=1, log_file_bytes=4096)
    topic = store.topic("t")
    files = topic.log.shard.files
    assert store._upkeep is not None
    while not files._spare:
        for _ in range(3):
            topic.append(bytes(1500))
        store._upkeep.snapshot()
    while files.position + 64 + 1508 <= 4096:
        topic.append(bytes(1500))
    acknowledged = topic.next_offset
    first_lsn = files.first_lsn
    faults.add(Fault(operation="open", error=errno.EMFILE))
    with pytest.raises(TooManyFilesError, match="new log file failed"):
        topic.append(bytes(1500))
    kept = FaultFs(disk.crash(0))
    topic.append(b"small enough for the file before")
    assert files.first_lsn > first_lsn
    kill(store)
    for image, count in ((kept, acknowledged), (disk.crash(0), acknowledged + 1)):
        again = open_store(image, ManualClock(), shards=1, log_file_bytes=4096)
        assert again.damage is None
        assert len(again.topic("t").read_values()) == count
        kill(again)


class _TellsOnce(FakeDisk):
    """A disk as Linux has it: a failed write-back is reported once to each open file.

    A later sync through the same file reports that all is well, though the data is gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: list[Any] = []

    def open(self, path: str, mode: Any) -> Any:
        file = _Told(super().open(path, mode))
        self.files.append(file)
        return file

    def fail(self, path: str) -> None:
        """Write-back of a file fails, now."""
        for file in self.files:
            file.has_news = file.has_news or file.path == path


class _Told:
    has_news = False

    def __init__(self, file: File) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fdatasync(self) -> None:
        if self.has_news:
            self.has_news = False
            raise OSError(errno.EIO, "Input/output error", self._file.path)
        self._file.fdatasync()


@pytest.mark.parametrize("is_batch", [True, False])
def test_an_error_that_the_background_sync_was_told_is_told_to_the_append_as_well(
    is_batch: bool,
) -> None:
    """Both synced one open file: the first to do so took the error, the second acknowledged."""
    disk = _TellsOnce()
    store = open_store(disk, ManualClock(), shards=1)
    topic = store.topic("t")
    topic.append(b"first")
    shard = topic.log.shard
    mark = shard.files.mark()
    disk.fail(mark.file.path)
    with pytest.raises(OSError, match="Input/output"):
        mark.file.fdatasync()  # as the ticker does, in the middle of the append that follows
    with pytest.raises(SyncFailedError):
        topic.append_many([b"mine"]) if is_batch else topic.append(b"mine")
    with pytest.raises(PoisonedError):
        topic.append(b"next")
    assert topic.read_values() == [b"first"]
    kill(store)


def test_a_batch_over_shards_writes_first_what_was_given_up_there(tmp_path: Path) -> None:
    """A lone append whose thread was interrupted twice has its offset, and is not written yet."""
    with stratalog.open(tmp_path / "data", shards=2) as store:
        one, other = in_two_shards(store)
        for topic in (one, other):
            with topic.log.shard.commit_lock:
                assert _enter_alone(topic.log, plain_entry(topic.log, encode_value(b"0"), 1))
        append_to_both(store, [one, other])
        assert one.read_values() == other.read_values() == [b"0", b"both"]
    with stratalog.open(tmp_path / "data") as store:
        assert store.damage is None
        assert store.topic(one.name).read_values() == [b"0", b"both"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_index_that_was_left_half_added_is_cut_whole() -> None:
    """Interrupted once more while it is cut, it looked whole, and its columns were shifted."""
    for at in moments(1):
        index = FrameIndex()
        index.add(0, 5, 1, 100, 64, 7)
        index._base_offsets.append(5)
        index._counts.append(3)
        ctrl_c = CtrlC(at)
        ctrl_c.run(lambda half=index: half.add(5, 2, 1, 164, 72, 8))  # type: ignore[misc]
        index.add(5, 2, 1, 164, 72, 8)
        assert len(index) == 2
        assert index.place(1) == (5, 2, 1, 164, 72)
        assert {len(getattr(index, name)) for name in FrameIndex.__slots__} == {2}
        if not ctrl_c.came:
            break


def test_a_group_whose_append_was_interrupted_while_it_woke_the_writer_is_written(
    tmp_path: Path,
) -> None:
    """It was left to the background writer, which was not woken, nor were later appends."""
    options: dict[str, Any] = {"shards": 1, "durability": "disk", "sync_interval": 3600.0}
    with stratalog.open(tmp_path / "data", **options) as store:
        topic = store.topic("t")
        shard = topic.log.shard
        wake = shard._wake

        def interrupted() -> None:
            if shard.group.is_relaxed:
                shard._wake = wake
                raise KeyboardInterrupt
            wake()

        shard._wake = interrupted
        with pytest.raises(KeyboardInterrupt):
            topic.append(b"0")
        topic.append(b"1")
        deadline = time.monotonic() + 30
        while topic.log.committed < 1:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def test_a_diff_reads_no_more_than_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read, and made records of, all that was after them as well."""
    with stratalog.open(tmp_path / "data", durability="disk") as store:
        topic = store.topic("t")
        for number in range(100):
            topic.append_many([b"%d" % number] * 10)
        ends: list[int] = []

        def counted(log: Any, index: Any, number: int, end: int) -> Any:
            ends.append(end)
            return read_frames(log, index, number, end)

        monkeypatch.setattr(read, "read_frames", counted)
        assert [record.offset for record in topic.diff(after=49, limit=10).records] == [
            *range(50, 60)
        ]
        assert ends == [60]
        assert len(topic.diff(after=49, limit=500).records) == 500
        assert len(topic.diff(after=49, limit=5000).records) == 950


@pytest.mark.parametrize("where", ["log", "open segment"])
def test_a_disk_that_cannot_be_read_is_an_error_of_ours(where: str) -> None:
    """It was the operating system's own, with no word of what to do."""
    faults = FaultFs(FakeDisk())
    store = open_store(faults, ManualClock(), shards=1)
    topic = store.topic("t")
    for number in range(40):
        topic.append(b"%d" % number)
    if where == "open segment":
        store.checkpoint()
    faults.add(Fault(operation="pread", error=errno.EIO))
    with pytest.raises(StorageError, match=r"at position \d+: reading failed: .*read again"):
        topic.read_values()
    assert len(topic.read_values()) == 40
    kill(store)


def test_a_batch_that_fails_tells_nobody_in_another_shard_of_losses() -> None:
    """A loss after it in one shard was reported to the next append in the others as well."""
    faults = Meanwhile(FakeDisk())
    store = open_store(faults, ManualClock(), shards=2)
    one, other = in_two_shards(store)
    for topic in (one, other):
        topic.append(b"first")
    futures: list[Future[int]] = []
    faults.fault = Fault(operation="pwrite", error=errno.ENOSPC)

    def later() -> None:
        futures.append(one.append_nowait(b"later"))
        one.append(b"acknowledged", durability="disk")

    faults.meanwhile = later
    with pytest.raises(DiskFullError):
        append_to_both(store, [one, other])
    with pytest.raises(DiskFullError):
        futures[0].result(30)
    assert other.append(b"next") == 1
    with pytest.raises(DiskFullError):  # the shard that lost it
        one.append(b"told")
    assert one.append(b"next") == 4, "an offset below was told to a caller"
    assert one.read_values() == other.read_values() == [b"first", b"next"]
    kill(store)


@pytest.mark.parametrize("way", ["append", "sync", "rotate", "batch"])
def test_whoever_looks_at_a_future_that_fails_along_is_called_back(way: str) -> None:
    """Also if the shard takes nothing more, and no other thread comes by."""
    faults = Meanwhile(FakeDisk())
    store = open_store(faults, ManualClock(), shards=2, durability="disk")
    one, other = in_two_shards(store)
    one.append(b"first")
    one.read_values()
    errors: list[BaseException | None] = []

    def append() -> None:
        future = one.append_nowait(b"later")
        future.add_done_callback(lambda done: errors.append(done.exception()))

    faults.fault = Fault(operation="fdatasync")
    faults.meanwhile = append
    assert store._log is not None
    act: dict[str, Callable[[], object]] = {
        "append": lambda: one.append(b"synced", durability="fsync"),
        "sync": store.sync,
        "rotate": store._log.rotate,
        "batch": lambda: append_to_both(store, [one, other]),
    }
    with pytest.raises(SyncFailedError):
        act[way]()
    assert [type(error) for error in errors] == [SyncFailedError]
    kill(store)
