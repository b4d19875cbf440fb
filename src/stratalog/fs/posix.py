"""The real disk: `pread`, `pwrite`, `fdatasync` and advisory locks of the operating system."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import stat
from collections.abc import Sequence
from typing import Literal

from stratalog.errors import FencedError, LockedError, StorageError
from stratalog.fs.os_errors import os_error, out_of_memory, storage_error

_FLAGS = {
    "read": os.O_RDONLY,
    "write": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}

# The most buffers one pwritev takes (IOV_MAX on Linux).
_BUFFERS_MAX = 1024

_ZEROS = bytes(1 << 20)

_BOOT_ID = "/proc/sys/kernel/random/boot_id"

# MADV_POPULATE_READ, which Python has no name for: like reading every page, but it can fail.
_POPULATE_READ = 22


class NotMappedError(StorageError):
    """A file that cannot be mapped, only read."""


class PosixFile:
    """A file descriptor with explicit positions."""

    _fd = -1  # so that __del__ works when the open below raises

    def __init__(self, path: str, mode: Literal["read", "write", "create"]) -> None:
        try:
            self._fd = os.open(path, _FLAGS[mode] | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error(error, mode if mode == "create" else "open", path) from error
        self.path = path

    def pread(self, length: int, position: int) -> bytes:
        try:
            data = os.pread(self._fd, length, position)
            if len(data) == length or not data:
                return data
            # The kernel may return less than asked for (a signal, or over 2 GiB): go on.
            parts = [data]
            have = len(data)
            while have < length and (data := os.pread(self._fd, length - have, position + have)):
                parts.append(data)
                have += len(data)
            return b"".join(parts)
        except OSError as error:
            raise storage_error(error, "read", self.path) from error
        except MemoryError as error:
            raise out_of_memory(f"read {length} bytes", self.path) from error

    def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
        if len(buffers) > _BUFFERS_MAX:
            for first in range(0, len(buffers), _BUFFERS_MAX):
                some = buffers[first : first + _BUFFERS_MAX]
                self.pwrite(some, position)
                position += sum(map(len, some))
            return
        end = position + sum(map(len, buffers))
        try:
            position += os.pwritev(self._fd, buffers, position)
            if position != end:
                rest = memoryview(b"".join(buffers))
                while position < end:
                    position += os.pwrite(self._fd, rest[position - end :], position)
        except OSError as error:
            raise storage_error(error, "write", self.path) from error
        except MemoryError as error:
            raise out_of_memory("write", self.path) from error

    def preallocate(self, position: int, length: int) -> None:
        # Zeros are written, not fallocated: the first sync into an unwritten extent must convert
        # it, which costs as much as growing the file (1600 us against 90 us measured).
        end = position + length
        try:
            while position < end:
                position += os.pwrite(self._fd, _ZEROS[: end - position], position)
        except OSError as error:
            raise storage_error(error, "write zeros", self.path) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise storage_error(error, f"cut to {size} bytes", self.path) from error

    def fdatasync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise storage_error(error, "sync", self.path) from error

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise storage_error(error, "look at", self.path) from error

    def inode(self) -> int:
        try:
            return os.fstat(self._fd).st_ino
        except OSError as error:
            raise storage_error(error, "look at", self.path) from error

    def mmap(self) -> memoryview:
        if not CAN_POPULATE:
            raise NotMappedError(f"{self.path}: this system has no MADV_POPULATE_READ")
        try:
            if self.size() == 0:  # mmap refuses an empty file
                return memoryview(b"")
            return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError):  # it was cut to nothing meanwhile
                raise os_error(errno.EIO, "map", self.path) from error
            raise storage_error(error, "map", self.path) from error

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Readers share files and drop them at their own pace: the last reference closes the file.
        self.close()


class PosixLock:
    """Locks (`flock`) of a directory and of a file in it: they end with the process."""

    _fd = _directory_fd = -1

    def __init__(self, path: str, holder: str) -> None:
        self._pid = os.getpid()
        self._path = path
        self._directory = os.path.dirname(path)
        self._holder = holder
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            self._directory_fd = os.open(self._directory, flags)
            if not _lock(self._directory_fd):
                raise self._taken()
            self._lock_file()
            facts = os.fstat(self._directory_fd)
            self._inode = facts.st_dev, facts.st_ino
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise storage_error(error, "lock", path) from error
            raise

    def _lock_file(self) -> None:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not _lock(self._fd):
            raise self._taken()
        # Padded to cover what the previous holder wrote: cheaper than cutting the file first.
        if self._holder:
            os.pwrite(self._fd, os.fsencode(self._holder).ljust(256) + b"\n", 0)

    def _taken(self) -> LockedError:
        other = ""
        with contextlib.suppress(OSError):  # it was removed, or is being made
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                other = os.pread(fd, 4096, 0).decode("utf-8", "replace").strip()
            finally:
                os.close(fd)
        return LockedError(
            f"{self._directory} is open in another writer: {other or 'unknown holder'}. "
            "Close that store first, or open this one with read_only=True to read beside it."
        )

    def check(self) -> None:
        try:
            facts = os.stat(self._directory)
        except OSError as error:
            raise fenced(self._directory, f"it cannot be found any more ({error})") from error
        if (facts.st_dev, facts.st_ino) != self._inode:
            raise fenced(self._directory, "another directory has its path now")
        try:
            ours, there = os.fstat(self._fd), os.stat(self._path)
            is_ours = (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
        except FileNotFoundError:
            is_ours = False
        except OSError as error:
            raise storage_error(error, "look at", self._path) from error
        if not is_ours and self._fd >= 0:
            self._lock_file_again()

    def _lock_file_again(self) -> None:
        """Make a removed lock file again: an earlier release knows no other lock."""
        before = self._fd
        try:
            self._lock_file()
        except LockedError as error:
            raise fenced(self._directory, f"its lock file was replaced: {error}") from error
        except OSError as error:
            if self._fd != before:
                os.close(self._fd)
            self._fd = before  # so that the next check tries again
            raise storage_error(error, "make the lock again", self._path) from error
        os.close(before)

    def close(self) -> None:
        for name in ("_fd", "_directory_fd"):
            fd = getattr(self, name)
            if fd >= 0:
                if os.getpid() == self._pid:
                    # A child that was forked just now may still have it open, and shares the lock.
                    # This comes first: Ctrl-C after it leaves a descriptor, but no lock.
                    fcntl.flock(fd, fcntl.LOCK_UN)
                setattr(self, name, -1)
                os.close(fd)

    def __del__(self) -> None:
        # Ctrl-C may come before the caller has a reference to the lock.
        self.close()


def _lock(fd: int) -> bool:
    """Take the lock of an open file or directory; False if another process has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def fenced(directory: str, why: str) -> FencedError:
    """Build the error for a store whose directory is no longer the one that it locked."""
    return FencedError(
        f"The store in {directory} was taken away while it was open: {why}. Nothing more is "
        "written. Records that were appended since are in the directory that was there before. "
        "Close this store and open it again."
    )


class PosixFileSystem:
    """The operating system's own files."""

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> PosixFile:
        return PosixFile(path, mode)

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(error, "list", path) from error

    def makedirs(self, path: str) -> None:
        path = os.path.abspath(path)
        missing = list(itertools.takewhile(lambda p: not os.path.isdir(p), _self_and_parents(path)))
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except OSError as error:
                # Another process may have made it; a file of that name is in the way.
                if not isinstance(error, FileExistsError) or not os.path.isdir(directory):
                    raise storage_error(error, "make the directory", directory) from error
            self.sync_dir(os.path.dirname(directory))

    def rename(self, source: str, target: str) -> None:
        try:
            os.rename(source, target)
        except OSError as error:
            raise storage_error(error, f"rename to {target}", source) from error

    def link(self, source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError as error:
            raise storage_error(error, f"link to {target}", source) from error

    def unlink(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error(error, "remove", path) from error

    def links(self, path: str) -> int:
        try:
            facts = os.stat(path)
        except FileNotFoundError:
            return 0
        return 0 if stat.S_ISDIR(facts.st_mode) else facts.st_nlink

    def sync_dir(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise storage_error(error, "sync the directory", path) from error

    def lock(self, path: str, holder: str) -> PosixLock:
        return PosixLock(path, holder)

    def boot_id(self) -> str:
        with contextlib.suppress(OSError), open(_BOOT_ID) as file:
            return file.read(64).strip()
        return ""

    def free_bytes(self, path: str) -> int:
        try:
            facts = os.statvfs(path)
        except OSError as error:
            raise storage_error(error, "look for free space", path) from error
        return facts.f_bavail * facts.f_frsize

    def promise(self, file: object, end: int) -> None:
        pass


def _self_and_parents(path: str) -> list[str]:
    """Return `/a/b`, `/a`, `/`."""
    paths = [path]
    while (parent := os.path.dirname(paths[-1])) != paths[-1]:
        paths.append(parent)
    return paths


def _can_populate() -> bool:
    """Whether pages can be requested before they are used: Linux 5.14 and later."""
    with contextlib.suppress(OSError), mmap.mmap(-1, mmap.PAGESIZE) as page:
        page.madvise(_POPULATE_READ)
        return True
    return False


CAN_POPULATE = _can_populate()
"""Whether files are mapped; otherwise they are read by `pread`."""


def populate(view: memoryview, position: int, length: int) -> None:
    """Bring a range of a map into memory; raises `OSError` if that is impossible.

    Using a page of a file that was cut short, or that the disk cannot read, ends the process with
    SIGBUS. Requested this way (0.7 us for 512 KiB in memory) it is an error instead.
    """
    mapped = view.obj
    if isinstance(mapped, mmap.mmap) and not mapped.closed and length > 0:
        start = position - position % mmap.PAGESIZE
        mapped.madvise(_POPULATE_READ, start, position + length - start)


def forget_pages(view: memoryview) -> None:
    """Release the pages of a map; they are read again when they are next touched."""
    mapped = view.obj
    if isinstance(mapped, mmap.mmap) and not mapped.closed:
        mapped.madvise(mmap.MADV_DONTNEED)
