"""Frames that are held in memory alone: the records of an ephemeral topic.

Owns: a part of the store's memory, the share `tail`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.format.control import encode_reserve
from stratalog.format.frame import HEADER_BYTES, FrameHeader, FrameType
from stratalog.log.commit_group import Entry
from stratalog.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog

SHARE = "tail"

# Offsets an ephemeral topic may give out before the log must record it: one sync per this many.
_RESERVE = 1 << 16


class MemoryFrames:
    """Frames by slot, up to a number of bytes; the oldest go first.

    Concurrency: the holder of the commit lock adds and drops; any thread reads.
    """

    def __init__(self) -> None:
        self.bytes_max = 0
        self.held_bytes = 0
        self._budget: MemoryBudget | None = None
        self._topic: TopicLog | None = None
        self._frames: dict[int, tuple[FrameHeader, bytes]] = {}

    def attach(self, topic: TopicLog, budget: MemoryBudget, bytes_max: int) -> None:
        """Set the topic of the frames, and the budget that they count against."""
        self._topic, self._budget, self.bytes_max = topic, budget, bytes_max
        budget.hold(SHARE, self)

    def detach(self) -> None:
        """Drop all frames: the topic was dropped."""
        if self._budget is not None:
            self._budget.release(SHARE, self)
            self._budget.add(SHARE, -self.held_bytes)
            self._budget = None
        self.held_bytes = 0
        self._frames = {}

    def make_room(self, size: int) -> None:
        """Ensure memory for that many bytes; raises if there is none."""
        if self._budget is not None:
            self._budget.ensure(SHARE, size)

    def add(self, entry: Entry) -> tuple[int, int]:
        """Hold a frame; returns its slot and its length. Idempotent."""
        slot = entry.base_offset
        header = FrameHeader(
            entry.type, entry.flags, len(entry.body), entry.count, entry.topic_id,
            entry.base_offset, entry.base_timestamp, entry.max_timestamp, entry.body_checksum, 0,
        )  # fmt: skip
        length = HEADER_BYTES + len(entry.body)
        held = self._frames.get(slot)
        self._frames[slot] = (header, entry.body)
        self._count(length - (HEADER_BYTES + len(held[1]) if held is not None else 0))
        return slot, length

    def get(self, slot: int) -> tuple[FrameHeader, bytes] | None:
        """Return the frame in a slot, if it is still there."""
        return self._frames.get(slot)

    def drop_oldest(self, topic: TopicLog) -> None:
        """Drop a quarter of the frames of a topic that has any.

        A reader continues with the index it holds, and finds the slots of dropped frames empty. By
        the time it looks again the topic must report the gap.
        """
        index = topic.index
        places = [index.place(number) for number in range(max(1, len(index) // 4))]
        earliest = places[-1].base_offset + places[-1].count
        topic.index, topic.earliest = index.from_offset(earliest), earliest
        for place in places:
            if self._frames.pop(place.position, None) is not None:
                self._count(-place.length)

    def shed(self) -> bool:
        """Drop a quarter of the frames to free memory for the store."""
        topic = self._topic
        if topic is None:
            return False
        with topic.shard.commit_lock:
            if not len(topic.index):
                return False
            self.drop_oldest(topic)
        return True

    def _count(self, length: int) -> None:
        self.held_bytes += length
        if self._budget is not None:
            self._budget.add(SHARE, length)


def make_room(topic: TopicLog, records: int, size: int) -> None:
    """Ensure that an ephemeral topic has memory for records, and offsets to give them.

    The log must have, durably, the offset up to which offsets may have been given out. Other
    threads may take them meanwhile: the thread that gives them, with the lock held, checks `given`
    again.
    """
    topic.memory.make_room(size)
    if topic.next_offset + records > topic.reserved:
        write_reserve(topic, max(records, _RESERVE))


def write_reserve(topic: TopicLog, ahead: int) -> None:
    """Log durably the offset up to which an ephemeral topic may have given offsets out."""
    shard = topic.shard
    with shard.lock:
        topic.check()
        offset = topic.next_offset + ahead
        # At a close it is lower than before: from now on no append gets an offset above it.
        topic.reserved = topic.given = min(topic.reserved, offset)
        number = topic.reservation_asked = topic.reservation_asked + 1

        def done() -> None:
            topic.reservation = max(topic.reservation, number)
            if number == topic.reservation_asked:  # a later one may be lower
                topic.reserved = topic.given = offset

        body = encode_reserve(number)
        group = shard.enter(
            Entry(FrameType.RESERVE, topic.id, body, base_offset=offset, on_commit=done)
        )
    shard.commit(group)
