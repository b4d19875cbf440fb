"""Sources of a store's options, highest priority first: the call, the environment, a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from stratalog.arguments import check_path
from stratalog.errors import LockedError, OptionError, WrongTypeError
from stratalog.fs import PosixFileSystem
from stratalog.handles.open_stores import open_writer
from stratalog.handles.store import MEMORY_PATH, Store
from stratalog.settings import NOTHING, PREFIX, Configuration, from_environment, from_toml
from stratalog.upkeep.adopt import read_file

MEMORY = ":memory:"
"""The path of a store that is in memory, and gone when it is closed."""

# Zeros that are kept ready for appends: on a disk they save time, in memory they take it.
_MEMORY_OPTIONS = {"shards": 1, "log_chunk_bytes": 64 << 10}


def configuration(
    config: str | os.PathLike[str] | None = None, environment: Mapping[str, str] | None = None
) -> Configuration:
    """Merge options of the environment over those of a file, which `STRATALOG_CONFIG` may name."""
    variables = os.environ if environment is None else environment
    name = config if config is not None else variables.get(f"{PREFIX}CONFIG") or None
    found = NOTHING
    if name is not None:
        path = check_path(name)
        data = read_file(PosixFileSystem(), os.path.abspath(path))
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise OptionError(f"{path} is not UTF-8: {error}") from None
        found = from_toml(text, path)
    return from_environment(variables).over(found)


def open_configured(
    path: str | os.PathLike[str] | None,
    given: Mapping[str, Any],
    *,
    read_only: bool,
    config: str | os.PathLike[str] | None,
    reopen: bool | None = None,
) -> Store:
    """Open a store with options from all sources."""
    found = configuration(config)
    place = found.path if path is None else path
    if place is None:
        raise WrongTypeError(
            "a path is text or a pathlib.Path, not None. Give the directory of the store, or set "
            f"{PREFIX}PATH."
        )
    if place == MEMORY:
        return _open_in_memory(found, given, read_only=read_only)
    options = found.options(given)
    before = None if read_only else open_writer(os.path.abspath(check_path(place)))
    # A prompt exists in the Python shell, in IPython and in Jupyter: a cell is run again.
    if before is not None and (hasattr(sys, "ps1") if reopen is None else reopen):
        before.close()
    try:
        return Store(place, options, read_only=read_only, configuration=found)
    except LockedError:
        if before is None or before.is_closed:
            raise
        raise LockedError(
            f"{before.path} is open already, in this process. Use the store that is open, close "
            "it first, or pass reopen=True to have it closed and opened again."
        ) from None


def _open_in_memory(found: Configuration, given: Mapping[str, Any], *, read_only: bool) -> Store:
    """Open a new store that no file knows of."""
    from stratalog.testing import FakeDisk  # for the few that ask for it

    if read_only:
        raise OptionError(
            f"A store at {MEMORY!r} is new whenever it is opened, so that there is nothing to "
            "read. Open it without read_only=True."
        )
    said = {name: value for name, value in given.items() if value is not None}
    options = found.options(_MEMORY_OPTIONS | said)
    return Store(MEMORY_PATH, options, fs=FakeDisk(), configuration=found)
