"""A piece of a topic: planned in one process, read in another.

A piece describes where a range of offsets was when the read was planned: in which segment, or in
which frames of the log. That is enough to read it without the rest of the store. If it is no longer
there, because the writer has moved, renamed, rewritten or evicted it since, a view of the store is
opened to find its new place; the writer recycles log files, and the checksums of a frame are seeded
so that later content of a file is never mistaken for it.

A piece also has the number of its records. Segments are rewritten without deleted records and, in a
compacted topic, without those replaced by a newer record of their key, which may lie beyond the
plan. Rewriting only removes records. So a reader that counts as many as were planned has read the
same ones, and one that counts fewer raises `DataLossError`, unless all missing ones had been
deleted before.

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
from stratalog.format.record_columns import Columns
from stratalog.format.segment import Summary
from stratalog.log.index import FrameIndex
from stratalog.log.reader import LogReader
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.options import expanded_bytes_max
from stratalog.segments.chain import Chain
from stratalog.segments.pool import SegmentPool
from stratalog.segments.read import deleted_mask, read_batches
from stratalog.segments.segment import Slice
from stratalog.segments.topic_segments import History
from stratalog.spark.places import find
from stratalog.spark.source.columns import even_out
from stratalog.state.identity import read_store_file
from stratalog.view import View

# Gaps that were not requested. Expired and ephemeral records are gone as intended.
_LOSSES = ("evicted", "damaged", "crash")


class LogFile(NamedTuple):
    """A log file, as `LogReader.number` takes it."""

    directory: str
    first_lsn: int
    is_inner: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Offsets `start` to `end` (exclusive) of a topic, and where they were."""

    topic_id: int
    topic: str
    start: int
    end: int
    size: int
    """Approximate bytes to read."""
    records: int = 0
    """How many records there were, including deleted and expired ones, as far as known."""
    segment: Summary | None = None
    cold_name: str = ""
    """The segment's name in the cold store, if it is there."""
    staged: Placed | None = None
    """Staged path of an adopted segment, if it is still there."""
    frames: npt.NDArray[np.int64] | None = None
    """Frames of the log, as `FrameIndex.numbers` gives them; files are numbered as in `files`."""
    files: tuple[LogFile, ...] = ()
    deleted: bytes = b""
    lost: bytes = b""
    crashed: bytes = b""
    ttl_ns: int = 0
    is_ephemeral: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The pieces that one task reads."""

    path: str
    identity: bytes
    cold: str
    """Location of the cold store, as far as the log knows; empty without one."""
    now: int
    """Records that have expired by then are not read: equal for all tasks and retries."""
    is_pinned: bool
    """Whether it must read all records that existed when it was planned. A stream need not: the
    record that replaced another one comes later."""
    fail_on_data_loss: bool
    verify: bool
    pieces: tuple[Piece, ...]


class Living(NamedTuple):
    """Records `first` to `end` of a batch, restricted to those in `keep`."""

    batch_slice: Slice
    keep: npt.NDArray[np.bool_] | None
    topic: str


class _MissingError(Exception):
    """A file or frame is not where it was planned."""


class PieceReader:
    """Reads the pieces of a task, and counts bytes and records."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._fs, self._root = find(task.path)
        self._view: View | None = None
        self.records = 0
        self.bytes = 0
        """Bytes of the batches that were read, decompressed."""
        self.looks = 0
        """How often a view had to be opened."""
        # Another store at the same path has files of the same names.
        store_file = read_store_file(self._fs, self._root)
        if store_file.identity != task.identity:
            raise NotAStoreError(
                f"{self._root} is another store than the one that was planned to be read: it was "
                "replaced meanwhile; run the query again"
            )
        self._log = LogReader(self._fs, store_file.log_identity)
        self._pool = SegmentPool(self._fs, self._root, identity=store_file.identity)
        self._log.expanded_bytes_max = self._pool.expanded_bytes_max = expanded_bytes_max()
        self._pool.cold_location = task.cold
        self._pool.is_verified = task.verify

    def read(self, piece: Piece) -> Iterator[Living]:
        """Read the living records of a piece, in order; raises at its end if some are missing."""
        deleted = BitMap64.deserialize(piece.deleted) if piece.deleted else BitMap64()
        start = piece.start
        found = undeleted = 0
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
                    keep = _undeleted(part, deleted)
                    found += part.end - part.first
                    undeleted += part.end - part.first if keep is None else int(keep.sum())
                    keep = self._unexpired(piece, part, keep)
                    if keep is None or keep.any():
                        yield Living(part, keep, piece.topic)
                self._check_records(piece, found, undeleted, len(deleted))
                return
            except _MissingError:
                topic = self._as_it_is(piece)
                if not self._task.is_pinned:
                    deleted = topic.history.deleted
                parts = read_batches(topic, start, piece.end)

    def close(self) -> None:
        """Close everything."""
        self._log.close()
        self._pool.close()
        if self._view is not None:
            self._view.close()

    def _as_planned(self, piece: Piece) -> TopicLog:
        """Build the topic from the piece alone."""
        history = History(self._pool, piece.topic_id)
        history.refresh = _look_again
        if piece.staged is not None:
            history.chain = Chain.of([self._pool.staged(piece.staged)])
        elif piece.segment is not None:
            segment = self._pool.segment(piece.topic_id, piece.segment, piece.cold_name)
            history.chain = Chain.of([segment])
        if piece.lost:
            history.lost = BitMap64.deserialize(piece.lost)
        if piece.crashed:
            history.crashed = BitMap64.deserialize(piece.crashed)
        topic = TopicLog(piece.topic_id, self._log, history)
        topic.name = piece.topic
        topic.is_ephemeral = piece.is_ephemeral
        if piece.frames is not None:
            topic.index = FrameIndex.of(self._numbered(piece))
        return topic

    def _numbered(self, piece: Piece) -> npt.NDArray[np.int64]:
        """Return frames of the log, with the numbers that their files have in this process."""
        assert piece.frames is not None
        numbers = np.array(
            [self._log.number(at, lsn, is_inner=inner) for at, lsn, inner in piece.files], np.int64
        )
        frames = piece.frames.copy()
        frames[FILES_ROW] = numbers[frames[FILES_ROW]]
        return frames

    def _as_it_is(self, piece: Piece) -> TopicLog:
        """Return the topic as the store has it now."""
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

    def _unexpired(
        self, piece: Piece, part: Slice, keep: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.bool_] | None:
        """Return which records to keep, without expired ones; None if all are kept."""
        batch, first, end = part
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
        task = self._task
        is_expired = task.is_pinned and gap.reason == "expired"
        if task.fail_on_data_loss and (is_expired or gap.reason in _LOSSES):
            raise lost_error(piece.topic, gap)

    def _check_records(self, piece: Piece, found: int, undeleted: int, deleted: int) -> None:
        """Raise if records are gone that existed when the piece was planned.

        `deleted` offsets had been deleted by then. Some of these may have been holes already, at
        most as many as there were holes: so `expected` is the number of undeleted records, or more.
        """
        holes = piece.end - piece.start - piece.records
        expected = piece.records - max(0, deleted - holes)
        task = self._task
        if not (task.is_pinned and task.fail_on_data_loss):
            return
        if found < piece.records and undeleted < expected:
            raise DataLossError(
                f"topic {piece.topic!r}: {expected - undeleted} of the records between offsets "
                f"{piece.start} and {piece.end - 1} are gone that were there when the read was "
                "planned: they were deleted, or newer records of their keys replaced them, and "
                "their segment was rewritten. Make the DataFrame again, or read what is left with "
                "option failOnDataLoss=false."
            )


BASES_ROW = FrameIndex.__slots__.index("_base_offsets")
COUNTS_ROW = FrameIndex.__slots__.index("_counts")
FILES_ROW = FrameIndex.__slots__.index("_files")
LENGTHS_ROW = FrameIndex.__slots__.index("_lengths")
"""Rows of `FrameIndex.numbers` with the first offsets, records, files and bytes of frames."""


def lost_error(topic: str, gap: Gap) -> DataLossError:
    """Build the error for records that are gone without having been deleted."""
    why = {
        "evicted": "retention has evicted them",
        "expired": "they have expired since the read was planned",
        "damaged": "they were damaged, and a repair gave them up",
        "crash": "a crash took, or a full disk refused, records of a class below fsync",
    }[gap.reason]
    return DataLossError(
        f"topic {topic!r}: offsets {gap.first} to {gap.last} cannot be read any more, because "
        f"{why}. Start after them, or read what is left with option failOnDataLoss=false."
    )


def is_loss(gap: Gap) -> bool:
    """Return whether a gap was not requested."""
    return gap.reason in _LOSSES


def _undeleted(part: Slice, deleted: BitMap64) -> npt.NDArray[np.bool_] | None:
    """Return which records of a slice were not deleted; None if none was."""
    dead = deleted_mask(deleted, part.batch.offsets(part.first, part.end)) if deleted else None
    return None if dead is None else ~dead


def _look_again() -> NoReturn:
    raise _MissingError


def read_task(task: Task | None, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read the records of a task in uniform batches; None is a task without records."""
    if task is None:
        return
    reader = PieceReader(task)
    try:
        yield from even_out(_batches(reader, task, Columns(names)))
    finally:
        reader.close()


def _batches(
    reader: PieceReader, task: Task, columns: Columns
) -> Iterator[tuple[pa.RecordBatch, int]]:
    for piece in task.pieces:
        for (batch, first, end), keep, topic in reader.read(piece):
            made = columns.make(topic, batch, first, end, keep)
            yield made, batch.size * made.num_rows // batch.count
