"""Errors from the disk, at exactly the call a test asks for.

Invariants:
- A faulted call does nothing to the file system below, except the bytes of a short write.
- A call that is counted is counted once, whether it fails or not.

Concurrency: any thread may call anything; which thread meets a fault is the threads' affair.

To have a `MonitorFs` see the errors, put it outside: `MonitorFs(FaultFs(FakeDisk()))`.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stratalog.fs import File, FileSystem, Lock, Mode
from stratalog.fs.os_errors import os_error

_OF_NAMES = "open create listdir makedirs rename link unlink sync_dir lock free_bytes"
_OF_FILES = "pread pwrite preallocate truncate fdatasync size mmap"

ANY = "any"
"""Stands for all operations, counted together."""

OPERATIONS = frozenset(f"{_OF_NAMES} {_OF_FILES}".split())
"""Operations that can fail: all but `close` and `promise`; `open` to create is `create`."""


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
        if self.operation not in OPERATIONS | {ANY}:
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

    def links(self, path: str) -> int:
        self._meet("links", path)
        return self.inner.links(path)

    def sync_dir(self, path: str) -> None:
        self._meet("sync_dir", path)
        self.inner.sync_dir(path)

    def lock(self, path: str, holder: str) -> Lock:
        self._meet("lock", path)
        return self.inner.lock(path, holder)

    def boot_id(self) -> str:
        return self.inner.boot_id()

    def free_bytes(self, path: str) -> int:
        self._meet("free_bytes", path)
        return self.inner.free_bytes(path)

    def promise(self, file: File, end: int) -> None:
        self.inner.promise(file.inner if isinstance(file, FaultFile) else file, end)

    def _meet(self, operation: str, *paths: str) -> None:
        """Count the call, and raise when a fault is due."""
        fault = self._due(operation, *paths)
        if fault is not None:
            raise os_error(fault.error, operation, paths[0])

    def _due(self, operation: str, *paths: str) -> Fault | None:
        with self._lock:
            self.calls[operation] += 1
            # Every fault counts every call, also one that another fault fails.
            hits = [armed.is_hit(operation, paths) for armed in self._armed]
            return self._armed[hits.index(True)].fault if True in hits else None


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
        raise os_error(fault.error, "write", self.path)

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

    def inode(self) -> int:
        return self.inner.inode()

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
        if fault.operation not in (operation, ANY):
            return False
        if not any(fault.path_contains in path for path in paths):
            return False
        self._seen += 1
        return self._seen == fault.call or (fault.always and self._seen > fault.call)
