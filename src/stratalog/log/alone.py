"""The short way of a single record that is synced: straight to the disk, if nobody is there.

One thread that appends and waits meets nobody as a rule. The general way then takes it 22 us
besides the disk, this one half of that: behind a sync the processor's caches are cold, and what
counts is how much code there is.

Invariants:
- The commit lock is held from before the offset is given until the outcome is known.
- `Shard.alone` is the group of such an append, and nobody else can be in it: the open group, which
  is empty, stays open. It is not `done` while one is on its way.
- Whatever interrupts it behind that, `Shard.lead` goes on from where it was.
"""

from __future__ import annotations

from typing import Any

from stratalog.errors import StratalogError
from stratalog.format.columns import Columns, encode_columns, encode_value
from stratalog.format.frame import HEADER_BYTES
from stratalog.log.failures import again
from stratalog.log.group import Entry, plain_entry, records_entry
from stratalog.log.interrupts import insist
from stratalog.log.topic import SYNCED, TopicLog


def append_synced(
    log: TopicLog, value: bytes | None, size: int, extras: dict[str, Any] | None
) -> int:
    """As `TopicLog.append` of a record that is synced, alone if nobody commits or waits to."""
    shard = log.shard
    is_in = False
    if not shard.group.entries and log.is_plain and (entry := _entry(log, value, extras)):
        alone = shard.alone
        for is_taken in shard.try_commit_lock:  # see `append_body` for the loop
            try:
                if is_taken and (is_in := _enter(log, entry)):
                    _commit(log, entry)
                    error = alone.error
            except BaseException:
                if is_taken and not alone.done:
                    insist(shard.lead, alone)
                raise
            finally:
                if is_taken:
                    shard.commit_lock.release()
            break
    if shard.untold:
        shard.tell()
    if not is_in:
        return log.append(value, size, extras, SYNCED)  # type: ignore[return-value]
    if error is not None:
        raise again(error)
    return entry.base_offset  # type: ignore[union-attr]  # there is one


def _entry(log: TopicLog, value: bytes | None, extras: dict[str, Any] | None) -> Entry | None:
    """The frame of one record, without its place and time; None if it depends on its time."""
    if extras is None and value is not None and not log.codec:
        return plain_entry(log, encode_value(value), 1)
    if extras is not None and ("timestamp" in extras or "ttl" in extras):
        return None
    columns = Columns([value], **{name: [item] for name, item in (extras or {}).items()})
    return records_entry(log, *encode_columns(columns), 1)


def _enter(log: TopicLog, entry: Entry) -> bool:
    """Give a frame its offset, unless somebody came first; the commit lock is held."""
    shard = log.shard
    alone = shard.alone
    with shard.lock:
        if shard.group.entries or not alone.done:
            return False
        if shard.refusal is not None or shard.lost is not None or log.is_dropped:
            log.check()
        if log.pending_group is not None:
            log.stop_gathering()
        time_ns = log.time_ns
        if (now := time_ns()) < log.last_timestamp:
            now = log.last_timestamp
        entry.base_offset = offset = log.next_offset
        entry.base_timestamp = entry.max_timestamp = now
        # No function is called from here on: Ctrl-C comes before all of it or after.
        alone.entries = alone.encoded = [entry]
        alone.written = alone.published = 0
        alone.error = alone.failure = None
        alone.behind = []
        alone.done = False
        log.next_offset = offset + 1
        log.last_timestamp = now
    return True


def _commit(log: TopicLog, entry: Entry) -> None:
    """As `Shard.lead`, in a straight line; the commit lock is held."""
    shard = log.shard
    files, alone = shard.files, shard.alone
    position = files.position
    length = HEADER_BYTES + len(entry.body)
    if position + length > files.bytes_max:
        shard.lead(alone)
        return
    try:
        end = files.write(alone.encoded, sync=True)
    except StratalogError as error:
        alone.failure = error
        shard.lead(alone)
        return
    # No function is called from here to the last of these, as in `Shard._write`.
    files.position = files.synced = end
    alone.position = position
    alone.written = 1
    offset = entry.base_offset
    log.index.add(offset, 1, files.number, position, length, entry.max_timestamp)
    log.advance(offset + 1)
    alone.published = 1
    shard.commits += 1
    shard.committed_entries += 1
    alone.done = True
