"""Make the golden store whose files are bound to it, once for each version of the directory.

    python scripts/make_golden_bound.py

It is a store as a release of this version writes it, on a disk in memory: two topics with
segments, a snapshot, more in the log after it, and the ends of the log. What it must be read as
stands beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests.golden.bound import files  # noqa: E402

from stratalog.format.store import VERSION  # noqa: E402  # the tests' own code is imported too

GOLDEN = HERE.parent / "tests" / "golden"


def main() -> int:
    """Write the files of this version, unless they exist."""
    root = GOLDEN / f"v{VERSION}-bound"
    if root.exists():
        print(f"{root} exists: never made again", file=sys.stderr)
        return 1
    for name, data in files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        print(f"{path.relative_to(GOLDEN)}: {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
