"""Putting a message unless one with its id was put lately: looked up and appended in one."""

from __future__ import annotations

from typing import Any

from stratalog.log.group import AppendFuture
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.model import Put
from stratalog.projections.queue import QueueState

# How long a duplicate waits at a time for the first one to be written.
_WAIT_SECONDS = 1.0


def put_once(
    log: TopicLog,
    queue: QueueState,
    key: bytes,
    data: bytes | None,
    size: int,
    extras: dict[str, Any],
    rank: int,
) -> Put:
    """Append a message with an id, or find the one that has it; waits as its class demands."""
    while True:
        with queue.lock:
            now = log.time_ns()
            queue.tidy(now)
            known = queue.dedup.find(key, now)
            if known < 0:
                # Without waiting: those behind share the commit. Appended in one with the look.
                future = log.append(data, size, extras, rank, rank == SYNCED)
                offset = future.offset if isinstance(future, AppendFuture) else future
                queue.dedup.add(key, offset, now + queue.window)
                break
            queue.duplicates += 1
        if rank != SYNCED or log.committed > known or log.wait(known, _WAIT_SECONDS):
            return Put(known, True)
        log.check_dropped()
        log.shard.check()
    if isinstance(future, AppendFuture):
        future.result()  # raises if it was not written; its id is then forgotten
    return Put(offset, False)
