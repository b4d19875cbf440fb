"""A piece of a topic: planned in one process, read in another.

A piece says where a range of offsets is, as it was when the read was planned: in which segment, or
in which frames of the log. That is enough to read it without looking at the rest of the store. If
it is no longer there, because the writer has moved, renamed, rewritten or evicted it since, a view
of the store is opened and says where it is now; log files are used again by the writer, and the
checksums of a frame are seeded so that nothing of what they hold later can be taken for it.

Concurrency: a `PieceReader` belongs to one task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from stratalog.errors import DataLossError, NotAStoreError, UnknownTopicError
from stratalog.format.manifest import Placed
from stratalog.format.segment import Summary
from stratalog.log.index import FrameIndex
from stratalog.log.reader import LogReader
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.projections.identity import read_store_file
from stratalog.segments.chain import Chain
from stratalog.segments.history import History
from stratalog.segments.pool import SegmentPool
from stratalog.segments.read import deleted_mask, read_batches
from stratalog.segments.segment import Slice
from stratalog.spark.columns import Columns, even_out, key_mask
from stratalog.spark.places import find
from stratalog.view import View

# Gaps that nobody asked for. Expired records and those of ephemeral topics went as they were to.
_LOSSES = ("evicted", "damaged")


class LogFile(NamedTuple):
    """A log file, as `LogReader.number` takes it."""

    directory: str
    first_lsn: int
    is_inner: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Offsets `start` to `end` (not included) of a topic, and where they were."""

    topic_id: int
    topic: str
    start: int
    end: int
    size: int
    """About how many bytes have to be read."""
    segment: Summary | None = None
    staged: Placed | None = None
    """Of a segment that was adopted, if it still is where it was staged."""
    frames: npt.NDArray[np.int64] | None = None
    """Of the log, as `FrameIndex.numbers` gives them; files are numbered as in `files`."""
    files: tuple[LogFile, ...] = ()
    deleted: bytes = b""
    lost: bytes = b""
    ttl_ns: int = 0
    is_ephemeral: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one task reads."""

    path: str
    identity: bytes
    cold: str
    """Location of the cold store, as far as the log knows; empty without one."""
    now: int
    """What has expired by then is not read: the same whenever and wherever a task runs."""
    fail_on_data_loss: bool
    verify: bool
    pieces: tuple[Piece, ...]


class Living(NamedTuple):
    """Records `first` to `end` of a batch, without those that are not in `keep`."""

    batch_slice: Slice
    keep: npt.NDArray[np.bool_] | None
    topic: str


class _MissingError(Exception):
    """Something is not where it was planned."""


class PieceReader:
    """Reads the pieces of a task; counts what that took."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._fs, self._root = find(task.path)
        self._view: View | None = None
        self.records = 0
        self.bytes = 0
        """Of the batches that were read, decompressed."""
        self.looks = 0
        """How often a view had to be asked."""
        # The same path, but another store: its files have the same names.
        if read_store_file(self._fs, self._root).identity != task.identity:
            raise NotAStoreError(
                f"{self._root} is another store than the one that was planned to be read: it was "
                "replaced meanwhile; run the query again"
            )
        self._log = LogReader(self._fs)
        self._pool = SegmentPool(self._fs, self._root)
        self._pool.cold_location = task.cold
        self._pool.is_verified = task.verify

    def read(self, piece: Piece) -> Iterator[Living]:
        """The living records of a piece, in order."""
        deleted = BitMap64.deserialize(piece.deleted) if piece.deleted else BitMap64()
        start = piece.start
        parts = read_batches(self._as_planned(piece), start, piece.end)
        while True:
            try:
                for part in parts:
                    if isinstance(part, Gap):
                        self._check_gap(piece, part)
                        start = part.last + 1
                        continue
                    start = part.batch.offset_of(part.end - 1) + 1
                    self._count(part)
                    keep = self._living(piece, part, deleted)
                    if keep is None or keep.any():
                        yield Living(part, keep, piece.topic)
                return
            except _MissingError:
                topic = self._as_it_is(piece)
                deleted = topic.history.deleted
                parts = read_batches(topic, start, piece.end)

    def close(self) -> None:
        """Let everything go."""
        self._log.close()
        self._pool.close()
        if self._view is not None:
            self._view.close()

    def _as_planned(self, piece: Piece) -> TopicLog:
        """The topic, as far as the piece tells."""
        history = History(self._pool, piece.topic_id)
        history.refresh = _look_again
        if piece.staged is not None:
            history.chain = Chain.of([self._pool.staged(piece.staged)])
        elif piece.segment is not None:
            history.chain = Chain.of([self._pool.segment(piece.topic_id, piece.segment)])
        if piece.lost:
            history.lost = BitMap64.deserialize(piece.lost)
        topic = TopicLog(piece.topic_id, self._log, history)
        topic.name = piece.topic
        topic.is_ephemeral = piece.is_ephemeral
        if piece.frames is not None:
            topic.index = FrameIndex.of(self._numbered(piece))
        return topic

    def _numbered(self, piece: Piece) -> npt.NDArray[np.int64]:
        """Frames of the log, with the numbers that their files have here."""
        assert piece.frames is not None
        numbers = np.array(
            [self._log.number(at, lsn, is_inner=inner) for at, lsn, inner in piece.files], np.int64
        )
        frames = piece.frames.copy()
        frames[FILES_ROW] = numbers[frames[FILES_ROW]]
        return frames

    def _as_it_is(self, piece: Piece) -> TopicLog:
        """The topic, as the store has it now."""
        self.looks += 1
        if self._view is None:
            self._view = View(self._fs, self._root)
            pool = self._view.replay.pool
            pool.is_verified = self._task.verify
            pool.cold = self._pool.find_cold()
        else:
            self._view.refresh()
        topic = self._view.replay.topics.get(piece.topic_id)
        if topic is None:
            raise UnknownTopicError(
                f"topic {piece.topic!r} of {self._root} was dropped while it was read"
            )
        return topic

    def _living(self, piece: Piece, part: Slice, deleted: BitMap64) -> npt.NDArray[np.bool_] | None:
        """Which records of a slice are neither deleted nor expired; None if all are."""
        batch, first, end = part
        keep: npt.NDArray[np.bool_] | None = None
        if deleted:
            dead = deleted_mask(deleted, batch.offsets(first, end))
            keep = None if dead is None else ~dead
        if piece.ttl_ns:
            fresh = batch.timestamps(first, end) + piece.ttl_ns > self._task.now
            keep = fresh if keep is None else keep & fresh
        if batch.expires_at is not None:
            times = batch.expires_at[first:end]
            fresh = (times == 0) | (times > self._task.now)
            keep = fresh if keep is None else keep & fresh
        return None if keep is None or bool(keep.all()) else keep

    def _count(self, part: Slice) -> None:
        batch, first, end = part
        self.records += end - first
        self.bytes += batch.size

    def _check_gap(self, piece: Piece, gap: Gap) -> None:
        if self._task.fail_on_data_loss and gap.reason in _LOSSES:
            raise lost_error(piece.topic, gap)


FILES_ROW = FrameIndex.__slots__.index("_files")
LENGTHS_ROW = FrameIndex.__slots__.index("_lengths")
"""Which rows of `FrameIndex.numbers` have the files, and the bytes of frames."""


def lost_error(topic: str, gap: Gap) -> DataLossError:
    """What to say about records that are gone though nobody deleted them."""
    why = {
        "evicted": "retention has evicted them",
        "damaged": "they were damaged, and a repair gave them up",
    }[gap.reason]
    return DataLossError(
        f"topic {topic!r}: offsets {gap.first} to {gap.last} cannot be read any more, because "
        f"{why}. Start behind them, or read what is left with option failOnDataLoss=false."
    )


def is_loss(gap: Gap) -> bool:
    """Whether a gap is one that nobody asked for."""
    return gap.reason in _LOSSES


def _look_again() -> NoReturn:
    raise _MissingError


def read_task(
    task: Task | None, names: tuple[str, ...], keys: frozenset[bytes] | None = None
) -> Iterator[pa.RecordBatch]:
    """The records of a task, in batches that are all alike; Spark gives no task to say nothing."""
    if task is None:
        return
    reader = PieceReader(task)
    try:
        yield from even_out(_batches(reader, task, Columns(names), keys))
    finally:
        reader.close()


def _batches(
    reader: PieceReader, task: Task, columns: Columns, keys: frozenset[bytes] | None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    for piece in task.pieces:
        for (batch, first, end), keep, topic in reader.read(piece):
            if keys is not None:
                found = key_mask(batch, first, end, keys)
                keep = found if keep is None else keep & found
                if not keep.any():
                    continue
            made = columns.make(topic, batch, first, end, keep)
            yield made, batch.size * made.num_rows // batch.count
