"""Read a directory of FluxMQ: a topic per queue, and its consumer groups.

Damage: a batch with a wrong checksum is a gap, and so is everything up to the next batch that can
be found. A batch that is cut short at the end of the last segment is a torn write: FluxMQ's
recovery cuts it off, and its offsets are given out again.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from stratalog.errors import NotAStoreError, UnsupportedVersionError
from stratalog.fs import FileSystem
from stratalog.interop.codecs.columns import PAD_BYTES
from stratalog.interop.codecs.s2 import decompress_s2
from stratalog.interop.codecs.text import span, times_of
from stratalog.interop.codecs.zstd import decompress_zstd
from stratalog.interop.files import join, list_inside
from stratalog.interop.fluxmq import format as fluxmq
from stratalog.interop.fluxmq.groups import GroupReader
from stratalog.interop.fluxmq.records import read_records
from stratalog.interop.model import OFFSET_MAX, Foreign, ForeignTopic, Problem
from stratalog.model import Gap

BATCH_BYTES_MAX = 100 << 20
"""Largest batch after decompression."""

_DEPTH_MAX = 16
_SEGMENT_NAME = re.compile(r"\d{20}\.seg")
_MAGIC = fluxmq.MAGIC.to_bytes(4, "little")
# Magic, checksum and length: all that walking from batch to batch needs.
_WALK = struct.Struct("<II8xI")
_HEAD = np.dtype(
    [
        ("magic", "<u4"), ("checksum", "<u4"), ("base_offset", "<u8"), ("length", "<u4"),
        ("count", "<u2"), ("flags", "<u2"), ("compression", "u1"), ("version", "u1"),
        ("unused", "<u2"), ("base_timestamp", "<i8"), ("max_timestamp", "<i8"),
    ]
)  # fmt: skip
assert _HEAD.itemsize == fluxmq.BATCH_BYTES
# Batches read in lockstep: enough lanes to pay for an operation on all of them.
_LANES = 2048
_BYTES = 8 << 20
# Decompressed bytes in memory at once, except for a single larger batch.
_CONTENT_BYTES = 64 << 20


class Run(NamedTuple):
    """Consecutive whole batches."""

    positions: npt.NDArray[np.int64]
    """Position of each, and finally the position after the last."""
    heads: npt.NDArray[np.void]
    """Their headers."""


class Hole(NamedTuple):
    """Bytes that are not a whole batch."""

    position: int
    what: str
    is_torn: bool
    """Whether it reaches to the end of the file."""
    lost: str = ""
    """Records that it had, as far as its header shows."""


def read(fs: FileSystem, path: str, name: str | None = None) -> Foreign:
    """Read the queues of a store; `name` is a prefix of each queue's own, with a dot."""
    if not fs.listdir(join(path, "queues")):
        raise NotAStoreError(
            f"{path} is not a directory of FluxMQ: it has no queues/. Give the directory that "
            "the broker's storage is configured with."
        )
    foreign = Foreign("fluxmq", path)
    for queue in _queues(fs, join(path, "queues")):
        directory = join(path, "queues", queue)
        names = filter(_SEGMENT_NAME.fullmatch, fs.listdir(join(directory, "segments")))
        segments = []
        for segment in sorted(names):
            if int(segment[:20]) <= OFFSET_MAX:
                segments.append(segment)
                continue
            file = os.path.relpath(join(directory, "segments", segment), path)
            what = "Its name says that it begins at an offset that cannot be."
            foreign.problems.append(Problem(file, -1, what, "all records of the file"))
        if not segments:
            continue
        reader = QueueReader(fs, foreign, path, join(directory, "segments"), segments)
        title = f"{name}.{queue}" if name else queue
        foreign.contents[title] = ForeignTopic(
            title, "topic", reader.first, reader.end, reader.batches, reader.gaps,
            [partial(reader.piece, segment) for segment in segments],
        )  # fmt: skip
        foreign.groups += GroupReader(fs, foreign, path, queue, title).read(reader.end)
    return foreign


def _queues(fs: FileSystem, path: str, prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the names of all queues; a name with slashes is a path of several directories."""
    for name in list_inside(fs, path):
        inside = list_inside(fs, join(path, name))
        if "segments" in inside:
            yield prefix + name
        elif inside and depth < _DEPTH_MAX:
            yield from _queues(fs, join(path, name), f"{prefix}{name}/", depth + 1)


class QueueReader:
    """Reads the segments of one queue."""

    def __init__(
        self, fs: FileSystem, foreign: Foreign, root: str, path: str, segments: list[str]
    ) -> None:
        self._fs = fs
        self._foreign = foreign
        self._root = root
        self._path = path
        self._segments = segments
        self._walked: dict[str, list[Run | Hole]] = {}
        self._reported: set[Problem] = set()
        self.gaps: list[Gap] = []
        self.first = int(segments[0][:20])
        self.end = self._end()

    def _problem(self, name: str, position: int, what: str, lost: str = "") -> None:
        path = os.path.relpath(join(self._path, name), self._root)
        problem = Problem(path, position, what, lost)
        if problem not in self._reported:  # batches may be read more than once
            self._reported.add(problem)
            self._foreign.problems.append(problem)

    def _end(self) -> int:
        """Return the offset of the next record: after the last whole batch."""
        for name in reversed(self._segments):
            found = self._walked[name] = list(_runs(self._map(name), name))
            runs = [run for run in found if isinstance(run, Run)]
            if runs:
                head = runs[-1].heads[-1]
                return int(head["base_offset"]) + int(head["count"])
        return self.first

    def _map(self, name: str) -> memoryview:
        file = self._fs.open(join(self._path, name), "read")
        try:
            return file.mmap() if file.size() else memoryview(b"")
        finally:
            file.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all records in offset order; damage is noted when it is found."""
        self.gaps.clear()
        expected = self.first
        newest = -1
        holes: list[tuple[str, Hole]] = []
        for name in self._segments:
            for found in self._segment(name):
                if isinstance(found, Hole):
                    holes.append((name, found))
                    continue
                heads, batch = found
                first = int(heads["base_offset"][0])
                if not holes and first > expected:
                    self._note_missing(name, expected, first)
                self._note(holes, expected, first)
                expected = self._follow(name, heads, expected)
                batch, newest = self._rising(name, batch, newest)
                if batch.num_rows:
                    yield batch
        self._note(holes, expected, self.end)
        if expected < self.end:
            self.gaps.append(Gap(expected, self.end - 1, "damaged"))

    def piece(self, name: str) -> Iterator[pa.RecordBatch]:
        """Read the records of one segment; damage in it is noted."""
        expected = int(name[:20])
        holes: list[tuple[str, Hole]] = []
        for found in self._segment(name):
            if isinstance(found, Hole):
                holes.append((name, found))
                continue
            heads, batch = found
            self._note(holes, expected, int(heads["base_offset"][0]))
            expected = int(heads["base_offset"][-1]) + int(heads["count"][-1])
            if batch.num_rows:
                yield batch
        later = [int(other[:20]) for other in self._segments if other > name]
        self._note(holes, expected, min(later, default=self.end))

    def _segment(self, name: str) -> Iterator[Hole | tuple[npt.NDArray[np.void], pa.RecordBatch]]:
        data = self._map(name)
        for found in self._walked.get(name) or _runs(data, name):
            if isinstance(found, Hole):
                yield found
                continue
            for chunk in _chunks(found):
                yield from self._records(name, data, chunk)

    def _rising(self, name: str, batch: pa.RecordBatch, newest: int) -> tuple[pa.RecordBatch, int]:
        """Records after all those before them, and the newest offset; others are reported."""
        offsets = batch.column(0).to_numpy()
        highest = np.maximum.accumulate(np.concatenate(([newest], offsets)))
        is_new = offsets > highest[:-1]
        if not is_new.all():
            again = offsets[~is_new]
            self._problem(
                name, -1, f"{len(again)} offsets from {again[0]} on were given out again.",
                "the later records with these offsets",
            )  # fmt: skip
            batch = batch.filter(pa.array(is_new))
        return batch, int(highest[-1])

    def _note_missing(self, name: str, start: int, end: int) -> None:
        what = "No batch has offsets that were given out before its records."
        self._problem(name, -1, what, span("record", start, end))

    def _follow(self, name: str, heads: npt.NDArray[np.void], expected: int) -> int:
        """Note the offsets that are missing before or between batches; returns the next one."""
        starts = heads["base_offset"].astype(np.int64)
        ends = starts + heads["count"]
        before = np.concatenate(([expected], ends[:-1]))
        for at in np.flatnonzero(starts > before).tolist():
            if at:
                self._note_missing(name, int(before[at]), int(starts[at]))
            self.gaps.append(Gap(int(before[at]), int(starts[at]) - 1, "damaged"))
        return max(expected, int(ends[-1]))

    def _note(self, holes: list[tuple[str, Hole]], expected: int, found: int) -> None:
        """Report the bytes between two batches, once the missing offsets are known."""
        for name, hole in holes:
            if hole.is_torn and name == self._segments[-1]:
                what = "The last batch is cut short: a torn write."
                self._problem(name, hole.position, what, hole.lost or "the records of that batch")
            else:
                self._problem(name, hole.position, hole.what, span("record", expected, found))
        holes.clear()

    def _records(
        self, name: str, data: memoryview, run: Run
    ) -> Iterator[tuple[npt.NDArray[np.void], pa.RecordBatch]]:
        """Decode consecutive batches, in pieces that fit into memory."""
        start = size = 0
        bodies: dict[int, bytes] = {}
        is_lost = np.zeros(len(run.heads), bool)
        for at in np.flatnonzero(run.heads["flags"] & fluxmq.COMPRESSED).tolist():
            first, last = int(run.positions[at]) + fluxmq.BATCH_BYTES, int(run.positions[at + 1])
            try:
                body = _decompress(bytes(data[first:last]), int(run.heads["compression"][at]))
            except ValueError as error:
                is_lost[at] = True
                self._lose(name, run, at, f"A batch does not decompress: {error}.")
                continue
            if size + len(body) > _CONTENT_BYTES and at > start:
                yield self._piece(name, data, run, (start, at), is_lost, bodies)
                start, size = at, 0
                bodies.clear()
            bodies[at] = body
            size += len(body)
        yield self._piece(name, data, run, (start, len(run.heads)), is_lost, bodies)

    def _piece(
        self,
        name: str,
        data: memoryview,
        run: Run,
        part: tuple[int, int],
        is_lost: npt.NDArray[np.bool_],
        bodies: dict[int, bytes],
    ) -> tuple[npt.NDArray[np.void], pa.RecordBatch]:
        """Decode a part of a run; records that do not decode are gaps."""
        first, end = part
        positions, heads = run.positions[first : end + 1], run.heads[first:end]
        base = int(positions[0])
        starts = positions[:-1] - base + fluxmq.BATCH_BYTES
        ends = positions[1:] - base
        parts = [bytes(data[base : int(positions[-1])])]
        size = len(parts[0])
        for at, body in bodies.items():
            starts[at - first], ends[at - first] = size, size + len(body)
            parts.append(body)
            size += len(body)
        keep = np.flatnonzero(~is_lost[first:end])
        records = read_records(
            b"".join([*parts, bytes(PAD_BYTES)]), starts[keep], ends[keep],
            heads["count"][keep].astype(np.int64), heads["base_offset"][keep].astype(np.int64),
            heads["base_timestamp"][keep],
        )  # fmt: skip
        for at in records.bad:
            what = "The records of a batch do not decode."
            self._lose(name, run, first + int(keep[at]), what)
        for at, offsets in records.untimed.items():
            what = "A batch has records with times that cannot be."
            self._problem(name, int(positions[int(keep[at])]), what, times_of("record", offsets))
        return heads, records.batch

    def _lose(self, name: str, run: Run, at: int, what: str) -> None:
        first = int(run.heads["base_offset"][at])
        last = first + int(run.heads["count"][at]) - 1
        self._problem(name, int(run.positions[at]), what, span("record", first, last + 1))
        self.gaps.append(Gap(first, last, "damaged"))


def _chunks(run: Run) -> Iterator[Run]:
    """Cut a run into pieces that are worth decoding together, and not larger."""
    start, last = 0, len(run.heads)
    while start < last:
        limit = int(np.searchsorted(run.positions, int(run.positions[start]) + _BYTES))
        end = max(start + 1, min(start + _LANES, limit, last))
        yield Run(run.positions[start : end + 1], run.heads[start:end])
        start = end


def _decompress(data: bytes, compression: int) -> bytes:
    if compression == fluxmq.S2:
        return decompress_s2(data, BATCH_BYTES_MAX)
    if compression == fluxmq.ZSTD:
        return decompress_zstd(data, BATCH_BYTES_MAX)
    raise ValueError(f"compression {compression} is not known")


def _runs(data: memoryview, name: str) -> Iterator[Run | Hole]:
    """Give runs of whole batches of a segment, and the holes between them."""
    position, end = 0, len(data)
    while position < end:
        positions, stop = _walk(data, position, end)
        if positions:
            yield from _possible(_run(data, np.array([*positions, stop], np.int64), name))
        if stop >= end:
            return
        position, found = stop, _resume(data, stop, end)
        what = "A batch does not match its checksum, or there is none where one has to begin."
        is_torn = found is None and _is_cut(data, stop, end)
        yield Hole(stop, what, is_torn, _torn_records(data, stop, end) if is_torn else "")
        if found is None:
            return
        position = found


def _possible(run: Run) -> Iterator[Run | Hole]:
    """Remove batches with impossible numbers from a run."""
    wrong = np.flatnonzero(run.heads["base_offset"] > OFFSET_MAX).tolist()
    start = 0
    for at in [*wrong, len(run.heads)]:
        if start < at:
            yield Run(run.positions[start : at + 1], run.heads[start:at])
        if at < len(run.heads):
            what = "A batch begins at an offset that cannot be."
            yield Hole(int(run.positions[at]), what, False)
        start = at + 1


def _walk(data: memoryview, position: int, end: int) -> tuple[list[int], int]:
    """Return positions of whole batches from one on, and where the first other one begins."""
    unpack, checksum = _WALK.unpack_from, crc32c
    least, magic = fluxmq.BATCH_BYTES, fluxmq.MAGIC
    positions: list[int] = []
    add = positions.append
    while end - position >= least:
        found, stored, length = unpack(data, position)
        stop = position + least + length
        if found != magic or stop > end or stored != checksum(data[position + 8 : stop]):
            break
        add(position)
        position = stop
    return positions, position


def _run(data: memoryview, positions: npt.NDArray[np.int64], name: str) -> Run:
    raw = np.frombuffer(data, np.uint8)
    heads = raw[positions[:-1, None] + np.arange(fluxmq.BATCH_BYTES)].view(_HEAD)[:, 0]
    if (heads["version"] != fluxmq.VERSION).any():
        at = int(np.flatnonzero(heads["version"] != fluxmq.VERSION)[0])
        raise UnsupportedVersionError(
            f"The batch at position {positions[at]} of {name} is of version "
            f"{heads['version'][at]} of FluxMQ's format. This release reads version "
            f"{fluxmq.VERSION}: upgrade stratalog."
        )
    return Run(positions, heads)


def _torn_records(data: memoryview, position: int, end: int) -> str:
    """Describe the records of a truncated batch, if its header is complete."""
    if end - position < fluxmq.BATCH_BYTES:
        return ""
    _, _, base, _, count, *_ = fluxmq.BATCH.unpack_from(data, position)
    return span("record", base, base + count)


def _is_cut(data: memoryview, position: int, end: int) -> bool:
    """Return whether a batch begins at a position, and the file ends before the batch does."""
    if end - position < fluxmq.BATCH_BYTES:
        return True
    magic, _, length = _WALK.unpack_from(data, position)
    return bool(magic == fluxmq.MAGIC and position + fluxmq.BATCH_BYTES + length > end)


def _resume(data: memoryview, position: int, end: int) -> int | None:
    """Find the next whole batch."""
    chunk = bytes(data[position + 1 :])
    at = chunk.find(_MAGIC)
    while at >= 0:
        place = position + 1 + at
        if end - place >= fluxmq.BATCH_BYTES:
            fields = fluxmq.BATCH.unpack_from(data, place)
            stop = place + fluxmq.BATCH_BYTES + fields[3]
            if stop <= end and fields[1] == crc32c(data[place + fluxmq.CHECKED_FROM : stop]):
                return place
        at = chunk.find(_MAGIC, at + 1)
    return None


__all__ = ["BATCH_BYTES_MAX", "read"]
