"""The index of a topic's frames: a few numbers per frame, in memory.

Owns: six arrays of numbers, 32 bytes a frame together, in offset order.

Concurrency: one publisher at a time adds; readers need no lock, because a frame is visible only
once it is in every array: `frames` reads the length of the array that is written last.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.format.frame import HEADER_BYTES

if TYPE_CHECKING:
    from stratalog.log.commit_group import Entry

MEMORY = -1
"""File number of frames that are held in memory instead of a file."""


class FramePlace(NamedTuple):
    """One frame of a topic."""

    base_offset: int
    count: int  # type: ignore[assignment]  # hides a tuple's own count(), which is not used
    file: int
    """Number of the log file, or `MEMORY`."""
    position: int
    """Byte position in the file, or slot in memory."""
    length: int
    """Length of header and body together."""


class FrameIndex:
    """The frames of one topic, by offset and by time."""

    __slots__ = ("_base_offsets", "_counts", "_files", "_lengths", "_max_timestamps", "_positions")

    def __init__(self) -> None:
        self._base_offsets = array("q")
        self._counts = array("I")
        self._files = array("i")
        self._positions = array("q")
        self._lengths = array("I")
        self._max_timestamps = array("q")

    def add(
        self, base_offset: int, count: int, file: int, position: int, length: int,
        max_timestamp: int,
    ) -> None:  # fmt: skip
        """Make a frame visible; adding the newest again, after an interrupt, changes nothing."""
        if len(self._base_offsets) != len(self._max_timestamps):
            self._cut()
        if self._base_offsets and self._base_offsets[-1] == base_offset:
            return
        self._base_offsets.append(base_offset)
        self._counts.append(count)
        self._files.append(file)
        self._positions.append(position)
        self._lengths.append(length)
        self._max_timestamps.append(max_timestamp)

    def extend(self, entries: Sequence[Entry], file: int, position: int) -> None:
        """Add adjacent frames: a fifth of the time of `add`."""
        if len(self._base_offsets) != len(self._max_timestamps):
            self._cut()
        if self._base_offsets and self._base_offsets[-1] == entries[-1].base_offset:
            return
        lengths = [HEADER_BYTES + len(entry.body) for entry in entries]
        self._base_offsets.fromlist([entry.base_offset for entry in entries])
        self._counts.fromlist([entry.count for entry in entries])
        self._files.fromlist([file] * len(entries))
        self._positions.fromlist(list(accumulate(lengths[:-1], initial=position)))
        self._lengths.fromlist(lengths)
        self._max_timestamps.fromlist([entry.max_timestamp for entry in entries])

    def _cut(self) -> None:
        """Remove a frame that an interrupt left half-added; the array that shows it is cut last."""
        frames = len(self._max_timestamps)
        for name in reversed(self.__slots__):
            del getattr(self, name)[frames:]

    def __len__(self) -> int:
        return len(self._max_timestamps)

    def place(self, index: int) -> FramePlace:
        """Return the frame at `index`."""
        # Built as a tuple: the class's own constructor is a Python function, 250 ns more.
        return tuple.__new__(FramePlace, (
            self._base_offsets[index],
            self._counts[index],
            self._files[index],
            self._positions[index],
            self._lengths[index],
        ))  # fmt: skip

    def find(self, offset: int) -> int:
        """Return the index of the frame that holds `offset`, or of the first one after it."""
        index = bisect_right(self._base_offsets, offset, 0, len(self._max_timestamps)) - 1
        if index < 0:
            return 0
        return index if offset < self._base_offsets[index] + self._counts[index] else index + 1

    def find_time(self, timestamp: int) -> int:
        """Return the index of the first frame with a record at or after `timestamp`."""
        return bisect_left(self._max_timestamps, timestamp, 0, len(self))

    def total_bytes(self) -> int:
        """Sum the bytes of all frames."""
        return sum(self._lengths)

    def holes(self, start: int) -> list[tuple[int, int]]:
        """List the first and last offset of every hole from `start` on; no publisher may run.

        Frames may begin before `start`: a segment can end in the middle of one, and frames below a
        floor that a delete has raised are still there, with holes where segments were adopted.
        """
        bases = np.frombuffer(self._base_offsets, np.int64)
        ends = bases + np.frombuffer(self._counts, np.uint32)
        starts = np.maximum(np.concatenate(([start], ends[:-1])), start)
        return [(int(starts[i]), int(bases[i]) - 1) for i in np.flatnonzero(bases > starts)]

    def sorted(self) -> FrameIndex:
        """Return an index of these frames in offset order."""
        order = sorted(range(len(self)), key=self._base_offsets.__getitem__)
        index = FrameIndex()
        for name in self.__slots__:
            source = getattr(self, name)
            setattr(index, name, array(source.typecode, map(source.__getitem__, order)))
        return index

    def from_offset(self, offset: int) -> FrameIndex:
        """Return the frames with records at `offset` or after it; no publisher may run."""
        start = self.find(offset)
        index = FrameIndex()
        for name in self.__slots__:
            setattr(index, name, getattr(self, name)[start:])
        return index

    def numbers(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Return the frames from `first` to `end` (exclusive): a row for each array, as listed."""
        return np.array([getattr(self, name)[first:end] for name in self.__slots__], np.int64)

    @classmethod
    def of(cls, numbers: npt.NDArray[np.int64]) -> FrameIndex:
        """Build an index from the result of `numbers`."""
        index = cls()
        for name, row in zip(cls.__slots__, numbers, strict=True):
            kind = getattr(index, name).typecode
            setattr(index, name, array(kind, row.astype(kind).tobytes()))
        return index

    def max_timestamp(self, index: int) -> int:
        """Return the nanoseconds of the newest record in the frame at `index`."""
        return self._max_timestamps[index]
