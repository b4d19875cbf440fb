"""Make the golden store with groups and queues, once for each format version.

    python scripts/make_golden_queues.py [letter]

A letter is for a release that writes the same format and comes to other files: `v1b-queues` has
no messages in its segments that were consumed before they got there, `v1c-queues` has a snapshot
more, of the ids of messages that got there.

It is a store as a release of this version writes it, on a disk in memory: two queues and a group,
with a snapshot and more in the log after it. What it must be read as stands beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests.golden.queues import files  # noqa: E402

from stratalog.format.frame import VERSION  # noqa: E402  # the tests' own code is imported too

GOLDEN = HERE.parent / "tests" / "golden"


def make(kind: str, files: dict[str, bytes]) -> int:
    """Write the golden files of a kind of store, unless they exist."""
    letter = "".join(sys.argv[1:2])
    root = GOLDEN / f"v{VERSION}{letter}-{kind}"
    if root.exists():
        print(f"{root} exists: never made again", file=sys.stderr)
        return 1
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"{path.relative_to(GOLDEN)}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(make("queues", files()))
