"""Records of FluxMQ batches by column.

Varints are consecutive, so a batch can only be read from its beginning on. Instead, many batches
are read in lockstep: a lane per batch, and each step reads one field of the next record in every
lane at once. If there are few long batches, they are read one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.interop.codecs.columns import (
    PAD_BYTES,
    Numbers,
    cut,
    headers_column,
    read_uvarints,
    times,
    unzigzag,
)
from stratalog.interop.fluxmq.format import EXPIRES_AT, FILLER_EXPIRY_MS
from stratalog.interop.model import OFFSET_MAX, SCHEMA
from stratalog.options import TIME_MAX

# Fewer lanes are read one after the other: a step of all takes as long as 40 single records.
_LANES_MIN = 40

_TIME_MAX_MS = TIME_MAX // 10**6
_U64_MAX = (1 << 64) - 1


class Records(NamedTuple):
    """The records of several batches."""

    batch: pa.RecordBatch
    bad: list[int]
    """Batches that do not decode."""
    untimed: dict[int, list[int]]
    """Offsets of records with impossible times, by batch: they have the time 0."""


class _Columns:
    """Places of all fields, a row per record."""

    def __init__(self, rows: int) -> None:
        self.offsets = np.zeros(rows, np.int64)
        self.timestamps = np.zeros(rows, np.int64)
        self.key = np.zeros((2, rows), np.int64)
        self.value = np.zeros((2, rows), np.int64)
        self.owners: list[Numbers] = []
        """Rows that headers belong to."""
        self.header_places: list[Numbers] = []
        """Per header: start and length of its key, start and length of its value."""


def read_records(
    data: bytes,
    starts: Numbers,
    ends: Numbers,
    counts: Numbers,
    base_offsets: Numbers,
    base_times: Numbers,
) -> Records:
    """Decode several batches into one, and return which of them do not decode.

    The records of each lie between its start and its end in `data`, which `PAD_BYTES` zero bytes
    follow. Times are milliseconds since 1970.
    """
    lanes = _Lanes(
        data, np.frombuffer(data, np.uint8), starts.copy(), ends, np.cumsum(counts) - counts,
        counts, base_offsets, base_times,
    )  # fmt: skip
    columns = lanes.read(_Columns(int(counts.sum())))
    _check_offsets(columns, lanes, counts, base_offsets)
    untimed = _check_times(columns, lanes, counts)
    bad = np.flatnonzero(lanes.is_bad).tolist()
    return Records(_arrow(data, columns, lanes.is_bad, counts), bad, untimed)


def _check_offsets(
    columns: _Columns, lanes: _Lanes, counts: Numbers, base_offsets: Numbers
) -> None:
    """Mark batches with offsets that do not increase, or are impossible."""
    offsets = columns.offsets
    is_wrong = (offsets < 0) | (offsets > OFFSET_MAX)
    is_wrong |= offsets < np.repeat(base_offsets, counts)
    starts = np.cumsum(counts) - counts
    falls = np.flatnonzero(offsets[1:] <= offsets[:-1]) + 1
    is_wrong[np.setdiff1d(falls, starts, assume_unique=False)] = True
    if is_wrong.any():
        owners = np.repeat(np.arange(len(counts)), counts)
        lanes.is_bad[owners[is_wrong]] = True


def _check_times(columns: _Columns, lanes: _Lanes, counts: Numbers) -> dict[int, list[int]]:
    """Set impossible times to 0; returns the offsets of these records by batch."""
    stamps = columns.timestamps
    is_wrong = (stamps < 0) | (stamps > _TIME_MAX_MS)
    if not is_wrong.any():
        return {}
    stamps[is_wrong] = 0
    owners = np.repeat(np.arange(len(counts)), counts)
    untimed: dict[int, list[int]] = {}
    for row in np.flatnonzero(is_wrong & ~lanes.is_bad[owners]).tolist():
        untimed.setdefault(int(owners[row]), []).append(int(columns.offsets[row]))
    return untimed


class _Lanes:
    """The batches that are read in lockstep."""

    def __init__(
        self,
        data: bytes,
        raw: npt.NDArray[np.uint8],
        cursors: Numbers,
        ends: Numbers,
        rows: Numbers,
        counts: Numbers,
        base_offsets: Numbers,
        base_times: Numbers,
    ) -> None:
        self._data = data
        self._raw = raw
        self._cursors = cursors
        self._ends = ends
        self._rows = rows
        self._counts = counts
        self._base_offsets = base_offsets
        self._base_times = base_times
        self.is_bad = np.zeros(len(counts), bool)

    def read(self, columns: _Columns) -> _Columns:
        """Read the records of all lanes; marks lanes that do not decode."""
        step = 0
        while len(lanes := np.flatnonzero((self._counts > step) & ~self.is_bad)):
            if len(lanes) < _LANES_MIN:
                for lane in lanes.tolist():
                    self._read_rest(lane, step, columns)
                break
            self._read_step(lanes, step, columns)
            step += 1
        self.is_bad |= self._cursors != self._ends
        return columns

    def _read_rest(self, lane: int, step: int, columns: _Columns) -> None:
        """Read the records of one lane from a step on, one after the other."""
        scalars = _Scalars(self._data, int(self._cursors[lane]), int(self._ends[lane]))
        first = int(self._rows[lane])
        try:
            for row in range(first + step, first + int(self._counts[lane])):
                scalars.read_record(row)
        except ValueError:
            self.is_bad[lane] = True
            return
        self._cursors[lane] = scalars.position
        rows = slice(first + step, first + int(self._counts[lane]))
        table = np.array(scalars.records, np.int64).reshape(-1, 6).T
        columns.offsets[rows] = table[0] + self._base_offsets[lane]
        columns.timestamps[rows] = table[1] + self._base_times[lane]
        columns.key[:, rows] = table[2:4]
        columns.value[:, rows] = table[4:6]
        if scalars.owners:
            columns.owners.append(np.array(scalars.owners, np.int64))
            columns.header_places.append(np.array(scalars.headers, np.int64).T)

    def _read_step(self, lanes: Numbers, step: int, columns: _Columns) -> None:
        """Read the next record of these lanes."""
        cursors, ends, raw = self._cursors[lanes], self._ends[lanes], self._raw
        rows = self._rows[lanes] + step
        columns.offsets[rows] = self._base_offsets[lanes] + read_uvarints(raw, cursors)
        self._clamp(lanes, cursors, ends)
        deltas = unzigzag(read_uvarints(raw, cursors))
        columns.timestamps[rows] = self._base_times[lanes] + deltas
        for places in (columns.key, columns.value):
            self._clamp(lanes, cursors, ends)
            lengths = unzigzag(read_uvarints(raw, cursors))
            self._check(lanes, (lengths < -1) | (cursors + lengths > ends), cursors, lengths)
            places[0, rows] = cursors
            places[1, rows] = lengths
            cursors += np.maximum(lengths, 0)
        self._clamp(lanes, cursors, ends)
        counts = read_uvarints(raw, cursors)
        # A header takes at least two bytes.
        self._check(lanes, (counts < 0) | (counts > (ends - cursors) // 2), cursors, counts)
        if counts.any():
            self._read_headers(lanes, cursors, ends, rows, counts, columns)
        self._check(lanes, cursors > ends, cursors, counts)
        self._cursors[lanes] = cursors

    def _read_headers(
        self,
        lanes: Numbers,
        cursors: Numbers,
        ends: Numbers,
        rows: Numbers,
        counts: Numbers,
        columns: _Columns,
    ) -> None:
        for number in range(int(counts.max())):
            some = np.flatnonzero((counts > number) & ~self.is_bad[lanes])
            if not len(some):
                return
            places = []
            at, limit = cursors[some], ends[some]
            for _ in range(2):
                self._clamp(lanes[some], at, limit)
                lengths = read_uvarints(self._raw, at)
                self._check(lanes[some], (lengths < 0) | (at + lengths > limit), at, lengths)
                places += [at.copy(), lengths]
                at += lengths
            cursors[some] = at
            columns.owners.append(rows[some])
            columns.header_places.append(np.stack(places))

    def _clamp(self, lanes: Numbers, cursors: Numbers, ends: Numbers) -> None:
        """Mark lanes that have ended where another field is required."""
        self._check(lanes, cursors >= ends, cursors, cursors.copy())

    def _check(
        self, lanes: Numbers, is_bad: npt.NDArray[np.bool_], cursors: Numbers, lengths: Numbers
    ) -> None:
        """Mark lanes that do not decode, and move them to where reading is harmless."""
        if is_bad.any():
            self.is_bad[lanes[is_bad]] = True
            cursors[is_bad] = len(self._raw) - PAD_BYTES
            lengths[is_bad] = 0


class _Scalars:
    """One batch, read record by record."""

    def __init__(self, data: bytes, position: int, end: int) -> None:
        self._data = data
        self._end = end
        self.position = position
        self.records: list[tuple[int, int, int, int, int, int]] = []
        """Per record: offset and time deltas, start and length of its key and of its value."""
        self.owners: list[int] = []
        self.headers: list[tuple[int, int, int, int]] = []

    def read_record(self, row: int) -> None:
        """Read the next record; raises `ValueError` where it does not decode."""
        offset = self._number()
        if offset > OFFSET_MAX:
            raise ValueError
        delta = self._number()
        key, key_length = self._bytes(signed=True)
        value, value_length = self._bytes(signed=True)
        self.records.append(
            (offset, (delta >> 1) ^ -(delta & 1), key, key_length, value, value_length)
        )
        for _ in range(self._number()):
            self.headers.append((*self._bytes(signed=False), *self._bytes(signed=False)))
            self.owners.append(row)

    def _number(self) -> int:
        position = self.position
        if position >= self._end:
            raise ValueError
        byte = self._data[position]
        if byte < 0x80:
            self.position = position + 1
            return byte
        number, shift = byte & 0x7F, 7
        while byte >= 0x80:
            position += 1
            if position >= self._end or shift > 63:
                raise ValueError
            byte = self._data[position]
            number |= (byte & 0x7F) << shift
            shift += 7
        self.position = position + 1
        return number & _U64_MAX

    def _bytes(self, *, signed: bool) -> tuple[int, int]:
        """Return start and length of a field; -1 for a missing one."""
        length = self._number()
        if signed:
            length = (length >> 1) ^ -(length & 1)
        start = self.position
        end = start + max(length, 0)
        if length < -1 or end > self._end:
            raise ValueError
        self.position = end
        return start, length


def _arrow(
    data: bytes, columns: _Columns, is_bad: npt.NDArray[np.bool_], counts: Numbers
) -> pa.RecordBatch:
    rows = len(columns.offsets)
    owners = np.concatenate(columns.owners) if columns.owners else np.zeros(0, np.int64)
    keys: list[str] = []
    values: list[bytes] = []
    expires = np.zeros(rows, np.int64)
    if len(owners):
        places = np.concatenate(columns.header_places, axis=1)
        order = np.argsort(owners, kind="stable")
        owners = owners[order]
        key_start, key_length, start, length = places[:, order].tolist()
        for row, a, b, c, d in zip(
            owners.tolist(), key_start, key_length, start, length, strict=True
        ):
            # FluxMQ defines it as text; other bytes are kept readable.
            key = data[a : a + b].decode("utf-8", "backslashreplace")
            value = data[c : c + d]
            keys.append(key)
            values.append(value)
            if key == EXPIRES_AT and value.isdigit() and len(value) < 14:
                expires[row] = min(int(value) * 10**6, TIME_MAX)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(columns.offsets),
            pa.array(columns.timestamps * 10**6).cast(SCHEMA.field("timestamp").type),
            cut(data, columns.key[0], columns.key[1], pa.binary()),
            cut(data, columns.value[0], columns.value[1], pa.binary()),
            headers_column(rows, owners, keys, values),
            pa.nulls(rows, pa.string()),
            pa.nulls(rows, pa.string()),
            pa.nulls(rows, pa.uint8()),
            times(expires, SCHEMA.field("expires_at").type),
            pa.nulls(rows, SCHEMA.field("not_before").type),
            pa.array(np.zeros(rows, np.uint8)),
        ],
        schema=SCHEMA,
    )
    # A record that fills a hole is dropped.
    is_dropped = (expires == FILLER_EXPIRY_MS * 10**6) & (columns.key[1] < 0)
    is_dropped &= columns.value[1] < 0
    is_dropped |= np.repeat(is_bad, counts)
    return batch.filter(pa.array(~is_dropped)) if is_dropped.any() else batch
