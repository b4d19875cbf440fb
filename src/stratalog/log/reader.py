"""Reading log files by position, for everybody but the writer of them.

Log files are read by `pread`, never mapped: they are recycled, and a mapped page would change
under the reader's hands.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from stratalog.errors import StorageError
from stratalog.format.multi import inner_seed
from stratalog.format.names import log_file_path
from stratalog.fs import File, FileSystem


def read_failed(path: str, position: int, error: OSError) -> StorageError:
    """What whoever reads is told when the disk cannot be read."""
    return StorageError(
        f"{path} at position {position}: reading failed: {error}. Nothing of it was returned; see "
        "to the disk, and read again."
    )


class LogReader:
    """Reads frames of any log file of the store; keeps a bounded number of files open."""

    _FILES_MAX = 64

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self._numbers: dict[tuple[str, int], int] = {}
        self._paths: list[str] = []
        self._seeds: list[int] = []
        self._origins: list[tuple[str, int, bool]] = []
        self._open: OrderedDict[str, File] = OrderedDict()

    def number(self, directory: str, first_lsn: int, *, is_inner: bool = False) -> int:
        """A small number that stands for the file from now on.

        Frames inside of `MULTI` frames have one of their own, because they have another seed.
        """
        path = log_file_path(directory, first_lsn)
        seed = inner_seed(first_lsn) if is_inner else first_lsn
        number = self._numbers.get((path, seed))
        if number is None:
            with self._lock:
                number = self._numbers.get((path, seed))
                if number is None:
                    # The number is told last: what Ctrl-C left of an attempt before is cut off.
                    number = len(self._numbers)
                    for items in (self._seeds, self._origins, self._paths):
                        del items[number:]
                    self._seeds.append(seed)
                    self._origins.append((directory, first_lsn, is_inner))
                    self._paths.append(path)
                    self._numbers[path, seed] = number
        return number

    def path(self, number: int) -> str:
        """The file behind a number."""
        return self._paths[number]

    def origin(self, number: int) -> tuple[str, int, bool]:
        """What a number was asked for: directory, first lsn, and whether frames are inner ones."""
        return self._origins[number]

    def seed(self, number: int) -> int:
        """The seed of its header checksums: its first lsn, or what is made of it."""
        return self._seeds[number]

    def pread(self, number: int, length: int, position: int) -> bytes:
        """Bytes of a file. A file dropped here while another thread reads it closes after that."""
        path = self._paths[number]
        try:
            with self._lock:
                file = self._open.get(path)
                if file is None:
                    file = self._open[path] = self._fs.open(path, "read")
                    if len(self._open) > self._FILES_MAX:
                        self._open.popitem(last=False)
                else:
                    self._open.move_to_end(path)
            return file.pread(length, position)
        except FileNotFoundError:
            raise  # given up: whoever reads knows where else to look
        except OSError as error:
            raise read_failed(path, position, error) from error

    def close(self) -> None:
        """Let all files go."""
        with self._lock:
            self._open.clear()
