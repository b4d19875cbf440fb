"""A store in an object store, read only: a copy that was put there, or a directory kept there.

URLs are those of cold stores: see `stratalog.fs.objects`. A writer needs to append and to rename,
and an object store can do neither; so every call that changes anything is refused.

Concurrency: any thread. A process that was forked after the first call cannot use object stores.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Literal, NoReturn
from urllib.parse import urlsplit, urlunsplit

import obstore

from stratalog.errors import ReadOnlyError, StorageError, StratalogError
from stratalog.fs import File, Lock, NotMappedError
from stratalog.fs.objects import Bucket
from stratalog.fs.os_errors import os_error


class BucketFile:
    """An object, read in ranges."""

    def __init__(self, fs: BucketFileSystem, path: str, size: int) -> None:
        self._fs = fs
        self._size = size
        self.path = path

    def pread(self, length: int, position: int) -> bytes:
        length = min(length, self._size - position)
        return self._fs.fetch(self.path, position, length) if length > 0 else b""

    def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
        self._fs.refuse("write")

    def preallocate(self, position: int, length: int) -> None:
        self._fs.refuse("write")

    def truncate(self, size: int) -> None:
        self._fs.refuse("cut")

    def fdatasync(self) -> None:
        self._fs.refuse("sync")

    def size(self) -> int:
        return self._size

    def inode(self) -> int:
        return 0  # nothing is written here, so no claim asks for it

    def mmap(self) -> memoryview:
        raise NotMappedError(f"{self.path} is in an object store")

    def close(self) -> None:
        pass


class BucketFileSystem(Bucket):
    """The objects under a prefix, as files."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        url = urlsplit(self.location)
        self.root = urlunsplit((url.scheme, url.netloc, url.path.rstrip("/"), "", ""))
        """The prefix of all paths: the URL without its options."""

    def open(self, path: str, mode: Literal["read", "write", "create"]) -> File:
        if mode != "read":
            self.refuse("write")
        name = self._name(path)
        with self._attempt("read", name):
            return BucketFile(self, path, obstore.head(self._store, name)["size"])

    def fetch(self, path: str, position: int, length: int) -> bytes:
        """Read a range of an object, all of it."""
        name = self._name(path)
        with self._attempt("read", name):
            data = bytes(obstore.get_range(self._store, name, start=position, length=length))
            if len(data) != length:
                raise OSError(f"{len(data)} bytes arrived of {length}")
            return data

    def listdir(self, path: str) -> list[str]:
        name = self._name(path)
        with self._attempt("list", name or "/"):
            found = obstore.list_with_delimiter(self._store, f"{name}/" if name else None)
            paths = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        return sorted(one.rstrip("/").rpartition("/")[2] for one in paths)

    def makedirs(self, path: str) -> None:
        self.refuse("make a directory")

    def rename(self, source: str, target: str) -> None:
        self.refuse("rename")

    def link(self, source: str, target: str) -> None:
        self.refuse("link")

    def unlink(self, path: str) -> None:
        self.refuse("delete")

    def links(self, path: str) -> int:
        self.refuse("count links")

    def sync_dir(self, path: str) -> None:
        self.refuse("sync")

    def lock(self, path: str, holder: str) -> Lock:
        self.refuse("lock")

    def boot_id(self) -> str:
        return ""

    def free_bytes(self, path: str) -> int:
        return 0

    def promise(self, file: File, end: int) -> None:
        pass

    def refuse(self, what: str) -> NoReturn:
        """Refuse to change anything."""
        raise ReadOnlyError(
            f"cannot {what} in {self.root}: a store in an object store can be read, not written. "
            "Write to a directory, and copy a backup of it there."
        )

    def _name(self, path: str) -> str:
        return path.removeprefix(self.root).strip("/")

    def _failed(self, what: str, name: str, why: str) -> StratalogError:
        return StorageError(
            f"cannot {what} {name!r} in {self.root}: {why}. Check the address, the credentials "
            "and the network, and try again"
        )

    def _missing(self, name: str) -> Exception:
        return os_error(errno.ENOENT, "read", f"{self.root}/{name}")
