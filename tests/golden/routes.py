"""A store with routes: how the golden one was made, and what is read of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from stratalog.format.names import store_path
from stratalog.format.store import StoreFile, encode_store
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, ManualClock

ROOT = "/store"


def work(store: Store, clock: ManualClock, turn: int) -> None:
    """Something of everything."""
    orders = store.topic("orders")
    orders.append_many([
        Record(b"%d-%d" % (turn, n), b"key-%d" % n, {"n": b"%d" % n}, f"eu-{n % 2}", "nürnberg")
        for n in range(4)
    ])  # fmt: skip
    routes = [
        store.route("orders", "all"),
        store.route("all", "some", tag_glob="eu-1", key_prefix=b"key-", node="nürnberg"),
        store.route("orders", "lost"),
    ]
    if turn:
        routes[0].resume()
        store.drop_topic("lost")
        store.route("orders", "gone").drop()
    store.sync()
    assert store._upkeep is not None
    store._upkeep.forwarder.run()
    clock.advance(1.0)
    if not turn:
        routes[0].pause()
    orders.append(b"not forwarded yet")


def expected(store: Store) -> dict[str, Any]:
    """Collect what a reader sees."""
    return {
        "now": store.clock.time_ns(),
        "routes": [msgspec.to_builtins(route.stats()) for route in store.routes()],
        "topics": {
            name: [[r.offset, (r.value or b"").decode(), r.timestamp]
                   for r in store.topic(name).read() if isinstance(r, Record)]
            for name in store.topics()
        },
    }  # fmt: skip


def make_files(
    identity: bytes,
    work: Callable[[Store, ManualClock, int], None],
    expected: Callable[[Store], dict[str, Any]],
) -> dict[str, bytes]:
    """A store in which work was done before and after a snapshot, and what it must be read as."""
    clock = ManualClock()
    disk = FakeDisk()
    disk.makedirs(ROOT)
    file = disk.open(store_path(ROOT), "create")
    file.pwrite([encode_store(StoreFile(identity, clock.time_ns()))], 0)
    file.fdatasync()
    options = {"shards": 2, "log_file_bytes": 8192, "log_chunk_bytes": 4096}
    store = Store(ROOT, StoreOptions.build(options, {}), fs=disk, clock=clock, background=False)
    work(store, clock, 0)
    store.snapshot()
    work(store, clock, 1)
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


def files() -> dict[str, bytes]:
    """The store, and what it must be read as."""
    return make_files(bytes(range(32, 48)), work, expected)
