"""Parquet files of a lake: records in the order of their offsets, written whole, in memory.

Row groups are small enough that statistics on offsets and times leave most of a file unread, and
have pages with statistics of their own. Times are in microseconds, which all engines read;
`timestamp_ns` has the nanoseconds below that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from stratalog.format.record_columns import Columns
from stratalog.segments.read import deleted_mask
from stratalog.segments.segment import Slice

COLUMNS = (
    "offset", "timestamp", "timestamp_ns", "key", "value", "headers", "tag", "node", "priority",
    "expires_at", "not_before", "operation", "event_time",
)  # fmt: skip
"""Schema of a file: what it has of each record; its topic is in the metadata of the file."""

SCHEMA = Columns(COLUMNS).schema

# Of a gigabyte, a filter for one offset then reads a sixtieth at most.
_GROUP_BYTES = 16 << 20
# A dictionary of values that hardly repeat costs half of the time, and is thrown away.
_DICTIONARIES = ["key", "tag", "node", "priority", "operation", "timestamp_ns"]

Mask = npt.NDArray[np.bool_]


class Living(NamedTuple):
    """Which records of a topic are not gone, at one moment."""

    start: int
    """Below this offset none is."""
    deleted: BitMap64
    ttl_ns: int
    now: int

    def of_slice(self, part: Slice) -> Mask | None:
        """Which records of a slice are living; None if all are."""
        batch, first, end = part
        return self._keep(
            batch.offsets(first, end),
            batch.timestamps(first, end) if self.ttl_ns else None,
            None if batch.expires_at is None else batch.expires_at[first:end],
        )

    def of_rows(self, rows: pa.RecordBatch) -> Mask | None:
        """Which rows of a file are living; None if all are."""
        expires = rows.column("expires_at")
        times = None
        if expires.null_count < len(expires):
            # The end of the microsecond: no record is taken for expired too early.
            times = expires.cast(pa.int64()).fill_null(-1).to_numpy() * 1000 + 999
            times[times < 0] = 0
        return self._keep(
            rows.column("offset").to_numpy(), nanoseconds(rows) if self.ttl_ns else None, times
        )

    def _keep(
        self,
        offsets: npt.NDArray[np.int64],
        timestamps: npt.NDArray[np.int64] | None,
        expires: npt.NDArray[np.int64] | None,
    ) -> Mask | None:
        if not len(offsets):
            return None
        gone = deleted_mask(self.deleted, offsets)
        dead: Mask = np.zeros(len(offsets), np.bool_) if gone is None else gone
        dead |= offsets < self.start
        if timestamps is not None:
            dead |= timestamps + self.ttl_ns <= self.now
        if expires is not None:
            dead |= (expires != 0) & (expires <= self.now)
        return ~dead if dead.any() else None


class Content(NamedTuple):
    """A whole file, and what a manifest says of it."""

    data: pa.Buffer
    records: int
    min_timestamp: int
    max_timestamp: int
    expires_at: int


class ParquetFile:
    """One file while it is written."""

    def __init__(self, metadata: dict[str, str], *, is_compressed: bool = True) -> None:
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink, SCHEMA.with_metadata(metadata),
            compression="zstd" if is_compressed else "none",
            compression_level=1 if is_compressed else None,
            use_dictionary=_DICTIONARIES, write_page_index=True,
        )  # fmt: skip
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._records = 0
        self._times = (0, 0)
        self._expires_at = 0

    @property
    def size(self) -> int:
        """About how many bytes it has so far."""
        return int(self._sink.tell()) + self._pending_bytes

    def add(self, rows: pa.RecordBatch) -> None:
        """Add records that come after those before them."""
        if not rows.num_rows:
            return
        times = nanoseconds(rows.slice(0, 1)), nanoseconds(rows.slice(rows.num_rows - 1))
        self._times = (self._times[0] if self._records else int(times[0][0]), int(times[1][0]))
        expires = pc.min(rows.column("expires_at").cast(pa.int64())).as_py()
        if expires is not None:
            expires *= 1000
            self._expires_at = min(self._expires_at or expires, expires)
        self._records += rows.num_rows
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> Content:
        """The whole file."""
        if self._pending:
            self._flush()
        self._writer.close()
        return Content(self._sink.getvalue(), self._records, *self._times, self._expires_at)

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._pending, SCHEMA)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._pending, self._pending_bytes = [], 0


def rows_of(slices: Iterable[Slice], living: Living) -> Iterator[pa.RecordBatch]:
    """The living records of slices, as rows of a file."""
    columns = Columns(COLUMNS)
    for part in slices:
        keep = living.of_slice(part)
        if keep is None or keep.any():
            yield columns.make("", part.batch, part.first, part.end, keep)


def rows_in(data: bytes, living: Living) -> Iterator[pa.RecordBatch]:
    """The rows of a file that are still living."""
    for rows in pq.ParquetFile(pa.BufferReader(data)).iter_batches():
        keep = living.of_rows(rows)
        rows = rows if keep is None else rows.filter(pa.array(keep))
        if "event_time" not in rows.schema.names:  # of an earlier release
            rows = rows.append_column("event_time", rows.column("timestamp"))
        yield rows.cast(SCHEMA)


def nanoseconds(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Full times of rows."""
    micros = rows.column("timestamp").cast(pa.int64()).to_numpy()
    times: npt.NDArray[np.int64] = micros * 1000 + rows.column("timestamp_ns").to_numpy()
    return times
