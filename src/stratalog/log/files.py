"""The files of one shard: written at one place, rotated, zero-filled ahead, recycled.

Owns: `log/shard-NN/`; the newest file is active, all others are complete and synced.

Invariants:
- A frame is never split over two files. The next file's name is the lsn where this one ends.
- A file is synced before its successor exists.
- Bytes below `synced` are durable; bytes behind `position` are zeros, or a recycled file's past,
  which the seed of the header checksum makes unreadable.

Concurrency: the holder of the shard's commit lock writes; anybody reads through `LogReader`.
Crash: between any two steps the directory holds the complete files and one active one, whose
unsynced end the scanner judges.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from stratalog.errors import DiskFullError, SyncFailedError
from stratalog.format.frame import ALIGNMENT, HEADER_BYTES, encode_header
from stratalog.format.names import free_file_path, log_file_path, parse_numbered
from stratalog.fs import File, FileSystem
from stratalog.log.group import Entry
from stratalog.log.joint import Joint
from stratalog.log.reader import LogReader
from stratalog.options import StoreOptions

# Two spare files are enough: one is taken per rotation, and a release gives one or two back.
_SPARE_FILES_MAX = 2

# How far ahead a file is filled in the background, and how much of that at a time: an append that
# needs the very place being filled waits for one step.
_AHEAD_BYTES_MIN = 4 << 20
_AHEAD_BYTES_MAX = 32 << 20
_FILL_BYTES = 1 << 20

_END_MARK = bytes(ALIGNMENT)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Mark(NamedTuple):
    """A place in the log that was reached."""

    file: File
    first_lsn: int
    position: int


class LogFiles:
    """Where frames of one shard go."""

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
        self.is_broken = False
        """Whether a write or a sync failed for good: neither is tried again. Set before anything is
        called, because Ctrl-C may come in the place of the error."""
        self._recycled = False
        self._fill_lock = threading.Lock()
        self._wake_below = 0
        spare = (parse_numbered(name, ".free") for name in fs.listdir(directory))
        self._spare = [lsn for lsn in spare if lsn is not None]
        if self._spare:  # of a process that was killed
            fs.sync_dir(directory)
            self._spare = self._mark_empty(self._spare)
        if first_lsn < 0:
            fs.makedirs(directory)
            self._begin(0)
        else:
            self.file = fs.open(log_file_path(directory, first_lsn), "write")
            self._behind = fs.open(self.file.path, "write")
            self._number(first_lsn)
            self._prepared = self.file.size()

    def recover(self, torn: bool) -> None:
        """Cut a torn tail off, and make sure that what replay found is durable.

        After a killed process the newest frames may be in the page cache alone.
        """
        if torn:
            self.file.truncate(self.position)
            self._prepared = self.position
        self.file.fdatasync()
        self._fs.sync_dir(self.directory)
        self.syncs += 1

    @property
    def lsn(self) -> int:
        """Where the next frame goes."""
        return self.first_lsn + self.position

    def fit(self, entries: Sequence[Entry], start: int) -> int:
        """How many entries from `start` on fit into the active file, at least one.

        Rotates when not all of them do and the next file has room for all: a group that is in one
        file is there as a whole or not at all, whatever fails. Also when the first does not fit.
        """
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
        """Write frames behind the last, all of them or an error; returns where they end.

        They are in the log once the caller moves `position` there (and `synced`, if asked for):
        until then the call may be repeated.
        """
        self._check()
        buffers: list[bytes] = []
        position, synced, seed = self.position, self.synced, self.first_lsn
        for entry in entries:
            if isinstance(entry, Joint):
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
            self.is_broken = error.errno not in _FULL
            raise self._failed("write", error) from error
        if sync:
            self._sync_file()
            self._fs.promise(self.file, position)
        return position

    def sync(self) -> None:
        """Make everything written so far durable."""
        if self.synced != self.position:
            self._sync_file()
            self.synced = self.position
            self._fs.promise(self.file, self.position)

    def mark(self) -> Mark:
        """Everything written so far, to be synced while others go on writing.

        By a file of its own: the system tells an error once to everybody who has a file open, and
        an append that syncs at the same moment has to be told as well.
        """
        return Mark(self._behind, self.first_lsn, self.position)

    def note_synced(self, mark: Mark) -> None:
        """Remember that a mark's file was synced."""
        self.syncs += 1
        if mark.first_lsn == self.first_lsn:
            self.synced = max(self.synced, mark.position)

    def release(self, lsn: int) -> list[int]:
        """Give up complete files whose every byte is below `lsn`; returns their first lsns."""
        done = complete_below(self._fs, self.directory, lsn)
        freed: list[int] = []
        for first in done:
            path = log_file_path(self.directory, first)
            if len(self._spare) + len(freed) < _SPARE_FILES_MAX:
                self._fs.rename(path, free_file_path(self.directory, first))
                freed.append(first)
            else:
                self._fs.unlink(path)
        if done:
            self._fs.sync_dir(self.directory)
        self._spare += self._mark_empty(freed)
        return done

    def _mark_empty(self, spare: list[int]) -> list[int]:
        """Put an end mark in front of spare files, whose names are durable; returns those that can.

        What they held is then not taken for a torn tail. Under their old names, which a crash
        could bring back, it would be damage.
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
                self._fs.unlink(path)  # it is of no use
            finally:
                file.close()
        return marked

    def close(self, *, trim: bool) -> None:
        """Let the active file go; it was synced by whoever closes the shard.

        `trim` gives back what was zero-filled ahead, and spare files: a closed store takes what it
        holds.
        """
        if trim:
            with contextlib.suppress(OSError):  # zeros behind the end do no harm
                if self._prepared > self.position:
                    self.file.truncate(self.position)
                while self._spare:
                    self._fs.unlink(free_file_path(self.directory, self._spare.pop()))
        self.file.close()
        self._behind.close()

    def rotate(self) -> None:
        """Go on in a new file, once this one is durable."""
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
            pass  # left by an attempt that was interrupted
        except OSError as error:
            raise self._failed("new log file", error) from error
        try:
            file = file or self._fs.open(path, "write")
            behind = self._fs.open(path, "write")
            self._fs.sync_dir(self.directory)
            prepared = file.size()
        except OSError as error:
            # Whatever it is, a full disk too: the file is there, and its name says that the one
            # before ends here. Were that one written to again, they would not fit together.
            self.is_broken = True
            raise self._broken("new log file", error) from error
        with self._fill_lock:
            self.file, self._behind = file, behind
            self._number(first_lsn)
            self.first_lsn = first_lsn
            self.position = self.synced = 0
            self._recycled = prepared > 0
            self._prepared = prepared

    def _number(self, first_lsn: int) -> None:
        self.number = self._reader.number(self.directory, first_lsn)
        self.inner_number = self._reader.number(self.directory, first_lsn, is_inner=True)

    def fill_ahead(self) -> bool:
        """Zero-fill some of what comes next; returns whether that has to be synced.

        Called in the background, with no lock held: an append then finds pages that are in
        memory and blocks that are allocated, and pays for neither. The further a file has come
        the further ahead it is filled, so that a small store stays small.
        """
        target = self.position + min(max(self.position, _AHEAD_BYTES_MIN), _AHEAD_BYTES_MAX)
        target = min(target, self.bytes_max)
        self._wake_below = (target - self.position) // 2
        filled = False
        with contextlib.suppress(OSError):  # the append that needs it will say so
            while self._prepared < target:
                with self._fill_lock:
                    step = min(_FILL_BYTES, target - self._prepared)
                    if not 0 < step <= self._room():
                        break
                    self.file.preallocate(self._prepared, step)
                    self._prepared += step
                    filled = True
        return filled

    def _make_room(self, end: int, *, sync: bool) -> None:
        """See that there is space for `end` bytes, and that a sync will not have to allocate it.

        Bytes at or behind `_prepared` are written under the fill lock only, or claimed under it:
        zeros never overtake data.
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
                self.is_broken = error.errno not in _FULL
                raise self._failed("write", error) from error
            self._prepared = target
        self._sync_file()

    def _room(self) -> int:
        """Bytes that may still be taken from the disk."""
        try:
            free = self._fs.free_bytes(self.directory)
        except OSError as error:
            raise self._broken("look for free space", error) from error
        return free - self._options.disk_reserve_bytes

    def _check(self) -> None:
        """Raise if something failed before and nobody could say so."""
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

    def _failed(self, what: str, error: OSError) -> DiskFullError | SyncFailedError:
        if error.errno not in _FULL:
            return self._broken(what, error)
        return DiskFullError(
            f"{self.directory}: the disk is full ({error}). Nothing of this append was kept; "
            "free some space and append again."
        )

    def _broken(self, what: str, error: OSError) -> SyncFailedError:
        return SyncFailedError(
            f"{self.directory}: {what} failed: {error}. Nothing of this append was "
            "acknowledged; the shard takes no more until the store is reopened."
        )

    def cut(self) -> None:
        """Take back what a failed write left behind `position`, durably; raises `OSError`.

        Whole frames of the failed group may be there: were they left, a later frame could end
        exactly where one of them begins, and replay would bring it back.
        """
        with self._fill_lock:
            self.file.truncate(self.position)
            self.file.fdatasync()
            self._prepared = self.synced = self.position
            self._recycled = False


def complete_below(fs: FileSystem, directory: str, lsn: int) -> list[int]:
    """First lsns of the files whose every byte is below `lsn`, and that are not the newest."""
    names = fs.listdir(directory)
    lsns = sorted(found for name in names if (found := parse_numbered(name)) is not None)
    return [first for first, end in pairwise(lsns) if end <= lsn]


def sync_failed(file: File, error: OSError) -> SyncFailedError:
    """What to raise for a sync that failed."""
    return SyncFailedError(
        f"{file.path}: sync failed: {error}. What it covered was not acknowledged as "
        "durable; the shard takes no more until the store is reopened."
    )
