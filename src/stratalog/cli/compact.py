"""`stratalog compact`: a store takes no more space than it needs, and holds nothing else."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

import stratalog
from stratalog.cli.look import StorePath
from stratalog.cli.output import AsJson, bytes_text, count_text, write_facts, write_json, write_line
from stratalog.reports import CompactionReport, PurgeReport


def compact(
    path: StorePath,
    purge: Annotated[
        bool,
        typer.Option("--purge", help="Remove every byte of records that are gone from all files."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Evict, rewrite and move to the cold store now, instead of over time.

    The store must not be open in another process: that one can call store.compact().
    """
    with stratalog.open(path, read_only=True):
        pass  # raises unless it is there: nothing is created
    with stratalog.open(path) as store:
        report = store.compact(purge=purge)
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    write_facts(_facts(report))
    if report.purge is not None:
        _show_limits(report.purge)


def _facts(report: CompactionReport) -> list[tuple[str, str]]:
    facts = [
        ("removed", count_text(report.segments_removed, "segment")),
        ("moved", count_text(report.segments_moved, "segment")),
        ("freed", bytes_text(max(0, report.bytes_freed))),
    ]
    if (purged := report.purge) is not None:
        rewritten = count_text(purged.segments_rewritten, "segment")
        facts += [
            ("purged", f"{count_text(purged.records_removed, 'record')} out of {rewritten}"),
            ("log", f"{count_text(purged.log_files_removed, 'file')} removed"),
            ("incoming", f"{count_text(purged.staged_files_removed, 'file')} removed"),
            ("quarantine", f"{count_text(purged.quarantine_files_removed, 'file')} removed"),
        ]
    return facts


def _show_limits(purged: PurgeReport) -> None:
    for sentence in purged.unreached:
        write_line(f"not reached: {sentence}")
    for sentence in purged.unknown:
        write_line(f"not known: {sentence}")
