"""Reading and writing whole foreign files through the file system seam."""

from __future__ import annotations

import posixpath

from stratalog.errors import FileInTheWayError, NotAStoreError
from stratalog.fs import FileSystem

STATE_BYTES_MAX = 1 << 28
"""Size of the largest state file (JSON, metadata) that is read into memory."""


def read_file(fs: FileSystem, path: str, bytes_max: int = STATE_BYTES_MAX) -> bytes | None:
    """Read a file; None if there is none. Raises for a file beyond the limit."""
    try:
        file = fs.open(path, "read")
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        if size > bytes_max:
            raise NotAStoreError(
                f"{path} has {size} bytes. A file of this kind has at most {bytes_max}: this is "
                "not a directory of the system that was named."
            )
        return file.pread(size, 0)
    finally:
        file.close()


def read_head(fs: FileSystem, path: str, count: int) -> bytes:
    """Read the first bytes of a file; fewer if it is shorter, none if it does not exist."""
    try:
        file = fs.open(path, "read")
    except FileNotFoundError:
        return b""
    try:
        return file.pread(min(count, file.size()), 0)
    finally:
        file.close()


def list_inside(fs: FileSystem, path: str) -> list[str]:
    """List the names in a directory; none if there is a file in its place, or nothing."""
    try:
        return fs.listdir(path)
    except FileInTheWayError:
        return []


def is_directory(fs: FileSystem, path: str) -> bool:
    """Tell whether a directory is there, empty or not."""
    try:
        if fs.listdir(path):
            return True
    except FileInTheWayError:
        return False
    parent, name = posixpath.split(posixpath.abspath(path))
    return name in list_inside(fs, parent)


def write_file(fs: FileSystem, path: str, data: bytes) -> None:
    """Create a file with these bytes, durably; the caller syncs its directory."""
    file = fs.open(path, "create")
    try:
        if data:
            file.pwrite([data], 0)
        file.fdatasync()
    finally:
        file.close()


def join(*parts: str) -> str:
    """Join the parts of a path."""
    return posixpath.join(*parts)
