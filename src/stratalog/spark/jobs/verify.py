"""Verify on Spark: the audit of `stratalog.verify`, with all large reads on executors."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.errors import StorageError
from stratalog.fs import FileSystem, PosixFileSystem
from stratalog.spark.jobs.work import Done, piece_bytes, run
from stratalog.spark.session import IN_PYTHON, use
from stratalog.tools.checks import FrameFound, FramesTask, check_frames
from stratalog.tools.cold import ColdDepth
from stratalog.tools.report import Counts, Progress, Report, Tally
from stratalog.tools.segments import (
    RangeFound,
    SegmentCheck,
    SegmentTask,
    check_range,
    check_segment,
    join_ranges,
    split_segment,
)
from stratalog.tools.verify import verify as verify_with

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def verify(
    path: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    cold: str | None = None,
    cold_depth: ColdDepth = "contents",
    progress: Progress | None = None,
) -> Report:
    """Check every byte of a store on Spark; reports what `stratalog.verify` reports, sooner.

    Takes no lock, changes nothing, and runs beside a live writer. All executors must see the
    store under the same path.
    """
    with use(spark, master, IN_PYTHON) as session:

        def make(fs: FileSystem, tally: Tally) -> SparkChecker:
            return SparkChecker(session, fs, tally)

        return verify_with(
            path, cold=cold, cold_depth=cold_depth, progress=progress, make_checker=make
        )


# A core reads and verifies this much in a quarter of a second; a task costs 30 ms.
_TASK_BYTES_MIN = 1 << 30


class SegmentPiece(NamedTuple):
    """A segment, or a part of one."""

    task: SegmentTask
    start: int = -1
    """Where the part begins; -1 for the whole segment."""
    end: int = -1


class SparkChecker:
    """Runs the tasks of an audit on executors."""

    def __init__(self, spark: SparkSession, fs: FileSystem, tally: Tally) -> None:
        self._spark = spark
        self._fs = fs
        self._tally = tally

    def segments(self, tasks: list[SegmentTask]) -> list[SegmentCheck]:
        """Check all segments together; large ones are cut into parts."""
        sizes = [self._size(task.path) for task in tasks]
        limit = piece_bytes(self._spark, sum(sizes))
        pieces: list[SegmentPiece] = []
        weights: list[int] = []
        starts: list[int] = []
        for task, size in zip(tasks, sizes, strict=True):
            starts.append(len(pieces))
            ranges = split_segment(self._fs, task, limit) if size > 2 * limit else []
            pieces += [SegmentPiece(task, *one) for one in ranges] or [SegmentPiece(task)]
            weights += [end - start for start, end in ranges] or [size]
        found = self._run(read_piece, pieces, weights)
        checks = []
        for number, task in enumerate(tasks):
            first, end = starts[number], (*starts, len(pieces))[number + 1]
            checks.append(self._join(task, pieces[first:end], found[first:end]))
        return checks

    def frames(self, tasks: list[FramesTask]) -> list[list[FrameFound]]:
        """Check all frames of the log together; those of a topic in a file are one piece."""
        weights = [sum(length for _, length in task.places) for task in tasks]
        found = self._run(read_frames, tasks, weights)
        for task, (_, counts) in zip(tasks, found, strict=True):
            self._tally.add(counts, task.path)
        return [frames for frames, _ in found]

    def _run(
        self, function: Callable[[Any], Any], pieces: Sequence[Any], weights: list[int]
    ) -> list[Any]:
        try:
            return run(self._spark, function, pieces, weights, self._progress(), _TASK_BYTES_MIN)
        except FileNotFoundError as error:
            path = error.filename
            if isinstance(path, str) and self._is_here(path):
                raise StorageError(
                    f"an executor does not find {path}, which is here: every executor must see "
                    "the store under the same path"
                ) from error
            raise  # a live writer moved it: look again

    def _progress(self) -> Done | None:
        """Return the progress callback; None if there is none."""
        tally = self._tally
        report, begin = tally.progress, tally.bytes
        if report is None:
            return None
        return lambda size: report(min(begin + size, tally.total), tally.total, "on executors")

    def _join(
        self, task: SegmentTask, pieces: list[SegmentPiece],
        found: list[tuple[SegmentCheck | RangeFound | None, Counts]],
    ) -> SegmentCheck:  # fmt: skip
        tally = Tally()
        check: Any = found[0][0]
        if pieces[0].start >= 0:
            parts = [
                (piece.start, piece.end, part)
                for piece, (part, _) in zip(pieces, found, strict=True)
                if part is None or isinstance(part, RangeFound)
            ]
            check = join_ranges(self._fs, task, parts, tally)
        if check is None:
            # The batches are not where the index has them: check them sequentially.
            tally = Tally()
            check = check_segment(self._fs, task, tally)
            found = []
        self._tally.add(tally.counts(), task.path)
        for _, counts in found:
            self._tally.add(counts, task.path)
        assert isinstance(check, SegmentCheck)
        return check

    def _size(self, path: str) -> int:
        file = self._fs.open(path, "read")
        try:
            return file.size()
        finally:
            file.close()

    def _is_here(self, path: str) -> bool:
        return os.path.basename(path) in self._fs.listdir(os.path.dirname(path))


def read_piece(piece: SegmentPiece) -> tuple[SegmentCheck | RangeFound | None, Counts]:
    """Read a segment or a part of one; on an executor."""
    tally = Tally()
    fs = PosixFileSystem()
    found: SegmentCheck | RangeFound | None
    if piece.start < 0:
        found = check_segment(fs, piece.task, tally)
        del found.pieces[:-1]  # the audit of the topic needs only the newest
    else:
        found = check_range(fs, piece.task, piece.start, piece.end, tally)
    return found, tally.counts()


def read_frames(task: FramesTask) -> tuple[list[FrameFound], Counts]:
    """Read frames of a log file; on an executor."""
    tally = Tally()
    return check_frames(PosixFileSystem(), task, tally), tally.counts()
