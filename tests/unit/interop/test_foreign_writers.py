"""Directories that we write for other systems: their bytes, and what is read back from them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from crc32c import crc32c

from stratalog.errors import OptionError
from stratalog.fs import PosixFileSystem
from stratalog.interop.fluxmq.read import Run, _runs
from stratalog.interop.fluxmq.read import read as read_fluxmq
from stratalog.interop.fluxmq.write import write as write_fluxmq
from stratalog.interop.ledgerq import format as ledgerq
from stratalog.interop.ledgerq.read import read as read_ledgerq
from stratalog.interop.ledgerq.write import write as write_ledgerq
from stratalog.interop.model import SCHEMA, ForeignTopic
from stratalog.interop.topics.read import read as read_topics
from stratalog.interop.topics.replay import frames
from stratalog.interop.topics.state import record_of
from stratalog.interop.topics.write import encode_frame, envelope
from stratalog.interop.topics.write import write as write_topics

FOREIGN = Path(__file__).parents[2] / "golden" / "foreign"
FS = PosixFileSystem()


def table(topic: ForeignTopic) -> pa.Table:
    """All records of a topic."""
    return pa.Table.from_batches(list(topic.batches()), SCHEMA)


# --- LedgerQ -----------------------------------------------------------------------------------


def with_time_of(data: bytes, original: bytes) -> bytes:
    """A segment with the creation time of another, which no export can know."""
    header = data[:16] + original[16:24] + data[24:60]
    return header + ledgerq.CHECKSUM.pack(crc32c(header)) + data[ledgerq.HEADER_BYTES :]


@pytest.mark.parametrize(("case", "messages"), [("plain", 100), ("dedup", 1_000_000)])
def test_ledgerq_is_written_byte_for_byte(case: str, messages: int, tmp_path: Path) -> None:
    """Segments, indexes and position are what LedgerQ wrote, but for the time of creation."""
    source = FOREIGN / "ledgerq" / case / "data"
    queue = read_ledgerq(FS, str(source)).contents["data"]
    write_ledgerq(FS, str(tmp_path), queue, segment_messages=messages)
    for original in sorted(source.iterdir()):
        if original.suffix == ".json":
            continue  # its entries are in random order
        data = (tmp_path / original.name).read_bytes()
        if original.suffix == ".log":
            data = with_time_of(data, original.read_bytes())
        assert data == original.read_bytes(), original.name


@pytest.mark.parametrize("case", sorted(path.name for path in (FOREIGN / "ledgerq").iterdir()))
def test_ledgerq_is_read_back_as_it_was_written(case: str, tmp_path: Path) -> None:
    """Messages, position, retries and deduplication ids."""
    source = read_ledgerq(FS, str(FOREIGN / "ledgerq" / case / "data"), name="q")
    queue = source.contents["q"]
    (tmp_path / "out").mkdir()
    assert write_ledgerq(FS, str(tmp_path / "out"), queue) == table(queue).num_rows
    back = read_ledgerq(FS, str(tmp_path / "out"), name="q").contents["q"]
    assert table(back) == table(queue)
    assert (back.first, back.end, back.cursor) == (queue.first, queue.end, queue.cursor)
    assert (back.pending, back.dedup) == (queue.pending, queue.dedup)


# --- FluxMQ ------------------------------------------------------------------------------------


def batch_sizes(directory: Path) -> list[int]:
    """Records of each batch of a queue."""
    return [
        size
        for path in sorted(directory.glob("*.seg"))
        for run in _runs(memoryview(path.read_bytes()), path.name)
        if isinstance(run, Run)
        for size in run.heads["count"].tolist()
    ]


def test_fluxmq_is_written_byte_for_byte(tmp_path: Path) -> None:
    """Segments and both indexes are what FluxMQ wrote for the same batches.

    Except a batch whose base time is not that of its first record: FluxMQ looked at the clock
    twice, and the millisecond changed in between.
    """
    source = FOREIGN / "fluxmq" / "none" / "data"
    segments = source / "queues" / "events" / "segments"
    events = read_fluxmq(FS, str(source)).contents["events"]
    sizes = batch_sizes(segments)
    write_fluxmq(
        FS, str(tmp_path), [events], [],
        batch_records=sizes, segment_bytes=10_000, index_interval=1024,
    )  # fmt: skip
    written = tmp_path / "queues" / "events" / "segments"
    assert sorted(path.name for path in written.iterdir()) == sorted(
        path.name for path in segments.iterdir()
    )
    different = [
        path.name
        for path in sorted(segments.iterdir())
        if path.read_bytes() != (written / path.name).read_bytes()
    ]
    assert different == ["00000000000000000295.seg"]


@pytest.mark.parametrize("case", sorted(path.name for path in (FOREIGN / "fluxmq").iterdir()))
def test_fluxmq_is_read_back_as_it_was_written(case: str, tmp_path: Path) -> None:
    """Records with their offsets, and groups with what is pending."""
    source = read_fluxmq(FS, str(FOREIGN / "fluxmq" / case / "data"))
    write_fluxmq(FS, str(tmp_path), list(source.contents.values()), source.groups)
    back = read_fluxmq(FS, str(tmp_path))
    assert back.contents.keys() == source.contents.keys()
    for name, topic in source.contents.items():
        assert table(back.contents[name]) == table(topic)
    assert [(group.name, group.cursor, group.pending) for group in back.groups] == [
        (group.name, group.cursor, group.pending) for group in source.groups
    ]
    assert back.problems == []


def test_settings_of_fluxmq_are_all_there(tmp_path: Path) -> None:
    """A setting that is left out is 0 there: no deliveries, no retries, no room."""
    source = read_fluxmq(PosixFileSystem(), str(FOREIGN / "fluxmq" / "group_compacted" / "data"))
    write_fluxmq(PosixFileSystem(), str(tmp_path), list(source.contents.values()), source.groups)
    paths = (FOREIGN / "fluxmq" / "group_compacted" / "data", tmp_path)
    real, ours = (json.loads((path / "config" / "queues.json").read_text()) for path in paths)
    changed = {"orders": set(), "audit": {"Topics", "MessageTTL", "DLQConfig"}}
    for config in ours["configs"]:
        (same,) = [one for one in real["configs"] if one["Name"] == config["Name"]]
        assert config.keys() == same.keys()
        different = {name for name in config if config[name] != same[name]}
        assert different <= changed[config["Name"]], different


def test_a_name_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """A queue of FluxMQ is a directory."""
    events = read_fluxmq(FS, str(FOREIGN / "fluxmq" / "none" / "data")).contents["events"]
    events.name = "../events"
    with pytest.raises(OptionError, match="cannot be the name of a queue"):
        write_fluxmq(FS, str(tmp_path), [events], [])


# --- topics ------------------------------------------------------------------------------------


def test_frames_of_topics_are_written_byte_for_byte() -> None:
    """Every frame of every log that the server wrote."""
    count = 0
    for path in (FOREIGN / "topics").rglob("wal-*.log"):
        data = path.read_bytes()
        for start, end, frame in frames(data, 0):
            content = frame.data
            if frame.type == 1:
                record = record_of(frame)
                content = envelope(record.data, record.meta)
            assert data[start:end] == encode_frame(
                frame.type, frame.topic_id, seq=frame.seq, timestamp=frame.timestamp,
                node=frame.node, tag=frame.tag, flags=data[start + 5] & 4, data=content,
            )  # fmt: skip
            count += 1
    assert count > 2000


@pytest.mark.parametrize("case", sorted(path.name for path in (FOREIGN / "topics").iterdir()))
def test_topics_is_read_back_as_it_was_written(case: str, tmp_path: Path) -> None:
    """Records, numbers, leases and settings."""
    source = read_topics(FS, str(FOREIGN / "topics" / case / "data" / "hot"))
    write_topics(FS, str(tmp_path), list(source.contents.values()), source.routes)
    back = read_topics(FS, str(tmp_path))
    for name, topic in source.contents.items():
        other = back.contents[name]
        assert table(other) == table(topic)
        assert (other.end, other.pending, other.options) == (
            topic.end, topic.pending, topic.options,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b'{"a": 1}', b'{"d":{"a": 1}}'),
        (b"plain text", b'{"d":"plain text"}'),
        (b"\xff\x00", b'{"d":"/wA="}'),
        (None, b'{"d":null}'),
    ],
)
def test_values_for_topics_become_json(value: bytes | None, data: bytes) -> None:
    """JSON text as it is, other text as a string, other bytes in base64."""
    assert envelope(value, None) == data
