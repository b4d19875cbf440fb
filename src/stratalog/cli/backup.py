"""`stratalog backup`: a copy of a store that is a store of its own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

import stratalog
from stratalog.cli.output import (
    AsJson,
    bytes_text,
    count_text,
    make_console,
    write_facts,
    write_json,
)
from stratalog.reports import BackupReport


def backup(
    path: Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the store.")],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Directory of the copy: new, or empty.")
    ],
    as_json: AsJson = False,
) -> None:
    """Copy a store; to restore it, open the copy.

    The store must not be open in another process: that one can call store.backup(path), which
    copies while appends go on.
    """
    with stratalog.open(path, read_only=True):
        pass  # raises unless it is there: a backup creates nothing but the copy
    with stratalog.open(path) as store, _progress(is_shown=not as_json) as progress:
        report = store.backup(target, progress=progress)
    if as_json:
        write_json(msgspec.to_builtins(report, str_keys=True))
    else:
        _show(report)


@contextlib.contextmanager
def _progress(*, is_shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, which goes when it is done; nothing in a pipe."""
    if not is_shown or not sys.stdout.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("backup"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=make_console(), transient=True) as bar:
        task = bar.add_task("backup", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show(report: BackupReport) -> None:
    linked, copied = bytes_text(report.bytes_linked), bytes_text(report.bytes_copied)
    facts = [
        ("backup", report.path),
        ("topics", f"{report.topics:,}"),
        ("records", f"{report.records:,}"),
        ("size", f"{linked} linked, {copied} copied, in {count_text(report.files, 'file')}"),
        ("took", f"{report.duration_seconds:.2f} s"),
    ]
    if report.cold_segments:
        stayed = count_text(report.cold_segments, "segment")
        facts.append(("cold", f"{stayed} stayed in {report.cold}, which the copy reads too"))
    write_facts(facts)
