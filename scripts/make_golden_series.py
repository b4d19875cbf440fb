"""Make the golden store with series, once for each format version.

    python scripts/make_golden_series.py [letter]

It is a store as a release of this version writes it, on a disk in memory: series with points of all
types, rules, and windows that they computed, with a snapshot and more in the log after it.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

from make_golden_queues import make  # noqa: E402
from tests.golden.series import files  # noqa: E402

if __name__ == "__main__":
    sys.exit(make("series", files()))
