"""The seam between the engine and the disk: everything the engine may ask of a file system.

Contract, for every implementation:
- `pwrite` writes all bytes or raises; after a raise any part of them may be in the file.
- Written bytes may be lost, torn or reordered by a crash until `fdatasync` of that file returns.
- A created, linked, renamed or unlinked name may be undone by a crash until `sync_dir` of its
  directory returns, even when the file's own bytes were synced.
- A linked file is one file with two names: bytes written through one are read through the other,
  and the file is gone with its last name. So only files that never change again are linked.
- Once `fdatasync` raised, nothing written before it may be trusted: the kernel may have dropped
  the dirty pages and will report success next time.
- An error of the operating system is raised as a `StorageError`, made by `fs.os_errors`. Where it
  fits, that error is also a `FileNotFoundError`, a `FileExistsError` and so on.
- `promise` does nothing to a disk. With it the engine states "I am about to report to a caller that
  this file is durable up to here", so that a monitor can check the claim.

Concurrency: a `File` may be read from any thread; one thread at a time writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from stratalog.fs.posix import NotMappedError, PosixFileSystem, forget_pages, populate

Mode = Literal["read", "write", "create"]
"""`read` an existing file, `write` an existing file, or `create` one that must not exist."""


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

    def inode(self) -> int:
        """A number that stays the file's own under any name, and that a copy does not share."""

    def mmap(self) -> memoryview:
        """The whole file as read-only memory; only for files that never change again.

        Call `populate` on a range before using it: a page that cannot be read then raises an error
        instead of ending the process. Raises `NotMappedError` where files are remote or the system
        has no `populate`: the caller then reads what it needs.
        """

    def close(self) -> None:
        """Release the file; closing twice is fine."""


class Lock(Protocol):
    """An exclusive lock of a directory, held until closed or until the process ends.

    The lock is on the directory itself, which cannot be replaced under its holder, and on a file in
    it, which earlier releases look at and which may be removed.
    """

    def check(self) -> None:
        """Raise `FencedError` if the path no longer leads to the directory that was locked.

        A lock file that was removed is made again; raises, too, if another writer has locked it
        since.
        """

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
        """Give a file a second, free name; raises `OSError` if that is impossible.

        Reasons are another device, a file system without links, or too many links: then copy.
        """

    def unlink(self, path: str) -> None:
        """Remove a file; fine when it is gone already."""

    def links(self, path: str) -> int:
        """How many names the file has; 0 when it is gone or a directory."""

    def sync_dir(self, path: str) -> None:
        """Return once the names in the directory are on the disk."""

    def lock(self, path: str, holder: str) -> Lock:
        """Lock the directory of a file, and the file, or raise `LockedError`.

        `holder` is written into the file, for processes that find it locked. An empty one leaves
        the file as it is.
        """

    def boot_id(self) -> str:
        """Return a string that changes whenever the machine restarts, or "" if there is none.

        While it stays the same, everything that was written can be read, synced or not.
        """

    def free_bytes(self, path: str) -> int:
        """Bytes that an ordinary user can still write on the disk that holds `path`."""

    def promise(self, file: File, end: int) -> None:
        """Note that `file` is about to be called durable up to position `end`."""


__all__ = [
    "File", "FileSystem", "Lock", "Mode", "NotMappedError", "PosixFileSystem", "forget_pages",
    "populate",
]  # fmt: skip
