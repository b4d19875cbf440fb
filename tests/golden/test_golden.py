"""Files that past releases wrote are read by this one, to the last byte.

`scripts/make_golden.py` made them. They are never made again: if a test here fails, the format
has changed, and what changed is the code.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog.format.arrow import TYPES, schema, to_arrow
from stratalog.format.batch import Batch
from stratalog.format.codec import CODECS, decompress
from stratalog.format.columns import encode_columns
from stratalog.format.control import (
    TopicBody,
    decode_reserve,
    decode_topic,
    encode_reserve,
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
from stratalog.format.snapshot import CatalogState, LogState
from stratalog.format.store import StoreFile, decode_store, encode_store
from stratalog.fs import PosixFileSystem
from stratalog.inputs import columns_of
from stratalog.model import NO_HEADERS, Record
from stratalog.projections.snapshot import SnapshotFiles

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*"))
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
        """What should be read from it."""
        return [_record(plain) for plain in self.expected["records"]]

    def parse(self) -> Batch:
        """What is read from it."""
        return Batch.parse(self.header, self.data, self.position + HEADER_BYTES)


def _frames(version: str, file: str) -> list[Frame]:
    entry = _expected(version)[file]
    data = (HERE / version / entry["path"].lstrip("/")).read_bytes()
    return [Frame(f"{version}-{file}", data, entry["seed"], frame) for frame in entry["frames"]]


ALL = [
    frame
    for version in VERSIONS
    for file in ("log", "compacted")
    for frame in _frames(version, file)
]
BATCHES = [frame for frame in ALL if frame.header.type == FrameType.RECORDS]
each_version = pytest.mark.parametrize("version", VERSIONS)
each_frame = pytest.mark.parametrize("frame", ALL, ids=lambda frame: frame.id)
each_batch = pytest.mark.parametrize("frame", BATCHES, ids=lambda frame: frame.id)


@each_version
def test_the_store_file_is_read_and_written_the_same(version: str) -> None:
    """Both ways, byte for byte."""
    data = (HERE / version / "store").read_bytes()
    plain = _expected(version)["store"]
    store = StoreFile(bytes.fromhex(plain["identity"]), plain["created_at"])
    assert decode_store(data) == store
    assert encode_store(store) == data


@each_version
@pytest.mark.parametrize("file", ["log", "compacted"])
def test_frames_follow_each_other_to_the_end(version: str, file: str) -> None:
    """Each begins where the one before ends; behind the last there are only zeros."""
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
    """The same content in every column."""
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
    """Topics and reservations, byte for byte."""
    if frame.header.type == FrameType.TOPIC:
        topic = TopicBody(**frame.expected["topic"])
        assert decode_topic(frame.body) == topic
        assert encode_topic(topic) == frame.body
    elif frame.header.type == FrameType.RESERVE:
        number = frame.expected["reserve"]
        assert decode_reserve(frame.body) == number
        assert encode_reserve(number) == frame.body
    else:
        assert frame in BATCHES


def _add_snapshot(path: Path) -> None:
    """Say that the log before this one was given up: it does not begin at the beginning."""
    starts = {0: int(next((path / "log" / "shard-00").glob("*.log")).stem)}
    identity = decode_store((path / "store").read_bytes()).identity
    catalog = CatalogState(next_topic_id=1, epochs={}, cold="", topics=[], dropped=[])
    files = SnapshotFiles(PosixFileSystem(), str(path), identity)
    files.write(LogState(starts), catalog, 0)


@each_version
def test_the_directory_opens_as_a_store(version: str, tmp_path: Path) -> None:
    """Everything that was appended comes back through the front door."""
    shutil.copytree(HERE / version, tmp_path / "data")
    _add_snapshot(tmp_path / "data")
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
    assert flags == known & ~Flag.SHORT_TIMESTAMPS  # which is for segments alone
    assert {frame.header.flags & CODEC_MASK for frame in BATCHES} == set(CODECS.values())
    types = {frame.header.type for frame in ALL}
    assert types == {FrameType.RECORDS, FrameType.TOPIC, FrameType.RESERVE}


@each_version
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
