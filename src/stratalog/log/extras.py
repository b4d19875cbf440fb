"""A single record with optional columns, entering the log the short way: what queues put."""

from __future__ import annotations

from typing import Any

from stratalog.log.group import Group
from stratalog.log.shard import GROUP_BYTES_MAX
from stratalog.log.topic import SYNCED, TopicLog

# What a record adds to a batch besides its bytes, as in `TopicLog.append`.
_RECORD_BYTES = 32


def enter_record(
    log: TopicLog, value: bytes | None, size: int, extras: dict[str, Any], ttl: int
) -> tuple[int, Group]:
    """Put a record of the topic's own class into the open group: its offset, and the group.

    As `TopicLog.append` without waiting, in half the time; see `append_body` for the loop. Not
    for ephemeral topics, whose records need room first.
    """
    for _ in log.take_lock:
        try:
            add_value = log.add_value
            add_value(value)
            time_ns = log.time_ns
            if (now := time_ns()) > log.last_timestamp:
                log.last_timestamp = now
            else:
                now = log.last_timestamp
            add_timestamp = log.add_timestamp
            add_timestamp(now)
            pending = log.pending
            index = len(pending.values) - 1
            columns = pending.extras
            if columns is None:
                columns = pending.extras = {}
            if ttl:
                extras["expires_at"] = now + ttl
            for name, item in extras.items():
                column = columns.get(name)
                if column is None:
                    columns[name] = {index: item}
                else:
                    column[index] = item
            group = log.pending_group
            group.bytes += size + _RECORD_BYTES  # type: ignore[union-attr]  # there is one now
            offset = log.next_offset
            log.next_offset = offset + 1
        except BaseException:
            log.take_back()
            raise
        finally:
            log.lock.release()
        break
    return offset, group  # type: ignore[return-value]


def settle_record(log: TopicLog, group: Group) -> None:
    """Return once a record that entered a group is as durable as its topic's class promises."""
    if log.rank == SYNCED or group.bytes > GROUP_BYTES_MAX:
        log.shard.commit(group)
