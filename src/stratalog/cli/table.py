"""`stratalog table ...`: look keys up, change them, and watch them change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import stratalog
from stratalog import CaughtUp, Change, Entry, Operation, Store, Table, UnknownTopicError
from stratalog.cli.output import (
    AsJson,
    count_text,
    make_paint,
    time_text,
    write_json,
    write_line,
)
from stratalog.cli.records import bytes_json, parse_time, shown, to_bytes

app = typer.Typer(
    name="table", help="Look keys up, change them, watch them change.", no_args_is_help=True
)

StorePath = Annotated[Path, typer.Argument(metavar="PATH", help="Directory of the store.")]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table.")]
KeyName = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
IfVersion = Annotated[
    int | None, typer.Option(metavar="VERSION", help="Only if this is the key's version.")
]
Prefix = Annotated[str, typer.Option(help="Only keys that begin with this.")]
Values = Annotated[bool, typer.Option("--values", help="Print the values alone, as they are.")]

_NOT_THERE = 1


@app.command("get")
def get(
    path: StorePath,
    table: TableName,
    key: KeyName,
    at: Annotated[
        str | None, typer.Option(metavar="PLACE", help="As of a version, or of a time.")
    ] = None,
    values: Values = False,
    as_json: AsJson = False,
) -> None:
    """Print the value of a key; ends with 1 if the key is not there."""
    with stratalog.open(path, read_only=True) as store:
        entry = store.table(table).entry(key, at=None if at is None else _parse_at(at))
    if entry is None:
        print(f"{table}: no key {key!r}", file=sys.stderr)
        raise typer.Exit(_NOT_THERE)
    _show(key, entry, as_json=as_json, as_values=values)


@app.command("put")
def put(
    path: StorePath,
    table: TableName,
    key: KeyName,
    value: Annotated[
        str | None,
        typer.Argument(metavar="VALUE", help="The value; from standard input if left out."),
    ] = None,
    ttl: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time until it expires.")
    ] = None,
    if_version: IfVersion = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only if the key is not there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put a value into a table, which is made if there is none; ends with 3 on a conflict."""
    data = sys.stdin.buffer.read() if value is None else to_bytes(value)
    with stratalog.open(path) as store:
        version = store.table(table).put(
            key, data, ttl=ttl, if_version=if_version, if_absent=if_absent
        )
    _show_version(table, key, version, "put as", as_json=as_json)


@app.command("add")
def add(
    path: StorePath,
    table: TableName,
    key: KeyName,
    amount: Annotated[int, typer.Argument(metavar="AMOUNT", help="How much to add.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Add to a counter and print what it is then."""
    with stratalog.open(path) as store:
        total = store.table(table).add(key, amount)
    if as_json:
        write_json({"table": table, "key": key, "value": total})
    else:
        write_line(str(total))


@app.command("delete")
def delete(
    path: StorePath,
    table: TableName,
    key: KeyName,
    if_version: IfVersion = None,
    as_json: AsJson = False,
) -> None:
    """Delete a key; ends with 1 if it is not there, with 3 on a conflict."""
    with stratalog.open(path) as store:
        version = _existing(store, table).delete(key, if_version=if_version)
    if version is None:
        print(f"{table}: no key {key!r}", file=sys.stderr)
        raise typer.Exit(_NOT_THERE)
    _show_version(table, key, version, "deleted as", as_json=as_json)


@app.command("scan")
def scan(
    path: StorePath,
    table: TableName,
    prefix: Prefix = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="Most keys.")] = None,
    values: Values = False,
    as_json: AsJson = False,
) -> None:
    """Print keys and their values, in order."""
    paint = make_paint()
    with stratalog.open(path, read_only=True) as store:
        for key, value in store.table(table).scan(prefix, limit):
            if as_json:
                write_json({"key": _key_json(key), "value": bytes_json(value)})
            elif values:
                sys.stdout.buffer.write(value + b"\n")
            else:
                write_line(f"{paint(_key_text(key), 'cyan')}  {shown(value)}")


@app.command("history")
def history(path: StorePath, table: TableName, key: KeyName, as_json: AsJson = False) -> None:
    """Print the versions of a key that are kept, oldest first; ends with 1 if there are none."""
    with stratalog.open(path, read_only=True) as store:
        found = store.table(table).history(key)
    for entry in found:
        _show(key, entry, as_json=as_json)
    if not found:
        print(f"{table}: no key {key!r}", file=sys.stderr)
        raise typer.Exit(_NOT_THERE)


@app.command("watch")
def watch(
    path: StorePath,
    table: TableName,
    prefix: Prefix = "",
    start: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="snapshot, or a version; from now on if left out."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End when nothing came for so long.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="End after so many lines.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print changes as they come, also those of another process."""
    place: Any = int(start) if start is not None and start.isdecimal() else start
    printed = 0
    with stratalog.open(path, read_only=True) as store:
        for item in store.table(table).watch(prefix, place, timeout):
            _show_change(item, as_json=as_json)
            sys.stdout.flush()
            printed += 1
            if printed == limit:
                break


@app.command("list")
def list_tables(path: StorePath, as_json: AsJson = False) -> None:
    """Print all tables and how many keys they have."""
    with stratalog.open(path, read_only=True) as store:
        for name in store.tables():
            table = store.table(name)
            if as_json:
                write_json({"table": name, "keys": len(table), "version": table.version})
            else:
                write_line(f"{name}: {count_text(len(table), 'key')}, version {table.version}")


def _existing(store: Store, name: str) -> Table:
    """Get a table that is there: what is mistyped is not made."""
    if name not in store.topics():
        raise UnknownTopicError(f"No table {name!r} in this store: there are {store.tables()}.")
    return store.table(name)


def _parse_at(text: str) -> Any:
    return int(text) if text.isdecimal() else parse_time(text)


def _show(key: str, entry: Entry, *, as_json: bool, as_values: bool = False) -> None:
    if as_values:
        sys.stdout.buffer.write((entry.value or b"") + b"\n")
    elif as_json:
        write_json({
            "key": key, "value": bytes_json(entry.value), "version": entry.version,
            "timestamp": entry.timestamp, "time": time_text(entry.timestamp),
            "expires_at": entry.expires_at or None,
        })  # fmt: skip
    else:
        paint = make_paint()
        value = paint("(deleted)", "dim") if entry.value is None else shown(entry.value)
        parts = [
            paint(str(entry.version), "green"),
            paint(time_text(entry.timestamp), "dim"),
            value,
        ]
        if entry.expires_at:
            parts.append(paint(f"expires={time_text(entry.expires_at)}", "dim"))
        write_line("  ".join(parts))


def _show_version(table: str, key: str, version: int, what: str, *, as_json: bool) -> None:
    if as_json:
        write_json({"table": table, "key": key, "version": version})
    else:
        write_line(f"{table}: {key} {what} version {version}")


def _show_change(item: Change | CaughtUp, *, as_json: bool) -> None:
    if isinstance(item, CaughtUp):
        if as_json:
            write_json({"caught_up": item.version})
        else:
            write_line(make_paint()(f"-- caught up with version {item.version} --", "dim"))
        return
    if as_json:
        write_json({
            "key": _key_json(item.key), "value": bytes_json(item.value), "version": item.version,
            "timestamp": item.timestamp, "time": time_text(item.timestamp),
            "operation": Operation(item.operation).name.lower(),
        })  # fmt: skip
        return
    paint = make_paint()
    value = paint("(deleted)", "dim") if item.value is None else shown(item.value)
    write_line(
        f"{paint(str(item.version), 'green')}  {paint(time_text(item.timestamp), 'dim')}  "
        f"{paint(_key_text(item.key), 'cyan')}  {value}"
    )


def _key_text(key: str | bytes) -> str:
    return shown(key.encode() if isinstance(key, str) else key)


def _key_json(key: str | bytes) -> Any:
    return key if isinstance(key, str) else bytes_json(key)
