"""Frames that are held in memory alone: the records of an ephemeral topic."""

from __future__ import annotations

from itertools import count

from stratalog.format.frame import HEADER_BYTES, FrameHeader
from stratalog.log.group import Entry
from stratalog.log.index import FrameIndex


class MemoryFrames:
    """Frames by slot, up to a number of bytes; the oldest go first.

    Concurrency: the holder of the commit lock adds and drops; anybody reads.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self.bytes_max = 0
        self._frames: dict[int, tuple[FrameHeader, bytes]] = {}
        self._slots = count()

    def add(self, entry: Entry) -> tuple[int, int]:
        """Hold a frame; returns its slot and its length."""
        slot = next(self._slots)
        header = FrameHeader(
            entry.type, entry.flags, len(entry.body), entry.count, entry.topic_id,
            entry.base_offset, entry.base_timestamp, entry.max_timestamp, entry.body_checksum, 0,
        )  # fmt: skip
        length = HEADER_BYTES + len(entry.body)
        self._frames[slot] = (header, entry.body)
        self.bytes += length
        return slot, length

    def get(self, slot: int) -> tuple[FrameHeader, bytes] | None:
        """The frame in a slot, if it is still there."""
        return self._frames.get(slot)

    def drop_oldest(self, index: FrameIndex) -> tuple[FrameIndex, int]:
        """Drop a quarter of the frames; returns the index of the rest, and their first offset."""
        drop = max(1, len(index) // 4)
        for number in range(drop):
            place = index.place(number)
            self._frames.pop(place.position, None)
            self.bytes -= place.length
        earliest = place.base_offset + place.count
        return index.behind(earliest), earliest
