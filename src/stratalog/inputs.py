"""What callers pass in, checked and brought into the one form the log takes.

Everything that can be wrong with a record is found here, in the caller's own call: what enters a
group cannot fail to encode, so that nobody's append fails for somebody else's mistake.
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
from stratalog.options import TIME_MAX, check_range, seconds

# An int this large is nanoseconds (from 12 January 1970 on), a smaller one is seconds (the year
# 31,688,738): no time anybody means is both.
_NANOSECONDS_FROM = 10**15


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
    if not isinstance(headers, Mapping):
        raise WrongTypeError(
            f"headers are a mapping of text to bytes, not {type(headers).__name__}"
        )
    pairs = []
    for name, value in headers.items():
        if not isinstance(name, str):
            kind = type(name).__name__
            raise WrongTypeError(f"a header name is text, not {kind}: {name!r}")
        if value is None:
            raise WrongTypeError(f"header {name!r} is None: headers are text to bytes")
        key = check_text("header name", name) or b""
        data = check_bytes(f"header {name!r}", value) or b""
        pairs.append((key, data))
    return tuple(pairs)


def check_time(what: str, value: Any) -> int:
    """Nanoseconds since 1970 from seconds, a datetime, or nanoseconds as records have them."""
    if isinstance(value, datetime):
        nanoseconds = _datetime_nanoseconds(value)
    elif isinstance(value, bool) or not isinstance(value, int | float | np.integer):
        raise WrongTypeError(
            f"{what}={value!r} must be seconds, a datetime, or nanoseconds as an int"
        )
    elif not isinstance(value, float) and int(value) >= _NANOSECONDS_FROM:
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
    if "\0" in place:
        raise OptionError(f"path {place!r} has a zero in it, which no file system takes")
    return place


def listed(records: Iterable[Any]) -> list[Any]:
    """What `append_many` was given, as a list."""
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


def record_extras(
    key: Any, headers: Any, tag: Any, node: Any, timestamp: Any, ttl: Any
) -> tuple[int, dict[str, Any]]:
    """The optional columns of a single append, and the bytes they hold."""
    extras: dict[str, Any] = {}
    size = 0
    if key is not None:
        extras["keys"] = data = check_bytes("key", key)
        size += len(data or b"")
    if headers:
        extras["headers"] = pairs = check_headers(headers)
        size += sum(len(name) + len(value) + 8 for name, value in pairs)
    if tag is not None:
        extras["tags"] = text = check_text("tag", tag)
        size += len(text or b"")
    if node is not None:
        extras["nodes"] = text = check_text("node", node)
        size += len(text or b"")
    if timestamp is not None:
        extras["timestamp"] = check_time("timestamp", timestamp)
    if ttl is not None:
        extras["ttl"] = round(seconds("ttl", ttl) * 10**9)
    return size, extras


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
    _check_sizes(columns, record_bytes_max)
    return columns, _column(records, "timestamp", check_time)


def _column(records: list[Record], name: str, check: Callable[[str, Any], int]) -> list[int] | None:
    items = [getattr(record, name) for record in records]
    return [check(name, item) for item in items] if any(items) else None


def _check_sizes(columns: Columns, record_bytes_max: int) -> None:
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
