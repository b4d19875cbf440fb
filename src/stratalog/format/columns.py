"""The body of a record batch: columns, each one the buffers Arrow wants.

Sections follow each other in this order, each padded with zeros to a multiple of 8 bytes; those
with a flag are there only when the header has that flag. `n` is the header's count.

| section | flag | content |
|---|---|---|
| timestamps | TIMESTAMPS | i64 x n, nanoseconds after base_timestamp |
| timestamps | SHORT_TIMESTAMPS | u32 x n instead, where that is enough; neither: all are the base |
| offsets | OFFSETS | u32 x n, after base_offset, rising from 0; absent: dense |
| key | KEYS | validity bits (n, lowest first); i32 x (n+1) ends from 0; bytes |
| value validity | NULL_VALUES | bits (n, lowest first); absent: no value is None |
| value | | i32 x (n+1) ends from 0; bytes |
| headers | HEADERS | i32 x (n+1) ends, of pairs; keys: i32 ends, bytes; values: i32 ends, bytes |
| tag | TAGS | as key, UTF-8 |
| node | NODES | as key, UTF-8 |
| priority | PRIORITIES | u8 x n |
| expires_at | EXPIRES_AT | i64 x n, nanoseconds since 1970, 0 is never |
| not_before | NOT_BEFORE | i64 x n, nanoseconds since 1970, 0 is at once |
| operation | OPERATIONS | u8 x n, 0 put, 1 delete |
| event_time | EVENT_TIMES | i64 x n, nanoseconds since 1970, 0 is that of the record |
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import numpy.typing as npt

from stratalog.errors import OutOfMemoryError, TooLargeError
from stratalog.format.frame import BODY_BYTES_MAX, Flag

Header = tuple[bytes, bytes]

# Ends of up to this many equal lengths are kept ready: 64 KiB each at most.
_UNIFORM_COUNT_MAX = 1 << 14
_SHORT_MAX = (1 << 32) - 1  # nanoseconds: 4.3 seconds
_ONE = struct.Struct("<ii")
_PADDING = [bytes(n) for n in range(9)]
_VALID = b"\1" + bytes(7)  # the validity bits of one item that is there


class Columns:
    """Records by column, as Python values ready to be encoded.

    Every list has one item per record. `None` for a whole column means that no record has it.
    Text is UTF-8 bytes already, so that nothing can fail between here and the log.
    """

    __slots__ = (
        "event_times", "expires_at", "headers", "keys", "nodes", "not_before", "operations",
        "priorities", "tags", "timestamps", "values",
    )  # fmt: skip

    def __init__(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Sequence[Header]] | None = None,
        tags: Sequence[bytes | None] | None = None,
        nodes: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        priorities: Sequence[int] | None = None,
        expires_at: Sequence[int] | None = None,
        not_before: Sequence[int] | None = None,
        operations: Sequence[int] | None = None,
        event_times: Sequence[int] | None = None,
    ) -> None:
        self.values = values
        self.keys = keys
        self.headers = headers
        self.tags = tags
        self.nodes = nodes
        self.timestamps = timestamps
        self.priorities = priorities
        self.expires_at = expires_at
        self.not_before = not_before
        self.operations = operations
        self.event_times = event_times


def encode_columns(columns: Columns) -> tuple[int, bytes]:
    """Flags and body of a batch."""
    flags = 0
    parts: list[bytes] = []
    stamps = columns.timestamps
    # Equal stamps need no column: they are all the header's.
    if stamps is not None and stamps[0] != stamps[-1]:
        flags |= Flag.TIMESTAMPS
        parts.append((np.fromiter(stamps, np.int64, len(stamps)) - stamps[0]).tobytes())
    if columns.keys is not None:
        flags |= Flag.KEYS
        _add_nullable(parts, columns.keys)
    try:
        _add_binary(parts, columns.values)  # type: ignore[arg-type]
    except TypeError:  # there is a None: found out by len() for free, nothing was added yet
        flags |= Flag.NULL_VALUES
        _add_nullable(parts, columns.values)
    if columns.headers is not None:
        flags |= Flag.HEADERS
        _add_headers(parts, columns.headers)
    if columns.tags is not None:
        flags |= Flag.TAGS
        _add_nullable(parts, columns.tags)
    if columns.nodes is not None:
        flags |= Flag.NODES
        _add_nullable(parts, columns.nodes)
    if columns.priorities is not None:
        flags |= Flag.PRIORITIES
        _add_padded(parts, bytes(columns.priorities))
    if columns.expires_at is not None:
        flags |= Flag.EXPIRES_AT
        parts.append(np.array(columns.expires_at, np.int64).tobytes())
    if columns.not_before is not None:
        flags |= Flag.NOT_BEFORE
        parts.append(np.array(columns.not_before, np.int64).tobytes())
    if columns.operations is not None:
        flags |= Flag.OPERATIONS
        _add_padded(parts, bytes(columns.operations))
    if columns.event_times is not None:
        flags |= Flag.EVENT_TIMES
        parts.append(np.array(columns.event_times, np.int64).tobytes())
    return flags, joined(parts)


def joined(parts: Sequence[bytes]) -> bytes:
    """One piece of memory for all parts; raises `OutOfMemoryError` if there is none."""
    try:
        return b"".join(parts)
    except MemoryError as error:
        raise no_memory(f"encode a batch of {sum(map(len, parts))} bytes") from error


def no_memory(what: str) -> OutOfMemoryError:
    """Lack of memory to encode or decode something, before anything was changed."""
    return OutOfMemoryError(
        f"no memory to {what}. Free some memory, or raise the limit of this process "
        "(`ulimit -v`). Then try again."
    )


def encode_value(value: bytes) -> bytes:
    """The body of a batch that has one value, and nothing else."""
    length = len(value)
    try:
        return _ONE.pack(0, length) + value + _PADDING[-length & 7]
    except MemoryError as error:
        raise no_memory(f"encode a value of {length} bytes") from error


def encode_values(values: Sequence[bytes]) -> tuple[bytes, int] | None:
    """The body of a batch that has values alone, and their number; None if not all are plain bytes.

    The common case of `append_many`, with no look at a single record: `map(len)` and one join.
    """
    # Once and for all: another thread may change the list meanwhile.
    parts = [b"", *values, b""]
    count = len(parts) - 2
    try:
        lengths = list(map(len, parts))
        length = lengths[1]
        if length and lengths.count(length) == count <= _UNIFORM_COUNT_MAX:
            parts[0], parts[-1], body_length = _uniform_ends(count, length)
        else:
            parts[0], total = _ends(lengths[1:-1])
            parts[-1] = _PADDING[-total & 7]
            body_length = len(parts[0]) + total + len(parts[-1])
        body = b"".join(parts)
    except TypeError:
        return None
    except MemoryError as error:
        raise no_memory(f"encode a batch of {count} values") from error
    # A memoryview's len counts items: the caller must take such values one by one.
    return (body, count) if len(body) == body_length else None


def add_timestamps(parts: list[bytes], stamps: npt.NDArray[np.int64]) -> int:
    """Add the section of times that rise and are not all the same; returns its flag.

    The short form is for segments: they are written once and kept, the log is read once.
    """
    deltas = stamps - stamps[0]
    if deltas[-1] <= _SHORT_MAX:
        parts.append(pad(deltas.astype(np.uint32).tobytes()))
        return Flag.SHORT_TIMESTAMPS
    parts.append(deltas.tobytes())
    return Flag.TIMESTAMPS


def pad(data: bytes) -> bytes:
    """Zeros up to a multiple of 8."""
    return data + _PADDING[-len(data) & 7]


def validity_bits(valid: Sequence[bool] | np.ndarray) -> bytes:
    """A validity bitmap section."""
    return pad(np.packbits(np.asarray(valid, np.bool_), bitorder="little").tobytes())


def _add_padded(parts: list[bytes], data: bytes) -> None:
    parts.append(pad(data))


def _add_nullable(parts: list[bytes], items: Sequence[bytes | None]) -> None:
    if len(items) == 1:  # a single append: numpy would take longer than all the rest of it
        (item,) = items
        parts.append(_PADDING[8] if item is None else _VALID)
        _add_binary(parts, [item or b""])
        return
    column: list[bytes] = []
    try:
        _add_binary(column, items)  # type: ignore[arg-type]
        parts.append(validity_bits(np.ones(len(items), np.bool_)))
    except TypeError:  # there is a None: nothing was added yet
        parts.append(validity_bits([item is not None for item in items]))
        _add_binary(column, [b"" if item is None else item for item in items])
    parts += column


def _add_binary(parts: list[bytes], items: Sequence[bytes]) -> int:
    """Add ends and bytes; returns the length of both sections."""
    count = len(items)
    if count == 1:
        total = _check_total(len(items[0]))
        ends = _ONE.pack(0, total)
    else:
        lengths = list(map(len, items))
        if count <= _UNIFORM_COUNT_MAX and lengths.count(lengths[0]) == count:
            total = count * lengths[0]
            ends, _, _ = _uniform_ends(count, lengths[0])
        else:
            ends, total = _ends(lengths)
    parts.append(ends)
    parts += items
    padding = -total & 7
    parts.append(_PADDING[padding])
    return len(ends) + total + padding


@functools.lru_cache(maxsize=64)
def _uniform_ends(count: int, length: int) -> tuple[bytes, bytes, int]:
    """Return the bytes before and after that many values of one length, and the total length."""
    total = _check_total(count * length)
    ends = pad((np.arange(count + 1, dtype=np.int32) * np.int32(length)).tobytes())
    padding = _PADDING[-total & 7]
    return ends, padding, len(ends) + total + len(padding)


def _ends(lengths: list[int]) -> tuple[bytes, int]:
    if len(lengths) < 32:  # numpy's fixed cost is that of about 32 records
        ends = list(accumulate(lengths, initial=0))
        _check_total(ends[-1])
        return pad(struct.pack(f"<{len(ends)}i", *ends)), ends[-1]
    total = _check_total(sum(lengths))
    ends_array = np.zeros(len(lengths) + 1, np.int32)
    # As 32 bits at once: of a list, cumsum makes an array of its own, in four times the time.
    np.cumsum(np.fromiter(lengths, np.int32, len(lengths)), dtype=np.int32, out=ends_array[1:])
    return pad(ends_array.tobytes()), total


def _check_total(total: int) -> int:
    """A length that 32-bit ends can hold."""
    if total > BODY_BYTES_MAX:
        raise TooLargeError(
            f"a column of {total} bytes is too large for one batch: append it in parts"
        )
    return total


def _add_headers(parts: list[bytes], headers: Sequence[Sequence[Header]]) -> None:
    ends, _ = _ends(list(map(len, headers)))
    parts.append(ends)
    flat = list(chain.from_iterable(headers))
    for side in (0, 1):
        if flat:
            _add_binary(parts, [pair[side] for pair in flat])
        else:
            parts.append(bytes(8))  # one end, 0
