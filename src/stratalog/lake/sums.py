"""Checksums of a lake's Parquet files on local disks, in the file where Hadoop looks for them.

Spark opens a file anew for every task, and takes what it finds: one that was replaced by another
Parquet file, or whose bytes have changed, would silently change a result. Its file system for local
disks verifies whatever it reads, if there is a file `.<name>.crc` beside it: then such a file is an
error. Object stores have no such thing.

The file is Hadoop's, big-endian: `crc` and a zero byte, how many bytes each checksum is of (u32),
and the CRC-32 of every so many bytes of the file (u32 each).
"""

from __future__ import annotations

import struct
from zlib import crc32

# Large enough that the file is small, and small enough that reading a page verifies little more.
SUM_BYTES = 64 << 10

_PREFIX = "."
_SUFFIX = ".crc"


def sums_name(name: str) -> str:
    """The name of the checksums of a file in the lake."""
    directory, _, file = name.partition("/")
    return f"{directory}/{_PREFIX}{file}{_SUFFIX}"


def summed_name(name: str) -> str:
    """The name of the file whose checksums have this name; the name itself if they are no sums."""
    directory, _, file = name.partition("/")
    if file.startswith(_PREFIX) and file.endswith(_SUFFIX):
        return f"{directory}/{file[len(_PREFIX) : -len(_SUFFIX)]}"
    return name


def encode_sums(data: memoryview) -> bytes:
    """The checksums of a file."""
    sums = [
        crc32(data[start : start + SUM_BYTES]) for start in range(0, len(data), SUM_BYTES)
    ]  # fmt: skip
    return struct.pack(f">4sI{len(sums)}I", b"crc\0", SUM_BYTES, *sums)
