"""Writing a segment: one batch after the other, then index and footer.

Owns: one `.open` file (or a `.tmp` one, when a segment is rewritten).

Invariants:
- Bytes below `position` are whole batches; those below the position of the topic's newest
  `CHECKPOINT` frame are durable, and nothing above it is relied on: the log has it all.
- A file is complete and synced before it gets the name of a sealed segment.

Concurrency: the store's upkeep writes, one segment of a topic at a time. Crash: an open segment may
have anything after its durable bytes; it is cut there when the store is opened. A `.tmp` is
removed.
"""

from __future__ import annotations

import os

import numpy as np
from xxhash import xxh3_64_intdigest

from stratalog.errors import CorruptionError, SyncFailedError
from stratalog.format.frame import HEADER_BYTES as FRAME_BYTES
from stratalog.format.frame import FrameType, body_checksum, encode_header
from stratalog.format.merge import NEVER, Block
from stratalog.format.names import segment_name
from stratalog.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_BYTES,
    INDEX_DTYPE,
    UNBOUND,
    Index,
    SegmentFooter,
    SegmentHeader,
    State,
    Summary,
    encode_footer,
    encode_index,
    encode_segment_header,
)
from stratalog.fs import File, FileSystem
from stratalog.fs.os_errors import reason


class SegmentWriter:
    """A segment that grows."""

    def __init__(
        self, fs: FileSystem, directory: str, topic_id: int, first: int, created_at: int,
        suffix: str = ".open", name: str | None = None, identity: bytes = UNBOUND,
    ) -> None:  # fmt: skip
        self._fs = fs
        self._directory = directory
        self._topic_id = topic_id
        self._suffix = suffix
        self._identity = identity
        self.first = first
        self.created_at = created_at
        self.name = name or ""
        """Name of a staged segment; empty for others."""
        self.footer: SegmentFooter | None = None
        """The footer, once it is sealed."""
        stem = name or segment_name(first, "")
        self._sealed_path = os.path.join(directory, f"{stem}.seg")
        self.path = os.path.join(directory, f"{stem}{suffix}")
        self.position = 0
        self.records = 0
        self.min_timestamp = 0
        self.max_timestamp = 0
        self.expires_at = -1
        """Latest expiry so far, `NEVER`, or -1 while there is no record."""
        self._entries: list[tuple[int, ...]] = []
        self._is_named = False
        self._is_resting = False
        self.file: File

    def create(self) -> None:
        """Begin a new file; one of that name, left by a crash, is replaced."""
        self._fs.makedirs(self._directory)
        self._fs.unlink(self.path)
        self.file = self._fs.open(self.path, "create")
        header = SegmentHeader(self._topic_id, self.first, self.created_at, self._identity)
        try:
            self.file.pwrite([encode_segment_header(header)], 0)
        except BaseException:
            self.close()
            self._fs.unlink(self.path)
            raise
        self.position = HEADER_BYTES

    def resume(self, summary: Summary, index: Index) -> None:
        """Go on with an open segment that was found; it was cut to what is durable."""
        self.file = self._fs.open(self.path, "write")
        self.position = summary.bytes
        self.records = summary.records
        self.min_timestamp = summary.min_timestamp
        self.max_timestamp = summary.max_timestamp
        self.expires_at = summary.expires_at if summary.records else -1
        self._entries = [tuple(entry) for entry in index.tolist()]
        self._is_named = True

    def append(self, block: Block) -> None:
        """Add a batch; it is durable after the next `sync`."""
        header = encode_header(
            FrameType.RECORDS, block.flags, len(block.body), block.count, self._topic_id,
            block.base_offset, block.base_timestamp, block.max_timestamp,
            body_checksum(block.body), 0,
        )  # fmt: skip
        self._reach()
        self.file.pwrite([header, block.body], self.position)
        length = FRAME_BYTES + len(block.body)
        self._entries.append(
            (
                block.base_offset, self.position, length, block.count, block.base_timestamp,
                block.max_timestamp,
            )
        )  # fmt: skip
        if not self.records:
            self.min_timestamp = block.base_timestamp
        self.max_timestamp = block.max_timestamp
        self.expires_at = latest(self.expires_at, block.expires_at)
        self.records += block.count
        self.position += length

    def sync_data(self) -> None:
        """Sync the data while others go on writing; the file's name may not be durable yet."""
        self._reach()
        _sync(self.file, _STAGED_FAILED if self.name else _OWN_FAILED)

    def sync(self) -> None:
        """Make everything so far durable, the file's name included."""
        self.sync_data()
        if not self._is_named:
            self._fs.sync_dir(self._directory)
            self._is_named = True
        self._fs.promise(self.file, self.position)

    def seal(self, end: int, sealed_at: int) -> Summary:
        """Add index and footer, and give the file its lasting name."""
        index = encode_index(self.index())
        self.footer = footer = SegmentFooter(
            self._topic_id, self.first, end, self.records, self.min_timestamp, self.max_timestamp,
            max(self.expires_at, NEVER), sealed_at, self.position, len(index) // INDEX_BYTES,
            xxh3_64_intdigest(index),
        )  # fmt: skip
        self._reach()
        self.file.pwrite([index, encode_footer(footer)], self.position)
        size = self.position + len(index) + FOOTER_BYTES
        self.file.truncate(size)  # a failed attempt may have left more bytes
        self.sync_data()
        self._fs.rename(self.path, self._sealed_path)
        self._fs.sync_dir(self._directory)
        self.close()
        return self.summary(end)._replace(bytes=size, state=State.SEALED)

    def summary(self, end: int) -> Summary:
        """The segment as it is now, an open one."""
        return Summary(
            self.first, end, self.records, self.position, self.min_timestamp, self.max_timestamp,
            max(self.expires_at, NEVER), self.created_at, State.OPEN,
        )  # fmt: skip

    def index(self) -> Index:
        """The batches so far."""
        return np.array(self._entries, INDEX_DTYPE)

    def rest(self) -> None:
        """Close the file until there is more to write: all so far is durable.

        A store has an open segment per topic, and may have more topics than a process may have
        files. Opening it again takes 10 us, once per checkpoint of a topic.
        """
        self._is_resting = True
        self.file.close()

    def _reach(self) -> None:
        """Open the file again if it was closed."""
        if self._is_resting:
            file = self._fs.open(self.path, "write")
            size = file.size()
            if size < self.position:
                file.close()
                raise CorruptionError(
                    f"{self.path} has {size} bytes, {self.position} were durable. Restore the "
                    "file from a copy, or run `stratalog repair`."
                )
            self.file = file
            self._is_resting = False

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def discard(self) -> None:
        """Close the file for good."""
        self.close()
        self._fs.unlink(self.path)


def put_in_place(
    fs: FileSystem, path: str, directory: str, footer: SegmentFooter, size: int
) -> None:
    """Give a staged segment its footer, and its place among those of a topic.

    May be repeated, wherever it was cut short.
    """
    target = os.path.join(directory, segment_name(footer.first_offset))
    try:
        file = fs.open(path, "write")
    except FileNotFoundError:
        if not _is_placed(fs, target, footer, size):
            raise
        fs.sync_dir(directory)
        return
    try:
        end = encode_footer(footer)
        if file.pread(FOOTER_BYTES, size - FOOTER_BYTES) != end:  # else it may have two names now
            file.pwrite([end], size - FOOTER_BYTES)
        _sync(file, _PLACED_FAILED)
        fs.promise(file, size)
    finally:
        file.close()
    fs.makedirs(directory)
    temp = os.path.join(directory, segment_name(footer.first_offset, ".tmp"))
    fs.unlink(temp)
    try:
        fs.link(path, temp)
    except OSError:
        fs.rename(path, target)  # no links here
    else:
        fs.rename(temp, target)
    # Only now may the old name go: a crash must not take the one and leave the other undone.
    fs.sync_dir(directory)
    fs.unlink(path)


def _is_placed(fs: FileSystem, target: str, footer: SegmentFooter, size: int) -> bool:
    """Whether a segment is in its place already."""
    try:
        file = fs.open(target, "read")
    except FileNotFoundError:
        return False
    try:
        end = encode_footer(footer)
        return file.size() == size and file.pread(FOOTER_BYTES, size - FOOTER_BYTES) == end
    finally:
        file.close()


_OWN_FAILED = (
    "Nothing is lost, the log has it all; segments are written again once the store was reopened."
)
_PLACED_FAILED = (
    "Nothing is lost, this file has it all; it gets its place once the store was reopened."
)
_STAGED_FAILED = "Nothing of this write is in the store; check the disk, and write it again."


def _sync(file: File, outcome: str) -> None:
    try:
        file.fdatasync()
    except OSError as error:
        raise SyncFailedError(f"{file.path}: sync failed: {reason(error)}. {outcome}") from error


def latest(one: int, other: int) -> int:
    """The later of two expiries; -1 is none yet, `NEVER` wins."""
    if one < 0 or other < 0:
        return max(one, other)
    return NEVER if NEVER in (one, other) else max(one, other)
