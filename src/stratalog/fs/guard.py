"""A file system that works only while a lock's path still leads to the directory it locked.

A directory may be removed or renamed, and another made in its place, while a store has it open.
Files that are open then still are the old ones, but every path leads to the new directory, which
belongs to another store. So each call that takes a path checks the lock first: a `stat`, 1 us.

Concurrency: any thread. The path may change between the check and the call: a window of
microseconds remains.
"""

from __future__ import annotations

from stratalog.fs import File, FileSystem, Lock, Mode


class GuardedFs:
    """A `FileSystem` that raises `FencedError` once its lock no longer holds the directory."""

    def __init__(self, inner: FileSystem, lock: Lock) -> None:
        self.inner = inner
        self.check = lock.check
        """Raises `FencedError` if the lock is gone; may be replaced by a check that does more."""

    def open(self, path: str, mode: Mode) -> File:
        self.check()
        return self.inner.open(path, mode)

    def listdir(self, path: str) -> list[str]:
        self.check()
        return self.inner.listdir(path)

    def makedirs(self, path: str) -> None:
        self.check()
        self.inner.makedirs(path)

    def rename(self, source: str, target: str) -> None:
        self.check()
        self.inner.rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.check()
        self.inner.link(source, target)

    def unlink(self, path: str) -> None:
        self.check()
        self.inner.unlink(path)

    def links(self, path: str) -> int:
        self.check()
        return self.inner.links(path)

    def sync_dir(self, path: str) -> None:
        self.check()
        self.inner.sync_dir(path)

    def lock(self, path: str, holder: str) -> Lock:
        return self.inner.lock(path, holder)

    def boot_id(self) -> str:
        return self.inner.boot_id()

    def free_bytes(self, path: str) -> int:
        return self.inner.free_bytes(path)

    def promise(self, file: File, end: int) -> None:
        self.inner.promise(file, end)
