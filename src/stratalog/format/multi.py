"""Multi frames: frames of several topics inside of one, so that all of them are there or none.

The body of a `MULTI` frame is whole frames, header and body, one after the other, at least one and
none of them a `MULTI` frame itself. In its own header `count` is their number; `flags`, `topic_id`,
`base_offset` and both times are zero. Its body checksum covers all of them: a reader that has
verified it takes them in as if they stood in the log one by one, in their order.

The header checksum of an inner frame is seeded with the seed of the log file plus 2^63, which is no
file's. So no reader takes one for a frame of the log itself: not after a `MULTI` frame that a crash
has cut short, where whole inner frames may be left, and not in a recycled file. `unsynced` is zero
in an inner frame.
"""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.frame import HEADER_BYTES, FrameHeader, FrameType, check_body, decode_header

_INNER = 1 << 63


def inner_seed(seed: int) -> int:
    """The seed of inner frames, from that of the file they are in."""
    return seed | _INNER


def decode_multi(header: FrameHeader, body: bytes, seed: int) -> list[tuple[int, FrameHeader]]:
    """Positions in the body and headers of all inner frames; raises `CorruptionError`.

    `seed` is that of the file. Nothing is returned unless everything is right.
    """
    if any((header.flags, header.topic_id, header.base_offset, *header[6:8])):
        raise CorruptionError("multi frame with flags, a topic, an offset or a time")
    found = list(_inner(body, inner_seed(seed)))
    if not found or len(found) != header.count:
        raise CorruptionError(f"multi frame of {header.count} frames has {len(found)}")
    return found


def _inner(body: bytes, seed: int) -> Iterator[tuple[int, FrameHeader]]:
    position = 0
    while position < len(body):
        try:
            header = decode_header(body, position, seed=seed)
            check_body(header, body, position + HEADER_BYTES)
        except FormatError as error:
            raise CorruptionError(f"multi frame, at {position} in its body: {error}") from error
        if header.type == FrameType.MULTI:
            raise CorruptionError("multi frame inside of a multi frame")
        if header.unsynced:
            raise CorruptionError("multi frame with an inner frame that claims a place in the log")
        yield position, header
        position += HEADER_BYTES + header.body_length
