"""From offsets to verified batches: the way out of the log.

Every frame is verified when it is read, header and body. Neighbouring frames are read at once,
about a megabyte at a time, and parsed in place. Log files are read by `pread`, never mapped: they
are recycled, and a mapped page would change under the reader's hands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.batch import Batch
from stratalog.format.frame import HEADER_BYTES, FrameHeader, check_body, decode_header
from stratalog.log.index import MEMORY, FrameIndex, FramePlace
from stratalog.log.topic import TopicLog
from stratalog.model import Gap

_READ_BYTES = 1 << 20


class Slice(NamedTuple):
    """Records `first` to `end` (not included) of a batch."""

    batch: Batch
    first: int
    end: int


def read_batches(topic: TopicLog, start: int, end: int) -> Iterator[Slice | Gap]:
    """Everything published between the two offsets, in order, gaps included."""
    index = topic.index
    number = index.find(start)
    frames = len(index)
    while start < end:
        if number >= frames or index.place(number).base_offset >= end:
            yield _gap(topic, start, end - 1)
            return
        base = index.place(number).base_offset
        if base > start:
            yield _gap(topic, start, base - 1)
            start = base
        run = _run(index, number, frames, end)
        for batch in _read_run(topic, run):
            base = batch.base_offset
            last = min(base + batch.count, end)
            yield Slice(batch, start - base, last - base)
            start = last
        number += len(run)


def _run(index: FrameIndex, number: int, frames: int, end: int) -> list[FramePlace]:
    """Frames side by side in one file, without a hole, up to about a megabyte."""
    place = index.place(number)
    run = [place]
    total = place.length
    while number + len(run) < frames and place.file != MEMORY:
        following = index.place(number + len(run))
        total += following.length
        if (
            following.file != place.file
            or following.position != place.position + place.length
            or following.base_offset != place.base_offset + place.count
            or following.base_offset >= end
            or total > _READ_BYTES
        ):
            break
        run.append(following)
        place = following
    return run


def _read_run(topic: TopicLog, run: list[FramePlace]) -> Iterator[Batch]:
    first = run[0]
    if first.file == MEMORY:
        held = topic.memory.get(first.position)
        if held is None:
            raise CorruptionError(
                f"topic {topic.name!r}: offsets {first.base_offset} to "
                f"{first.base_offset + first.count - 1} left memory while they were read"
            )
        yield Batch.parse(*held)
        return
    seed = topic.reader.seed(first.file)
    length = run[-1].position + run[-1].length - first.position
    data = topic.reader.pread(first.file, length, first.position)
    for place in run:
        at = place.position - first.position
        try:
            header = decode_header(data, at, seed=seed)
            _check_place(header, topic, place)
            check_body(header, data, at + HEADER_BYTES)
            yield Batch.parse(header, data, at + HEADER_BYTES)
        except FormatError as error:
            raise CorruptionError(
                f"{topic.reader.path(place.file)} at position {place.position}: {error} "
                f"(topic {topic.name!r}, offsets {place.base_offset} to "
                f"{place.base_offset + place.count - 1}). Nothing damaged is ever returned; "
                "read around these offsets, or restore the file from a copy."
            ) from error


def _check_place(header: FrameHeader, topic: TopicLog, place: FramePlace) -> None:
    if (header.topic_id, header.base_offset, header.count) != (
        topic.id, place.base_offset, place.count,
    ):  # fmt: skip
        raise CorruptionError("another frame is where this one was")


def _gap(topic: TopicLog, first: int, last: int) -> Gap:
    if topic.is_ephemeral:
        return Gap(first, last, "ephemeral")
    raise CorruptionError(
        f"topic {topic.name!r}: offsets {first} to {last} are in a damaged part of the log. "
        "Nothing damaged is ever returned; read around these offsets, or restore the log file "
        "from a copy."
    )
