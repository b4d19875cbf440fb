"""Batches into one: small ones joined, records left out, nothing else changed.

Batches of plain values, which is what most are, are joined as bytes and numbers. All others go
through Arrow, which knows how to join and filter columns of every kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.format.batch import Batch
from stratalog.format.codec import compress
from stratalog.format.columns import add_timestamps, pad

if TYPE_CHECKING:
    import pyarrow as pa

NEVER = 0
"""Of `expires_at`: at least one record does not expire by itself."""


class Block(NamedTuple):
    """A batch on its way into a segment."""

    flags: int
    body: bytes
    count: int  # type: ignore[assignment]  # a tuple's own count() is not missed
    base_offset: int
    base_timestamp: int
    max_timestamp: int
    expires_at: int
    """When the last of its records expires; `NEVER` if one does not."""


class Part(NamedTuple):
    """Records of a batch: those from `first` to `end`, or of those the ones in `keep`."""

    batch: Batch
    first: int
    end: int
    keep: npt.NDArray[np.bool_] | None = None
    """One item per record from `first` to `end`."""


def merge(parts: Sequence[Part], codec: int) -> Block:
    """All records of the parts, in order, as one batch; there is at least one."""
    if all(part.keep is None and part.batch.is_plain for part in parts) and _is_dense(parts):
        stamps = np.concatenate([part.batch.timestamps(*part[1:3]) for part in parts])
        flags, body = _join_plain(parts, stamps)
        base, expires_at = parts[0].batch.base_offset + parts[0].first, NEVER
    else:
        flags, body, stamps, base, expires_at = _join_any(parts)
    if codec and (smaller := compress(body, codec)) is not None:
        flags, body = flags | codec, smaller
    return Block(flags, body, len(stamps), base, int(stamps[0]), int(stamps[-1]), expires_at)


def expiry(batch: Batch) -> int:
    """When the last record of a batch expires by itself; `NEVER` if one does not."""
    times = batch.expires_at
    return NEVER if times is None or not times.all() else int(times.max())


def _is_dense(parts: Sequence[Part]) -> bool:
    """Whether plain parts follow each other without an offset between them."""
    return all(
        one.batch.base_offset + one.end == other.batch.base_offset + other.first
        for one, other in pairwise(parts)
    )


def _join_plain(parts: Sequence[Part], stamps: npt.NDArray[np.int64]) -> tuple[int, bytes]:
    ends = np.zeros(len(stamps) + 1, np.int32)
    pieces: list[Any] = []
    at = total = 0
    for batch, first, end, _ in parts:
        own = batch.value.ends[first : end + 1]
        low, high = int(own[0]), int(own[-1])
        np.add(own[1:], total - low, out=ends[at + 1 : at + 1 + end - first])
        pieces.append(memoryview(batch.body)[batch.value.start + low : batch.value.start + high])
        at += end - first
        total += high - low
    flags = 0
    head: list[bytes] = []
    if stamps[0] != stamps[-1]:
        flags = add_timestamps(head, stamps)
    return flags, b"".join((*head, pad(ends.tobytes()), *pieces, bytes(-total & 7)))


def _join_any(
    parts: Sequence[Part],
) -> tuple[int, bytes, npt.NDArray[np.int64], int, int]:
    import pyarrow as pa

    from stratalog.format.arrow import TYPES, ArrowColumns, schema, to_arrow

    wanted = schema(tuple(TYPES))
    batches = []
    for batch, first, end, keep in parts:
        one = to_arrow(batch, wanted, first, end)
        batches.append(one if keep is None else one.filter(pa.array(keep)))
    whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    offsets, stamps = _numbers(whole, "offset"), _numbers(whole, "timestamp")
    columns = ArrowColumns(whole.drop_columns(["offset", "timestamp"]))
    expires = columns.expires_at()
    flags, body = columns.encode(stamps, expires, offsets)
    last = NEVER if expires is None or not expires.all() else int(expires.max())
    return flags, body, stamps, int(offsets[0]), last


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    import pyarrow as pa

    numbers: npt.NDArray[np.int64] = batch.column(name).cast(pa.int64()).to_numpy()
    return numbers
