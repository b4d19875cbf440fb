"""A fork of a process that writes a log: the log stays the parent's, and the child never writes it.

Only the thread that forked exists in the child. Locks that other threads held at that moment, and a
group that one was writing, are never released there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial

from stratalog.errors import StratalogError
from stratalog.log.commit_group import Group
from stratalog.log.shard import Shard
from stratalog.log.topic import TopicLog


def forget(shards: Iterable[Shard], topics: Iterable[TopicLog], refusal: StratalogError) -> None:
    """Refuse every call from now on, in this process."""
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
            group.finish(refusal)  # the error of its futures
    shard.group, shard.in_flight = Group(), None
    shard.files.close(trim=False)


def _forget_topic(topic: TopicLog) -> None:
    topic.lock = topic.shard.lock
    topic.take_lock = iter(topic.lock.acquire, False)
    topic.is_plain = False
    topic.pending = None
    topic.groups.disown()
