"""Write a directory that LedgerQ opens: segments with their indexes, position, retries and ids.

Message ids are the offsets. A queue that begins at offset 0 is shifted by one, because ids begin at
1. Payloads are stored uncompressed: LedgerQ reads both, and no two implementations of gzip write
the same bytes.

LedgerQ stops for good at a missing id, and skips expired messages: a hole in the offsets is filled
with empty messages that expire as soon as they are written.

Crash: `metadata.dat` comes last. A directory without it is not finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stratalog.errors import OptionError, TooLargeError
from stratalog.fs import File, FileSystem
from stratalog.interop.codecs.text import rfc3339
from stratalog.interop.files import join, write_file
from stratalog.interop.ledgerq import format as ledgerq
from stratalog.interop.model import DedupId, ForeignTopic
from stratalog.model import Priority

SEGMENT_MESSAGES = 1_000_000
"""Messages per segment: LedgerQ's default, which also determines the next segment's name."""
SEGMENT_BYTES = 64 << 20

_TEXT_BYTES_MAX = (1 << 16) - 1
_FILLERS = 1 << 16
_LOW = int(Priority.LOW)


def write(
    fs: FileSystem, path: str, queue: ForeignTopic, *, segment_messages: int = SEGMENT_MESSAGES
) -> int:
    """Write a queue to a new or empty directory; returns how many messages."""
    shift = shift_of(queue)
    writer = _Writer(fs, path, segment_messages, queue.first + shift)
    for batch in queue.batches():
        writer.write(list(_entries(batch, shift)))
    writer.fill(queue.end + shift)
    writer.finish()
    if queue.pending:
        write_file(fs, join(path, ledgerq.RETRY_NAME), _retries(queue, shift))
    if queue.dedup:
        data = _dedup(queue.dedup, shift, writer.positions)
        write_file(fs, join(path, ledgerq.DEDUP_NAME), data)
    cursor = queue.first if queue.cursor is None else queue.cursor
    next_id, read_id = queue.end + shift, max(cursor + shift, 1)
    if queue.done:
        consumed = _ranges([offset + shift for offset in queue.done])
        state = ledgerq.ConsumedState(ledgerq.VERSION, next_id, read_id, consumed)
        write_file(fs, join(path, ledgerq.CONSUMED_NAME), msgspec.json.encode(state))
    metadata = ledgerq.METADATA.pack(ledgerq.VERSION, next_id, read_id, 0)
    fs.sync_dir(path)
    write_file(fs, join(path, ledgerq.METADATA_NAME), metadata)
    fs.sync_dir(path)
    return writer.messages


def _ranges(ids: list[int]) -> list[tuple[int, int]]:
    """Return first and last of each run of consecutive ids, in ascending order."""
    found: list[tuple[int, int]] = []
    for id in ids:
        if found and found[-1][1] + 1 == id:
            found[-1] = (found[-1][0], id)
        else:
            found.append((id, id))
    return found


def shift_of(queue: ForeignTopic) -> int:
    """Return how far message ids are above offsets."""
    return 1 if queue.first == 0 else 0


class _Writer:
    """Writes segments, one after the other."""

    def __init__(self, fs: FileSystem, path: str, segment_messages: int, first_id: int) -> None:
        self._fs = fs
        self._path = path
        self._segment_messages = segment_messages
        self._base = 1
        self._file: File | None = None
        self._position = 0
        self._ids: list[int] = []
        self._index: list[bytes] = []
        self._indexed = 0
        self._created_at = 0
        self._next_id = first_id
        self._newest = 1  # LedgerQ requires times after 1970
        self.messages = 0
        self.positions: dict[int, int] = {}
        """Positions of entries with a deduplication id, by message id."""

    def write(self, entries: list[tuple[int, int, bytes]]) -> None:
        """Add messages, and fill the holes before and between them."""
        start = 0
        for place, (id, timestamp, _) in enumerate(entries):
            if id != self._next_id:
                self._add(entries[start:place])
                self.fill(id)
                start = place
            self._next_id = id + 1
            self._newest = max(timestamp, 1)
        self._add(entries[start:])
        self.messages += len(entries)

    def fill(self, id: int) -> None:
        """Write expired messages up to an id."""
        while self._next_id < id:
            end = min(id, self._next_id + _FILLERS)
            stamp = self._newest
            expiry = stamp + ledgerq.FILLER_NANOSECONDS
            self._add(
                [
                    (one, stamp, _entry(one, stamp, _LOW, expiry, b"", None))
                    for one in range(self._next_id, end)
                ]
            )
            self._next_id = end

    def _add(self, entries: list[tuple[int, int, bytes]]) -> None:
        """Add entries, and begin a new segment where one is full."""
        start = 0
        while start < len(entries):
            if self._file is None:
                self._open_segment(entries[start][1])
            room = self._segment_messages - len(self._ids)
            room = room if self._position < SEGMENT_BYTES else 0
            if room <= 0:
                self.close_segment()
                self._base += self._segment_messages
                continue
            self._write_entries(entries[start : start + room])
            start += room

    def _open_segment(self, created_at: int) -> None:
        name = f"{self._base:0{ledgerq.NAME_DIGITS}d}{ledgerq.SEGMENT_SUFFIX}"
        self._file = self._fs.open(join(self._path, name), "create")
        self._position = ledgerq.HEADER_BYTES
        self._created_at = created_at
        self._ids, self._index, self._indexed = [], [], 0

    def _write_entries(self, entries: list[tuple[int, int, bytes]]) -> None:
        assert self._file is not None
        position = self._position
        for id, timestamp, data in entries:
            if not self._index or position - self._indexed >= ledgerq.INDEX_INTERVAL_BYTES:
                self._index.append(ledgerq.INDEX.pack(id, position, timestamp))
                self._indexed = position
            self.positions[id] = position
            self._ids.append(id)
            position += len(data)
        self._file.pwrite([b"".join(data for _, _, data in entries)], self._position)
        self._position = position

    def finish(self) -> None:
        """Close the last segment; a queue without messages has an empty one."""
        if self._file is None and not self._ids:
            self._open_segment(0)
        self.close_segment()

    def close_segment(self) -> None:
        """Finish the open segment: add the ids to its header, and write its index."""
        file, self._file = self._file, None
        if file is None:
            return
        header = ledgerq.HEADER.pack(
            ledgerq.MAGIC, ledgerq.VERSION, 0, self._base, self._created_at,
            *((self._ids[0], self._ids[-1]) if self._ids else (0, 0)), bytes(20), 0,
        )[:-4]  # fmt: skip
        try:
            file.pwrite([header + ledgerq.CHECKSUM.pack(crc32c(header))], 0)
            file.fdatasync()
        finally:
            file.close()
        index = ledgerq.INDEX_HEADER.pack(
            ledgerq.INDEX_MAGIC, ledgerq.VERSION, 0, self._base, len(self._index), 0, 0
        )[:-4]
        name = f"{self._base:0{ledgerq.NAME_DIGITS}d}{ledgerq.INDEX_SUFFIX}"
        data = b"".join((index, ledgerq.CHECKSUM.pack(crc32c(index)), *self._index))
        write_file(self._fs, join(self._path, name), data)


def _entries(batch: pa.RecordBatch, shift: int) -> Iterator[tuple[int, int, bytes]]:
    """Give id, time and bytes of every record."""
    columns = [batch.column(name) for name in ("offset", "timestamp", "priority", "expires_at")]
    numbers = [
        column.cast(pa.int64()).fill_null(default).to_pylist()
        for column, default in zip(columns, (0, 0, int(Priority.NORMAL), 0), strict=True)
    ]
    values = batch.column("value").to_pylist()
    headers = batch.column("headers").to_pylist()
    for offset, timestamp, priority, expires_at, value, header in zip(
        *numbers, values, headers, strict=True
    ):
        id = offset + shift
        yield id, timestamp, _entry(id, timestamp, priority, expires_at, value or b"", header)


def _entry(
    id: int, timestamp: int, priority: int, expires_at: int, value: bytes, headers: Any
) -> bytes:
    flags = 0
    more = b""
    level = theirs(priority)
    if level:
        flags |= ledgerq.PRIORITY
        more += bytes([level])
    if expires_at:
        flags |= ledgerq.EXPIRES
        more += expires_at.to_bytes(8, "little", signed=True)
    if headers:
        flags |= ledgerq.HEADERS
        more += _headers(id, headers)
    length = ledgerq.ENTRY_BYTES + len(more) + len(value) + ledgerq.CHECKSUM_BYTES
    head = ledgerq.ENTRY.pack(length, ledgerq.MESSAGE, flags, id, timestamp)
    data = b"".join((head, more, value))
    return b"".join((data, ledgerq.CHECKSUM.pack(crc32c(data)), bytes(ledgerq.PADDING_BYTES)))


def theirs(priority: int) -> int:
    """Convert our priority to theirs: high up to 85, medium up to 170, low above."""
    return 2 if priority < 86 else 1 if priority < 171 else 0


def _headers(id: int, headers: list[dict[str, Any]]) -> bytes:
    parts = [len(headers).to_bytes(2, "little")]
    for header in headers:
        for part in (header["key"].encode(), header["value"] or b""):
            if len(part) > _TEXT_BYTES_MAX:
                raise TooLargeError(
                    f"Message {id} has a header of {len(part)} bytes. LedgerQ takes at most "
                    f"{_TEXT_BYTES_MAX}."
                )
            parts += (len(part).to_bytes(2, "little"), part)
    return b"".join(parts)


def _retries(queue: ForeignTopic, shift: int) -> bytes:
    entries = [
        ledgerq.Retry(one.offset + shift, one.delivery_count, rfc3339(one.delivered_at), one.reason)
        for one in queue.pending
    ]
    given = queue.options.get("max_deliveries", 0)
    most = given if isinstance(given, int) else 0
    state = ledgerq.RetryState(ledgerq.VERSION, most, entries)
    return msgspec.json.format(msgspec.json.encode(state), indent=2)


def _dedup(ids: list[DedupId], shift: int, positions: dict[int, int]) -> bytes:
    entries = []
    for one in ids:
        if len(one.id) != 64:
            raise OptionError(
                f"Deduplication id {one.id!r} is not a digest: LedgerQ stores the hexadecimal "
                "SHA-256 of an id."
            )
        id = one.offset + shift
        entries.append(
            ledgerq.Dedup(one.id.decode(), id, positions.get(id, 0), one.put_at, one.expires_at)
        )
    state = ledgerq.DedupState(ledgerq.VERSION, entries)
    return msgspec.json.format(msgspec.json.encode(state), indent=2)


__all__ = ["SEGMENT_MESSAGES", "shift_of", "theirs", "write"]
