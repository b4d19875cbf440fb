"""Make the golden store with cold segments, once for each format version.

    python scripts/make_golden_cold.py [letter]

A letter is for a release that writes the same format and comes to other files: the objects of
`v1-cold` have names that do not say whose they are, those of `v1b-cold` do; `v1c-cold` has the ends
of its log, and segments that say whose they are.

It is a store as a release of this version writes it, on a disk in memory, and the directory that is
its cold store. What it must be read as stands beside it.
"""

from __future__ import annotations

import sys

from make_golden_queues import make
from tests.golden.cold import files

if __name__ == "__main__":
    sys.exit(make("cold", files()))
