"""The limits of the machine when nothing is in the way: the floor under every other number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import xxhash

import stratalog
from benchmarks.model import RECORD_BYTES, Trial, records

# Room for every synced write of a run, and wrapped around if it should not do.
_WRITTEN_BYTES = 16 << 20
_READ_BYTES = 1 << 20


@contextmanager
def _file(directory: str) -> Iterator[int]:
    fd = os.open(os.path.join(directory, "file"), os.O_RDWR | os.O_CREAT)
    try:
        yield fd
    finally:
        os.close(fd)


def frame_bytes(directory: str) -> int:
    """How many bytes Stratalog writes for one record appended alone."""
    with stratalog.open(os.path.join(directory, "measure")) as store:
        topic = store.topic("log")
        topic.append(records(1)[0])
        return topic.stats().bytes


@contextmanager
def synced_write(directory: str, *, is_growing: bool, count: int) -> Iterator[Trial]:
    """`pwrite` and `fdatasync` of what Stratalog writes, into a written file or at its end.

    At the end the file system also has to allocate a block and commit its journal.
    """
    data = os.urandom(frame_bytes(directory))
    position = 0
    with _file(directory) as fd:
        if not is_growing:
            os.pwrite(fd, bytes(_WRITTEN_BYTES), 0)
            os.fsync(fd)

        def work() -> int:
            nonlocal position
            for _ in range(count):
                os.pwrite(fd, data, position)
                os.fdatasync(fd)
                position += len(data)
                if not is_growing and position + len(data) > _WRITTEN_BYTES:
                    position = 0
            return count

        yield Trial(work)


@contextmanager
def plain_write(directory: str, *, count: int) -> Iterator[Trial]:
    """One `os.write` per record, never synced."""
    values = records(count)
    with _file(directory) as fd:

        def work() -> int:
            for value in values:
                os.write(fd, value)
            return count

        yield Trial(work, lambda: os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_SET)))


@contextmanager
def buffered_write(directory: str, *, count: int) -> Iterator[Trial]:
    """Python's own buffered file, 100 KiB at a time: nothing but the bytes, one after the other."""
    values = records(count)
    with open(os.path.join(directory, "file"), "wb", buffering=100 << 10) as file:

        def work() -> int:
            for value in values:
                file.write(value)
            file.flush()
            return count

        yield Trial(work, lambda: file.truncate(file.seek(0)))


@contextmanager
def join(directory: str, *, batch: int, count: int) -> Iterator[Trial]:
    """Copying the records of a batch into one `bytes`, and nothing else: no file at all."""
    values = records(batch)

    def work() -> int:
        for _ in range(count // batch):
            b"".join(values)
        return count

    yield Trial(work)


@contextmanager
def join_and_write(directory: str, *, batch: int, count: int) -> Iterator[Trial]:
    """Copying the records of a batch into one `bytes`, and one `os.write` of that."""
    values = records(batch)
    with _file(directory) as fd:

        def work() -> int:
            for _ in range(count // batch):
                os.write(fd, b"".join(values))
            return count

        yield Trial(work, lambda: os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_SET)))


@contextmanager
def read_and_hash(directory: str, *, count: int) -> Iterator[Trial]:
    """`pread` of the same payload bytes, a megabyte at a time, and XXH3 over each."""
    total = count * RECORD_BYTES
    with _file(directory) as fd:
        os.pwrite(fd, b"".join(records(count)), 0)

        def work() -> int:
            for position in range(0, total, _READ_BYTES):
                xxhash.xxh3_64_intdigest(os.pread(fd, _READ_BYTES, position))
            return count

        yield Trial(work)


@contextmanager
def cut_payloads(directory: str, *, count: int) -> Iterator[Trial]:
    """Cutting payloads out of bytes in memory into a list: what Python itself takes for that."""
    data = b"".join(records(1000))
    starts = range(0, len(data), RECORD_BYTES)

    def work() -> int:
        values: list[bytes] = []
        for _ in range(count // len(starts)):
            values += [data[start : start + RECORD_BYTES] for start in starts]
        return len(values)

    yield Trial(work)
