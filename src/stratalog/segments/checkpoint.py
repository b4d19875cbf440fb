"""Checkpoint: records move from the log, in many small frames, to segments, in few large batches.

Concurrency: one thread at a time checkpoints a store. Appends and reads go on meanwhile. Crash: the
log has everything until a `CHECKPOINT` frame is durable, and that is written only when the segments
are. A segment that was sealed, but that no frame mentions yet, is whole and found by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from stratalog.format.control import encode_checkpoint
from stratalog.format.merge import NEVER, Block, Part, merge
from stratalog.log.interrupts import insist
from stratalog.log.topic import TopicLog
from stratalog.model import Gap
from stratalog.segments.chain import Chain, Mark
from stratalog.segments.read import read_batches
from stratalog.segments.segment import Segment, Slice
from stratalog.segments.topic_segments import History
from stratalog.segments.writer import SegmentWriter, put_in_place

BATCH_BYTES = 512 << 10
"""Size that batches are merged to. A batch is verified as a whole: at this size the first read of a
record takes 100 us, those after it 8, and a scan reads 40 M records/s (256 KiB: 60 us, and 30)."""


# Smaller adopted segments are copied: that takes as long as moving the file.
_WHOLE_BYTES_MIN = 4 << 20


def _no_rest() -> None:
    pass


def checkpoint(topic: TopicLog, now: int, rest: Callable[[], None] = _no_rest) -> bool:
    """Move everything published into segments, durably; returns whether there was any.

    The log can drop the topic's frames once a `CHECKPOINT` frame says so. `rest` is called after
    every batch.
    """
    end = topic.committed
    if topic.is_ephemeral or topic.history.checkpointed >= end:
        return False
    try:
        for adopted in _whole(topic):
            if adopted.first > topic.history.checkpointed:
                _copy(topic, adopted.first, now, rest)
            _take_in(topic, adopted, now)
        if topic.history.checkpointed < end:
            _copy(topic, end, now, rest)
    except BaseException:
        # Start again from what is durable.
        writer, topic.history.writer = topic.history.writer, None
        if writer is not None:
            writer.close()
        raise
    return True


def mark(topic: TopicLog) -> tuple[int, bytes]:
    """Build the topic's current `CHECKPOINT` frame: its offset and its body."""
    history = topic.history
    return history.checkpointed, encode_checkpoint(*history.mark)


def seal_due(topic: TopicLog, now: int) -> bool:
    """Seal the open segment if it is old enough, or all of it is gone; returns whether it did.

    Once it is sealed and the log says so, it can be removed like any other.
    """
    segments = topic.history.chain.segments
    if not segments or not segments[-1].is_open:
        return False
    seconds = topic.options.segment_seconds
    is_aged = seconds is not None and now - segments[-1].summary.created_at >= seconds * 10**9
    if not is_aged and segments[-1].end > topic.earliest:
        return False
    seal(topic, now)
    return True


def seal(topic: TopicLog, now: int) -> None:
    """Seal the open segment, if there is one."""
    writer = topic.history.writer or _resume(topic)
    if writer is not None:
        _seal(topic, writer, topic.history.checkpointed, now)


def _whole(topic: TopicLog) -> list[Segment]:
    """List adopted segments that are large enough to keep their files.

    Smaller ones are copied, as if they were in the log: many of them would be many segments.
    """
    history = topic.history
    bytes_min = min(_WHOLE_BYTES_MIN, topic.options.segment_bytes // 8)
    return [
        one
        for one in history.ahead.segments
        if one.summary.bytes >= bytes_min and one.first >= history.checkpointed
    ]


def _take_in(topic: TopicLog, adopted: Segment, now: int) -> None:
    """Make an adopted segment the next of the chain, without reading its records."""
    seal(topic, now)
    history, summary = topic.history, adopted.summary
    if adopted.end <= history.checkpointed:
        return  # it was moved already
    assert adopted.placed is not None
    footer = adopted.placed.footer
    put_in_place(history.pool.fs, adopted.path, history.directory, footer, summary.bytes)
    segment = history.pool.segment(topic.id, summary)
    _publish(topic, [*_sealed(topic), segment], segment.end, Mark(segment.end, 0))
    history.copied.remove(adopted)  # its file was moved, not copied


def _copy(topic: TopicLog, end: int, now: int, rest: Callable[[], None]) -> None:
    history = topic.history
    writer = history.writer = history.writer or _resume(topic)
    options = topic.options
    parts = read_batches(topic, history.checkpointed, end)
    for block, last in blocks(
        parts, end, topic.codec, lambda: _room(topic), lambda: _room_bytes(topic)
    ):
        if writer is None:
            writer = SegmentWriter(
                history.pool.fs, history.directory, topic.id, history.checkpointed, now,
                identity=history.pool.identity,
            )  # fmt: skip
            writer.create()
            history.writer = writer
        writer.append(block)
        if writer.records >= options.segment_records or _room_bytes(topic) <= 0:
            _seal(topic, writer, last, now)
            writer = None
        rest()
    if writer is not None:
        writer.sync()
        writer.rest()
        summary = writer.summary(end)
        segment = history.pool.segment(topic.id, summary)
        _publish(topic, [*_sealed(topic), segment], end, Mark(writer.first, summary.bytes))
    elif history.checkpointed < end:
        _publish(topic, _sealed(topic), end, Mark(end, 0))  # nothing was left of it to copy


def blocks(
    parts: Iterable[Slice | Gap],
    end: int,
    codec: int,
    room_of: Callable[[], int],
    bytes_of: Callable[[], int] = lambda: BATCH_BYTES,
) -> Iterator[tuple[Block, int]]:
    """Yield records up to `end` as batches of about `BATCH_BYTES`, each with the offset after it.

    No batch makes a segment hold more records than it has room for, nor more bytes by more than a
    record.
    """
    taken: list[Part] = []
    size = count = 0
    room, bytes_max = room_of(), min(BATCH_BYTES, bytes_of())
    for part in parts:
        if isinstance(part, Gap):
            continue  # an empty part of the segment
        batch, first, last = part
        record_bytes = max(1, batch.size // batch.count)
        while first < last:
            fitting = max(1, (bytes_max - size) // record_bytes)
            more = min(last - first, room - count, fitting)
            taken.append(Part(batch, first, first + more))
            first += more
            count += more
            size += more * record_bytes
            if count == room or size + record_bytes > bytes_max:
                yield merge(taken, codec), batch.offset_of(first - 1) + 1
                room, bytes_max = room_of(), min(BATCH_BYTES, bytes_of())
                taken, size, count = [], 0, 0
    if taken:
        yield merge(taken, codec), end


def _room(topic: TopicLog) -> int:
    """Return how many records the open segment still takes."""
    writer = topic.history.writer
    return topic.options.segment_records - (0 if writer is None else writer.records)


def _room_bytes(topic: TopicLog) -> int:
    """Return how many bytes the open segment still takes; the last 64th is not filled."""
    writer, most = topic.history.writer, topic.options.segment_bytes
    left = most - (0 if writer is None else writer.position)
    return 0 if left < most // 64 else left


def _seal(topic: TopicLog, writer: SegmentWriter, end: int, now: int) -> None:
    history = topic.history
    # This comes first: if sealing is cut short anywhere, the file may already have its lasting
    # name. `_resume` finds out.
    history.writer = None
    try:
        summary = writer.seal(end, now)
    except BaseException:
        writer.close()
        raise
    segment = history.pool.segment(topic.id, summary)
    _publish(topic, [*_sealed(topic), segment], end, Mark(end, 0))


def _sealed(topic: TopicLog) -> list[Segment]:
    return [segment for segment in topic.history.chain.segments if not segment.is_open]


def _publish(topic: TopicLog, segments: Iterable[Segment], checkpointed: int, mark: Mark) -> None:
    """Make the records readable from segments, then drop their places in the log."""
    history = topic.history
    # All three together, or a mark would combine one segment with the end of another.
    interrupt = insist(_set_chain, history, Chain.of(segments), checkpointed, mark)
    with topic.shard.commit_lock:
        topic.trim(checkpointed)
    for adopted in history.leave_behind():
        history.pool.forget(adopted)
        history.copied.append(adopted)
    if interrupt is not None:
        raise interrupt


def _set_chain(history: History, chain: Chain, checkpointed: int, mark: Mark) -> None:
    history.chain = chain
    history.checkpointed = checkpointed
    history.mark = mark


def _resume(topic: TopicLog) -> SegmentWriter | None:
    """Return the writer of the open segment, if there is one."""
    history = topic.history
    _catch_up(topic)
    segments = history.chain.segments
    if not segments or not segments[-1].is_open:
        return None
    summary = segments[-1].summary
    writer = SegmentWriter(
        history.pool.fs, history.directory, topic.id, summary.first_offset, summary.created_at
    )
    writer.resume(summary, segments[-1].load().index)
    if summary.expires_at == NEVER:
        writer.expires_at = _expiry(segments[-1])
    return writer


def _catch_up(topic: TopicLog) -> None:
    """Add a segment to the chain that was renamed without being added.

    An attempt to seal it, or to put it in its place, was cut short after that: by the sync of the
    directory, or by Ctrl-C. Its bytes are durable, or else it had no such name.
    """
    history, pool = topic.history, topic.history.pool
    segments = history.chain.segments
    is_begun = bool(segments) and segments[-1].is_open
    try:
        first = segments[-1].first if is_begun else history.checkpointed
        summary = pool.summarise(topic.id, first)
    except FileNotFoundError:
        return
    pool.fs.sync_dir(history.directory)
    segment = pool.segment(topic.id, summary)
    _publish(topic, [*_sealed(topic), segment], segment.end, Mark(segment.end, 0))


def _expiry(segment: Segment) -> int:
    """Return when the last record of a segment expires, `NEVER` if one does not; -1 if empty.

    A checkpoint's word on an open segment does not include it. One batch is nearly always enough.
    """
    latest = -1
    for batch, first, end in segment.batches(segment.first, segment.end):
        if batch.expires_at is None or not batch.expires_at[first:end].all():
            return NEVER
        latest = max(latest, int(batch.expires_at[first:end].max()))
    return latest
