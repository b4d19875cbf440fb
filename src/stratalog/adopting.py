"""Publishing from outside: what a job in another process does once its segments are staged.

Puts the manifest where the store finds it, and sees that it is adopted: by the writer that has the
store open, in this process or in another, or by itself if there is none.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Self

from stratalog.errors import LockedError, RejectedError
from stratalog.format.manifest import Manifest
from stratalog.format.names import incoming_path, manifest_key, store_path
from stratalog.fs import FileSystem, PosixFileSystem
from stratalog.opened import open_writer
from stratalog.options import StoreOptions
from stratalog.projections.adopt import read_file
from stratalog.projections.identity import read_store_file
from stratalog.segments import stage
from stratalog.store import Store
from stratalog.view import View

_POLL_SECONDS = 0.05


class Publisher:
    """One store to publish to, looked at without a lock."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(path))
        self._fs = PosixFileSystem()
        self._view: View | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._view is not None:
            self._view.replay.reader.close()
            self._view.replay.pool.close()

    def is_adopted(self, writer: str, batch: int) -> bool:
        """Whether a batch was adopted, or a later one of the same writer."""
        store = open_writer(self.root)
        if store is not None:
            return store.is_adopted(writer, batch)
        if self._view is None:
            self._view = View(self._fs, self.root)
        else:
            self._view.refresh()
        return self._view.replay.writers.is_adopted(writer, batch)

    def publish(self, manifest: Manifest) -> bool:
        """Publish a manifest; False if that batch is published or adopted already."""
        if self.is_adopted(manifest.writer, manifest.batch):
            return False
        return stage.publish(self._fs, self.root, manifest)

    def adopt_now(self, writer: str, batch: int, timeout: float = 30.0) -> bool:
        """Have a batch adopted that was published; False if it was not within so many seconds.

        At once where no writer has the store open, or one in this process has; else the writer
        does so by itself. Raises `RejectedError` if the batch cannot be adopted.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._adopt()
            if self.is_adopted(writer, batch):
                return True
            _check_rejected(self._fs, self.root, writer, batch)
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)

    def _adopt(self) -> None:
        store = open_writer(self.root)
        if store is not None:
            store.adopt()
            return
        # Whoever has the lock adopts.
        with (
            contextlib.suppress(LockedError),
            Store(self.root, StoreOptions.build({}, {})) as own,
        ):
            own.adopt()


def ensure_store(path: str | os.PathLike[str]) -> None:
    """Make a directory that does not exist, or is empty, a store; raises if it is something else.

    A store stays as it is, whoever has it open.
    """
    root, fs = os.path.abspath(os.fspath(path)), PosixFileSystem()
    if os.path.basename(store_path(root)) in fs.listdir(root):
        read_store_file(fs, root)
        return
    with contextlib.suppress(LockedError):  # somebody else is making it one
        Store(root, StoreOptions.build({}, {})).close()


def is_adopted(path: str | os.PathLike[str], writer: str, batch: int) -> bool:
    """Whether a store has adopted a batch, or a later one of the same writer; takes no lock."""
    with Publisher(path) as publisher:
        return publisher.is_adopted(writer, batch)


def publish(path: str | os.PathLike[str], manifest: Manifest) -> bool:
    """Publish a manifest; False if that batch is published or adopted already."""
    with Publisher(path) as publisher:
        return publisher.publish(manifest)


def adopt_now(path: str | os.PathLike[str], writer: str, batch: int, timeout: float = 30.0) -> bool:
    """Have a batch adopted that was published: see `Publisher.adopt_now`."""
    with Publisher(path) as publisher:
        return publisher.adopt_now(writer, batch, timeout)


def _check_rejected(fs: FileSystem, root: str, writer: str, batch: int) -> None:
    path = incoming_path(root, f"{manifest_key(writer, batch)}.rejected")
    try:
        reason = read_file(fs, path).partition(b"\n")[0].decode(errors="replace")
    except FileNotFoundError:
        return
    raise RejectedError(
        f"batch {batch} of {writer!r} was not adopted by {root}: {reason}. Nothing of it is in the "
        f"store; its manifest is kept as {path}. Write the batch again."
    )
