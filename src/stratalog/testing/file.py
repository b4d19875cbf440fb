"""Files and locks of a fake disk, as their holders see them.

A handle points at the inode, not at the name: it goes on working after a rename or an unlink.

Concurrency: every call takes its disk's one lock; closing takes none.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.errors import StorageError
from stratalog.fs.os_errors import storage_error
from stratalog.fs.posix import fenced
from stratalog.testing.inode import Directory, Inode

if TYPE_CHECKING:
    from stratalog.testing.disk import FakeDisk


class FakeFile:
    """An open file of a `FakeDisk`."""

    def __init__(self, disk: FakeDisk, path: str, inode: Inode, *, is_writable: bool) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._is_open = True
        self._is_writable = is_writable

    def pread(self, length: int, position: int) -> bytes:
        with self._disk._lock:
            self._step("pread", position, changes=False)
            return bytes(memoryview(self._inode.live)[position : position + length])

    def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
        data = b"".join(buffers)
        with self._disk._lock:
            self._step("pwrite", position)
            fitting = self._fitting(position, len(data))
            self._inode.write(position, data[:fitting])
            if fitting < len(data):
                raise os_error(errno.ENOSPC, self.path)

    def preallocate(self, position: int, length: int) -> None:
        with self._disk._lock:
            self._step("preallocate", position)
            fitting = self._fitting(position, length)
            self._inode.write_zeros(position, fitting)
            if fitting < length:
                raise os_error(errno.ENOSPC, self.path)

    def truncate(self, size: int) -> None:
        with self._disk._lock:
            self._step("truncate", size)
            if self._fitting(0, size) < size:
                raise os_error(errno.ENOSPC, self.path)
            self._inode.truncate(size)

    def fdatasync(self) -> None:
        with self._disk._lock:
            self._step("fdatasync", 0, needs_write=False)
            self._inode.sync()

    def size(self) -> int:
        with self._disk._lock:
            self._step("size", 0, changes=False)
            return len(self._inode.live)

    def inode(self) -> int:
        return self._inode.number

    def mmap(self) -> memoryview:
        with self._disk._lock:
            self._step("mmap", 0, changes=False)
            return memoryview(bytes(self._inode.live))

    def close(self) -> None:
        self._is_open = False

    def _step(
        self, operation: str, position: int, *, changes: bool = True, needs_write: bool = True
    ) -> None:
        self._disk._step(operation, self.path, changes=changes)
        if not self._is_open or (changes and needs_write and not self._is_writable):
            raise os_error(errno.EBADF, self.path)
        if position < 0:
            raise os_error(errno.EINVAL, self.path)

    def _fitting(self, position: int, length: int) -> int:
        """How many of `length` bytes at `position` the disk has room for."""
        end_max = len(self._inode.live) + self._disk._free_bytes()
        return max(0, min(length, end_max - position))


class FakeLock:
    """A held lock of a `FakeDisk`: of a directory, and of a file in it."""

    def __init__(self, disk: FakeDisk, path: str, directory: Directory, inode: Inode) -> None:
        self._disk = disk
        self._path = posixpath.normpath("/" + path.lstrip("/"))
        self._directory = directory
        self._inode = inode
        self._is_held = True

    def check(self) -> None:
        root, name = posixpath.split(self._path)
        with self._disk._lock:
            if self._disk._directories.get(root) is not self._directory:
                raise fenced(root, "another directory has its path now, or none")
            there = self._directory.live.get(name)
            if there is None:
                self._directory.change((name, self._inode))
            elif there is not self._inode:
                if there.holder is not None:
                    raise fenced(root, f"its lock file was replaced: {there.holder} has it")
                there.holder, self._inode = self._inode.holder, there

    def close(self) -> None:
        if self._is_held:
            self._is_held = False
            self._directory.holder = self._inode.holder = None


def os_error(code: int, path: str) -> StorageError:
    """An error as the real disk would raise it."""
    return storage_error(OSError(code, os.strerror(code)), "go on", path)
