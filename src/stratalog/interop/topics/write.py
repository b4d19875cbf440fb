"""Write a directory that topics opens: one log with every topic, record and router.

The server takes a log without a snapshot for one that was not stopped cleanly, and replays it.
Numbers of records are the offsets; a topic that begins at offset 0 is shifted by one, because
numbers begin at 1. The server accepts no frame whose number is not the next one: missing records,
from 1 on, are appended as null and deleted at once.

The data of a record is JSON there: a value that is JSON text stays unchanged, other text becomes a
JSON string, and other bytes a string in base64. Keys and headers have no counterpart, except the
header `meta`.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from stratalog.errors import OptionError, TooLargeError
from stratalog.fs import FileSystem
from stratalog.interop.files import join, write_file
from stratalog.interop.model import ForeignRoute, ForeignTopic, Pending
from stratalog.interop.topics import format as topics
from stratalog.interop.topics.state import META

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_TEXT_BYTES_MAX = (1 << 16) - 1
_FILE_BYTES = 64 << 20
_FILLER = b'{"d":null}'
_SEQS_MAX = 10_000
_HOLE_MAX = 10_000_000
_CONFIG: dict[str, object] = {
    "type": "log", "ttl_ms": 0, "cap_records": 0, "cap_bytes": 0, "discard": "old",
    "durable": False, "durability": "disk", "priority": None, "auto_priority": True,
    "auto_create": True, "idempotency_window_ms": 120000, "dedupe_node": True,
    "lease_ms": 30000, "claim_jitter_ms": 0, "max_deliveries": 0, "dead_letter": None,
    "leases_durable": False,
}  # fmt: skip


def write(
    fs: FileSystem,
    path: str,
    contents: Sequence[ForeignTopic],
    routes: Sequence[ForeignRoute] = (),
) -> int:
    """Write topics and routers to a new or empty directory; returns how many records."""
    for topic in contents:
        _check_name(topic.name)
    directory = join(path, "wal")
    fs.makedirs(directory)
    log = _Log(fs, directory)
    written = 0
    for id, topic in enumerate(contents, 1):
        shift = 1 if topic.first == 0 else 0
        log.add(encode_frame(topics.TOPIC, id, data=_lp(topic.name.encode()) + _lp(_config(topic))))
        written += _write_records(log, topic, id, shift)
        log.add(encode_frame(topics.HEAD, id, data=_u64(topic.end + shift - 1)))
        for pending in topic.pending:
            log.add(_lease(pending, id, shift))
    for route in routes:
        log.add(encode_frame(topics.ROUTER, 0, data=_router(route)))
    log.close()
    return written


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise OptionError(
            f"{name!r} cannot be the name of a topic of topics: it takes letters, digits and ._:-"
            " only. Leave it out, or copy it to a topic of such a name first."
        )


def _write_records(log: _Log, topic: ForeignTopic, id: int, shift: int) -> int:
    """Write the records of a topic, and those that fill holes before and between them."""
    expected, written = 1, 0
    holes: list[int] = []
    for seq, stamp, frame in _appends(topic, id, shift):
        _check_hole(topic, expected, seq)
        while expected < seq:
            log.add(encode_frame(topics.APPEND, id, seq=expected, timestamp=stamp, data=_FILLER))
            holes.append(expected)
            expected += 1
            if len(holes) == _SEQS_MAX:
                log.add(_delete(id, holes, stamp))
                holes = []
        log.add(frame)
        expected = seq + 1
        written += 1
    if holes:
        log.add(_delete(id, holes, 0))
    return written


def _check_hole(topic: ForeignTopic, expected: int, seq: int) -> None:
    if seq - expected > _HOLE_MAX:
        raise TooLargeError(
            f"{topic.name!r} has no records from {expected} to {seq - 1}. topics numbers records "
            f"from 1 on, and an export fills at most {_HOLE_MAX} numbers in a row."
        )


def _delete(id: int, seqs: list[int], timestamp: int) -> bytes:
    """Encode a frame that deletes these records."""
    data = b"".join((b"\0\0", len(seqs).to_bytes(4, "little"), *map(_u64, seqs), b"\0"))
    return encode_frame(topics.DELETE, id, timestamp=timestamp, data=data)


class _Log:
    """Writes log files, one after the other."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._number = 1
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, frame: bytes) -> None:
        """Add a frame; finishes a full file first."""
        if self._bytes + len(frame) > _FILE_BYTES:
            self.close()
        self._parts.append(frame)
        self._bytes += len(frame)

    def close(self) -> None:
        """Finish the file."""
        if not self._parts:
            return
        name = f"wal-{self._number:016d}.log"
        write_file(self._fs, join(self._path, name), b"".join(self._parts))
        self._fs.sync_dir(self._path)
        self._number += 1
        self._parts, self._bytes = [], 0


def encode_frame(
    type: int,
    topic_id: int,
    *,
    seq: int = 0,
    timestamp: int = 0,
    node: str | None = None,
    tag: str | None = None,
    flags: int = 0,
    data: bytes = b"",
) -> bytes:
    """Encode a frame of a log."""
    parts = [b"" if text is None else text.encode() for text in (node, tag)]
    for part in parts:
        if len(part) > _TEXT_BYTES_MAX:
            raise TooLargeError(
                f"Record {seq} has a tag or node of {len(part)} bytes. topics takes at most "
                f"{_TEXT_BYTES_MAX}."
            )
    flags |= topics.HAS_TAG * (tag is not None) | topics.HAS_NODE * (node is not None)
    size = len(parts[0]) + len(parts[1]) + len(data)
    head = topics.FRAME.pack(
        topics.LENGTH_MIN + size, type, flags, topic_id, seq, timestamp, len(parts[0]),
        len(parts[1]), len(data),
    )  # fmt: skip
    body = b"".join((head[4:], *parts, data))
    return head[:4] + body + xxh3_64_intdigest(body).to_bytes(8, "little")


def envelope(value: bytes | None, meta: bytes | None) -> bytes:
    """Encode the data of an append."""
    data = b'{"d":' + _json_text(value)
    return data + b',"m":' + meta + b"}" if meta is not None else data + b"}"


def _json_text(value: bytes | None) -> bytes:
    """Convert a value to JSON text; JSON text stays unchanged."""
    if value is None:
        return b"null"
    try:
        msgspec.json.decode(value)
        value.decode()
        return value
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    try:
        return msgspec.json.encode(value.decode())
    except UnicodeDecodeError:
        return msgspec.json.encode(base64.b64encode(value).decode())


def _appends(topic: ForeignTopic, id: int, shift: int) -> Iterator[tuple[int, int, bytes]]:
    """Give number, time and frame of every record."""
    durable = topics.DURABLE if topic.options.get("durability") == "fsync" else 0
    for batch in topic.batches():
        stamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
        names = ("offset", "value", "headers", "tag", "node")
        columns = [batch.column(name).to_pylist() for name in names]
        for stamp, offset, value, headers, tag, node in zip(stamps, *columns, strict=True):
            meta = {header["key"]: header["value"] for header in headers or ()}.get(META)
            frame = encode_frame(
                topics.APPEND, id, seq=offset + shift, timestamp=stamp // 10**6, node=node,
                tag=tag, flags=durable, data=envelope(value, meta and _json_text(meta)),
            )  # fmt: skip
            yield offset + shift, stamp // 10**6, frame


def _config(topic: ForeignTopic) -> bytes:
    config = dict(_CONFIG)
    durability = str(topic.options.get("durability") or "fsync")
    config |= {"durability": durability, "durable": durability == "fsync"}
    if topic.kind == "queue":
        config |= {"type": "queue", "leases_durable": True}
        lease, most = topic.options.get("lease"), topic.options.get("max_deliveries")
        if isinstance(lease, int | float):
            config["lease_ms"] = round(lease * 1000)
        if isinstance(most, int):
            config["max_deliveries"] = most
    return msgspec.json.encode(config)


def _lease(pending: Pending, id: int, shift: int) -> bytes:
    seq = pending.offset + shift
    event = topics.CLAIMED if pending.consumer else topics.RELEASED
    data = b"".join(
        (
            bytes([event]), _u64(seq), _u64(pending.deadline // 10**6),
            _u64(pending.delivery_count), _lp(pending.consumer.encode()),
        )
    )  # fmt: skip
    return encode_frame(
        topics.LEASE, id, seq=seq, timestamp=pending.delivered_at // 10**6, data=data
    )


def _router(route: ForeignRoute) -> bytes:
    bits = (
        topics.KEEP_NODE * route.keeps_node
        | topics.KEEP_TAG * route.keeps_tag
        | topics.ALLOW_CYCLE * route.allows_cycle
        | topics.CREATE_DESTINATION
        | topics.EXACTLY_ONCE
    )
    match = b"\0"
    if route.tag is not None:
        is_glob = route.tag.endswith("*")
        match = bytes([1, is_glob]) + _lp(route.tag.removesuffix("*").encode())
    names = (route.name, route.source, route.destination)
    parts = [_lp(name.encode()) for name in names]
    return b"".join((*parts, bytes([bits]), match, _u64(route.cursor), _u64(0)))


def _lp(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


__all__ = ["encode_frame", "envelope", "write"]
