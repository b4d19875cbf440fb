"""Errors from the disk, at exactly the call a test asks for.

Invariants:
- A faulted call does nothing to the file system below, except the bytes of a short write.
- A call that is counted is counted once, whether it fails or not.

Concurrency: any thread may call anything; which thread meets a fault is the threads' affair.

To have a `MonitorFs` see the errors, put it outside: `MonitorFs(FaultFs(FakeDisk()))`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stratalog.fs import File, FileSystem, Lock, Mode

_OF_NAMES = "open create listdir makedirs rename link unlink sync_dir lock free_bytes"
_OF_FILES = "pread pwrite preallocate truncate fdatasync size mmap"

OPERATIONS = frozenset(f"{_OF_NAMES} {_OF_FILES}".split())
"""What can fail: every call but `close` and `promise`; an `open` to create counts as `create`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One error: the `call`-th matching call from when the fault was added, or all from there.

    `path_contains` leaves other paths uncounted; of a rename or link either path may match.
    `short` bytes of a `pwrite` are written before it fails.
    """

    operation: str
    call: int = 1
    error: int = errno.EIO
    always: bool = False
    short: int | None = None
    path_contains: str = ""

    def __post_init__(self) -> None:
        # A fault that can never fire would make its test pass for the wrong reason.
        if self.operation not in OPERATIONS:
            raise ValueError(
                f"no operation {self.operation!r}: use one of {', '.join(sorted(OPERATIONS))}"
            )
        if self.call < 1:
            raise ValueError(f"calls are counted from 1, got call={self.call}")
        if self.short is not None and (self.operation != "pwrite" or self.short < 0):
            raise ValueError("short is a number of bytes, and for pwrite only")


class FaultFs:
    """A `FileSystem` that fails where its faults say, and counts calls by operation."""

    def __init__(self, inner: FileSystem, faults: Iterable[Fault] = ()) -> None:
        self.inner = inner
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []
        for fault in faults:
            self.add(fault)

    def add(self, fault: Fault) -> None:
        """Arm one more fault; its calls are counted from now."""
        with self._lock:
            self._armed.append(_Armed(fault))

    def clear(self) -> None:
        """Disarm every fault; `calls` goes on."""
        with self._lock:
            self._armed.clear()

    def open(self, path: str, mode: Mode) -> FaultFile:
        self._meet("create" if mode == "create" else "open", path)
        return FaultFile(self, self.inner.open(path, mode))

    def listdir(self, path: str) -> list[str]:
        self._meet("listdir", path)
        return self.inner.listdir(path)

    def makedirs(self, path: str) -> None:
        self._meet("makedirs", path)
        self.inner.makedirs(path)

    def rename(self, source: str, target: str) -> None:
        self._meet("rename", source, target)
        self.inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._meet("link", source, target)
        self.inner.link(source, target)

    def unlink(self, path: str) -> None:
        self._meet("unlink", path)
        self.inner.unlink(path)

    def sync_dir(self, path: str) -> None:
        self._meet("sync_dir", path)
        self.inner.sync_dir(path)

    def lock(self, path: str, holder: str) -> Lock:
        self._meet("lock", path)
        return self.inner.lock(path, holder)

    def free_bytes(self, path: str) -> int:
        self._meet("free_bytes", path)
        return self.inner.free_bytes(path)

    def promise(self, file: File, end: int) -> None:
        self.inner.promise(file.inner if isinstance(file, FaultFile) else file, end)

    def _meet(self, operation: str, *paths: str) -> None:
        """Count the call, and raise when a fault is due."""
        fault = self._due(operation, *paths)
        if fault is not None:
            raise _os_error(fault, paths[0])

    def _due(self, operation: str, *paths: str) -> Fault | None:
        due = None
        with self._lock:
            self.calls[operation] += 1
            for armed in self._armed:
                # Every fault counts every call, also one that another fault fails.
                if armed.is_hit(operation, paths) and due is None:
                    due = armed.fault
        return due


class FaultFile:
    """An open file of a `FaultFs`."""

    def __init__(self, fs: FaultFs, inner: File) -> None:
        self.path = inner.path
        self.inner = inner
        self._fs = fs

    def pread(self, length: int, position: int) -> bytes:
        self._fs._meet("pread", self.path)
        return self.inner.pread(length, position)

    def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
        fault = self._fs._due("pwrite", self.path)
        if fault is None:
            self.inner.pwrite(buffers, position)
            return
        if fault.short:
            self.inner.pwrite([b"".join(buffers)[: fault.short]], position)
        raise _os_error(fault, self.path)

    def preallocate(self, position: int, length: int) -> None:
        self._fs._meet("preallocate", self.path)
        self.inner.preallocate(position, length)

    def truncate(self, size: int) -> None:
        self._fs._meet("truncate", self.path)
        self.inner.truncate(size)

    def fdatasync(self) -> None:
        self._fs._meet("fdatasync", self.path)
        self.inner.fdatasync()

    def size(self) -> int:
        self._fs._meet("size", self.path)
        return self.inner.size()

    def mmap(self) -> memoryview:
        self._fs._meet("mmap", self.path)
        return self.inner.mmap()

    def close(self) -> None:
        self.inner.close()


class _Armed:
    """A fault and how many of its calls it has seen."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._seen = 0

    def is_hit(self, operation: str, paths: Sequence[str]) -> bool:
        fault = self.fault
        if operation != fault.operation or not any(fault.path_contains in p for p in paths):
            return False
        self._seen += 1
        return self._seen == fault.call or (fault.always and self._seen > fault.call)


def _os_error(fault: Fault, path: str) -> OSError:
    return OSError(fault.error, os.strerror(fault.error), path)
