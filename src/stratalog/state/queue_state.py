"""The additional state of a queue: ids that were put recently.

The id of a message is the key of its record, so recovery finds it.

Concurrency: `lock` is held from the search for a duplicate until the message has its offset.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import numpy as np

from stratalog.errors import CorruptionError
from stratalog.format.batch import Batch
from stratalog.format.snapshot import QueueSnapshot
from stratalog.segments.read import read_stored
from stratalog.state.dedup import Dedup

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog

DEDUP_WINDOW = 300.0
DEDUP_ENTRIES = 100_000


class QueueState:
    """The deduplication window of one queue."""

    def __init__(self, topic: TopicLog) -> None:
        self.topic = topic
        self.lock = threading.Lock()
        self.window = round(DEDUP_WINDOW * 10**9)
        """Nanoseconds after which an id expires; 0 for no deduplication."""
        self.dedup = Dedup(DEDUP_ENTRIES)
        self.deduped = 0
        """Ids of messages below this offset were taken in."""
        self.covered = 0
        """Valid ids of messages below this offset are in a snapshot."""
        self.is_live = False
        """Whether this process puts messages: then `put` takes their ids in."""
        self.duplicates = 0

    def configure(self, window: float, entries_max: int) -> None:
        """Apply the queue's options."""
        self.window = round(window * 10**9)
        if entries_max != self.dedup.entries_max:
            entries = self.dedup.to_bytes()
            on_growth = self.dedup.on_growth
            self.dedup = Dedup(entries_max)
            self.dedup.on_growth = on_growth
            self.dedup.restore(entries)

    def catch_up(self, end: int) -> None:
        """Take in the ids of messages below `end` that no group will read any more.

        They were consumed in one go, or deleted; their ids still count. Ids of removed segments are
        in a snapshot; the log has the frames of the rest, also below the floor.
        """
        if self.deduped < end:
            # Damage, or a move by another process, is reported elsewhere.
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                self._read_keys(end)
            self.deduped = end

    def _read_keys(self, end: int) -> None:
        for part in read_stored(self.topic, self.deduped, end):
            if part.batch.key is not None:
                self.take_keys(*part)

    def take_keys(self, batch: Batch, first: int, end: int) -> None:
        """Take in the ids of messages that were put before the store was opened."""
        last = batch.offset_of(end - 1)
        if self.is_live or last < self.deduped:
            return
        first = max(first, batch.range_of(self.deduped, last + 1)[0])
        # As many as there is room for: the newest of a long queue.
        first = max(first, end - self.dedup.entries_max)
        keys = batch.keys(first, end)
        offsets = batch.offsets(first, end).tolist()
        expires = (batch.timestamps(first, end) + np.int64(self.window)).tolist()
        for key, offset, time in zip(keys, offsets, expires, strict=True):
            if key is not None:
                self.dedup.add(key, offset, time)  # what is in the log was no duplicate
        self.deduped = last + 1

    def tidy(self, now: int) -> None:
        """Remove expired ids, and those of messages that were not written after all.

        The lock is held.
        """
        topic = self.topic
        if topic.given_back >= 0:
            with topic.lock:
                lowest, topic.given_back = topic.given_back, -1
            self.dedup.forget_from(lowest)
        if now >= self.dedup.next_expiry:
            self.dedup.expire(now)

    def capture(self) -> QueueSnapshot:
        """Capture the state for a snapshot."""
        with self.lock:
            deduped = self.topic.next_offset if self.is_live else self.deduped
            return QueueSnapshot(self.topic.id, deduped, self.dedup.to_bytes())

    def restore(self, state: QueueSnapshot) -> None:
        """Take over the state of a snapshot."""
        if state.deduped >= self.deduped:
            self.deduped = self.covered = state.deduped
            self.dedup.restore(state.dedup)


def has_new_ids(topic: TopicLog) -> bool:
    """Return whether messages in segments have valid ids that no snapshot has."""
    queue, end = topic.groups.queue, topic.history.checkpointed
    if queue is None or queue.covered >= end:
        return False
    with queue.lock:
        queue.tidy(topic.sane_time_ns())
        return queue.dedup.has_between(queue.covered, end)
