"""Make the golden files of a lake, once for each format version.

    python scripts/make_golden_lake.py

They are the structures of a lake as a release of this version writes them: a manifest, the body
of a `LAKE` frame, and a snapshot that knows of a lake.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from make_golden_queues import make  # noqa: E402  # found by the line before
from tests.golden.lake import files  # noqa: E402

if __name__ == "__main__":
    sys.exit(make("lake", files()))
