"""The machine's side of every number: processor, kernel, file system, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
from typing import Any

_PACKAGES = (
    "stratalog", "numpy", "pyarrow", "xxhash", "diskcache", "litequeue", "lmdb", "persist-queue",
    "rocksdict",
)  # fmt: skip


def facts(scratch: str) -> dict[str, Any]:
    """Collect the facts a reader needs to judge the numbers; nothing that names the machine."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(scratch),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {"sqlite": sqlite3.sqlite_version, **_versions()},
    }


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(path: str) -> str:
    """Type and options of the mount that holds a path: the longest mount point above it."""
    path = os.path.realpath(path)
    best, found = "", "unknown"
    with open("/proc/self/mounts") as file:
        for line in file:
            _, point, kind, options, *_ = line.split()
            above = point.rstrip("/") + "/"
            if (path + "/").startswith(above) and len(above) >= len(best):
                best, found = above, f"{kind} ({options})"
    return found


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
