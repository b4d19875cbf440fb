"""The shortest way of single values into the open group: a generator that takes them in.

Nearly every append takes it, and a lock would be a quarter of its time. A generator is one that
costs nothing: the interpreter lets a second thread into it with a `ValueError` only. So while one
runs, it and not the shard's lock guards the topic's end of the log: what is pending, `next_offset`
and `last_timestamp`. Whoever needs those takes the shard's lock, as ever, and then ends it.

Invariants:
- One is begun, and ended, with the shard's lock held; it needs no lock itself, so that ending it
  never waits longer than for the append that is in it.
- A record is in once `next_offset` has moved behind it. What an interrupted append left pending
  behind that is cut off when the generator is ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.log.group import Pending
    from stratalog.log.topic import TopicLog

Gathering = Generator[int, bytes, None]
"""Takes a value, gives its offset."""

# Without the interpreter's lock two threads could be in one generator: then every append locks.
IS_POSSIBLE = getattr(sys, "_is_gil_enabled", lambda: True)()

# How long to wait for a thread that is in the generator. It has to run to get out of it.
_WAIT_SECONDS = 1e-5


class _EndedError(Exception):
    """Ends a generator, and comes out of it again."""


def gather(log: TopicLog, value: bytes) -> int:
    """Append a plain value that `send` could not take; returns its offset.

    None was running, or one that another thread is in: that one is ended, and the next runs.
    """
    if not log.may_gather:
        return log.append(value, len(value), None, log.rank)  # type: ignore[return-value]
    with log.lock:
        try:
            go_on(log)
            log.ask(log.shard.group, log.rank)
            gathering = _gathering(log, log.pending)
            next(gathering)
            offset = gathering.send(value)
            log.add_value = partial(_take_over, log)
            log.gathering = gathering
            log.send = gathering.send
        except BaseException:
            log.take_back()
            raise
    return offset


def go_on(log: TopicLog) -> None:
    """See that there is a batch for single appends, of whole records; called with the lock held."""
    if log.pending_group is None:
        log.begin_batch()
    else:
        claim(log)
        log.pending.cut(log.next_offset)  # an interrupted append, and an interrupted `take_back`


def commit_gathered(log: TopicLog, offset: int) -> None:
    """Commit the group that a record is in, unless it is closed: then somebody is at it.

    What becomes of a later one is not for this append to tell.
    """
    group = log.pending_group
    if group is not None and log.pending.base_offset <= offset:
        log.shard.commit(group)


def claim(log: TopicLog) -> None:
    """Have the shard's lock, which is held, guard the topic's end; may be repeated."""
    if log.gathering is None:
        return
    log.send = NONE_RUNS  # whoever comes next waits for the lock
    while True:
        try:
            # Not `close`: CPython 3.12 and 3.13 end one with it that another thread is in.
            log.gathering.throw(_EndedError)
        except _EndedError:
            break
        except ValueError:  # a thread is in it
            time.sleep(_WAIT_SECONDS)
    log.pending.cut(log.next_offset)
    log.add_value = log.pending.values.append
    log.gathering = None


def _take_over(log: TopicLog, value: bytes | None) -> None:
    """Add a value to the batch that a generator was gathering; called with the lock held."""
    claim(log)
    log.add_value(value)


def _gathering(log: TopicLog, pending: Pending) -> Gathering:
    values = pending.values
    timestamps = pending.timestamps
    time_ns = log.time_ns
    offset = -1
    while True:
        value = yield offset
        values.append(value)
        if (now := time_ns()) > log.last_timestamp:
            log.last_timestamp = now
        else:
            now = log.last_timestamp
        timestamps.append(now)
        offset = log.next_offset
        log.next_offset = offset + 1


def _none() -> Gathering:
    yield from ()


_ended = _none()
_ended.close()

NONE_RUNS: Callable[[bytes], int] = _ended.send
"""`send` of a generator that has ended, for topics that have none."""
