"""The holder of a lock, described for a process that finds the lock taken."""

from __future__ import annotations

import os
import socket
import sys
from datetime import UTC, datetime


def holder() -> str:
    """Describe this process as the holder of a lock, for a process that finds it taken."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return f"process {os.getpid()} ({program}) on {socket.gethostname()}, since {since}"
