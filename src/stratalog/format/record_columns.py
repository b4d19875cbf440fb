"""Records by column, as other engines want them: one fixed schema, times in microseconds.

Which layout a batch happens to have never shows: a column without values is the same value in every
batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.format.arrow import (
    HEADERS,
    binary_array,
    check_text,
    headers_array,
    numbers_array,
)
from stratalog.format.batch import Batch
from stratalog.format.columns import validity_bits

_TIME = pa.timestamp("us", tz="UTC")

TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "offset": pa.int64(),
    "timestamp": _TIME,
    "timestamp_ns": pa.int16(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "tag": pa.string(),
    "node": pa.string(),
    "priority": pa.int16(),
    "expires_at": _TIME,
    "not_before": _TIME,
    "operation": pa.int8(),
    "event_time": _TIME,
}
"""Every column. `timestamp_ns` has the nanoseconds of a time below its microsecond."""


class Columns:
    """Makes record batches of the chosen columns."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.schema = pa.schema([(name, TYPES[name]) for name in names])
        self._builders = [_BUILDERS[name] for name in names]

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


def _event_time(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
    if batch.event_time is None:
        return _timestamp(topic, batch, body)
    return _times(batch.event_times() // 1000)


def _nanoseconds(topic: str, batch: Batch, body: pa.Buffer) -> pa.Array:
    if batch.timestamp_deltas is None:
        return _constant(batch.base_timestamp % 1000, pa.int16(), batch.count)
    return pa.array((batch.timestamps(0, batch.count) % 1000).astype(np.int16))


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
    "timestamp_ns": _nanoseconds,
    "key": _binary("key"),
    "value": _binary("value"),
    "headers": _headers,
    "tag": _text("tag"),
    "node": _text("node"),
    "priority": _small("priority", pa.int16()),
    "expires_at": _some_times("expires_at"),
    "not_before": _some_times("not_before"),
    "operation": _small("operation", pa.int8()),
    "event_time": _event_time,
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
