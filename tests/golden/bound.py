"""A store of format version 2, as the first release that wrote one makes it.

Its log is bound to the store's identity and to the shard, its segments to the store, and the ends
of its log are written down.
"""

from __future__ import annotations

import json

from stratalog.format.names import store_path
from stratalog.format.store import StoreFile, encode_store
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, ManualClock

ROOT = "/golden"
IDENTITY = bytes(range(64, 80))
OPTIONS = {"shards": 2, "log_file_bytes": 8192, "log_chunk_bytes": 4096}


def work(store: Store) -> dict[str, list[str]]:
    """Records in segments and in the log; returns the values of every topic."""
    values: dict[str, list[str]] = {"orders": [], "refunds": []}
    store.create_topic("orders", segment_records=4)
    store.create_topic("refunds")
    for number in range(10):
        for name, known in values.items():
            known.append(f"{name} {number}")
            store.topic(name).append(known[-1].encode())
    store.snapshot()
    with store.batch() as batch:
        for name, known in values.items():
            known.append(f"{name} in a batch")
            batch.topic(name).append(known[-1].encode())
    return values


def files() -> dict[str, bytes]:
    """The store, and what it must be read as."""
    clock = ManualClock()
    disk = FakeDisk()
    disk.makedirs(ROOT)
    file = disk.open(store_path(ROOT), "create")
    file.pwrite([encode_store(StoreFile(IDENTITY, clock.time_ns(), 2))], 0)
    file.fdatasync()
    store = Store(ROOT, StoreOptions.build(OPTIONS, {}), fs=disk, clock=clock, background=False)
    values = work(store)
    store.close()
    found = {
        path.removeprefix(ROOT + "/"): data
        for path, data in disk.image().items()
        if not path.endswith("/lock")
    }
    plain = {"identity": IDENTITY.hex(), "created_at": ManualClock().time_ns(), "version": 2}
    text = json.dumps({"store": plain, "topics": values}, indent=1) + "\n"
    return found | {"expected.json": text.encode()}
