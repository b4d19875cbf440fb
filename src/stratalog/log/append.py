"""Every way in which a record enters the log.

Offsets are assigned, and records enter their commit group, in one critical section with the
shard's lock held: log order is offset order. There is one section for single records, which are
gathered by column, and one for frames that are already encoded. All functions here use these two:

| function | enters | waits | used by |
|---|---|---|---|
| `append_record` | one record | as its class demands | `Topic.append`, `Queue.put` |
| `append_synced` | one record, alone if no commit is in progress | for its sync | as above |
| `append_nowait` | one record, with a future | if too much has gathered | `Topic.append_nowait` |
| `enter_record` | one record | no | the three above, `Queue.put` with an id, asyncio |
| `append_entries` | frames of one topic | as their class demands | `append_many`, `append_arrow` |
| `enter_entries` | frames of one topic | no | the one above, atomic batches of one topic, asyncio |
| `enter_joint` | one frame of several topics | no | `log/cross_shard.py` |
| `place_entries`, `place_end` | the parts of such a frame | no | atomic batches, adoption |

Invariants:
- `next_offset` and `last_timestamp` of a topic move in the step in which its records enter a group.
- An append that raises before that step has changed nothing that is read later.

Concurrency: any thread may call any of them; functions that need the lock say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from stratalog.errors import StratalogError
from stratalog.format.columns import Columns, encode_columns, encode_value
from stratalog.format.frame import HEADER_BYTES
from stratalog.log.commit_failures import again
from stratalog.log.commit_group import (
    GROUP_BYTES_MAX,
    RECORD_BYTES,
    SYNCED,
    TIMESTAMP,
    TTL,
    Entry,
    Group,
    Item,
    Pending,
    plain_entry,
    records_entry,
)
from stratalog.log.ephemeral import make_room
from stratalog.log.future import AppendFuture
from stratalog.log.interrupts import insist
from stratalog.log.joint import JointFrame
from stratalog.log.shard import Shard
from stratalog.log.topic import TopicLog
from stratalog.options import TIME_MAX

Remake: TypeAlias = Callable[[int], list[Entry]]
"""Encodes frames again whose records bring their own times, with no time below a floor."""

# --- single records ----------------------------------------------------------------------


def enter_record(
    log: TopicLog,
    value: bytes | None,
    size: int,
    rank: int,
    items: Sequence[Item] = (),
    is_left: bool = False,
    key: bytes | None = None,
) -> tuple[int, Group]:
    """Add a record to the batch that gathers in the open group; returns its offset and the group.

    `items` are its optional columns: see `Pending.add`. `key` is a faster way to give a key alone:
    200 ns less, a tenth of a table's put. `is_left` leaves the group to the ticker, unless a thread
    commits it before. An ephemeral topic needs memory first: see `make_room`.
    """
    while True:
        # Equal to `with log.lock`, and 100 ns cheaper, which is a sixth of a bare append: the
        # iterator calls `acquire`, so that no Ctrl-C comes between that and the `try`.
        for _ in log.take_lock:
            try:
                offset = log.next_offset
                pending = log.pending
                if (
                    pending is None or pending.rank != rank
                    or (offset >= log.given and rank != SYNCED)
                    or (is_left and (not pending.group.is_relaxed or pending.group.is_lazy))
                ):  # fmt: skip
                    pending = _gather(log, rank, is_left)
                    if pending is None:
                        break
                time_ns = log.time_ns  # calling it as a method costs 20 ns more
                now = time_ns()
                if now <= log.last_timestamp or now > TIME_MAX:
                    now = log.last_timestamp
                if items:
                    now = pending.add(offset - pending.base_offset, items, now)
                elif key is not None:
                    keys = pending.columns.get("keys")
                    if keys is not None and len(keys) == offset - pending.base_offset:
                        keys.append(key)
                    else:
                        pending.add(offset - pending.base_offset, (("keys", key),), now)
                group = pending.group
                pending.values.append(value)
                pending.timestamps.append(now)
                # Uninterruptible.
                group.bytes += size + RECORD_BYTES
                log.last_timestamp = now
                log.next_offset = offset + 1
                # Interruptible.
            except BaseException:
                insist(_take_back, log)
                raise
            finally:
                log.lock.release()
            return offset, group
        make_room(log, 1, size)  # only an ephemeral topic runs out: its offsets have to be reserved


def _take_back(log: TopicLog) -> None:
    """Remove a record that did not get its offset; the lock is held. Idempotent."""
    if log.pending is not None:
        log.pending.cut(log.next_offset - log.pending.base_offset)


def _gather(log: TopicLog, rank: int, is_left: bool) -> Pending | None:
    """Return the batch for records of a class, begun if there is none; the lock is held.

    None if an ephemeral topic has given out all its reserved offsets.
    """
    shard = log.shard
    if log.next_offset >= log.given and rank != SYNCED:
        if log.is_ephemeral:
            return None
        log.cover(1)
    pending = log.pending
    if pending is None:
        log.check()
        group = shard.group
        pending = Pending(log, log.next_offset, group)
        if log.gathered is not None:
            log.gathered.append(pending)
        # Uninterruptible.
        group.entries += (pending,)
        log.pending = pending
        # Interruptible.
    if pending.rank != rank:
        shard.ask(pending.group, rank)
        pending.rank = rank
    if is_left and (not pending.group.is_relaxed or pending.group.is_lazy):
        shard.relax(pending.group, lazy=False)
    return pending


def append_record(
    log: TopicLog,
    value: bytes | None,
    size: int,
    rank: int,
    items: Sequence[Item] = (),
) -> int:
    """Append a record; returns its offset once its class is satisfied."""
    if log.is_ephemeral:
        make_room(log, 1, size)
    offset, group = enter_record(log, value, size, rank, items)
    if group.is_awaited(rank):
        log.shard.commit(group)
    return offset


def append_nowait(
    log: TopicLog,
    value: bytes | None,
    size: int,
    rank: int,
    items: Sequence[Item] = (),
) -> AppendFuture:
    """Append a record; returns a future of its offset. Commits the group if it is too large."""
    if log.is_ephemeral:
        make_room(log, 1, size)
    offset, group = enter_record(log, value, size, rank, items, True)
    if group.bytes > GROUP_BYTES_MAX:
        log.shard.finish(group)
    return log.shard.future(group, offset)


# --- encoded frames ----------------------------------------------------------------------


def append_entries(
    log: TopicLog, entries: list[Entry], rank: int, remake: Remake | None = None
) -> tuple[int, int]:
    """Append frames of one topic; returns both offsets once their class is satisfied.

    The caller has encoded them without a lock. `remake` is called if their records bring times,
    and the topic's time has moved on since.
    """
    group, first, last = enter_entries(log, entries, rank, remake)
    if group.is_awaited(rank):
        log.shard.commit(group)
    return first, last


def enter_entries(
    log: TopicLog,
    entries: list[Entry],
    rank: int,
    remake: Remake | None = None,
    is_left: bool = False,
) -> tuple[Group, int, int]:
    """Append frames without waiting; returns the group to wait for, and both offsets.

    `is_left` leaves the group to the ticker, unless a thread commits it before.
    """
    shard = log.shard
    count = 0
    while True:
        if log.is_ephemeral:
            count = sum([entry.count for entry in entries])
            make_room(log, count, sum([len(entry.body) for entry in entries]))
        with log.lock:
            if log.is_ephemeral and log.next_offset + count > log.given:
                continue  # another thread took the reserved offsets
            group = shard.group
            if is_left:
                shard.relax(group, lazy=False)
            first = _enter(log, entries, group, rank, remake)
            return group, first, log.next_offset - 1


def _enter(
    log: TopicLog, entries: list[Entry], group: Group, rank: int, remake: Remake | None = None
) -> int:
    """Give frames their offsets and put them into a group; the lock is held."""
    shard = log.shard
    if shard.refusal is not None or shard.lost is not None or log.is_dropped:
        log.check()
    log.pending = None  # later single records begin a new batch
    entries, end, size = _place(log, entries, remake)
    first = log.next_offset
    if end > log.given and rank != SYNCED:
        log.cover(end - first)
    shard.ask(group, rank)
    timestamp = entries[-1].max_timestamp
    # Uninterruptible.
    group.entries += entries
    group.bytes += size
    log.last_timestamp = timestamp
    log.next_offset = end
    # Interruptible.
    return first


def _place(
    log: TopicLog, entries: list[Entry], remake: Remake | None
) -> tuple[list[Entry], int, int]:
    """Return frames with the offsets and times they get now, their end offset and bytes."""
    now = log.time_ns()
    if not log.last_timestamp < now <= TIME_MAX:
        now = log.last_timestamp
    if remake is not None and entries[0].base_timestamp < log.last_timestamp:
        entries = remake(log.last_timestamp)
    offset = log.next_offset
    size = 0
    for entry in entries:
        entry.base_offset = offset
        if remake is None:
            entry.base_timestamp = entry.max_timestamp = now
        offset += entry.count
        size += len(entry.body)
    return entries, offset, size


# --- frames of several topics ------------------------------------------------------------


def enter_joint(
    shards: Sequence[Shard],
    topics: Sequence[TopicLog],
    make: Callable[[], JointFrame],
    group: Group,
    rank: int,
    is_own: bool = False,
) -> None:
    """Build a frame of several topics and put it into a group; the locks are held.

    `make` calls `place_entries` or `place_end` for each topic. If it raises, offsets and times are
    restored. `is_own` marks the store's own frames, to which no earlier loss is reported.
    """
    for shard in shards:
        shard.check(reports_loss=not is_own)
    for topic in topics:
        topic.check_dropped()
        topic.pending = None  # later single records begin a new batch
    before = [(topic, topic.next_offset, topic.last_timestamp) for topic in topics]
    try:
        joint = make()
        if rank != SYNCED:
            for topic in topics:
                topic.cover(0)  # covers the offsets given out so far
        if is_own and rank != SYNCED:
            shards[0].relax(group, lazy=False)
        else:
            shards[0].ask(group, rank)
        size = len(joint.body)
        # Uninterruptible.
        group.bytes += size
        group.entries += (joint,)
        # Interruptible.
    except BaseException:
        insist(_set_back, before)
        raise


def _set_back(before: list[tuple[TopicLog, int, int]]) -> None:
    for topic, offset, timestamp in before:
        topic.next_offset, topic.last_timestamp = offset, timestamp


def place_entries(
    log: TopicLog, entries: list[Entry], remake: Remake | None
) -> tuple[int, list[Entry]]:
    """Give the frames of one topic in a joint frame their offsets; returns the first, and them."""
    first = log.next_offset
    entries, end, _ = _place(log, entries, remake)
    place_end(log, end, entries[-1].max_timestamp)
    return first, entries


def place_end(log: TopicLog, end: int, timestamp: int) -> None:
    """Advance a topic to `end` and `timestamp`, for a joint frame that has these offsets."""
    log.next_offset = end
    log.last_timestamp = max(log.last_timestamp, timestamp)


# --- a lone synced record ----------------------------------------------------------------
#
# A thread that appends and waits usually meets no other. The general way costs it 22 us besides the
# disk, this one half of that: after a sync the processor's caches are cold, and the amount of code
# that runs is what counts (decision 0014).
#
# The commit lock is held from before the offset is given until the outcome is known. `Shard.alone`
# is the group of such an append, and holds no other; the open group, which is empty, stays open.
# `alone` is not `done` while an append is in it; if it is interrupted, `Shard.lead` continues it.


def append_synced(
    log: TopicLog,
    value: bytes | None,
    size: int,
    items: Sequence[Item] = (),
) -> int:
    """Append one record with a sync, alone if no thread commits or waits to."""
    shard = log.shard
    is_in = False
    if not shard.group.entries and log.is_plain and (entry := _entry(log, value, items)):
        alone = shard.alone
        # The iterator tries the lock: after a separate call Ctrl-C could come before the `try`.
        for is_taken in shard.try_commit_lock:
            try:
                if is_taken and (is_in := _enter_alone(log, entry)):
                    _commit_alone(log, entry)
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
        shard.notify()
    if not is_in:
        return append_record(log, value, size, SYNCED, items)
    if error is not None:
        raise again(error)
    return entry.base_offset  # type: ignore[union-attr]  # it was made above


def _entry(log: TopicLog, value: bytes | None, items: Sequence[Item]) -> Entry | None:
    """Encode one record as a frame without place and time; None if it depends on its time."""
    if not items and value is not None and not log.codec:
        return plain_entry(log, encode_value(value), 1)
    columns = Columns([value])
    for name, item in items:
        if name in (TIMESTAMP, TTL):
            return None
        setattr(columns, name, [item])
    return records_entry(log, *encode_columns(columns), 1)


def _enter_alone(log: TopicLog, entry: Entry) -> bool:
    """Give a frame its offset, unless another thread came first; the commit lock is held."""
    shard = log.shard
    alone = shard.alone
    with shard.lock:
        if (
            shard.group.entries or shard.owing or not alone.done
            or shard.refusal is not None or shard.lost is not None or log.is_dropped
        ):  # fmt: skip
            return False  # the general way handles it
        alone.entries = []
        alone.encoded = []
        alone.written = alone.published = 0
        alone.error = alone.failure = None
        alone.later = []
        alone.done = False  # still empty: committing it now would do nothing
        _enter(log, [entry], alone, SYNCED)
    return True


def _commit_alone(log: TopicLog, entry: Entry) -> None:
    """Commit as `Shard.lead` does, in straight-line code; the commit lock is held."""
    shard = log.shard
    files, alone = shard.files, shard.alone
    position = files.position
    length = HEADER_BYTES + len(entry.body)
    if files.is_rotating or position + length > files.bytes_max:
        shard.lead(alone)
        return
    alone.encoded = alone.entries
    try:
        end = files.write(alone.encoded, sync=True)
    except StratalogError as error:
        alone.failure = error
        shard.lead(alone)
        return
    except MemoryError:
        shard.lead(alone)  # retries, and reports if that fails as well
        return
    # Uninterruptible.
    files.position = files.synced = end
    alone.position = position
    alone.written = 1
    # Interruptible.
    offset = entry.base_offset
    log.index.add(offset, 1, files.number, position, length, entry.max_timestamp)
    log.advance(offset + 1)
    alone.published = 1
    shard.commits += 1
    shard.committed_entries += 1
    alone.done = True
