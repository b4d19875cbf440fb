"""Putting a message unless one with its id was put lately: looked up and appended in one."""

from __future__ import annotations

from typing import Any

from stratalog.log.extras import enter_record, settle_record
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
    ttl: int,
    rank: int,
) -> Put:
    """Append a message with an id, or find the one that has it; waits as its class demands."""
    while True:
        with queue.lock:
            now = log.time_ns()
            dedup = queue.dedup
            if now >= dedup.next_expiry or log.given_back >= 0:
                queue.tidy(now)
            known = dedup.find(key, now)
            if known < 0:
                # Appended in one with the look, and without waiting: those behind share the commit.
                if rank == log.rank and log.is_plain:
                    offset, group = enter_record(log, data, size, extras, ttl)
                    dedup.add_last(offset, now + queue.window)
                    break
                return _put_otherwise(log, queue, now, data, size, extras, ttl, rank)
            queue.duplicates += 1
        if rank != SYNCED or log.committed > known or log.wait(known, _WAIT_SECONDS):
            return Put(known, True)
        log.check_dropped()
        log.shard.check()
    settle_record(log, group)  # raises if it was not written: its id is then forgotten
    return tuple.__new__(Put, (offset, False))


def _put_otherwise(
    log: TopicLog,
    queue: QueueState,
    now: int,
    data: bytes | None,
    size: int,
    extras: dict[str, Any],
    ttl: int,
    rank: int,
) -> Put:
    """The same for a message of another class than its queue's, or of an ephemeral queue."""
    if ttl:
        extras["ttl"] = ttl
    future = log.append(data, size, extras, rank, nowait=True)
    assert isinstance(future, AppendFuture)
    queue.dedup.add_last(future.offset, now + queue.window)
    future.result()
    return Put(future.offset, False)
