"""Reading log files by position, for everybody but the writer of them.

Log files are read by `pread`, never mapped: they are recycled, and a mapped page would change
under the reader's hands.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from stratalog.format.names import log_file_path
from stratalog.fs import File, FileSystem


class LogReader:
    """Reads frames of any log file of the store; keeps a bounded number of files open."""

    _FILES_MAX = 64

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._paths: list[str] = []
        self._seeds: list[int] = []
        self._open: OrderedDict[int, File] = OrderedDict()

    def number(self, directory: str, first_lsn: int) -> int:
        """A small number that stands for the file from now on."""
        path = log_file_path(directory, first_lsn)
        number = self._numbers.get(path)
        if number is None:
            with self._lock:
                number = self._numbers.setdefault(path, len(self._paths))
                if number == len(self._paths):
                    self._seeds.append(first_lsn)
                    self._paths.append(path)
        return number

    def path(self, number: int) -> str:
        """The file behind a number."""
        return self._paths[number]

    def seed(self, number: int) -> int:
        """The seed of its header checksums: its first lsn."""
        return self._seeds[number]

    def pread(self, number: int, length: int, position: int) -> bytes:
        """Bytes of a file. A file dropped here while another thread reads it closes after that."""
        with self._lock:
            file = self._open.get(number)
            if file is None:
                file = self._open[number] = self._fs.open(self._paths[number], "read")
                if len(self._open) > self._FILES_MAX:
                    self._open.popitem(last=False)
            else:
                self._open.move_to_end(number)
        return file.pread(length, position)

    def close(self) -> None:
        """Let all files go."""
        with self._lock:
            self._open.clear()
