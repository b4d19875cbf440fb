"""A file system on top of another, which keeps every change in memory.

A dry run is the repair itself on top of this: what it says it would do is what it does.

Owns: pages of 64 KiB that were written, and names that came or went.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from stratalog.fs import File, FileSystem, Lock, Mode
from stratalog.fs.os_errors import os_error

_PAGE_BYTES = 1 << 16


class _Node:
    """A file: pages that were written over one of the file system below, or over nothing."""

    def __init__(self, base: File | None) -> None:
        self.base = base
        self.base_bytes = self.size = 0 if base is None else base.size()
        self.pages: dict[int, bytearray] = {}

    def page(self, number: int) -> bytes | bytearray:
        page = self.pages.get(number)
        if page is not None:
            return page
        start = number * _PAGE_BYTES
        length = max(0, min(_PAGE_BYTES, self.base_bytes - start))
        data = b"" if self.base is None or not length else self.base.pread(length, start)
        return data.ljust(_PAGE_BYTES, b"\0")

    def read(self, length: int, position: int) -> bytes:
        end = min(position + length, self.size)
        parts = []
        while position < end:
            number, at = divmod(position, _PAGE_BYTES)
            part = self.page(number)[at : at + end - position]
            parts.append(bytes(part))
            position += len(part)
        return b"".join(parts)

    def write(self, data: bytes, position: int) -> None:
        self.size = max(self.size, position + len(data))
        while data:
            number, at = divmod(position, _PAGE_BYTES)
            part, data = data[: _PAGE_BYTES - at], data[_PAGE_BYTES - at :]
            page = self.pages.setdefault(number, bytearray(self.page(number)))
            page[at : at + len(part)] = part
            position += len(part)

    def truncate(self, size: int) -> None:
        if size < self.size:
            self.write(bytes(min(self.size, -(-size // _PAGE_BYTES) * _PAGE_BYTES) - size), size)
            self.base_bytes = min(self.base_bytes, size)
            for number in [n for n in self.pages if n * _PAGE_BYTES >= size]:
                del self.pages[number]
        self.size = size


class OverlayFile:
    """An open file of an `OverlayFs`."""

    def __init__(self, path: str, node: _Node) -> None:
        self.path = path
        self._node = node

    def pread(self, length: int, position: int) -> bytes:
        return self._node.read(length, position)

    def pwrite(self, buffers: Sequence[bytes], position: int) -> None:
        for buffer in buffers:
            self._node.write(bytes(buffer), position)
            position += len(buffer)

    def preallocate(self, position: int, length: int) -> None:
        self._node.write(bytes(length), position)

    def truncate(self, size: int) -> None:
        self._node.truncate(size)

    def fdatasync(self) -> None:
        pass

    def size(self) -> int:
        return self._node.size

    def inode(self) -> int:
        return id(self._node)

    def mmap(self) -> memoryview:
        return memoryview(self._node.read(self._node.size, 0))

    def close(self) -> None:
        pass


class OverlayFs:
    """A `FileSystem` whose changes stay in memory, unseen by others."""

    def __init__(self, base: FileSystem) -> None:
        self._base = base
        self._nodes: dict[str, _Node | None] = {}
        """Files that are no longer as below; None for those that are gone."""
        self._directories: set[str] = set()

    def open(self, path: str, mode: Mode) -> File:
        key = os.path.normpath(path)
        if mode == "read" and key not in self._nodes:
            return self._base.open(path, mode)
        node = self._find(key)
        if mode == "create":
            if node is not None:
                raise os_error(errno.EEXIST, "create", path)
            node = _Node(None)
        elif node is None:
            raise os_error(errno.ENOENT, "open", path)
        self._nodes[key] = node
        return OverlayFile(path, node)

    def _find(self, key: str) -> _Node | None:
        if key in self._nodes:
            return self._nodes[key]
        try:
            return _Node(self._base.open(key, "read"))
        except FileNotFoundError:
            return None

    def listdir(self, path: str) -> list[str]:
        key = os.path.normpath(path)
        if self._nodes.get(key) is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        names = set(self._base.listdir(path))
        for other, node in self._nodes.items():
            if os.path.dirname(other) == key:
                (names.discard if node is None else names.add)(os.path.basename(other))
        names |= {os.path.basename(one) for one in self._directories if os.path.dirname(one) == key}
        return sorted(names)

    def makedirs(self, path: str) -> None:
        self._directories.add(os.path.normpath(path))

    def rename(self, source: str, target: str) -> None:
        old, new = os.path.normpath(source), os.path.normpath(target)
        node = self._find(old)
        if node is None:
            raise os_error(errno.ENOENT, "rename or link", source)
        self._nodes[old] = None
        self._nodes[new] = node

    def link(self, source: str, target: str) -> None:
        node = self._find(os.path.normpath(source))
        if node is None:
            raise os_error(errno.ENOENT, "rename or link", source)
        self._nodes[os.path.normpath(target)] = node

    def unlink(self, path: str) -> None:
        self._nodes[os.path.normpath(path)] = None

    def links(self, path: str) -> int:
        key = os.path.normpath(path)
        if key not in self._nodes:
            return self._base.links(path)
        node = self._nodes[key]
        return 0 if node is None else sum(other is node for other in self._nodes.values())

    def sync_dir(self, path: str) -> None:
        pass

    def lock(self, path: str, holder: str) -> Lock:
        return self._base.lock(path, "")

    def boot_id(self) -> str:
        return self._base.boot_id()

    def free_bytes(self, path: str) -> int:
        return 1 << 60

    def promise(self, file: File, end: int) -> None:
        pass
