"""Frames that belong to the store and to no topic: definitions, and notes beside records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from stratalog.errors import StratalogError
from stratalog.log.append import place_entries
from stratalog.log.commit_group import Entry
from stratalog.log.joint import JointFrame, MultiFrame
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog

Apply = Callable[[int, int, bytes], None]
"""Makes a frame state: its type, its number and its body."""


def note(type: int, number: int, data: bytes, apply: Apply) -> Entry:
    """A frame of the store's own, which becomes state as it would in recovery."""
    return Entry(type, 0, data, base_offset=number, on_commit=lambda: apply(type, number, data))


def write_definition(log: Log, entry: Entry) -> None:
    """Put a frame into the first shard, durably."""
    shard = log.shards[0]
    try:
        with shard.lock:
            shard.check(reports_loss=False)
            group = shard.enter(entry)
        shard.commit(group)
    except BaseException:
        # Ctrl-C may leave it in the open group: what becomes of it comes first.
        with contextlib.suppress(StratalogError):
            shard.sync(reports_loss=False)
        raise


def commit_noted(
    log: Log,
    topic: TopicLog,
    records: Entry | None,
    entry: Entry,
    remake: Callable[[int], list[Entry]] | None = None,
) -> None:
    """Commit records of a topic and a note about them as one frame, of the topic's class."""

    def make() -> JointFrame:
        if records is None:
            return MultiFrame([entry], [topic])
        _, placed = place_entries(topic, [records], remake)
        return MultiFrame([*placed, entry], [topic])

    try:
        group = log.cross_shard.enter([topic], make, topic.rank, is_left=False, is_own=True)
        assert group is not None  # one topic is in one shard
        topic.shard.commit(group)
    except BaseException:
        # It may be in the open group: what becomes of it comes first, or it would come twice.
        with contextlib.suppress(StratalogError):
            topic.shard.sync(reports_loss=False)
        raise
