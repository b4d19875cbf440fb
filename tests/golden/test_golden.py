"""Files that past releases wrote are read by this one, to the last byte.

`scripts/make_golden.py` made them. They are never made again: if a test here fails, the format
has changed, and what changed is the code.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

import stratalog
from stratalog.arguments import columns_of
from stratalog.errors import ColdStoreError
from stratalog.format.arrow import TYPES, schema, to_arrow
from stratalog.format.batch import Batch
from stratalog.format.codec import CODECS, decompress
from stratalog.format.columns import encode_columns
from stratalog.format.control import (
    TopicBody,
    decode_checkpoint,
    decode_delete,
    decode_floor,
    decode_reserve,
    decode_tier,
    decode_topic,
    encode_checkpoint,
    encode_delete,
    encode_floor,
    encode_reserve,
    encode_tier,
    encode_topic,
)
from stratalog.format.frame import (
    CODEC_MASK,
    HEADER_BYTES,
    Flag,
    FrameHeader,
    FrameType,
    check_body,
    decode_header,
    encode_header,
)
from stratalog.format.manifest import (
    decode_adoption,
    decode_manifest,
    encode_adoption,
    encode_manifest,
)
from stratalog.format.merge import Part, merge
from stratalog.format.segment import (
    FOOTER_BYTES,
    INDEX_BYTES,
    INDEX_DTYPE,
    SegmentFooter,
    SegmentHeader,
    State,
    Summary,
    decode_footer,
    decode_index,
    decode_segment_header,
    decode_summaries,
    encode_footer,
    encode_index,
    encode_segment_header,
    encode_summaries,
)
from stratalog.format.segment import HEADER_BYTES as SEGMENT_HEADER_BYTES
from stratalog.format.snapshot import (
    CatalogState,
    LogState,
    Snapshot,
    TopicState,
    decode_snapshot,
    encode_snapshot,
)
from stratalog.format.store import StoreFile, decode_store, encode_store
from stratalog.model import NO_HEADERS, Gap, Record
from stratalog.segments.segment import scan_index

HERE = Path(__file__).parent
OTHERS = (
    "*-queues",
    "*-cold",
    "*-ceilings",
    "*-routes",
    "*-schedules",
    "*-series",
    "*-tables",
    "*-lake",
)
"""Directories that have tests of their own."""
DIRECTORIES = sorted(
    path.name for path in HERE.glob("v*") if not any(path.match(other) for other in OTHERS)
)
VERSIONS = [name for name in DIRECTORIES if re.fullmatch(r"v\d+", name)]
"""Nothing but log."""
STORES = [name for name in DIRECTORIES if re.fullmatch(r"v\d+-store", name)]
"""A snapshot, segments, and the log after them."""
SCRIPT = HERE.parent.parent / "scripts" / "make_golden.py"


def _expected(version: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((HERE / version / "expected.json").read_text())
    return expected


def _record(plain: dict[str, Any]) -> Record:
    fields = dict(plain)
    for name in ("value", "key"):
        if fields.get(name) is not None:
            fields[name] = bytes.fromhex(fields[name])
    headers = {name: bytes.fromhex(value) for name, value in fields.get("headers", {}).items()}
    return Record(**fields | {"headers": headers or NO_HEADERS})


class Frame:
    """A golden frame: where it is, its bytes, and what it should say."""

    def __init__(self, file: str, data: bytes, seed: int, expected: dict[str, Any]) -> None:
        self.id = f"{file}-{expected['position']}"
        self.data = data
        self.seed = seed
        self.position: int = expected["position"]
        self.header = FrameHeader(**expected["header"])
        self.expected = expected
        self.end = self.position + HEADER_BYTES + self.header.body_length

    @property
    def body(self) -> bytes:
        """As it is stored."""
        return self.data[self.position + HEADER_BYTES : self.end]

    @property
    def records(self) -> list[Record]:
        """Load what should be read from it."""
        return [_record(plain) for plain in self.expected["records"]]

    def parse(self) -> Batch:
        """Read what is in it."""
        return Batch.parse(self.header, self.data, self.position + HEADER_BYTES)


def _frames(version: str, file: str) -> list[Frame]:
    return _frames_of(version, file, _expected(version)[file])


def _frames_of(version: str, file: str, entry: dict[str, Any]) -> list[Frame]:
    data = (HERE / version / entry["path"].lstrip("/")).read_bytes()
    return [Frame(f"{version}-{file}", data, entry["seed"], frame) for frame in entry["frames"]]


class Segment:
    """A golden segment: its bytes, and what they should say."""

    def __init__(self, version: str, expected: dict[str, Any]) -> None:
        self.id = f"{version}-{expected['path']}"
        self.data = (HERE / version / expected["path"]).read_bytes()
        self.header = SegmentHeader(**expected["header"])
        self.index = np.array([tuple(entry) for entry in expected["index"]], INDEX_DTYPE)
        self.footer = None if expected["footer"] is None else SegmentFooter(**expected["footer"])
        self.durable: int = expected["durable"]
        self.frames = _frames_of(version, "segment", expected)


SEGMENTS = [Segment(name, entry) for name in STORES for entry in _expected(name)["segments"]]
MERGED = [frame for segment in SEGMENTS for frame in segment.frames]
FILES = [(version, file) for version in VERSIONS for file in ("log", "compacted")]
FILES += [(name, "log") for name in STORES]
ALL = [frame for version, file in FILES for frame in _frames(version, file)] + MERGED
BATCHES = [frame for frame in ALL if frame.header.type == FrameType.RECORDS]
each_directory = pytest.mark.parametrize("version", DIRECTORIES)
each_version = pytest.mark.parametrize("version", VERSIONS)
each_store = pytest.mark.parametrize("version", STORES)
each_segment = pytest.mark.parametrize("segment", SEGMENTS, ids=lambda segment: segment.id)
each_frame = pytest.mark.parametrize("frame", ALL, ids=lambda frame: frame.id)
each_batch = pytest.mark.parametrize("frame", BATCHES, ids=lambda frame: frame.id)


@each_directory
def test_the_store_file_is_read_and_written_the_same(version: str) -> None:
    """Both ways, byte for byte."""
    data = (HERE / version / "store").read_bytes()
    plain = _expected(version)["store"]
    identity = bytes.fromhex(plain["identity"])
    store = StoreFile(identity, plain["created_at"], plain.get("version", 1))
    assert decode_store(data) == store
    assert encode_store(store) == data


@pytest.mark.parametrize(("version", "file"), FILES)
def test_frames_follow_each_other_to_the_end(version: str, file: str) -> None:
    """Each begins where the one before ends; after the last there are only zeros."""
    frames = _frames(version, file)
    assert [frame.position for frame in frames] == [0, *[frame.end for frame in frames[:-1]]]
    assert not frames[-1].data[frames[-1].end :].strip(b"\0")


@each_frame
def test_a_header_is_read_and_written_the_same(frame: Frame) -> None:
    """Every field, and the checksum with its seed."""
    data = frame.data[frame.position : frame.position + HEADER_BYTES]
    header = decode_header(frame.data, frame.position, seed=frame.seed)
    assert header == frame.header
    assert encode_header(**header._asdict(), seed=frame.seed) == data
    check_body(header, frame.data, frame.position + HEADER_BYTES)


@each_batch
def test_records_are_read(frame: Frame) -> None:
    """All of every record, plain or compressed."""
    assert frame.parse().records() == frame.records


@each_batch
def test_records_are_read_as_arrow(frame: Frame) -> None:
    """Every column has the expected content."""
    data = to_arrow(frame.parse(), schema(list(TYPES)), 0, frame.header.count)
    data.validate(full=True)
    for name in TYPES:
        column = data.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        found = column.to_pylist()
        if name == "headers":
            found = [{pair["key"]: pair["value"] for pair in pairs or []} for pairs in found]
        elif name in ("priority", "expires_at", "not_before", "operation"):
            found = [item or 0 for item in found]
        assert found == [getattr(record, name) for record in frame.records]


@each_batch
def test_records_are_written_the_same(frame: Frame) -> None:
    """The plain body, byte for byte; compressed bytes are the codec's own affair."""
    if frame in MERGED:
        block = merge([Part(frame.parse(), 0, frame.header.count)], 0)
        codec = frame.header.flags & CODEC_MASK
        assert block.flags | codec == frame.header.flags
        assert block.body == decompress(frame.body, codec)
        return
    columns, times = columns_of(frame.records, 1 << 20)
    columns.timestamps = times
    flags, body = encode_columns(columns)
    codec = frame.header.flags & CODEC_MASK
    plain = decompress(frame.body, codec)
    if frame.header.flags & Flag.OFFSETS:  # these are written by compaction, not by appends
        plain = plain[-len(body) :]
        flags |= Flag.OFFSETS
    assert flags | codec == frame.header.flags
    assert body == plain


@each_frame
def test_control_frames_are_read_and_written_the_same(frame: Frame) -> None:
    """Each type has its bytes."""
    expected, body = frame.expected, frame.body
    type = frame.header.type
    if type in (FrameType.TOPIC, FrameType.DROP):
        topic = TopicBody(**expected["topic"])
        assert decode_topic(body) == topic
        assert encode_topic(topic) == body
    elif type == FrameType.RESERVE:
        assert decode_reserve(body) == expected["reserve"]
        assert encode_reserve(expected["reserve"]) == body
    elif type == FrameType.CHECKPOINT:
        place = expected["checkpoint"]
        assert decode_checkpoint(body) == (place["segment"], place["position"])
        assert encode_checkpoint(**place) == body
    elif type in (FrameType.DELETE, FrameType.LOST):
        assert list(decode_delete(body)) == expected["offsets"]
        assert encode_delete(BitMap64(expected["offsets"])) == body
    elif type == FrameType.FLOOR:
        floor = expected["floor"]
        assert decode_floor(body) == (floor["evicted_below"], floor["reason"])
        assert encode_floor(**floor) == body
    elif type == FrameType.TIER:
        summary, location = Summary(**expected["tier"]["summary"]), expected["tier"]["location"]
        assert decode_tier(body) == (summary, location, "")
        assert encode_tier(summary, location) == body
    elif type == FrameType.SKIP:
        assert expected["skip"]
    else:
        assert frame in BATCHES


@each_segment
def test_the_ends_of_a_segment_are_read_and_written_the_same(segment: Segment) -> None:
    """Header, and of a sealed one index and footer, byte for byte."""
    data, footer = segment.data, segment.footer
    assert decode_segment_header(data) == segment.header
    assert encode_segment_header(segment.header) == data[:SEGMENT_HEADER_BYTES]
    if footer is None:
        return
    assert decode_footer(data, len(data)) == footer
    assert encode_footer(footer) == data[-FOOTER_BYTES:]
    stored = data[footer.index_position : -FOOTER_BYTES]
    assert len(stored) == footer.index_count * INDEX_BYTES
    assert decode_index(stored, footer).tolist() == segment.index.tolist()
    assert encode_index(segment.index) == stored


@each_segment
def test_the_batches_of_a_segment_follow_each_other(segment: Segment) -> None:
    """From the header to the index, or to what is durable; the index can be made from them."""
    frames = segment.frames
    places = [(frame.position, frame.end) for frame in frames]
    assert [start for start, _ in places] == [SEGMENT_HEADER_BYTES, *(e for _, e in places[:-1])]
    end = segment.durable if segment.footer is None else segment.footer.index_position
    assert places[-1][1] == end
    data = segment.data
    index = scan_index(lambda at, n: data[at : at + n], segment.header.topic_id, len(data))
    assert index.tolist() == segment.index.tolist()


def _snapshot(plain: dict[str, Any]) -> Snapshot:
    catalog = dict(plain["catalog"])
    hexed = ("deleted", "lost", "segments")
    catalog["topics"] = [
        TopicState(**topic | {name: bytes.fromhex(topic[name]) for name in hexed})
        for topic in catalog["topics"]
    ]
    log = LogState({int(shard): lsn for shard, lsn in plain["log"]["shards"].items()})
    identity = bytes.fromhex(plain["identity"])
    return Snapshot(plain["number"], plain["created_at"], identity, log, CatalogState(**catalog))


@each_store
def test_the_snapshot_is_read_and_written_the_same(version: str) -> None:
    """Every topic in every state it can be in, byte for byte."""
    plain = _expected(version)["snapshot"]
    data = (HERE / version / plain["path"].lstrip("/")).read_bytes()
    snapshot = _snapshot(plain)
    assert decode_snapshot(data) == snapshot
    assert encode_snapshot(snapshot) == data
    states = set()
    for topic in snapshot.catalog.topics:
        summaries = decode_summaries(topic.segments)
        assert encode_summaries(summaries) == topic.segments
        states |= {summary.state for summary in summaries}
    assert states == set(State)


@each_store
def test_a_store_with_snapshot_and_segments_is_read(version: str) -> None:
    """Every record with all it has, every gap with its reason, through the front door."""
    expected = _expected(version)
    ids = {topic["name"]: topic["id"] for topic in expected["snapshot"]["catalog"]["topics"]}
    records: dict[int, dict[int, Record]] = {}
    for frame in [*_frames(version, "log"), *MERGED]:
        if frame.header.type == FrameType.TOPIC:
            ids[frame.expected["topic"]["name"]] = frame.header.topic_id
        elif frame.header.type == FrameType.RECORDS:
            own = records.setdefault(frame.header.topic_id, {})
            own.update({record.offset: record for record in frame.records})
    before = {path: path.read_bytes() for path in (HERE / version).rglob("*") if path.is_file()}
    with stratalog.open(HERE / version, read_only=True) as store:
        assert store.stats().damage is None
        assert store.topics() == sorted([*expected["read"], "counter"])
        for name, content in expected["read"].items():
            own = records[ids[name]]
            wanted = [Gap(*item) if isinstance(item, list) else own[item] for item in content]
            start = 10 if name.startswith("archive") else 0
            assert list(store.topic(name).read(start)) == wanted
        with pytest.raises(ColdStoreError, match="s3://bucket"):
            list(store.topic("archive/注文").read(0))
    after = {path: path.read_bytes() for path in (HERE / version).rglob("*") if path.is_file()}
    assert after == before


@each_store
def test_a_writer_goes_on_with_the_store(version: str, tmp_path: Path) -> None:
    """It cleans up, appends, moves the log to segments, and all is read as before."""
    shutil.copytree(HERE / version, tmp_path / "data")
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        before = list(store.topic("orders").read(0))
    with stratalog.open(tmp_path / "data") as store:
        assert store.stats().damage is None
        assert store.topic("orders").append(b"one more") == 80
        assert store.topic("counter").append(b"counted") == 131072
        store.snapshot()
        store.snapshot()
        assert list(store.topic("orders").read(0))[:-1] == before
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        found = list(store.topic("orders").read(0))
        assert found[:-1] == before
        assert isinstance(found[-1], Record)
        assert (found[-1].offset, found[-1].value) == (80, b"one more")


@each_version
def test_the_directory_opens_as_a_store(version: str, tmp_path: Path) -> None:
    """Everything that was appended comes back through the front door."""
    shutil.copytree(HERE / version, tmp_path / "data")
    expected: dict[int, list[Record]] = {}
    names: dict[int, str] = {}
    for frame in _frames(version, "log"):
        id = frame.header.topic_id
        if frame.header.type == FrameType.TOPIC:
            names[id] = frame.expected["topic"]["name"]
        elif frame.header.type == FrameType.RECORDS:
            expected.setdefault(id, []).extend(frame.records)
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert store.stats().damage is None
        for id, records in expected.items():
            alive = [record for record in records if not record.expires_at]
            found = [item for item in store.topic(names[id]).read() if isinstance(item, Record)]
            assert [record for record in found if not record.expires_at] == alive


def test_the_files_have_everything_a_release_writes() -> None:
    """Every type, every codec and every column that exists today, or it is not golden yet."""
    flags = 0
    for frame in BATCHES:
        flags |= frame.header.flags & ~CODEC_MASK
    known = sum(value for name, value in vars(Flag).items() if name.isupper())
    known -= Flag.EVENT_TIMES  # came later, and has a store of its own
    assert flags == known
    merged = 0
    for frame in MERGED:
        merged |= frame.header.flags & ~CODEC_MASK
    assert merged == known
    assert {frame.header.flags & CODEC_MASK for frame in BATCHES} == set(CODECS.values())
    types = {frame.header.type for frame in ALL}
    not_yet = {FrameType.GROUP, FrameType.ADOPT}
    # As the names of tests say.
    elsewhere = {
        FrameType.MULTI, FrameType.ROUTE, FrameType.FORWARD, FrameType.LAKE, FrameType.SCHEDULE,
        FrameType.DUE,
    }  # fmt: skip
    assert types == set(FrameType) - not_yet - elsewhere


@each_directory
def test_the_files_are_small(version: str) -> None:
    """They are in the repository for ever."""
    for path in (HERE / version).rglob("*"):
        assert path.is_dir() or path.stat().st_size <= 20_000


def test_golden_files_are_never_made_again() -> None:
    """The script that made them refuses."""
    before = {path: path.stat().st_mtime_ns for path in HERE.rglob("v*/**/*")}
    run = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "never made again" in run.stderr
    assert {path: path.stat().st_mtime_ns for path in HERE.rglob("v*/**/*")} == before


@pytest.mark.parametrize("version", VERSIONS)
def test_a_manifest_for_a_table_is_read_and_written_as_it_was(version: str) -> None:
    """It is adopted as an append."""
    data = (HERE / version / "upsert.manifest").read_bytes()
    manifest = decode_manifest(data)
    assert encode_manifest(manifest) == data
    (part,) = manifest.parts
    assert (part.kind, part.topic, part.adopted_kind) == ("upsert", "users", "append")
    assert (part.segments[0].records, manifest.batch) == (3, 42)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_manifest_is_read_and_written_as_it_was(version: str) -> None:
    """Staged segments, and the frame that adopts them."""
    expected = json.loads((HERE / version / "manifest.json").read_text())
    data = (HERE / version / "batch.manifest").read_bytes()
    manifest = decode_manifest(data)
    assert json.loads(msgspec.json.encode(manifest)) == expected["manifest"]
    assert encode_manifest(manifest) == data
    body = (HERE / version / "adopt.body").read_bytes()
    adoption = decode_adoption(body)
    assert json.loads(msgspec.json.encode(adoption)) == expected["adoption"]
    assert encode_adoption(adoption) == body
    first, second = (part.placed()[0].footer for part in adoption.parts[:2])
    assert (first.topic_id, first.first_offset, first.end_offset) == (7, 50, 70)
    assert second.min_timestamp == manifest.created_at
