"""A checksum over records that does not depend on how they are divided into batches.

An import computes it over what it appends, and over what it then reads back from the store.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_64

COLUMNS = ["offset", "key", "value", "headers", "tag", "node", "expires_at"]
"""Columns that a record must have to be included."""


class Digest:
    """Checksums of the columns of records, in order.

    Records that expire before a time are left out: they may be gone when they are read back.
    """

    def __init__(self, lives_until: int) -> None:
        self.lives_until = lives_until
        self._hashes: dict[str, Any] = {}
        self.records = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the records of a batch."""
        expiries = batch.column("expires_at").cast(pa.int64()).fill_null(0)
        is_kept = pc.or_(pc.equal(expiries, 0), pc.greater(expiries, self.lives_until))
        if not is_kept.to_numpy(zero_copy_only=False).all():
            batch = batch.filter(is_kept)
        self.records += batch.num_rows
        self._add("offset", batch.column("offset").to_numpy().tobytes())
        for name in ("key", "value", "tag", "node"):
            self._add_column(name, batch.column(name))
        headers = batch.column("headers")
        counts = pc.list_value_length(headers).fill_null(0)
        self._add("headers", counts.to_numpy().astype(np.int64).tobytes())
        items = headers.flatten()
        for place, name in enumerate(("header key", "header value")):
            self._add_column(name, items.field(place))

    def _add_column(self, name: str, column: pa.Array) -> None:
        lengths = pc.binary_length(column).fill_null(-1)
        self._add(name + " lengths", lengths.to_numpy().astype(np.int64).tobytes())
        present = column.drop_null()
        if len(present):
            # This makes the bytes of all values contiguous.
            _, offsets, data = pa.concat_arrays([present.take(_all(present))]).buffers()
            ends = np.frombuffer(offsets, np.int32)
            self._add(name, memoryview(data)[int(ends[0]) : int(ends[len(present)])])

    def _add(self, name: str, data: Any) -> None:
        self._hashes.setdefault(name, xxh3_64()).update(data)

    def checksums(self) -> dict[str, str]:
        """Return the checksum of each column that is not empty."""
        return {name: one.hexdigest() for name, one in self._hashes.items()}


def _all(column: pa.Array) -> pa.Array:
    return pa.array(np.arange(len(column)))


__all__ = ["COLUMNS", "Digest"]
