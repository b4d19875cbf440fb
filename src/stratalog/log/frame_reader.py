"""Reading frames of the log: header and body are verified, and parsed in place.

Neighbouring frames are read together, about two megabytes at a time. Small frames, which single
synced appends leave, are verified by column and become one batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.batch import Batch
from stratalog.format.frame import HEADER_BYTES, FrameHeader, check_body, decode_header
from stratalog.format.runs import Headers, Int64s, as_headers, leading, verify_run
from stratalog.format.singles import are_single, merge_singles
from stratalog.log.index import MEMORY, FrameIndex, FramePlace
from stratalog.log.topic import TopicLog

_READ_BYTES = 2 << 20

# This many frames, if none takes more room than this including the space between them, are merged:
# the copy takes a tenth of the time of handling each separately. Larger frames stay where they are,
# and so do fewer: merging costs 50 us in any case.
_MANY_FRAMES = 16
_SMALL_FRAME_BYTES = 1 << 14


def read_frames(topic: TopicLog, index: FrameIndex, number: int, end: int) -> Iterable[Batch]:
    """Read the log from a frame on and before `end`, up to about two megabytes."""
    place = index.place(number)
    stop = number + 1
    if place.base_offset + place.count < end:
        stop = min(len(index), number + end - place.base_offset)
    if stop - number >= _MANY_FRAMES and place.file != MEMORY:
        other = index.place(number + _MANY_FRAMES - 1)
        room = other.position + other.length - place.position
        if other.file == place.file and room <= _MANY_FRAMES * _SMALL_FRAME_BYTES:
            stop = min(stop, number + _READ_BYTES // place.length)
            if batches := _read_many(topic, index.numbers(number, stop), end):
                return batches
    if stop - number == 1:
        return read_run(topic, [place])
    return read_run(topic, _run(index, place, number, stop, end))


def _read_many(topic: TopicLog, numbers: Int64s, end: int) -> list[Batch]:
    """Read small frames of one file together, in order, as few batches as possible.

    Stops before the first frame with any fault; empty if that is the first of all, which then
    raises its own error when it is read alone.
    """
    bases, counts, files, lengths, _, positions = numbers
    is_next = (
        (files[1:] == files[0])
        & (positions[1:] >= positions[:-1] + lengths[:-1])
        & (bases[1:] == bases[:-1] + counts[:-1])
        & (positions[1:] + lengths[1:] - positions[0] <= _READ_BYTES)
        & (bases[1:] < end)
    )
    many = leading(is_next) + 1
    starts = positions[:many] - positions[0]
    file = int(files[0])
    data = topic.reader.pread(file, int(starts[-1] + lengths[many - 1]), int(positions[0]))
    headers = verify_run(data, starts, lengths[:many], topic.reader.seed(file))
    many = len(headers)
    is_ours = (
        (headers["topic_id"] == topic.id)
        & (headers["base_offset"] == bases[:many])
        & (headers["count"] == counts[:many])
    )
    headers = headers[: leading(is_ours)]
    if not len(headers):
        return []
    bodies = starts[: len(headers)] + HEADER_BYTES
    if (merged := Batch.merge(headers, data, bodies)) is not None:
        return [merged]
    batches: list[Batch] = []
    with contextlib.suppress(FormatError):
        # The frames before the faulty one stay.
        batches.extend(_merged_parts(headers, data, bodies, topic.reader.expanded_bytes_max))
    return batches


def _merged_parts(
    headers: Headers, data: bytes, bodies: Int64s, expanded_bytes_max: int
) -> Iterator[Batch]:
    """Give verified frames, with consecutive ones of one record each merged."""
    is_single = are_single(headers)
    edges = np.flatnonzero(is_single[1:] != is_single[:-1]) + 1
    for first, last in pairwise([0, *edges.tolist(), len(headers)]):
        some, places = headers[first:last], bodies[first:last]
        if is_single[first] and (merged := merge_singles(some, data, places)) is not None:
            yield merged
            continue
        for header, body in zip(as_headers(some), places.tolist(), strict=True):
            yield Batch.parse(header, data, body, expanded_bytes_max)


def _run(
    index: FrameIndex, place: FramePlace, number: int, stop: int, end: int
) -> list[FramePlace]:
    """Find adjacent frames of one file, without a hole, up to about two megabytes."""
    run = [place]
    total = place.length
    while number + len(run) < stop and place.file != MEMORY:
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


def read_run(topic: TopicLog, run: list[FramePlace]) -> Iterator[Batch]:
    """Read adjacent frames one by one; raises an error that names the faulty one and its place."""
    first = run[0]
    if first.file == MEMORY:
        held = topic.memory.get(first.position)
        if held is None:
            raise CorruptionError(
                f"topic {topic.name!r}: offsets {first.base_offset} to "
                f"{first.base_offset + first.count - 1} left memory while they were read"
            )
        yield Batch.parse(*held, 0, topic.reader.expanded_bytes_max)
        return
    length = run[-1].position + run[-1].length - first.position
    data = topic.reader.pread(first.file, length, first.position)
    for place in run:
        header = _verify(topic, place, data, place.position - first.position)
        try:
            start = place.position - first.position + HEADER_BYTES
            batch = Batch.parse(header, data, start, topic.reader.expanded_bytes_max)
        except FormatError as error:
            raise damaged(topic, place, error) from error
        yield batch


def _verify(topic: TopicLog, place: FramePlace, data: bytes, at: int) -> FrameHeader:
    try:
        header = decode_header(data, at, seed=topic.reader.seed(place.file))
        if header[4:6] != (topic.id, place.base_offset) or header.count != place.count:
            raise CorruptionError("another frame is where this one was")
        check_body(header, data, at + HEADER_BYTES)
    except FormatError as error:
        raise damaged(topic, place, error) from error
    return header


def damaged(topic: TopicLog, place: FramePlace, error: Exception) -> CorruptionError:
    """Build the error for a frame that changed or is missing."""
    return CorruptionError(
        f"{topic.reader.path(place.file)} at position {place.position}: {error} "
        f"(topic {topic.name!r}, offsets {place.base_offset} to "
        f"{place.base_offset + place.count - 1}). Nothing damaged is ever returned; "
        "read around these offsets, restore the file from a copy, or run `stratalog repair`."
    )
