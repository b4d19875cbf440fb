"""Batches to Arrow without a copy; `arrow_input` is the way back.

Imported only where Arrow is asked for: it takes 120 ms to load.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stratalog.errors import CorruptionError, WrongTypeError
from stratalog.format.batch import Batch
from stratalog.format.sections import Binary
from stratalog.options import check_known

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

TYPES: dict[str, pa.DataType] = {
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ns", tz="UTC"),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "tag": pa.string(),
    "node": pa.string(),
    "priority": pa.uint8(),
    "expires_at": pa.timestamp("ns", tz="UTC"),
    "not_before": pa.timestamp("ns", tz="UTC"),
    "operation": pa.uint8(),
    "event_time": pa.timestamp("ns", tz="UTC"),
}
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value", "headers", "tag", "node")

_NULLS_MIN = 1 << 12
# What is verified ahead of the batch that is handed out; a run of the log is as long.
_RUN_BYTES = 2 << 20


def schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """The Arrow schema of the chosen columns; unknown names are errors."""
    if isinstance(columns, str) or not isinstance(columns, Iterable | None):
        raise WrongTypeError(f"columns={columns!r} must be a list of names")
    names = DEFAULT_COLUMNS if columns is None else tuple(columns)
    check_known("column", names, TYPES)
    return pa.schema([(name, TYPES[name]) for name in names])


Part = tuple[Batch, int, int]
"""A batch, and the first and the end of the records that are wanted of it."""


def to_arrow_batches(parts: Iterable[Part], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of all parts, as `to_arrow` makes them of each.

    Parts with the same body lie in one piece of memory. If they have values alone, all other
    columns are made once for several of them: a batch of 1000 records takes 7 us then instead of
    14.
    """
    for run in _runs(parts):
        if len(run) > 1 and wanted.names and all(batch.has_values_only() for batch, _, _ in run):
            yield from _plain_run(run, wanted)
        else:
            for batch, first, end in run:
                yield to_arrow(batch, wanted, first, end)


def _runs(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Parts with the same body, about two megabytes at most."""
    run: list[Part] = []
    body: object = None
    size = 0
    for part in parts:
        batch = part[0]
        if run and (batch.body is not body or size >= _RUN_BYTES):
            yield run
            run, size = [], 0
        run.append(part)
        body = batch.body
        size += batch.size
    if run:
        yield run


def _plain_run(run: list[Part], wanted: pa.Schema) -> list[pa.RecordBatch]:
    """A table whose values are in as many chunks as there are parts: Arrow cuts it up there."""
    counts = [end - first for _, first, end in run]
    columns: list[pa.Array | pa.ChunkedArray] = []
    for name in wanted.names:
        if name == "offset":
            columns.append(numbers_array(TYPES[name], _run_offsets(run, sum(counts))))
        elif name in ("timestamp", "event_time"):  # which are the same: there are values alone
            columns.append(numbers_array(TYPES[name], _run_timestamps(run, counts)))
        elif name == "value":
            columns.append(pa.chunked_array(_run_values(run), TYPES[name]))
        else:
            columns.append(_nulls(name, sum(counts)))
    batches: list[pa.RecordBatch] = pa.Table.from_arrays(columns, schema=wanted).to_batches()
    return batches


def _run_values(run: list[Part]) -> Iterator[pa.Array]:
    body = pa.py_buffer(run[0][0].body)
    for batch, first, end in run:
        values = binary_array(TYPES["value"], batch.count, body, batch.value)
        yield values if end - first == batch.count else values.slice(first, end - first)


def _run_offsets(run: list[Part], count: int) -> npt.NDArray[np.int64]:
    low = run[0][0].base_offset + run[0][1]
    high = run[-1][0].base_offset + run[-1][2]
    if high - low == count and all(batch.offset_deltas is None for batch, _, _ in run):
        return np.arange(low, high, dtype=np.int64)
    return np.concatenate([batch.offsets(first, end) for batch, first, end in run])


def _run_timestamps(run: list[Part], counts: list[int]) -> npt.NDArray[np.int64]:
    if all(batch.timestamp_deltas is None for batch, _, _ in run):
        return np.array([batch.base_timestamp for batch, _, _ in run], np.int64).repeat(counts)
    stamps = np.empty(sum(counts), np.int64)
    row = 0
    for (batch, first, end), count in zip(run, counts, strict=True):
        deltas = batch.timestamp_deltas
        into = stamps[row : row + count]
        if deltas is None:
            into.fill(batch.base_timestamp)
        else:
            np.add(deltas[first:end], batch.base_timestamp, out=into, dtype=np.int64)
        row += count
    return stamps


def to_arrow(batch: Batch, wanted: pa.Schema, first: int, end: int) -> pa.RecordBatch:
    """Records `first` to `end` of a batch, as views into its body."""
    body = pa.py_buffer(batch.body)
    count = batch.count
    arrays = []
    for name in wanted.names:
        if name == "offset":
            arrays.append(numbers_array(pa.int64(), batch.offsets()))
        elif name == "timestamp":
            arrays.append(numbers_array(TYPES[name], batch.timestamps()))
        elif name == "event_time":
            arrays.append(numbers_array(TYPES[name], batch.event_times()))
        elif (column := getattr(batch, name)) is None:
            arrays.append(_nulls(name, count))
        else:
            arrays.append(_array(batch, body, name, column))
    whole = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    return whole if end - first == count else whole.slice(first, end - first)


def rows_to_arrow(
    batch: Batch, wanted: pa.Schema, indexes: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    """Records of a batch by index, copied; the indexes rise or fall."""
    low, high = sorted((int(indexes[0]), int(indexes[-1])))
    return to_arrow(batch, wanted, low, high + 1).take(pa.array(indexes - low))


def numbers_array(kind: pa.DataType, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Numbers or times, as they are."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _array(batch: Batch, body: pa.Buffer, name: str, column: Any) -> pa.Array:
    kind = TYPES[name]
    if name == "headers":
        return headers_array(batch, body)
    if isinstance(column, Binary):
        array = binary_array(kind, batch.count, body, column)
        if name in ("tag", "node"):
            check_text(array)
        return array
    if name in ("priority", "operation"):
        return pa.array(column)
    return pa.array(column, mask=column == 0).cast(kind)  # a time of 0 is no time


def binary_array(kind: pa.DataType, count: int, body: pa.Buffer, column: Binary) -> pa.Array:
    """Bytes or text, as views into the body."""
    validity = body.slice(column.validity, (count + 7) // 8) if column.validity >= 0 else None
    ends = body.slice(column.ends_at, 4 * (count + 1))
    return pa.Array.from_buffers(
        kind, count, [validity, ends, body.slice(column.start, int(column.ends[-1]))]
    )


def headers_array(batch: Batch, body: pa.Buffer) -> pa.Array:
    """Headers, as views into the body."""
    assert batch.headers is not None
    ends_at, ends, keys, values = batch.headers
    pairs = int(ends[-1])
    names = binary_array(pa.string(), pairs, body, keys)
    check_text(names)
    structs = pa.StructArray.from_arrays(
        [names, binary_array(pa.binary(), pairs, body, values)], names=["key", "value"]
    )
    ends_buffer = body.slice(ends_at, 4 * (batch.count + 1))
    return pa.Array.from_buffers(HEADERS, batch.count, [None, ends_buffer], children=[structs])


def check_text(array: pa.Array) -> None:
    """Raise unless text is UTF-8; Arrow believes any bytes to be until it is asked."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptionError(f"batch has text that is not UTF-8: {error}") from error


@functools.lru_cache(maxsize=256)
def _nulls(name: str, count: int) -> pa.Array:
    """A column without values: a slice of one that is shared by all lengths up to a power of 2."""
    return _many_nulls(name, max(_NULLS_MIN, 1 << (count - 1).bit_length())).slice(0, count)


@functools.lru_cache(maxsize=32)
def _many_nulls(name: str, count: int) -> pa.Array:
    return pa.nulls(count, TYPES[name])
