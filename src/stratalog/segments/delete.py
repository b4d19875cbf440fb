"""Deletes: finding the matching records in one pass.

A delete is not a standing rule: records that match now are deleted, later ones are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any, NamedTuple

from pyroaring import BitMap64

from stratalog.arguments import check_bytes
from stratalog.errors import OffsetOutOfRangeError, WrongTypeError
from stratalog.log.topic import TopicLog
from stratalog.model import Diff, Gap, Record
from stratalog.options import check_range
from stratalog.segments.read import read_living
from stratalog.segments.segment import Slice

# Offsets no farther apart than this are looked up in one go: about what one batch holds.
_NEAR = 1 << 10


class Conditions(NamedTuple):
    """Conditions on records; None matches any."""

    key: bytes | None = None
    tag: str | None = None
    tag_glob: str | None = None
    offsets: Sequence[int] | None = None

    @classmethod
    def check(
        cls, topic: TopicLog, key: Any, tag: Any, tag_glob: Any, offsets: Iterable[Any] | None
    ) -> Conditions:
        """Check the conditions of a caller."""
        key = check_bytes("key", key)
        for what, text in (("tag", tag), ("tag_glob", tag_glob)):
            if text is not None and not isinstance(text, str):
                raise WrongTypeError(f"{what}={text!r} must be text")
        if offsets is None:
            return cls(key, tag, tag_glob)
        if not isinstance(offsets, Iterable):
            raise WrongTypeError(f"offsets={offsets!r} must be a list of offsets")
        chosen = [check_range("offset", offset, 0, 1 << 63) for offset in offsets]
        if chosen and max(chosen) >= topic.committed:
            raise OffsetOutOfRangeError(
                f"topic {topic.name!r} has no offset {max(chosen)} yet: the next one is "
                f"{topic.committed}"
            )
        return cls(key, tag, tag_glob, chosen)


def count_living(topic: TopicLog, end: int, now: int) -> int:
    """Give readable records below an offset."""
    return sum(part.end - part.first for part in _slices(topic, topic.earliest, end, now))


def find_offsets(topic: TopicLog, end: int, now: int, conditions: Conditions) -> BitMap64:
    """Find the offsets of readable records below `end` that meet every condition."""
    key, tag, tag_glob, offsets = conditions
    found = BitMap64()
    ranges = [(0, end)] if offsets is None else _ranges(offsets, end)
    for start, stop in ranges:
        for part in _slices(topic, start, stop, now):
            meant = _all(part) if key is None else _keyed(part, key)
            if meant and (tag is not None or tag_glob is not None):
                meant &= _tagged(part, tag, tag_glob)
            found |= meant
    return found if offsets is None else found & BitMap64(offsets)


def _ranges(offsets: Sequence[int], end: int) -> Iterator[tuple[int, int]]:
    """Give the ranges to search: nothing far from any of the offsets."""
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


def _all(part: Slice) -> BitMap64:
    """Return the offsets of a slice's records."""
    return BitMap64(part.batch.offsets(part.first, part.end).tolist())


def _keyed(part: Slice, key: bytes) -> BitMap64:
    """Return the offsets of a slice's records with a key."""
    if part.batch.key is None:
        return BitMap64()
    keys = part.batch.keys(part.first, part.end)
    if key not in keys:  # the common case, in C
        return BitMap64()
    offsets = part.batch.offsets(part.first, part.end).tolist()
    return BitMap64(offset for offset, one in zip(offsets, keys, strict=True) if one == key)


def _tagged(part: Slice, tag: str | None, tag_glob: str | None) -> BitMap64:
    """Return the offsets of a slice's records with a matching tag."""
    if part.batch.tag is None:
        return BitMap64()
    import pyarrow as pa
    import pyarrow.compute as pc

    from stratalog.format.arrow import schema, to_arrow

    columns = to_arrow(part.batch, schema(["offset", "tag"]), part.first, part.end)
    tags = columns.column("tag")
    # Each distinct tag is compared once, however many records have it.
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
    """Return the records between two offsets, without those that a node itself has appended."""
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
    """Read as `read_living` does, in growing steps if many records are gone."""
    window = limit
    while start < end:
        stop = min(end, start + window)
        yield from read_living(topic, start, stop, now, cold)
        start, window = stop, 2 * window
