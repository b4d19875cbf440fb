"""The destination of exported files: a directory, or an object store by its URL.

A file exists as a whole or not at all: in a directory it gets its name once its bytes are durable,
and object stores guarantee it themselves.

State is in `_stratalog/`: readers of Parquet ignore directories whose names begin with `_`.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from stratalog.errors import OptionError, StorageError
from stratalog.fs import Lock, PosixFileSystem

STATE = "_stratalog"


class Lake(Protocol):
    """A set of named files that are written once."""

    location: str
    """Its path or URL."""

    def put(self, name: str, data: pa.Buffer | bytes) -> None:
        """Write a file durably, replacing one of that name."""

    def get(self, name: str) -> bytes:
        """Read a whole file; raises `FileNotFoundError`."""

    def names(self, directory: str) -> list[str]:
        """List the names in a directory, sorted; empty if it does not exist."""

    def lock(self) -> Lock | None:
        """Lock out other exports; None where there is no way to."""


def open_lake(location: str) -> Lake:
    """Open the place at a path or a URL; accesses nothing yet."""
    scheme, separator, rest = location.partition("://")
    if not separator:
        return DirectoryLake(os.path.abspath(location))
    if scheme == "file":
        return DirectoryLake(os.path.abspath(rest))
    return ObjectLake(location)


class DirectoryLake:
    """A directory that all executors see under the same path."""

    def __init__(self, root: str) -> None:
        self.location = root
        self._fs = PosixFileSystem()

    def put(self, name: str, data: pa.Buffer | bytes) -> None:
        """Write beside, sync, rename, and sync the name."""
        path = os.path.join(self.location, name)
        directory, own = os.path.split(path)
        # A name that no reader of Parquet takes for a file of the table.
        temporary = os.path.join(directory, f".{own}.{os.getpid()}.tmp")
        self._fs.makedirs(directory)
        self._fs.unlink(temporary)
        file = self._fs.open(temporary, "create")
        try:
            file.pwrite([bytes(memoryview(data))], 0)
            file.fdatasync()
        finally:
            file.close()
        self._fs.rename(temporary, path)
        self._fs.sync_dir(directory)

    def get(self, name: str) -> bytes:
        """Read a whole file."""
        file = self._fs.open(os.path.join(self.location, name), "read")
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def names(self, directory: str) -> list[str]:
        """List names, without files that are being written."""
        found = self._fs.listdir(os.path.join(self.location, directory))
        return [name for name in found if not name.startswith(".")]

    def lock(self) -> Lock | None:
        """Lock the directory; raises `LockedError` while another export on this machine has it."""
        self._fs.makedirs(os.path.join(self.location, STATE))
        return self._fs.lock(os.path.join(self.location, STATE, "lock"), f"export, {os.getpid()}")


class ObjectLake:
    """An object store, through Arrow's own file systems: s3://, gs://, abfs://, hdfs://."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        self._opened: tuple[Any, str] | None = None

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            try:
                self._opened = pafs.FileSystem.from_uri(self.location)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise OptionError(f"cannot export to {self.location}: {error}") from error
        return self._opened

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectLake, (self.location,)

    def put(self, name: str, data: pa.Buffer | bytes) -> None:
        """Write in one request or a multipart upload: it exists once that is complete."""
        fs, root = self._open()
        try:
            with fs.open_output_stream(f"{root}/{name}") as stream:
                stream.write(data)
        except OSError as error:
            raise StorageError(f"{self.location}/{name} could not be written: {error}") from error

    def get(self, name: str) -> bytes:
        """Read a whole object."""
        fs, root = self._open()
        with fs.open_input_stream(f"{root}/{name}") as stream:
            data: bytes = stream.read()
            return data

    def names(self, directory: str) -> list[str]:
        """List objects, not apparent directories."""
        fs, root = self._open()
        chosen = pafs.FileSelector(f"{root}/{directory}", allow_not_found=True)
        return sorted(info.base_name for info in fs.get_file_info(chosen) if info.is_file)

    def lock(self) -> Lock | None:
        """Return None: object stores have no locks."""
        return None
