"""Keeping what a repair takes out of use.

Owns: `<store>/quarantine/`. Nothing in it is ever read by a store; remove it when you like.

Crash: a copy has its name only when it is whole and durable. A repair that is done again finds it.
"""

from __future__ import annotations

import os

from stratalog.format.frame import HEADER_BYTES
from stratalog.format.names import quarantine_path
from stratalog.fs import File, FileSystem

_PIECE_BYTES = 1 << 20


class Quarantine:
    """Copies of damaged bytes."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root

    def keep_file(self, path: str, name: str) -> str:
        """Copy a whole file; returns where to."""
        file = self._fs.open(path, "read")
        try:
            return self.keep(file, 0, file.size(), name)
        finally:
            file.close()

    def move(self, path: str, name: str) -> str:
        """Move something as it is, a directory; returns where to."""
        directory = os.path.dirname(quarantine_path(self._root, name))
        self._fs.makedirs(directory)
        number = 1
        taken = set(self._fs.listdir(directory))
        while (chosen := name if number == 1 else f"{name}-{number}") in taken:
            number += 1
        target = quarantine_path(self._root, chosen)
        self._fs.rename(path, target)
        self._fs.sync_dir(directory)
        self._fs.sync_dir(os.path.dirname(path))
        return target

    def keep(self, source: File, start: int, end: int, name: str) -> str:
        """Copy a part of a file, durably; returns where to."""
        end = min(end, source.size())
        directory = os.path.dirname(quarantine_path(self._root, name))
        self._fs.makedirs(directory)
        stem, suffix = os.path.splitext(name)
        number = 1
        while name in self._fs.listdir(directory):
            if self._has(name, source, start, end):
                return quarantine_path(self._root, name)
            number += 1
            name = f"{stem}-{number}{suffix}"
        target = quarantine_path(self._root, name)
        temp = target + ".tmp"
        self._fs.unlink(temp)
        copy = self._fs.open(temp, "create")
        try:
            for position in range(start, end, _PIECE_BYTES):
                piece = source.pread(min(_PIECE_BYTES, end - position), position)
                copy.pwrite([piece], position - start)
            copy.fdatasync()
        finally:
            copy.close()
        self._fs.rename(temp, target)
        self._fs.sync_dir(directory)
        return target

    def _has(self, name: str, source: File, start: int, end: int) -> bool:
        """Whether a copy is of these bytes: of all but the header, which a repair writes over."""
        copy = self._fs.open(quarantine_path(self._root, name), "read")
        try:
            if copy.size() != end - start:
                return False
            position = min(HEADER_BYTES, end - start)
            while position < end - start:
                piece = copy.pread(_PIECE_BYTES, position)
                if piece != source.pread(len(piece), start + position):
                    return False
                position += len(piece)
            return True
        finally:
            copy.close()
