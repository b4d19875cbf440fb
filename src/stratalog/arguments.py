"""Arguments of callers, checked and brought into the one form the log takes.

Everything that can be wrong with a record is found here, in the caller's own call: a record that
enters a commit group cannot fail to encode, so that no append fails for another caller's mistake.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from stratalog.errors import OptionError, TooLargeError, WrongTypeError
from stratalog.format.columns import Columns, Header
from stratalog.model import Record
from stratalog.options import SECONDS_MAX, TIME_MAX, check_range, seconds

# An int this large is nanoseconds (from 12 January 1970 on), a smaller one is seconds (the year
# 31,688,738): no realistic time is both.
NANOSECONDS_FROM = 10**15

# An int below this is no time that a caller means: 3 March 1973.
_SECONDS_FROM = 10**8

NAME_BYTES_MAX = 255
"""Longest name of a file or directory: NAME_MAX of every common file system."""
PATH_BYTES_MAX = 4096 - 128
"""Longest path of a store: PATH_MAX of Linux, less what the names inside of a store take."""


def check_bytes(what: str, value: Any) -> bytes | None:
    """Bytes, or None; anything else that holds bytes is copied, because it may change."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = ": encode it first, for example with .encode()" if isinstance(value, str) else ""
    raise WrongTypeError(f"a {what} is bytes or None, not {type(value).__name__}{hint}")


def check_text(what: str, value: Any) -> bytes | None:
    """Text as UTF-8, or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise WrongTypeError(f"a {what} is text or None, not {type(value).__name__}: {value!r}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise OptionError(f"{what} {value!r} cannot be written as UTF-8: {error}") from None


def check_headers(headers: Any) -> tuple[Header, ...]:
    """Names and values, encoded."""
    if type(headers) is not dict and not isinstance(headers, Mapping):
        raise WrongTypeError(
            f"headers are a mapping of text to bytes, not {type(headers).__name__}"
        )
    return tuple(
        [
            # As a rule; the function costs five times as much.
            (name.encode(), value)
            if type(name) is str and type(value) is bytes and name.isascii()
            else _header(name, value)
            for name, value in headers.items()
        ]
    )


def _header(name: Any, value: Any) -> Header:
    if not isinstance(name, str):
        kind = type(name).__name__
        raise WrongTypeError(f"a header name is text, not {kind}: {name!r}")
    if value is None:
        raise WrongTypeError(f"header {name!r} is None: headers are text to bytes")
    return check_text("header name", name) or b"", check_bytes(f"header {name!r}", value) or b""


def check_time(what: str, value: Any) -> int:
    """Nanoseconds since 1970 from seconds, a datetime, or nanoseconds as records have them."""
    if isinstance(value, datetime):
        nanoseconds = _datetime_nanoseconds(value)
    elif isinstance(value, bool) or not isinstance(value, int | float | np.integer):
        raise WrongTypeError(
            f"{what}={value!r} must be seconds, a datetime, or nanoseconds as an int"
        )
    elif not isinstance(value, float) and int(value) >= NANOSECONDS_FROM:
        nanoseconds = int(value)
    elif 0 <= value <= TIME_MAX / 1e9:  # also keeps infinity and NaN out
        whole = int(value)  # apart, because a float of today's nanoseconds is good to 256 only
        nanoseconds = whole * 10**9 + round(float(value - whole) * 10**9)
    else:
        nanoseconds = -1
    if not 0 <= nanoseconds <= TIME_MAX:
        raise OptionError(
            f"{what}={value!r} is before 1970 or after 2230: give seconds, a datetime, or "
            "nanoseconds as an int"
        )
    return nanoseconds


def check_moment(what: str, value: Any) -> int:
    """Check a time where an offset could be meant: a small int is refused, because it may be one.

    Nanoseconds since 1970, as of `check_time`.
    """
    if isinstance(value, int) and 0 < value < _SECONDS_FROM:
        raise OptionError(
            f"{what}={value} is not a time: as seconds it would be before 1973, and offsets are "
            "not taken here. Give a datetime, or seconds as a float."
        )
    return check_time(what, value)


def check_timeout(timeout: Any) -> float | None:
    """Seconds to wait, None for ever."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise OptionError(f"timeout={timeout!r} must be 0 or more seconds, or None")
    return float(timeout)


def check_path(path: Any) -> str:
    """The place of a directory, as text."""
    try:
        place = os.fspath(path)
    except TypeError:
        place = None
    if not isinstance(place, str):
        raise WrongTypeError(
            f"a path is text or a pathlib.Path, not {type(path).__name__}: {path!r}"
        )
    if not place:
        raise OptionError(
            "The path is empty. Give the directory of the store; '.' is the current one."
        )
    if "\0" in place:
        raise OptionError(f"path {place!r} has a zero in it, which no file system takes")
    try:
        encoded = place.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise OptionError(f"path {place!r} cannot be a file's name here: {error}") from None
    longest = max(map(len, encoded.split(b"/")))
    if longest > NAME_BYTES_MAX or len(encoded) > PATH_BYTES_MAX:
        raise TooLargeError(
            f"The path {place[:40]!r}... is too long: {len(encoded)} bytes, {longest} in one name. "
            f"At most {PATH_BYTES_MAX} and {NAME_BYTES_MAX} are possible."
        )
    return place


def listed(records: Iterable[Any]) -> list[Any]:
    """Return what `append_many` was given as a list."""
    if isinstance(records, bytes | bytearray | memoryview | str):
        raise WrongTypeError("append_many takes a list of records; use append for one")
    if not isinstance(records, Iterable):
        raise WrongTypeError(
            f"append_many takes a list of records, not {type(records).__name__}: {records!r}"
        )
    return list(records)


def _datetime_nanoseconds(value: datetime) -> int:
    # Not value.timestamp(): a float of today's seconds is good to 200 ns only.
    try:
        whole = round(value.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError):  # a naive one in the first or the last year there is
        return -1
    return whole * 10**9 + value.microsecond * 1000


def rising(given: npt.NDArray[np.int64], now: int, floor: int) -> npt.NDArray[np.int64]:
    """Times that never go back: 0 is now, and nothing is below `floor` or the one before."""
    filled = np.where(given == 0, max(now, floor), given)
    return np.maximum.accumulate(np.maximum(filled, floor))


def set_times(columns: Columns, given: list[int], now: int, floor: int) -> None:
    """Give records times that never go back; those that it changes keep their own beside it."""
    times = np.array(given, np.int64)
    stamps = rising(times, now, floor)
    columns.timestamps = stamps.tolist()
    events = np.where(times != stamps, times, 0)
    if columns.event_times is not None:
        known = np.array(columns.event_times, np.int64)
        events = np.where(known, known, events)
    columns.event_times = events.tolist() if events.any() else None


def record_items(
    key: Any, headers: Any, tag: Any, node: Any, timestamp: Any, ttl: Any
) -> tuple[int, list[tuple[str, Any]]]:
    """The bytes that a single append has besides its value, and all that the log is to know."""
    items: list[tuple[str, Any]] = []
    size = 0
    if key is not None:
        data = key if type(key) is bytes else check_bytes("key", key)
        size += len(data or b"")
        items.append(("keys", data))
    if headers:
        pairs = check_headers(headers)
        for name, value in pairs:
            size += len(name) + len(value) + 8
        items.append(("headers", pairs))
    if tag is not None:
        is_plain = type(tag) is str and tag.isascii()
        data = tag.encode() if is_plain else check_text("tag", tag)
        size += len(data or b"")
        items.append(("tags", data))
    if node is not None:
        data = check_text("node", node)
        size += len(data or b"")
        items.append(("nodes", data))
    if timestamp is not None:
        items.append(("timestamp", check_time("timestamp", timestamp)))
    if ttl is not None:
        is_plain = type(ttl) is float and 1e-9 <= ttl <= SECONDS_MAX
        items.append(("ttl", round((ttl if is_plain else seconds("ttl", ttl)) * 10**9)))
    return size, items


def columns_of(items: Iterable[Any], record_bytes_max: int) -> tuple[Columns, list[int] | None]:
    """Values and records mixed, as columns; and the times they bring, 0 for those without."""
    records = [item if isinstance(item, Record) else Record(value=item) for item in items]
    values = [check_bytes("value", record.value) for record in records]
    columns = Columns(values)
    if any(record.key is not None for record in records):
        columns.keys = [check_bytes("key", record.key) for record in records]
    if any(record.headers for record in records):
        columns.headers = [check_headers(record.headers) for record in records]
    if any(record.tag is not None for record in records):
        columns.tags = [check_text("tag", record.tag) for record in records]
    if any(record.node is not None for record in records):
        columns.nodes = [check_text("node", record.node) for record in records]
    columns.priorities = _column(records, "priority", lambda n, v: check_range(n, v, 0, 255))
    columns.operations = _column(records, "operation", lambda n, v: check_range(n, v, 0, 1))
    columns.expires_at = _column(records, "expires_at", check_time)
    columns.not_before = _column(records, "not_before", check_time)
    columns.event_times = _column(records, "given_time", check_time)
    check_sizes(columns, record_bytes_max)
    return columns, _column(records, "timestamp", check_time)


def _column(records: list[Record], name: str, check: Callable[[str, Any], int]) -> list[int] | None:
    items = [getattr(record, name) for record in records]
    return [check(name, item) for item in items] if any(items) else None


def given_columns(
    values: Any, keys: Any, headers: Any, timestamps: Any
) -> tuple[Columns, list[int] | None]:
    """Records that are given by column; and the times they bring, 0 for those without.

    Their sizes are left to `check_sizes`: all together, most batches are smaller than one record
    may be.
    """
    columns = Columns(_bytes_column("value", listed_column("values", values)))
    count = len(columns.values)
    if not count:
        raise OptionError("append_many needs at least one record")
    if keys is not None:
        column = _bytes_column("key", _one_each("keys", keys, count))
        columns.keys = None if column[0] is None and column.count(None) == count else column
    if headers is not None:
        column = _one_each("headers", headers, count)
        columns.headers = [check_headers(item or {}) for item in column] if any(column) else None
    times = [] if timestamps is None else _time_column(timestamps, count)
    return columns, times if any(times) else None


def _time_column(column: Any, count: int) -> list[int]:
    """Nanoseconds since 1970 of each record, 0 for those without a time."""
    is_exact = True  # else an early time in nanoseconds would be taken for seconds
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        column = column.astype("datetime64[ns]").astype(np.int64)
    elif hasattr(column, "to_pylist") and str(column.type).startswith("timestamp"):
        column = column.cast("timestamp[ns]").cast("int64")
    else:
        is_exact = False
    items = _one_each("timestamps", column, count)
    for item in items if is_exact else ():
        if item is not None and not 0 <= item <= TIME_MAX:
            raise OptionError(
                f"timestamps has a time before 1970 or after 2230: {item} nanoseconds after 1970"
            )
    return [
        0 if item is None else item if is_exact else check_time("timestamp", item) for item in items
    ]


def listed_column(what: str, column: Any) -> list[Any]:
    """Return a column of `append_many` as a list: of any iterable, a NumPy or an Arrow array."""
    if isinstance(column, np.ndarray):
        if column.ndim != 1:
            raise WrongTypeError(f"{what} has {column.ndim} dimensions: a column has one")
        return list(column.tolist())
    if hasattr(column, "to_pylist"):  # Arrow, which is not imported for this
        return list(column.to_pylist())
    if isinstance(column, bytes | bytearray | memoryview | str | Mapping):
        raise WrongTypeError(f"{what} is a column, with one item for each record: give a list")
    if not isinstance(column, Iterable):
        raise WrongTypeError(f"{what} is a list of items, not {type(column).__name__}: {column!r}")
    return list(column)


def _one_each(what: str, column: Any, count: int) -> list[Any]:
    items = listed_column(what, column)
    if len(items) != count:
        raise OptionError(
            f"{what} has {len(items)} items, and values has {count}. Give one for each record; "
            "None stands for no item. Nothing was appended."
        )
    return items


def _bytes_column(what: str, items: list[Any]) -> list[bytes | None]:
    if set(map(type, items)) == {bytes}:  # as a rule, and without a look at each
        return items
    return [check_bytes(what, item) for item in items]


def check_sizes(columns: Columns, record_bytes_max: int) -> None:
    """Raise if a record of a batch is too large."""
    for index in range(len(columns.values)):
        size = sum(
            len(column[index] or b"")
            for column in (columns.values, columns.keys, columns.tags, columns.nodes)
            if column is not None
        )
        if columns.headers is not None:
            size += sum(len(name) + len(value) for name, value in columns.headers[index])
        if size > record_bytes_max:
            raise TooLargeError(
                f"record {index} of the batch has {size} bytes; record_bytes_max is "
                f"{record_bytes_max}: nothing of the batch was appended"
            )
