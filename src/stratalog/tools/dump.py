"""Dump: what is in a file of a store, decoded, one row for each thing that has a place.

Reads what it is given and judges nothing: a part that does not decode is a row with its `damage`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec.structs import asdict

from stratalog.arguments import check_path
from stratalog.errors import FormatError, NotAStoreError
from stratalog.format import snapshot as snapshots
from stratalog.format.ceilings import decode_ceilings
from stratalog.format.control import (
    decode_checkpoint,
    decode_delete,
    decode_floor,
    decode_offsets,
    decode_reserve,
    decode_tier,
    decode_topic,
)
from stratalog.format.ends import decode_ends
from stratalog.format.frame import (
    ALIGNMENT,
    CODEC_MASK,
    HEADER_BYTES,
    Flag,
    FrameHeader,
    FrameType,
    log_seed,
)
from stratalog.format.groups import Changes, decode_group
from stratalog.format.lake import decode_lake
from stratalog.format.manifest import decode_adoption, decode_manifest
from stratalog.format.multi import decode_multi
from stratalog.format.names import is_staged_name, parse_numbered, shard_number, store_path
from stratalog.format.routes import decode_forward, decode_route
from stratalog.format.schedules import decode_due, decode_schedule
from stratalog.format.segment import (
    FOOTER_BYTES,
    decode_footer,
    decode_index,
    decode_segment_header,
    decode_summaries,
)
from stratalog.format.segment import (
    HEADER_BYTES as SEGMENT_BYTES,
)
from stratalog.format.snapshot import GroupSnapshot, decode_snapshot
from stratalog.format.store import decode_store
from stratalog.fs import File, FileSystem, PosixFileSystem
from stratalog.log.scan import find_frame, frames
from stratalog.state.owner import read_all

Row = dict[str, Any]

_DIRECTORIES = ("snapshots", "log", "topics", "incoming")


def dump(path: str | os.PathLike[str], *, fs: FileSystem | None = None) -> Iterator[Row]:
    """Everything in a file of a store, or in all of its files."""
    files = PosixFileSystem() if fs is None else fs
    name = os.path.abspath(check_path(path))
    try:
        names = files.listdir(name)
    except NotADirectoryError:
        yield from _dump_file(files, name)
        return
    if not names:
        raise NotAStoreError(f"{name} is no file and no store: check the path")
    yield from _dump_directory(files, name, names)


def _dump_directory(fs: FileSystem, path: str, names: list[str]) -> Iterator[Row]:
    is_root = "store" in names
    chosen = [n for n in ("store", "ceilings", *_DIRECTORIES) if n in names] if is_root else names
    for name in chosen:
        inner = os.path.join(path, name)
        try:
            below = fs.listdir(inner)
        except NotADirectoryError:
            yield from _dump_file(fs, inner)
        else:
            yield from _dump_directory(fs, inner, below)


def _dump_file(fs: FileSystem, path: str) -> Iterator[Row]:
    name = os.path.basename(path)
    suffix = os.path.splitext(name)[1]
    kinds: dict[str, Callable[[FileSystem, str], Iterator[Row]]] = {
        ".log": _dump_log,
        ".seg": _dump_segment,
        ".open": _dump_segment,
        ".snap": _dump_snapshot,
        ".manifest": _dump_manifest,
    }
    is_incoming = suffix == ".manifest" or is_staged_name(os.path.splitext(name)[0])
    if name == "store":
        rows = _dump_store(fs, path)
    elif name == "ends":
        rows = _dump_ends(fs, path)
    elif name == "ceilings":
        rows = _dump_ceilings(fs, path)
    elif suffix in kinds and (is_incoming or parse_numbered(name, suffix) is not None):
        rows = kinds[suffix](fs, path)
    else:
        return
    for row in rows:
        yield {"file": path, **row}


def _dump_store(fs: FileSystem, path: str) -> Iterator[Row]:
    try:
        store = decode_store(read_all(fs, path))
    except FormatError as error:
        yield {"kind": "store", "position": 0, "damage": str(error)}
        return
    yield {
        "kind": "store", "position": 0, "version": store.version, "identity": store.identity.hex(),
        "created_at": store.created_at,
    }  # fmt: skip


def _dump_ends(fs: FileSystem, path: str) -> Iterator[Row]:
    try:
        ends = decode_ends(read_all(fs, path))
    except FormatError as error:
        yield {"kind": "ends", "position": 0, "damage": str(error)}
        return
    for shard, end in ends.shards.items():
        yield {"kind": "ends", "position": 0, "shard": shard, **end._asdict()}


def _dump_ceilings(fs: FileSystem, path: str) -> Iterator[Row]:
    try:
        held = decode_ceilings(read_all(fs, path))
    except FormatError as error:
        yield {"kind": "ceilings", "position": 0, "damage": str(error)}
        return
    head = {"kind": "ceilings", "position": 0, "identity": held.identity.hex()}
    yield head | ({"damage": f"{held.damaged} slots"} if held.damaged else {})
    for topic_id, (reserved, given) in held.ceilings.items():
        yield {"kind": "ceiling", "topic_id": topic_id, "reserved": reserved, "given": given}


# --- frames -----------------------------------------------------------------------------------


def _dump_log(fs: FileSystem, path: str) -> Iterator[Row]:
    lsn = parse_numbered(os.path.basename(path))
    assert lsn is not None
    directory = os.path.dirname(path)
    file = fs.open(path, "read")
    try:
        seed = log_seed(_log_identity(fs, directory), shard_number(directory), lsn)
        yield {"kind": "log", "position": 0, "first_lsn": lsn, "bytes": file.size()}
        yield from _dump_frames(file, seed, 0, file.size())
    finally:
        file.close()


def _log_identity(fs: FileSystem, directory: str) -> bytes:
    """Return the identity that a shard's frames are bound to, from the store file beside it."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(directory)))
    try:
        return decode_store(read_all(fs, store_path(root))).log_identity
    except (FormatError, OSError):
        return b""


def _dump_frames(file: File, seed: int, position: int, end: int) -> Iterator[Row]:
    while position < end:
        damage = "no frame here"
        try:
            for at, header, body in frames(file, seed, position):
                position = at + HEADER_BYTES + header.body_length
                if position > end:
                    return
                if header.type == FrameType.MULTI:
                    yield from _multi(at, header, body, seed)
                else:
                    yield _frame(at, header, body)
        except FormatError as error:
            damage = str(error)
        if position >= end:
            return
        found = find_frame(file, seed, position + ALIGNMENT)
        if found is None or found[0] >= end:
            rest = file.pread(end - position, position)
            if rest.strip(b"\0"):
                kind = "rest" if damage == "no frame here" else "damage"
                yield {"kind": kind, "position": position, "bytes": len(rest), "damage": damage}
            elif rest:
                yield {"kind": "zeros", "position": position, "bytes": len(rest)}
            return
        size = found[0] - position
        yield {"kind": "damage", "position": position, "bytes": size, "damage": damage}
        position = found[0]


def _frame(position: int, header: FrameHeader, body: bytes) -> Row:
    row: Row = {
        "kind": FrameType(header.type).name.lower(), "position": position,
        "bytes": HEADER_BYTES + header.body_length, "topic_id": header.topic_id,
        "base_offset": header.base_offset,
    }  # fmt: skip
    if header.type == FrameType.RECORDS:
        columns = [n.lower() for n, bit in vars(Flag).items() if n.isupper() and header.flags & bit]
        row |= {
            "count": header.count, "base_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp, "codec": header.flags & CODEC_MASK,
            "columns": columns,
        }  # fmt: skip
        return row
    try:
        return row | _control(header.type, body)
    except FormatError as error:
        return row | {"damage": str(error)}


def _multi(position: int, header: FrameHeader, body: bytes, seed: int) -> Iterator[Row]:
    """A frame of several topics, then what is inside of it, each at its own place."""
    row = _frame(position, header, b"") | {"count": header.count}
    try:
        inner = decode_multi(header, body, seed)
    except FormatError as error:
        yield row | {"damage": str(error)}
        return
    yield row
    for at, one in inner:
        start = at + HEADER_BYTES
        content = body[start : start + one.body_length]
        yield _frame(position + start, one, content) | {"inside": position}


def _control(type: int, body: bytes) -> Row:
    if type in (FrameType.TOPIC, FrameType.DROP):
        topic: Row = msgspec.to_builtins(decode_topic(body))
        return topic
    if type in (FrameType.DELETE, FrameType.LOST):
        offsets = decode_delete(body)
        return {
            "offsets": len(offsets), "first": offsets.min() if offsets else None,
            "last": offsets.max() if offsets else None,
        }  # fmt: skip
    if type == FrameType.CHECKPOINT:
        return dict(zip(("segment", "segment_bytes"), decode_checkpoint(body), strict=True))
    if type == FrameType.FLOOR:
        return dict(zip(("evicted_below", "reason"), decode_floor(body), strict=True))
    if type == FrameType.TIER:
        summary, location, name = decode_tier(body)
        return {"location": location, "object": name, **summary._asdict()}
    if type == FrameType.GROUP:
        return _group(decode_group(body))
    if type == FrameType.RESERVE:
        return {"number": decode_reserve(body)}
    if type == FrameType.ROUTE:
        route: Row = msgspec.to_builtins(decode_route(body))
        return route
    if type == FrameType.FORWARD:
        return decode_forward(body)._asdict()
    if type == FrameType.SCHEDULE:
        schedule: Row = msgspec.to_builtins(decode_schedule(body))
        return schedule
    if type == FrameType.DUE:
        return decode_due(body)._asdict()
    if type == FrameType.LAKE:
        return decode_lake(body)._asdict()
    if type == FrameType.ADOPT:
        adoption: Row = msgspec.to_builtins(decode_adoption(body))
        return adoption
    return {}


def _group(changes: Changes) -> Row:
    return {
        "group": changes.group, "deliveries": changes.deliveries, "cursor": changes.cursor,
        "consumed": len(changes.consumed),
        "first_consumed": changes.consumed.min() if changes.consumed else None,
        "last_consumed": changes.consumed.max() if changes.consumed else None,
        "leases": [{"offset": o, **asdict(lease)} for o, lease in changes.leases.items()],
        **msgspec.to_builtins(changes.text),
    }  # fmt: skip


def _group_state(state: GroupSnapshot) -> Row:
    row = asdict(state)
    row["waiting"] = {p: len(decode_offsets(data)) for p, data in state.waiting.items()}
    row["delays"] = len(state.delays) // 16
    del row["leases"]
    return row


# --- segments and snapshots -------------------------------------------------------------------


def _dump_segment(fs: FileSystem, path: str) -> Iterator[Row]:
    file = fs.open(path, "read")
    try:
        end = size = file.size()
        yield _decoded("header", 0, lambda: decode_segment_header(file.pread(SEGMENT_BYTES, 0)))
        tail: list[Row] = []
        if path.endswith(".seg"):
            at = max(0, size - FOOTER_BYTES)
            row = _decoded("footer", at, lambda: decode_footer(file.pread(FOOTER_BYTES, at), size))
            tail.append(row)
            if "damage" not in row:
                end = row["index_position"]
                tail.insert(0, _index(file, size, end))
        yield from _dump_frames(file, 0, SEGMENT_BYTES, end)
        yield from tail
    finally:
        file.close()


def _index(file: File, size: int, position: int) -> Row:
    footer = decode_footer(file.pread(FOOTER_BYTES, size - FOOTER_BYTES), size)
    row: Row = {"kind": "index", "position": position, "entries": footer.index_count}
    try:
        index = decode_index(file.pread(size - FOOTER_BYTES - position, position), footer)
    except FormatError as error:
        return row | {"damage": str(error)}
    names = index.dtype.names or ()
    return row | {"batches": [dict(zip(names, entry, strict=True)) for entry in index.tolist()]}


def _dump_snapshot(fs: FileSystem, path: str) -> Iterator[Row]:
    try:
        found = decode_snapshot(read_all(fs, path))
    except FormatError as error:
        yield {"kind": "snapshot", "position": 0, "damage": str(error)}
        return
    yield {
        "kind": "snapshot", "position": 0, "number": found.number, "created_at": found.created_at,
        "identity": found.identity.hex(),
    }  # fmt: skip
    yield {"kind": "log", "position": snapshots.HEADER_BYTES, "shards": found.log.shards}
    catalog = asdict(found.catalog)
    topics = catalog.pop("topics")
    yield {"kind": "catalog", **catalog}
    for topic in topics:
        row = asdict(topic)
        for name in ("deleted", "lost"):
            row[name] = len(decode_offsets(row[name]))
        row["segments"] = [one._asdict() for one in decode_summaries(row["segments"])]
        row["topic_kind"] = row.pop("kind")
        yield {"kind": "topic", **row}
    for group in found.groups.groups:
        yield {"kind": "group_state", **_group_state(group)}
    for queue in found.queues.queues:
        row = {"topic_id": queue.topic_id, "deduped": queue.deduped}
        yield {"kind": "queue_state", **row, "dedup_entries": len(queue.dedup) // 32}
    for route in found.routes.routes:
        body: Row = msgspec.to_builtins(route.body)
        row = {"cursor": route.cursor, "forwarded": route.forwarded, "missed": route.missed}
        yield {"kind": "route_state", **body, **row}
    for schedule in found.schedules.schedules:
        body = msgspec.to_builtins(schedule.body)
        row = {"next_due": schedule.next_due, "last_due": schedule.last_due}
        yield {"kind": "schedule_state", **body, **row, "fired": schedule.fired}
    for lake in found.lakes.lakes:
        row = {"topic_id": lake.topic_id, "floor": lake.floor}
        yield {"kind": "lake_state", **row, **lake.body._asdict()}


def _dump_manifest(fs: FileSystem, path: str) -> Iterator[Row]:
    try:
        manifest: Row = msgspec.to_builtins(decode_manifest(read_all(fs, path)))
    except FormatError as error:
        yield {"kind": "manifest", "position": 0, "damage": str(error)}
        return
    for part in manifest["parts"]:
        part[-1] = len(part[-1])  # what is replaced: bytes, by number
    yield {"kind": "manifest", "position": 0, **manifest}


def _decoded(kind: str, position: int, decode: Callable[[], Any]) -> Row:
    row: Row = {"kind": kind, "position": position}
    try:
        row |= decode()._asdict()
    except FormatError as error:
        row["damage"] = str(error)
    return row
