"""A store with records that were given earlier times, as the first release that kept those made it.

Written once by `python -m tests.golden.times` into `v2-times`, and never again.
"""

from __future__ import annotations

import json
from pathlib import Path

from stratalog.format.names import store_path
from stratalog.format.store import StoreFile, encode_store
from stratalog.handles.store import Store
from stratalog.model import Gap, Record
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, ManualClock

ROOT = "/golden"
IDENTITY = bytes(range(80, 96))
GOLDEN = Path(__file__).parent / "v2-times"
SECOND = 10**9


def work(store: Store, now: int) -> None:
    """Late records alone, in batches with others, in segments and in the log."""
    topic = store.create_topic("readings", segment_records=4)
    for number in range(6):
        topic.append(b"on time %d" % number)
        topic.append(b"late %d" % number, timestamp=now - number * SECOND, tag="late")
    store.checkpoint()
    records = [Record(b"batch %d" % n, timestamp=now - n * SECOND, key=b"k") for n in range(4)]
    topic.append_many([b"no time", *records])
    topic.append(b"alone", timestamp=now - 99 * SECOND)


def facts(store: Store) -> list[list[object]]:
    """Value, time and event time of every record."""
    return [
        [(item.value or b"").decode(), item.timestamp, item.event_time]
        for item in store.topic("readings").read()
        if not isinstance(item, Gap)
    ]


def files() -> dict[str, bytes]:
    """The store, and what it must be read as."""
    clock = ManualClock()
    disk = FakeDisk()
    disk.makedirs(ROOT)
    file = disk.open(store_path(ROOT), "create")
    file.pwrite([encode_store(StoreFile(IDENTITY, clock.time_ns(), 2))], 0)
    file.fdatasync()
    options = StoreOptions.build({"shards": 1, "log_file_bytes": 8192, "log_chunk_bytes": 4096}, {})
    store = Store(ROOT, options, fs=disk, clock=clock, background=False)
    work(store, clock.time_ns())
    expected = facts(store)
    store.close()
    found = {
        path.removeprefix(ROOT + "/"): data
        for path, data in disk.image().items()
        if not path.endswith("/lock")
    }
    plain = {"identity": IDENTITY.hex(), "created_at": ManualClock().time_ns(), "version": 2}
    text = json.dumps({"store": plain, "records": expected}, indent=1) + "\n"
    return found | {"expected.json": text.encode()}


def main() -> None:
    """Write the directory, which must not be there."""
    GOLDEN.mkdir()
    for name, data in files().items():
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


if __name__ == "__main__":
    main()
