"""Rivals, each by the fastest way its documentation gives for the durability that is compared.

Every store gets a rising integer key and the record as its value. What a scan returns is the
nearest thing to a list of payloads.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count as counter
from typing import Any

from benchmarks.model import Trial, records, rival

_MAP_BYTES = 4 << 30  # address space, not disk: lmdb has to know the largest size it may reach
_LOAD_BATCH = 1000

_key = struct.Struct(">Q").pack  # big endian, so that keys sort by number


def repeat(append: Callable[[bytes], object], count: int) -> Trial:
    """A trial that appends records one by one."""
    values = records(count)

    def work() -> int:
        for value in values:
            append(value)
        return count

    return Trial(work)


def _batches(append: Callable[[list[bytes]], object], batch: int, count: int) -> Trial:
    values = records(batch)

    def work() -> int:
        for _ in range(count // batch):
            append(values)
        return count

    return Trial(work)


# --- sqlite3: write-ahead log, an implicit rowid, prepared statements (the module caches them) ---


@contextmanager
def _sqlite(directory: str, synchronous: str) -> Iterator[sqlite3.Connection]:
    path = os.path.join(directory, "log.sqlite")
    # isolation_level=None is autocommit: a statement alone is a transaction, without BEGIN's cost.
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, value BLOB)")
        yield connection


def _sqlite_insert(connection: sqlite3.Connection, values: list[bytes]) -> None:
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO log (value) VALUES (?)", zip(values))
    connection.execute("COMMIT")


@contextmanager
def sqlite_one(directory: str, *, synchronous: str, count: int) -> Iterator[Trial]:
    """One INSERT per transaction. FULL syncs each commit, NORMAL at checkpoints, OFF never."""
    with _sqlite(directory, synchronous) as connection:
        execute = connection.execute
        yield repeat(lambda value: execute("INSERT INTO log (value) VALUES (?)", (value,)), count)


@contextmanager
def sqlite_gathered(directory: str, *, per_commit: int, count: int) -> Iterator[Trial]:
    """One INSERT at a time into a transaction that is committed every so many."""
    values = records(count)
    with _sqlite(directory, "OFF") as connection:
        execute = connection.execute

        def work() -> int:
            for start in range(0, count, per_commit):
                execute("BEGIN")
                for value in values[start : start + per_commit]:
                    execute("INSERT INTO log (value) VALUES (?)", (value,))
                execute("COMMIT")
            return count

        yield Trial(work)


@contextmanager
def sqlite_many(directory: str, *, synchronous: str, batch: int, count: int) -> Iterator[Trial]:
    """`executemany` in one transaction per batch."""
    with _sqlite(directory, synchronous) as connection:
        yield _batches(lambda values: _sqlite_insert(connection, values), batch, count)


@contextmanager
def sqlite_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """`fetchall` in key order."""
    with _sqlite(directory, "OFF") as connection:
        _sqlite_insert(connection, records(count))
        scan = "SELECT value FROM log ORDER BY id"
        yield Trial(lambda: len(connection.execute(scan).fetchall()))


# --- lmdb: append=True skips the search for the place, as keys only rise -------------------------


@contextmanager
def _lmdb(directory: str, *, sync: bool) -> Iterator[Any]:
    # A writable map needs neither copies nor write calls; with sync on it is no faster, and
    # loses protection, so there it stays off as by default.
    environment = rival("lmdb").open(
        directory, map_size=_MAP_BYTES, sync=sync, metasync=sync, writemap=not sync
    )
    with closing(environment):
        yield environment


def _lmdb_put(environment: Any, keys: Iterator[int], values: list[bytes]) -> None:
    with environment.begin(write=True) as transaction:
        items = [(_key(next(keys)), value) for value in values]
        transaction.cursor().putmulti(items, append=True)


@contextmanager
def lmdb_one(directory: str, *, sync: bool, count: int) -> Iterator[Trial]:
    """One put per transaction."""
    keys = counter()
    with _lmdb(directory, sync=sync) as environment:

        def append(value: bytes) -> None:
            with environment.begin(write=True) as transaction:
                transaction.put(_key(next(keys)), value, append=True)

        yield repeat(append, count)


@contextmanager
def lmdb_gathered(directory: str, *, per_commit: int, count: int) -> Iterator[Trial]:
    """One put at a time into a transaction that is committed every so many."""
    values = records(count)
    keys = counter()
    with _lmdb(directory, sync=False) as environment:

        def work() -> int:
            for start in range(0, count, per_commit):
                with environment.begin(write=True) as transaction:
                    put = transaction.put
                    for value in values[start : start + per_commit]:
                        put(_key(next(keys)), value, append=True)
            return count

        yield Trial(work)


@contextmanager
def lmdb_many(directory: str, *, sync: bool, batch: int, count: int) -> Iterator[Trial]:
    """`putmulti` in one transaction per batch."""
    keys = counter()
    with _lmdb(directory, sync=sync) as environment:
        yield _batches(lambda values: _lmdb_put(environment, keys, values), batch, count)


@contextmanager
def lmdb_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """A cursor over values alone, copied out as `bytes`."""
    with _lmdb(directory, sync=False) as environment:
        _lmdb_put(environment, counter(), records(count))

        def work() -> int:
            with environment.begin() as transaction:
                return len(list(transaction.cursor().iternext(keys=False, values=True)))

        yield Trial(work)


# --- rocksdict: raw mode (bytes in, bytes out, nothing pickled), the write-ahead log on ----------


@contextmanager
def _rocksdict(directory: str, *, sync: bool) -> Iterator[tuple[Any, Any]]:
    module = rival("rocksdict")
    write_options = module.WriteOptions()
    write_options.sync = sync
    database = module.Rdict(directory, module.Options(raw_mode=True))
    with closing(database):
        database.set_write_options(write_options)
        yield database, module


def _rocksdict_put(database: Any, module: Any, keys: Iterator[int], values: list[bytes]) -> None:
    batch = module.WriteBatch(raw_mode=True)
    put = batch.put
    for value in values:
        put(_key(next(keys)), value)
    database.write(batch)


@contextmanager
def rocksdict_one(directory: str, *, sync: bool, count: int) -> Iterator[Trial]:
    """One put at a time, with `WriteOptions.sync` or without."""
    keys = counter()
    with _rocksdict(directory, sync=sync) as (database, _):
        put = database.put
        yield repeat(lambda value: put(_key(next(keys)), value), count)


@contextmanager
def rocksdict_many(directory: str, *, sync: bool, batch: int, count: int) -> Iterator[Trial]:
    """One `WriteBatch` per batch."""
    keys = counter()
    with _rocksdict(directory, sync=sync) as (database, module):
        yield _batches(lambda values: _rocksdict_put(database, module, keys, values), batch, count)


@contextmanager
def rocksdict_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """The iterator over values, on tables that were flushed and compacted before."""
    keys = counter()
    with _rocksdict(directory, sync=False) as (database, module):
        for _ in range(count // _LOAD_BATCH):
            _rocksdict_put(database, module, keys, records(_LOAD_BATCH))
        database.flush()
        database.compact_range(None, None)
        yield Trial(lambda: len(list(database.values())))
