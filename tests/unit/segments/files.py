"""Segments to test with: blocks of records, written as upkeep writes them."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.arguments import columns_of
from stratalog.format.batch import Batch
from stratalog.format.codec import CODECS
from stratalog.format.columns import encode_columns
from stratalog.format.frame import FrameHeader, FrameType
from stratalog.format.merge import Block, Part, merge
from stratalog.format.names import topic_path
from stratalog.format.segment import Summary
from stratalog.fs import FileSystem
from stratalog.model import Record
from stratalog.segments.segment import Segment
from stratalog.segments.writer import SegmentWriter
from stratalog.testing import FaultFs

NOW = 1_700_000_000_000_000_000
TOPIC = 7


def block(
    base: int, count: int = 10, *, codec: str = "none", expires_at: int = 0, step: int = 1
) -> Block:
    """Records from offset `base` on, each with its offset as its value and, `step` times, time."""
    records = [
        Record(b"record %d" % n, timestamp=NOW + step * n, expires_at=expires_at)
        for n in range(base, base + count)
    ]
    columns, _ = columns_of(records, 1 << 20)
    columns.timestamps = [record.timestamp for record in records]
    flags, body = encode_columns(columns)
    header = FrameHeader(
        FrameType.RECORDS, flags, len(body), count, TOPIC, base, records[0].timestamp,
        records[-1].timestamp, 0, 0,
    )  # fmt: skip
    return merge([Part(Batch.parse(header, body), 0, count)], CODECS[codec])


def writer(
    fs: FileSystem, root: str, first: int = 0, topic_id: int = TOPIC, suffix: str = ".open"
) -> SegmentWriter:
    """One that has begun its file."""
    one = SegmentWriter(fs, topic_path(root, topic_id), topic_id, first, NOW, suffix)
    one.create()
    return one


def sealed(fs: FileSystem, root: str, first: int = 0, batches: int = 5) -> Summary:
    """A sealed segment of ten records a batch."""
    one = writer(fs, root, first)
    for number in range(batches):
        one.append(block(first + 10 * number))
    return one.seal(first + 10 * batches, NOW + 99)


def offsets(segment: Segment, start: int = 0, end: int = 1 << 40) -> list[int]:
    """Offsets between the two, each with the value that belongs to it."""
    return list(_offsets(segment, start, end))


def _offsets(segment: Segment, start: int, end: int) -> Iterator[int]:
    for part in segment.batches(start, end):
        for record in part.batch.records(part.first, part.end):
            assert record.value == b"record %d" % record.offset
            yield record.offset


class Interrupted(FaultFs):
    """Ctrl-C comes right after an operation on a path, once."""

    operation = part = ""

    def _behind(self, operation: str, path: str) -> None:
        if operation == self.operation and self.part in path:
            self.operation = ""
            raise KeyboardInterrupt

    def sync_dir(self, path: str) -> None:
        super().sync_dir(path)
        self._behind("sync_dir", path)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._behind("rename", target)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._behind("unlink", path)
