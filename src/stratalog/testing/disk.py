"""A disk in memory that keeps what is durable apart from what a crash may still take.

Contract: that of `stratalog.fs`, at its most unkind. Written bytes and changed names are visible
at once and durable only after `fdatasync` or `sync_dir`; `inode.py` says what a crash leaves.

Invariants:
- The same operations and the same seed give the same disk after the crash.
- `crash` and the images only look: one disk can be crashed with many seeds, at any moment.
- Once its crash point is reached a disk answers nothing any more: the process is dead. Only
  closing files and locks still works, as `finally` blocks run on.

Concurrency: any thread may call anything; one lock covers the disk.
"""

from __future__ import annotations

import errno
import posixpath
import threading
from random import Random

from stratalog.errors import LockedError
from stratalog.fs import File, Mode
from stratalog.testing.file import FakeFile, FakeLock, os_error
from stratalog.testing.inode import Damage, Directory, Inode

# What a disk without a capacity says is free: 1 TiB, more than any test can write.
_FREE_BYTES_UNLIMITED = 1 << 40


class Crashed(BaseException):
    """The disk reached its crash point. Not an Exception: a dead process handles no errors."""


class FakeDisk:
    """A `FileSystem` in memory that can crash.

    `crash_after` operations that change something are performed, the next one and everything
    after it raise `Crashed`; it may be set or moved later. `operations` counts them.
    `capacity_bytes` bounds the bytes of all files that have a name.
    """

    def __init__(
        self, *, crash_after: int | None = None, capacity_bytes: int | None = None
    ) -> None:
        self.crash_after = crash_after
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.boots = 1
        """How often the machine was started: a disk that a crash left is that of the next boot."""
        self.is_crashed = False
        self._lock = threading.Lock()
        self._directories = {"/": Directory()}

    def open(self, path: str, mode: Mode) -> FakeFile:
        with self._lock:
            self._step("create" if mode == "create" else "open", path, changes=mode == "create")
            directory, name = self._parent(path)
            inode = directory.live.get(name)
            if mode == "create":
                if inode is not None or name in directory.directories:
                    raise os_error(errno.EEXIST, path)
                inode = Inode()
                directory.change((name, inode))
            elif inode is None:
                raise os_error(
                    errno.EISDIR if _normal(path) in self._directories else errno.ENOENT, path
                )
            return FakeFile(self, path, inode, is_writable=mode != "read")

    def listdir(self, path: str) -> list[str]:
        with self._lock:
            self._step("listdir", path, changes=False)
            directory = self._directories.get(_normal(path), Directory())
            parent, name = posixpath.split(_normal(path))
            if name in self._directories.get(parent, Directory()).live:
                raise os_error(errno.ENOTDIR, path)
            return sorted(directory.live.keys() | directory.directories)

    def makedirs(self, path: str) -> None:
        with self._lock:
            self._step("makedirs", path)
            parent = "/"
            for name in filter(None, _normal(path).split("/")):
                directory = self._directories[parent]
                if name in directory.live:
                    raise os_error(errno.EEXIST, path)
                directory.directories.add(name)
                parent = posixpath.join(parent, name)
                self._directories.setdefault(parent, Directory())

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._step("rename", source)
            old_directory, old_name = self._parent(source)
            new_directory, new_name = self._parent(target)
            inode = old_directory.live.get(old_name)
            # Nothing of ours renames a directory, so a fake one stays where it is.
            if old_name in old_directory.directories or new_name in new_directory.directories:
                raise os_error(errno.EISDIR, target)
            if inode is None:
                raise os_error(errno.ENOENT, source)
            if new_directory.live.get(new_name) is inode:
                return  # two names of one file: POSIX leaves both
            if old_directory is not new_directory:
                new_directory.change((new_name, inode))
                old_directory.change((old_name, None))
            else:
                new_directory.change((new_name, inode), (old_name, None))

    def link(self, source: str, target: str) -> None:
        with self._lock:
            self._step("link", source)
            old_directory, old_name = self._parent(source)
            new_directory, new_name = self._parent(target)
            inode = old_directory.live.get(old_name)
            if inode is None:
                is_directory = old_name in old_directory.directories
                raise os_error(errno.EPERM if is_directory else errno.ENOENT, source)
            if new_name in new_directory.live or new_name in new_directory.directories:
                raise os_error(errno.EEXIST, target)
            new_directory.change((new_name, inode))

    def unlink(self, path: str) -> None:
        with self._lock:
            self._step("unlink", path)
            directory = self._directories.get(posixpath.dirname(_normal(path)), Directory())
            name = posixpath.basename(_normal(path))
            if name in directory.directories:
                raise os_error(errno.EISDIR, path)
            if name in directory.live:
                directory.change((name, None))

    def links(self, path: str) -> int:
        with self._lock:
            self._step("links", path, changes=False)
            parent, name = posixpath.split(_normal(path))
            inode = self._directories.get(parent, Directory()).live.get(name)
            names = (one for d in self._directories.values() for one in d.live.values())
            return 0 if inode is None else sum(one is inode for one in names)

    def sync_dir(self, path: str) -> None:
        with self._lock:
            self._step("sync_dir", path)
            self._directory(path).sync()

    def lock(self, path: str, holder: str) -> FakeLock:
        with self._lock:
            self._step("lock", path)
            directory, name = self._parent(path)
            inode = directory.live.get(name)
            if inode is None:
                inode = Inode()
                directory.change((name, inode))
            if other := directory.holder or inode.holder:
                raise LockedError(
                    f"{posixpath.dirname(path)} is open in another writer: {other}. "
                    "Close that store first, or open this one with read_only=True."
                )
            if holder:
                inode.truncate(0)
                inode.write(0, holder.encode())
            directory.holder = inode.holder = holder or "unknown"
            return FakeLock(self, path, directory, inode)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it; those who have files of it open keep them."""
        with self._lock:
            self._remove_tree(_normal(path))

    def _remove_tree(self, root: str) -> None:
        parent, name = posixpath.split(root)
        self._directory(parent).directories.discard(name)
        for one in [one for one in self._directories if f"{one}/".startswith(f"{root}/")]:
            del self._directories[one]

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def free_bytes(self, path: str) -> int:
        with self._lock:
            self._step("free_bytes", path, changes=False)
            if _normal(path) not in self._directories:
                directory, name = self._parent(path)
                if name not in directory.live:
                    raise os_error(errno.ENOENT, path)
            return self._free_bytes()

    def promise(self, file: File, end: int) -> None:
        """Only the dead cannot promise; what may be promised is `MonitorFs`'s business."""
        with self._lock:
            self._step("promise", file.path, changes=False)

    def crash(
        self, seed: int, damage: Damage = "random", *, crash_after: int | None = None
    ) -> FakeDisk:
        """A new disk with what a power cut now would leave; all of it is durable there."""
        if damage not in ("random", "keep", "drop"):
            raise ValueError(f"damage is random, keep or drop, not {damage!r}")
        random = Random(seed)
        after = FakeDisk(crash_after=crash_after, capacity_bytes=self.capacity_bytes)
        after.boots = self.boots + 1
        survivors: dict[
            int, Inode
        ] = {}  # a file may have two names, by a link or caught in a rename
        with self._lock:
            for path, directory in sorted(self._directories.items()):
                names = {}
                surviving = directory.surviving_names(random, damage)
                for name, inode in sorted(surviving.items()):
                    if id(inode) not in survivors:
                        survivors[id(inode)] = inode.survivor(random, damage)
                    names[name] = survivors[id(inode)]
                after._directories[path] = Directory(
                    names, dict(names), directories=set(directory.directories)
                )
        return after

    def image(self) -> dict[str, bytes]:
        """Every file by path, as a reader sees it now."""
        with self._lock:
            return {
                posixpath.join(path, name): bytes(inode.live)
                for path, directory in sorted(self._directories.items())
                for name, inode in directory.live.items()
            }

    def durable_image(self) -> dict[str, bytes]:
        """Every file by path, as a crash that takes everything pending would leave it."""
        return self.crash(0, "drop").image()

    def _step(self, operation: str, path: str, *, changes: bool = True) -> None:
        """Count one operation, or die of it."""
        is_due = changes and self.crash_after is not None and self.operations >= self.crash_after
        if self.is_crashed or is_due:
            self.is_crashed = True
            raise Crashed(f"{operation} of {path} after {self.operations} operations")
        self.operations += changes

    def _directory(self, path: str) -> Directory:
        directory = self._directories.get(_normal(path))
        if directory is None:
            raise os_error(errno.ENOENT, path)
        return directory

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, name = posixpath.split(_normal(path))
        return self._directory(parent), name

    def _free_bytes(self) -> int:
        if self.capacity_bytes is None:
            return _FREE_BYTES_UNLIMITED
        files = {id(i): i for d in self._directories.values() for i in d.live.values()}
        return max(0, self.capacity_bytes - sum(len(inode.live) for inode in files.values()))


def _normal(path: str) -> str:
    # Not abspath: a disk in memory has no working directory, relative paths start at its root.
    return posixpath.normpath("/" + path.lstrip("/"))
