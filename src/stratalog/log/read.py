"""From offsets to verified batches: the way out of the log.

Every frame is verified when it is read, header and body. Neighbouring frames are read at once,
about a megabyte at a time, and parsed in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stratalog.errors import CorruptionError, FormatError
from stratalog.format.batch import Batch
from stratalog.format.columns import Columns, encode_columns
from stratalog.format.frame import HEADER_BYTES, FrameHeader, check_body, decode_header
from stratalog.log.index import MEMORY, FrameIndex, FramePlace
from stratalog.log.topic import TopicLog
from stratalog.model import Gap

_READ_BYTES = 1 << 20

# Runs of frames smaller than this on average are merged before they are parsed.
_SMALL_FRAME_BYTES = 2048


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


def read_living(topic: TopicLog, start: int, end: int, now: int) -> Iterator[Slice | Gap]:
    """The same, with what has expired by `now` turned into gaps, neighbours into one."""
    ttl_ns = 0 if topic.options.ttl is None else round(topic.options.ttl * 10**9)
    gap: Gap | None = None
    for part in read_batches(topic, start, end):
        for piece in _living(part, ttl_ns, now):
            if isinstance(piece, Slice):
                if gap is not None:
                    yield gap
                    gap = None
                yield piece
            elif gap is not None and gap.reason == piece.reason:
                gap = Gap(gap.first, piece.last, gap.reason)
            else:
                if gap is not None:
                    yield gap
                gap = piece
    if gap is not None:
        yield gap


def _living(part: Slice | Gap, ttl_ns: int, now: int) -> Iterator[Slice | Gap]:
    """Cut what has expired out of a slice."""
    if isinstance(part, Gap) or (not ttl_ns and part.batch.expires_at is None):
        yield part
        return
    batch, first, end = part
    expired = np.zeros(end - first, np.bool_)
    if ttl_ns:
        expired |= batch.timestamps(first, end) + ttl_ns <= now
    if batch.expires_at is not None:
        times = batch.expires_at[first:end]
        expired |= (times != 0) & (times <= now)
    edges = [0, *(np.flatnonzero(expired[1:] != expired[:-1]) + 1).tolist(), end - first]
    offsets = batch.offsets(first, end)
    for low, high in pairwise(edges):
        if expired[low]:
            yield Gap(int(offsets[low]), int(offsets[high - 1]), "expired")
        else:
            yield Slice(batch, first + low, first + high)


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
    length = run[-1].position + run[-1].length - first.position
    data = topic.reader.pread(first.file, length, first.position)
    headers = [_verify(topic, place, data, place.position - first.position) for place in run]
    bodies = [place.position - first.position + HEADER_BYTES for place in run]
    if length < len(run) * _SMALL_FRAME_BYTES and all(not header.flags for header in headers):
        try:
            merged = _merge(headers, data, bodies)
        except FormatError as error:
            raise _damaged(topic, first, error) from error
        yield merged
        return
    for header, body, place in zip(headers, bodies, run, strict=True):
        try:
            batch = Batch.parse(header, data, body)
        except FormatError as error:
            raise _damaged(topic, place, error) from error
        yield batch


def _verify(topic: TopicLog, place: FramePlace, data: bytes, at: int) -> FrameHeader:
    try:
        header = decode_header(data, at, seed=topic.reader.seed(place.file))
        if header[4:6] != (topic.id, place.base_offset) or header.count != place.count:
            raise CorruptionError("another frame is where this one was")
        check_body(header, data, at + HEADER_BYTES)
    except FormatError as error:
        raise _damaged(topic, place, error) from error
    return header


def _merge(headers: list[FrameHeader], data: bytes, bodies: list[int]) -> Batch:
    """Many small frames of plain values as one batch: what a reader of single appends gets.

    Parsing each by itself would take ten times as long as all of this.
    """
    values: list[bytes | None] = []
    timestamps: list[int] = []
    for header, body in zip(headers, bodies, strict=True):
        start = body + 8  # behind the two ends, 0 and the length
        length = int.from_bytes(data[body + 4 : start], "little")
        if header.count == 1 and length <= header.body_length - 8:
            values.append(data[start : start + length])
        else:
            values += Batch.parse(header, data, body).values()
        timestamps += [header.base_timestamp] * header.count
    flags, merged = encode_columns(Columns(values, timestamps=timestamps))
    first = headers[0]
    return Batch.parse(
        first._replace(
            flags=flags, body_length=len(merged), count=len(values),
            max_timestamp=headers[-1].max_timestamp,
        ),
        merged,
    )  # fmt: skip


def _damaged(topic: TopicLog, place: FramePlace, error: FormatError) -> CorruptionError:
    return CorruptionError(
        f"{topic.reader.path(place.file)} at position {place.position}: {error} "
        f"(topic {topic.name!r}, offsets {place.base_offset} to "
        f"{place.base_offset + place.count - 1}). Nothing damaged is ever returned; "
        "read around these offsets, or restore the file from a copy."
    )


def _gap(topic: TopicLog, first: int, last: int) -> Gap:
    if topic.is_ephemeral:
        return Gap(first, last, "ephemeral")
    raise CorruptionError(
        f"topic {topic.name!r}: offsets {first} to {last} are in a damaged part of the log. "
        "Nothing damaged is ever returned; read around these offsets, or restore the log file "
        "from a copy."
    )
