"""Records and gaps on their way in and out of the command line."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from stratalog import Gap, Operation, OptionError, Record
from stratalog.cli.output import Paint, count_text, make_paint, time_text, write_json, write_line

Show = Callable[[Record | Gap], None]


def make_show(*, as_json: bool, as_values: bool = False, offset_width: int = 1) -> Show:
    """The function that prints one record or gap in the form that was asked for."""
    if as_json:
        return lambda item: write_json(to_json(item))
    if as_values:
        return _write_value
    paint = make_paint()
    return lambda item: write_line(to_text(item, paint, offset_width))


def _write_value(item: Record | Gap) -> None:
    if isinstance(item, Gap):
        print(f"warning: {_gap_text(item)}", file=sys.stderr)
    else:
        sys.stdout.buffer.write((item.value or b"") + b"\n")


# --- for people --------------------------------------------------------------------------


def to_text(item: Record | Gap, paint: Paint, offset_width: int) -> str:
    """One line: offset, time, key, value, and whatever else the record has."""
    if isinstance(item, Gap):
        return paint(f"{'-' * offset_width}  {_gap_text(item)}", "yellow")
    parts = [
        paint(str(item.offset).rjust(offset_width), "green"),
        paint(time_text(item.timestamp), "dim"),
    ]
    if item.key is not None:
        parts.append(paint("key=", "dim") + paint(shown(item.key), "cyan"))
    parts.append(paint("(no value)", "dim") if item.value is None else shown(item.value))
    if more := " ".join(f"{name}={text}" for name, text in _more(item)):
        parts.append(paint(more, "dim"))
    return "  ".join(parts)


def _gap_text(gap: Gap) -> str:
    where = f"offset {gap.first}" if gap.first == gap.last else f"offsets {gap.first} to {gap.last}"
    return f"gap: {where}, {count_text(gap.last - gap.first + 1, 'record')} gone ({gap.reason})"


def _more(record: Record) -> Iterable[tuple[str, str]]:
    if record.tag is not None:
        yield "tag", _printable(record.tag)
    if record.node is not None:
        yield "node", _printable(record.node)
    for name, value in record.headers.items():
        yield f"header:{_printable(name)}", shown(value)
    if record.priority:
        yield "priority", str(record.priority)
    if record.expires_at:
        yield "expires", time_text(record.expires_at)
    if record.not_before:
        yield "not_before", time_text(record.not_before)
    if record.given_time:
        yield "event_time", time_text(record.given_time)
    if record.operation:
        yield "operation", Operation(record.operation).name.lower()


def shown(data: bytes) -> str:
    """Bytes on one line: as text if they are text."""
    try:
        return _printable(data.decode())
    except UnicodeDecodeError:
        return repr(data)


def _printable(text: str) -> str:
    """A record stays on its line, and cannot send commands to the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# --- for programs ------------------------------------------------------------------------


def to_json(item: Record | Gap) -> dict[str, Any]:
    """The fields that `read_arrow` has, always; the rarer ones when they are set."""
    if isinstance(item, Gap):
        return {"gap": {"first": item.first, "last": item.last, "reason": item.reason}}
    fields: dict[str, Any] = {
        "offset": item.offset,
        "timestamp": item.timestamp,
        "time": time_text(item.timestamp),
        "key": bytes_json(item.key),
        "value": bytes_json(item.value),
        "headers": {name: bytes_json(value) for name, value in item.headers.items()},
        "tag": item.tag,
        "node": item.node,
    }
    for name in ("priority", "expires_at", "not_before"):
        if number := getattr(item, name):
            fields[name] = number
    if item.given_time:
        fields["event_time"] = item.given_time
    if item.operation:
        fields["operation"] = Operation(item.operation).name.lower()
    return fields


def bytes_json(data: bytes | None) -> Any:
    """Bytes as JSON has them: as text if they are text, else in base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


# --- on the way in -----------------------------------------------------------------------


def parse_time(text: str) -> float | datetime:
    """Seconds since 1970, nanoseconds as records have them, or ISO 8601."""
    for parse in (int, float, datetime.fromisoformat):
        try:
            return parse(text)
        except ValueError:
            continue
    raise OptionError(
        f"{text!r} is not a time: give seconds since 1970, or a date and time such as "
        "2026-01-31T12:00:00Z (local time without the Z)"
    )


def parse_headers(texts: Iterable[str]) -> dict[str, bytes]:
    """`name=value`, once for each header."""
    headers: dict[str, bytes] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise OptionError(f"header {text!r} is not of the form name=value")
        if name in headers:
            raise OptionError(f"header {name!r} is given twice: a record has one of each name")
        headers[name] = to_bytes(value)
    return headers


def to_bytes(argument: str) -> bytes:
    """The bytes that were typed, also where they are not UTF-8."""
    return argument.encode("utf-8", "surrogateescape")
