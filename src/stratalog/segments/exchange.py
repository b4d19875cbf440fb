"""Exchange: an adopted segment takes the place of those whose offsets it has.

Every step may be repeated. Until it is done, the topic's segments are neither rewritten nor moved:
the result of that would be undone here.

Crash: the frame that adopts it is durable, and the exchange is made again when the store is opened.
"""

from __future__ import annotations

import contextlib
import os

from stratalog.format.manifest import Placed
from stratalog.format.names import parse_numbered
from stratalog.format.segment import Summary
from stratalog.segments.chain import Chain
from stratalog.segments.topic_segments import History
from stratalog.segments.writer import put_in_place


def exchange(history: History, path: str, placed: Placed) -> None:
    """Put a staged segment in the place of others, unless it comes too late."""
    fs, footer = history.pool.fs, placed.footer
    covered = range(footer.first_offset, footer.end_offset)
    # If a segment of the range is in the cold store by now, that one has all the records.
    if not any(first in covered for first in history.cold):
        try:
            put_in_place(fs, path, history.directory, footer, placed.staged.bytes)
        except FileNotFoundError:
            pass  # it was in place, and another segment has replaced it since
        else:
            history.compacted_below = min(history.compacted_below, covered.start)
            take_over(history, placed.summary())
    fs.unlink(path)
    # It must not come back with a crash, when its place may have been rewritten.
    with contextlib.suppress(FileNotFoundError):  # a copy of a store has no such directory
        fs.sync_dir(os.path.dirname(path))
    history.replaced.pop(footer.first_offset, None)


def take_over(history: History, summary: Summary) -> None:
    """Publish the segment that is in place now, and remove those that it covers."""
    pool = history.pool
    covered = range(summary.first_offset, summary.end_offset)
    old = [segment for segment in history.chain.segments if segment.first in covered]
    kept = [segment for segment in history.chain.segments if segment.first not in covered]
    new = pool.segment(history.topic_id, summary)
    history.chain = Chain.of(sorted([*kept, new], key=lambda one: one.first))
    for segment in old:
        pool.forget(segment)
        history.examined.pop(segment.first, None)
    # Looks at the directory: an earlier attempt may have been interrupted here.
    for name in pool.fs.listdir(history.directory):
        first = parse_numbered(name, ".seg")
        if first is not None and first in covered and first > covered.start:
            pool.fs.unlink(os.path.join(history.directory, name))
    pool.fs.sync_dir(history.directory)
