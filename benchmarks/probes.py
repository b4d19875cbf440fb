"""Quantities that are counted instead of timed: bytes on disk, bytes of memory."""

from __future__ import annotations

import json
import os
from typing import Any

import stratalog
from benchmarks.model import records
from benchmarks.own import child

_SPACE_RECORDS = 1_000_000
_BATCH = 1000
_MEMORY_STEPS = 20


def space(directory: str) -> dict[str, Any]:
    """A million records in batches of 1000: bytes per record, of frames and of whole files."""
    path = os.path.join(directory, "store")
    values = records(_BATCH)
    with stratalog.open(path, durability="disk") as store:
        topic = store.topic("log")
        for _ in range(_SPACE_RECORDS // _BATCH):
            topic.append_many(values)
        frames = topic.stats().bytes
    sizes = [
        os.stat(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    ]  # fmt: skip
    return {
        "records": _SPACE_RECORDS,
        "frame_bytes_per_record": frames / _SPACE_RECORDS,
        "file_bytes_per_record": sum(size.st_size for size in sizes) / _SPACE_RECORDS,
        "allocated_bytes_per_record": sum(s.st_blocks * 512 for s in sizes) / _SPACE_RECORDS,
        "files": len(sizes),
    }


def memory(count: int, directory: str) -> dict[str, Any]:
    """Resident memory of a child that appends batches of 1000, by records appended.

    The growth counts from a tenth on: by then every buffer, thread and lazy import is there.
    """
    path = os.path.join(directory, "store")
    finished = child("grow", path, str(count), str(_BATCH), str(_MEMORY_STEPS))
    if finished.returncode:
        raise RuntimeError(f"the child that measures memory failed:\n{finished.stderr}")
    resident = {int(number): value for number, value in json.loads(finished.stdout).items()}
    numbers = sorted(resident)
    settled = next(number for number in numbers if number >= count // 10)
    return {
        "records": numbers,
        "resident_bytes": [resident[number] for number in numbers],
        "growth_bytes": max(resident[n] for n in numbers if n > settled) - resident[settled],
    }
