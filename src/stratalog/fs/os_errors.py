"""Errors of the operating system as errors of ours: typed, with the path and with advice.

Every implementation of the `fs` seam raises what `storage_error` makes of an `OSError`, so that no
other `OSError` can reach a caller. Such an error has an `errno`; one that a caller of the seam has
reworded has none.
"""

from __future__ import annotations

import errno
import os

from stratalog.errors import (
    AccessDeniedError,
    DirectoryInTheWayError,
    DiskFullError,
    FileExistsAlreadyError,
    FileInTheWayError,
    FileMissingError,
    OutOfMemoryError,
    StorageError,
    TooManyFilesError,
)

_KINDS: dict[int, tuple[type[StorageError], str]] = {
    errno.ENOSPC: (DiskFullError, "Free some space, and try again."),
    errno.EDQUOT: (DiskFullError, "Free some space or raise the quota, and try again."),
    errno.EFBIG: (
        DiskFullError,
        "Raise the largest size of files that this process may write (`ulimit -f`), or use a file "
        "system that takes larger ones, and try again.",
    ),
    errno.EMFILE: (
        TooManyFilesError,
        "This process has as many files open as it may: close some, raise the limit "
        "(`ulimit -n`), or open the store with a smaller open_files_max. Then try again.",
    ),
    errno.ENFILE: (
        TooManyFilesError,
        "The machine has as many files open as it may: close some or raise the limit "
        "(`fs.file-max`). Then try again.",
    ),
    errno.ENOMEM: (
        OutOfMemoryError,
        "Free some memory, or raise the limit of this process (`ulimit -v`). Then try again.",
    ),
    errno.ENOENT: (FileMissingError, "Check the path, and what else removes files there."),
    errno.EEXIST: (FileExistsAlreadyError, "Check the path, and what else makes files there."),
    errno.ENOTDIR: (
        FileInTheWayError,
        "There is a file where a directory should be: check the path, or move that file away.",
    ),
    errno.EISDIR: (
        DirectoryInTheWayError,
        "There is a directory where a file should be: check the path, or move it away.",
    ),
    errno.EACCES: (AccessDeniedError, "Check the owner and the permissions of the path."),
    errno.EPERM: (AccessDeniedError, "Check the owner and the permissions of the path."),
    errno.EROFS: (
        StorageError,
        "The file system is mounted read-only: mount it for writing, or read the store with "
        "read_only=True.",
    ),
    errno.ENAMETOOLONG: (StorageError, "Use a shorter path."),
    errno.ELOOP: (StorageError, "Symbolic links of the path lead to themselves: check them."),
    errno.EILSEQ: (StorageError, "Use a path that this file system can name."),
    errno.EIO: (StorageError, "Check the disk; `stratalog verify` says what can be read."),
}
_OTHER = (StorageError, "Check the disk and its file system.")

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Codes of a disk that is full."""
RETRIABLE = FULL | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Codes of calls that may succeed when repeated: nothing is wrong with the disk."""


def storage_error(error: OSError, operation: str, path: str) -> StorageError:
    """Turn an error of the operating system into ours; an error of ours stays as it is."""
    if isinstance(error, StorageError):
        return error
    kind, advice = _KINDS.get(error.errno or 0, _OTHER)
    why = reason(error)
    made = kind(f"{path}: cannot {operation}: {why}. {advice}")
    made.errno, made.strerror, made.filename = error.errno or errno.EIO, why, path
    return made


def os_error(code: int, operation: str, path: str) -> StorageError:
    """Build an error as the operating system would have raised it."""
    return storage_error(OSError(code, os.strerror(code)), operation, path)


def out_of_memory(operation: str, path: str) -> StorageError:
    """Build the error for lack of memory that the interpreter noticed, not the operating system."""
    return os_error(errno.ENOMEM, operation, path)


def reason(error: OSError) -> str:
    """Say why something failed, in the system's few words: for messages that name the path."""
    return error.strerror or str(error)


def is_of_system(error: BaseException) -> bool:
    """Whether an error comes from the file system itself, not yet reworded by a caller."""
    return isinstance(error, OSError) and error.errno is not None
