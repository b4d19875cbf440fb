"""Exchange: a segment that was adopted takes the place of those whose offsets it has.

Every step may be repeated. While it is not done, the topic's segments are neither rewritten nor
moved: what came of that would be undone here.

Crash: the frame that adopts it is durable, and the exchange is made again when the store is opened.
"""

from __future__ import annotations

import contextlib
import os

from stratalog.format.manifest import Placed
from stratalog.format.names import parse_numbered
from stratalog.segments.chain import Chain
from stratalog.segments.history import History
from stratalog.segments.writer import put_in_place


def exchange(history: History, path: str, placed: Placed) -> None:
    """Put a staged segment in the place of others, unless it comes too late."""
    fs, footer = history.pool.fs, placed.footer
    covered = range(footer.first_offset, footer.end_offset)
    # Moved since it was in its place, or before: then that has all of it, and this has an old name.
    if not any(first in covered for first in history.cold):
        try:
            put_in_place(fs, path, history.directory, footer, placed.staged.bytes)
        except FileNotFoundError:
            pass  # it was in its place, and there is another by now
        else:
            _take_over(history, placed, covered)
    fs.unlink(path)
    # It must not come back with a crash, when its place may have been rewritten.
    with contextlib.suppress(FileNotFoundError):  # a copy of a store has no such directory
        fs.sync_dir(os.path.dirname(path))
    history.replaced.pop(footer.first_offset, None)


def _take_over(history: History, placed: Placed, covered: range) -> None:
    """Have readers find the segment that is in its place now, and remove those that it covers."""
    pool = history.pool
    old = [segment for segment in history.chain.segments if segment.first in covered]
    kept = [segment for segment in history.chain.segments if segment.first not in covered]
    new = pool.segment(history.topic_id, placed.summary())
    history.compacted_below = min(history.compacted_below, covered.start)
    history.chain = Chain.of(sorted([*kept, new], key=lambda one: one.first))
    for segment in old:
        pool.forget(segment)
        history.examined.pop(segment.first, None)
    # By what is there: an attempt before this one may have been cut short here.
    for name in pool.fs.listdir(history.directory):
        first = parse_numbered(name, ".seg")
        if first is not None and first in covered and first > covered.start:
            pool.fs.unlink(os.path.join(history.directory, name))
    pool.fs.sync_dir(history.directory)
