"""Read a directory of LedgerQ: messages by column, position, retries, ids and dead letters.

Damage: an entry is whole if its length is possible and its checksum right. After one that is not,
reading continues at the next whole entry: the messages in between are a gap. At the end of the
last segment that is a torn write, as a killed writer leaves it.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from stratalog.errors import NotAStoreError, UnsupportedVersionError
from stratalog.fs import FileSystem
from stratalog.interop.codecs.columns import cut
from stratalog.interop.codecs.text import nanoseconds, span, times_of
from stratalog.interop.files import join, read_file
from stratalog.interop.ledgerq import format as ledgerq
from stratalog.interop.ledgerq.optional_parts import OptionalParts
from stratalog.interop.ledgerq.walk import Run, first_of, runs_of
from stratalog.interop.model import (
    HOLE_MAX,
    OFFSET_MAX,
    SCHEMA,
    DedupId,
    Foreign,
    ForeignTopic,
    Pending,
    Problem,
)
from stratalog.model import Gap, Priority
from stratalog.options import TIME_MAX

PRIORITIES = np.array([Priority.LOW, Priority.NORMAL, Priority.HIGH], np.uint8)
"""Our priorities by theirs."""

_SEGMENT_NAME = re.compile(r"\d{20}\.log")
_ROWS_MAX = 1 << 13
_BATCH_BYTES = 4 << 20
_ENTRY_TYPE = np.dtype(
    [("length", "<u4"), ("type", "u1"), ("flags", "u1"), ("id", "<u8"), ("timestamp", "<i8")]
)
assert _ENTRY_TYPE.itemsize == ledgerq.ENTRY_BYTES


class Segment(NamedTuple):
    """A segment of a queue."""

    name: str
    base: int
    created_at: int
    last_id: int
    """Zero if it was not closed, or is empty."""


def read(fs: FileSystem, path: str, name: str | None = None) -> Foreign:
    """Read the queue in a directory, and its dead letters where they can be found."""
    main, dead = _find(fs, path)
    name = name or os.path.basename(os.path.abspath(path))
    foreign = Foreign("ledgerq", path)
    queue = _read_queue(fs, foreign, path, main, name)
    foreign.contents[name] = queue
    if dead is not None:
        letters = _read_queue(fs, foreign, path, dead, f"{name}.dead")
        letters.kind = "dead"
        foreign.contents[letters.name] = letters
        queue.dead = letters.name
    return foreign


def is_queue(fs: FileSystem, path: str) -> bool:
    """Return whether a directory holds segments of LedgerQ."""
    return any(map(_SEGMENT_NAME.fullmatch, fs.listdir(path)))


def _find(fs: FileSystem, path: str) -> tuple[str, str | None]:
    """Find the directory of the queue, and that of its dead letters.

    Nothing on disk links the two. Dead letters are looked for where examples of LedgerQ put them.
    """
    if is_queue(fs, path):
        stem = os.path.abspath(path)
        beside = [join(path, "dlq"), f"{stem}-dlq", f"{stem}_dlq", f"{stem}.dlq"]
        if os.path.basename(stem) == "queue":
            beside.append(join(os.path.dirname(stem), "dlq"))
        return path, next((one for one in beside if is_queue(fs, one)), None)
    main, dead = join(path, "queue"), join(path, "dlq")
    if is_queue(fs, main):
        return main, dead if is_queue(fs, dead) else None
    raise NotAStoreError(
        f"{path} is not a directory of LedgerQ: it has no segments (files named by 20 digits, "
        "ending in .log). Give the directory that was passed to ledgerq.Open."
    )


def _read_queue(fs: FileSystem, foreign: Foreign, root: str, path: str, name: str) -> ForeignTopic:
    reader = QueueReader(fs, foreign, root, path)
    topic = ForeignTopic(name, "queue", reader.first, reader.end, reader.batches, reader.gaps)
    topic.pieces = [partial(reader.piece, segment) for segment in reader.segments]
    topic.cursor = reader.read_id
    topic.pending, topic.options = reader.retries()
    topic.done = reader.consumed()
    topic.dedup = reader.dedup()
    return topic


class QueueReader:
    """Reads one queue directory."""

    def __init__(self, fs: FileSystem, foreign: Foreign, root: str, path: str) -> None:
        self._fs = fs
        self._foreign = foreign
        self._root = root
        self._path = path
        self._walked: dict[str, list[Run | int]] = {}
        self._fillers: list[int] = []
        self._lost: list[int] = []
        self._reported: set[Problem] = set()
        self.gaps: list[Gap] = []
        self.segments = self._segments()
        next_id, self.read_id = self._metadata()
        first, last = self._ids()
        if last and next_id - last > HOLE_MAX:
            self._problem(
                ledgerq.METADATA_NAME, 4,
                f"The next message would get id {next_id}, and the newest there is has {last}.",
                f"the next id: it is {last + 1}",
            )  # fmt: skip
            next_id = last + 1
        # A queue whose segments were all dropped goes on with the next id.
        self.first = first or next_id
        self.end = max(next_id, last + 1, self.first)
        self._position = next_id, self.read_id
        if self.read_id > self.end:
            self._problem(
                ledgerq.METADATA_NAME, 12,
                f"The read position is {self.read_id}, after every message there is.",
                "the read position: every message counts as consumed",
            )  # fmt: skip
        self.read_id = min(self.read_id, self.end)

    def _problem(self, name: str, position: int, what: str, lost: str = "") -> None:
        path = os.path.relpath(join(self._path, name), self._root)
        problem = Problem(path, position, what, lost)
        if problem not in self._reported:  # batches may be read more than once
            self._reported.add(problem)
            self._foreign.problems.append(problem)

    # --- what is there --------------------------------------------------------------------

    def _segments(self) -> list[Segment]:
        names = filter(_SEGMENT_NAME.fullmatch, self._fs.listdir(self._path))
        return sorted(map(self._segment, names), key=lambda segment: segment.base)

    def _segment(self, name: str) -> Segment:
        file = self._fs.open(join(self._path, name), "read")
        try:
            data = file.pread(ledgerq.HEADER_BYTES, 0)
        finally:
            file.close()
        base = int(name[: ledgerq.NAME_DIGITS])
        if len(data) < ledgerq.HEADER_BYTES:
            self._problem(name, 0, "The header of the segment is cut short.", "its messages")
            return Segment(name, base, 0, 0)
        magic, version, _, _, created_at, _, last_id, _, checksum = ledgerq.HEADER.unpack(data)
        if checksum != crc32c(data[:-4]):
            self._problem(name, 0, "The checksum of the segment's header is wrong.")
            return Segment(name, base, 0, 0)
        if magic != ledgerq.MAGIC:
            raise NotAStoreError(
                f"{join(self._path, name)} does not begin as a segment of LedgerQ does"
            )
        if version != ledgerq.VERSION:
            raise UnsupportedVersionError(
                f"{join(self._path, name)} is of version {version} of LedgerQ's format. This "
                f"release reads version {ledgerq.VERSION}: upgrade stratalog."
            )
        return Segment(name, base, created_at, last_id)

    def _metadata(self) -> tuple[int, int]:
        """Return the next id, and the next id to read."""
        data = read_file(self._fs, join(self._path, ledgerq.METADATA_NAME))
        if data is None or len(data) < ledgerq.METADATA_BYTES:
            what = "is missing" if data is None else "is cut short"
            self._problem(
                ledgerq.METADATA_NAME, -1, f"The file with the read position {what}.",
                "the read position: every message is delivered",
            )  # fmt: skip
            return 1, 1
        version, next_id, read_id, _ = ledgerq.METADATA.unpack(data[: ledgerq.METADATA_BYTES])
        if version != ledgerq.VERSION:
            raise UnsupportedVersionError(
                f"{join(self._path, ledgerq.METADATA_NAME)} is of version {version}. This release "
                f"reads version {ledgerq.VERSION}: upgrade stratalog."
            )
        if max(next_id, read_id) > OFFSET_MAX:
            self._problem(
                ledgerq.METADATA_NAME, 0, "The file with the read position has numbers that cannot "
                "be.", "the read position: every message is delivered",
            )  # fmt: skip
            return 1, 1
        return next_id, max(read_id, 1)

    def _ids(self) -> tuple[int, int]:
        """Return the first and the last id, from the ends of the segments; 0 for none."""
        first, last = 0, 0
        for segment in self.segments:
            data = self._map(segment)
            place = first_of(data)
            if place is not None:
                first = ledgerq.ENTRY.unpack_from(data, place)[3]
                if first <= OFFSET_MAX:
                    break
                first = min(segment.base, OFFSET_MAX)
        for segment in reversed(self.segments):
            last = segment.last_id if segment.last_id <= OFFSET_MAX else 0
            last = last or self._last_id(segment)
            if last:
                break
        return first, last

    def _last_id(self, segment: Segment) -> int:
        """Return the last id of a segment that was not closed; walks all of it, once."""
        data = self._map(segment)
        runs = self._walked[segment.name] = list(runs_of(data, self._index(segment)))
        for run in reversed(runs):
            for place in () if isinstance(run, int) else reversed(run.positions[:-1].tolist()):
                id: int = ledgerq.ENTRY.unpack_from(data, place)[3]
                if id <= OFFSET_MAX:
                    return id
        return 0

    def _map(self, segment: Segment) -> memoryview:
        file = self._fs.open(join(self._path, segment.name), "read")
        try:
            return file.mmap() if file.size() else memoryview(b"")
        finally:
            file.close()

    def _index(self, segment: Segment) -> list[int]:
        """Return the positions in the segment's index, if that is whole."""
        name = segment.name.removesuffix(ledgerq.SEGMENT_SUFFIX) + ledgerq.INDEX_SUFFIX
        data = read_file(self._fs, join(self._path, name))
        if data is None or len(data) < ledgerq.INDEX_HEADER_BYTES:
            return []
        magic, version, _, _, _, _, checksum = ledgerq.INDEX_HEADER.unpack_from(data)
        if magic != ledgerq.INDEX_MAGIC or version != ledgerq.VERSION:
            return []
        if checksum != crc32c(data[: ledgerq.INDEX_HEADER_BYTES - 4]):
            return []
        size = (len(data) - ledgerq.INDEX_HEADER_BYTES) // ledgerq.INDEX_BYTES
        body = data[ledgerq.INDEX_HEADER_BYTES :][: size * ledgerq.INDEX_BYTES]
        return [position for _, position, _ in ledgerq.INDEX.iter_unpack(body)]

    # --- messages -------------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all messages in id order; damage is noted when it is found."""
        self.gaps.clear()
        self._fillers.clear()
        self._lost.clear()
        expected = self.first
        torn: int | None = None
        for segment in self.segments:
            data = self._map(segment)
            torn = None
            runs = self._walked.get(segment.name) or runs_of(data, self._index(segment))
            for run in runs:
                if isinstance(run, int):
                    torn = run
                    continue
                for batch in self._columns(data, run.positions, segment):
                    batch, expected = self._continue(segment, torn, expected, batch)
                    torn = None
                    if batch.num_rows:
                        yield batch
            if torn is not None:
                expected = self._end(segment, torn, expected, data)
        if torn is None and not self._is_explained(expected, self.end):
            self._problem(
                ledgerq.METADATA_NAME, 4,
                f"The next message gets id {self.end}, and the newest there is has {expected - 1}.",
                span("message", expected, self.end),
            )  # fmt: skip
        self._note_gap(expected, self.end)

    def piece(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """Read the messages of one segment; damage in it is noted."""
        data = self._map(segment)
        expected = 0
        torn: int | None = None
        for run in self._walked.get(segment.name) or runs_of(data, self._index(segment)):
            if isinstance(run, int):
                torn = run
                continue
            for batch in self._columns(data, run.positions, segment):
                first = int(batch.column(0)[0].as_py())
                batch, expected = self._continue(segment, torn, expected or first, batch)
                torn = None
                if batch.num_rows:
                    yield batch
        if torn is not None:
            self._end(segment, torn, expected or self.first, data)

    def _continue(
        self, segment: Segment, torn: int | None, expected: int, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, int]:
        """Note what is missing before a batch; returns it, and the id that is expected after it."""
        ids = batch.column(0).to_numpy()
        newest = np.maximum.accumulate(np.concatenate(([expected - 1], ids)))
        if (ids <= newest[:-1]).any():
            again = ids[ids <= newest[:-1]]
            self._problem(
                segment.name, -1, f"{len(again)} ids from {again[0]} on were given out again.",
                "the later messages with these ids",
            )  # fmt: skip
            batch = batch.filter(pa.array(ids > newest[:-1]))
            ids = batch.column(0).to_numpy()
            if not len(ids):
                return batch, expected
        first, last = int(ids[0]), int(ids[-1])
        if torn is not None:
            lost = span("message", expected, first)
            self._problem(segment.name, torn, "An entry does not match its checksum.", lost)
        elif first > expected:
            self._note_missing(segment, expected, first)
        self._note_gap(expected, first)
        if last - first + 1 != len(ids):
            for at in np.flatnonzero(np.diff(ids) > 1).tolist():
                self._note_missing(segment, int(ids[at]) + 1, int(ids[at + 1]))
                self._note_gap(int(ids[at]) + 1, int(ids[at + 1]))
        return batch, last + 1

    def _note_missing(self, segment: Segment, start: int, end: int) -> None:
        if not self._is_explained(start, end):
            what = "No entry has ids that were given out before its messages."
            self._problem(segment.name, -1, what, span("message", start, end))

    def _is_explained(self, start: int, end: int) -> bool:
        """Return whether each of these ids is that of a filler, or reported already."""
        known = (self._fillers, self._lost)
        count = sum(bisect_left(ids, end) - bisect_left(ids, start) for ids in known)
        return count >= end - start

    def _note_gap(self, start: int, end: int) -> None:
        """Note missing ids, except those that an empty message stands for."""
        low, high = bisect_left(self._fillers, start), bisect_left(self._fillers, end)
        for filler in [*self._fillers[low:high], end]:
            if start < filler:
                self.gaps.append(Gap(start, filler - 1, "damaged"))
            start = filler + 1

    def _end(self, segment: Segment, torn: int, expected: int, data: memoryview) -> int:
        """Note a segment whose end cannot be read; returns the id that is expected after it."""
        if segment is not self.segments[-1]:
            self._problem(
                segment.name, torn, "The rest of the segment cannot be read.",
                f"messages from {expected} on, up to the next segment",
            )  # fmt: skip
            return expected
        id = 0
        if len(data) - torn >= ledgerq.ENTRY_BYTES:
            id = ledgerq.ENTRY.unpack_from(data, torn)[3]
        if id == expected:
            self.end = max(self.end, id + 1)
        lost = "" if expected >= self.end else f"messages {expected} to {self.end - 1}"
        if expected == self.end - 1:
            lost = f"message {expected}"
        self._problem(segment.name, torn, "The last entry is cut short: a torn write.", lost)
        return expected

    def _columns(
        self, data: memoryview, positions: npt.NDArray[np.int64], segment: Segment
    ) -> Iterator[pa.RecordBatch]:
        start, last = 0, len(positions) - 1
        while start < last:
            limit = int(np.searchsorted(positions, int(positions[start]) + _BATCH_BYTES))
            end = max(start + 1, min(start + _ROWS_MAX, limit, last))
            batch = self._batch(data, positions[start : end + 1], segment)
            if batch.num_rows:
                yield batch
            start = end

    def _batch(
        self, data: memoryview, positions: npt.NDArray[np.int64], segment: Segment
    ) -> pa.RecordBatch:
        """Decode the entries between these positions to columns."""
        base = int(positions[0])
        chunk = bytes(data[base : int(positions[-1])])
        raw = np.frombuffer(chunk, np.uint8)
        at = positions[:-1] - base
        head = raw[at[:, None] + np.arange(ledgerq.ENTRY_BYTES)].view(_ENTRY_TYPE)[:, 0]
        flags = head["flags"]
        body = at + ledgerq.ENTRY_BYTES
        has_priority = (flags & ledgerq.PRIORITY) != 0
        priority = np.zeros(len(at), np.uint8)
        priority[has_priority] = np.minimum(raw[body[has_priority]], 2)
        body = body + has_priority
        expires = np.zeros(len(at), np.int64)
        has_expiry = (flags & ledgerq.EXPIRES) != 0
        if has_expiry.any():
            where = body[has_expiry][:, None] + np.arange(8)
            expires[has_expiry] = raw[where].view("<i8")[:, 0]
            body = body + 8 * has_expiry
        ends = at + head["length"].astype(np.int64) - ledgerq.CHECKSUM_BYTES
        more = OptionalParts(len(at))
        special = np.flatnonzero(flags & (ledgerq.HEADERS | ledgerq.COMPRESSED))
        for row in special.tolist():
            start = int(body[row])
            try:
                body[row] = more.read(row, chunk, start, int(ends[row]), int(flags[row]))
            except ValueError as error:
                more.lost.append(row)
                self._problem(
                    segment.name, base + int(at[row]), f"An entry does not decode: {error}.",
                    f"message {head['id'][row]}",
                )  # fmt: skip
        strange = np.flatnonzero((flags & ledgerq.ENCRYPTED) != 0)
        for row in strange.tolist():
            more.lost.append(row)
            self._problem(
                segment.name, base + int(at[row]), "An entry is encrypted.",
                f"message {head['id'][row]}",
            )  # fmt: skip
        for row in np.flatnonzero(head["id"] > OFFSET_MAX).tolist():
            more.lost.append(row)
            self._problem(
                segment.name, base + int(at[row]), "An entry has a number that cannot be.",
                f"message {head['id'][row]}",
            )  # fmt: skip
        stamps = head["timestamp"].copy()
        is_filler = has_expiry & (expires - stamps == ledgerq.FILLER_NANOSECONDS)
        is_filler &= (body == ends) & (flags == ledgerq.EXPIRES)
        is_untimed = (stamps < 0) | (stamps > TIME_MAX)
        stamps[is_untimed] = 0
        is_strange = has_expiry & ((expires < 1) | (expires > TIME_MAX))
        # LedgerQ does not deliver messages that expire before 1970, and none lives beyond our
        # range.
        expires[has_expiry] = np.clip(expires[has_expiry], 1, TIME_MAX)
        for which, lost in ((is_untimed, "time"), (is_strange, "expiry")):
            rows = np.flatnonzero(which)
            if len(rows):
                self._problem(
                    segment.name, base + int(at[rows[0]]), "An entry has a time that cannot be.",
                    times_of("message", head["id"][rows].tolist(), lost),
                )  # fmt: skip
        values = cut(chunk, body, ends - body, pa.binary())
        if more.values:
            objects = values.to_pylist()
            for row, value in more.values.items():
                objects[row] = value
            values = pa.array(objects, pa.binary())
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(head["id"].astype(np.int64)),
                pa.array(stamps).cast(SCHEMA.field("timestamp").type),
                pa.nulls(len(at), pa.binary()),
                values,
                more.headers_array(len(at)),
                pa.nulls(len(at), pa.string()),
                pa.nulls(len(at), pa.string()),
                pa.array(PRIORITIES[priority]),
                pa.array(expires, mask=~has_expiry).cast(SCHEMA.field("expires_at").type),
                pa.nulls(len(at), SCHEMA.field("not_before").type),
                pa.array(np.zeros(len(at), np.uint8)),
            ],
            schema=SCHEMA,
        )
        keep = head["type"] == ledgerq.MESSAGE
        keep[more.lost] = False
        self._lost += sorted(int(head["id"][row]) for row in more.lost)
        if is_filler.any():
            self._fillers += head["id"][is_filler].tolist()
            keep &= ~is_filler
        return batch if keep.all() else batch.filter(pa.array(keep))

    # --- state ----------------------------------------------------------------------------

    def retries(self) -> tuple[list[Pending], dict[str, object]]:
        """Return messages that were given back and not acknowledged, and the matching option."""
        state = self._json(ledgerq.RETRY_NAME, ledgerq.RetryState, "failure counts")
        if state is None:
            return [], {}
        pending = [
            Pending(
                entry.msg_id, "", entry.retry_count, nanoseconds(entry.last_failure),
                reason=entry.failure_reason,
            )
            for entry in sorted(state.entries or [], key=lambda entry: entry.msg_id)
        ]  # fmt: skip
        return pending, {"max_deliveries": state.max_retries} if state.max_retries > 0 else {}

    def consumed(self) -> list[int]:
        """Return consumed ids from the read position on, if an export of ours recorded them."""
        state = self._json(ledgerq.CONSUMED_NAME, ledgerq.ConsumedState, "what was consumed")
        if state is None or (state.next_id, state.read_id) != self._position:
            return []
        limits = self.read_id, self.end - 1
        return [
            id
            for first, last in state.consumed
            for id in range(max(first, limits[0]), min(last, limits[1]) + 1)
        ]

    def dedup(self) -> list[DedupId]:
        """Return deduplication ids, which are digests of the callers' ids."""
        state = self._json(ledgerq.DEDUP_NAME, ledgerq.DedupState, "deduplication ids")
        entries = [] if state is None else state.entries or []
        return [
            DedupId(entry.dedup_id.encode(), entry.message_id, entry.enqueued_at, entry.expires_at)
            for entry in sorted(entries, key=lambda entry: entry.message_id)
        ]

    def _json(self, name: str, kind: type[Any], what: str) -> Any:
        data = read_file(self._fs, join(self._path, name))
        if data is None:
            return None
        try:
            state = msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._problem(name, -1, f"The file does not decode: {error}.", what)
            return None
        if state.version != ledgerq.VERSION:
            raise UnsupportedVersionError(
                f"{join(self._path, name)} is of version {state.version}. This release reads "
                f"version {ledgerq.VERSION}: upgrade stratalog."
            )
        return state
