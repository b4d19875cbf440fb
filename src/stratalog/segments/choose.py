"""Selecting records by tag, key and node, a batch at a time."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stratalog.format.batch import Batch
from stratalog.format.frame import FrameHeader, FrameType
from stratalog.format.merge import Part, merge
from stratalog.segments.segment import Slice

# Offsets of one batch are at most this far apart.
_SPAN_MAX = 1 << 31


class Choice(NamedTuple):
    """Conditions on records; None matches any."""

    tag_glob: str | None = None
    key_prefix: bytes | None = None
    node: str | None = None


def choose(slices: Sequence[Slice], choice: Choice) -> list[Part]:
    """Select the records of slices that meet every condition, in order; empty if none does.

    A record without a tag matches no glob, one without a key no prefix, one without a node no node.
    """
    if choice == (None, None, None):
        return [Part(*one) for one in slices]
    # Without the column no record has one.
    slices = [one for one in slices if _may_match(one, choice)]
    found = []
    for one in _joined(slices):
        meant = _mask(one, choice)
        if meant.any():
            found.append(Part(*one, None if meant.all() else meant))
    return found


def _may_match(part: Slice, choice: Choice) -> bool:
    tag_glob, key_prefix, node = choice
    return (
        (tag_glob is None or part.batch.tag is not None)
        and (key_prefix is None or part.batch.key is not None)
        and (node is None or part.batch.node is not None)
    )


def _joined(slices: Sequence[Slice]) -> Sequence[Slice]:
    """Join small slices: a batch costs half a millisecond, however small it is."""
    if len(slices) < 2:
        return slices
    first, newest = slices[0], slices[-1]
    if newest.batch.offset_of(newest.end - 1) - first.batch.offset_of(first.first) > _SPAN_MAX:
        return slices
    block = merge([Part(*one) for one in slices], 0)
    header = FrameHeader(
        FrameType.RECORDS, block.flags, len(block.body), block.count, 0, block.base_offset,
        block.base_timestamp, block.max_timestamp, 0, 0,
    )  # fmt: skip
    return [Slice(Batch.parse(header, block.body, 0), 0, block.count)]


def _mask(part: Slice, choice: Choice) -> npt.NDArray[np.bool_]:
    import pyarrow as pa
    import pyarrow.compute as pc

    from stratalog.format.arrow import schema, to_arrow

    columns = to_arrow(part.batch, schema(["key", "tag", "node"]), part.first, part.end)
    masks = []
    if choice.tag_glob is not None:
        match = re.compile(fnmatch.translate(choice.tag_glob)).match
        tags = columns.column("tag")
        # Each tag is looked at once, however many records have it.
        meant = [tag for tag in tags.unique().to_pylist() if tag is not None and match(tag)]
        masks.append(pc.is_in(tags, pa.array(meant, pa.string())))
    if choice.key_prefix is not None:
        masks.append(pc.starts_with(columns.column("key"), pattern=choice.key_prefix))
    if choice.node is not None:
        masks.append(pc.equal(columns.column("node"), choice.node))
    found = np.ones(part.end - part.first, np.bool_)
    for mask in masks:
        found &= mask.fill_null(False).to_numpy(zero_copy_only=False)
    return found
