"""The reading half of a topic's handle: records, batches, changes, and waiting for more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from stratalog.errors import OffsetOutOfRangeError
from stratalog.inputs import check_time, check_timeout
from stratalog.log.topic import TopicLog
from stratalog.model import Diff, Gap, Record
from stratalog.options import check_range
from stratalog.segments.delete import changes
from stratalog.segments.read import offset_at, read_living, read_one
from stratalog.segments.segment import Slice

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.clock import Clock
    from stratalog.store import Store

Time = float | datetime


class TopicReading:
    """What a handle on a topic reads."""

    def __init__(self, store: Store, log: TopicLog) -> None:
        self._store = store
        self._log = log

    def read(
        self, start: int = 0, end: int | None = None, limit: int | None = None
    ) -> Iterator[Record | Gap]:
        """Records from `start` to `end` (not included), in order, and gaps where some are gone.

        `end=None` is everything readable now. `limit` counts records.
        """
        start, end = self._range(start, end)
        return self._read(start, end, self._limit(limit))

    def _read(self, start: int, end: int, left: int) -> Iterator[Record | Gap]:
        if left == 1 and start < end:
            record = read_one(self._log, start)
            if record is not None:
                yield record
                return
        for part in self._parts(start, end, left):
            if isinstance(part, Gap):
                yield part
            else:
                yield from part.batch.records(part.first, part.end)

    def _parts(self, start: int, end: int, left: int) -> Iterator[Slice | Gap]:
        """So many records at most, and the gaps before them, each whole."""
        gap: Gap | None = None
        window = left
        while left > 0 and start < end:
            # No more than can be wanted; if much of it turns out to be gone, more and more.
            stop = min(end, start + window)
            for part in read_living(self._log, start, stop, self._now()):
                if isinstance(part, Slice):
                    if gap is not None:
                        yield gap
                        gap = None
                    taken = min(left, part.end - part.first)
                    left -= taken
                    yield Slice(part.batch, part.first, part.first + taken)
                    if not left:
                        return
                elif gap is not None and gap.reason == part.reason:
                    gap = Gap(gap.first, part.last, gap.reason)
                else:
                    if gap is not None:
                        yield gap
                    gap = part
            start = stop
            window *= 2
        if gap is not None:
            yield gap

    def read_values(self, start: int = 0, limit: int | None = None) -> list[bytes | None]:
        """Payloads alone, from `start` on: the fast way when nothing else matters."""
        start, end = self._range(start, None)
        values: list[bytes | None] = []
        for part in self._parts(start, end, self._limit(limit)):
            if isinstance(part, Slice):
                values += part.batch.values(part.first, part.end)
        return values

    def read_arrow(
        self, start: int = 0, end: int | None = None, *, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Records as Arrow batches, without a copy of a payload. Gaps show in `offset`."""
        import pyarrow as pa

        from stratalog.format.arrow import schema, to_arrow_batches

        start, end = self._range(start, end)
        wanted = schema(columns)
        living = read_living(self._log, start, end, self._now())
        parts = (part for part in living if isinstance(part, Slice))
        return pa.RecordBatchReader.from_batches(wanted, to_arrow_batches(parts, wanted))

    def offset_at(self, timestamp: Time) -> int:
        """The first offset whose record has this time or a later one; `next_offset` if none."""
        wanted = check_time("timestamp", timestamp)
        self._store.settle(self._log)
        return offset_at(self._log, wanted)

    def watch(
        self, start: int | None = None, timeout: float | None = None
    ) -> Iterator[Record | Gap]:
        """New records as they come; ends when none came for `timeout` seconds.

        `start=None` is from now on; an offset gives everything from there first.
        """
        return self._watch(self.watch_start(start), check_timeout(timeout))

    def watch_start(self, start: int | None) -> int:
        """The offset that a watch begins with."""
        self.settle()
        return self._log.committed if start is None else self._range(start, None)[0]

    def settle(self) -> None:
        """Make everything readable that was acknowledged, or that another process has written."""
        self._store.settle(self._log)

    @property
    def clock(self) -> Clock:
        """What time it is, for other handles."""
        return self._store.clock

    @property
    def is_followed(self) -> bool:
        """Whether another process may append: nobody is woken by that."""
        return self._store.is_read_only

    def _watch(self, start: int, timeout: float | None) -> Iterator[Record | Gap]:
        while self._store.wait(self._log, start, timeout):
            end = self._log.committed
            yield from self._read(start, end, end - start)
            start = end

    def diff(self, after: int = -1, limit: int = 500, node: str | None = None) -> Diff:
        """What came after an offset, for somebody who follows the topic step by step.

        What was deleted, what has expired and, with `node`, what that node itself has appended is
        left out, and `next` is past it all the same: give it as `after` the next time.
        """
        check_range("after", after, -1, 1 << 63)
        check_range("limit", limit, 1, 1 << 31)
        start, end = self._range(after + 1, None)
        return changes(self._log, start, end, limit, node, self._now())

    def _range(self, start: int, end: int | None) -> tuple[int, int]:
        check_range("start", start, 0, 1 << 63)
        if end is not None:
            check_range("end", end, 0, 1 << 63)
        self._store.settle(self._log)
        committed = self._log.committed
        if start > committed:
            raise OffsetOutOfRangeError(
                f"topic {self._log.name!r} has no offset {start} yet: the next one is {committed}"
            )
        return start, committed if end is None else min(end, committed)

    def _limit(self, limit: int | None) -> int:
        return 1 << 63 if limit is None else check_range("limit", limit, 0, 1 << 63)

    def _now(self) -> int:
        return self._store.clock.time_ns()
