"""Write a directory that FluxMQ opens: segments with both indexes, and consumer groups.

Offsets are kept. A batch ends after a number of records. FluxMQ never returns from a read at an
offset that no batch has, and its consumers skip expired records: a hole in the offsets is filled
with records that have neither key nor value and expired in 1970. Records are stored uncompressed:
FluxMQ reads both, and no two compressors write the same bytes.

Crash: segments come first, groups and settings last. An unfinished directory lacks these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stratalog.errors import OptionError
from stratalog.fs import FileSystem
from stratalog.interop.codecs.text import rfc3339
from stratalog.interop.files import join, write_file
from stratalog.interop.fluxmq import format as fluxmq
from stratalog.interop.model import ForeignGroup, ForeignTopic

BATCH_RECORDS = 100
SEGMENT_BYTES = 64 << 20
_COUNT_MAX = (1 << 16) - 1
_FILLER: list[dict[str, Any]] = [
    {"key": fluxmq.EXPIRES_AT, "value": b"%d" % fluxmq.FILLER_EXPIRY_MS}
]


class _Row(NamedTuple):
    """A record to be written."""

    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    key: bytes | None
    value: bytes | None
    headers: list[dict[str, Any]]


def write(
    fs: FileSystem,
    path: str,
    topics: Sequence[ForeignTopic],
    groups: Sequence[ForeignGroup],
    *,
    batch_records: Iterable[int] | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    index_interval: int = fluxmq.INDEX_INTERVAL_BYTES,
) -> int:
    """Write topics and their groups to a new or empty directory; returns how many records.

    `batch_records` gives the size of each batch in turn, instead of one size for all.
    """
    for name in (*(topic.name for topic in topics), *(group.name for group in groups)):
        _checked(name)
    written = 0
    for topic in topics:
        directory = join(path, "queues", _checked(topic.name), "segments")
        fs.makedirs(directory)
        sizes = iter(batch_records) if batch_records else itertools.repeat(BATCH_RECORDS)
        writer = _Segments(fs, directory, segment_bytes, index_interval)
        for rows in _batches(topic, sizes):
            writer.write(rows)
            written += sum(row.headers is not _FILLER for row in rows)
        writer.close(topic.end)
        fs.sync_dir(directory)
    for group in groups:
        _write_group(fs, path, group)
    _write_settings(fs, path, topics, groups)
    return written


def _checked(name: str) -> str:
    """Return a name that can be a directory's; raises for others."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise OptionError(
            f"{name!r} cannot be the name of a queue of FluxMQ: it is a directory there. Export "
            "the topic under another name."
        )
    return name


def _batches(topic: ForeignTopic, sizes: Iterator[int]) -> Iterator[list[_Row]]:
    """Divide records into batches of the requested sizes."""
    batch: list[_Row] = []
    limit = min(next(sizes), _COUNT_MAX)
    for row in _filled(topic):
        if len(batch) == limit:
            yield batch
            batch = []
            limit = min(next(sizes), _COUNT_MAX)
        batch.append(row)
    if batch:
        yield batch


def _filled(topic: ForeignTopic) -> Iterator[_Row]:
    """Give all offsets of a topic: records, and fillers for the holes between them."""
    expected, stamp = topic.first, 0
    for row in _rows(topic):
        for offset in range(expected, row.offset):
            yield _Row(offset, stamp or row.timestamp, None, None, _FILLER)
        yield row
        expected, stamp = row.offset + 1, row.timestamp
    for offset in range(expected, topic.end):
        yield _Row(offset, stamp, None, None, _FILLER)


def _rows(topic: ForeignTopic) -> Iterator[_Row]:
    for batch in topic.batches():
        times = [
            batch.column(name).cast(pa.int64()).to_pylist() for name in ("timestamp", "expires_at")
        ]
        columns = [batch.column(name).to_pylist() for name in ("offset", "key", "value", "headers")]
        for stamp, expiry, offset, key, value, headers in zip(*times, *columns, strict=True):
            headers = headers or []
            if expiry and all(header["key"] != fluxmq.EXPIRES_AT for header in headers):
                # Rounded up: a record does not expire there before it does here.
                text = b"%d" % -(-expiry // 10**6)
                headers = [*headers, {"key": fluxmq.EXPIRES_AT, "value": text}]
            yield _Row(offset, stamp // 10**6, key, value, headers)


class _Segments:
    """Writes the segments of one queue, one after the other."""

    def __init__(self, fs: FileSystem, path: str, segment_bytes: int, interval: int) -> None:
        self._fs = fs
        self._path = path
        self._segment_bytes = segment_bytes
        self._interval = interval
        self._begin()

    def _begin(self) -> None:
        self._base = -1
        self._parts: list[bytes] = []
        self._position = 0
        self._index: list[bytes] = []
        self._unindexed = 0
        self._times: list[tuple[int, int]] = []

    def write(self, rows: list[_Row]) -> None:
        """Add a batch; closes a full segment first."""
        if self._base >= 0 and self._position >= self._segment_bytes:
            self._finish()
        if self._base < 0:
            self._base = rows[0].offset
        data = encode_batch(rows)
        relative = rows[0].offset - self._base
        self._unindexed += len(data)
        if not self._index or self._unindexed >= self._interval:
            self._index.append(fluxmq.INDEX.pack(relative, self._position))
            self._unindexed = 0
        newest = max(row.timestamp for row in rows)
        if not self._times or newest - self._times[-1][0] >= fluxmq.TIME_INTERVAL_MS:
            self._times.append((newest, relative))
        self._parts.append(data)
        self._position += len(data)

    def close(self, end: int) -> None:
        """Write the rest; a queue without records gets an empty segment."""
        if self._base < 0:
            self._base = end
        self._finish()

    def _finish(self) -> None:
        name = join(self._path, f"{self._base:020d}")
        low, high = (self._times[0][0], self._times[-1][0]) if self._times else (0, 0)
        index = fluxmq.INDEX_HEADER.pack(
            fluxmq.INDEX_MAGIC, fluxmq.VERSION, self._base, len(self._index), self._interval,
            bytes(11),
        )  # fmt: skip
        times = fluxmq.TIME_HEADER.pack(
            fluxmq.TIME_MAGIC, fluxmq.VERSION, self._base, len(self._times), low, high, bytes(3)
        )
        write_file(self._fs, f"{name}.seg", b"".join(self._parts))
        write_file(self._fs, f"{name}.idx", b"".join((index, *self._index)))
        write_file(
            self._fs,
            f"{name}.tix",
            b"".join((times, *(fluxmq.TIME.pack(*one) for one in self._times))),
        )
        self._begin()


def encode_batch(rows: Sequence[_Row]) -> bytes:
    """Encode a batch, uncompressed."""
    base, first = rows[0].offset, rows[0].timestamp
    flags = fluxmq.TIMES
    parts: list[bytes] = []
    for row in rows:
        parts += (uvarint(row.offset - base), varint(row.timestamp - first))
        for field in (row.key, row.value):
            parts.append(varint(-1 if field is None else len(field)))
            if field:
                parts.append(field)
        parts.append(uvarint(len(row.headers)))
        for header in row.headers:
            for part in (header["key"].encode(), header["value"] or b""):
                parts += (uvarint(len(part)), part)
        if row.key:
            flags |= fluxmq.KEYS
        if row.headers:
            flags |= fluxmq.HEADERS
    body = b"".join(parts)
    head = fluxmq.BATCH.pack(
        fluxmq.MAGIC, 0, base, len(body), len(rows), flags, 0, fluxmq.VERSION, 0, first,
        max(row.timestamp for row in rows),
    )  # fmt: skip
    checked = head[fluxmq.CHECKED_FROM :] + body
    return head[:4] + crc32c(checked).to_bytes(4, "little") + checked


def uvarint(number: int) -> bytes:
    """Encode unsigned LEB128."""
    if number < 0x80:
        return _SMALL[number]
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def varint(number: int) -> bytes:
    """Encode zig-zag, unsigned LEB128."""
    return uvarint(number << 1 if number >= 0 else (-number << 1) - 1)


_SMALL = [bytes([number]) for number in range(0x80)]


def _write_group(fs: FileSystem, path: str, group: ForeignGroup) -> None:
    queue, name = _checked(group.topic), _checked(group.name)
    created = group.created_at // 10**6
    if group.mode == "queue":
        low = join(path, "queues", queue, "consumers", name)
        fs.makedirs(low)
        floor = min((one.offset for one in group.pending), default=group.cursor)
        numbers = fluxmq.GroupNumbers(
            max(0, floor - 1), group.cursor, group.deliveries, created, created
        )
        state = fluxmq.StateFile(fluxmq.STATE_VERSION, name, numbers, created)
        for shard in range(fluxmq.SHARDS):
            entries = {
                str(one.offset): fluxmq.Entry(
                    one.offset, one.consumer, one.delivered_at // 10**6, one.delivery_count,
                    one.delivered_at // 10**6,
                )
                for one in group.pending
                if one.offset % fluxmq.SHARDS == shard
            }  # fmt: skip
            some = fluxmq.PendingFile(fluxmq.STATE_VERSION, shard, entries, created)
            write_file(fs, join(low, f"pel_{shard}.json"), _json(some))
        write_file(fs, join(low, "ops.log"), b"")
        write_file(fs, join(low, "state.json"), _json(state))
        fs.sync_dir(low)
    high = join(path, "groups", queue)
    fs.makedirs(high)
    time = rfc3339(group.created_at)
    pending: dict[str, list[fluxmq.BrokerPending]] = {}
    for one in group.pending:
        entry = fluxmq.BrokerPending(
            one.offset, one.consumer, rfc3339(one.delivered_at), one.delivery_count
        )
        pending.setdefault(one.consumer, []).append(entry)
    broker = fluxmq.BrokerGroup(
        name, queue, "#", group.mode, True, fluxmq.Cursor(group.cursor, 0), pending, {}, time, time
    )
    data = _json(fluxmq.GroupFile(fluxmq.STATE_VERSION, broker, created))
    write_file(fs, join(high, f"{name}.json"), data)
    fs.sync_dir(high)


def _write_settings(
    fs: FileSystem, path: str, topics: Sequence[ForeignTopic], groups: Sequence[ForeignGroup]
) -> None:
    """Write the settings of all queues: FluxMQ's defaults, with the type that its groups need."""
    queues = {group.topic for group in groups if group.mode == "queue"}
    configs = [
        {
            "Name": topic.name, "Topics": [f"{topic.name}/#"], "Reserved": False,
            "Type": "classic" if topic.name in queues else "stream",
        } | _SETTINGS
        for topic in topics
    ]  # fmt: skip
    directory = join(path, "config")
    fs.makedirs(directory)
    data = {"version": fluxmq.STATE_VERSION, "configs": configs, "saved_at": 0}
    write_file(fs, join(directory, "queues.json"), _json(data))
    fs.sync_dir(directory)


# Times are nanoseconds. A missing setting is 0 there, not a default.
_SETTINGS: dict[str, Any] = {
    "PrimaryGroup": "", "Durable": True, "AckDurability": "", "ExpiresAfter": 0,
    "LastConsumerDisconnect": "0001-01-01T00:00:00Z",
    "RetryPolicy": {
        "MaxRetries": 10, "InitialBackoff": 5 * 10**9, "MaxBackoff": 300 * 10**9,
        "BackoffMultiplier": 2, "TotalTimeout": 86400 * 10**9,
    },
    "DLQConfig": {"Enabled": True, "Topic": "", "AlertWebhook": ""},
    "Replication": {
        "Enabled": False, "Group": "", "ReplicationFactor": 3, "Mode": "sync",
        "MinInSyncReplicas": 2, "AckTimeout": 5 * 10**9, "HeartbeatTimeout": 0,
        "ElectionTimeout": 0, "SnapshotInterval": 0, "SnapshotThreshold": 0,
    },
    "Retention": {
        "RetentionTime": 0, "TimeCheckInterval": 0, "RetentionBytes": 0, "RetentionMessages": 0,
        "SizeCheckEvery": 0, "CompactionEnabled": False, "CompactionKey": "", "CompactionLag": 0,
        "CompactionInterval": 0,
    },
    "MaxMessageSize": 10 << 20, "MaxDepth": 100_000, "MessageTTL": 7 * 86400 * 10**9,
    "DeliveryTimeout": 30 * 10**9, "BatchSize": 100, "HeartbeatTimeout": 120 * 10**9,
}  # fmt: skip


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2)


__all__ = ["encode_batch", "write"]
