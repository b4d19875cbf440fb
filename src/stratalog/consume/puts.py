"""Putting a message unless one with its id was put lately: looked up and appended in one."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.log.append import enter_record
from stratalog.log.commit_group import SYNCED, Item
from stratalog.log.ephemeral import make_room
from stratalog.log.topic import TopicLog
from stratalog.model import Put

# How long a duplicate waits at a time for the first one to be written.
_WAIT_SECONDS = 1.0


def put_once(
    log: TopicLog,
    key: bytes,
    data: bytes | None,
    size: int,
    rank: int,
    items: Sequence[Item],
    window: int | None = None,
) -> Put:
    """Append a message with an id, or find the one that has it; waits as its class demands.

    `window` is how long ago that one may have been put, in nanoseconds: at most as long as ids of
    the queue are kept, which is also the default.
    """
    queue = log.groups.queue
    assert queue is not None
    dedup = queue.dedup
    while True:
        if log.is_ephemeral:
            make_room(log, 1, size)
        with queue.lock:
            now = log.sane_time_ns()
            if now >= dedup.next_expiry or log.given_back >= 0:
                queue.tidy(now)
            # Ids expire a queue's window after their put, so a shorter one is a later time.
            known = dedup.claim(key, now if window is None else now + queue.window - window)
            if known < 0:
                # Appended with the lookup, and without waiting: those that follow share the commit.
                offset, group = enter_record(log, data, size, rank, items)
                dedup.place(offset, now + queue.window)
                break
            queue.duplicates += 1
        if rank != SYNCED:
            if log.vouch(known):
                return Put(known, True)
            continue
        if log.committed > known or log.wait(known, _WAIT_SECONDS):
            return Put(known, True)
        log.check_dropped()
        log.shard.check()
    log.shard.wait(group, rank)  # raises if it was not written: its id is then forgotten
    return tuple.__new__(Put, (offset, False))
