"""Make the golden files of the current format version: once, then never again.

    python scripts/make_golden.py

writes `tests/golden/v<version>/`: a whole small store, a compacted frame as a segment would hold
it, and `expected.json`, which says what is in them. Nothing depends on the time or on chance, but
compressed bytes may differ with another release of a codec: what counts is that the files of the
past are read. So existing files are never overwritten; a new format version gets a new directory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stratalog.format.codec import CODECS, compress
from stratalog.format.columns import encode_columns
from stratalog.format.control import Option, TopicBody, encode_reserve, encode_topic
from stratalog.format.frame import (
    HEADER_BYTES,
    VERSION,
    Flag,
    FrameHeader,
    FrameType,
    body_checksum,
    encode_header,
)
from stratalog.format.names import log_file_path, shard_path, store_path
from stratalog.format.store import StoreFile, encode_store
from stratalog.inputs import columns_of
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

    def add_records(
        self, topic: int, records: list[Record], codec: int = 0, deltas: list[int] | None = None
    ) -> None:
        """Append a batch: compressed, or with holes between its offsets."""
        columns, times = columns_of(records, 1 << 20)
        columns.timestamps = times
        flags, body = encode_columns(columns)
        if deltas is not None:
            assert not flags & Flag.TIMESTAMPS, "offsets stand behind timestamps"
            flags |= Flag.OFFSETS
            body = np.array(deltas, np.uint32).tobytes() + bytes(4 * (len(deltas) % 2)) + body
        if codec:
            smaller = compress(body, codec)
            assert smaller is not None
            flags, body = flags | codec, smaller
        times = times or [NOW]
        header = FrameHeader(
            FrameType.RECORDS, flags, 0, len(records), topic, records[0].offset,
            times[0], times[-1], 0, len(self.frames) % 3,
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


def make_compacted() -> Golden:
    """A frame as it is outside of a log: seed 0, and offsets with holes."""
    frame = Golden(seed=0)
    deltas = [0, 2, 70_000]
    records = [Record(b"kept", b"key", offset=100 + delta) for delta in deltas]
    frame.add_records(ORDERS, records, deltas=deltas)
    return frame


def main() -> int:
    """Write the files of this version, unless they exist."""
    root = GOLDEN / f"v{VERSION}"
    if root.exists():
        print(f"{root.name} exists: golden files are never made again", file=sys.stderr)
        return 1
    store = StoreFile(bytes(range(16)), NOW)
    log, compacted = make_log(), make_compacted()
    log_path = Path(log_file_path(shard_path("", 0), FIRST_LSN))
    expected = {
        "store": {"identity": store.identity.hex(), "created_at": store.created_at},
        "log": {"path": str(log_path), "seed": log.seed, "frames": log.frames},
        "compacted": {"path": "compacted.frame", "seed": 0, "frames": compacted.frames},
    }
    files = {
        store_path(""): encode_store(store),
        # Zeros behind the frames, as in a file that was prepared and not filled.
        str(log_path): log.data + bytes(8 * HEADER_BYTES),
        "compacted.frame": compacted.data,
        "expected.json": (json.dumps(expected, ensure_ascii=False, indent=1) + "\n").encode(),
    }
    assert max(map(len, files.values())) <= BYTES_MAX, {n: len(d) for n, d in files.items()}
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"{path.relative_to(GOLDEN)}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
