"""Staging: segments written beside a store's writer, and published for it to adopt.

Needs no lock: any process that can write into `incoming/` can stage, any number of them at once.

Owns: `<unique>.tmp` while it is written; what it leaves sealed belongs to the manifest.

Invariants:
- A staged segment has its name only once all its bytes are durable, a manifest only once all its
  segments are.
- A manifest is put there whole, and once: a second attempt is refused.

Crash: what no manifest names is removed by the store's writer when it is a day old.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stratalog.arguments import rising
from stratalog.errors import OptionError, TooLargeError
from stratalog.format.arrow_input import ArrowColumns, split
from stratalog.format.codec import CODECS, compress
from stratalog.format.manifest import (
    Manifest,
    Part,
    StagedSegment,
    check_writer,
    encode_manifest,
)
from stratalog.format.merge import Block, latest
from stratalog.format.names import incoming_path, manifest_key, unique_name
from stratalog.format.segment import Summary, encode_summaries
from stratalog.fs import FileSystem
from stratalog.options import StoreOptions, check_known
from stratalog.segments.writer import SegmentWriter

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 1 << 20
"""The size that batches are cut and gathered to: what Spark reads best."""


class StageWriter:
    """Stages one segment of records that have no offsets yet.

    Takes Arrow data as `Topic.append_arrow` does: `value` alone is enough, `offset` and `topic`
    are not looked at. Records without a time get that of this call; times never go back.
    """

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        *,
        compression: str = "none",
        record_bytes_max: int | None = None,
    ) -> None:
        check_known("compression", [compression], CODECS)
        self._record_bytes_max = record_bytes_max or StoreOptions.build({}).record_bytes_max
        self._codec = CODECS[compression]
        self._base = self._last = 0
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._writer = _writer(fs, root, 0, 0)
        self._begun = 0

    @property
    def bytes(self) -> int:
        """Bytes that were written so far."""
        return self._writer.position

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Add records; small batches are gathered."""
        for batch in split(data, BATCH_BYTES):
            if batch.nbytes > self._record_bytes_max:  # else no record of it is larger, either
                self._check_sizes(batch)
            if self._pending and self._pending[0].schema != batch.schema:
                self._flush()
            self._pending.append(batch)
            self._pending_bytes += batch.nbytes
            if self._pending_bytes >= BATCH_BYTES // 2:
                self._flush()

    def _check_sizes(self, batch: pa.RecordBatch) -> None:
        largest = int(ArrowColumns(batch).sizes().max())
        if largest > self._record_bytes_max:
            raise TooLargeError(
                f"a record of {largest} bytes is too large: record_bytes_max is "
                f"{self._record_bytes_max}. Nothing was written. Leave the record out, or raise "
                "the limit with option recordBytesMax or STRATALOG_RECORD_BYTES_MAX."
            )

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._pending:
            return
        some = self._pending
        batch = some[0] if len(some) == 1 else pa.concat_batches(some)
        self._pending, self._pending_bytes = [], 0
        columns = ArrowColumns(batch)
        given = columns.timestamps()
        now = max(time.time_ns(), self._last)
        stamps = np.full(columns.count, now) if given is None else rising(given, now, self._last)
        expires = columns.expires_at()
        offsets = np.arange(self._base, self._base + columns.count)
        flags, body = columns.encode(stamps, expires, offsets)
        if self._codec and (smaller := compress(body, self._codec)) is not None:
            flags, body = flags | self._codec, smaller
        first, self._last = int(stamps[0]), int(stamps[-1])
        self._writer.append(
            Block(flags, body, columns.count, self._base, first, self._last, latest(expires))
        )
        self._base += columns.count

    @property
    def unsynced(self) -> int:
        """Bytes of them that no sync was begun for."""
        return self.bytes - self._begun

    def begin_sync(self) -> Callable[[], None]:
        """Return a function that syncs the data while others go on: it leaves little for `finish`.

        Another thread may call it. An error it raises must not be ignored: the system reports a
        failed write only once.
        """
        self._begun = self.bytes
        return self._writer.sync_data

    def finish(self) -> StagedSegment | None:
        """Seal the segment, durably; None if there was nothing to stage."""
        self._flush()
        if not self._base:
            self.abandon()
            return None
        return _seal(self._writer, self._base)

    def abandon(self) -> None:
        """Remove every file that was written."""
        self._writer.discard()


class BlockStage:
    """Stages one segment that takes the place of others: its records keep their offsets."""

    def __init__(self, fs: FileSystem, root: str, topic_id: int, first: int) -> None:
        self._writer = _writer(fs, root, topic_id, first)

    def append(self, block: Block) -> None:
        """Add a batch."""
        self._writer.append(block)

    def finish(self, end: int) -> StagedSegment:
        """Seal the segment, durably; it answers for all offsets below `end`."""
        return _seal(self._writer, end)

    def abandon(self) -> None:
        """Remove every file that was written."""
        self._writer.discard()


def discard(fs: FileSystem, root: str, segments: Sequence[StagedSegment]) -> None:
    """Remove staged segments that no manifest will name; a crash leaves them to the writer."""
    for staged in segments:
        fs.unlink(incoming_path(root, f"{staged.name}.seg"))


def append_part(topic: str, segments: Sequence[StagedSegment]) -> Part:
    """Records to be appended to a topic, which is created if it is not there."""
    return Part("append", topic, 0, 0, list(segments))


def upsert_part(table: str, segments: Sequence[StagedSegment]) -> Part:
    """Changes of keys for a table, which is created if it is not there."""
    return Part("upsert", table, 0, 0, list(segments))


def replace_part(
    topic_id: int, epoch: int, segments: Sequence[StagedSegment], expected: Sequence[Summary]
) -> Part:
    """Segments for those that are there: each of the new ones for one or more of the old, whole.

    `expected` is what is replaced as it was found: a change since is noticed, and refused.
    """
    return Part("replace", "", topic_id, epoch, list(segments), encode_summaries(list(expected)))


def backlog_part(topic_id: int, epoch: int, segments: Sequence[StagedSegment]) -> Part:
    """Segments of records that so far are in the log alone, from the first of those on."""
    return Part("backlog", "", topic_id, epoch, list(segments))


def manifest_of(writer: str, batch: int | None, parts: Sequence[Part]) -> Manifest:
    """A manifest of these parts; `batch` is None for a writer that has this one alone."""
    check_writer(writer, batch or 0)
    if not parts:
        raise OptionError("a manifest needs at least one part")
    return Manifest(writer, batch or 0, batch is None, time.time_ns(), list(parts))


def publish(fs: FileSystem, root: str, manifest: Manifest) -> bool:
    """Put a manifest where the store finds it, durably; False if its key is taken already."""
    directory = incoming_path(root)
    key = manifest_key(manifest.writer, manifest.batch)
    target = incoming_path(root, f"{key}.manifest")
    temp = incoming_path(root, f"{unique_name(time.time_ns())}.tmp")
    fs.makedirs(directory)
    file = fs.open(temp, "create")
    try:
        file.pwrite([encode_manifest(manifest)], 0)
        file.fdatasync()
    finally:
        file.close()
    try:
        fs.link(temp, target)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            fs.unlink(temp)
    fs.unlink(incoming_path(root, f"{key}.rejected"))  # this is another attempt
    fs.sync_dir(directory)
    return True


def _writer(fs: FileSystem, root: str, topic_id: int, first: int) -> SegmentWriter:
    now = time.time_ns()
    directory = incoming_path(root)
    writer = SegmentWriter(fs, directory, topic_id, first, now, ".tmp", unique_name(now))
    writer.create()
    return writer


def _seal(writer: SegmentWriter, end: int) -> StagedSegment:
    summary = writer.seal(end, time.time_ns())
    assert writer.footer is not None
    name = writer.name
    return StagedSegment(name, summary.bytes, summary.created_at, *writer.footer[1:])
