"""A read-only view of a directory: no lock, no change, beside a live writer or after it.

A view reads what the writer has written: an `fsync` record may be seen a moment before its writer
is told that it is durable, and a `disk` record before it is synced.
"""

from __future__ import annotations

import threading
import time

from stratalog.errors import DamagedError
from stratalog.format.store import StoreFile
from stratalog.fs import FileSystem
from stratalog.log.topic import TopicLog
from stratalog.state.catalog import Catalog
from stratalog.state.identity import read_store_file
from stratalog.state.recovery import Replay

# How often a waiting reader looks for news of another process.
_POLL_SECONDS = 0.02

# What looks damaged is looked at so often, each time a little later.
_LOOKS_MAX = 8
_LOOK_SECONDS = 0.002


class View:
    """The content of a directory, refreshed on demand."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        store_file: StoreFile | None = None,
        expanded_bytes_max: int | None = None,
    ) -> None:
        """`store_file` is given for a directory that is not a store yet, and is to become one."""
        self._lock = threading.Lock()
        self.store_file = read_store_file(fs, root) if store_file is None else store_file
        self.replay = Replay(fs, root, self.store_file, expanded_bytes_max)
        self.replay.refresh = self.refresh
        self.replay.advance()
        self.catalog = Catalog(self.replay)

    def refresh(self) -> None:
        """Take in what was written since."""
        with self._lock:
            self.replay.advance()
            self.catalog.refresh()

    def listen(self) -> None:
        """Take in frames alone, and look at no file again.

        What is seen then is the store at one moment. A segment that was compacted while the view
        was made lacks records that newer ones replaced: now those are seen, too.
        """
        with self._lock:
            self.replay.listen()
            self.replay.publish()
            self.catalog.refresh()

    def close(self) -> None:
        """Let go of all files."""
        self.replay.reader.close()
        self.replay.pool.close()

    def damage(self) -> DamagedError | None:
        """Return what is damaged. Checked repeatedly: a writer may have removed what was listed.

        It says so in the log first: what is said by the time a look is over explains what it saw.
        """
        for look in range(_LOOKS_MAX):
            if self._heard() is None:
                break
            time.sleep(_LOOK_SECONDS * look)
            self.replay.doubt()
            self.refresh()
        return self._heard()

    def _heard(self) -> DamagedError | None:
        """Return what is damaged by all that the log says now; it is read only if something is."""
        if self.replay.damage() is None:
            return None
        with self._lock:
            self.replay.listen()
            self.catalog.refresh()
        return self.replay.damage()

    def wait(self, topic: TopicLog, offset: int, timeout: float | None) -> bool:
        """Block until `offset` can be read or the time is up."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.refresh()
            topic.check_dropped()
            if topic.committed > offset:
                return True
            left = _POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _POLL_SECONDS))
