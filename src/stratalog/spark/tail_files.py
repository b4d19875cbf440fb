"""Parquet files with the newest records, written when a DataFrame is made, and removed after it.

A file is used again by DataFrames that are made later, as long as the log has nothing new and what
is in it cannot expire: it is known by a key, which says exactly which records are in it.

A DataFrame may be used as long as there is one, or a view, a cached table or another DataFrame that
was made of it: all of them hold the same list of files in Spark's JVM. Once that was collected as
garbage the file is removed, when the next one is written; the others go with the session. One that
is young stays in any case: an RDD of a DataFrame reads its files, and does not hold their list.

Concurrency: any thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stratalog.format.names import unique_name
from stratalog.fs import PosixFileSystem

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_KEPT_SECONDS = 600.0


@dataclass
class _Tail:
    path: str
    key: bytes | None
    used_at: float
    are_unused: list[Callable[[], bool]] = field(default_factory=list)
    """Whether nothing is left of it, for every DataFrame that was made of the file."""


_lock = threading.Lock()
_tails: dict[str, _Tail] = {}


def find_tail(spark: SparkSession, key: bytes) -> str | None:
    """Find the file of a session that has these records already; returns its path."""
    directory: Any = spark.sparkContext._temp_dir
    with _lock:
        for tail in _tails.values():
            if tail.key == key and os.path.dirname(tail.path) == directory:
                tail.used_at = time.monotonic()
                return tail.path
    return None


def write_tail(spark: SparkSession, data: pa.Buffer, key: bytes | None) -> str:
    """Write a file that goes with the session, or sooner; returns its path.

    With a `key`, it is found again by that.
    """
    now = time.monotonic()
    remove_unused(now)
    directory: Any = spark.sparkContext._temp_dir
    path = os.path.join(directory, f"{unique_name(time.time_ns())}.parquet")
    file = PosixFileSystem().open(path, "create")
    try:
        file.pwrite([data], 0)
    finally:
        file.close()
    add_tail(path, key, now)
    return path


def add_tail(path: str, key: bytes | None, now: float) -> None:
    """Take note of a file that was written."""
    with _lock:
        _tails[path] = _Tail(path, key, now)


def watch_tail(spark: SparkSession, path: str, scan: DataFrame) -> None:
    """Have a file removed once nothing is left of the DataFrames that scan it."""
    from py4j.protocol import Py4JError

    java: Any = spark
    plan: Any = scan
    try:
        files = plan._jdf.queryExecution().analyzed().relation().location()
        reference = java._jvm.java.lang.ref.WeakReference(files)
    except Py4JError:  # Spark was told to plan such scans in another way: it goes with the session
        keep_until(path, lambda: False)
    else:
        keep_until(path, lambda: bool(reference.refersTo(None)))


def keep_until(path: str, is_unused: Callable[[], bool]) -> None:
    """Have a file stay until one more DataFrame of it is unused."""
    with _lock:
        if path in _tails:
            _tails[path].are_unused.append(is_unused)


def remove_unused(now: float) -> None:
    """Remove the files that nothing reads any more."""
    with _lock:
        for tail in list(_tails.values()):
            if now - tail.used_at >= _KEPT_SECONDS and _is_unused(tail):
                PosixFileSystem().unlink(tail.path)
                del _tails[tail.path]


def _is_unused(tail: _Tail) -> bool:
    from py4j.protocol import Py4JError

    try:
        tail.are_unused = [one for one in tail.are_unused if not one()]
    except (Py4JError, OSError):
        return True  # the session has ended, and so has the file
    return not tail.are_unused
