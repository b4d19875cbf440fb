"""The open files of a store: as few as are in use, and never more than its limit.

Owns: files that are read by position, and the number of maps that are alive. A map holds a
descriptor for as long as any view of it does, and a reader may keep views for as long as it likes.
When there is no room for another map, the file is read by `pread` instead.

Concurrency: any thread. A file that is closed here while another thread reads it is closed once
that read is done.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from stratalog.errors import TooManyFilesError
from stratalog.fs import File
from stratalog.options import default_open_files


class OpenFiles:
    """A bounded number of open files and maps."""

    def __init__(self, files_max: int | None = None) -> None:
        self.files_max = default_open_files() if files_max is None else files_max
        """Half of them for files, half for maps."""
        self._lock = threading.Lock()
        self._files: OrderedDict[Hashable, File] = OrderedDict()
        self._maps: weakref.WeakSet[Any] = weakref.WeakSet()

    def find(self, key: Hashable, opener: Callable[..., File], *args: Any) -> File:
        """Return the file of a key, opening it if needed; drops the least recently used."""
        with self._lock:
            file = self._files.get(key)
            if file is not None:
                self._files.move_to_end(key)
                return file
        file = self.opened(opener, *args)
        self.add(key, file)
        return file

    def opened(self, opener: Callable[..., File], *args: Any) -> File:
        """Open a file; if no descriptor is left, close the files that were kept and try again."""
        try:
            return opener(*args)
        except TooManyFilesError:
            self.clear()
            return opener(*args)

    def get(self, key: Hashable) -> File | None:
        """Return the file of a key if it is open."""
        with self._lock:
            return self._files.get(key)

    def add(self, key: Hashable, file: File) -> None:
        """Keep a file open, as long as there is room."""
        with self._lock:
            self._files[key] = file
            if len(self._files) > max(self.files_max // 2, 1):
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        while len(self._files) > max(self.files_max // 2, 1):
            self._files.popitem(last=False)

    def drop(self, key: Hashable) -> None:
        """Close a file."""
        with self._lock:
            self._files.pop(key, None)

    def __len__(self) -> int:
        return len(self._files) + len(self._maps)

    def clear(self) -> None:
        """Close all files."""
        with self._lock:
            self._files.clear()

    def has_room_for_map(self) -> bool:
        """Whether one more file may be mapped."""
        return len(self._maps) < max(self.files_max // 2, 1)

    def add_map(self, view: memoryview) -> None:
        """Count a map, for as long as it is alive."""
        if not isinstance(view.obj, bytes):  # a map of nothing, or of a disk in memory
            self._maps.add(view.obj)
