"""Offsets given out before their records are durable: a ceiling for them is on disk beforehand.

Owns: the file `ceilings`, from the first append below `fsync` to a clean close.

Invariants, for every topic that gives offsets to appends below `fsync`:
- no such append gets an offset at or above `topic.reserved`, which is durable in the file;
- nor one at or above `topic.given`, which is written to the file, and never above `reserved`.

A writer that finds the file continues above its values: above `reserved` if the machine went down
since, above `given` if only the process did. Both are raised in steps, so that an append pays one
comparison. The ticker raises `reserved` before it is reached, and lowers `given` to the next offset
once everything is written: a kill then leaves no gap.

Concurrency: `cover` and every function that lowers `given` hold the lock of the topic's shard;
`_lock`, which is taken inside of it, guards the file.
Crash: a slot lies in one sector, so it is either the old one or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from stratalog.errors import DiskFullError, FencedError, FormatError, StorageError, SyncFailedError
from stratalog.format.ceilings import (
    HEADER_BYTES,
    SLOT_BYTES,
    Ceiling,
    boot_digest,
    decode_ceilings,
    encode_ceilings_header,
    encode_slot,
)
from stratalog.format.names import ceilings_path, ceilings_temp_path
from stratalog.fs import File, FileSystem

if TYPE_CHECKING:
    from stratalog.log.shard import Shard
    from stratalog.log.topic import TopicLog

logger = logging.getLogger("stratalog.log")

# How far `given` is ahead of an append: the largest gap that a killed process leaves. It costs one
# write of 1 us for so many records.
GIVEN_AHEAD = 1 << 12

# How far `reserved` is ahead: the largest gap that a power cut leaves. An append that reaches it
# waits for a sync, and makes the next step four times as large.
RESERVED_AHEAD_MIN = 1 << 14
RESERVED_AHEAD_MAX = 1 << 18

# The file gets this size when it is created, so that a new slot allocates nothing.
_FILE_BYTES = 4096


class Ceilings:
    """The ceilings of a store's topics."""

    def __init__(self, fs: FileSystem, root: str, identity: bytes) -> None:
        self._fs = fs
        self._root = root
        self._identity = identity
        self._lock = threading.Lock()
        self._file: File | None = None
        self._slots: dict[TopicLog, int] = {}
        self._ahead: dict[TopicLog, int] = {}

    # --- after a crash --------------------------------------------------------------------

    def found(self) -> dict[int, int]:
        """Return by topic id the offset below which an earlier writer may have given out all."""
        try:
            file = self._fs.open(ceilings_path(self._root), "read")
        except FileNotFoundError:
            return {}
        try:
            held = decode_ceilings(file.pread(file.size(), 0))
        except FormatError as error:
            logger.warning(
                "%s: %s; offsets of a lost tail may be given again",
                file.path,
                error,
                extra={"file": file.path, "error": str(error)},
            )
            return {}
        finally:
            file.close()
        if held.identity != self._identity:
            return {}
        if held.damaged:
            logger.warning(
                "%s: %d slots are damaged",
                file.path,
                held.damaged,
                extra={"file": file.path, "slots": held.damaged},
            )
        boot = boot_digest(self._fs.boot_id())
        is_same = any(boot) and boot == held.boot
        return {id: one.given if is_same else one.reserved for id, one in held.ceilings.items()}

    def clear(self) -> None:
        """Remove the file, durably: its values are no longer needed."""
        with self._lock:
            self._close()
            self._unlink()
            self._slots.clear()

    def _unlink(self) -> None:
        names = self._fs.listdir(self._root)
        for path in (ceilings_temp_path(self._root), ceilings_path(self._root)):
            if path.rpartition("/")[2] in names:
                self._fs.unlink(path)
                self._fs.sync_dir(self._root)

    # --- while offsets are given out ------------------------------------------------------

    def cover(self, topic: TopicLog, count: int) -> None:
        """Let a topic give out `count` more offsets, and some more; the shard's lock is held."""
        needed = topic.next_offset + count
        with self._lock:
            if needed > topic.reserved or self._file is None:
                ahead = self._ahead.get(topic, RESERVED_AHEAD_MIN // 4)
                self._ahead[topic] = ahead = min(4 * ahead, RESERVED_AHEAD_MAX)
                self._reserve({topic: needed + ahead})
            given = min(topic.reserved, needed + GIVEN_AHEAD)
            self._write({topic: Ceiling(topic.reserved, given)}, sync=False)
            topic.given = given

    def tend(self) -> None:
        """Stay ahead of appends, and close to idle topics; called by the ticker."""
        with self._lock:
            topics, due = self._due()
            if due and self._file is not None:
                with contextlib.suppress(StorageError, FencedError):  # the next append raises it
                    self._reserve(due)
        for topic in topics:
            if topic.next_offset == topic.committed != topic.given:
                self._rest(topic)

    def _due(self) -> tuple[list[TopicLog], dict[TopicLog, int]]:
        """Return all topics, and how far those need offsets that have used half of theirs."""
        topics = [topic for topic in self._slots if not topic.is_dropped]
        return topics, {
            topic: topic.next_offset + self._ahead[topic]
            for topic in topics
            if topic.reserved - topic.next_offset < self._ahead[topic] // 2
        }

    def _rest(self, topic: TopicLog) -> None:
        """Lower `given` to the next offset, if everything before it is written."""
        with topic.shard.lock:
            if topic.next_offset == topic.committed:
                with self._lock, contextlib.suppress(StorageError, FencedError):
                    if self._file is None:  # it failed: the next append creates it again
                        return
                    given = min(topic.next_offset, topic.reserved)
                    self._write({topic: Ceiling(topic.reserved, given)}, sync=False)
                    topic.given = given

    def finish(self, shards: Collection[Shard]) -> None:
        """Record at a close that these shards gave out only durable offsets.

        If there are no other shards, remove the file. Idempotent, in case Ctrl-C interrupts it.
        """
        if not self._slots:
            return
        done = [topic for topic in self._slots if topic.shard in shards]
        if len(done) == len(self._slots):
            self.clear()
            return
        with self._lock:
            if self._file is None:
                return
            exact = {topic: Ceiling(topic.next_offset, topic.next_offset) for topic in done}
            self._write(exact, sync=True)
            self._close()

    def close(self) -> None:
        """Close the file as it is."""
        self._close()

    # --- the file; the lock is held -------------------------------------------------------

    def _reserve(self, wanted: dict[TopicLog, int]) -> None:
        """Make ceilings durable, and then rely on them."""
        for topic in wanted:
            self._slots.setdefault(topic, len(self._slots))
            self._ahead.setdefault(topic, RESERVED_AHEAD_MIN)
        raised = {
            topic: Ceiling(max(reserved, topic.reserved), topic.given)
            for topic, reserved in wanted.items()
        }
        if self._file is None:
            self._create(raised)
        else:
            self._write(raised, sync=True)
        for topic, ceiling in raised.items():
            topic.reserved = ceiling.reserved

    def _create(self, raised: dict[TopicLog, Ceiling]) -> None:
        """Create the file, whole or not at all, with all known ceilings."""
        slots = [
            encode_slot(topic.id, raised.get(topic, Ceiling(topic.reserved, topic.given)))
            for topic in self._slots
        ]
        boot = boot_digest(self._fs.boot_id())
        data = b"".join([encode_ceilings_header(self._identity, boot), *slots])
        data += bytes(-len(data) % _FILE_BYTES)
        temp, path = ceilings_temp_path(self._root), ceilings_path(self._root)
        try:
            self._fs.unlink(temp)
            file = self._fs.open(temp, "create")
            try:
                file.pwrite([data], 0)
                file.fdatasync()
            finally:
                file.close()
            self._fs.rename(temp, path)
            self._fs.sync_dir(self._root)
            self._file = self._fs.open(path, "write")
        except OSError as error:
            raise self._failed(error) from error

    def _write(self, ceilings: dict[TopicLog, Ceiling], *, sync: bool) -> None:
        assert self._file is not None
        try:
            for topic, ceiling in ceilings.items():
                position = HEADER_BYTES + SLOT_BYTES * self._slots[topic]
                self._file.pwrite([encode_slot(topic.id, ceiling)], position)
            if sync:
                self._file.fdatasync()
        except OSError as error:
            self._close()  # the kernel's copy is unknown: the next call creates the file again
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> StorageError:
        message = (
            f"{ceilings_path(self._root)}: offsets could not be reserved: {error}. Nothing of this "
            "append was kept; see to the disk and append again."
        )
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return DiskFullError(message) if is_full else SyncFailedError(message)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()
