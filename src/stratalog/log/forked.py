"""A fork of a process that writes a log: the log stays the parent's, and nothing here writes to it.

Only the thread that forked is in the child. What others held at that moment is held by nobody, for
ever: locks, a generator that one was in, a group that one was writing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial

from stratalog.errors import StratalogError
from stratalog.log.gathering import NONE_RUNS
from stratalog.log.group import Group
from stratalog.log.shard import Shard
from stratalog.log.topic import TopicLog


def forget(shards: Iterable[Shard], topics: Iterable[TopicLog], refusal: StratalogError) -> None:
    """Have everything refused from now on, in this process."""
    for shard in shards:
        _forget_shard(shard, refusal)
    for topic in topics:
        _forget_topic(topic)


def _forget_shard(shard: Shard, refusal: StratalogError) -> None:
    shard.lock, shard.commit_lock = threading.Lock(), threading.Lock()
    shard.try_commit_lock = iter(partial(shard.commit_lock.acquire, False), None)
    shard.refusal = refusal
    for group in (shard.group, shard.in_flight, shard.alone):
        if group is not None and not group.done:
            group.finish(refusal)  # what a future of it is told
    shard.group, shard.in_flight = Group(), None
    shard.files.close(trim=False)


def _forget_topic(topic: TopicLog) -> None:
    topic.lock = topic.shard.lock
    topic.take_lock = iter(topic.lock.acquire, False)
    topic.is_plain = topic.may_gather = False
    topic.send = NONE_RUNS
    topic.gathering = None
    topic.stop_gathering()
    topic.groups.disown()
