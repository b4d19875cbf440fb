"""The seam between the engine and the disk: everything the engine may ask of a file system.

Contract, for every implementation:
- `pwrite` writes all bytes or raises; after a raise any part of them may be in the file.
- Written bytes may be lost, torn or reordered by a crash until `fdatasync` of that file returns.
- A created, linked, renamed or unlinked name may be undone by a crash until `sync_dir` of its
  directory returns, even when the file's own bytes were synced.
- A linked file is one file with two names: what is written by one is read by the other, and it is
  gone with the last of them. So only files that never change again are linked.
- Once `fdatasync` raised, nothing written before it may be trusted: the kernel may have dropped
  the dirty pages and will report success next time.
- `promise` says nothing to a disk. It is where the engine states "I am about to tell a caller
  that this file is durable up to here", so that a monitor can hold it to its word.

Concurrency: a `File` may be read from any thread; one thread at a time writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from stratalog.fs.posix import PosixFileSystem, forget_pages

Mode = Literal["read", "write", "create"]
"""`read` an existing file, `write` an existing file, or `create` one that must not exist."""


class NotMappedError(OSError):
    """A file that cannot be mapped, only read."""


class File(Protocol):
    """One open file, read and written at explicit positions."""

    path: str

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes at `position`; fewer only where the file ends."""

    def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
        """Write all `buffers`, one after the other, at `position`."""

    def preallocate(self, position: int, length: int) -> None:
        """Write zeros over a range past the data, so that later syncs need not allocate it."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def fdatasync(self) -> None:
        """Return once every byte written so far, and the file's length, is on the disk."""

    def size(self) -> int:
        """Length of the file in bytes."""

    def mmap(self) -> memoryview:
        """The whole file as read-only memory; only for files that never change again.

        Raises `NotMappedError` where files are far away: the caller then reads what it needs.
        """

    def close(self) -> None:
        """Release the file; closing twice is fine."""


class Lock(Protocol):
    """An exclusive lock that is held until closed or until the process ends."""

    def close(self) -> None:
        """Give the lock up; closing twice is fine."""


class FileSystem(Protocol):
    """Names, directories and locks."""

    def open(self, path: str, mode: Mode) -> File:
        """Open a file; raises `FileNotFoundError` or `FileExistsError` as the mode demands."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when the directory does not exist."""

    def makedirs(self, path: str) -> None:
        """Create a directory and its parents, durably; fine when it exists."""

    def rename(self, source: str, target: str) -> None:
        """Replace `target` by `source` atomically."""

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, which must not be taken; raises `OSError` where it cannot be.

        Another device, a file system without links, or too many of them: the caller then copies.
        """

    def unlink(self, path: str) -> None:
        """Remove a file; fine when it is gone already."""

    def sync_dir(self, path: str) -> None:
        """Return once the names in the directory are on the disk."""

    def lock(self, path: str, holder: str) -> Lock:
        """Take the exclusive lock and leave `holder` in the file, or raise `LockedError`.

        A holder without a name leaves the file as it is.
        """

    def free_bytes(self, path: str) -> int:
        """Bytes that an ordinary user can still write on the disk that holds `path`."""

    def promise(self, file: File, end: int) -> None:
        """Note that `file` is about to be called durable up to position `end`."""


__all__ = [
    "File", "FileSystem", "Lock", "Mode", "NotMappedError", "PosixFileSystem", "forget_pages",
]  # fmt: skip
