"""Who holds a lock, in words for whoever finds it taken."""

from __future__ import annotations

import os
import socket
import sys
from datetime import UTC, datetime


def holder() -> str:
    """Who takes the lock, for whoever finds it taken."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return f"process {os.getpid()} ({program}) on {socket.gethostname()}, since {since}"
