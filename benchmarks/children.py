"""Workloads that need a separate process: writing until killed, and growing in memory."""

from __future__ import annotations

import json
import os
import signal
import sys

import stratalog
from benchmarks.model import records
from benchmarks.own import LOG_ALONE


def write_and_die(path: str, count: int, batch: int) -> None:
    """Append batches, wait until they are written, and be killed: nothing is closed or synced."""
    topic = stratalog.open(path, durability="disk", **LOG_ALONE).topic("log")
    values = records(batch)
    for _ in range(count // batch):
        topic.append_many(values)
    len(topic)
    os.kill(os.getpid(), signal.SIGKILL)


def grow(path: str, count: int, batch: int, steps: int) -> None:
    """Append batches and print, as JSON, how much memory the process had after each step."""
    values = records(batch)
    with stratalog.open(path, durability="disk") as store:
        topic = store.topic("log")
        resident = {0: resident_bytes()}
        for _ in range(steps):
            for _ in range(count // steps // batch):
                topic.append_many(values)
            resident[len(topic)] = resident_bytes()
    print(json.dumps(resident))


def look(path: str) -> None:
    """Open a store, scan all of it, and print, as JSON, how much memory the process has."""
    found = {"before_bytes": resident_bytes()}
    with stratalog.open(path) as store:
        found["opened_bytes"] = resident_bytes()
        count = 0
        for name in store.topics():
            for batch in store.topic(name).read_arrow():
                count += batch.num_rows
        found["scanned_bytes"] = resident_bytes()
        found["scanned_records"] = count
    found["peak_bytes"] = peak_bytes()
    print(json.dumps(found))


def resident_bytes() -> int:
    """Memory of this process that is really there."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """The most there ever was. Not of `getrusage`: that has the parent's in it."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    action, directory, *numbers = sys.argv[1:]
    if action == "resident":
        look(directory)
    elif action == "grow":
        grow(directory, *map(int, numbers))
    else:
        write_and_die(directory, *map(int, numbers))
