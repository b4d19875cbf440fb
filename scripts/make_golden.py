"""Make the golden files of the current format version: once, then never again.

    python scripts/make_golden.py

writes `tests/golden/v<version>/`: a small store that is nothing but log, and a compacted frame as a
segment would hold it; and `tests/golden/v<version>-store/`: a store with a snapshot, segments and
a log after them; and `tests/golden/v<version>-batches/`: one with atomic batches. In each,
`expected.json` says what is in them. Nothing depends on the time or on chance, but compressed bytes
may differ with another release of a codec: what counts is that the files of the past are read. So
existing files are never overwritten: what is missing is added, and a new format version gets new
directories.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pyroaring import BitMap64
from xxhash import xxh3_64_intdigest

from stratalog.arguments import columns_of
from stratalog.format.batch import Batch
from stratalog.format.codec import CODECS, compress
from stratalog.format.columns import encode_columns
from stratalog.format.control import (
    Option,
    TopicBody,
    encode_checkpoint,
    encode_delete,
    encode_floor,
    encode_reserve,
    encode_tier,
    encode_topic,
)
from stratalog.format.frame import (
    HEADER_BYTES,
    VERSION,
    Flag,
    FrameHeader,
    FrameType,
    body_checksum,
    encode_header,
)
from stratalog.format.manifest import (
    AdoptedPart,
    Adoption,
    Manifest,
    Part,
    StagedSegment,
    encode_adoption,
    encode_manifest,
)
from stratalog.format.merge import NEVER, merge
from stratalog.format.merge import Part as Piece
from stratalog.format.multi import inner_seed
from stratalog.format.names import (
    log_file_path,
    segment_name,
    shard_path,
    snapshot_path,
    store_path,
    topic_path,
)
from stratalog.format.segment import (
    FOOTER_BYTES,
    INDEX_BYTES,
    INDEX_DTYPE,
    SegmentFooter,
    SegmentHeader,
    State,
    Summary,
    encode_footer,
    encode_index,
    encode_segment_header,
    encode_summaries,
)
from stratalog.format.snapshot import (
    CatalogState,
    LogState,
    Snapshot,
    TopicState,
    encode_snapshot,
)
from stratalog.format.store import StoreFile, encode_store
from stratalog.model import Record

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
FIRST_LSN = 4096
NOW = 1_700_000_000_000_000_000
BYTES_MAX = 20_000

ORDERS, TEXTS, COUNTER = 7, 0x1122334455667788, 9

# Every optional column, and None beside empty wherever there are both.
FULL = [
    Record(
        b"value", b"key", {"h": b"1", "": b""}, "tag", "node", NOW + 1, 0, 3,
        NOW + 10**15, NOW + 2, 1,
    ),
    Record(None, None, {}, None, None, NOW + 1, 1),
    Record(b"", b"", {"größe": "ü".encode()}, "", "", NOW + 9, 2, 255),
    Record(bytes(range(256)), b"k" * 9, {}, "✓", "注文", NOW + 123_456_789, 3),
]  # fmt: skip


class Golden:
    """Frames as they are made, and what is in them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.data = b""
        self.frames: list[dict[str, Any]] = []

    def add(self, header: FrameHeader, body: bytes, **content: Any) -> None:
        """Append a frame; lengths and checksums are put right here."""
        header = header._replace(body_length=len(body), body_checksum=body_checksum(body))
        self.frames.append({"position": len(self.data), "header": header._asdict(), **content})
        self.data += encode_header(**header._asdict(), seed=self.seed) + body

    def add_multi(self, inner: Golden) -> None:
        """Append a frame that has others inside, whose places are those in its body."""
        header = FrameHeader(FrameType.MULTI, 0, 0, len(inner.frames), 0, 0, 0, 0, 0, 1)
        self.add(header, inner.data, inner=inner.frames)

    def add_records(
        self, topic: int, records: Sequence[Record], codec: int = 0,
        deltas: list[int] | None = None,
        unsynced: int | None = None,
    ) -> None:  # fmt: skip
        """Append a batch: compressed, or with holes between its offsets."""
        columns, times = columns_of(records, 1 << 20)
        columns.timestamps = times
        flags, body = encode_columns(columns)
        if deltas is not None:
            assert not flags & Flag.TIMESTAMPS, "offsets stand after timestamps"
            flags |= Flag.OFFSETS
            body = np.array(deltas, np.uint32).tobytes() + bytes(4 * (len(deltas) % 2)) + body
        if codec:
            smaller = compress(body, codec)
            assert smaller is not None
            flags, body = flags | codec, smaller
        times = times or [NOW]
        header = FrameHeader(
            FrameType.RECORDS, flags, 0, len(records), topic, records[0].offset,
            times[0], times[-1], 0, len(self.frames) % 3 if unsynced is None else unsynced,
        )  # fmt: skip
        self.add(header, body, records=[_plain(record, times[0]) for record in records])

    def add_topic(self, id: int, number: int, topic: TopicBody) -> None:
        """Append what a topic is."""
        header = FrameHeader(FrameType.TOPIC, 0, 0, 0, id, number, NOW, NOW, 0, 0)
        self.add(header, encode_topic(topic), topic=msgspec.to_builtins(topic))

    def add_reserve(self, id: int, number: int, offset: int) -> None:
        """Append a reservation of offsets."""
        header = FrameHeader(FrameType.RESERVE, 0, 0, 0, id, offset, 0, 0, 0, 0)
        self.add(header, encode_reserve(number), reserve=number)


def _plain(record: Record, base_timestamp: int) -> dict[str, Any]:
    """A record for JSON: what it has, bytes in hex, and the time it has when it is read."""
    fields = {name: getattr(record, name) for name in Record.__struct_fields__}
    fields["timestamp"] = fields["timestamp"] or base_timestamp
    fields["headers"] = {name: value.hex() for name, value in record.headers.items()}
    return {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in fields.items()
        if value not in (None, 0, {}) or name == "offset"
    }


def _texts(first: int, count: int) -> list[Record]:
    return [
        Record(b"line %d of a text that repeats itself" % n, b"k%d" % (n % 3), offset=n)
        for n in range(first, first + count)
    ]


def make_log() -> Golden:
    """A log file: every type of frame a release of this version writes."""
    log = Golden(seed=FIRST_LSN)
    log.add_topic(ORDERS, 0, TopicBody("orders", "topic", NOW, {}))
    log.add_topic(TEXTS, 0, TopicBody("größe/注文", "topic", NOW, {"compression": "zstd"}))
    counter: dict[str, Option] = {"durability": "ephemeral", "ttl": 1.5}
    log.add_topic(COUNTER, 0, TopicBody("counter", "topic", NOW, counter))
    log.add_records(ORDERS, FULL)
    log.add_records(ORDERS, [Record(b"alone", offset=4)])
    log.add_records(ORDERS, [Record(b"%d" % n, offset=5 + n) for n in range(33)])
    for index, codec in enumerate((CODECS["zstd"], CODECS["lz4"], CODECS["gzip"])):
        log.add_records(TEXTS, _texts(8 * index, 8), codec)
    log.add_reserve(COUNTER, 1, 65536)
    log.add_topic(ORDERS, 1, TopicBody("orders", "topic", NOW, {"durability": "disk"}))
    return log


def make_batches() -> Golden:
    """A log file with frames of several topics, alone and between others."""
    log = Golden(seed=FIRST_LSN)
    log.add_topic(ORDERS, 0, TopicBody("orders", "topic", NOW, {}))
    log.add_topic(TEXTS, 0, TopicBody("größe/注文", "topic", NOW, {"compression": "zstd"}))
    inner = Golden(seed=inner_seed(FIRST_LSN))
    inner.add_records(ORDERS, FULL, unsynced=0)
    inner.add_records(TEXTS, _texts(0, 8), CODECS["zstd"], unsynced=0)
    log.add_multi(inner)
    later = NOW + 10**9
    log.add_records(ORDERS, [Record(b"between", offset=4, timestamp=later)])
    inner = Golden(seed=inner_seed(FIRST_LSN))
    inner.add_topic(ORDERS, 1, TopicBody("orders", "topic", NOW, {"durability": "disk"}))
    more = [Record(b"%d" % n, offset=5 + n, timestamp=later + n) for n in range(3)]
    inner.add_records(ORDERS, more, unsynced=0)
    delete = FrameHeader(FrameType.DELETE, 0, 0, 0, TEXTS, 0, 0, 0, 0, 0)
    inner.add(delete, encode_delete(BitMap64([1, 3])), offsets=[1, 3])
    log.add_multi(inner)
    log.add_records(TEXTS, _texts(8, 8), CODECS["zstd"])
    return log


def make_compacted() -> Golden:
    """A frame as it is outside of a log: seed 0, and offsets with holes."""
    frame = Golden(seed=0)
    deltas = [0, 2, 70_000]
    records = [Record(b"kept", b"key", offset=100 + delta) for delta in deltas]
    frame.add_records(ORDERS, records, deltas=deltas)
    return frame


# --- a store with a snapshot and segments ------------------------------------------------------

ARCHIVE, OLD, AGAIN, BEFORE = 8, 11, 12, 10
COLD = "s3://bucket/größe"
FAR = NOW + 5 * 10**18  # 2182: what expires then is still there when this is read


class GoldenSegment:
    """A segment as it is made, and what is in it."""

    def __init__(self, topic: int, first: int) -> None:
        self.topic = topic
        self.first = first
        self.header = SegmentHeader(topic, first, NOW)
        self.data = encode_segment_header(self.header)
        self.frames: list[dict[str, Any]] = []
        self.entries: list[tuple[int, ...]] = []
        self.expiries: list[int] = []

    def add(self, records: Sequence[Record], codec: int = 0, kept: list[int] | None = None) -> None:
        """Append a batch of these records, or of the ones with these offsets."""
        columns, _ = columns_of(records, 1 << 20)
        columns.timestamps = [record.timestamp for record in records]
        flags, body = encode_columns(columns)
        header = FrameHeader(
            FrameType.RECORDS, flags, len(body), len(records), self.topic, records[0].offset,
            records[0].timestamp, records[-1].timestamp, 0, 0,
        )  # fmt: skip
        keep = None if kept is None else np.array([r.offset in kept for r in records], np.bool_)
        block = merge([Piece(Batch.parse(header, body), 0, len(records), keep)], codec)
        header = header._replace(
            flags=block.flags, body_length=len(block.body), count=block.count,
            base_offset=block.base_offset, base_timestamp=block.base_timestamp,
            max_timestamp=block.max_timestamp, body_checksum=body_checksum(block.body),
        )  # fmt: skip
        content = [_plain(r, 0) for r in records if kept is None or r.offset in kept]
        position = len(self.data)
        self.frames.append({"position": position, "header": header._asdict(), "records": content})
        self.data += encode_header(**header._asdict(), seed=0) + block.body
        self.entries.append(
            (
                block.base_offset, position, len(self.data) - position, block.count,
                block.base_timestamp, block.max_timestamp,
            )
        )  # fmt: skip
        self.expiries.append(block.expires_at)

    def summary(self, end: int, state: State) -> Summary:
        """The segment in short, as it is now."""
        return Summary(
            self.first, end, sum(entry[3] for entry in self.entries), len(self.data),
            self.entries[0][4], self.entries[-1][5],
            NEVER if NEVER in self.expiries else max(self.expiries), NOW, state,
        )  # fmt: skip

    def seal(self, end: int) -> tuple[Summary, SegmentFooter]:
        """Append index and footer."""
        summary = self.summary(end, State.SEALED)
        index = encode_index(np.array(self.entries, INDEX_DTYPE))
        footer = SegmentFooter(
            self.topic, self.first, end, summary.records, summary.min_timestamp,
            summary.max_timestamp, summary.expires_at, NOW + 99, len(self.data),
            len(index) // INDEX_BYTES, xxh3_64_intdigest(index),
        )  # fmt: skip
        self.data += index + encode_footer(footer)
        assert len(self.data) == summary.bytes + len(index) + FOOTER_BYTES
        return summary._replace(bytes=len(self.data)), footer

    def path(self, suffix: str = ".seg") -> str:
        """Its file, in the store."""
        return f"{topic_path('', self.topic)}/{segment_name(self.first, suffix)}"

    def expected(self, suffix: str, durable: int, footer: SegmentFooter | None) -> dict[str, Any]:
        """Describe its contents, for JSON."""
        return {
            "path": self.path(suffix).lstrip("/"),
            "seed": 0,
            "header": dict(zip(self.header._fields[:3], self.header, strict=False)),
            "footer": None if footer is None else footer._asdict(),
            "index": self.entries,
            "durable": durable,
            "frames": self.frames,
        }


def _lines(first: int, count: int, at: int, step: int = 0) -> list[Record]:
    return [
        Record(b"%d again and again and again" % n, offset=n, timestamp=at + step * n)
        for n in range(first, first + count)
    ]


def make_segments() -> tuple[GoldenSegment, GoldenSegment, GoldenSegment]:
    """Make two segments of one topic, and one of another that expires; none is sealed yet."""
    sealed = GoldenSegment(ORDERS, 10)
    full = [msgspec.structs.replace(record, offset=record.offset + 10) for record in FULL]
    full[0] = msgspec.structs.replace(full[0], expires_at=FAR)
    sealed.add(full)
    kept = [14, 15, 16, 17, 18, 19, 23, 24, 25]
    sealed.add(_lines(14, 12, NOW + 10**9, 3), CODECS["zstd"], kept)
    sealed.add(_lines(26, 14, NOW + 2 * 10**9, 1 << 30), CODECS["lz4"])
    growing = GoldenSegment(ORDERS, 40)
    growing.add(_lines(40, 10, NOW + 10**12), CODECS["gzip"])
    archive = GoldenSegment(ARCHIVE, 10)
    archive.add(
        [Record(b"%d" % n, None, {}, "tag", None, NOW + n, n, 0, FAR) for n in range(10, 20)]
    )
    return sealed, growing, archive


def _topic_state(id: int, body: TopicBody, **changes: Any) -> TopicState:
    nothing = BitMap64().serialize()
    state = TopicState(
        id, body.name, body.kind, body.created_at, body.epoch, 0, body.options, 0, 0, 0, 0, "", 0,
        0, nothing, nothing, b"",
    )  # fmt: skip
    return msgspec.structs.replace(state, **changes)


class GoldenStore:
    """A store that has lived: a snapshot, segments, and what the log says since."""

    def __init__(self) -> None:
        self.store = StoreFile(bytes(range(16, 32)), NOW)
        self.log = Golden(seed=FIRST_LSN)
        self.sealed, self.growing, self.archive = make_segments()
        self._make()

    def _control(self, type: FrameType, id: int, offset: int, body: bytes, **content: Any) -> None:
        self.log.add(FrameHeader(type, 0, 0, 0, id, offset, 0, 0, 0, 0), body, **content)

    def _make(self) -> None:
        log = self.log
        log.add_topic(BEFORE, 0, TopicBody("before the snapshot", "topic", NOW, {}))
        start = FIRST_LSN + len(log.data)
        bodies = {
            ORDERS: TopicBody("orders", "topic", NOW, {"compression": "zstd"}, 2),
            ARCHIVE: TopicBody("archive/注文", "topic", NOW, {}),
            COUNTER: TopicBody("counter", "topic", NOW, {"durability": "ephemeral"}),
            OLD: TopicBody("old", "topic", NOW, {"ttl": 1.5}),
        }
        whole, self.sealed_footer = self.sealed.seal(40)
        kept, self.archive_footer = self.archive.seal(20)
        before = Summary(0, 10, 9, 4096, NOW, NOW + 5, 0, NOW, State.COLD)
        states = [
            _topic_state(
                ORDERS, bodies[ORDERS], version=3, next_offset=50, last_timestamp=NOW + 10**12,
                earliest=10, evicted_below=10, evicted_reason="evicted", checkpointed=50,
                deleted=BitMap64([13, 45]).serialize(), lost=BitMap64([20, 21, 22]).serialize(),
                segments=encode_summaries([whole, self.growing.summary(50, State.OPEN)]),
            ),
            _topic_state(
                ARCHIVE, bodies[ARCHIVE], next_offset=20, last_timestamp=NOW + 19, checkpointed=20,
                segments=encode_summaries([before, kept]),
            ),
            _topic_state(COUNTER, bodies[COUNTER], next_offset=65536, reservation=1),
            _topic_state(OLD, bodies[OLD]),
        ]  # fmt: skip
        catalog = CatalogState(AGAIN, {"orders": 2, "gone": 1}, COLD, states, [3])
        self.snapshot = Snapshot(5, NOW, self.store.identity, LogState({0: start}), catalog)
        later = NOW + 2 * 10**12
        log.add_records(ORDERS, _lines(50, 10, later))
        self.growing.add(_lines(50, 10, later, 0))
        self.durable = len(self.growing.data)
        place = {"segment": 40, "position": self.durable}
        body = encode_checkpoint(**place)
        self._control(FrameType.CHECKPOINT, ORDERS, 60, body, checkpoint=place)
        log.add_records(ORDERS, _lines(60, 10, later))
        log.add_records(ORDERS, _lines(75, 5, later, 7))
        lost = list(range(70, 75))
        self._control(FrameType.LOST, ORDERS, 0, encode_delete(BitMap64(lost)), offsets=lost)
        self._control(FrameType.DELETE, ORDERS, 0, encode_delete(BitMap64([61])), offsets=[61])
        floor = {"evicted_below": 11, "reason": "expired"}
        self._control(FrameType.FLOOR, ORDERS, 12, encode_floor(11, "expired"), floor=floor)
        cold = kept._replace(state=State.COLD)
        tier = {"summary": cold._asdict(), "location": COLD}
        self._control(FrameType.TIER, ARCHIVE, 10, encode_tier(cold, COLD), tier=tier)
        log.add_reserve(COUNTER, 2, 131072)
        dropped = msgspec.to_builtins(bodies[OLD])
        self._control(FrameType.DROP, OLD, 0, encode_topic(bodies[OLD]), topic=dropped)
        self._control(FrameType.SKIP, 0, 0, b"whatever was here before", skip=True)
        log.add_topic(AGAIN, 0, TopicBody("old", "topic", NOW, {}, 1))
        log.add_records(AGAIN, _lines(0, 3, later))

    def read(self) -> dict[str, list[Any]]:
        """Offsets as they are read, topic by topic; a gap is its first, its last and its reason."""
        orders: list[Any] = [[0, 10, "expired"], 12, *range(14, 20), [20, 22, "damaged"]]
        orders += [n for n in range(23, 70) if n not in (45, 61)]
        orders += [[70, 74, "damaged"], *range(75, 80)]
        return {"orders": orders, "archive/注文": list(range(10, 20)), "old": [0, 1, 2]}

    def files(self) -> dict[str, bytes]:
        """Every file by its name."""
        log_path = log_file_path(shard_path("", 0), FIRST_LSN)
        snapshot = snapshot_path("", self.snapshot.number)
        plain = {
            "number": self.snapshot.number,
            "created_at": self.snapshot.created_at,
            "path": snapshot,
            "identity": self.snapshot.identity.hex(),
            "log": msgspec.to_builtins(self.snapshot.log, str_keys=True),
            "catalog": _plain_catalog(self.snapshot.catalog),
        }
        expected = {
            "store": {
                "identity": self.store.identity.hex(), "created_at": self.store.created_at,
            },
            "snapshot": plain,
            "segments": [
                self.sealed.expected(".seg", len(self.sealed.data), self.sealed_footer),
                self.growing.expected(".open", self.durable, None),
                self.archive.expected(".seg", len(self.archive.data), self.archive_footer),
            ],
            "log": {"path": log_path, "seed": self.log.seed, "frames": self.log.frames},
            "read": self.read(),
        }  # fmt: skip
        torn = encode_header(1, 0, 4096, 9, ORDERS, 60, NOW, NOW, 0, 0)[:40]
        return {
            store_path(""): encode_store(self.store),
            snapshot: encode_snapshot(self.snapshot),
            self.sealed.path(): self.sealed.data,
            # What a crash left of a batch that the log has.
            self.growing.path(".open"): self.growing.data + torn,
            self.archive.path(): self.archive.data,
            log_path: self.log.data + bytes(8 * HEADER_BYTES),
            "expected.json": _lined(expected),
        }


def _plain_catalog(catalog: CatalogState) -> dict[str, Any]:
    """For JSON: topics by field, bytes in hex."""
    topics = [
        {
            name: value.hex() if isinstance(value := getattr(topic, name), bytes) else value
            for name in TopicState.__struct_fields__
        }
        for topic in catalog.topics
    ]
    fields = {name: getattr(catalog, name) for name in CatalogState.__struct_fields__}
    return fields | {"topics": topics}


def _json(expected: object) -> bytes:
    return (json.dumps(expected, ensure_ascii=False, indent=1) + "\n").encode()


def _lined(expected: object) -> bytes:
    """Print a line per frame and per record, instead of per field."""
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    return (text.replace("},{", "},\n{").replace('},"', '},\n"') + "\n").encode()


# --- writing them ------------------------------------------------------------------------------


def log_files() -> dict[str, bytes]:
    """A store that is nothing but log, and a snapshot that says where that begins."""
    store = StoreFile(bytes(range(16)), NOW)
    log, compacted = make_log(), make_compacted()
    log_path = Path(log_file_path(shard_path("", 0), FIRST_LSN))
    expected = {
        "store": {"identity": store.identity.hex(), "created_at": store.created_at},
        "log": {"path": str(log_path), "seed": log.seed, "frames": log.frames},
        "compacted": {"path": "compacted.frame", "seed": 0, "frames": compacted.frames},
    }
    catalog = CatalogState(1, {}, "", [], [])
    snapshot = Snapshot(1, NOW, store.identity, LogState({0: FIRST_LSN}), catalog)
    return {
        store_path(""): encode_store(store),
        # Zeros after the frames, as in a file that was prepared and not filled.
        str(log_path): log.data + bytes(8 * HEADER_BYTES),
        snapshot_path("", 1): encode_snapshot(snapshot),
        "compacted.frame": compacted.data,
        "expected.json": _json(expected),
    }


def batch_files() -> dict[str, bytes]:
    """A store whose log has frames of several topics."""
    store = StoreFile(bytes(range(32, 48)), NOW)
    log = make_batches()
    log_path = Path(log_file_path(shard_path("", 0), FIRST_LSN))
    catalog = CatalogState(1, {}, "", [], [])
    snapshot = Snapshot(1, NOW, store.identity, LogState({0: FIRST_LSN}), catalog)
    expected = {
        "store": {"identity": store.identity.hex(), "created_at": store.created_at},
        "log": {"path": str(log_path), "seed": log.seed, "frames": log.frames},
    }
    return {
        store_path(""): encode_store(store),
        str(log_path): log.data + bytes(8 * HEADER_BYTES),
        snapshot_path("", 1): encode_snapshot(snapshot),
        "expected.json": _lined(expected),
    }


def make_manifest() -> Manifest:
    """Records for two topics, and a segment that replaces two."""
    names = [f"{NOW + n:020d}-{n:032x}" for n in range(3)]
    staged = [
        StagedSegment(names[0], 4096, NOW, 0, 20, 20, NOW, NOW + 9, 0, NOW + 10, 3912, 2, 7 << 50),
        StagedSegment(names[1], 1024, NOW, 0, 1, 1, NOW, NOW, NOW + 99, NOW + 10, 880, 1, 1),
        StagedSegment(names[2], 2048, NOW, 10, 50, 3, NOW, NOW + 5, 0, NOW + 6, 1904, 1, 5),
    ]
    old = [
        Summary(10, 30, 20, 3000, NOW, NOW + 3, 0, NOW, State.SEALED),
        Summary(30, 50, 20, 3000, NOW + 3, NOW + 5, 0, NOW, State.SEALED),
    ]
    parts = [
        Part("append", "orders", 0, 0, staged[:1]),
        Part("append", "Grüße", 0, 0, staged[1:2]),
        Part("replace", "", 7, 1, staged[2:], encode_summaries(old)),
    ]
    return Manifest("query 1", 41, False, NOW, parts)


def make_adoption() -> Adoption:
    """Describe the log once that manifest was adopted."""
    places = [(7, 50, NOW + 5), (9, 0, 0), (7, 10, 0)]
    parts = [
        AdoptedPart(part.adopted_kind, topic_id, first, floor, part.segments)
        for part, (topic_id, first, floor) in zip(make_manifest().parts, places, strict=True)
    ]
    return Adoption("query 1", 41, False, parts)


def make_upsert() -> Manifest:
    """Changes of a table."""
    name = f"{NOW:020d}-{5:032x}"
    staged = StagedSegment(name, 1024, NOW, 0, 3, 3, NOW, NOW, NOW + 99, NOW + 10, 880, 1, 1)
    return Manifest("query 1", 42, False, NOW, [Part("upsert", "users", 0, 0, [staged])])


def manifest_files() -> dict[str, bytes]:
    """A manifest, and the body of the frame that adopts it."""
    expected = {
        "manifest": msgspec.to_builtins(make_manifest()),
        "adoption": msgspec.to_builtins(make_adoption()),
    }
    return {
        "batch.manifest": encode_manifest(make_manifest()),
        "upsert.manifest": encode_manifest(make_upsert()),
        "adopt.body": encode_adoption(make_adoption()),
        "manifest.json": _json(expected),
    }


def main() -> int:
    """Write the files of this version that do not exist; fail if there are none."""
    made = 0
    for root, files in (
        (GOLDEN / f"v{VERSION}", log_files() | manifest_files()),
        (GOLDEN / f"v{VERSION}-store", GoldenStore().files()),
        (GOLDEN / f"v{VERSION}-batches", batch_files()),
    ):
        assert max(map(len, files.values())) <= BYTES_MAX, {n: len(d) for n, d in files.items()}
        for name, data in files.items():
            path = root / name.lstrip("/")
            if path.exists():
                print(f"{path.relative_to(GOLDEN)} exists: never made again", file=sys.stderr)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"{path.relative_to(GOLDEN)}: {len(data)} bytes")
            made += 1
    return 0 if made else 1


if __name__ == "__main__":
    sys.exit(main())
