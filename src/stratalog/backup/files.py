"""Reading and writing whole files of a backup, a piece at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stratalog.errors import CorruptionError
from stratalog.fs import File, FileSystem, Mode

_PIECE_BYTES = 1 << 20


@contextlib.contextmanager
def opened(fs: FileSystem, path: str, mode: Mode) -> Iterator[File]:
    """A file that is closed again."""
    file = fs.open(path, mode)
    try:
        yield file
    finally:
        file.close()


def read_pieces(file: File, length: int) -> Iterator[bytes]:
    """The first `length` bytes of a file, a piece at a time."""
    for position in range(0, length, _PIECE_BYTES):
        data = file.pread(min(_PIECE_BYTES, length - position), position)
        yield data
        if position + len(data) < min(length, position + _PIECE_BYTES):
            raise CorruptionError(
                f"{file.path} ends at position {position + len(data)}: {length} bytes of it were "
                "durable"
            )
