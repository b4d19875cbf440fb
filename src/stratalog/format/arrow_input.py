"""From Arrow to the columns of a batch, without a look at a record.

Imported only where Arrow is asked for: it takes 120 ms to load.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.errors import OptionError, TooLargeError, WrongTypeError
from stratalog.format.arrow import TYPES
from stratalog.format.columns import add_timestamps, joined, pad, validity_bits
from stratalog.format.frame import Flag
from stratalog.model import Operation
from stratalog.options import TIME_MAX, check_known

_ROW_BYTES = 16  # about what a record takes besides its bytes: its time, and where they end
_SPAN_MAX = (1 << 32) - 1  # how far an offset in a batch can be from its first


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

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of each record."""
        total = np.zeros(self.count, np.int64)
        for name in ("key", "value", "tag", "node"):
            if (column := self._columns.get(name)) is not None:
                total += _lengths(column)
        if (found := self._headers()) is not None:
            ends, pairs = found
            lengths = _lengths(pairs.field("key")) + _lengths(pairs.field("value"))
            total += np.diff(np.append(0, np.cumsum(lengths))[ends])
        return total

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
        events = self._event_times(timestamps)
        if events is not None and events.any():
            flags |= Flag.EVENT_TIMES
            parts.append(events.tobytes())
        return flags, joined(parts)

    def _event_times(
        self, timestamps: npt.NDArray[np.int64] | None
    ) -> npt.NDArray[np.int64] | None:
        """Times that records were given, 0 where it is the one they get."""
        events = self._int64s("event_time")
        given = self._int64s("timestamp")
        if events is None:
            if given is None or timestamps is None:
                return None
            events = given
        elif given is not None:
            events = np.where(events, events, given)
        if timestamps is not None:
            events = np.where(events == timestamps, 0, events)
        return events

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

    def _headers(self) -> tuple[npt.NDArray[np.int32], pa.StructArray] | None:
        """Where the headers of each record end, and all of them; None if there are none."""
        column = self._columns.get("headers")
        if column is None or column.null_count == self.count:
            return None
        column = column.fill_null([]) if column.null_count else column
        first, end = column.offset, column.offset + self.count + 1
        ends = np.frombuffer(column.buffers()[1], np.int32)[first:end]
        pairs = column.values.slice(int(ends[0]), int(ends[-1] - ends[0]))
        return (ends - ends[0], pairs) if len(pairs) else None

    def _add_headers(self, parts: list[Any]) -> int:
        if (found := self._headers()) is None:
            return 0
        ends, pairs = found
        parts.append(pad(ends.tobytes()))
        for name in ("key", "value"):
            side = pa.concat_arrays([pairs.field(name).slice(0)])
            if side.null_count or pairs.null_count:
                raise OptionError(f"column 'headers' has a null {name}: headers are text to bytes")
            _add_ends_and_bytes(parts, side)
        return Flag.HEADERS


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.binary_length(column).fill_null(0), np.int64)


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
        if batch.nbytes <= bytes_max:
            yield batch
            continue
        ends = np.cumsum(ArrowColumns(batch).sizes() + _ROW_BYTES)
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            end = max(start + 1, int(np.searchsorted(ends, before + bytes_max, "right")))
            yield batch.slice(start, end - start)
            start = end


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
