"""Stratalog: one append-only log for Python, and everything else a view of it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Literal, Unpack

from stratalog.arguments import check_path as _check_path
from stratalog.errors import (
    AccessDeniedError,
    BadLineError,
    BadMagicError,
    ClosedError,
    ColdStoreError,
    ConflictError,
    CorruptionError,
    DamagedError,
    DataLossError,
    DirectoryInTheWayError,
    DiskFullError,
    FencedError,
    FileExistsAlreadyError,
    FileInTheWayError,
    FileMissingError,
    FormatError,
    InvalidValueError,
    LeaseLostError,
    LockedError,
    MemoryPressureError,
    MissingPackageError,
    NoLakeError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    OutOfMemoryError,
    PoisonedError,
    PressureError,
    QueueEmptyError,
    ReadOnlyError,
    RejectedError,
    SchemaMismatchError,
    StateError,
    StorageError,
    StratalogError,
    SyncFailedError,
    TooLargeError,
    TooManyFilesError,
    TopicExistsError,
    UndecodableValueError,
    UnknownGroupError,
    UnknownRouteError,
    UnknownScheduleError,
    UnknownTopicError,
    UnsupportedVersionError,
    UsageError,
    VersionConflictError,
    VersionGoneError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.handles.batch import Appended, Batch, Written
from stratalog.handles.configure import open_configured as _open
from stratalog.handles.group import Group
from stratalog.handles.queue import Queue
from stratalog.handles.route import Route
from stratalog.handles.schedule import Schedule
from stratalog.handles.series import Series
from stratalog.handles.store import Store
from stratalog.handles.table import Table
from stratalog.handles.topic import Topic
from stratalog.model import (
    CaughtUp,
    Change,
    Delivery,
    Diff,
    Durability,
    Entry,
    Gap,
    Latest,
    Message,
    Operation,
    Priority,
    Put,
    Record,
)
from stratalog.options import QueueOptions, StoreOptions, TopicOptions
from stratalog.reports import CompactionReport
from stratalog.settings import (
    NewQueueSettings,
    NewTopicSettings,
    QueueSettings,
    StoreSettings,
    TopicSettings,
)

if TYPE_CHECKING:
    from stratalog.tools.report import Progress, Report

__version__ = "0.1.0"


def open(
    path: str | os.PathLike[str] | None = None,
    *,
    read_only: bool = False,
    durability: Durability | str | None = None,
    shards: int | None = None,
    memory_bytes: int | None = None,
    cold: str | os.PathLike[str] | None = None,
    lake: str | os.PathLike[str] | None = None,
    config: str | os.PathLike[str] | None = None,
    reopen: bool | None = None,
    **options: Unpack[StoreSettings],
) -> Store:
    """Open the store in a directory, creating it if need be.

    `":memory:"` is a new store in memory, for tests: nothing of it touches a disk, and it is gone
    when it is closed. `reopen` says what to do if this process has the store open already: close it
    and open it again (True), or raise (False); unless said, a notebook or prompt does the former,
    so that a cell can be run again, and a program the latter.

    One writer at a time; any number of readers with `read_only=True` beside it.
    `durability` is the class of topics that did not choose one (`fsync` unless said otherwise).
    `memory_bytes` bounds what the store holds in memory. `cold` is where old segments go, a
    directory or the URL of an object store; `lake` is where topics with `lake=True` are kept as
    Parquet, too. `config` is a TOML file with options. All other options
    are those of `StoreOptions`. What is not given comes from the environment (`STRATALOG_PATH` and
    so on), then from the file, then from the defaults.
    """
    given = {
        "durability": durability,
        "shards": shards,
        "memory_bytes": memory_bytes,
        "cold": None if cold is None else _check_path(cold),
        "lake": None if lake is None else _check_path(lake),
        **options,
    }
    return _open(path, given, read_only=read_only, config=config, reopen=reopen)


def verify(
    path: str | os.PathLike[str],
    *,
    cold: str | None = None,
    cold_depth: Literal["sizes", "contents"] = "contents",
    progress: Progress | None = None,
) -> Report:
    """Check every byte of a store, without a lock and beside a live writer.

    `cold` is where its cold segments are: without it they are reported as unchecked. They are read
    as a whole, unless `cold_depth="sizes"` says that names and sizes will do. `progress` is called
    with bytes done, bytes in all, and what is being read.
    """
    from stratalog.tools.verify import verify  # what few programs call is loaded for those few

    return verify(path, cold=cold, cold_depth=cold_depth, progress=progress)


def repair(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    cold: str | None = None,
    cold_depth: Literal["sizes", "contents"] = "contents",
    progress: Progress | None = None,
) -> Report:
    """Make a damaged store whole again; what is lost becomes explicit gaps.

    `report.actions` says what was done; `dry_run=True` says what would be, and changes nothing.
    What is taken out of use is kept in `<store>/quarantine`. What is missing is looked for in the
    cold store at `cold` before it is given up; objects there are judged as `verify` judges them.
    """
    from stratalog.tools.repair import repair

    return repair(path, dry_run=dry_run, cold=cold, cold_depth=cold_depth, progress=progress)


# Silent unless the program says where messages go: see docs/monitoring.md.
logging.getLogger("stratalog").addHandler(logging.NullHandler())

__all__ = [
    "AccessDeniedError",
    "Appended",
    "BadLineError",
    "BadMagicError",
    "Batch",
    "CaughtUp",
    "Change",
    "ClosedError",
    "ColdStoreError",
    "CompactionReport",
    "ConflictError",
    "CorruptionError",
    "DamagedError",
    "DataLossError",
    "Delivery",
    "Diff",
    "DirectoryInTheWayError",
    "DiskFullError",
    "Durability",
    "Entry",
    "FencedError",
    "FileExistsAlreadyError",
    "FileInTheWayError",
    "FileMissingError",
    "FormatError",
    "Gap",
    "Group",
    "InvalidValueError",
    "Latest",
    "LeaseLostError",
    "LockedError",
    "MemoryPressureError",
    "Message",
    "MissingPackageError",
    "NewQueueSettings",
    "NewTopicSettings",
    "NoLakeError",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "Operation",
    "OptionError",
    "OutOfMemoryError",
    "PoisonedError",
    "PressureError",
    "Priority",
    "Put",
    "Queue",
    "QueueEmptyError",
    "QueueOptions",
    "QueueSettings",
    "ReadOnlyError",
    "Record",
    "RejectedError",
    "Route",
    "Schedule",
    "SchemaMismatchError",
    "Series",
    "StateError",
    "StorageError",
    "Store",
    "StoreOptions",
    "StoreSettings",
    "StratalogError",
    "SyncFailedError",
    "Table",
    "TooLargeError",
    "TooManyFilesError",
    "Topic",
    "TopicExistsError",
    "TopicOptions",
    "TopicSettings",
    "UndecodableValueError",
    "UnknownGroupError",
    "UnknownRouteError",
    "UnknownScheduleError",
    "UnknownTopicError",
    "UnsupportedVersionError",
    "UsageError",
    "VersionConflictError",
    "VersionGoneError",
    "Written",
    "WrongKindError",
    "WrongTypeError",
    "__version__",
    "open",
    "repair",
    "verify",
]
