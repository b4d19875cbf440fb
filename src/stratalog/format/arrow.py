"""Batches to Arrow without a copy, and from Arrow without a look at a record.

Imported only where Arrow is asked for: it takes 120 ms to load.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.errors import CorruptionError, OptionError, TooLargeError, WrongTypeError
from stratalog.format.batch import Batch
from stratalog.format.columns import add_timestamps, pad, validity_bits
from stratalog.format.frame import Flag
from stratalog.format.sections import Binary
from stratalog.model import Operation
from stratalog.options import TIME_MAX, check_known

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
}
DEFAULT_COLUMNS = ("offset", "timestamp", "key", "value", "headers", "tag", "node")

_NULLS_MIN = 1 << 12
# What is verified ahead of the batch that is handed out; a run of the log is as long.
_RUN_BYTES = 2 << 20
_SPAN_MAX = (1 << 32) - 1  # what an offset in a batch can be behind its first


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
        elif name == "timestamp":
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
        elif (column := getattr(batch, name)) is None:
            arrays.append(_nulls(name, count))
        else:
            arrays.append(_array(batch, body, name, column))
    whole = pa.RecordBatch.from_arrays(arrays, schema=wanted)
    return whole if end - first == count else whole.slice(first, end - first)


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
    """A column nobody wrote: a slice of one that is shared by all lengths up to a power of 2."""
    return _many_nulls(name, max(_NULLS_MIN, 1 << (count - 1).bit_length())).slice(0, count)


@functools.lru_cache(maxsize=32)
def _many_nulls(name: str, count: int) -> pa.Array:
    return pa.nulls(count, TYPES[name])


class ArrowColumns:
    """One record batch from outside, as `split` gives it."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.count = batch.num_rows
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._columns.setdefault("value", pa.nulls(self.count, pa.binary()))

    def timestamps(self) -> npt.NDArray[np.int64] | None:
        """Nanoseconds, 0 where none was given; None without such a column."""
        return self._int64s("timestamp")

    def expires_at(self) -> npt.NDArray[np.int64] | None:
        """Nanoseconds, 0 where none was given; None without such a column."""
        return self._int64s("expires_at")

    def largest(self) -> int:
        """Bytes of the largest record, headers not counted."""
        total = np.zeros(self.count, np.int64)
        for name in ("key", "value", "tag", "node"):
            if (column := self._columns.get(name)) is not None:
                total += pc.binary_length(column).fill_null(0).to_numpy()
        return int(total.max())

    def encode(
        self,
        timestamps: npt.NDArray[np.int64] | None,
        expires_at: npt.NDArray[np.int64] | None,
        offsets: npt.NDArray[np.int64] | None = None,
    ) -> tuple[int, bytes]:
        """Flags and body; times are the caller's, absolute and never going back.

        So are offsets, which rise, of a batch for a segment; without holes in them, or without
        them, they are dense.
        """
        flags = 0
        parts: list[Any] = []
        if timestamps is not None and timestamps[0] != timestamps[-1]:
            if offsets is not None:
                flags |= add_timestamps(parts, timestamps)
            else:
                flags |= Flag.TIMESTAMPS
                parts.append((timestamps - timestamps[0]).tobytes())
        if offsets is not None and offsets[-1] - offsets[0] >= self.count:
            if offsets[-1] - offsets[0] > _SPAN_MAX:
                raise TooLargeError(
                    f"offsets {offsets[0]} to {offsets[-1]} are too far apart for one batch"
                )
            flags |= Flag.OFFSETS
            parts.append(pad((offsets - offsets[0]).astype(np.uint32).tobytes()))
        flags |= self._add_nullable(parts, "key", Flag.KEYS)
        value = self._columns["value"]
        if value.null_count:
            flags |= Flag.NULL_VALUES
            parts.append(validity_bits(_valid(value)))
        _add_ends_and_bytes(parts, value)
        flags |= self._add_headers(parts)
        flags |= self._add_nullable(parts, "tag", Flag.TAGS)
        flags |= self._add_nullable(parts, "node", Flag.NODES)
        flags |= self._add_bytes(parts, "priority", Flag.PRIORITIES)
        if expires_at is not None and expires_at.any():
            flags |= Flag.EXPIRES_AT
            parts.append(expires_at.tobytes())
        not_before = self._int64s("not_before")
        if not_before is not None and not_before.any():
            flags |= Flag.NOT_BEFORE
            parts.append(not_before.tobytes())
        flags |= self._add_bytes(parts, "operation", Flag.OPERATIONS)
        return flags, b"".join(parts)

    def _int64s(self, name: str) -> npt.NDArray[np.int64] | None:
        column = self._columns.get(name)
        if column is None or column.null_count == self.count:
            return None
        times: npt.NDArray[np.int64] = column.cast(pa.int64()).fill_null(0).to_numpy()
        if bool(((times < 0) | (times > TIME_MAX)).any()):
            raise OptionError(f"column {name!r} has a time before 1970 or after 2230")
        return times

    def _add_nullable(self, parts: list[Any], name: str, flag: int) -> int:
        column = self._columns.get(name)
        if column is None or column.null_count == self.count:
            return 0
        parts.append(validity_bits(_valid(column)))
        _add_ends_and_bytes(parts, column)
        return flag

    def _add_bytes(self, parts: list[Any], name: str, flag: int) -> int:
        column = self._columns.get(name)
        if column is None or column.null_count == self.count:
            return 0
        data = column.fill_null(0).to_numpy()
        if not data.any():
            return 0
        parts.append(pad(data.tobytes()))
        return flag

    def _add_headers(self, parts: list[Any]) -> int:
        column = self._columns.get("headers")
        if column is None or column.null_count == self.count:
            return 0
        column = column.fill_null([]) if column.null_count else column
        ends = np.frombuffer(column.buffers()[1], np.int32)[
            column.offset : column.offset + self.count + 1
        ]
        pairs = column.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
        if not len(pairs):
            return 0
        parts.append(pad((ends - ends[0]).tobytes()))
        for name in ("key", "value"):
            side = pa.concat_arrays([pairs.field(name).slice(0)])
            if side.null_count or pairs.null_count:
                raise OptionError(f"column 'headers' has a null {name}: headers are text to bytes")
            _add_ends_and_bytes(parts, side)
        return Flag.HEADERS


def split(data: pa.RecordBatch | pa.Table, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most about `bytes_max` bytes each: known columns, plain types, no surprises."""
    if not isinstance(data, pa.RecordBatch | pa.Table):
        raise WrongTypeError(
            f"append_arrow takes a pyarrow RecordBatch or Table, not {type(data).__name__}"
        )
    names = data.schema.names
    check_known("column", names, [*TYPES, "topic"])
    if len(set(names)) != len(names):
        raise OptionError(f"columns {', '.join(names)}: each can be there once only")
    taken = [name for name in names if name not in ("offset", "topic")]
    for given in [data] if isinstance(data, pa.RecordBatch) else data.to_batches():
        if not given.num_rows:
            continue
        if not taken:
            raise OptionError("append_arrow needs a column to append, such as 'value'")
        # Plain first: a dictionary says nothing about the size of what it stands for.
        columns = [_normalise(name, given.column(name)) for name in taken]
        batch = pa.RecordBatch.from_arrays(columns, names=taken)
        pieces = max(1, -(-batch.nbytes // bytes_max))
        rows = max(1, -(-batch.num_rows // pieces))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _normalise(name: str, column: pa.Array) -> pa.Array:
    kind = TYPES[name]
    try:
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        column = column.cast(kind)
        if name in ("tag", "node", "headers"):
            column.validate(full=True)  # Arrow believes any bytes to be text until asked
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise OptionError(
            f"column {name!r} of {column.type} cannot become {kind}: {error}"
        ) from error
    if name == "operation" and column.fill_null(0).to_numpy().max() > max(Operation):
        raise OptionError("column 'operation' has a number that is neither put (0) nor delete (1)")
    return column


def _valid(column: pa.Array) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _add_ends_and_bytes(parts: list[Any], column: pa.Array) -> None:
    _, ends_buffer, data = column.buffers()
    count = len(column)
    if ends_buffer is None or count == 0:
        parts.append(bytes(8))
        return
    ends = np.frombuffer(ends_buffer, np.int32)[column.offset : column.offset + count + 1]
    low, high = int(ends[0]), int(ends[-1])
    if high - low > 1 << 30:
        raise TooLargeError(f"a column of {high - low} bytes is too large for one batch")
    parts.append(pad((ends - low if low else ends).tobytes()))
    if high > low:
        parts.append(memoryview(data)[low:high])
    parts.append(bytes(-(high - low) & 7))
