"""Write a directory of Flo: one shard with sealed segments of its log.

Entries of all topics and queues share one numbering. Offsets are kept as indexes if no two records
have the same; holes are filled with entries that do nothing, because Flo's indexes have none.
Otherwise records are renumbered by time. Headers, tags and nodes have no counterpart. Flo has one
set of keys in a namespace: `flo.state` describes how several tables share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stratalog.errors import OptionError, TooLargeError
from stratalog.fs import FileSystem
from stratalog.interop.files import join, write_file
from stratalog.interop.flo import format as flo
from stratalog.interop.flo.collect import SERIES
from stratalog.interop.flo.points import as_point, is_ours
from stratalog.interop.flo.state import (
    NAME,
    TABLE,
    OurState,
    namespace_of,
    prefixes,
    table_of,
)
from stratalog.interop.model import ForeignTopic

SEGMENT_BYTES = 64 << 20
NOOP = 0xF1
"""An entry of Raft's own, without a payload."""
_TERM = 1
# Entries that do nothing, for holes; if more are needed, records are renumbered.
_HOLES_MAX = 1_000_000
_SYSTEM = b'{"shards":1,"partitions":256,"version":"1.0.0"}\n'


class _Entry(NamedTuple):
    offset: int
    timestamp: int
    type: int
    payload: bytes
    message: tuple[int, int] | None = None
    """For an entry that ends or returns a message: the topic's index, and the offset."""
    namespace: int = 0
    expires_at: int = 0


def write(
    fs: FileSystem,
    path: str,
    contents: Sequence[ForeignTopic],
    *,
    segment_bytes: int = SEGMENT_BYTES,
) -> int:
    """Write topics, queues and tables to a new or empty directory; returns how many records."""
    tables = prefixes([topic.name for topic in contents if _is_shared(topic)])
    records = [
        (place, entry)
        for place, topic in enumerate(contents)
        for entry in (_changes(topic, tables) if topic.kind == "table" else _records(topic))
    ]
    ends = [(place, entry) for place, topic in enumerate(contents) for entry in _ends(place, topic)]
    offsets = [entry.offset for _, entry in records]
    is_kept = len(set(offsets)) == len(offsets) and min(offsets, default=1) > 0
    is_kept = is_kept and max(offsets, default=0) - len(offsets) <= _HOLES_MAX
    records.sort(key=lambda one: one[1].offset if is_kept else one[1].timestamp)
    numbers: dict[tuple[int, int], int] = {}
    numbered: list[tuple[int, _Entry]] = []
    state = OurState(tables={} if set(tables) <= {TABLE} else tables)
    index = 0
    for place, entry in records:
        index = entry.offset if is_kept else index + 1
        numbers[place, entry.offset] = index
        numbered.append((index, entry))
        if entry.expires_at:
            state.expires_at[index] = entry.expires_at
    for _, entry in ends:
        if entry.message in numbers:
            index += 1
            key = numbers[entry.message].to_bytes(8, "little")
            payload = _command(key, b"", entry.namespace)
            numbered.append((index, entry._replace(payload=payload)))
    directory = join(path, "00000", "segs")
    fs.makedirs(directory)
    _write_segments(fs, directory, numbered, segment_bytes)
    write_file(fs, join(path, flo.SYSTEM_NAME), _SYSTEM)
    if state.tables or state.expires_at:
        write_file(fs, join(path, NAME), msgspec.json.encode(state))
    fs.sync_dir(path)
    return len(records)


def _is_shared(topic: ForeignTopic) -> bool:
    """Return whether it is a table whose keys go into the default namespace."""
    namespace, name = namespace_of(topic.name)
    return topic.kind == "table" and not (namespace and name == TABLE)


def _changes(topic: ForeignTopic, tables: dict[str, str]) -> Iterator[_Entry]:
    """Give the changes of a table as entries without an index."""
    namespace = 0 if topic.name in tables else namespace_of(topic.name)[0]
    prefix = tables.get(topic.name, "").encode()
    names = ("timestamp", "expires_at", "offset", "key", "value", "operation")
    for batch in topic.batches():
        columns = [batch.column(name) for name in names]
        columns[:2] = [column.cast(pa.int64()) for column in columns[:2]]
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        for stamp, expiry, offset, key, value, operation in rows:
            if key is None:
                continue  # staged by a job: not a record of a table
            name = prefix + key
            if tables and not namespace and table_of(tables, name)[0] != topic.name:
                raise OptionError(
                    f"Key {name!r} would be that of another table: Flo has one set of keys, where "
                    f"those of {topic.name!r} begin with {prefix!r}. Export the tables apart."
                )
            is_deleted = bool(operation) or value is None
            kind = flo.KV_DELETE if is_deleted else flo.KV_PUT
            payload = _command(name, b"" if is_deleted else value, namespace)
            yield _Entry(
                offset, stamp, kind, payload, None, namespace, 0 if is_deleted else expiry or 0
            )


def _records(topic: ForeignTopic) -> Iterator[_Entry]:
    """Give the records of a topic as entries without an index."""
    namespace, rest = namespace_of(topic.name)
    name = rest.encode()
    for batch in topic.batches():
        stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
        columns = [batch.column(one).to_pylist() for one in ("offset", "value", "priority")]
        for stamp, offset, value, priority in zip(stamps, *columns, strict=True):
            if topic.kind == "series":
                found = _points(topic, value or b"")
                if found is None:
                    continue  # a rule, not points
                kind, payload, stamp = found[0], found[1], found[2] or stamp
            elif topic.kind == "queue":
                kind = flo.QUEUE_PUT
                message = (priority or 0).to_bytes(4, "little") + (value or b"")
                payload = _command(name, message, namespace)
            else:
                kind = flo.STREAM_APPEND
                payload = _command(name, value or b"", namespace)
            yield _Entry(offset, stamp, kind, payload)


def _points(topic: ForeignTopic, value: bytes) -> tuple[int, bytes, int] | None:
    """Return type, payload and time of the entry for a series record; 0 for the record's time."""
    if not is_ours(value):
        return None
    namespace, name = namespace_of(topic.name)
    point = as_point(value) if name.rpartition(".")[2] == SERIES else None
    if point is None:
        return flo.SERIES_WRITE_MANY, _command(name.encode(), value, namespace), 0
    return flo.SERIES_WRITE, _command(point.key, point.value, namespace), point.time


def _ends(place: int, topic: ForeignTopic) -> Iterator[_Entry]:
    """Give the entries that end or return the messages of a queue."""
    if topic.kind != "queue":
        return
    namespace = namespace_of(topic.name)[0]
    cursor = topic.first if topic.cursor is None else topic.cursor
    held = {one.offset: one for one in topic.pending}
    for offset in (*range(topic.first, cursor), *topic.done):
        if offset not in held:
            yield _Entry(offset, 0, flo.QUEUE_ACK, b"", (place, offset), namespace)
    for offset, one in sorted(held.items()):
        for _ in range(one.delivery_count):
            yield _Entry(offset, one.delivered_at, flo.QUEUE_NACK, b"", (place, offset), namespace)


def _command(key: bytes, value: bytes, namespace: int) -> bytes:
    if len(key) > flo.KEY_BYTES_MAX:
        raise TooLargeError(
            f"Key {key[:40]!r}... has {len(key)} bytes, and a key or a name of Flo has at most "
            f"{flo.KEY_BYTES_MAX}. Delete the key, or leave its table out."
        )
    return flo.COMMAND.pack(namespace, len(key), len(value)) + key + value


def encode_entry(type: int, index: int, timestamp: int, payload: bytes) -> bytes:
    """Encode an entry of the log."""
    head = flo.ENTRY.pack(
        flo.ENTRY_MAGIC, flo.VERSION, type, 0, _TERM, index, timestamp, len(payload), 0
    )[:-4]
    return head + crc32c(payload, crc32c(head)).to_bytes(4, "little") + payload


def encode_segment(entries: Sequence[tuple[int, int, int, bytes]], commit_index: int) -> bytes:
    """Encode a sealed segment of entries, given as index, time, type and bytes."""
    position = 0
    sparse = []
    types = 0
    for place, (index, _, type, data) in enumerate(entries):
        if place % flo.INDEX_STRIDE == 0:
            sparse.append(flo.INDEX.pack(index, position))
        types |= 1 << type % 32
        position += len(data)
    first, last = (entries[0], entries[-1]) if entries else ((0, 0), (0, 0))
    head = flo.SEGMENT.pack(
        flo.SEGMENT_MAGIC, flo.VERSION, 0, first[0], last[0], first[1], last[1], len(entries),
        position, 0, commit_index, 0,
    )  # fmt: skip
    body = b"".join((head, *(entry[3] for entry in entries), *sparse))
    return body + flo.FOOTER.pack(
        flo.SEGMENT_BYTES + position, len(sparse), types, 0, crc32c(body), 0, flo.FOOTER_MAGIC
    )


def _write_segments(
    fs: FileSystem, directory: str, numbered: list[tuple[int, _Entry]], segment_bytes: int
) -> None:
    last = numbered[-1][0] if numbered else 0
    entries: list[tuple[int, int, int, bytes]] = []
    size = 0

    def seal() -> None:
        nonlocal size
        if entries:
            name = f"{entries[0][0]:010d}.flseg"
            write_file(fs, join(directory, name), encode_segment(entries, last))
            entries.clear()
            size = 0

    expected = 1
    stamp = numbered[0][1].timestamp if numbered else 0
    for index, entry in numbered:
        while expected < index:
            filler = encode_entry(NOOP, expected, stamp, b"")
            entries.append((expected, stamp, NOOP, filler))
            expected += 1
        stamp = entry.timestamp or stamp
        data = encode_entry(entry.type, index, stamp, entry.payload)
        entries.append((index, stamp, entry.type, data))
        size += len(data)
        expected = index + 1
        if size >= segment_bytes:
            seal()
    seal()
    fs.sync_dir(directory)


__all__ = ["encode_entry", "encode_segment", "write"]
