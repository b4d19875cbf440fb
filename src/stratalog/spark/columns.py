"""Records as Spark wants them: one fixed schema, times in microseconds, batches to its taste.

The names of the first columns are those of Spark's Kafka source; the rest are ours. Which layout
a batch happens to have never shows: what nobody wrote is the same value in every batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stratalog.errors import OptionError
from stratalog.format.arrow import (
    HEADERS,
    binary_array,
    check_text,
    headers_array,
    numbers_array,
)
from stratalog.format.batch import Batch
from stratalog.format.columns import validity_bits
from stratalog.options import check_known

_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "topic": (StringType(), pa.string()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), _TIME),
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "headers": (_HEADERS, HEADERS),
    "tag": (StringType(), pa.string()),
    "node": (StringType(), pa.string()),
    "priority": (ShortType(), pa.int16()),
    "expires_at": (TimestampType(), _TIME),
    "not_before": (TimestampType(), _TIME),
    "operation": (ByteType(), pa.int8()),
}
"""Every column, with its type for Spark and for Arrow."""

# What Spark takes from a Python process at a time. Joining the batches of segments, 512 KiB each,
# costs a copy of them, and saves Spark a fifth of its time: 2.8 s of processor for 10 M records of
# 100 B instead of 3.4, and 3.9 with 128 KiB.
BATCH_BYTES = 4 << 20
# Batches below this are joined; those above are handed over as they are.
_SMALL_BYTES = BATCH_BYTES // 4


def default_schema(*, include_headers: bool) -> StructType:
    """All columns; `headers` only if they were asked for, as in Spark's Kafka source."""
    return StructType(
        [
            StructField(name, kind)
            for name, (kind, _) in COLUMNS.items()
            if name != "headers" or include_headers
        ]
    )


def check_schema(schema: StructType) -> tuple[str, ...]:
    """The names of the columns that are wanted; a name or a type that is not ours is an error."""
    names = tuple(field.name for field in schema.fields)
    if not names:
        raise OptionError("a schema without a column: name at least one, such as 'offset long'")
    check_known("column", names, COLUMNS)
    if len(set(names)) != len(names):
        raise OptionError(f"columns {', '.join(names)}: each can be there once only")
    for field in schema.fields:
        kind = COLUMNS[field.name][0]
        if not _is_same(field.dataType, kind):
            raise OptionError(
                f"column {field.name!r} is {kind.simpleString()}, not "
                f"{field.dataType.simpleString()}: read it as it is, and cast it then"
            )
    return names


def _is_same(given: DataType, kind: DataType) -> bool:
    """Whether two types are the same but for what may be null."""
    return bool(given.simpleString() == kind.simpleString())


class Columns:
    """Makes record batches of the chosen columns."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.schema = pa.schema([(name, COLUMNS[name][1]) for name in names])
        self._builders = [_builder(name) for name in names]

    def make(
        self, topic: str, batch: Batch, first: int, end: int, keep: npt.NDArray[np.bool_] | None
    ) -> pa.RecordBatch:
        """Records `first` to `end` of a batch, or of those the ones in `keep`."""
        body = pa.py_buffer(batch.body)
        arrays = [build(topic, batch, body) for build in self._builders]
        made = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if end - first != batch.count:
            made = made.slice(first, end - first)
        return made if keep is None else made.filter(pa.array(keep))


Build = Callable[[str, Batch, pa.Buffer], pa.Array]


def _builder(name: str) -> Build:
    return _BUILDERS[name]


def _topic(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
    return _constant(topic, pa.string(), batch.count)


def _offset(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
    return numbers_array(pa.int64(), batch.offsets())


def _timestamp(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
    deltas = batch.timestamp_deltas
    if deltas is None:
        return _times(np.full(batch.count, batch.base_timestamp // 1000, np.int64))
    base, rest = divmod(batch.base_timestamp, 1000)
    # Deltas of 32 bits are divided twice as fast as their sums of 64.
    if deltas.dtype == np.uint32 and int(deltas[-1]) + rest < 1 << 32:
        micros = (deltas + np.uint32(rest)) // np.uint32(1000)
        return _times(micros.astype(np.int64) + base)
    return _times((deltas.astype(np.int64, copy=False) + rest) // 1000 + base)


def _times(micros: npt.NDArray[np.int64]) -> pa.Array:
    return numbers_array(_TIME, micros)


def _some_times(name: str) -> Build:
    def build(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
        times: npt.NDArray[np.int64] | None = getattr(batch, name)
        if times is None:
            return _constant(None, _TIME, batch.count)
        return pa.array(times // 1000, mask=times == 0).cast(_TIME)  # a time of 0 is no time

    return build


def _binary(name: str) -> Build:
    def build(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
        column = getattr(batch, name)
        if column is None:
            return _constant(None, pa.binary(), batch.count)
        return binary_array(pa.binary(), batch.count, body, column)

    return build


def _text(name: str) -> Build:
    def build(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
        column = getattr(batch, name)
        if column is None:
            return _constant(None, pa.string(), batch.count)
        array = binary_array(pa.string(), batch.count, body, column)
        check_text(array)
        return array

    return build


def _headers(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
    """None for a record without any, as Kafka's source has it."""
    if batch.headers is None:
        return _constant(None, HEADERS, batch.count)
    array = headers_array(batch, body)
    ends = batch.headers[1]
    validity = pa.py_buffer(validity_bits(ends[1:] > ends[:-1]))
    buffers = [validity, array.buffers()[1]]
    return pa.Array.from_buffers(HEADERS, batch.count, buffers, children=[array.values])


def _small(name: str, kind: pa.DataType) -> Build:
    def build(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
        numbers = getattr(batch, name)
        if numbers is None:
            return _constant(0, kind, batch.count)
        return pa.array(numbers.astype(kind.to_pandas_dtype()))

    return build


_BUILDERS: dict[str, Build] = {
    "topic": _topic,
    "offset": _offset,
    "timestamp": _timestamp,
    "key": _binary("key"),
    "value": _binary("value"),
    "headers": _headers,
    "tag": _text("tag"),
    "node": _text("node"),
    "priority": _small("priority", pa.int16()),
    "expires_at": _some_times("expires_at"),
    "not_before": _some_times("not_before"),
    "operation": _small("operation", pa.int8()),
}


@functools.lru_cache(maxsize=256)
def _constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """A column of one value: a slice of one that is shared by all lengths up to a power of 2."""
    return _long_constant(value, kind, 1 << (count - 1).bit_length()).slice(0, count)


@functools.lru_cache(maxsize=32)
def _long_constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    if value is None:
        return pa.nulls(count, kind)
    return pc.take(pa.array([value], kind), pa.array(np.zeros(count, np.int32)))


def key_mask(batch: Batch, first: int, end: int, keys: frozenset[bytes]) -> npt.NDArray[np.bool_]:
    """Which records of a slice have one of the keys."""
    if batch.key is None:
        return np.zeros(end - first, np.bool_)
    array = binary_array(pa.binary(), batch.count, pa.py_buffer(batch.body), batch.key)
    found = pc.is_in(array.slice(first, end - first), value_set=pa.array(keys, pa.binary()))
    mask: npt.NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return mask


def even_out(batches: Iterable[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    """The same records in batches of about `BATCH_BYTES`: small ones joined, large ones cut.

    Each comes with about how many bytes it has. Empty ones are left out.
    """
    small: list[pa.RecordBatch] = []
    held = 0
    for batch, size in batches:
        if not batch.num_rows:
            continue
        if small and (size >= _SMALL_BYTES or held + size > BATCH_BYTES):
            yield _joined(small)
            small, held = [], 0
        if size < _SMALL_BYTES:
            small.append(batch)
            held += size
        elif size <= 2 * BATCH_BYTES:
            yield batch
        else:
            rows = max(1, batch.num_rows * BATCH_BYTES // size)
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)
    if small:
        yield _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
