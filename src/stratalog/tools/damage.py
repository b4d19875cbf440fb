"""Damaged places of the log, and what can be told of the frames that were there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.errors import FormatError
from stratalog.format.frame import HEADER, HEADER_BYTES, MAGIC, FrameType, decode_header
from stratalog.format.multi import inner_seed


class Suspect(NamedTuple):
    """A frame that was in a damaged place of the log, as far as its header can be read."""

    type: int
    topic_id: int
    first: int
    count: int  # type: ignore[assignment]  # a tuple's own count() is not missed
    is_certain: bool
    """Whether the header's checksum is right."""


class LogDamage(NamedTuple):
    """A part of a log file that has to be bridged."""

    path: str
    seed: int
    """Seed of the checksums in the file."""
    start: int
    end: int
    reason: str
    is_cut: bool
    """Whether the file ends before what the snapshot says was durable."""
    suspects: list[Suspect]


def find_suspects(data: bytes, seed: int) -> Iterator[Suspect]:
    """Frames that were in these bytes, as long as one can be followed to the next."""
    position = 0
    while position + HEADER_BYTES <= len(data):
        try:
            header = decode_header(data, position, seed=seed)
        except FormatError:
            fields = HEADER.unpack_from(data, position)
            magic, _, type, flags, length, count, topic_id, first = fields[:8]
            # Bytes that are nearly right: trusted only where they fit what is known for certain.
            fits = position + HEADER_BYTES + length <= len(data) and length % 8 == 0
            if magic != MAGIC or flags & 7 or not fits or not 0 < 4 * count < length:
                return
            suspect = Suspect(type, topic_id, first, count, is_certain=False)
        else:
            length = header.body_length
            suspect = Suspect(
                header.type, header.topic_id, header.base_offset, header.count, is_certain=True
            )
        inner = inner_seed(seed)
        if suspect.type == FrameType.MULTI and seed != inner:  # all it holds is lost with it
            start = position + HEADER_BYTES
            yield from find_suspects(data[start : start + length], inner)
        else:
            yield suspect
        position += HEADER_BYTES + length


def contents(suspects: list[Suspect]) -> str:
    """Describe what damaged frames held, as far as it is known."""
    if not suspects:
        return "what was in them: nothing of it can be told"
    texts = []
    for one in suspects[:8]:
        sure = "" if one.is_certain else "probably "
        if one.type == FrameType.RECORDS:
            texts.append(
                f"{sure}offsets {one.first} to {one.first + one.count - 1} of topic {one.topic_id}"
            )
        else:
            kind = FrameType(one.type).name if one.type in set(FrameType) else str(one.type)
            texts.append(f"{sure}a {kind} frame of topic {one.topic_id}")
    more = "" if len(suspects) <= 8 else f" and {len(suspects) - 8} frames more"
    return ", ".join(texts) + more
