"""The stores that this process has open: to be found by others in it, and closed at its end."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import Protocol

from stratalog.errors import ClosedError, StratalogError


class Opened(Protocol):
    """What is asked of a store here."""

    path: str
    is_closed: bool
    is_read_only: bool

    def adopt(self) -> int:
        """Adopt what others have published."""

    def is_adopted(self, writer: str, batch: int) -> bool:
        """Whether a batch was adopted."""

    def close(self) -> None:
        """Let the directory go."""

    def forget(self) -> None:
        """Be closed without doing anything: the directory is another process's."""


OPEN: weakref.WeakSet[Opened] = weakref.WeakSet()


def open_writer(path: str) -> Opened | None:
    """The store that this process has open to write in a directory, if it has."""
    for store in list(OPEN):
        if store.path == path and not store.is_read_only and not store.is_closed:
            return store
    return None


def closed(path: str, pid: int) -> ClosedError:
    """What a store says that is closed, and was opened by that process."""
    if os.getpid() == pid:
        return ClosedError(f"{path} is closed: open it again with stratalog.open()")
    return ClosedError(
        f"{path} is written by process {pid}, of which this one is a fork: open it here with "
        "read_only=True, or open it after the fork"
    )


def _leave_to_parent() -> None:
    """In a process that was forked: stores that write are the parent's, who goes on with them.

    No lock is taken: whoever held it is not in this process.
    """
    for store in list(OPEN):
        if not store.is_read_only:
            store.forget()
            OPEN.discard(store)


os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _close_all() -> None:
    """A program that ends without closing loses nothing that it could have kept."""
    for store in list(OPEN):
        with contextlib.suppress(StratalogError):
            store.close()
