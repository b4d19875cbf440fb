"""A copy of a running store, at one position of its log, that is a store of its own.

The store's upkeep stands still meanwhile, so that no segment, snapshot or log file is changed or
given up; appends and reads go on. Sealed segments never change and are replaced by a rename only:
they are linked, where the file system can do that, and take no space. Everything else is copied:
an open segment up to its durable bytes, the snapshots, and the log from the oldest of them up to
the position that was captured. Log files are recycled in place, and so never linked.

Segments in the cold store are not copied: the copy refers to the same objects. From then on neither
of the two deletes those; each deletes what it moves later.

Invariants:
- The file that makes a directory a store comes last, once all others are durable and verified.
- What was acknowledged before the call is in the copy; of what comes later, a prefix per shard.

Concurrency: one backup of a store at a time, in its caller's thread.
Crash: the target is a whole store, or not a store. After an error what was copied is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from xxhash import xxh3_64

from stratalog.backup.files import opened, read_pieces
from stratalog.backup.plan import Piece, Plan, Source
from stratalog.backup.verify import Verifier
from stratalog.errors import DiskFullError, OptionError, StorageError
from stratalog.format.names import (
    log_path,
    snapshots_path,
    store_path,
    store_temp_path,
    topics_path,
)
from stratalog.format.store import STORE_BYTES, encode_store
from stratalog.fs import FileSystem
from stratalog.fs.os_errors import FULL, RETRIABLE, is_of_system, reason
from stratalog.reports import BackupReport

_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""Another device, a file system without links, or too many of one file: copied instead."""

Progress = Callable[[int, int], None]
"""Takes bytes that are done and bytes in all."""


def back_up(source: Source, target: str, progress: Progress | None = None) -> BackupReport:
    """Copy a store to a directory that does not exist or is empty."""
    target = os.path.abspath(target)
    if os.path.commonpath([target, source.root]) == source.root:
        raise OptionError(f"{target} is inside of the store {source.root}: back up to elsewhere")
    started = source.clock.monotonic()
    try:
        with source.upkeep.paused():
            _check_empty(source.fs, target)
            run = _Backup(source, target, progress)
            try:
                run.copy()
                run.publish()
            except BaseException:
                run.remove()
                raise
    except OSError as error:
        if not is_of_system(error) or error.errno in RETRIABLE - FULL:
            raise  # put into words already, or no matter of the disk
        raise _failed(source, target, error) from error
    return run.report(source.clock.monotonic() - started)


def _check_empty(fs: FileSystem, target: str) -> None:
    """Raise unless nothing would be mixed up with the copy.

    Directories of ours without a file in them are what a failed backup leaves, and are fine.
    """
    try:
        names = fs.listdir(target)
    except NotADirectoryError:
        raise OptionError(f"{target} is a file: back up to a new or empty directory") from None
    ours = {path(target) for path in (log_path, topics_path, snapshots_path)}
    for name in names:
        path = os.path.join(target, name)
        found = _first_file(fs, path) if path in ours else path
        if found is not None:
            raise OptionError(
                f"{target} is not empty (it holds {os.path.relpath(found, target)!r}): back up to "
                "a new or empty directory"
            )


def _first_file(fs: FileSystem, path: str) -> str | None:
    """Any file at or below a path."""
    try:
        names = fs.listdir(path)
    except NotADirectoryError:
        return path
    found = (_first_file(fs, os.path.join(path, name)) for name in names)
    return next((file for file in found if file is not None), None)


def _failed(source: Source, target: str, error: OSError) -> StorageError:
    if error.errno in FULL:
        return DiskFullError(
            f"backup of {source.root} to {target} failed, because the disk is full "
            f"({reason(error)}). The store goes on; {target} is not a store: free some space and "
            "back up again."
        )
    return StorageError(
        f"backup of {source.root} to {target} failed: {reason(error)}. The store goes on; {target} "
        "is not a store: see to its disk and back up again."
    )


class _Backup:
    """One backup; the store's upkeep stands still."""

    def __init__(self, source: Source, target: str, progress: Progress | None) -> None:
        self._source = source
        self._fs = source.fs
        self._target = target
        self._progress = progress
        self._plan = Plan(source)
        self._digests: dict[str, int] = {}
        self._verifier = Verifier(source, target, self._plan, self._digests)
        self._bytes_done = self._bytes_linked = 0

    def copy(self) -> None:
        """Put everything but the store file into the target, durably."""
        for path in (log_path, topics_path, snapshots_path):
            self._fs.makedirs(path(self._target))
        total = self._plan.bytes
        directories: dict[str, None] = {}
        for piece in self._plan.pieces:
            directory = os.path.dirname(os.path.join(self._target, piece.path))
            if directory not in directories:
                directories[directory] = None
                self._fs.makedirs(directory)
            if piece.sealed is None or not self._link(piece):
                self._copy(piece, total)
            self._report(0, total)
        for directory in directories:
            self._fs.sync_dir(directory)
        with contextlib.suppress(PermissionError):  # the user made the target, and its parent
            self._fs.sync_dir(os.path.dirname(self._target))

    def _link(self, piece: Piece) -> bool:
        """Give a sealed segment a second name; returns whether that is possible here."""
        target = os.path.join(self._target, piece.path)
        try:
            self._fs.link(os.path.join(self._source.root, piece.path), target)
        except OSError as error:
            if error.errno in _NO_LINKS:
                return False
            raise
        self._bytes_linked += piece.bytes
        self._bytes_done += piece.bytes
        return True

    def _copy(self, piece: Piece, total: int) -> None:
        room = self._fs.free_bytes(self._target) - self._source.reserve_bytes
        if room < piece.bytes:
            wanted = f"{piece.bytes} bytes are needed, {max(room, 0)} are there"
            raise _failed(self._source, self._target, OSError(errno.ENOSPC, wanted))
        digest = xxh3_64()
        with (
            opened(self._fs, os.path.join(self._source.root, piece.path), "read") as source,
            opened(self._fs, os.path.join(self._target, piece.path), "create") as target,
        ):
            position = 0
            for data in read_pieces(source, piece.bytes):
                target.pwrite([data], position)
                digest.update(data)
                position += len(data)
                self._report(len(data), total)
            target.fdatasync()
        self._digests[piece.path] = digest.intdigest()

    def _report(self, length: int, total: int) -> None:
        self._bytes_done += length
        if self._progress is not None:
            self._progress(self._bytes_done, total)

    def publish(self) -> None:
        """Verify the copy, and make it a store."""
        self._verifier.run()
        if self._plan.has_cold:
            self._source.upkeep.mover.claim.renew()
        temp = store_temp_path(self._target)
        with opened(self._fs, temp, "create") as file:
            file.pwrite([encode_store(self._source.store_file)], 0)
            file.fdatasync()
        self._fs.rename(temp, store_path(self._target))
        self._fs.sync_dir(self._target)

    def remove(self) -> None:
        """Take back what was made, as far as that can be done; directories stay.

        The store file goes first: what is left at any moment must not look like a store.
        """
        with contextlib.suppress(OSError):
            self._fs.unlink(store_path(self._target))
            self._fs.unlink(store_temp_path(self._target))
            self._fs.sync_dir(self._target)
            for piece in self._plan.pieces:
                self._fs.unlink(os.path.join(self._target, piece.path))

    def report(self, duration_seconds: float) -> BackupReport:
        """Report what was done."""
        total = self._plan.bytes
        return BackupReport(
            path=self._target,
            topics=self._verifier.topics,
            records=self._verifier.records,
            bytes_linked=self._bytes_linked,
            bytes_copied=total - self._bytes_linked + STORE_BYTES,
            files=len(self._plan.pieces) + 1,
            positions=dict(sorted(self._plan.positions.items())),
            cold_segments=self._plan.cold_segments,
            cold=self._source.replay.pool.cold_location if self._plan.cold_segments else "",
            duration_seconds=duration_seconds,
        )


__all__ = ["Progress", "Source", "back_up"]
