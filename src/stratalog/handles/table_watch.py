"""Watching a table: its entries as of one version, then every change after it.

Entries are given as they were at one version, a page at a time; changes are read from the records
that follow it. So nothing is missed between the two and nothing comes twice. A key that changes so
often meanwhile that its entry is gone comes with its changes instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from stratalog.errors import OffsetOutOfRangeError, VersionGoneError, WrongTypeError
from stratalog.format.table import DELETED
from stratalog.log.topic import TopicLog
from stratalog.model import CaughtUp, Change, Gap, Operation
from stratalog.segments.read import read_batches
from stratalog.segments.segment import Slice
from stratalog.state.table_projection import TableProjection, row_flags
from stratalog.state.table_state import text_of

if TYPE_CHECKING:
    from stratalog.handles.store import Store

Start = int | Literal["snapshot"] | None

_PAGE_KEYS = 1024


class Begin(NamedTuple):
    """Where a watch begins."""

    offset: int
    """Offset of the first change to give."""
    has_snapshot: bool
    """Whether entries come first, as they were before that offset."""


def watch_start(log: TopicLog, projection: TableProjection, start: Start) -> Begin:
    """Find where a watch begins; the caller has brought the state up to date."""
    with projection.lock:
        end = projection.applied
    if start is None or start == "snapshot":
        return Begin(end, start == "snapshot")
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise WrongTypeError(f"start={start!r} must be None, 'snapshot' or a version")
    if start > log.committed:
        raise OffsetOutOfRangeError(
            f"Table {log.name!r} has no version {start} yet: the next one is {log.committed}."
        )
    if start < (horizon := compaction_horizon(log)):
        raise gone(log, start, horizon)
    return Begin(start, False)


def watch(
    store: Store, projection: TableProjection, prefix: bytes, begin: Begin, timeout: float | None
) -> Iterator[Change | CaughtUp]:
    """Give entries if they are wanted, then changes as they come."""
    log = projection.topic
    if begin.has_snapshot:
        yield from entries(projection, prefix, begin.offset)
        yield CaughtUp(begin.offset - 1)
    start = begin.offset
    while store.wait(log, start, timeout):
        end = log.committed
        yield from changes(log, prefix, start, end)
        start = end


def entries(projection: TableProjection, prefix: bytes, end: int) -> Iterator[Change]:
    """Give the entries of a table as they were before a version."""
    after: bytes | None = None
    while end:
        with projection.lock:
            page = projection.current().page_at(prefix, after, _PAGE_KEYS, end - 1)
        for key, found in page.items:
            value = found.value
            if found.is_in_log:
                value = projection.read_value(found.version)
                if value is None:
                    continue  # replaced since: it comes with its changes
            yield Change(
                text_of(key, found.flags), value, found.version, found.timestamp, Operation.PUT
            )
        if page.is_last:
            return
        after = page.last


def changes(log: TopicLog, prefix: bytes, start: int, end: int) -> Iterator[Change]:
    """Give the changes in records; raises `VersionGoneError` if one of them is missing."""
    for part in read_batches(log, start, end):
        if isinstance(part, Gap):
            start = part.last + 1
            continue
        batch, first, stop = part
        last = batch.offset_of(stop - 1)
        if last - start != stop - 1 - first:
            raise gone(log, start, last)
        yield from _changes(part, prefix)
        start = last + 1
    if start < end:
        raise gone(log, start, end)


def _changes(part: Slice, prefix: bytes) -> Iterator[Change]:
    batch, first, end = part
    columns = zip(
        batch.keys(first, end),
        batch.values(first, end),
        batch.offsets(first, end).tolist(),
        batch.timestamps(first, end).tolist(),
        row_flags(batch, first, end),
        strict=True,
    )
    for key, value, version, timestamp, flags in columns:
        if key is None or not key.startswith(prefix):
            continue
        if flags & DELETED:
            yield Change(text_of(key, flags), None, version, timestamp, Operation.DELETE)
        else:
            yield Change(text_of(key, flags), value, version, timestamp, Operation.PUT)


def compaction_horizon(log: TopicLog) -> int:
    """Find the version from which on compaction has removed no record."""
    for segment in reversed(log.history.chain.segments):
        summary = segment.summary
        if segment.is_open or summary.records == segment.end - segment.first:
            continue
        parts = [
            p.batch.offsets(p.first, p.end) for p in segment.batches(segment.first, segment.end)
        ]
        edges = np.array([segment.first - 1, segment.end], np.int64)
        offsets = np.concatenate((edges[:1], *parts, edges[1:]))
        holes = np.flatnonzero(np.diff(offsets) > 1)[::-1]
        for first, end in zip(
            (offsets[holes] + 1).tolist(), offsets[holes + 1].tolist(), strict=True
        ):
            if log.history.lost.range_cardinality(first, end) < end - first:
                return int(end)
    return 0


def gone(log: TopicLog, start: int, horizon: int) -> VersionGoneError:
    """Build the error of a watch whose next changes were removed by compaction."""
    return VersionGoneError(
        f"Changes of table {log.name!r} from version {start} on are not complete: compaction "
        f"removed some before version {horizon}. Watch again with start='snapshot'.",
        horizon,
    )
