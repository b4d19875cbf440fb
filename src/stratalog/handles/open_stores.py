"""The stores that this process has open: found by other handles, and closed when it ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import Protocol

from stratalog.errors import ClosedError, StratalogError


class Opened(Protocol):
    """A store, as far as this module uses it."""

    path: str
    is_closed: bool
    is_read_only: bool

    def adopt(self) -> int:
        """Adopt published batches."""

    def is_adopted(self, writer: str, batch: int) -> bool:
        """Return whether a batch was adopted."""

    def close(self) -> None:
        """Release the directory."""

    def forget(self) -> None:
        """Become closed without doing anything: the directory belongs to another process."""


OPEN: weakref.WeakSet[Opened] = weakref.WeakSet()


def open_writer(path: str) -> Opened | None:
    """Find the store that this process has open for writing in a directory, if any."""
    for store in list(OPEN):
        if store.path == path and not store.is_read_only and not store.is_closed:
            return store
    return None


def closed(path: str, pid: int) -> ClosedError:
    """Build the error of a closed store that the process `pid` had opened."""
    if os.getpid() == pid:
        return ClosedError(f"{path} is closed: open it again with stratalog.open()")
    return ClosedError(
        f"{path} is written by process {pid}, of which this one is a fork: open it here with "
        "read_only=True, or open it after the fork"
    )


def _leave_to_parent() -> None:
    """Leave writing stores to the parent, in a process that was just forked.

    No lock is taken: its holder may not exist in this process.
    """
    for store in list(OPEN):
        if not store.is_read_only:
            store.forget()
            OPEN.discard(store)


os.register_at_fork(after_in_child=_leave_to_parent)


@atexit.register
def _close_all() -> None:
    """Close every store, so that a program that ends without closing loses nothing."""
    for store in list(OPEN):
        with contextlib.suppress(StratalogError):
            store.close()
