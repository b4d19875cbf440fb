"""Verify: every checksum, every order and every reference of a directory, without touching it.

Takes no lock and works beside a live writer. What such a writer changes while one looks can seem to
be damage: what was found is looked for again, and only what is found every time is told.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from stratalog.arguments import check_path
from stratalog.errors import StorageError
from stratalog.format.names import (
    log_path,
    parse_shard,
    parse_topic,
    snapshots_path,
    topics_path,
)
from stratalog.fs import FileSystem, PosixFileSystem
from stratalog.fs.cold import ColdStore, open_cold
from stratalog.fs.os_errors import out_of_memory
from stratalog.tools.audit import Audit, audit
from stratalog.tools.checks import Checker, LocalChecker
from stratalog.tools.cold import ColdDepth, check_depth, look_at_cold
from stratalog.tools.report import Problem, Progress, Report, Tally

MakeChecker = Callable[[FileSystem, Tally], Checker]
"""Makes what reads for one look at a directory."""

# A live writer moves a file now and then, not every time one looks.
_ATTEMPTS_MAX = 8

# How often what was found is looked for once more, beside a writer that goes on.
_LOOKS_MAX = 4


def verify(
    path: str | os.PathLike[str],
    *,
    cold: str | None = None,
    cold_depth: ColdDepth = "contents",
    progress: Progress | None = None,
    fs: FileSystem | None = None,
    make_checker: MakeChecker = LocalChecker,
) -> Report:
    """Check a store from the first byte to the last; changes nothing, and needs no lock.

    `cold` is where its cold segments are; without it they are reported as unchecked. All of each
    is read, unless `cold_depth="sizes"` says that names and sizes will do.
    `progress` is called with bytes done, bytes in all, and what is being read. `make_checker`
    says who does the reading.
    Raises `NotAStoreError` if there is no store, and `UnsupportedVersionError` if it is too new.
    """
    begin = time.perf_counter()
    root = os.path.abspath(check_path(path))
    files = PosixFileSystem() if fs is None else fs
    check_depth(cold_depth)
    store = None if cold is None else open_cold(cold, files)
    try:
        found, problems = _confirmed(
            lambda: _look(files, root, store, cold_depth, progress, make_checker)
        )
    except MemoryError as error:
        raise out_of_memory("verify", root) from error
    finally:
        if store is not None:
            store.close()
    return Report(
        path=root,
        ok=not problems,
        problems=problems,
        notes=found.notes,
        counts=found.tally.counts(),
        duration=time.perf_counter() - begin,
    )


def _confirmed(look: Callable[[], Audit]) -> tuple[Audit, list[Problem]]:
    """Return the problems that are found again and again while a writer goes on beside us."""
    found = look()
    suspects = {_key(problem) for problem in found.problems}
    for _ in range(_LOOKS_MAX):
        if not suspects:
            break
        before, found = found, look()
        suspects &= {_key(problem) for problem in found.problems}
        if _end(found) == _end(before):
            break
    return found, [problem for problem in found.problems if _key(problem) in suspects]


def _end(found: Audit) -> list[tuple[int, int]]:
    """Where the log ended: a writer has moved it."""
    return [(scanner.first_lsn, scanner.position) for scanner in found.replay.scanners.values()]


def _key(problem: Problem) -> tuple[object, ...]:
    return (problem.kind, problem.path, problem.position, problem.topic, problem.first_offset)


def _look(
    fs: FileSystem,
    root: str,
    cold: ColdStore | None,
    cold_depth: ColdDepth,
    progress: Progress | None,
    make_checker: MakeChecker,
) -> Audit:
    for attempt in range(_ATTEMPTS_MAX):
        tally = Tally(progress, estimate(fs, root))
        try:
            found = audit(fs, root, tally, make_checker(fs, tally))
            break
        except FileNotFoundError as error:
            if attempt + 1 == _ATTEMPTS_MAX:
                raise StorageError(
                    f"{error.filename or root} vanished while it was read, again and again: the "
                    "writer beside is too busy, try again later"
                ) from error
    look_at_cold(found, cold, cold_depth)
    return found


def estimate(fs: FileSystem, root: str) -> int:
    """About how many bytes there are to look at."""
    total = 0
    for path in _files(fs, root):
        try:
            file = fs.open(path, "read")
        except OSError:
            continue
        total += file.size()
        file.close()
    return total


def _files(fs: FileSystem, root: str) -> Iterator[str]:
    shards = [n for n in fs.listdir(log_path(root)) if parse_shard(n) is not None]
    topics = [n for n in fs.listdir(topics_path(root)) if parse_topic(n) is not None]
    directories = [os.path.join(log_path(root), name) for name in shards]
    directories += [os.path.join(topics_path(root), name) for name in topics]
    for directory in [*directories, snapshots_path(root)]:
        for name in fs.listdir(directory):
            if name.endswith((".log", ".seg", ".open", ".snap")):
                yield os.path.join(directory, name)
