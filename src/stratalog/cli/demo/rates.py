"""The rates that `stratalog demo` measures: a first impression, not a benchmark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

import stratalog

VALUE_BYTES = 100
BATCH_RECORDS = 1000

_VALUE = b"x" * VALUE_BYTES
_SECONDS = 0.4

# 30 MB of payload: a demonstration must not fill a disk, however fast that is.
_RECORDS_MAX = 300_000


class Rate(msgspec.Struct, frozen=True):
    """How fast one way of appending or reading went."""

    name: str
    records: int
    seconds: float
    note: str

    @property
    def per_second(self) -> float:
        """Records in a second."""
        return self.records / self.seconds


def measure(path: str) -> list[Rate]:
    """Short runs on topics of their own; what is not synced at once is synced within the time."""
    with stratalog.open(path) as store:
        single = store.create_topic("rate-disk", durability="disk")
        batches = store.create_topic("rate-batches", durability="disk")
        synced = store.create_topic("rate-fsync", durability="fsync")
        batch = [_VALUE] * BATCH_RECORDS

        def singles() -> int:
            for _ in range(BATCH_RECORDS):
                single.append(_VALUE)
            return BATCH_RECORDS

        def one_batch() -> int:
            batches.append_many(batch)
            return BATCH_RECORDS

        def one_synced() -> int:
            synced.append(_VALUE)
            return 1

        def one_table() -> int:
            return int(batches.read_arrow(columns=["offset", "value"]).read_all().num_rows)

        return [
            _rate("append, disk", "the disk is not waited for", singles, store.sync),
            _rate("append_many(1000), disk", "atomic batches", one_batch, store.sync),
            _rate("append, fsync", "one thread, each synced", one_synced),
            _rate("read_arrow", "offset and value columns", one_table),
        ]


def _rate(
    name: str, note: str, step: Callable[[], int], finish: Callable[[], None] | None = None
) -> Rate:
    """Repeat a step, which says how many records it was, until the time is up."""
    records = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < _SECONDS and (finish is None or records < _RECORDS_MAX):
        records += step()
    if finish is not None:
        finish()
    return Rate(name, records, time.perf_counter() - begin, note)


def file_system(path: str) -> str:
    """The kind of file system that holds `path`: on tmpfs, a sync costs nothing."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "an unknown file system"
    best, kind = "", "an unknown file system"
    for line in lines:
        _, mount, type_name, *_ = line.split(" ")
        if len(mount) >= len(best) and os.path.commonpath([mount, path]) == mount:
            best, kind = mount, type_name
    return kind
