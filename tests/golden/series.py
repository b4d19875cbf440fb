"""A store with series: how the golden one was made, and what is read of it."""

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
    """Points of every kind, rules, and windows computed by them."""
    base = clock.time_ns() // 10**9 - 1000
    cpu = store.series("cpu")
    cpu.retention(raw="7d", downsample=[("1m", "avg", "30d"), ("1h", "p90", None)])
    cpu.write(0.5 + turn, tags={"host": "größe, a=b"}, timestamp=base)
    cpu.write_many(
        range(base, base + 90), {"value": [1.5] * 90, "count": [*range(89), None]},
        tags={"host": ["a", "b", "c"] * 30, "zone": "eu"},
    )  # fmt: skip
    store.write_lines(f'log,host=a text="up {turn}",ok=t {base}\ncpu value=7 {base}', precision="s")
    assert store._upkeep is not None
    store._upkeep.round()
    clock.advance(1.0)


def expected(store: Store) -> dict[str, Any]:
    """Collect what a reader sees."""
    found: dict[str, Any] = {}
    for name in store.series_names():
        series = store.series(name)
        found[name] = {
            "fields": series.fields(),
            "latest": [list(one) for one in series.latest()],
            "points": {
                field: [column.tolist() for column in series.read(field=field)]
                for field in series.fields()
            },
            "rules": repr(series.rules),
            "cursor": series.state.cursor,
        }
    return {"now": store.clock.time_ns(), "series": json.loads(json.dumps(found))}


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
