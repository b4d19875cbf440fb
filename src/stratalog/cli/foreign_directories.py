"""`stratalog import --from` and `stratalog export --to`: directories of other systems."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

import stratalog
from stratalog.cli.output import count_text, progress_bar, write_facts, write_json
from stratalog.format.names import store_path


def import_foreign(
    layout: str,
    directory: Path,
    path: str,
    *,
    name: str | None,
    cold: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Bring a directory of another system into a store."""
    from stratalog.interop import read_directory
    from stratalog.interop.load import check_names, load

    # Before a store is made: a directory that cannot be read leaves none.
    foreign = read_directory(layout, directory, name=name, cold=cold)
    with progress_bar(is_shown=not as_json) as progress:
        if not dry_run:
            with stratalog.open(path) as store:
                report = load(foreign, store, progress=progress)
        else:
            if os.path.exists(store_path(path)):
                with stratalog.open(path, read_only=True) as store:
                    check_names(foreign, store)
            report = load(foreign, None, progress=progress)
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    verb = "would import" if dry_run else "imported"
    facts = [(verb, f"{count_text(report.records, 'record')} from {directory} ({layout})")]
    facts += [(f"  {topic}", f"{count:,}") for topic, count in report.topics.items()]
    if report.groups:
        facts.append(("groups", ", ".join(report.groups)))
    for problem in report.problems:
        place = problem.path if problem.position < 0 else f"{problem.path} at {problem.position}"
        lost = f" Lost: {problem.lost}." if problem.lost else ""
        facts.append(("problem", f"{place}: {problem.what}{lost}".removeprefix(": ")))
    write_facts([*facts, ("took", f"{report.duration:.1f} s")])


def export_foreign(
    layout: str, path: Path, directory: str, *, name: str | None, as_json: bool
) -> None:
    """Write a directory that another system opens."""
    from stratalog.interop import export_directory

    names = None if name in (None, "*") else [part.strip() for part in str(name).split(",")]
    with stratalog.open(path) as store:
        report = export_directory(layout, store, names, directory)
    if as_json:
        write_json(msgspec.to_builtins(report))
        return
    facts = [("exported", f"{count_text(report.records, 'record')} to {directory} ({layout})")]
    facts.append(("topics", ", ".join(report.topics)))
    if report.groups:
        facts.append(("groups", ", ".join(report.groups)))
    write_facts(facts)
