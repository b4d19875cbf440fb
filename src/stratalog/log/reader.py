"""Reading log files by position, for every thread and process but the one that writes.

Log files are read by `pread`, never mapped: they are recycled, and a mapped page would change while
a reader uses it.
"""

from __future__ import annotations

import threading

from stratalog.errors import StorageError
from stratalog.format.codec import EXPANDED_BYTES_MAX
from stratalog.format.frame import log_seed
from stratalog.format.multi import inner_seed
from stratalog.format.names import log_file_path, shard_number
from stratalog.fs import FileSystem
from stratalog.fs.open_files import OpenFiles
from stratalog.fs.os_errors import RETRIABLE, reason, storage_error


def read_failed(path: str, position: int, error: OSError) -> StorageError:
    """Build the error for a failed read of the disk."""
    if error.errno in RETRIABLE:
        return storage_error(error, "read", path)  # the disk is not at fault
    return StorageError(
        f"{path} at position {position}: reading failed: {reason(error)}. Nothing of it was "
        "returned; see to the disk, and read again."
    )


class LogReader:
    """Reads frames of any log file of the store; keeps a bounded number of files open."""

    def __init__(
        self, fs: FileSystem, identity: bytes = b"", files: OpenFiles | None = None
    ) -> None:
        self._fs = fs
        self.files = OpenFiles() if files is None else files
        self.identity = identity
        """Identity that the frames of the log are bound to; empty if none."""
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, bool], int] = {}
        self._paths: list[str] = []
        self._seeds: list[int] = []
        self._origins: list[tuple[str, int, bool]] = []
        self.expanded_bytes_max = EXPANDED_BYTES_MAX
        """Size of the largest batch that is decompressed."""

    def number(self, directory: str, first_lsn: int, *, is_inner: bool = False) -> int:
        """Return the small number that stands for the file from now on.

        Frames inside of `MULTI` frames have a separate number, because their seed differs.
        """
        path = log_file_path(directory, first_lsn)
        number = self._numbers.get((path, is_inner))
        if number is None:
            with self._lock:
                number = self._numbers.get((path, is_inner))
                if number is None:
                    # The number is registered last: the remains of an interrupted attempt are cut
                    # off.
                    number = len(self._numbers)
                    for items in (self._seeds, self._origins, self._paths):
                        del items[number:]
                    seed = log_seed(self.identity, shard_number(directory), first_lsn)
                    self._seeds.append(inner_seed(seed) if is_inner else seed)
                    self._origins.append((directory, first_lsn, is_inner))
                    self._paths.append(path)
                    self._numbers[path, is_inner] = number
        return number

    def path(self, number: int) -> str:
        """Return the path for a number."""
        return self._paths[number]

    def origin(self, number: int) -> tuple[str, int, bool]:
        """Return what a number stands for: directory, first lsn, and whether frames are inner."""
        return self._origins[number]

    def seed(self, number: int) -> int:
        """Return the seed of its header checksums."""
        return self._seeds[number]

    def pread(self, number: int, length: int, position: int) -> bytes:
        """Read bytes of a file. A file dropped while another thread reads it closes after that."""
        path = self._paths[number]
        try:
            return self.files.find(path, self._fs.open, path, "read").pread(length, position)
        except FileNotFoundError:
            raise  # the file was released: the caller knows where else to look
        except OSError as error:
            raise read_failed(path, position, error) from error

    def close(self) -> None:
        """Close all files."""
        self.files.clear()
