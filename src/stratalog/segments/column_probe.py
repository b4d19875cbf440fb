"""A probe for records that are more than values, by the headers of their frames alone."""

from __future__ import annotations

from stratalog.errors import FormatError
from stratalog.format.frame import HEADER_BYTES, Flag, decode_header
from stratalog.log.index import MEMORY
from stratalog.log.topic import TopicLog

# The columns that a queue has to know before it delivers a message, or to identify it.
_TELLING = Flag.KEYS | Flag.PRIORITIES | Flag.NOT_BEFORE | Flag.OFFSETS

# Smaller frames are read faster many at a time, with their bodies.
_LARGE_BYTES = 1 << 14


def plain_until(topic: TopicLog, start: int, end: int) -> int:
    """Return the offset up to which the log has large frames without key, priority or delay.

    Reads 64 bytes of each frame and verifies no more: the delivery of a record verifies it. Returns
    `start` if that is not enough to decide, or if the records are no longer in the log.
    """
    if start < topic.earliest or topic.history.find(start) is not None:
        return start
    index, reader = topic.index, topic.reader
    for number in range(index.find(start), len(index)):
        place = index.place(number)
        if (
            start >= end
            or not place.base_offset <= start < place.base_offset + place.count
            or place.file == MEMORY
            or place.length < _LARGE_BYTES
        ):
            break
        try:
            data = reader.pread(place.file, HEADER_BYTES, place.position)
            header = decode_header(data, seed=reader.seed(place.file))
        except (FormatError, FileNotFoundError):
            break  # damaged, or moved meanwhile: the read of the record finds out
        if header[4:6] != (topic.id, place.base_offset) or header.flags & _TELLING:
            break
        start = place.base_offset + place.count
    return min(start, end)
