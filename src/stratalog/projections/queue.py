"""What a queue has besides its group: which ids were put lately.

The id of a message is the key of its record, so that a replay finds it.

Concurrency: `lock` is held from the look for a duplicate until the message has its offset.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import numpy as np

from stratalog.errors import CorruptionError
from stratalog.format.batch import Batch
from stratalog.format.snapshot import QueueSnapshot
from stratalog.projections.dedup import Dedup
from stratalog.segments.read import read_stored

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
        """Nanoseconds for which an id counts; 0 for none at all."""
        self.dedup = Dedup(DEDUP_ENTRIES)
        self.deduped = 0
        """Ids of messages below this offset were taken in."""
        self.covered = 0
        """Ids of messages below this offset are in a snapshot, as far as they count."""
        self.is_live = False
        """Whether messages are put here: then `put` takes their ids in."""
        self.duplicates = 0

    def configure(self, window: float, entries_max: int) -> None:
        """Take over the queue's options."""
        self.window = round(window * 10**9)
        if entries_max != self.dedup.entries_max:
            entries = self.dedup.to_bytes()
            self.dedup = Dedup(entries_max)
            self.dedup.restore(entries)

    def catch_up(self, end: int) -> None:
        """Take in the ids of messages below `end` that no group will look at any more.

        They were consumed in one go, or deleted, which is no reason to put one again. What went
        with a segment is in a snapshot; of the rest the log has the frames, below the floor, too.
        """
        if self.deduped < end:
            # What is damaged, or moved meanwhile in another process, others tell of.
            with contextlib.suppress(CorruptionError, FileNotFoundError):
                for part in read_stored(self.topic, self.deduped, end):
                    if part.batch.key is not None:
                        self.take_keys(*part)
            self.deduped = end

    def take_keys(self, batch: Batch, first: int, end: int) -> None:
        """Take in the ids of messages that were put before the store was opened."""
        last = batch.offset_of(end - 1)
        if self.is_live or last < self.deduped:
            return
        first = max(first, batch.range_of(self.deduped, last + 1)[0])
        # No more than there is room for: of a long queue, the newest.
        first = max(first, end - self.dedup.entries_max)
        keys = batch.keys(first, end)
        offsets = batch.offsets(first, end).tolist()
        expires = (batch.timestamps(first, end) + np.int64(self.window)).tolist()
        for key, offset, time in zip(keys, offsets, expires, strict=True):
            if key is not None and self.dedup.find(key, time - self.window) < 0:
                self.dedup.add(key, offset, time)
        self.deduped = last + 1

    def tidy(self, now: int) -> None:
        """Forget ids that count no longer, and those of messages that were not written after all.

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
        """The state as a snapshot has it."""
        with self.lock:
            deduped = self.topic.next_offset if self.is_live else self.deduped
            return QueueSnapshot(self.topic.id, deduped, self.dedup.to_bytes())

    def restore(self, state: QueueSnapshot) -> None:
        """Take over what a snapshot says."""
        if state.deduped >= self.deduped:
            self.deduped = self.covered = state.deduped
            self.dedup.restore(state.dedup)


def has_new_ids(topic: TopicLog) -> bool:
    """Whether messages in segments have ids that count, and that no snapshot has."""
    queue, end = topic.groups.queue, topic.history.checkpointed
    if queue is None or queue.covered >= end:
        return False
    with queue.lock:
        queue.tidy(topic.time_ns())
        return queue.dedup.has_between(queue.covered, end)
