"""The real disk: `pread`, `pwrite`, `fdatasync` and advisory locks of the operating system."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
from collections.abc import Sequence
from typing import Literal

from stratalog.errors import LockedError

_FLAGS = {
    "read": os.O_RDONLY,
    "write": os.O_RDWR,
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}

# The most buffers one pwritev takes (IOV_MAX on Linux).
_BUFFERS_MAX = 1024

_ZEROS = bytes(1 << 20)


class PosixFile:
    """A file descriptor with explicit positions."""

    _fd = -1  # so that __del__ works when the open below raises

    def __init__(self, path: str, mode: Literal["read", "write", "create"]) -> None:
        self._fd = os.open(path, _FLAGS[mode] | os.O_CLOEXEC, 0o644)
        self.path = path

    def pread(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        # The kernel may return less than asked for (a signal, or over 2 GiB): go on to the end.
        parts = [data]
        have = len(data)
        while have < length and (data := os.pread(self._fd, length - have, position + have)):
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
        if len(buffers) > _BUFFERS_MAX:
            for first in range(0, len(buffers), _BUFFERS_MAX):
                some = buffers[first : first + _BUFFERS_MAX]
                self.pwrite(some, position)
                position += sum(map(len, some))
            return
        end = position + sum(map(len, buffers))
        position += os.pwritev(self._fd, buffers, position)
        if position != end:
            rest = memoryview(b"".join(buffers))
            while position < end:
                position += os.pwrite(self._fd, rest[position - end :], position)

    def preallocate(self, position: int, length: int) -> None:
        # Zeros are written, not fallocated: the first sync into an unwritten extent must convert
        # it, which costs as much as growing the file (1600 us against 90 us measured).
        end = position + length
        while position < end:
            position += os.pwrite(self._fd, _ZEROS[: end - position], position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def mmap(self) -> memoryview:
        if self.size() == 0:  # mmap refuses an empty file
            return memoryview(b"")
        return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # Readers share files and drop them at their own pace: the last reference closes.
        self.close()


class PosixLock:
    """An flock: it ends with the process, however that dies."""

    _fd = -1

    def __init__(self, path: str, holder: str) -> None:
        self._pid = os.getpid()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = os.pread(self._fd, 4096, 0).decode("utf-8", "replace").strip()
            self.close()
            raise LockedError(
                f"{os.path.dirname(path)} is open in another writer: {other or 'unknown holder'}. "
                "Close that store first, or open this one with read_only=True to read beside it."
            ) from error
        try:
            # Padded over what the one before left: cheaper than cutting the file first.
            if holder:
                os.pwrite(self._fd, holder.encode().ljust(256) + b"\n", 0)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        fd = self._fd
        if fd >= 0:
            if os.getpid() == self._pid:
                # A child that was forked just now may have it open still, and it is one lock.
                # First of all: Ctrl-C behind this leaves a descriptor, and no lock.
                fcntl.flock(fd, fcntl.LOCK_UN)
            self._fd = -1
            os.close(fd)

    def __del__(self) -> None:
        # Ctrl-C may come before whoever took it has hold of it.
        self.close()


class PosixFileSystem:
    """The operating system's own files."""

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> PosixFile:
        return PosixFile(path, mode)

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def makedirs(self, path: str) -> None:
        path = os.path.abspath(path)
        missing = list(itertools.takewhile(lambda p: not os.path.isdir(p), _self_and_parents(path)))
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:
                if not os.path.isdir(directory):  # a file of that name, not another process
                    raise
            self.sync_dir(os.path.dirname(directory))

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str, holder: str) -> PosixLock:
        return PosixLock(path, holder)

    def free_bytes(self, path: str) -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def promise(self, file: object, end: int) -> None:
        pass


def _self_and_parents(path: str) -> list[str]:
    """`/a/b`, `/a`, `/`."""
    paths = [path]
    while (parent := os.path.dirname(paths[-1])) != paths[-1]:
        paths.append(parent)
    return paths


def forget_pages(view: memoryview) -> None:
    """Give the pages of a map back; they are read again when they are next touched."""
    mapped = view.obj
    if isinstance(mapped, mmap.mmap) and not mapped.closed:
        mapped.madvise(mmap.MADV_DONTNEED)
