"""The files of one shard: written at one place, rotated, zero-filled ahead, recycled.

Owns: `log/shard-NN/`; the newest file is active, all others are complete and synced.

Invariants:
- A frame is never split over two files. The next file's name is the lsn where this one ends.
- A file is synced before its successor exists.
- Bytes below `synced` are durable; bytes after `position` are zeros, or old content of a recycled
file, which the seed of the header checksum makes unreadable.

Concurrency: the holder of the shard's commit lock writes; any thread reads through `LogReader`.
Crash: between any two steps the directory holds the complete files and one active one, whose
unsynced end the scanner checks.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from time import perf_counter_ns
from typing import NamedTuple

from stratalog.errors import (
    DiskFullError,
    FencedError,
    OutOfMemoryError,
    StorageError,
    SyncFailedError,
    TooManyFilesError,
)
from stratalog.format.frame import ALIGNMENT, HEADER_BYTES, encode_header
from stratalog.format.names import free_file_path, log_file_path, parse_numbered
from stratalog.fs import File, FileSystem
from stratalog.fs.os_errors import FULL, RETRIABLE, reason
from stratalog.log.commit_group import Entry
from stratalog.log.joint import JointFrame
from stratalog.log.reader import LogReader
from stratalog.metrics import Histogram
from stratalog.options import StoreOptions

# Two spare files are enough: a rotation takes one, and a release gives one or two back.
_SPARE_FILES_MAX = 2

# How far ahead a file is filled in the background, and how much of that at a time: an append that
# needs the place being filled waits for one step.
_AHEAD_BYTES_MIN = 4 << 20
_AHEAD_BYTES_MAX = 32 << 20
_FILL_BYTES = 1 << 20

_END_MARK = bytes(ALIGNMENT)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class Mark(NamedTuple):
    """A place that the log had reached."""

    file: File
    first_lsn: int
    position: int


class LogFiles:
    """The files that frames of one shard are written to."""

    def __init__(
        self,
        fs: FileSystem,
        reader: LogReader,
        directory: str,
        options: StoreOptions,
        first_lsn: int,
        position: int,
        wake: Callable[[], None],
    ) -> None:
        self._wake = wake
        self._fs = fs
        self._reader = reader
        self._options = options
        self.bytes_max = options.log_file_bytes
        self.directory = directory
        self.first_lsn = first_lsn
        self.position = position
        self.synced = position
        self.syncs = 0
        self.times = Histogram()
        """How long writes took, with their syncs."""
        self.is_broken = False
        """Whether a write or a sync failed for good: neither is tried again. Set before any call,
        because Ctrl-C may replace the error."""
        self.is_rotating = False
        """Whether the next file has its name and could not be opened yet: the active one accepts
        nothing more, and the next write tries again."""
        self._recycled = False
        self._fill_lock = threading.Lock()
        self._wake_below = 0
        spare = (parse_numbered(name, ".free") for name in fs.listdir(directory))
        self._spare = [lsn for lsn in spare if lsn is not None]
        if self._spare:  # left by a process that was killed
            fs.sync_dir(directory)
            self._spare = self._mark_empty(self._spare)
        if first_lsn < 0:
            fs.makedirs(directory)
            self._begin(0)
        else:
            self.file = fs.open(log_file_path(directory, first_lsn), "write")
            self._mark_file = fs.open(self.file.path, "write")
            self._number(first_lsn)
            self._prepared = self.file.size()
        self._begin_lsn = self.lsn

    def recover(self, torn: bool) -> None:
        """Cut a torn tail off, and sync the frames that recovery found.

        After a killed process the newest frames may be in the page cache alone.
        """
        if torn:
            self.file.truncate(self.position)
            self._prepared = self.position
        self.file.fdatasync()
        self._fs.sync_dir(self.directory)
        self.syncs += 1

    @property
    def bytes_written(self) -> int:
        """Bytes of frames since the store was opened."""
        return self.lsn - self._begin_lsn

    @property
    def lsn(self) -> int:
        """Where the next frame goes."""
        return self.first_lsn + self.position

    def fit(self, entries: Sequence[Entry], start: int) -> int:
        """Count how many entries from `start` on fit into the active file, at least one.

        Rotates if not all of them fit and the next file has room for all: a group in one file is
        there as a whole or not at all, whatever fails. Also rotates if the first does not fit.
        """
        if self.is_rotating:
            self.rotate()
        lengths = [HEADER_BYTES + len(entry.body) for entry in entries[start:]]
        whole = self.bytes_max
        room = whole - self.position
        if sum(lengths) <= room:
            return len(lengths)
        ends = list(accumulate(lengths))
        if self.position and (ends[0] > room or room < ends[-1] <= whole):
            self.rotate()
            room = whole
        return max(bisect_right(ends, room), 1)

    def write(self, entries: Sequence[Entry], *, sync: bool) -> int:
        """Write frames after the last, all of them or raise; returns where they end.

        They are in the log once the caller moves `position` there (and `synced`, if requested):
        until then the call is idempotent.
        """
        begin = perf_counter_ns()
        self._check()
        buffers: list[bytes] = []
        position, synced, seed = self.position, self.synced, self._seed
        for entry in entries:
            if isinstance(entry, JointFrame):
                entry.assemble(seed)
            body = entry.body
            header = encode_header(
                entry.type, entry.flags, len(body), entry.count, entry.topic_id,
                entry.base_offset, entry.base_timestamp, entry.max_timestamp,
                entry.body_checksum, seed, (position - synced) // ALIGNMENT,
            )  # fmt: skip
            buffers += (header, body)
            position += HEADER_BYTES + len(body)
        if self._recycled:
            buffers.append(_END_MARK)
        self._make_room(position, sync=sync)
        try:
            self.file.pwrite(buffers, self.position)
        except OSError as error:
            self.is_broken = error.errno not in RETRIABLE
            raise self._failed("write", error) from error
        if sync:
            self._sync_file()
            self._fs.promise(self.file, position)
        self.times.record(perf_counter_ns() - begin)
        self.times.fold_if_full()
        return position

    def sync(self) -> None:
        """Make everything written so far durable."""
        if self.synced != self.position:
            self._sync_file()
            self.synced = self.position
            self._fs.promise(self.file, self.position)

    def mark(self) -> Mark:
        """Mark the end of everything written so far, to sync it while others go on writing.

        The mark has its own open file: the system reports an error once to each open file, and an
        append that syncs at the same moment must get it as well.
        """
        return Mark(self._mark_file, self.first_lsn, self.position)

    def note_synced(self, mark: Mark) -> None:
        """Record that a mark's file was synced."""
        self.syncs += 1
        if mark.first_lsn == self.first_lsn:
            self.synced = max(self.synced, mark.position)

    def release(self, lsn: int, *, recycles: bool = True) -> list[int]:
        """Release complete files whose every byte is below `lsn`; returns their first lsns.

        Recycled files keep their old content until it is overwritten.
        """
        done = complete_below(self._fs, self.directory, lsn)
        freed: list[int] = []
        for first in done:
            path = log_file_path(self.directory, first)
            if recycles and len(self._spare) + len(freed) < _SPARE_FILES_MAX:
                self._sync_zeros(path)
                self._fs.rename(path, free_file_path(self.directory, first))
                freed.append(first)
            else:
                self._fs.unlink(path)
        if done:
            self._fs.sync_dir(self.directory)
        self._spare += self._mark_empty(freed)
        return done

    def _sync_zeros(self, path: str) -> None:
        """Sync a complete file: zeros may have been written after its last frame was synced.

        `fill_ahead` runs during a rotation, and its own sync then goes to the next file.
        """
        file = self._fs.open(path, "write")
        try:
            file.fdatasync()
        finally:
            file.close()

    def disown_spares(self) -> None:
        """Stop recycling spare files; the commit lock is held."""
        self._spare = []

    def _mark_empty(self, spare: list[int]) -> list[int]:
        """Begin spare files, whose names are durable, with an end mark; returns the usable ones.

        Their old content is then not taken for a torn tail. Under their old names, which a crash
        could bring back, the mark would count as damage.
        """
        marked = []
        for first in spare:
            path = free_file_path(self.directory, first)
            file = self._fs.open(path, "write")
            try:
                file.pwrite([_END_MARK], 0)
                file.fdatasync()
                marked.append(first)
            except OSError:
                self._fs.unlink(path)  # it cannot be used
            finally:
                file.close()
        return marked

    def close(self, *, trim: bool) -> None:
        """Close the active file; the caller has synced it.

        `trim` returns zero-filled space and spare files to the disk: a closed store takes only what
        it holds.
        """
        if trim:
            with contextlib.suppress(OSError, FencedError):  # zeros after the end are harmless
                self._trim()
        self.file.close()
        self._mark_file.close()

    def _trim(self) -> None:
        if self._prepared > self.position:
            self.file.truncate(self.position)
        while self._spare:
            self._fs.unlink(free_file_path(self.directory, self._spare.pop()))

    def rotate(self) -> None:
        """Continue in a new file, once this one is durable."""
        self.sync()
        self._begin(self.lsn)

    def _begin(self, first_lsn: int) -> None:
        path = log_file_path(self.directory, first_lsn)
        file: File | None = None
        try:
            if self._spare:
                self._fs.rename(free_file_path(self.directory, self._spare.pop()), path)
            else:
                file = self._fs.open(path, "create")
        except FileExistsError:
            pass  # left by an interrupted attempt
        except OSError as error:
            raise self._failed("new log file", error) from error
        # The file exists, and its name says that the one before ends here. Writing to that one
        # again would contradict the name, so nothing is written until this is done.
        try:
            file = file or self._fs.open(path, "write")
            mark_file = self._fs.open(path, "write")
            prepared = file.size()
        except OSError as error:
            self.is_rotating = error.errno in RETRIABLE
            self.is_broken = not self.is_rotating
            raise self._failed("new log file", error) from error
        try:
            self._fs.sync_dir(self.directory)
        except OSError as error:
            self.is_rotating = error.errno in _NO_DESCRIPTOR  # then nothing was synced at all
            self.is_broken = not self.is_rotating
            failed = self._failed if self.is_rotating else self._broken
            raise failed("new log file", error) from error
        with self._fill_lock:
            self.is_rotating = False
            self.file, self._mark_file = file, mark_file
            self._number(first_lsn)
            self.first_lsn = first_lsn
            self.position = self.synced = 0
            self._recycled = prepared > 0
            self._prepared = prepared

    def _number(self, first_lsn: int) -> None:
        self.number = self._reader.number(self.directory, first_lsn)
        self._seed = self._reader.seed(self.number)
        self.inner_number = self._reader.number(self.directory, first_lsn, is_inner=True)

    def fill_ahead(self) -> bool:
        """Zero-fill a part of the space ahead; returns whether that has to be synced.

        Called in the background with no lock held: an append then finds pages in memory and
        allocated blocks, and pays for neither. The larger a file has grown, the further ahead it
        is filled, so that a small store stays small.
        """
        target = self.position + min(max(self.position, _AHEAD_BYTES_MIN), _AHEAD_BYTES_MAX)
        target = min(target, self.bytes_max)
        self._wake_below = (target - self.position) // 2
        filled = False
        try:
            while self._fill_step(target):
                filled = True
        except OSError:
            return filled  # raised to the append that needs the space
        return filled

    def _fill_step(self, target: int) -> bool:
        """Zero-fill a step towards `target`; returns whether there was one to take."""
        if self._prepared >= target or self.is_rotating:
            return False
        with self._fill_lock:
            step = min(_FILL_BYTES, target - self._prepared)
            if not 0 < step <= self._room():
                return False
            self.file.preallocate(self._prepared, step)
            self._prepared += step
        return True

    def _make_room(self, end: int, *, sync: bool) -> None:
        """Ensure that `end` bytes are allocated, so that a sync need not allocate them.

        Bytes at or after `_prepared` are only written or claimed under the fill lock: zeros never
        overtake data.
        """
        if self._prepared - end < self._wake_below:
            self._wake()
        if end <= self._prepared:
            return
        with self._fill_lock:
            room = self._room()
            if room < end - self._prepared:
                raise DiskFullError(
                    f"{self.directory}: no space for {end - self.position} bytes: "
                    f"disk_reserve_bytes={self._options.disk_reserve_bytes} are to stay free on "
                    f"this disk, {max(room, 0)} more than that are. Nothing of this append was "
                    "kept; free some space and append again."
                )
            if not sync:
                self._prepared = max(self._prepared, end)
                return
            target = min(end + self._options.log_chunk_bytes, self.bytes_max)
            target = max(end, min(target, self._prepared + room))
            try:
                self.file.preallocate(self._prepared, target - self._prepared)
            except OSError as error:
                self.is_broken = error.errno not in RETRIABLE
                raise self._failed("write", error) from error
            self._prepared = target
        self._sync_file()

    def _room(self) -> int:
        """Return how many bytes may still be taken from the disk."""
        try:
            free = self._fs.free_bytes(self.directory)
        except OSError as error:
            raise self._broken("look for free space", error) from error
        return free - self._options.disk_reserve_bytes

    def _check(self) -> None:
        """Raise if an earlier failure could not be reported."""
        if self.is_broken:
            raise SyncFailedError(
                f"{self.directory}: a write or a sync failed before. Nothing of this append was "
                "acknowledged; the shard takes no more until the store is reopened."
            )

    def _sync_file(self) -> None:
        self._check()
        self.syncs += 1
        try:
            self.file.fdatasync()
        except OSError as error:
            self.is_broken = True
            raise sync_failed(self.file, error) from error

    def _failed(self, what: str, error: OSError) -> StorageError:
        if error.errno not in RETRIABLE:
            return self._broken(what, error)
        if error.errno not in FULL:
            kind = TooManyFilesError if error.errno in _NO_DESCRIPTOR else OutOfMemoryError
            return kind(
                f"{self.directory}: {what} failed: {reason(error)}. Nothing of this append was "
                "kept; close files, free memory or raise the limit, and append again."
            )
        return DiskFullError(
            f"{self.directory}: the disk is full ({reason(error)}). Nothing of this append was "
            "kept; free some space and append again."
        )

    def _broken(self, what: str, error: OSError) -> SyncFailedError:
        return SyncFailedError(
            f"{self.directory}: {what} failed: {reason(error)}. Nothing of this append was "
            "acknowledged; the shard takes no more until the store is reopened."
        )

    def cut(self) -> None:
        """Remove what a failed write left after `position`, durably; raises `OSError`.

        Whole frames of the failed group may be there: if they stayed, a later frame could end
        exactly where one of them begins, and recovery would bring it back.
        """
        with self._fill_lock:
            self.file.truncate(self.position)
            self.file.fdatasync()
            self._prepared = self.synced = self.position
            self._recycled = False


def complete_below(fs: FileSystem, directory: str, lsn: int) -> list[int]:
    """List the first lsns of files whose every byte is below `lsn`, except the newest file."""
    names = fs.listdir(directory)
    lsns = sorted(found for name in names if (found := parse_numbered(name)) is not None)
    return [first for first, end in pairwise(lsns) if end <= lsn]


def sync_failed(file: File, error: OSError) -> SyncFailedError:
    """Build the error for a failed sync."""
    return SyncFailedError(
        f"{file.path}: sync failed: {reason(error)}. What it covered was not acknowledged as "
        "durable; the shard takes no more until the store is reopened."
    )
