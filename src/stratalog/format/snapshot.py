"""A snapshot: what all projections know at one position of the log.

A snapshot is a header, sections (each with a header of its own) one after the other, and an end.
Sections are MessagePack; one that a reader does not know is an error, not skipped, and one that
says nothing is left out: only log and catalog are always there. A topic's state
has its segments as `Segment summary` structures and its sets of offsets as Roaring bitmaps.

Snapshot header, little-endian:

| field | type | meaning |
|---|---|---|
| magic | 8s | `STRASNAP` |
| version | u32 | format version, 1 |
| section_count | u32 | sections that follow |
| number | u64 | as in the file's name |
| created_at | i64 | nanoseconds since 1970 |
| identity | 16s | of the store it belongs to |
| length | u64 | of the whole file |
| checksum | u64 | XXH3-64 of the bytes before it |

Section header, little-endian:

| field | type | meaning |
|---|---|---|
| type | u32 | 1 log, 2 catalog, 3 groups, 4 queues, 5 projections, 6 routes, 7 lakes, 8 schedules |
| codec | u32 | zero: as it is |
| length | u64 | bytes that follow, as they are stored |
| raw_length | u64 | bytes before compression |
| checksum | u64 | XXH3-64 of this header's bytes before it, then of the bytes as stored |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
from xxhash import xxh3_64

from stratalog.errors import BadMagicError, CorruptionError, UnsupportedVersionError
from stratalog.format.control import Option
from stratalog.format.lake import LakeBody, check_lake
from stratalog.format.names import parse_cold_name
from stratalog.format.routes import RouteBody, check_route
from stratalog.format.schedules import ScheduleBody, check_schedule

MAGIC = b"STRASNAP"
VERSION = 1

HEADER = struct.Struct("<8sIIQq16sQQ")
HEADER_BYTES = 64
assert HEADER.size == HEADER_BYTES

SECTION = struct.Struct("<IIQQQ")
SECTION_BYTES = 32
assert SECTION.size == SECTION_BYTES

_SECTION_BYTES_MAX = 1 << 31


# Nothing unknown is skipped: skipping it would take as deep a stack as it is nested.
class TopicState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic: what its control frames said, and where its records are."""

    id: int
    name: str
    kind: str
    created_at: int
    epoch: int
    version: int
    options: dict[str, Option]
    next_offset: int
    last_timestamp: int
    earliest: int
    evicted_below: int
    evicted_reason: str
    reservation: int
    checkpointed: int
    deleted: bytes
    lost: bytes
    segments: bytes


class LogState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From where on the log has to be replayed: an lsn per shard."""

    shards: dict[int, int]


class CatalogState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All topics."""

    next_topic_id: int
    epochs: dict[str, int]
    """How often a name was created, for names that were dropped at least once."""
    cold: str
    """Address of the cold store that was used last; empty for none."""
    topics: list[TopicState]
    dropped: list[int]
    """Topics that are gone, and whose files may not be yet."""
    writers: dict[str, int] = {}
    """The newest batch that was adopted of each writer of several."""
    once: list[str] = []
    """Writers whose only batch was adopted, those of late."""
    objects: dict[int, dict[int, str]] = {}
    """Names of cold segments, by topic and first offset; those of earlier releases have none."""
    crashed: dict[int, bytes] = {}
    """Lost offsets that went with a crash, by topic that has some, as a Roaring bitmap."""


class GroupSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A consumer group: what its frames said, up to one of them."""

    topic_id: int
    id: int
    name: str
    mode: str
    created_at: int
    options: dict[str, Option]
    number: int
    """Number of the newest frame that is in it; later ones may be."""
    ingested: int
    deliveries: int
    consumed: int
    cursor: int
    is_dropped: bool
    waiting: dict[int, bytes]
    """Offsets that wait, by priority."""
    delays: bytes
    """When messages are due, i64 each, then offsets with the priority in the highest byte, u64."""
    pending: int
    leases: bytes
    """The columns of as many entries, as in a `GROUP` frame."""
    consumers: list[str]


class GroupsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All consumer groups."""

    groups: list[GroupSnapshot] = []


class QueueSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of a queue besides its group."""

    topic_id: int
    deduped: int
    """Ids of messages below this offset are among the entries, if they still count."""
    dedup: bytes
    """Entries of 32 bytes: the 128-bit hash of an id, the message's offset, when it expires."""


class QueuesState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All queues."""

    queues: list[QueueSnapshot] = []


class ProjectionSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The projection of a topic: state of a kind of its own, from the records up to an offset."""

    topic_id: int
    kind: str
    applied: int
    """Records below this offset are in the state."""
    data: bytes
    """As the kind encodes it."""


class ProjectionsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Projections of topics of kind `table` and `series`."""

    projections: list[ProjectionSnapshot] = []


class RouteSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A route: what its frames said."""

    version: int
    """Number of the newest `ROUTE` frame that is in it."""
    cursor: int
    forwarded: int
    missed: int
    body: RouteBody


class RoutesState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All routes; those with a smaller number than the next one that are not here were dropped."""

    next_id: int = 1
    routes: list[RouteSnapshot] = []


class LakeSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The lake of a topic: what its newest `LAKE` frame said."""

    topic_id: int
    floor: int
    """Records below this offset were deleted, and may be in no file of the lake."""
    body: LakeBody


class LakesState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All lakes."""

    lakes: list[LakeSnapshot] = []


class ScheduleSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A schedule: what its frames said."""

    version: int
    """Number of the newest `SCHEDULE` frame that is in it."""
    next_version: int
    """Number of the change that the next due time belongs to."""
    next_due: int
    last_due: int
    fired: int
    body: ScheduleBody


class SchedulesState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All schedules; those with a smaller number than the next one that are not here are gone."""

    next_id: int = 1
    schedules: list[ScheduleSnapshot] = []


class Snapshot(NamedTuple):
    """A decoded snapshot."""

    number: int
    created_at: int
    identity: bytes
    log: LogState
    catalog: CatalogState
    groups: GroupsState = GroupsState()
    queues: QueuesState = QueuesState()
    projections: ProjectionsState = ProjectionsState()
    routes: RoutesState = RoutesState()
    lakes: LakesState = LakesState()
    schedules: SchedulesState = SchedulesState()


_SECTIONS = {
    1: LogState, 2: CatalogState, 3: GroupsState, 4: QueuesState, 5: ProjectionsState,
    6: RoutesState, 7: LakesState, 8: SchedulesState,
}  # fmt: skip
# What stands for a section that is not there, by type; the others have to be.
_OPTIONAL = {
    3: GroupsState(), 4: QueuesState(), 5: ProjectionsState(), 6: RoutesState(), 7: LakesState(),
    8: SchedulesState(),
}  # fmt: skip
_encoder = msgspec.msgpack.Encoder()
_decoders = {type: msgspec.msgpack.Decoder(kind) for type, kind in _SECTIONS.items()}


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The content of a snapshot file."""
    parts = [b""]
    states = dict(zip(_SECTIONS, snapshot[3:], strict=True))
    states = {type: state for type, state in states.items() if state != _OPTIONAL.get(type)}
    for type, state in states.items():
        data = _encoder.encode(state)
        head = SECTION.pack(type, 0, len(data), len(data), 0)[:-8]
        parts += [head, struct.pack("<Q", _checksum(head, data)), data]
    length = HEADER_BYTES + sum(map(len, parts))
    head = HEADER.pack(
        MAGIC, VERSION, len(states), snapshot.number, snapshot.created_at, snapshot.identity,
        length, 0,
    )[:-8]  # fmt: skip
    parts[0] = head + struct.pack("<Q", _checksum(head))
    return b"".join(parts)


def decode_snapshot(data: bytes) -> Snapshot:
    """Read and verify a snapshot file."""
    if data[:8] != MAGIC:
        raise BadMagicError(f"not a snapshot: it starts {data[:8]!r}, not {MAGIC!r}")
    if len(data) < HEADER_BYTES:
        raise CorruptionError(f"snapshot header cut short: {len(data)} of {HEADER_BYTES} bytes")
    _, version, count, number, created_at, identity, length, checksum = HEADER.unpack_from(data)
    if checksum != _checksum(data[: HEADER_BYTES - 8]):
        raise CorruptionError("snapshot header checksum does not match")
    if version > VERSION:
        raise UnsupportedVersionError(
            f"snapshot of format version {version}; this release reads up to {VERSION}: upgrade it"
        )
    if version != VERSION:
        raise CorruptionError(f"snapshot of format version {version}, which never was")
    if length != len(data):
        raise CorruptionError(f"snapshot of {len(data)} bytes, {length} expected")
    least = len(_SECTIONS) - len(_OPTIONAL)
    if not least <= count <= len(_SECTIONS):
        raise CorruptionError(f"snapshot of {count} sections, {least} to {len(_SECTIONS)} expected")
    states: dict[int, object] = {}
    position = HEADER_BYTES
    for _ in range(count):
        type, state, position = _decode_section(data, position)
        states[type] = state
    if position != len(data) or len(states) != count:
        raise CorruptionError("snapshot does not end with its last section")
    sections = [states.get(type, _OPTIONAL.get(type)) for type in _SECTIONS]
    if None in sections:
        raise CorruptionError("snapshot without its log or its catalog")
    _check_objects(states[2])
    _check_routes(sections[5])
    _check_lakes(sections[6])
    _check_schedules(sections[7])
    return Snapshot(number, created_at, identity, *sections)  # type: ignore[arg-type]


def _check_objects(catalog: object) -> None:
    assert isinstance(catalog, CatalogState)
    for topic_id, names in catalog.objects.items():
        for first, name in names.items():
            told = parse_cold_name(name)
            if told is None or (told.topic_id, told.first_offset) != (topic_id, first):
                raise CorruptionError(f"snapshot names an object {name!r}, which cannot be")


def _check_routes(state: object) -> None:
    assert isinstance(state, RoutesState)
    for route in state.routes:
        check_route(route.body)
        if route.body.id >= state.next_id or min(route.cursor, route.forwarded, route.missed) < 0:
            raise CorruptionError(f"snapshot of route {route.body.id}, which cannot be")


def _check_lakes(state: object) -> None:
    assert isinstance(state, LakesState)
    for lake in state.lakes:
        check_lake(lake.body)
        if lake.floor < 0:
            raise CorruptionError(f"snapshot of the lake of topic {lake.topic_id}, which cannot be")


def _check_schedules(state: object) -> None:
    assert isinstance(state, SchedulesState)
    for one in state.schedules:
        check_schedule(one.body)
        numbers = (one.version, one.next_version, one.next_due, one.last_due, one.fired)
        if one.body.id >= state.next_id or min(numbers) < 0:
            raise CorruptionError(f"snapshot of schedule {one.body.id}, which cannot be")


def _decode_section(data: bytes, position: int) -> tuple[int, object, int]:
    if len(data) - position < SECTION_BYTES:
        raise CorruptionError("snapshot section cut short")
    type, codec, length, raw_length, checksum = SECTION.unpack_from(data, position)
    start = position + SECTION_BYTES
    body = data[start : start + length]
    if length > _SECTION_BYTES_MAX or len(body) != length:
        raise CorruptionError(f"snapshot section of {length} bytes is cut short")
    if checksum != _checksum(data[position : start - 8], body):
        raise CorruptionError("snapshot section checksum does not match")
    if type not in _SECTIONS or codec != 0 or raw_length != length:
        raise CorruptionError(f"snapshot section of type {type} and codec {codec} is not known")
    try:
        return type, _decoders[type].decode(body), start + length
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"snapshot section {type} does not decode: {error}") from error


def _checksum(*parts: bytes) -> int:
    digest = xxh3_64()
    for part in parts:
        digest.update(part)
    return digest.intdigest()
