"""`stratalog append`: records from arguments, or one per line from standard input."""

from __future__ import annotations

import enum
import io
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import typer

import stratalog
from stratalog import Record, TooLargeError
from stratalog.arguments import check_headers, check_text
from stratalog.cli.output import AsJson, count_text, write_json, write_line
from stratalog.cli.records import parse_headers, to_bytes
from stratalog.format.names import check_topic_name
from stratalog.options import seconds

_BATCH_LINES = 1000

# As much as a pipe holds by default. A slow source is appended line by line as it speaks; a fast
# one fills the pipe while a batch is synced, and so makes the next batch larger.
_READ_BYTES = 1 << 16


class _Class(enum.StrEnum):
    """The durability classes of a single append: ephemeral is for whole topics."""

    memory = "memory"
    disk = "disk"
    fsync = "fsync"


def append(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the store.")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to append to.")],
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="VALUE",
            show_default=False,
            help="Records, as one atomic batch; without any, lines of standard input.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Key of every record.")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of every record.")] = None,
    node: Annotated[str | None, typer.Option(help="Node that every record comes from.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", show_default=False, help="A header; may be repeated."),
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time until the records expire.")
    ] = None,
    durability: Annotated[
        _Class | None, typer.Option(help="Durability class; the topic's own by default.")
    ] = None,
    create: Annotated[
        bool, typer.Option(help="Create the store and the topic if they do not exist.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Append records to a topic; prints the first and the last offset."""
    check_topic_name(topic)
    shared = _shared_fields(key, tag, node, header, ttl)
    if not create:
        with stratalog.open(path, read_only=True) as store:
            store.topic(topic)  # raises unless both are there
    first, last = 0, -1
    try:
        with stratalog.open(path) as store:
            handle = store.topic(topic)
            first = handle.next_offset
            last = first - 1
            for batch in batches(values, store.options.record_bytes_max):
                _, last = handle.append_many(_records(batch, shared, ttl), durability=durability)
    finally:
        # Also after an error or Ctrl-C: what was appended until then stays appended.
        if last >= first or sys.exc_info()[0] is None:
            _report(topic, first, last, as_json=as_json)


def _shared_fields(
    key: str | None,
    tag: str | None,
    node: str | None,
    header: list[str] | None,
    ttl: float | None,
) -> dict[str, Any]:
    """Return the fields that all records of the call share; checked before anything is opened."""
    fields: dict[str, Any] = {}
    if key is not None:
        fields["key"] = to_bytes(key)
    for name, text in (("tag", tag), ("node", node)):
        if text is not None:
            check_text(name, text)
            fields[name] = text
    if header:
        fields["headers"] = parse_headers(header)
        check_headers(fields["headers"])
    if ttl is not None:
        seconds("ttl", ttl)
    return fields


def _records(
    batch: list[bytes], shared: dict[str, Any], ttl: float | None
) -> list[bytes] | list[Record[bytes]]:
    if ttl is not None:
        shared = shared | {"expires_at": time.time_ns() + round(ttl * 10**9)}
    return [Record(value=value, **shared) for value in batch] if shared else batch


def batches(values: list[str] | None, record_bytes_max: int) -> Iterable[list[bytes]]:
    """Yield what a command was given, or the lines of standard input."""
    if values:
        return [[to_bytes(value) for value in values]]
    if sys.stdin.isatty():
        print("one record per line; Ctrl-D ends", file=sys.stderr)
    return read_lines(cast(io.BufferedReader, sys.stdin.buffer), record_bytes_max)


def read_lines(source: io.BufferedIOBase, line_bytes_max: int) -> Iterator[list[bytes]]:
    """Lines without their line feeds, in batches of what is there, 1000 at most."""
    rest = b""
    while chunk := source.read1(_READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), _BATCH_LINES):
            yield lines[start : start + _BATCH_LINES]
        if len(rest) > line_bytes_max:
            raise TooLargeError(
                f"a line has more than {line_bytes_max} bytes, the most a record may have: "
                "is this input made of lines?"
            )
    if rest:
        yield [rest]


def _report(topic: str, first: int, last: int, *, as_json: bool) -> None:
    count = last - first + 1
    if as_json:
        ends = {"first": first, "last": last} if count else {"first": None, "last": None}
        write_json({"topic": topic, "records": count, **ends})
    elif not count:
        write_line(f"nothing to append to {topic}")
    else:
        where = f"offset {first}" if count == 1 else f"offsets {first} to {last}"
        write_line(f"appended {count_text(count, 'record')} to {topic}: {where}")
