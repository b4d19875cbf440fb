"""Make the golden store with tables, once for each format version.

    python scripts/make_golden_tables.py [letter]

It is a store as a release of this version writes it, on a disk in memory: tables with entries of
all kinds, with a state file that a snapshot names and more in the log after it.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

from make_golden_queues import make  # noqa: E402
from tests.golden.tables import files  # noqa: E402

if __name__ == "__main__":
    sys.exit(make("tables", files()))
