"""The state of a topics directory: its snapshot, changed by its frames."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from stratalog.errors import UnsupportedVersionError
from stratalog.interop.codecs.cursor import Cursor
from stratalog.interop.model import ForeignRoute, Pending
from stratalog.interop.topics import format as topics
from stratalog.model import Gap
from stratalog.options import TIME_MAX

META = "meta"
"""The header for a record's meta."""


class Envelope(msgspec.Struct):
    """The data of an append: JSON text, as stored in the file."""

    d: msgspec.Raw
    m: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


NUMBER_MAX = 1 << 62
"""Largest number of a record that is accepted."""
TIME_MAX_MS = TIME_MAX // 10**6
"""Largest time of a record, in milliseconds."""

_DELIVERIES_MAX = (1 << 31) - 1

_envelope_decoder = msgspec.json.Decoder(Envelope)


class Frame(NamedTuple):
    """A frame of a log."""

    type: int
    topic_id: int
    seq: int
    timestamp: int
    node: str | None
    tag: str | None
    data: bytes


class StoredRecord(NamedTuple):
    """A live record."""

    seq: int
    timestamp: int
    """Milliseconds since 1970."""
    node: str | None
    tag: str | None
    data: bytes
    """JSON text."""
    meta: bytes | None
    """JSON text."""


class TopicState:
    """A topic."""

    def __init__(self, id: int, name: str) -> None:
        self.id = id
        self.name = name
        self.config: dict[str, object] = {}
        self.first = 1
        self.head = 0
        """The highest seq of a record."""
        self.reserved = 0
        """Numbers up to this one are not given out again, whether used or not."""
        self.reservations: set[int] = set()
        """Numbers after which the server may have skipped some, after a crash."""
        self.has_appends = False
        """Whether a frame after the snapshot appends to it."""
        self.gaps: list[Gap] = []
        """Numbers whose frames are missing: the server gives out consecutive numbers."""
        self.records: dict[int, StoredRecord] = {}
        self.leases: dict[int, Pending] = {}


class State:
    """All topics and routers of a directory."""

    def __init__(self) -> None:
        self.topics: dict[int, TopicState] = {}
        self.routes: dict[str, ForeignRoute] = {}
        self.places: dict[str, tuple[int, int]] = {}
        """Per log directory, the file and the position from which on its frames count."""
        self.untimed: list[int] = []
        """Records of the snapshot with impossible times: they have the time 0."""

    # --- snapshot -------------------------------------------------------------------------

    def load(self, data: bytes) -> None:
        """Load a snapshot; raises `ValueError` if it is damaged."""
        if len(data) < topics.SNAPSHOT_BYTES:
            raise ValueError("it is cut short")
        magic, version, length, checksum = topics.SNAPSHOT.unpack_from(data)
        if magic != topics.SNAPSHOT_MAGIC:
            raise ValueError("it does not begin as a snapshot does")
        body = data[topics.SNAPSHOT_BYTES : topics.SNAPSHOT_BYTES + length]
        if len(body) != length or xxh3_64_intdigest(body) != checksum:
            raise ValueError("it does not match its checksum")
        if version != topics.SNAPSHOT_VERSION:
            raise UnsupportedVersionError(
                f"The snapshot is of version {version} of topics' format. This release reads "
                f"version {topics.SNAPSHOT_VERSION}: upgrade stratalog."
            )
        cursor = Cursor(body)
        for _ in range(6):  # id, time, next topic id; newest file, position and checkpoint
            cursor.uvarint()
        places = [(cursor.uvarint(), cursor.uvarint()) for _ in range(cursor.uvarint())]
        names = [cursor.short().decode() for _ in range(cursor.uvarint())]
        self.places = dict(zip(names, places, strict=True))
        for _ in range(cursor.uvarint()):
            self._load_topic(cursor)
        for _ in range(cursor.uvarint()):
            self._load_route(cursor)
        if cursor.left:
            raise ValueError(f"{cursor.left} bytes follow its end")

    def _load_topic(self, cursor: Cursor) -> None:
        name = cursor.short().decode()
        topic = TopicState(cursor.uvarint(), name)
        cursor.uvarint()  # epoch
        topic.config = _config(cursor.short())
        topic.first, topic.head = max(_number(cursor.uvarint()), 1), _number(cursor.uvarint())
        for _ in range(6):  # evict, expiry and delete floors, delete below, bytes, live records
            cursor.uvarint()
        for _ in range(cursor.uvarint()):
            record = self._load_record(cursor)
            topic.records[record.seq] = record
        cursor.uvarint()  # source trim floor
        self.topics[topic.id] = topic

    def _load_record(self, cursor: Cursor) -> StoredRecord:
        seq, timestamp = cursor.uvarint(), cursor.varint()
        node = cursor.short().decode() if cursor.flag() else None
        tag = cursor.short().decode() if cursor.flag() else None
        data = cursor.short()
        meta = cursor.short() if cursor.flag() else None
        cursor.uvarint()  # accounted bytes
        if not 0 <= timestamp <= TIME_MAX_MS:
            self.untimed.append(seq)
            timestamp = 0
        return StoredRecord(_number(seq), timestamp, node, tag, data, meta)

    def _load_route(self, cursor: Cursor) -> None:
        name, source, destination = (cursor.short().decode() for _ in range(3))
        keeps_node, keeps_tag, _, allows_cycle, _ = (cursor.flag() for _ in range(5))
        tag = None
        if cursor.flag():
            tag = _glob((cursor.u8(), cursor.short().decode()))
        forwarded = cursor.uvarint()
        cursor.uvarint()
        cursor.uvarint()
        self.routes[name] = ForeignRoute(
            name, source, destination, tag, forwarded, keeps_node, keeps_tag, allows_cycle
        )

    # --- frames ---------------------------------------------------------------------------

    def apply(self, frame: Frame) -> None:
        """Apply a frame; raises `ValueError` if its data does not decode."""
        cursor = Cursor(frame.data)
        if frame.type in (topics.TOPIC, topics.CONFIG):
            self._define(frame, cursor)
        elif frame.type == topics.DROP:
            self.topics.pop(frame.topic_id, None)
        elif frame.type == topics.ROUTER:
            self._route(cursor)
        elif frame.type == topics.DROP_ROUTER:
            self.routes.pop(cursor.long().decode(), None)
        elif frame.type == topics.APPEND and frame.topic_id not in self.topics:
            # As the server does if the frame that made the topic is gone.
            topic = TopicState(frame.topic_id, f"topic-{frame.topic_id}")
            self.topics[frame.topic_id] = topic
            _change(topic, frame, cursor)
        elif (found := self.topics.get(frame.topic_id)) is not None:
            _change(found, frame, cursor)

    def _define(self, frame: Frame, cursor: Cursor) -> None:
        name, config = cursor.long().decode(), _config(cursor.long())
        topic = self.topics.setdefault(frame.topic_id, TopicState(frame.topic_id, name))
        topic.name, topic.config = name, config

    def _route(self, cursor: Cursor) -> None:
        name, source, destination = (cursor.long().decode() for _ in range(3))
        bits = cursor.u8()
        match = _match(cursor)
        self.routes[name] = ForeignRoute(
            name, source, destination, _glob(match), cursor.u64(),
            bool(bits & topics.KEEP_NODE), bool(bits & topics.KEEP_TAG),
            bool(bits & topics.ALLOW_CYCLE),
        )  # fmt: skip


def _change(topic: TopicState, frame: Frame, cursor: Cursor) -> None:
    """Apply a frame of one topic."""
    if frame.type == topics.APPEND:
        topic.has_appends = True
        if frame.seq > topic.head:  # others repeat what the snapshot has
            topic.records[frame.seq] = record_of(frame)
            if frame.seq != topic.head + 1 and frame.seq - 1 not in topic.reservations:
                topic.gaps.append(Gap(topic.head + 1, frame.seq - 1, "damaged"))
            topic.head = frame.seq
    elif frame.type == topics.DELETE:
        _delete(topic, cursor)
    elif frame.type == topics.EVICT:
        _, earliest = cursor.u64(), _number(cursor.u64())
        topic.first = max(topic.first, earliest)
        for seq in [seq for seq in topic.records if seq < earliest]:
            del topic.records[seq]
    elif frame.type == topics.HEAD:
        topic.reserved = max(topic.reserved, _number(cursor.u64()))
        topic.reservations.add(topic.reserved)
    elif frame.type == topics.LEASE:
        _lease(topic, frame, cursor)


def _number(number: int) -> int:
    if number > NUMBER_MAX:
        raise ValueError(f"{number} is no possible number of a record")
    return number


def record_of(frame: Frame) -> StoredRecord:
    """Build the record of an append."""
    try:
        envelope = _envelope_decoder.decode(frame.data)
    except msgspec.MsgspecError as error:
        raise ValueError(f"record {frame.seq} is no JSON envelope ({error})") from error
    meta = None if isinstance(envelope.m, msgspec.UnsetType) else bytes(envelope.m)
    return StoredRecord(
        _number(frame.seq), frame.timestamp, frame.node, frame.tag, bytes(envelope.d), meta
    )


def _delete(topic: TopicState, cursor: Cursor) -> None:
    before = cursor.u64() if cursor.flag() else None
    match = _match(cursor)
    seqs = {cursor.u64() for _ in range(min(cursor.u32(), cursor.left // 8))}
    bound = cursor.u64() if cursor.flag() else None

    def is_deleted(record: StoredRecord) -> bool:
        if bound is not None and record.seq > bound:
            return False
        if record.seq in seqs:
            return True
        is_before = before is None or record.seq < before
        if match is None:
            return before is not None and is_before
        return is_before and record.tag is not None and _matches(match, record.tag)

    for seq in [seq for seq, record in topic.records.items() if is_deleted(record)]:
        del topic.records[seq]
        topic.leases.pop(seq, None)


def _match(cursor: Cursor) -> tuple[int, str] | None:
    return (cursor.u8(), cursor.long().decode()) if cursor.flag() else None


def _glob(match: tuple[int, str] | None) -> str | None:
    """Convert a match to a tag, or to a glob that ends with a star."""
    return None if match is None else match[1] + "*" * match[0]


def _matches(match: tuple[int, str], tag: str) -> bool:
    operator, text = match
    # A glob can only end with a star, and is stored without it.
    return tag == text if operator == 0 else tag.startswith(text)


def _lease(topic: TopicState, frame: Frame, cursor: Cursor) -> None:
    event = cursor.u8()
    cursor.u64()  # number of the lease
    deadline, deliveries = cursor.u64(), cursor.u64()
    node = cursor.long().decode()
    if deadline > TIME_MAX_MS or deliveries > _DELIVERIES_MAX:
        raise ValueError(f"a lease of record {frame.seq} has numbers that cannot be")
    if event == topics.ACKED:
        topic.leases.pop(frame.seq, None)
        return
    is_held = event != topics.RELEASED
    before = topic.leases.get(frame.seq)
    topic.leases[frame.seq] = Pending(
        frame.seq,
        node if is_held else "",
        max(deliveries, before.delivery_count if before else 0),
        frame.timestamp * 10**6,
        deadline * 10**6 if is_held else 0,
    )


def _config(data: bytes) -> dict[str, object]:
    try:
        found = msgspec.json.decode(data) if data else {}
    except msgspec.MsgspecError as error:
        raise ValueError(f"a configuration is no JSON ({error})") from error
    return found if isinstance(found, dict) else {}
