"""Batches into one: small ones joined, records left out, nothing else changed.

Columns of bytes and of numbers are joined as what they are. Batches with headers or of which
records are left out go through Arrow, which knows how to join and filter columns of every kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.format.batch import Batch
from stratalog.format.codec import compress
from stratalog.format.columns import add_timestamps, pad, validity_bits
from stratalog.format.frame import Flag
from stratalog.format.sections import Binary

if TYPE_CHECKING:
    import pyarrow as pa

NEVER = 0
"""Value of `expires_at`: at least one record does not expire by itself."""

LONG_AGO = 1
"""Value of `expires_at`: the record has expired at any time, and nothing of it is left."""


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
    blank: npt.NDArray[np.bool_] | None = None
    """Records of which nothing is kept but that they were there, and have expired."""


def merge(parts: Sequence[Part], codec: int) -> Block:
    """All records of the parts, in order, as one batch; there is at least one."""
    if all(map(_is_simple, parts)) and _is_dense(parts):
        stamps = np.concatenate([part.batch.timestamps(*part[1:3]) for part in parts])
        flags, body, expires_at = _join_columns(parts, stamps)
        base = parts[0].batch.base_offset + parts[0].first
    else:
        flags, body, stamps, base, expires_at = _join_any(parts)
    if codec and (smaller := compress(body, codec)) is not None:
        flags, body = flags | codec, smaller
    return Block(flags, body, len(stamps), base, int(stamps[0]), int(stamps[-1]), expires_at)


def renumber(parts: Sequence[Part], codec: int, floor: int) -> Block:
    """All records of the parts, in order, as one batch for the end of another topic.

    Offsets count from 0 without holes, whatever they were, and no time is below `floor`.
    """
    is_simple = all(_is_whole(part) and part.batch.headers is None for part in parts)
    if is_simple:
        stamps = np.concatenate([part.batch.timestamps(*part[1:3]) for part in parts])
        is_raised = bool(stamps[0] < floor)
        stamps = np.maximum.accumulate(np.maximum(stamps, floor))
        flags, body, expires_at = _join_columns(parts, stamps, is_raised=is_raised)
    else:
        whole = _gather(parts)
        stamps = np.maximum.accumulate(np.maximum(_numbers(whole, "timestamp"), floor))
        flags, body, expires_at = _encode(whole, stamps, np.arange(len(stamps)))
    if codec and (smaller := compress(body, codec)) is not None:
        flags, body = flags | codec, smaller
    return Block(flags, body, len(stamps), 0, int(stamps[0]), int(stamps[-1]), expires_at)


def expiry(batch: Batch) -> int:
    """When the last record of a batch expires by itself; `NEVER` if one does not."""
    return latest(batch.expires_at)


def latest(times: npt.NDArray[np.int64] | None) -> int:
    """Return the latest of times to live, which no record may have."""
    return NEVER if times is None or not times.all() else int(times.max())


def _is_dense(parts: Sequence[Part]) -> bool:
    """Whether plain parts follow each other without an offset between them."""
    return all(
        one.batch.base_offset + one.end == other.batch.base_offset + other.first
        for one, other in pairwise(parts)
    )


def _is_whole(part: Part) -> bool:
    return part.keep is None and part.blank is None


def _is_simple(part: Part) -> bool:
    return _is_whole(part) and part.batch.headers is None and part.batch.offset_deltas is None


def _join_columns(
    parts: Sequence[Part], stamps: npt.NDArray[np.int64], *, is_raised: bool = False
) -> tuple[int, bytes, int]:
    """Flags, body, and when the last record expires; `is_raised` if times may be later ones."""
    pieces: list[Any] = []
    flags = 0
    if stamps[0] != stamps[-1]:
        flags = add_timestamps(pieces, stamps)
    flags |= _join_nullable(parts, pieces, [part.batch.key for part in parts], Flag.KEYS)
    values = [part.batch.value for part in parts]
    valid = _valid(parts, values) if any(one.validity >= 0 for one in values) else None
    if valid is not None and not valid.all():
        flags |= Flag.NULL_VALUES
        pieces.append(validity_bits(valid))
    _join_binary(parts, pieces, values)
    flags |= _join_nullable(parts, pieces, [part.batch.tag for part in parts], Flag.TAGS)
    flags |= _join_nullable(parts, pieces, [part.batch.node for part in parts], Flag.NODES)
    expires_at = _join_numbers(parts, [part.batch.expires_at for part in parts])
    for numbers, flag in (
        (_join_numbers(parts, [part.batch.priority for part in parts]), Flag.PRIORITIES),
        (expires_at, Flag.EXPIRES_AT),
        (_join_numbers(parts, [part.batch.not_before for part in parts]), Flag.NOT_BEFORE),
        (_join_numbers(parts, [part.batch.operation for part in parts]), Flag.OPERATIONS),
        (_event_times(parts, stamps, is_raised), Flag.EVENT_TIMES),
    ):
        if numbers is not None:
            flags |= flag
            pieces.append(pad(numbers.tobytes()))
    return flags, b"".join(pieces), latest(expires_at)


def _event_times(
    parts: Sequence[Part], stamps: npt.NDArray[np.int64], is_raised: bool
) -> npt.NDArray[np.int64] | None:
    """Times that records were given, 0 where it is the one they get; None if all of it is 0.

    A record that gets a later time than it had, at the end of another topic, keeps the one it had.
    """
    if not is_raised and all(part.batch.event_time is None for part in parts):
        return None
    given = np.concatenate([part.batch.event_times(*part[1:3]) for part in parts])
    given[given == stamps] = 0
    return given if given.any() else None


def _join_numbers(parts: Sequence[Part], columns: Sequence[Any]) -> npt.NDArray[Any] | None:
    """A column of numbers, zero where a batch does not have it; None if all of it is zero."""
    dtype = next((column.dtype for column in columns if column is not None), None)
    if dtype is None:
        return None
    joined = np.concatenate([
        np.zeros(end - first, dtype) if column is None else column[first:end]
        for (_, first, end, *_), column in zip(parts, columns, strict=True)
    ])  # fmt: skip
    return joined if joined.any() else None


def _join_nullable(
    parts: Sequence[Part], pieces: list[Any], columns: Sequence[Binary | None], flag: int
) -> int:
    """Add a column whose items may be missing; returns its flag, or 0 if all of them are."""
    if all(column is None for column in columns):
        return 0
    valid = _valid(parts, columns)
    if not valid.any():
        return 0
    pieces.append(validity_bits(valid))
    _join_binary(parts, pieces, columns)
    return flag


def _valid(parts: Sequence[Part], columns: Sequence[Binary | None]) -> npt.NDArray[np.bool_]:
    """Which items of a column are there."""
    found = []
    for (batch, first, end, *_), column in zip(parts, columns, strict=True):
        if column is None:
            found.append(np.zeros(end - first, np.bool_))
        elif column.validity < 0:
            found.append(np.ones(end - first, np.bool_))
        else:
            found.append(batch.valid(column)[first:end])
    return np.concatenate(found)


def _join_binary(
    parts: Sequence[Part], pieces: list[Any], columns: Sequence[Binary | None]
) -> None:
    """Add the ends and the bytes of a column."""
    ends = np.zeros(sum(part.end - part.first for part in parts) + 1, np.int32)
    data: list[Any] = []
    at = total = 0
    for (batch, first, end, *_), column in zip(parts, columns, strict=True):
        following = at + end - first
        if column is None:
            ends[at + 1 : following + 1] = total
        else:
            own = column.ends[first : end + 1]
            low, high = int(own[0]), int(own[-1])
            np.add(own[1:], total - low, out=ends[at + 1 : following + 1])
            data.append(memoryview(batch.body)[column.start + low : column.start + high])
            total += high - low
        at = following
    pieces += (pad(ends.tobytes()), *data, bytes(-total & 7))


def _join_any(
    parts: Sequence[Part],
) -> tuple[int, bytes, npt.NDArray[np.int64], int, int]:
    whole = _gather(parts)
    offsets, stamps = _numbers(whole, "offset"), _numbers(whole, "timestamp")
    flags, body, expires_at = _encode(whole, stamps, offsets)
    return flags, body, stamps, int(offsets[0]), expires_at


def _gather(parts: Sequence[Part]) -> pa.RecordBatch:
    """The records of parts that are kept, with every column there can be."""
    import pyarrow as pa

    from stratalog.format.arrow import TYPES, schema, to_arrow

    wanted = schema(tuple(TYPES))
    batches = []
    for batch, first, end, keep, blank in parts:
        one = to_arrow(batch, wanted, first, end)
        one = one if blank is None else _blanked(one, blank)
        batches.append(one if keep is None else one.filter(pa.array(keep)))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _encode(
    whole: pa.RecordBatch, stamps: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
) -> tuple[int, bytes, int]:
    """Flags, body, and when the last record expires."""
    from stratalog.format.arrow_input import ArrowColumns

    columns = ArrowColumns(whole.drop_columns(["offset", "timestamp"]))
    expires = columns.expires_at()
    flags, body = columns.encode(stamps, expires, offsets)
    return flags, body, latest(expires)


def _blanked(batch: pa.RecordBatch, blank: npt.NDArray[np.bool_]) -> pa.RecordBatch:
    """Return the records with nothing in some of them but their time and a past expiry."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Not `if_else`: that makes a value null, and keeps its bytes.
    kept = pa.array(np.arange(len(blank)), mask=blank)
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in ("key", "value", "headers", "tag", "node"):
            column = column.take(kept)
        elif name == "expires_at":
            column = pc.if_else(pa.array(blank), pa.scalar(LONG_AGO, column.type), column)
        elif name == "event_time":
            column = pc.if_else(pa.array(blank), batch.column("timestamp"), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    import pyarrow as pa

    numbers: npt.NDArray[np.int64] = batch.column(name).cast(pa.int64()).to_numpy()
    return numbers
