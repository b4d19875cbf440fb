"""Frames that are held in memory alone: the records of an ephemeral topic.

Owns: a part of the store's memory, the share `tail`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.format.control import encode_reserve
from stratalog.format.frame import HEADER_BYTES, FrameHeader, FrameType
from stratalog.log.group import Entry
from stratalog.log.index import FrameIndex
from stratalog.memory import MemoryBudget

if TYPE_CHECKING:
    from stratalog.log.topic import TopicLog

SHARE = "tail"


class MemoryFrames:
    """Frames by slot, up to a number of bytes; the oldest go first.

    Concurrency: the holder of the commit lock adds and drops; anybody reads.
    """

    def __init__(self) -> None:
        self.bytes_max = 0
        self.held_bytes = 0
        self._budget: MemoryBudget | None = None
        self._topic: TopicLog | None = None
        self._frames: dict[int, tuple[FrameHeader, bytes]] = {}

    def attach(self, topic: TopicLog, budget: MemoryBudget, bytes_max: int) -> None:
        """Say whose frames they are, and what they count against."""
        self._topic, self._budget, self.bytes_max = topic, budget, bytes_max
        budget.hold(SHARE, self)

    def detach(self) -> None:
        """Let everything go: the topic was dropped."""
        if self._budget is not None:
            self._budget.release(SHARE, self)
            self._budget.add(SHARE, -self.held_bytes)
            self._budget = None
        self.held_bytes = 0
        self._frames = {}

    def make_room(self, size: int) -> None:
        """See that there is memory for so many bytes; raises if there is not."""
        if self._budget is not None:
            self._budget.ensure(SHARE, size)

    def add(self, entry: Entry) -> tuple[int, int]:
        """Hold a frame; returns its slot and its length. May be repeated."""
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
        """The frame in a slot, if it is still there."""
        return self._frames.get(slot)

    def drop_oldest(self, index: FrameIndex) -> tuple[FrameIndex, int]:
        """Drop a quarter of the frames; returns the index of the rest, and their first offset.

        A reader goes on with the index it holds, and finds the slots it comes too late for gone.
        """
        for number in range(max(1, len(index) // 4)):
            place = index.place(number)
            if self._frames.pop(place.position, None) is not None:
                self._count(-place.length)
        earliest = place.base_offset + place.count
        return index.behind(earliest), earliest

    def shed(self) -> bool:
        """Drop a quarter of the frames because the store needs the memory."""
        topic = self._topic
        if topic is None:
            return False
        with topic.shard.commit_lock:
            if not len(topic.index):
                return False
            topic.index, topic.earliest = self.drop_oldest(topic.index)
        return True

    def _count(self, length: int) -> None:
        self.held_bytes += length
        if self._budget is not None:
            self._budget.add(SHARE, length)


def write_reserve(topic: TopicLog, ahead: int) -> None:
    """Have the log say, durably, up to where an ephemeral topic may have given offsets out."""
    shard = topic.shard
    with shard.lock:
        topic.check()
        offset = topic.next_offset + ahead
        number = topic.reservation_asked = topic.reservation_asked + 1

        def done() -> None:
            if number > topic.reservation:
                topic.reservation, topic.reserved = number, offset

        body = encode_reserve(number)
        group = shard.enter(
            Entry(FrameType.RESERVE, topic.id, body, base_offset=offset, on_commit=done)
        )
    shard.commit(group)
