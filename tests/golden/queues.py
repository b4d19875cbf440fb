"""A store with groups and queues: how the golden one was made, and what is read of it."""

from __future__ import annotations

import json
from typing import Any

from stratalog.format.names import store_path
from stratalog.format.store import StoreFile, encode_store
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, ManualClock

ROOT = "/store"


def work(store: Store, clock: ManualClock, turn: int) -> None:
    """Something of everything."""
    jobs = store.queue("jobs", max_deliveries=2, lease=20.0)
    for number in range(6):
        jobs.put(b"%d-%d" % (turn, number), priority=number % 3, dedup_id=f"id-{turn}-{number}")
    jobs.put(b"later", delay=3600.0, headers={"trace": b"7"})
    first, second, third = jobs.get_many(3, consumer="größe")
    jobs.ack(first)
    jobs.nack(second, reason="no", delay=0.0)
    jobs.nack(third, delay=1000.0)
    if turn:
        jobs.nack(jobs.get(timeout=0), reason="never")
    clock.advance(1.0)
    taken = store.queue("taken", delivery="at_most_once")
    taken.put_many([b"a", b"b", b"c"])
    taken.get_nowait()
    orders = store.topic("orders")
    orders.append_many([b"x"] * 20)
    group = orders.group("billing", start=3)
    group.ack(group.poll("worker-1", limit=5 + turn)[:3])
    stream = orders.group("audit", mode="stream")
    stream.ack([7 + turn])
    orders.group("gone")
    if turn:
        orders.group("gone").drop()


def expected(store: Store) -> dict[str, Any]:
    """Collect what a reader sees."""
    queues = {}
    for name in store.queues():
        queue = store.queue(name)
        stats = queue.stats()
        queues[name] = {
            "waiting": stats.waiting, "delayed": stats.delayed, "pending": stats.pending,
            "dead": [one.value.decode() for one in queue.dead.read() if one.value],
            "floor": stats.floor, "deliveries": stats.deliveries, "consumed": stats.consumed,
            "dedup_entries": stats.dedup_entries, "options": queue.options.to_dict(),
            "next": [one.value.decode() for one in queue.peek(100) if one.value],
        }  # fmt: skip
    groups = {}
    orders = store.topic("orders")
    for name in orders.groups():
        group = orders.group(name)
        groups[name] = {
            "mode": group.mode, "lag": group.lag, "floor": group.floor,
            "pending": [
                [e.offset, e.consumer, e.delivery_count, e.delivered_at, e.deadline]
                for e in group.pending()
            ],
        }  # fmt: skip
    return {"now": store.clock.time_ns(), "queues": queues, "groups": groups}


def files() -> dict[str, bytes]:
    """The store, and what it must be read as."""
    clock = ManualClock()
    disk = FakeDisk()
    disk.makedirs(ROOT)
    file = disk.open(store_path(ROOT), "create")
    file.pwrite([encode_store(StoreFile(bytes(range(32, 48)), clock.time_ns()))], 0)
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
