"""The parts of a verification that read much and need nothing of each other.

An `Audit` gathers them as tasks, plain values that can be sent anywhere, and judges what comes
back: here one after the other, or on all machines of a cluster.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stratalog.errors import FormatError
from stratalog.format.batch import Batch
from stratalog.format.frame import HEADER_BYTES, check_body, decode_header
from stratalog.fs import FileSystem
from stratalog.options import expanded_bytes_max
from stratalog.tools.report import Tally
from stratalog.tools.segments import SegmentCheck, SegmentTask, check_segment


class FramesTask(NamedTuple):
    """Frames of one topic in one log file."""

    path: str
    seed: int
    places: list[tuple[int, int]]
    """Position and length of each."""


class FrameFound(NamedTuple):
    """A frame of the log, read."""

    base_timestamp: int
    max_timestamp: int
    error: str | None = None
    """The error that was found; then it has no times."""


class Checker(Protocol):
    """Does tasks, and counts what was looked at. May raise `FileNotFoundError`: look again."""

    def segments(self, tasks: list[SegmentTask]) -> list[SegmentCheck]:
        """Check each of these segments."""

    def frames(self, tasks: list[FramesTask]) -> list[list[FrameFound]]:
        """Find the frames of each of these tasks."""


class LocalChecker:
    """Does them here, in this thread."""

    def __init__(self, fs: FileSystem, tally: Tally) -> None:
        self._fs = fs
        self._tally = tally

    def segments(self, tasks: list[SegmentTask]) -> list[SegmentCheck]:
        """One after the other."""
        return [check_segment(self._fs, task, self._tally) for task in tasks]

    def frames(self, tasks: list[FramesTask]) -> list[list[FrameFound]]:
        """One after the other."""
        return [check_frames(self._fs, task, self._tally) for task in tasks]


def check_frames(fs: FileSystem, task: FramesTask, tally: Tally) -> list[FrameFound]:
    """Parse frames that a replay has verified."""
    file = fs.open(task.path, "read")
    found = []
    try:
        for position, length in task.places:
            data = file.pread(length, position)
            try:
                header = decode_header(data, seed=task.seed)
                check_body(header, data, HEADER_BYTES)
                Batch.parse(header, data, HEADER_BYTES, expanded_bytes_max())
            except FormatError as error:
                found.append(FrameFound(0, 0, str(error)))
            else:
                tally.records += header.count
                found.append(FrameFound(header.base_timestamp, header.max_timestamp))
    finally:
        file.close()
    return found
