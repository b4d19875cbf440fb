"""MonitorFs: each ordering rule strikes when broken, and is silent when kept."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from stratalog.fs import PosixFileSystem
from stratalog.testing import FakeDisk, Fault, FaultFs, MonitorFs, OrderingViolation
from stratalog.testing.monitor import MonitorFile


@pytest.fixture
def faults() -> FaultFs:
    """A file system below the monitor that fails when told to."""
    return FaultFs(FakeDisk())


@pytest.fixture
def fs(faults: FaultFs) -> MonitorFs:
    """A monitor over an empty directory `/d`."""
    monitor = MonitorFs(faults)
    monitor.makedirs("/d")
    return monitor


def _durable_file(fs: MonitorFs, path: str, data: bytes = b"0123456789") -> MonitorFile:
    file = fs.open(path, "create")
    file.pwrite([data], 0)
    file.fdatasync()
    fs.sync_dir("/d")
    return file


@contextmanager
def _violation(fs: MonitorFs, what: str) -> Iterator[None]:
    """The block breaks one rule: it raises, and the monitor remembers."""
    before = len(fs.violations)
    with pytest.raises(OrderingViolation, match=what):
        yield
    assert len(fs.violations) == before + 1


def test_a_careful_writer_is_left_alone(fs: MonitorFs) -> None:
    """Create, write, sync, sync the directory, promise, go on, rename, promise: no violation."""
    file = _durable_file(fs, "/d/a")
    fs.promise(file, 10)
    file.pwrite([b"more"], 10)
    fs.promise(file, 10)
    file.fdatasync()
    fs.promise(file, 14)
    fs.rename("/d/a", "/d/b")
    fs.sync_dir("/d")
    fs.promise(file, 14)
    assert file.pread(100, 0) == b"0123456789more"
    assert fs.violations == []
    fs.check()


def test_a_promise_of_unsynced_bytes_is_a_violation(fs: MonitorFs) -> None:
    """One written byte below the promised end that is not synced is enough."""
    file = _durable_file(fs, "/d/a")
    file.pwrite([b"x"], 10)
    with _violation(fs, "promised up to 11 with bytes from 10 unsynced"):
        fs.promise(file, 11)


def test_the_lowest_unsynced_byte_decides(fs: MonitorFs) -> None:
    """A later write further up does not hide an earlier one below, nor the other way round."""
    file = _durable_file(fs, "/d/a")
    for first, second in ((20, 50), (50, 20)):
        file.pwrite([b"x"], first)
        file.pwrite([b"x"], second)
        fs.promise(file, 20)
        with _violation(fs, "from 20 unsynced"):
            fs.promise(file, 21)
        file.fdatasync()


def test_preallocated_zeros_count_as_written(fs: MonitorFs) -> None:
    """Zeros that were not synced cannot be promised either."""
    file = _durable_file(fs, "/d/a")
    file.preallocate(10, 4096)
    with _violation(fs, "unsynced"):
        fs.promise(file, 11)


def test_a_failed_write_counts_as_written(fs: MonitorFs, faults: FaultFs) -> None:
    """After an error any part of the bytes may be in the file."""
    file = _durable_file(fs, "/d/a")
    faults.add(Fault(operation="pwrite", short=1))
    with pytest.raises(OSError, match="Input/output"):
        file.pwrite([b"xy"], 10)
    with _violation(fs, "unsynced"):
        fs.promise(file, 11)


def test_unsynced_bytes_that_were_cut_off_do_not_count(fs: MonitorFs) -> None:
    """Bytes that are no longer in the file need no sync."""
    file = _durable_file(fs, "/d/a")
    file.pwrite([b"x"], 10)
    file.truncate(10)
    fs.rename("/d/a", "/d/b")
    fs.sync_dir("/d")
    fs.promise(file, 10)
    file.truncate(5)
    file.pwrite([b"y"], 5)
    with _violation(fs, "from 5 unsynced"):
        fs.promise(file, 6)


def test_a_write_during_a_sync_is_not_covered_by_it(
    fs: MonitorFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync covers what was written when it began, not what arrived meanwhile."""
    file = _durable_file(fs, "/d/a")
    sync = file.inner.fdatasync

    def write_and_sync() -> None:
        file.pwrite([b"x"], 20)
        sync()

    file.pwrite([b"x"], 10)
    monkeypatch.setattr(file.inner, "fdatasync", write_and_sync)
    file.fdatasync()
    fs.promise(file, 20)
    with _violation(fs, "from 20 unsynced"):
        fs.promise(file, 21)


def test_a_write_that_ends_after_a_sync_began_is_not_covered_by_it(
    fs: MonitorFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown which bytes of a write under way were there in time for a sync."""
    file = _durable_file(fs, "/d/a")
    write = file.inner.pwrite

    def sync_and_write(buffers: Sequence[bytes], position: int) -> None:
        file.fdatasync()
        write(buffers, position)

    monkeypatch.setattr(file.inner, "pwrite", sync_and_write)
    file.pwrite([b"x"], 10)
    with _violation(fs, "from 10 unsynced"):
        fs.promise(file, 11)


def test_a_promise_before_the_new_name_is_durable_is_a_violation(fs: MonitorFs) -> None:
    """A created file is promised only after its own directory was synced."""
    fs.makedirs("/other")
    file = fs.open("/d/a", "create")
    file.pwrite([b"x"], 0)
    file.fdatasync()
    fs.sync_dir("/other")
    with _violation(fs, "before its directory was synced"):
        fs.promise(file, 1)
    fs.sync_dir("/d")
    fs.promise(file, 1)


def test_a_promise_after_a_rename_needs_the_directory_again(fs: MonitorFs) -> None:
    """A new name is pending like that of a new file; the directory moved to counts."""
    fs.makedirs("/other")
    file = _durable_file(fs, "/d/a")
    fs.rename("/d/a", "/other/b")
    fs.sync_dir("/d")
    with _violation(fs, "/other/b: promised up to 1 before its directory was synced"):
        fs.promise(file, 1)
    fs.sync_dir("/other")
    fs.promise(file, 1)


def test_a_rename_during_a_directory_sync_is_not_covered_by_it(
    fs: MonitorFs, faults: FaultFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory sync covers the names given before it began."""
    file = _durable_file(fs, "/d/a")
    sync_dir = faults.sync_dir

    def rename_and_sync(path: str) -> None:
        fs.rename("/d/a", "/d/b")
        sync_dir(path)

    monkeypatch.setattr(faults, "sync_dir", rename_and_sync)
    fs.sync_dir("/d")
    with _violation(fs, "before its directory was synced"):
        fs.promise(file, 1)


def test_a_failed_directory_sync_makes_no_name_durable(fs: MonitorFs, faults: FaultFs) -> None:
    """An error from the directory sync leaves the name pending."""
    file = fs.open("/d/a", "create")
    faults.add(Fault(operation="sync_dir"))
    with pytest.raises(OSError, match="Input/output"):
        fs.sync_dir("/d")
    with _violation(fs, "before its directory was synced"):
        fs.promise(file, 0)


def test_a_rename_of_unsynced_bytes_is_a_violation_and_does_not_happen(fs: MonitorFs) -> None:
    """A name must not stand for bytes that may be lost."""
    file = _durable_file(fs, "/d/a")
    file.pwrite([b"x"], 10)
    with _violation(fs, "renamed to /d/b with bytes from 10 unsynced"):
        fs.rename("/d/a", "/d/b")
    assert fs.listdir("/d") == ["a"]
    file.fdatasync()
    fs.rename("/d/a", "/d/b")


def test_bytes_written_through_one_handle_are_known_to_the_other(fs: MonitorFs) -> None:
    """The file has the state, however often it is open and under whatever name."""
    first = _durable_file(fs, "/d/a")
    fs.rename("/d/a", "/d/b")
    fs.sync_dir("/d")
    second = fs.open("/d/b", "write")
    first.pwrite([b"x"], 10)
    with _violation(fs, "unsynced"):
        fs.promise(second, 11)
    second.fdatasync()
    fs.promise(first, 11)


@pytest.mark.parametrize("use", ["pwrite", "preallocate", "rename", "promise"])
def test_a_file_whose_sync_failed_is_not_used_again(
    fs: MonitorFs, faults: FaultFs, use: str
) -> None:
    """After a failed sync nothing about the file can be trusted, even if the next one succeeds."""
    file = _durable_file(fs, "/d/a")
    faults.add(Fault(operation="fdatasync", error=errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    file.fdatasync()
    with _violation(fs, "after a sync of it failed"):
        if use == "pwrite":
            file.pwrite([b"x"], 10)
        elif use == "preallocate":
            file.preallocate(10, 1)
        elif use == "rename":
            fs.rename("/d/a", "/d/b")
        else:
            fs.promise(file, 1)
    assert file.pread(100, 0) == b"0123456789"
    assert fs.listdir("/d") == ["a"]


def test_a_new_file_of_the_same_name_starts_afresh(fs: MonitorFs, faults: FaultFs) -> None:
    """Knowledge belongs to the file, not to its name."""
    file = _durable_file(fs, "/d/a")
    fs.promise(file, 10)
    faults.add(Fault(operation="fdatasync"))
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    fs.unlink("/d/a")
    fs.promise(_durable_file(fs, "/d/a"), 10)
    replacement = _durable_file(fs, "/d/temporary")
    fs.rename("/d/temporary", "/d/a")
    fs.sync_dir("/d")
    fs.promise(replacement, 10)
    fs.check()


def test_writing_over_promised_bytes_is_a_violation_and_does_not_happen(fs: MonitorFs) -> None:
    """The highest end that was promised stays promised, for writes and preallocation."""
    file = _durable_file(fs, "/d/a")
    fs.promise(file, 8)
    fs.promise(file, 3)
    with _violation(fs, "write at 7, below the promised end 8"):
        file.pwrite([b"x"], 7)
    with _violation(fs, "below the promised end"):
        file.preallocate(0, 1)
    file.pwrite([b"xy"], 8)
    assert file.pread(100, 0) == b"01234567xy"


def test_a_recycled_file_may_be_written_over(fs: MonitorFs) -> None:
    """With its new name a file has nothing promised yet."""
    file = _durable_file(fs, "/d/a")
    fs.promise(file, 10)
    fs.rename("/d/a", "/d/b")
    file.pwrite([b"x"], 0)
    fs.check()


def test_bytes_that_were_cut_off_may_be_written_anew(fs: MonitorFs) -> None:
    """A cut takes the promise back down to its size, and not further."""
    file = _durable_file(fs, "/d/a")
    fs.promise(file, 10)
    file.truncate(6)
    file.pwrite([b"x"], 6)
    with _violation(fs, "below the promised end 6"):
        file.pwrite([b"x"], 5)


def test_a_swallowed_violation_is_found_by_check(fs: MonitorFs) -> None:
    """A background thread may lose the exception, but the monitor has it."""
    file = _durable_file(fs, "/d/a")
    file.pwrite([b"x"], 10)

    def promise_too_early() -> None:
        with pytest.raises(OrderingViolation):
            fs.promise(file, 11)

    thread = threading.Thread(target=promise_too_early)
    thread.start()
    thread.join()
    with pytest.raises(OrderingViolation, match="promised up to 11"):
        fs.check()


def test_a_file_from_elsewhere_cannot_be_promised(fs: MonitorFs) -> None:
    """A file that bypassed the monitor would make every rule pass."""
    _durable_file(fs, "/d/a")
    with pytest.raises(TypeError, match="not opened through this monitor"):
        fs.promise(fs.inner.open("/d/a", "read"), 1)


def test_a_monitor_works_on_the_real_disk(tmp_path: Path) -> None:
    """Rules are kept over any file system, under paths spelt in more than one way."""
    fs = MonitorFs(PosixFileSystem())
    file = fs.open(f"{tmp_path}/./a", "create")
    file.pwrite([b"x", b"y"], 0)
    with _violation(fs, "unsynced"):
        fs.promise(file, 2)
    file.fdatasync()
    fs.sync_dir(f"{tmp_path}/")
    fs.promise(file, 2)
    assert fs.open(f"{tmp_path}/a", "read").pread(9, 0) == b"xy"


def test_a_link_of_unsynced_bytes_is_a_violation_and_does_not_happen(fs: MonitorFs) -> None:
    """Who finds the second name must find what the file is meant to hold."""
    file = _durable_file(fs, "/d/a")
    file.pwrite([b"more"], 10)
    with _violation(fs, "linked to /d/b with bytes from 10 unsynced"):
        fs.link("/d/a", "/d/b")
    assert fs.listdir("/d") == ["a"]


def test_a_link_after_a_failed_sync_is_a_violation(fs: MonitorFs, faults: FaultFs) -> None:
    """The contents of the file are unknown."""
    file = _durable_file(fs, "/d/a")
    faults.add(Fault(operation="fdatasync"))
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    with _violation(fs, "after a sync of it failed"):
        fs.link("/d/a", "/d/b")


def test_a_linked_file_is_promised_when_both_its_names_are_durable(fs: MonitorFs) -> None:
    """Each name needs a sync of its own directory."""
    fs.makedirs("/e")
    _durable_file(fs, "/d/a")
    fs.link("/d/a", "/e/b")
    linked = fs.open("/e/b", "read")
    fs.sync_dir("/d")
    with _violation(fs, "before its directory was synced"):
        fs.promise(linked, 10)
    fs.sync_dir("/e")
    fs.promise(linked, 10)


def test_a_linked_file_is_not_changed(fs: MonitorFs) -> None:
    """By neither name, as long as there are two."""
    file = _durable_file(fs, "/d/a")
    fs.link("/d/a", "/d/b")
    with _violation(fs, "/d/a and /d/b: write at 10, though it was linked"):
        file.pwrite([b"x"], 10)
    with _violation(fs, "cut to 0, though it was linked"):
        fs.open("/d/b", "write").truncate(0)
    fs.unlink("/d/b")
    file.pwrite([b"x"], 10)
    assert file.pread(20, 0) == b"0123456789x"


def test_a_name_of_a_linked_file_may_go_to_another(fs: MonitorFs) -> None:
    """Replacing one name leaves the other as it is, with one name to its own."""
    old = _durable_file(fs, "/d/a")
    fs.link("/d/a", "/d/b")
    fs.rename("/d/a", "/d/b")  # nothing happens: it is the same file
    with _violation(fs, "though it was linked"):
        old.pwrite([b"x"], 10)
    _durable_file(fs, "/d/c", b"new")
    fs.rename("/d/c", "/d/a")
    old.pwrite([b"x"], 10)
    assert fs.open("/d/b", "read").pread(20, 0) == b"0123456789x"


def test_a_renamed_file_has_one_name_whoever_made_it(faults: FaultFs) -> None:
    """A recycled log file of an earlier process was taken for a linked one once."""
    faults.makedirs("/d")
    faults.open("/d/a", "create").close()
    fs = MonitorFs(faults)
    fs.rename("/d/a", "/d/b")
    fs.open("/d/b", "write").pwrite([b"x"], 0)
    fs.check()
