"""Import from and export to directories of LedgerQ, FluxMQ, topics and Flo.

Each layout has a package with its formats, a reader and a writer. Importing and exporting are two
loops over these, common to all layouts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stratalog.arguments import check_path
from stratalog.errors import OptionError
from stratalog.fs import PosixFileSystem
from stratalog.interop.export import ExportReport, export
from stratalog.interop.flo.read import read as _read_flo
from stratalog.interop.fluxmq.read import read as _read_fluxmq
from stratalog.interop.ledgerq.read import read as _read_ledgerq
from stratalog.interop.load import ImportReport, Progress, check_names, load
from stratalog.interop.model import (
    DedupId,
    Foreign,
    ForeignGroup,
    ForeignRoute,
    ForeignTopic,
    Pending,
    Problem,
)
from stratalog.interop.topics.read import read as _read_topics

if TYPE_CHECKING:
    from stratalog.handles.store import Store

LAYOUTS = ("flo", "fluxmq", "ledgerq", "topics")
"""Layouts that can be read and written."""

_READERS = {"flo": _read_flo, "fluxmq": _read_fluxmq, "ledgerq": _read_ledgerq}

Path = str | os.PathLike[str]


def read_directory(
    layout: str, directory: Path, *, name: str | None = None, cold: Path | None = None
) -> Foreign:
    """Read a foreign directory: its records as Arrow batches, its queues and groups.

    `name` is the name for LedgerQ's single queue, by default the directory's; for other layouts it
    is a prefix of every name, with a dot. `cold` is the cold directory of topics.
    """
    path = check_path(directory)
    if layout == "topics":
        return _read_topics(
            PosixFileSystem(), path, name, None if cold is None else check_path(cold)
        )
    if cold is not None:
        raise OptionError(f"cold={cold!r} is for topics: {layout} has no cold directory")
    return _READERS[_check(layout)](PosixFileSystem(), path, name)


def import_directory(
    layout: str,
    directory: Path,
    store: Store,
    *,
    name: str | None = None,
    cold: Path | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Bring a foreign directory into a store, with its offsets, queues and groups.

    Running an interrupted import again completes it. `dry_run=True` reads everything and changes
    nothing. `progress` is called with records done, records in all, and a name.
    """
    foreign = read_directory(layout, directory, name=name, cold=cold)
    if dry_run:
        check_names(foreign, store)
        return load(foreign, None, progress=progress)
    store.check_writable()
    return load(foreign, store, progress=progress)


def export_directory(
    layout: str, store: Store, name: str | list[str] | None, directory: Path
) -> ExportReport:
    """Write a queue or topics of a store as a directory that another system opens.

    A directory of LedgerQ is one queue. For the others `name` may be several, or None for all.
    """
    names = [name] if isinstance(name, str) else name
    layout = _check(layout)
    return export(PosixFileSystem(), layout, store, names, check_path(directory))


def _check(layout: str) -> str:
    if layout not in LAYOUTS:
        raise OptionError(f"layout={layout!r} is not known: use one of {', '.join(LAYOUTS)}")
    return layout


__all__ = [
    "LAYOUTS",
    "DedupId",
    "ExportReport",
    "Foreign",
    "ForeignGroup",
    "ForeignRoute",
    "ForeignTopic",
    "ImportReport",
    "Pending",
    "Problem",
    "export_directory",
    "import_directory",
    "read_directory",
]
