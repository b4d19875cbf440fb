"""Stratalog: one append-only log for Python, and everything else a view of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from stratalog.batch import Appended, Batch
from stratalog.errors import (
    BadMagicError,
    ClosedError,
    ColdStoreError,
    ConflictError,
    CorruptionError,
    DamagedError,
    DataLossError,
    DiskFullError,
    FormatError,
    LeaseLostError,
    LockedError,
    MemoryPressureError,
    NotAStoreError,
    OffsetOutOfRangeError,
    OptionError,
    PoisonedError,
    PressureError,
    QueueEmptyError,
    ReadOnlyError,
    RejectedError,
    StateError,
    StorageError,
    StratalogError,
    SyncFailedError,
    TooLargeError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
    UnsupportedVersionError,
    UsageError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.group import Group
from stratalog.inputs import check_path as _check_path
from stratalog.model import (
    Delivery,
    Diff,
    Durability,
    Gap,
    Message,
    Operation,
    Priority,
    Put,
    Record,
)
from stratalog.options import QueueOptions, StoreOptions, TopicOptions
from stratalog.queue import Queue
from stratalog.reports import CompactionReport
from stratalog.store import Store
from stratalog.topic import Topic

if TYPE_CHECKING:
    from stratalog.tools.report import Progress, Report

__version__ = "0.1.0"


def open(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    durability: Durability | str | None = None,
    shards: int | None = None,
    memory_bytes: int | None = None,
    cold: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Store:
    """Open the store in a directory, creating it if need be.

    One writer at a time; any number of readers with `read_only=True` beside it.
    `durability` is the class of topics that did not choose one (`fsync` unless said otherwise).
    `memory_bytes` bounds what the store holds in memory. `cold` is where old segments go, a
    directory or the URL of an object store. All other options are those of `StoreOptions`.
    """
    given = {
        "durability": durability,
        "shards": shards,
        "memory_bytes": memory_bytes,
        "cold": None if cold is None else _check_path(cold),
        **options,
    }
    return Store(path, StoreOptions.build(given), read_only=read_only)


def verify(
    path: str | os.PathLike[str], *, cold: str | None = None, progress: Progress | None = None
) -> Report:
    """Check every byte of a store, without a lock and beside a live writer.

    `cold` is where its cold segments are: without it they are reported as unchecked. `progress`
    is called with bytes done, bytes in all, and what is being read.
    """
    from stratalog.tools.verify import verify  # what few programs call is loaded for those few

    return verify(path, cold=cold, progress=progress)


def repair(
    path: str | os.PathLike[str],
    *,
    dry_run: bool = False,
    cold: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Make a damaged store whole again; what is lost becomes explicit gaps.

    `report.actions` says what was done; `dry_run=True` says what would be, and changes nothing.
    What is taken out of use is kept in `<store>/quarantine`. What is missing is looked for in the
    cold store at `cold` before it is given up.
    """
    from stratalog.tools.repair import repair

    return repair(path, dry_run=dry_run, cold=cold, progress=progress)


__all__ = [
    "Appended",
    "BadMagicError",
    "Batch",
    "ClosedError",
    "ColdStoreError",
    "CompactionReport",
    "ConflictError",
    "CorruptionError",
    "DamagedError",
    "DataLossError",
    "Delivery",
    "Diff",
    "DiskFullError",
    "Durability",
    "FormatError",
    "Gap",
    "Group",
    "LeaseLostError",
    "LockedError",
    "MemoryPressureError",
    "Message",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "Operation",
    "OptionError",
    "PoisonedError",
    "PressureError",
    "Priority",
    "Put",
    "Queue",
    "QueueEmptyError",
    "QueueOptions",
    "ReadOnlyError",
    "Record",
    "RejectedError",
    "StateError",
    "StorageError",
    "Store",
    "StoreOptions",
    "StratalogError",
    "SyncFailedError",
    "TooLargeError",
    "Topic",
    "TopicExistsError",
    "TopicOptions",
    "UnknownGroupError",
    "UnknownTopicError",
    "UnsupportedVersionError",
    "UsageError",
    "WrongKindError",
    "WrongTypeError",
    "__version__",
    "open",
    "repair",
    "verify",
]
