"""A store with cold segments: how the golden one was made, and what is read of it."""

from __future__ import annotations

import json
from typing import Any

from stratalog.format.names import store_path
from stratalog.format.store import StoreFile, encode_store
from stratalog.handles.store import Store
from stratalog.model import Gap
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, ManualClock

ROOT = "/golden/data"
COLD = "/golden/cold"


def expected(store: Store) -> dict[str, Any]:
    """Read the store, topic by topic."""
    return {
        name: [
            [item.first, item.last, item.reason] if isinstance(item, Gap)
            else [item.offset, (item.value or b"").decode()]
            for item in store.topic(name).read()
        ]
        for name in store.topics()
    }  # fmt: skip


def files() -> dict[str, bytes]:
    """The store, its cold store beside it, and what it must be read as."""
    clock = ManualClock()
    disk = FakeDisk()
    disk.makedirs(ROOT)
    file = disk.open(store_path(ROOT), "create")
    file.pwrite([encode_store(StoreFile(bytes(range(32, 48)), clock.time_ns()))], 0)
    file.fdatasync()
    options = {"shards": 1, "log_file_bytes": 8192, "log_chunk_bytes": 4096, "hot_segments": 1}
    store = Store(
        ROOT, StoreOptions.build({**options, "cold": COLD}, {}), fs=disk, clock=clock,
        background=False,
    )  # fmt: skip
    kept = store.create_topic("kept", segment_records=5)
    evicted = store.create_topic("evicted", segment_records=5, retention_records=12)
    for turn in range(4):
        for topic in (kept, evicted):
            topic.append_many([b"%d-%d" % (turn, number) for number in range(5)])
        clock.advance(10.0)
        store.checkpoint()
        if turn == 2:
            kept.delete(offsets=[3])
            store.compact()
    store.compact()
    evicted.append(b"newest")
    store.sync()
    expectation = expected(store)
    store.is_closed = store._has_let_go = True
    found = {
        path.removeprefix("/golden/"): data.rstrip(b"\0") + bytes(-len(data.rstrip(b"\0")) % 4096)
        if path.endswith(".log")
        else data
        for path, data in disk.image().items()
        if not path.endswith("/lock")
    }
    text = json.dumps(expectation, indent=1, ensure_ascii=False) + "\n"
    return found | {"expected.json": text.encode()}
