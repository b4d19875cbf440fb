"""Tables beside stores of keys and values: put, get, compare-and-set and ordered scans.

All contestants have the same text keys, in a random order, and the same values; none waits for the
disk. A table keeps eight versions of a key, which the others do not.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import stratalog
from benchmarks.model import RECORD_BYTES, SEED, Trial, records, rival
from benchmarks.own import LOG_ALONE
from stratalog import Store, Table

_MAP_BYTES = 4 << 30
_LOAD_BATCH = 1000
_SNAPSHOT_APPENDS = 20_000


def names(count: int) -> list[str]:
    """That many keys, in a random order that is the same in every run."""
    found = [f"user:{number:08d}" for number in range(count)]
    random.Random(SEED).shuffle(found)
    return found


def _each(put: Callable[[str, bytes], object], count: int, finish: Callable[[], object]) -> Trial:
    pairs = list(zip(names(count), records(count), strict=True))

    def work() -> int:
        for key, value in pairs:
            put(key, value)
        finish()
        return count

    return Trial(work)


def _chunks(put: Callable[[dict[str, bytes]], object], count: int, batch: int) -> Trial:
    keys, values = names(count), records(batch)
    chunks = [
        dict(zip(keys[start : start + batch], values, strict=True))
        for start in range(0, count, batch)
    ]

    def work() -> int:
        for chunk in chunks:
            put(chunk)
        return count

    return Trial(work)


def _gets(get: Callable[[str], bytes | None], count: int) -> Trial:
    keys = names(count)

    def work() -> int:
        for key in keys:
            get(key)
        return count

    return Trial(work)


# --- stratalog ---------------------------------------------------------------------------


@contextmanager
def _table(directory: str) -> Iterator[tuple[Store, Table]]:
    with stratalog.open(directory, durability="disk", **LOG_ALONE) as store:
        yield store, store.table("users")


def _fill(table: Table, count: int) -> None:
    keys = names(count)
    for start in range(0, count, _LOAD_BATCH):
        chunk = keys[start : start + _LOAD_BATCH]
        table.put_many(dict(zip(chunk, records(len(chunk)), strict=True)))
    assert len(table) == count


@contextmanager
def put(directory: str, *, count: int) -> Iterator[Trial]:
    """`put`, up to the moment when all of it can be read."""
    with _table(directory) as (_, table):
        yield _each(table.put, count, lambda: table.version)


@contextmanager
def put_many(directory: str, *, batch: int, count: int) -> Iterator[Trial]:
    """`put_many`."""
    with _table(directory) as (_, table):
        yield _chunks(table.put_many, count, batch)


@contextmanager
def put_if_version(directory: str, *, count: int) -> Iterator[Trial]:
    """`put` on the condition that the key has the version that the last put returned."""
    with _table(directory) as (_, table):
        value = records(1)[0]
        versions = {key: table.put(key, value) for key in names(count)}

        def work() -> int:
            put = table.put
            for key, version in versions.items():
                versions[key] = put(key, value, if_version=version)
            return count

        yield Trial(work)


@contextmanager
def get(directory: str, *, count: int) -> Iterator[Trial]:
    """`get`."""
    with _table(directory) as (_, table):
        _fill(table, count)
        yield _gets(table.get, count)


@contextmanager
def scan(directory: str, *, count: int) -> Iterator[Trial]:
    """`scan`, with keys that were brought into order before."""
    with _table(directory) as (_, table):
        _fill(table, count)
        yield Trial(lambda: sum(1 for _ in table.scan()))


# --- sqlite3 -----------------------------------------------------------------------------


@contextmanager
def _sqlite(directory: str, count: int = 0) -> Iterator[sqlite3.Connection]:
    path = os.path.join(directory, "table.sqlite")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE t (key TEXT PRIMARY KEY, value BLOB) WITHOUT ROWID")
        if count:
            _sqlite_put(connection, dict(zip(names(count), records(count), strict=True)))
        yield connection


def _sqlite_put(connection: sqlite3.Connection, entries: dict[str, bytes]) -> None:
    connection.execute("BEGIN")
    connection.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", entries.items())
    connection.execute("COMMIT")


@contextmanager
def sqlite_put(directory: str, *, count: int) -> Iterator[Trial]:
    """One INSERT OR REPLACE per transaction, synchronous=OFF."""
    with _sqlite(directory) as connection:
        execute = connection.execute
        statement = "INSERT OR REPLACE INTO t VALUES (?, ?)"
        yield _each(lambda key, value: execute(statement, (key, value)), count, lambda: None)


@contextmanager
def sqlite_put_many(directory: str, *, batch: int, count: int) -> Iterator[Trial]:
    """`executemany` in one transaction per batch, synchronous=OFF."""
    with _sqlite(directory) as connection:
        yield _chunks(lambda entries: _sqlite_put(connection, entries), count, batch)


@contextmanager
def sqlite_get(directory: str, *, count: int) -> Iterator[Trial]:
    """One SELECT per key."""
    with _sqlite(directory, count) as connection:
        execute = connection.execute
        statement = "SELECT value FROM t WHERE key = ?"
        yield _gets(lambda key: execute(statement, (key,)).fetchone()[0], count)


@contextmanager
def sqlite_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """One SELECT in key order."""
    with _sqlite(directory, count) as connection:
        statement = "SELECT key, value FROM t ORDER BY key"
        yield Trial(lambda: sum(1 for _ in connection.execute(statement)))


# --- lmdb --------------------------------------------------------------------------------


@contextmanager
def _lmdb(directory: str, count: int = 0) -> Iterator[Any]:
    environment = rival("lmdb").open(
        directory, map_size=_MAP_BYTES, sync=False, metasync=False, writemap=True
    )
    with closing(environment):
        if count:
            _lmdb_put(environment, dict(zip(names(count), records(count), strict=True)))
        yield environment


def _lmdb_put(environment: Any, entries: dict[str, bytes]) -> None:
    with environment.begin(write=True) as transaction:
        transaction.cursor().putmulti([(key.encode(), value) for key, value in entries.items()])


@contextmanager
def lmdb_put(directory: str, *, count: int) -> Iterator[Trial]:
    """One put per transaction, not synced."""
    with _lmdb(directory) as environment:

        def put(key: str, value: bytes) -> None:
            with environment.begin(write=True) as transaction:
                transaction.put(key.encode(), value)

        yield _each(put, count, lambda: None)


@contextmanager
def lmdb_put_many(directory: str, *, batch: int, count: int) -> Iterator[Trial]:
    """`putmulti` in one transaction per batch, not synced."""
    with _lmdb(directory) as environment:
        yield _chunks(lambda entries: _lmdb_put(environment, entries), count, batch)


@contextmanager
def lmdb_get(directory: str, *, count: int) -> Iterator[Trial]:
    """One get per transaction, as values of one moment would need."""
    with _lmdb(directory, count) as environment:

        def get(key: str) -> bytes | None:
            with environment.begin() as transaction:
                found: bytes | None = transaction.get(key.encode())
                return found

        yield _gets(get, count)


@contextmanager
def lmdb_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """A cursor over keys and values, copied out, keys as text."""
    with _lmdb(directory, count) as environment:

        def work() -> int:
            with environment.begin() as transaction:
                return sum(1 for key, _ in transaction.cursor() if key.decode())

        yield Trial(work)


# --- rocksdict: raw mode, the write-ahead log on ------------------------------------------


@contextmanager
def _rocksdict(directory: str, count: int = 0) -> Iterator[tuple[Any, Any]]:
    module = rival("rocksdict")
    database = module.Rdict(directory, module.Options(raw_mode=True))
    with closing(database):
        if count:
            _rocksdict_put(database, module, dict(zip(names(count), records(count), strict=True)))
            database.flush()
            database.compact_range(None, None)
        yield database, module


def _rocksdict_put(database: Any, module: Any, entries: dict[str, bytes]) -> None:
    batch = module.WriteBatch(raw_mode=True)
    for key, value in entries.items():
        batch.put(key.encode(), value)
    database.write(batch)


@contextmanager
def rocksdict_put(directory: str, *, count: int) -> Iterator[Trial]:
    """One put at a time."""
    with _rocksdict(directory) as (database, _):
        put = database.put
        yield _each(lambda key, value: put(key.encode(), value), count, lambda: None)


@contextmanager
def rocksdict_put_many(directory: str, *, batch: int, count: int) -> Iterator[Trial]:
    """One `WriteBatch` per batch."""
    with _rocksdict(directory) as (database, module):
        yield _chunks(lambda entries: _rocksdict_put(database, module, entries), count, batch)


@contextmanager
def rocksdict_get(directory: str, *, count: int) -> Iterator[Trial]:
    """One get at a time."""
    with _rocksdict(directory, count) as (database, _):
        get = database.get
        yield _gets(lambda key: get(key.encode()), count)


@contextmanager
def rocksdict_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """The iterator over items, keys as text."""
    with _rocksdict(directory, count) as (database, _):
        yield Trial(lambda: sum(1 for key, _ in database.items() if key.decode()))


# --- diskcache ---------------------------------------------------------------------------


@contextmanager
def _diskcache(directory: str, count: int = 0) -> Iterator[Any]:
    cache = rival("diskcache").Cache(
        directory, size_limit=1 << 40, cull_limit=0, eviction_policy="none"
    )
    with closing(cache):
        if count:
            _diskcache_put(cache, dict(zip(names(count), records(count), strict=True)))
        yield cache


def _diskcache_put(cache: Any, entries: dict[str, bytes]) -> None:
    with cache.transact():
        for key, value in entries.items():
            cache.set(key, value)


@contextmanager
def diskcache_put(directory: str, *, count: int) -> Iterator[Trial]:
    """`set`; synchronous=NORMAL by default, so no commit is synced."""
    with _diskcache(directory) as cache:
        yield _each(cache.set, count, lambda: None)


@contextmanager
def diskcache_put_many(directory: str, *, batch: int, count: int) -> Iterator[Trial]:
    """`set` in one transaction per batch."""
    with _diskcache(directory) as cache:
        yield _chunks(lambda entries: _diskcache_put(cache, entries), count, batch)


@contextmanager
def diskcache_get(directory: str, *, count: int) -> Iterator[Trial]:
    """`get`."""
    with _diskcache(directory, count) as cache:
        yield _gets(cache.get, count)


@contextmanager
def diskcache_scan(directory: str, *, count: int) -> Iterator[Trial]:
    """`iterkeys`, which is in order, and a `get` of each."""
    with _diskcache(directory, count) as cache:
        yield Trial(lambda: sum(1 for key in cache.iterkeys() if cache.get(key)))


# --- a large table -----------------------------------------------------------------------


def large(directory: str, *, count: int) -> dict[str, Any]:
    """Memory of a key, how long a large table takes to open, and appends beside its snapshot."""
    facts: dict[str, Any] = {"keys": count, "value_bytes": RECORD_BYTES}
    path = os.path.join(directory, "store")
    with stratalog.open(path, durability="disk") as store:
        table = store.table("users")
        _fill(table, count)
        facts["snapshot_wait_ms"] = _beside_snapshot(store)
    facts["key_bytes"] = _key_bytes(path, count)
    for name, is_killed in (("closed", False), ("killed", True)):
        if is_killed:
            _change_and_die(path)
        begin = time.perf_counter()
        with stratalog.open(path, durability="disk") as store:
            facts[f"{name}_open_ms"] = (time.perf_counter() - begin) * 1e3
            begin = time.perf_counter()
            assert store.table("users").get("user:00000000") is not None
            facts[f"{name}_first_use_ms"] = (time.perf_counter() - begin) * 1e3
    return facts


def _beside_snapshot(store: Store) -> float:
    """The longest of many appends while a snapshot is made, in milliseconds."""
    topic = store.topic("beside")
    value = records(1)[0]
    snapshot = threading.Thread(target=store.snapshot)
    taken: list[float] = []
    snapshot.start()
    while snapshot.is_alive() or len(taken) < _SNAPSHOT_APPENDS:
        begin = time.perf_counter()
        topic.append(value)
        taken.append(time.perf_counter() - begin)
        time.sleep(0.0001)
    snapshot.join()
    return max(taken) * 1e3


def _change_and_die(path: str) -> None:
    """Put some keys in another process, which is killed."""
    code = (
        "import os, signal, sys, stratalog\n"
        "table = stratalog.open(sys.argv[1], durability='disk').table('users')\n"
        "for number in range(50_000):\n"
        "    table.put(f'user:{number:08d}', b'x' * 100)\n"
        "table.version\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, path], check=False)
    assert done.returncode == -signal.SIGKILL, done.returncode


def _key_bytes(path: str, count: int) -> float:
    """Bytes of memory for each key, besides the bytes of key and value."""
    with stratalog.open(path, read_only=True) as store:
        table = store.table("users")
        tracemalloc.start()
        assert table.get("user:00000000") is not None
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return used / count - RECORD_BYTES - len("user:00000000")
