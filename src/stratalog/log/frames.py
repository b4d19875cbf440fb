"""Frames of the log, read back: verified, header and body, and parsed in place.

Neighbouring frames are read at once, about two megabytes at a time. Small ones, as single appends
that are synced leave them, are verified by column and become one batch.
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

# So many frames that take no more room than this each, with what is between them, are merged: the
# copy takes a tenth of the time of handling each by itself. Larger ones are better left where they
# are, and so are fewer: 50 us are gone in any case.
_MANY_FRAMES = 16
_SMALL_FRAME_BYTES = 1 << 14


def read_frames(topic: TopicLog, index: FrameIndex, number: int, end: int) -> Iterable[Batch]:
    """What the log has from a frame on and before `end`, up to about two megabytes of it."""
    place = index.place(number)
    stop = min(len(index), number + end - place.base_offset)
    if stop - number >= _MANY_FRAMES and place.file != MEMORY:
        other = index.place(number + _MANY_FRAMES - 1)
        room = other.position + other.length - place.position
        if other.file == place.file and room <= _MANY_FRAMES * _SMALL_FRAME_BYTES:
            stop = min(stop, number + _READ_BYTES // place.length)
            if batches := _read_many(topic, index.numbers(number, stop), end):
                return batches
    return read_run(topic, _run(index, number, stop, end))


def _read_many(topic: TopicLog, numbers: Int64s, end: int) -> list[Batch]:
    """Small frames of one file, in their order, at once, as few batches as possible.

    Up to the first that is wrong in any way, which is nothing if that is the first of all: by
    itself it tells what is wrong with it.
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
        batches.extend(_merged_parts(headers, data, bodies))  # what came before it stays
    return batches


def _merged_parts(headers: Headers, data: bytes, bodies: Int64s) -> Iterator[Batch]:
    """Verified frames, those of one record each merged as far as they follow each other."""
    is_single = are_single(headers)
    edges = np.flatnonzero(is_single[1:] != is_single[:-1]) + 1
    for first, last in pairwise([0, *edges.tolist(), len(headers)]):
        some, places = headers[first:last], bodies[first:last]
        if is_single[first] and (merged := merge_singles(some, data, places)) is not None:
            yield merged
            continue
        for header, body in zip(as_headers(some), places.tolist(), strict=True):
            yield Batch.parse(header, data, body)


def _run(index: FrameIndex, number: int, stop: int, end: int) -> list[FramePlace]:
    """Frames side by side in one file, without a hole, up to about two megabytes."""
    place = index.place(number)
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
    """Frames that lie side by side, one by one; raises what is wrong with one, and where it is."""
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
    length = run[-1].position + run[-1].length - first.position
    data = topic.reader.pread(first.file, length, first.position)
    for place in run:
        header = _verify(topic, place, data, place.position - first.position)
        try:
            batch = Batch.parse(header, data, place.position - first.position + HEADER_BYTES)
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
    """What to raise for a frame that is not what it was, or not there."""
    return CorruptionError(
        f"{topic.reader.path(place.file)} at position {place.position}: {error} "
        f"(topic {topic.name!r}, offsets {place.base_offset} to "
        f"{place.base_offset + place.count - 1}). Nothing damaged is ever returned; "
        "read around these offsets, restore the file from a copy, or run `stratalog repair`."
    )
