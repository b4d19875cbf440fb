"""A store with tables: how the golden one was made, and what is read of it."""

from __future__ import annotations

import json
from typing import Any

from stratalog.format.names import store_path
from stratalog.format.store import StoreFile, encode_store
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.state import table_projection
from stratalog.testing import FakeDisk, ManualClock

ROOT = "/store"
KEYS: list[str | bytes] = [*(f"user {number}" for number in range(40)), "größe", "", b"\xff raw",
                           "counter", "session", "blob", "gone"]  # fmt: skip


def work(store: Store, clock: ManualClock, turn: int) -> None:
    """Entries of every kind: text and bytes, counters, times to live, deletions, large ones."""
    users = store.table("users", versions=3)
    users.put_many({f"user {number}": b"turn %d" % turn for number in range(40)})
    users.put("größe", b"\0\xff" * turn)
    users.put("", b"an empty key")
    users.put(b"\xff raw", b"a key of bytes")
    users.add("counter", 7 - 20 * turn)
    users.put("session", b"soon gone", ttl=30.0)
    users.put("blob", bytes([turn]) * 17_000)
    users.put("gone", b"deleted next")
    users.delete("gone")
    store.table("flags", versions=1).put("dark", b"%d" % turn)
    clock.advance(20.0)
    assert users.expire() == 0


def expected(store: Store) -> dict[str, Any]:
    """Collect what a reader sees."""
    found: dict[str, Any] = {}
    for name in store.tables():
        table = store.table(name)
        found[name] = {
            "versions": table.options.versions,
            "version": table.version,
            "entries": [[repr(key), value.hex()[:80], len(value)] for key, value in table.scan()],
            "history": {
                repr(key): [_shown(entry) for entry in table.history(key)]
                for key in (KEYS if name == "users" else ["dark"])
            },
        }
    return {"now": store.clock.time_ns(), "tables": json.loads(json.dumps(found))}


def _shown(entry: Any) -> list[Any]:
    value = entry.value
    return [None if value is None else value.hex()[:80], *entry[1:]]


def files() -> dict[str, bytes]:
    """The store, and what it must be read as."""
    clock = ManualClock()
    disk = FakeDisk()
    disk.makedirs(ROOT)
    file = disk.open(store_path(ROOT), "create")
    file.pwrite([encode_store(StoreFile(bytes(range(48, 64)), clock.time_ns()))], 0)
    file.fdatasync()
    options = {"shards": 2, "log_file_bytes": 1 << 16, "log_chunk_bytes": 4096}
    store = Store(ROOT, StoreOptions.build(options, {}), fs=disk, clock=clock, background=False)
    before = table_projection._CHANGES_MIN, table_projection._CHUNK_KEYS
    table_projection._CHANGES_MIN, table_projection._CHUNK_KEYS = 8, 16
    try:
        work(store, clock, 0)
        work(store, clock, 1)
        store.snapshot()
    finally:
        table_projection._CHANGES_MIN, table_projection._CHUNK_KEYS = before
    work(store, clock, 2)
    store.sync()
    expectation = expected(store)
    store.is_closed = store._has_let_go = True
    found = {
        path.removeprefix(ROOT + "/"): data.rstrip(b"\0") + bytes(-len(data.rstrip(b"\0")) % 4096)
        if path.endswith(".log")
        else data
        for path, data in disk.image().items()
        if not path.endswith("/lock")
    }
    text = json.dumps(expectation, indent=1, ensure_ascii=False) + "\n"
    return found | {"expected.json": text.encode()}
