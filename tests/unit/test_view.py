"""Views beside a writer that gets ahead of them between two of their file operations.

A view opened beside a busy writer once said that its log was damaged: two snapshots were made
after it had read one, and the log it was about to read was given up. It said so for good. Here the
writer moves on at exactly the place that each test is about.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from stratalog.errors import DiskFullError, StorageError
from stratalog.fs import File, Mode
from stratalog.handles.store import Store
from stratalog.model import Gap
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk

ROOT = "/data"


class WatchedFile:
    """A file whose reads are told of before they are done."""

    def __init__(self, inner: File, tell: Callable[[str, str], None]) -> None:
        self.inner = inner
        self.path = inner.path
        self._tell = tell

    def pread(self, length: int, position: int) -> bytes:
        self._tell("pread", self.path)
        return self.inner.pread(length, position)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class WatchedFs:
    """A file system that says what it is about to do; what is done meanwhile is not told."""

    def __init__(self, inner: FakeDisk) -> None:
        self.inner = inner
        self.before: Callable[[str, str], None] = lambda operation, path: None
        self._is_telling = False

    def _tell(self, operation: str, path: str) -> None:
        if not self._is_telling:
            self._is_telling = True
            try:
                self.before(operation, path)
            finally:
                self._is_telling = False

    def open(self, path: str, mode: Mode) -> WatchedFile:
        self._tell("open", path)
        return WatchedFile(self.inner.open(path, mode), self._tell)

    def listdir(self, path: str) -> list[str]:
        self._tell("listdir", path)
        return self.inner.listdir(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Beside:
    """A writer with one topic, and a disk for views that lets it go on at a certain place."""

    def __init__(self, **options: Any) -> None:
        self.disk = FakeDisk()
        self.fs = WatchedFs(self.disk)
        options = {"shards": 1, "log_file_bytes": 8192, "log_chunk_bytes": 4096, **options}
        self.store = Store(ROOT, StoreOptions.build(options, {}), fs=self.disk, background=False)
        self.topic = self.store.create_topic("t", segment_records=20, retention_records=60)
        self.views: list[Store] = []
        self.times = 0
        """How often the writer went on."""

    def close(self) -> None:
        """Let the writer and all views go."""
        self.fs.before = lambda operation, path: None
        for store in (*self.views, self.store):
            store.close()

    def fill(self, count: int = 20) -> None:
        """Append records, with some 300 bytes each; twenty take most of a log file."""
        first = self.topic.next_offset
        for offset in range(first, first + count):
            self.topic.append(value(offset))

    def overtake(self) -> None:
        """Give up every log file there was, and write other things into it."""
        self.times += 1
        for _ in range(5):
            self.fill()
            self.store.snapshot()

    def when(self, operation: str, contains: str, act: Callable[[], None], times: int = 1) -> None:
        """Do something just before the first such operations of the view."""
        left = times

        def before(done: str, path: str) -> None:
            nonlocal left
            if left and done == operation and contains in path:
                left -= 1
                act()

        self.fs.before = before

    def view(self) -> Store:
        """A view that is opened now."""
        view = Store(ROOT, StoreOptions.build({}, {}), read_only=True, fs=self.fs)
        self.views.append(view)
        return view

    def check(self, view: Store) -> None:
        """The view is whole, and has what the writer has."""
        assert view.damage is None
        seen = view.topic("t")
        assert seen.next_offset == self.topic.next_offset
        expected = 0
        for item in seen.read():
            if isinstance(item, Gap):
                assert item.first == expected
                expected = item.last + 1
            else:
                assert (item.offset, item.value) == (expected, value(expected))
                expected += 1
        assert expected == self.topic.next_offset


def value(offset: int) -> bytes:
    return b"%06d" % offset * 50


@pytest.fixture
def beside() -> Iterator[Beside]:
    """A store that has been written for a while: there are two snapshots, and spare log files."""
    beside = Beside(cold="/cold", hot_segments=1)
    beside.overtake()
    beside.fill()
    beside.times = 0
    yield beside
    beside.close()


@pytest.mark.parametrize(
    ("operation", "place"),
    [
        ("open", ".snap"),  # listed, and gone: none is left to begin with
        ("listdir", "/log"),  # the snapshot is read, and its log is gone
        ("open", ".log"),  # listed, and gone
        ("pread", ".log"),  # opened, and filled with something else
    ],
)
def test_a_view_that_is_overtaken_while_it_opens_begins_again(
    beside: Beside, operation: str, place: str
) -> None:
    """The log it wanted was released after snapshots that it has not seen: that is no damage."""
    beside.when(operation, place, beside.overtake)
    view = beside.view()
    assert beside.times == 1
    beside.check(view)


@pytest.mark.parametrize(
    ("operation", "place"),
    [("listdir", "/log"), ("open", ".snap"), ("open", ".log"), ("pread", ".log")],
)
def test_a_view_that_is_overtaken_later_begins_again(
    beside: Beside, operation: str, place: str
) -> None:
    """An open view: its refresh takes in all that was written before it."""
    view = beside.view()
    beside.fill(10)
    if place == ".snap":  # it looks for one only when it has to begin again
        beside.overtake()
        beside.times = 0
    at_least = beside.topic.next_offset
    beside.when(operation, place, beside.overtake)
    view._view.refresh()  # type: ignore[union-attr]
    assert beside.times == 1
    assert view._replay.topics[beside.topic._log.id].next_offset >= at_least
    assert view._replay.damage() is None
    beside.check(view)


def test_a_view_that_is_overtaken_every_time_is_told_so(beside: Beside) -> None:
    """That is no damage: later it goes on."""
    view = beside.view()
    beside.fill(10)
    beside.when("open", ".log", beside.overtake, times=1000)
    with pytest.raises(StorageError, match="gives log files up faster than they can be read"):
        view._view.refresh()  # type: ignore[union-attr]
    beside.fs.before = lambda operation, path: None
    beside.check(view)


def test_a_file_that_is_filled_again_while_it_is_read_is_not_damaged(beside: Beside) -> None:
    """One with a successor that is still there: the scan stood in that one at its end."""
    beside.fill(60)
    logs = [name for name in beside.disk.listdir(f"{ROOT}/log/shard-00") if ".log" in name]
    assert len(logs) > 2
    beside.when("pread", logs[-2], beside.overtake)
    view = beside.view()
    assert beside.times == 1
    beside.check(view)


def test_a_log_that_is_really_gone_is_damage_beside_a_writer_too(beside: Beside) -> None:
    """No snapshot came since that would have made it superfluous."""
    beside.fill(60)
    beside.store.checkpoint()
    logs = [name for name in beside.disk.listdir(f"{ROOT}/log/shard-00") if ".log" in name]
    for name in logs[:-1]:
        beside.disk.unlink(f"{ROOT}/log/shard-00/{name}")
    view = beside.view()
    assert view.damage is not None
    assert "are missing" in view.damage
    beside.overtake()  # from now on it is not needed
    assert view._view.damage() is None  # type: ignore[union-attr]


@pytest.mark.parametrize(("operation", "place"), [("listdir", "/topics/"), ("open", ".seg")])
def test_segments_that_go_while_they_are_looked_for_are_not_missing(
    beside: Beside, operation: str, place: str
) -> None:
    """However often that happens: the log says why, once it is read after the look."""

    def go_on() -> None:
        beside.times += 1
        beside.fill()
        beside.store.compact()

    beside.when(operation, place, go_on, times=20)
    view = beside.view()
    assert beside.times >= 1
    beside.fs.before = lambda operation, path: None
    beside.check(view)


def test_a_refresh_takes_in_what_was_written_before_it(beside: Beside) -> None:
    """Also if the newest file it knows of is filled with something else before it is read.

    A view then saw too little: of a segment that was evicted it said that the cold store lacks it.
    """
    view = beside.view()
    beside.topic.append(value(beside.topic.next_offset))
    logs = [name for name in beside.disk.listdir(f"{ROOT}/log/shard-00") if ".log" in name]
    at_least = beside.topic.next_offset
    beside.when("pread", logs[-1], beside.overtake)
    view._view.refresh()  # type: ignore[union-attr]
    assert beside.times == 1
    assert view._replay.topics[beside.topic._log.id].next_offset >= at_least
    beside.check(view)


def test_frames_that_a_writer_takes_back_are_forgotten() -> None:
    """The disk was full after a whole frame, and the view had seen it before it was cut off.

    It stood in the middle of what came after, saw nothing of it, and called it damaged in the end.
    """
    beside = Beside()
    writes = beside.store._log.shards[0].files  # type: ignore[union-attr]
    view = beside.view()
    beside.fill(4)
    beside.check(view)
    file = writes.file

    class FullFile(WatchedFile):
        def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
            file.pwrite(buffers, position)
            assert view.topic("t").next_offset == 5
            raise OSError(errno.ENOSPC, "full")

    writes.file = FullFile(file, lambda operation, path: None)
    with pytest.raises(DiskFullError):
        beside.topic.append(b"taken back")
    writes.file = file
    beside.fill(10)
    beside.check(view)
    beside.fill(60)
    beside.check(view)
    assert view._view.damage() is None  # type: ignore[union-attr]
    beside.close()
