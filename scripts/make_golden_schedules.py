"""Make the golden store with schedules, once for each format version.

    python scripts/make_golden_schedules.py

It is a store as a release of this version writes it, on a disk in memory: schedules of both sorts,
one that is paused, one whose queue was dropped and one that was dropped itself, with a snapshot
and more in the log after it. What it must be read as stands beside it.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from make_golden_queues import make  # noqa: E402  # found by the line before
from tests.golden.schedules import files  # noqa: E402

if __name__ == "__main__":
    sys.exit(make("schedules", files()))
