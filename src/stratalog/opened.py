"""The stores that this process has open: to be found by others in it, and closed at its end."""

from __future__ import annotations

import atexit
import contextlib
import weakref
from typing import Protocol

from stratalog.errors import StratalogError


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


OPEN: weakref.WeakSet[Opened] = weakref.WeakSet()


def open_writer(path: str) -> Opened | None:
    """The store that this process has open to write in a directory, if it has."""
    for store in list(OPEN):
        if store.path == path and not store.is_read_only and not store.is_closed:
            return store
    return None


@atexit.register
def _close_all() -> None:
    """A program that ends without closing loses nothing that it could have kept."""
    for store in list(OPEN):
        with contextlib.suppress(StratalogError):
            store.close()
