"""Tiering: old sealed segments move to the cold store, one at a time.

Copy, then flip (a `TIER` frame, durable), then delete the file here. Every step may be repeated:
after a crash before the flip the copy is made again, after it the file here is removed when the
store is opened. Until the file is gone it is the one that is read.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.errors import ColdStoreError
from stratalog.format.names import cold_name
from stratalog.format.segment import State, Summary
from stratalog.log.topic import TopicLog
from stratalog.options import StoreOptions
from stratalog.segments.segment import Segment


def movable(topic: TopicLog, options: StoreOptions) -> list[Segment]:
    """Segments beyond what is to stay here, oldest first.

    A compacted topic stays here as a whole: it is rewritten again and again.
    """
    if topic.options.compact:
        return []
    here = [s for s in topic.history.chain.segments if not s.is_open and not s.is_cold]
    kept = here[max(0, len(here) - options.hot_segments) :]
    if options.hot_bytes:
        while kept and sum(segment.summary.bytes for segment in kept) > options.hot_bytes:
            kept.pop(0)
    return here[: len(here) - len(kept)]


def move_segment(
    topic: TopicLog, segment: Segment, flip: Callable[[TopicLog, Summary], None]
) -> None:
    """Move one segment; raises `ColdStoreError`, and nothing has changed."""
    pool = topic.history.pool
    cold = pool.cold
    assert cold is not None
    name = cold_name(topic.id, segment.first)
    file = pool.fs.open(segment.path, "read")
    try:
        cold.put(name, file)
    finally:
        file.close()
    if (size := cold.size(name)) != segment.summary.bytes:
        raise ColdStoreError(
            f"{name} has {size} bytes in {cold.location}, {segment.summary.bytes} were put there: "
            "the segment stays here, and is put there again later"
        )
    flip(topic, segment.summary._replace(state=State.COLD))
    topic.history.replace(pool.segment(topic.id, topic.history.cold[segment.first]))
    pool.forget(segment)
    pool.fs.unlink(segment.path)
    pool.fs.sync_dir(topic.history.directory)
