"""Make the golden stores that a power cut left, with ceilings: once, then never again.

    python scripts/make_golden_ceilings.py

writes `tests/golden/v1-ceilings/crashed`, as the power cut left it, and `recovered`, as the next
writer did: with the gap in its log and in a snapshot. What is there is never overwritten.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, ManualClock

TARGET = Path(__file__).parent.parent / "tests" / "golden" / "v1-ceilings"


def opened(disk: FakeDisk) -> Store:
    """A store without threads."""
    options = StoreOptions.build({"shards": 1, "durability": "disk", "log_chunk_bytes": 4096}, {})
    return Store("/s", options, fs=disk, clock=ManualClock(), background=False)


def write(disk: FakeDisk, name: str) -> None:
    """Write all files of a disk, but the lock."""
    for path, data in disk.image().items():
        target = TARGET / name / path.removeprefix("/s/")
        if target.name != "lock":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def main() -> int:
    """Make both stores, and say what is in them."""
    if TARGET.exists():
        print(f"{TARGET} is there, and stays as it is")
        return 1
    disk = FakeDisk()
    store = opened(disk)
    topics = [store.topic("a"), store.topic("b")]
    for topic in topics:
        topic.append(b"safe", durability="fsync")
    for topic in topics:
        for _ in range(3):
            topic.append(b"lost")
    store.is_closed = store._has_let_go = True
    disk = disk.crash(0, "drop")
    write(disk, "crashed")
    store = opened(disk)
    after = store.topic("a").append(b"after", durability="fsync")
    store.snapshot()
    store.close()
    write(disk, "recovered")
    (TARGET / "expected.json").write_text(json.dumps({"after": after}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
