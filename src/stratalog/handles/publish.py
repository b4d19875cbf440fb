"""Publishing from another process: the step of a job after it has staged its segments.

Puts the manifest where the store finds it, and sees that it is adopted: by the writer that has the
store open, in this process or in another, or by this process if no writer has it.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Self

from stratalog.errors import LockedError, NotAStoreError, RejectedError
from stratalog.format.manifest import Manifest
from stratalog.format.names import incoming_path, manifest_key, store_path
from stratalog.fs import FileSystem, PosixFileSystem
from stratalog.handles.open_stores import open_writer
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.segments import staging as stage
from stratalog.state.identity import read_store_file
from stratalog.upkeep.adopt import read_file
from stratalog.view import View

_POLL_SECONDS = 0.05


class Publisher:
    """A store to publish to, read without a lock."""

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
        """Return whether a batch, or a later one of the same writer, was adopted."""
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
        """Get a published batch adopted; False if it was not adopted within `timeout` seconds.

        This process adopts it if it has the store open, or if no writer has; otherwise the writer
        adopts it by itself. Raises `RejectedError` if the batch cannot be adopted.
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
        # The process that has the lock adopts.
        with (
            contextlib.suppress(LockedError),
            Store(self.root, StoreOptions.build({}, {})) as own,
        ):
            own.adopt()


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise unless a directory is a store, is empty, or can be created; changes nothing."""
    root, fs = os.path.abspath(os.fspath(path)), PosixFileSystem()
    names = fs.listdir(root)
    if os.path.basename(store_path(root)) in names:
        read_store_file(fs, root)
    elif names:
        raise NotAStoreError(f"{root} is not a Stratalog store, and it is not empty: give another")


def ensure_store(path: str | os.PathLike[str]) -> None:
    """Make a new or empty directory a store; raises if it holds something else.

    An existing store stays unchanged, even if another process has it open.
    """
    root, fs = os.path.abspath(os.fspath(path)), PosixFileSystem()
    if os.path.basename(store_path(root)) in fs.listdir(root):
        read_store_file(fs, root)
        return
    with contextlib.suppress(LockedError):  # another process is creating it
        Store(root, StoreOptions.build({}, {})).close()


def is_adopted(path: str | os.PathLike[str], writer: str, batch: int) -> bool:
    """Return whether a store has adopted a batch or a later one of its writer; takes no lock."""
    with Publisher(path) as publisher:
        return publisher.is_adopted(writer, batch)


def publish(path: str | os.PathLike[str], manifest: Manifest) -> bool:
    """Publish a manifest; False if that batch is published or adopted already."""
    with Publisher(path) as publisher:
        return publisher.publish(manifest)


def adopt_now(path: str | os.PathLike[str], writer: str, batch: int, timeout: float = 30.0) -> bool:
    """Get a published batch adopted: see `Publisher.adopt_now`."""
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
