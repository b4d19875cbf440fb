"""FaultFs: the chosen error at the chosen call, and nothing else changed."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from stratalog.fs import File
from stratalog.testing import FakeDisk, Fault, FaultFs, MonitorFs, OrderingViolation
from stratalog.testing.faults import OPERATIONS


def _fs(*faults: Fault) -> FaultFs:
    fs = FaultFs(FakeDisk(), faults)
    fs.makedirs("/d")
    return fs


def _error_of(call: Callable[[], object]) -> int | None:
    """The errno the call fails with; None when it succeeds."""
    try:
        call()
    except OSError as error:
        return error.errno
    return None


def test_a_fault_strikes_at_its_call_and_only_there() -> None:
    """The third sync fails with the given error, the others work."""
    fs = _fs(Fault(operation="fdatasync", call=3, error=errno.EIO))
    file = fs.open("/d/a", "create")
    assert [_error_of(file.fdatasync) for _ in range(5)] == [None, None, errno.EIO, None, None]


def test_a_lasting_fault_strikes_at_every_later_call() -> None:
    """With `always` the call and all after it fail."""
    fs = _fs(Fault(operation="sync_dir", call=2, error=errno.ENOSPC, always=True))
    errors = [_error_of(lambda: fs.sync_dir("/d")) for _ in range(4)]
    assert errors == [None, errno.ENOSPC, errno.ENOSPC, errno.ENOSPC]


def test_a_faulted_call_does_not_reach_the_disk() -> None:
    """A failed write leaves no bytes and a failed sync nothing durable."""
    disk = FakeDisk()
    disk.makedirs("/d")
    fs = FaultFs(disk, [Fault(operation="pwrite", call=2), Fault(operation="fdatasync")])
    file = fs.open("/d/a", "create")
    fs.sync_dir("/d")
    file.pwrite([b"one"], 0)
    assert _error_of(lambda: file.pwrite([b"two"], 3)) == errno.EIO
    assert _error_of(file.fdatasync) == errno.EIO
    assert disk.image() == {"/d/a": b"one"}
    assert disk.durable_image() == {"/d/a": b""}


def test_a_short_write_leaves_its_first_bytes_and_then_fails() -> None:
    """`short` bytes arrive, across the borders of buffers, before the error."""
    fs = _fs(Fault(operation="pwrite", error=errno.ENOSPC, short=5))
    file = fs.open("/d/a", "create")
    assert _error_of(lambda: file.pwrite([b"abc", b"defg"], 2)) == errno.ENOSPC
    assert file.pread(100, 0) == b"\0\0abcde"


def test_a_fault_for_some_paths_counts_only_those() -> None:
    """Calls on other paths neither fail nor bring the fault nearer."""
    fs = _fs(Fault(operation="pwrite", call=2, path_contains="wal"))
    wal, other = fs.open("/d/wal", "create"), fs.open("/d/other", "create")

    def write(file: File) -> int | None:
        return _error_of(lambda: file.pwrite([b"x"], 0))

    order: list[File] = [other, wal, other, other, wal, wal]
    assert [write(file) for file in order] == [None, None, None, None, errno.EIO, None]


def test_either_path_of_a_rename_matches() -> None:
    """A fault on a name strikes when a file is renamed to it and when it is renamed away."""
    fs = _fs(Fault(operation="rename", always=True, path_contains="sealed"))
    for name in ("a", "b", "sealed"):
        fs.open(f"/d/{name}", "create")
    assert _error_of(lambda: fs.rename("/d/a", "/d/sealed")) == errno.EIO
    assert _error_of(lambda: fs.rename("/d/sealed", "/d/c")) == errno.EIO
    assert _error_of(lambda: fs.rename("/d/b", "/d/c")) is None
    assert fs.listdir("/d") == ["a", "c", "sealed"]


def test_a_fault_added_later_counts_from_then() -> None:
    """The first call after `add` is call 1, whatever went before."""
    fs = _fs()
    file = fs.open("/d/a", "create")
    file.fdatasync()
    file.fdatasync()
    fs.add(Fault(operation="fdatasync", call=2))
    assert [_error_of(file.fdatasync) for _ in range(3)] == [None, errno.EIO, None]


def test_clear_disarms_every_fault() -> None:
    """After `clear` calls work again."""
    fs = _fs(Fault(operation="fdatasync", always=True), Fault(operation="pwrite", always=True))
    file = fs.open("/d/a", "create")
    assert _error_of(file.fdatasync) == errno.EIO
    fs.clear()
    file.pwrite([b"x"], 0)
    file.fdatasync()


def test_several_faults_count_the_same_calls() -> None:
    """A call that one fault fails is a call for the others; of two due at once the first wins."""
    fs = _fs(
        Fault(operation="fdatasync", call=1, error=errno.EIO),
        Fault(operation="fdatasync", call=2, error=errno.ENOSPC),
        Fault(operation="fdatasync", call=2, error=errno.EDQUOT),
    )
    file = fs.open("/d/a", "create")
    assert [_error_of(file.fdatasync) for _ in range(3)] == [errno.EIO, errno.ENOSPC, None]


def test_calls_are_counted_whether_they_fail_or_not() -> None:
    """`calls` has every call by operation, an open to create apart from other opens."""
    fs = _fs(Fault(operation="pwrite", call=1))
    file = fs.open("/d/a", "create")
    fs.open("/d/a", "read")
    for _ in range(3):
        _error_of(lambda: file.pwrite([b"x"], 0))
    assert fs.calls["pwrite"] == 3
    assert (fs.calls["create"], fs.calls["open"], fs.calls["unlink"]) == (1, 1, 0)


_CALLS: dict[str, Callable[[FaultFs, File], object]] = {
    "open": lambda fs, _: fs.open("/d/a", "read"),
    "create": lambda fs, _: fs.open("/d/new", "create"),
    "listdir": lambda fs, _: fs.listdir("/d"),
    "makedirs": lambda fs, _: fs.makedirs("/e"),
    "rename": lambda fs, _: fs.rename("/d/a", "/d/b"),
    "link": lambda fs, _: fs.link("/d/a", "/d/b"),
    "unlink": lambda fs, _: fs.unlink("/d/a"),
    "sync_dir": lambda fs, _: fs.sync_dir("/d"),
    "lock": lambda fs, _: fs.lock("/d/lock", "me"),
    "free_bytes": lambda fs, _: fs.free_bytes("/d"),
    "pread": lambda _, file: file.pread(1, 0),
    "pwrite": lambda _, file: file.pwrite([b"x"], 0),
    "preallocate": lambda _, file: file.preallocate(0, 1),
    "truncate": lambda _, file: file.truncate(0),
    "fdatasync": lambda _, file: file.fdatasync(),
    "size": lambda _, file: file.size(),
    "mmap": lambda _, file: file.mmap(),
}


def test_a_fault_may_count_all_operations_together() -> None:
    """The n-th call of any kind fails, whatever it is."""
    fs = _fs()
    fs.add(Fault(operation="any", call=3))
    fs.open("/d/a", "create").pwrite([b"1"], 0)
    with pytest.raises(OSError, match="Input/output error"):
        fs.listdir("/d")
    assert fs.listdir("/d") == ["a"]


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_every_operation_can_fail(operation: str) -> None:
    """A fault on any operation strikes at the call of that name, once, and is passed on after."""
    fs = _fs()
    file = fs.open("/d/a", "create")
    fs.add(Fault(operation=operation, error=errno.EDQUOT))
    call = _CALLS[operation]
    assert [_error_of(lambda: call(fs, file)) for _ in range(2)] == [errno.EDQUOT, None]


@pytest.mark.parametrize(
    "arguments",
    [
        {"operation": "fsync"},
        {"operation": "pwrite", "call": 0},
        {"operation": "fdatasync", "short": 3},
        {"operation": "pwrite", "short": -1},
    ],
)
def test_a_fault_that_could_never_strike_is_refused(arguments: dict[str, Any]) -> None:
    """A misspelt operation or a senseless count is an error, not a test that passes."""
    with pytest.raises(ValueError, match=r"operation|counted|short"):
        Fault(**arguments)


def test_a_promise_reaches_the_file_system_below() -> None:
    """The file is unwrapped on the way, so that a monitor inside knows it."""
    monitor = MonitorFs(FakeDisk())
    monitor.makedirs("/d")
    fs = FaultFs(monitor)
    file = fs.open("/d/a", "create")
    file.pwrite([b"x"], 0)
    with pytest.raises(OrderingViolation):
        fs.promise(file, 1)
