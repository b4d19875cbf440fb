"""The places of a series topic's points: blocks of records, and the newest points in a buffer.

A block is a range of offsets with its minimum and maximum time, its number of points, and its
series. The points of the newest block are buffered, up to 1024 for each series: once a series has
more, or the buffer takes too much memory, the block is closed and its points are dropped from
memory. Queries then read its records.

Invariants:
- Blocks are in offset order and do not overlap; the open one comes last.
- A block lists every series that may have a point in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.format.point_records import Part
from stratalog.format.points import Bools, Column, Int64s

BUFFER_POINTS = 1024
"""Buffered points of one series at most."""
BLOCK_POINTS = 1 << 16
"""Points of a block at most, all series together, unless one record has more."""
PARTS_MAX = 256
"""Buffered parts at most: a reader goes through them one by one."""
NAMED_MAX = 1024
"""Series that a block lists at most; a block with more may have any."""

# Columns of the closed blocks.
FIRST, END, LEAST, GREATEST, COUNT = range(5)
COLUMNS = 5

# Bytes of a part besides its arrays.
_PART_BYTES = 600


class Block(NamedTuple):
    """Records between two offsets."""

    first: int
    end: int
    least: int
    greatest: int
    points: int
    series: bytes | None
    """Numbers of the series in it, u32, ascending; None if it may have any."""

    @classmethod
    def of(cls, numbers: Sequence[int], series: bytes | None) -> Block:
        """Build a block from its numbers."""
        first, end, least, greatest, points = numbers
        return cls(first, end, least, greatest, points, series)

    @property
    def numbers(self) -> tuple[int, ...]:
        """All fields but the series."""
        return self.first, self.end, self.least, self.greatest, self.points


class OpenBlock(NamedTuple):
    """The newest block, and its points."""

    block: Block
    parts: tuple[Part, ...]
    counts: dict[int, int]
    """Number of points of each series."""
    bytes: int


class Blocks:
    """All blocks of a topic."""

    def __init__(self) -> None:
        self.table = np.zeros((COLUMNS, 0), np.int64)
        self.size = 0
        self.series: list[bytes | None] = []
        self.open: OpenBlock | None = None
        self.series_bytes = 0

    def __len__(self) -> int:
        return self.size + (self.open is not None)

    @property
    def bytes(self) -> int:
        """Approximate bytes of blocks and buffers."""
        return self.table.nbytes + 8 * self.size + self.series_bytes + self.buffer_bytes

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the buffered points."""
        return 0 if self.open is None else self.open.bytes

    def extend(
        self, first: int, end: int, parts: list[Part], ids: list[Int64s], bytes_max: int
    ) -> None:
        """Add the records of a range of offsets; idempotent after an interrupt.

        At most `bytes_max` are buffered.
        """
        if self.open is not None and self.size and self.open.block.first < self._end:
            self.open = None  # closing it was interrupted
        known = self._end if self.open is None else self.open.block.end
        if end <= known or not parts:
            return
        opened = _extended(self.open, first, end, parts, ids)
        block = opened.block
        is_full = (
            block.points >= BLOCK_POINTS
            or len(opened.parts) > PARTS_MAX
            or opened.bytes > bytes_max
            or max(opened.counts.values()) > BUFFER_POINTS
        )
        if is_full:
            self._close(block)
            self.open = None
        else:
            self.open = opened

    @property
    def _end(self) -> int:
        return int(self.table[END, self.size - 1]) if self.size else 0

    def close(self) -> bool:
        """Drop the buffered points and keep their block; returns whether there were any."""
        opened = self.open
        if opened is None:
            return False
        if opened.block.first >= self._end:
            self._close(opened.block)
        self.open = None
        return True

    def _close(self, block: Block) -> None:
        if self.table.shape[1] <= self.size:
            larger = np.zeros((COLUMNS, max(16, 2 * self.size)), np.int64)
            larger[:, : self.size] = self.table[:, : self.size]
            self.table = larger
        series = block.series
        if self.series and self.series[-1] == series:
            series = self.series[-1]  # shared: blocks usually have the same series
        elif series is not None:
            self.series_bytes += len(series) + 40
        self.table[:, self.size] = block.numbers
        del self.series[self.size :]
        self.series.append(series)
        self.size += 1

    def prune(self, offset: int) -> None:
        """Remove blocks that lie wholly below an offset: their records are gone."""
        gone = int(np.searchsorted(self.table[END, : self.size], offset, side="right"))
        if gone > self.size // 2 or (gone and gone == self.size):
            kept = self.table[:, gone : self.size].copy()
            series = self.series[gone : self.size]
            self.table, self.series, self.size = kept, series, self.size - gone
            self.series_bytes = sum(len(one) + 40 for one in set(series) if one is not None)
        if self.open is not None and self.open.block.end <= offset:
            self.open = None

    def find(
        self, start: int, end: int, wanted: Bools | None, floor: int = 0
    ) -> tuple[list[Block], tuple[Part, ...]]:
        """Find closed blocks that may have points of these series and times, and the buffer."""
        table = self.table[:, : self.size]
        chosen = np.flatnonzero(
            (table[GREATEST] >= start) & (table[LEAST] < end) & (table[END] > floor)
        )
        blocks = [
            Block.of(row, self.series[place])
            for place, row in zip(chosen.tolist(), table[:, chosen].T.tolist(), strict=True)
            if wanted is None or _has(self.series[place], wanted)
        ]
        opened = self.open
        return blocks, () if opened is None or opened.block.end <= floor else opened.parts

    def all(self) -> list[Block]:
        """List every block, the open one as if it were closed."""
        rows = self.table[:, : self.size].T.tolist()
        found = [Block.of(row, series) for row, series in zip(rows, self.series, strict=True)]
        return found if self.open is None else [*found, self.open.block]

    @classmethod
    def of(cls, found: list[Block]) -> Blocks:
        """Restore captured blocks."""
        blocks = cls()
        for block in found:
            blocks._close(block)
        return blocks


def _has(series: bytes | None, wanted: Bools) -> bool:
    if series is None:
        return True
    ids = np.frombuffer(series, np.uint32)
    return bool(wanted[ids[ids < len(wanted)]].any())


def _extended(
    opened: OpenBlock | None, first: int, end: int, parts: list[Part], ids: list[Int64s]
) -> OpenBlock:
    counts = {} if opened is None else dict(opened.counts)
    for part, numbers in zip(parts, ids, strict=True):
        for id, count in zip(numbers.tolist(), part.points.counts.tolist(), strict=True):
            counts[id] = counts.get(id, 0) + count
    filled = [part for part in parts if len(part.points)]
    series = None
    if len(counts) <= NAMED_MAX:
        series = np.array(sorted(counts), np.uint32).tobytes()
    least = [int(part.points.times.min()) for part in filled]
    greatest = [int(part.points.times.max()) for part in filled]
    if opened is not None:
        least.append(opened.block.least)
        greatest.append(opened.block.greatest)
        first = opened.block.first
    size = sum(map(_bytes, filled)) + (0 if opened is None else opened.bytes)
    block = Block(
        first, end, min(least, default=0), max(greatest, default=0), sum(counts.values()), series
    )
    older = () if opened is None else opened.parts
    return OpenBlock(block, (*older, *filled), counts, size)


def _bytes(part: Part) -> int:
    columns = sum(_column_bytes(column) for column in part.points.fields.values())
    return _PART_BYTES + columns + 16 * len(part.points) + 40 * len(part.points.series)


def _column_bytes(column: Column) -> int:
    values: npt.NDArray[np.generic] = column.values
    if values.dtype == np.object_:
        return 64 * len(values)  # an estimate, for short texts
    return values.nbytes + (0 if column.valid is None else column.valid.nbytes)
