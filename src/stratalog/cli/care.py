"""The commands that look after a directory: `verify`, `repair`, `inspect`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

import stratalog
from stratalog import NotAStoreError, OptionError
from stratalog.cli.look import StorePath
from stratalog.cli.output import (
    AsJson,
    make_paint,
    progress_bar,
    time_text,
    write_json,
    write_line,
)
from stratalog.tools.dump import Row, dump
from stratalog.tools.report import Report

ColdUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The cold store, to look for segments there."),
]

ColdDepth = Annotated[
    Literal["sizes", "contents"],
    typer.Option(help="Read the cold segments, or check only names and sizes."),
]

EXIT_DAMAGED = 6
"""Damage was found: the code that an error about damaged bytes has, too."""


def verify(
    path: StorePath,
    cold: ColdUrl = None,
    cold_depth: ColdDepth = "contents",
    as_json: AsJson = False,
) -> None:
    """Check every byte of a store; runs beside a live writer. Damage ends with exit code 6."""
    with progress_bar(is_shown=not as_json) as progress:
        report = stratalog.verify(path, cold=cold, cold_depth=cold_depth, progress=progress)
    show_report(report, as_json=as_json)
    if not report.ok:
        raise typer.Exit(EXIT_DAMAGED)


def repair(
    path: StorePath,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    cold: ColdUrl = None,
    cold_depth: ColdDepth = "contents",
    as_json: AsJson = False,
) -> None:
    """Make a damaged store whole again; what is lost becomes explicit gaps.

    What is taken out of use is kept in PATH/quarantine.
    """
    is_asked = not (dry_run or yes)
    if is_asked and (as_json or not (sys.stdin.isatty() and sys.stdout.isatty())):
        raise OptionError("repair asks before it changes anything: give --yes, or --dry-run")
    with progress_bar(is_shown=not as_json) as progress:
        report = stratalog.repair(
            path, dry_run=dry_run or is_asked, cold=cold, cold_depth=cold_depth, progress=progress
        )
    if is_asked and report.actions:
        show_report(report, as_json=False)
        typer.confirm("Do this?", abort=True)
        with progress_bar(is_shown=not as_json) as progress:
            report = stratalog.repair(path, cold=cold, cold_depth=cold_depth, progress=progress)
    show_report(report, as_json=as_json)
    if not report.ok or (dry_run and report.problems):
        raise typer.Exit(EXIT_DAMAGED)


def inspect(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A file of a store, or a whole directory.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show what is in a file of a store, decoded: headers, frames, indexes, sections."""
    if not path.exists():
        raise OptionError(f"{path} does not exist: give a file of a store, or its directory")
    paint = make_paint()
    file = ""
    for row in dump(path):
        is_next, file = row["file"] != file, row["file"]
        if as_json:
            write_json(row)
            continue
        if is_next:
            write_line(paint(file, "bold"))
        write_line("  " + _row_text(row))
    if not file:
        raise NotAStoreError(f"{path} is no file of a store, and no directory that has any")


def _row_text(row: Row) -> str:
    position = row.get("position")
    parts = ["" if position is None else str(position), row["kind"]]
    parts += [
        f"{name}={_value_text(name, value)}"
        for name, value in row.items()
        if name not in ("file", "kind", "position")
    ]
    return f"{parts[0]:>10}  {'  '.join(parts[1:])}"


def _value_text(name: str, value: Any) -> str:
    is_time = name.endswith("timestamp") or name in ("created_at", "sealed_at", "expires_at")
    if is_time and isinstance(value, int) and value:
        with contextlib.suppress(ValueError, OverflowError):
            return time_text(value)
    return ascii(value) if isinstance(value, str) else str(value)


def show_report(report: Report, *, as_json: bool) -> None:
    """Print what a verification or a repair has to say."""
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    for line in str(report).splitlines():
        write_line(line)
