"""Putting a message unless one with its id was put lately: looked up and appended in one."""

from __future__ import annotations

from typing import Any

from stratalog.log.extras import enter_record, settle_record
from stratalog.log.future import AppendFuture
from stratalog.log.group import Group
from stratalog.log.shard import GROUP_BYTES_MAX
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.model import Put
from stratalog.projections.queue import QueueState

# How long a duplicate waits at a time for the first one to be written.
_WAIT_SECONDS = 1.0

# What a record adds to a batch besides its bytes, as in `enter_record`.
_RECORD_BYTES = 64


def put_plain_once(log: TopicLog, key: bytes, value: bytes, priority: int) -> Put:
    """As `put_once` of a message with nothing else, to a queue of its own class: spelled out."""
    queue = log.groups.queue
    with queue.lock:  # type: ignore[union-attr]  # the topic is one
        time_ns = log.time_ns
        now = time_ns()
        dedup = queue.dedup  # type: ignore[union-attr]
        if now < dedup.next_expiry and log.given_back < 0 and dedup.claim(key, now) < 0:
            # See `append_body` for the loop, `enter_record` for what is in it.
            for _ in log.take_lock:
                try:
                    add_value = log.add_value
                    add_value(value)
                    if now > log.last_timestamp:
                        log.last_timestamp = stamp = now
                    else:
                        stamp = log.last_timestamp
                    add_timestamp = log.add_timestamp
                    add_timestamp(stamp)
                    offset = log.next_offset
                    pending = log.pending
                    index = offset - pending.base_offset
                    columns = pending.extras
                    if columns is None:
                        columns = pending.extras = {}
                    if "keys" in columns:
                        columns["keys"][index] = key
                    else:
                        columns["keys"] = {index: key}
                    if priority:
                        if "priorities" in columns:
                            columns["priorities"][index] = priority
                        else:
                            columns["priorities"] = {index: priority}
                    group: Group = log.pending_group  # type: ignore[assignment]
                    group.bytes = gathered = group.bytes + len(value) + len(key) + _RECORD_BYTES
                    log.next_offset = offset + 1
                except BaseException:
                    log.take_back()
                    raise
                finally:
                    log.lock.release()
                break
            dedup.place(offset, now + queue.window)  # type: ignore[union-attr]
            is_new = True
        else:
            is_new = False
    if not is_new:
        extras: dict[str, Any] = {"keys": key}
        if priority:
            extras["priorities"] = priority
        size = len(value) + len(key) + 32
        return put_once(log, queue, key, value, size, extras, 0, log.rank)  # type: ignore[arg-type]
    if log.rank == SYNCED or gathered > GROUP_BYTES_MAX:
        log.shard.commit(group)
    return tuple.__new__(Put, (offset, False))


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
            known = dedup.claim(key, now)
            if known < 0:
                # Appended in one with the look, and without waiting: those behind share the commit.
                if rank == log.rank and log.is_plain:
                    offset, group = enter_record(log, data, size, extras, ttl)
                    dedup.place(offset, now + queue.window)
                    break
                future = _enter_otherwise(log, data, size, extras, ttl, rank)
                dedup.place(future.offset, now + queue.window)
                future.result()
                return Put(future.offset, False)
            queue.duplicates += 1
        if rank != SYNCED or log.committed > known or log.wait(known, _WAIT_SECONDS):
            return Put(known, True)
        log.check_dropped()
        log.shard.check()
    settle_record(log, group)  # raises if it was not written: its id is then forgotten
    return tuple.__new__(Put, (offset, False))


def _enter_otherwise(
    log: TopicLog, data: bytes | None, size: int, extras: dict[str, Any], ttl: int, rank: int
) -> AppendFuture:
    """The same for a message of another class than its queue's, or of an ephemeral queue."""
    if ttl:
        extras["ttl"] = ttl
    future = log.append(data, size, extras, rank, nowait=True)
    assert isinstance(future, AppendFuture)
    return future
