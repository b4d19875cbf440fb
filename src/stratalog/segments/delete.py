"""Deletes: which records are meant, found by looking at them once.

A delete is no rule that stays: what matches now is deleted, what comes later is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, NamedTuple

from pyroaring import BitMap64

from stratalog.errors import OffsetOutOfRangeError, WrongTypeError
from stratalog.log.topic import TopicLog
from stratalog.model import Diff, Gap, Record
from stratalog.options import check_range
from stratalog.segments.read import read_living
from stratalog.segments.segment import Slice

# Offsets no farther apart than this are looked up in one go: about what one batch holds.
_NEAR = 1 << 10


class Conditions(NamedTuple):
    """Which records are meant; None is any."""

    tag: str | None = None
    tag_glob: str | None = None
    offsets: Sequence[int] | None = None

    @classmethod
    def check(
        cls, topic: TopicLog, tag: Any, tag_glob: Any, offsets: Iterable[Any] | None
    ) -> Conditions:
        """Conditions as a caller gives them; raises what is wrong with them."""
        for what, text in (("tag", tag), ("tag_glob", tag_glob)):
            if text is not None and not isinstance(text, str):
                raise WrongTypeError(f"{what}={text!r} must be text")
        if offsets is None:
            return cls(tag, tag_glob)
        if not isinstance(offsets, Iterable):
            raise WrongTypeError(f"offsets={offsets!r} must be a list of offsets")
        chosen = [check_range("offset", offset, 0, 1 << 63) for offset in offsets]
        if chosen and max(chosen) >= topic.committed:
            raise OffsetOutOfRangeError(
                f"topic {topic.name!r} has no offset {max(chosen)} yet: the next one is "
                f"{topic.committed}"
            )
        return cls(tag, tag_glob, chosen)


def count_living(topic: TopicLog, end: int, now: int) -> int:
    """Records below an offset that can be read."""
    return sum(part.end - part.first for part in _slices(topic, topic.earliest, end, now))


def find_offsets(topic: TopicLog, end: int, now: int, conditions: Conditions) -> BitMap64:
    """Offsets of the records below `end` that can be read and meet every condition given."""
    tag, tag_glob, offsets = conditions
    found = BitMap64()
    ranges = [(0, end)] if offsets is None else _ranges(offsets, end)
    for start, stop in ranges:
        for part in _slices(topic, start, stop, now):
            if tag is not None or tag_glob is not None:
                found |= _tagged(part, tag, tag_glob)
            else:
                found |= BitMap64(part.batch.offsets(part.first, part.end).tolist())
    return found if offsets is None else found & BitMap64(offsets)


def _ranges(offsets: Sequence[int], end: int) -> Iterator[tuple[int, int]]:
    """Start and end of what is to be looked at: nothing far from any of the offsets."""
    chosen = sorted({offset for offset in offsets if offset < end})
    if chosen:
        first = chosen[0]
        for one, following in pairwise(chosen):
            if following - one > _NEAR:
                yield first, one + 1
                first = following
        yield first, chosen[-1] + 1


def _slices(topic: TopicLog, start: int, end: int, now: int) -> Iterator[Slice]:
    for part in read_living(topic, max(start, topic.earliest), end, now):
        if not isinstance(part, Gap):
            yield part


def _tagged(part: Slice, tag: str | None, tag_glob: str | None) -> BitMap64:
    """Offsets of a slice's records with a tag that is meant."""
    if part.batch.tag is None:
        return BitMap64()
    import pyarrow as pa
    import pyarrow.compute as pc

    from stratalog.format.arrow import schema, to_arrow

    columns = to_arrow(part.batch, schema(["offset", "tag"]), part.first, part.end)
    tags = columns.column("tag")
    # Each tag is looked at once, however many records have it.
    meant = [
        one
        for one in tags.unique().to_pylist()
        if one is not None
        and (tag is None or one == tag)
        and (tag_glob is None or fnmatchcase(one, tag_glob))
    ]
    mask = pc.is_in(tags, pa.array(meant, pa.string()))
    return BitMap64(columns.column("offset").filter(mask).to_pylist())


def changes(topic: TopicLog, start: int, end: int, limit: int, node: str | None, now: int) -> Diff:
    """What can be read between two offsets, without what a node itself has appended."""
    records: list[Record] = []
    gap: Gap | None = None
    cold: set[int] = set()
    for part in _windows(topic, start, end, limit, now, cold):
        if isinstance(part, Gap):
            if gap is not None and (gap.last + 1, gap.reason) == (part.first, part.reason):
                gap = Gap(gap.first, part.last, gap.reason)
            gap = gap or (part if part.reason != "expired" else None)
            continue
        found = part.batch.records(part.first, part.end)
        if node is not None:
            found = [record for record in found if record.node != node]
        records += found[: limit - len(records)]
        if len(records) == limit:
            following = records[-1].offset + 1
            break
    else:
        following = end
    newest = end - 1
    return Diff(records, following - 1, newest, topic.earliest, following > newest, gap, len(cold))


def _windows(
    topic: TopicLog, start: int, end: int, limit: int, now: int, cold: set[int]
) -> Iterator[Slice | Gap]:
    """As `read_living`: no more than can be wanted, and if much of it is gone, more and more."""
    window = limit
    while start < end:
        stop = min(end, start + window)
        yield from read_living(topic, start, stop, now, cold)
        start, window = stop, 2 * window
