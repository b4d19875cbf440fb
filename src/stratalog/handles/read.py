"""The reading half of a topic's handle: records, batches, changes, and waiting for more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, cast

import msgspec

from stratalog.arguments import check_moment, check_timeout
from stratalog.errors import DataLossError, OffsetOutOfRangeError, OptionError, StorageError
from stratalog.format.values import Codec
from stratalog.fs.os_errors import out_of_memory
from stratalog.handles.documented import Documented
from stratalog.log.topic import TopicLog
from stratalog.metrics import Histogram
from stratalog.model import Diff, Gap, Record, T
from stratalog.options import check_range
from stratalog.segments.delete import changes
from stratalog.segments.read import offset_at, read_living, read_one
from stratalog.segments.segment import Slice
from stratalog.segments.select import (
    Filter,
    Part,
    Rows,
    read_backward,
    read_forward,
    records_of,
    typed_records_of,
    values_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.clock import Clock
    from stratalog.handles.store import Store

Time = float | datetime


class Selection(NamedTuple):
    """Conditions and range of one read."""

    start: int
    end: int
    limit: int
    conditions: Filter | None
    reverse: bool


class TopicReading(Documented, Generic[T]):
    """The reading methods of a topic's handle."""

    _codec: Codec[T] | None = None
    """Reads values, if the handle has a type."""

    def __init__(self, store: Store, log: TopicLog) -> None:
        self._store = store
        self._log = log
        self._sampled_in: Histogram | None = None
        """Histogram for the next single append, if that is to be timed."""

    def read(
        self,
        start: int = 0,
        end: int | None = None,
        limit: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
        event_since: Time | None = None,
        event_until: Time | None = None,
        reverse: bool = False,
    ) -> Iterator[Record[T] | Gap]:
        """Read records from `start` to `end` (exclusive), in order, with gaps where some are gone.

        `end=None` is everything readable now. `since` and `until` (exclusive) are times. `key`,
        `tag` and `node` select exact matches; `event_since` and `event_until` (exclusive) compare
        the times that records were appended with. `reverse` begins with the newest. `limit` counts
        records.
        """
        if (
            since is None and until is None and key is None and tag is None and node is None
            and event_since is None and event_until is None and not reverse
        ):  # fmt: skip
            start, end = self._range(start, end)
            return self._read(Selection(start, end, self._limit(limit), None, False))
        return self._read(
            self._select(
                start, end, limit, since, until, key, tag, node, reverse, event_since, event_until
            )
        )

    def records(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
        event_since: Time | None = None,
        event_until: Time | None = None,
        reverse: bool = False,
        limit: int | None = None,
        gaps: Literal["raise", "skip"] = "raise",
    ) -> Iterator[Record[T]]:
        """Read records without gaps, for simple loops; conditions as in `read`.

        Raises `DataLossError` where records are gone that were not deleted; `gaps="skip"` passes
        over them.
        """
        if gaps not in ("raise", "skip"):
            raise OptionError(f'gaps={gaps!r} is not known: use "raise" or "skip"')
        chosen = self._select(
            start, end, limit, since, until, key, tag, node, reverse, event_since, event_until
        )
        return self._records(chosen, is_strict=gaps == "raise")

    def _records(self, chosen: Selection, *, is_strict: bool) -> Iterator[Record[T]]:
        try:
            for part in self._parts(chosen):
                if not isinstance(part, Gap):
                    yield from self._records_of(part)
                elif is_strict:
                    raise lost(self._log.name, part)
        except MemoryError as error:
            raise self._out_of_memory() from error

    def _read(self, chosen: Selection) -> Iterator[Record[T] | Gap]:
        start, end, limit, conditions, reverse = chosen
        try:
            if limit == 1 and start < end and conditions is None and not reverse:
                record = read_one(self._log, start) if self._codec is None else None
                if record is not None:
                    yield record  # type: ignore[misc]  # without a type, values are bytes
                    return
            for part in self._parts(chosen):
                if isinstance(part, Gap):
                    yield part
                else:
                    yield from self._records_of(part)
        except MemoryError as error:
            raise self._out_of_memory() from error

    def _records_of(self, part: Part) -> list[Record[T]]:
        if self._codec is None:
            return records_of(part)  # type: ignore[return-value]  # without a type: bytes
        return typed_records_of(part, self._codec)

    def _parts(self, chosen: Selection) -> Iterator[Part | Gap]:
        """Give parts with at most `limit` records in all, and the gaps before them, each whole."""
        start, end, limit, conditions, reverse = chosen
        read = read_backward if reverse else read_forward
        return read(self._log, start, end, limit, self._now(), conditions)

    def read_values(
        self,
        start: int = 0,
        limit: int | None = None,
        end: int | None = None,
        *,
        since: Time | None = None,
        until: Time | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
        event_since: Time | None = None,
        event_until: Time | None = None,
        reverse: bool = False,
    ) -> list[T]:
        """Read payloads alone: the fast way if only values matter. Conditions as in `read`."""
        chosen = self._select(
            start, end, limit, since, until, key, tag, node, reverse, event_since, event_until
        )
        values: list[Any] = []
        try:
            for part in self._parts(chosen):
                if isinstance(part, Gap):
                    continue
                if self._codec is None:
                    values += values_of(part)
                else:
                    values += [record.value for record in typed_records_of(part, self._codec)]
        except MemoryError as error:
            del values  # frees memory for the error
            raise self._out_of_memory() from error
        return values

    def _out_of_memory(self) -> StorageError:
        return out_of_memory(f"read topic {self._log.name!r}", self._store.path)

    def read_arrow(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        since: Time | None = None,
        until: Time | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
        event_since: Time | None = None,
        event_until: Time | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> pa.RecordBatchReader:
        """Read records as Arrow batches, without copying a payload. Gaps show in `offset`.

        Conditions as in `read`; selections by key, tag or node, and reverse reads, are copied.
        """
        import pyarrow as pa

        from stratalog.format.arrow import schema

        chosen = self._select(
            start, end, limit, since, until, key, tag, node, reverse, event_since, event_until
        )
        wanted = schema(columns)
        return pa.RecordBatchReader.from_batches(wanted, self._arrow(chosen, wanted))

    def _arrow(self, chosen: Selection, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        from stratalog.format.arrow import rows_to_arrow, to_arrow_batches

        start, end, limit, conditions, reverse = chosen
        try:
            if conditions is not None or reverse:
                for part in self._parts(chosen):
                    if isinstance(part, Rows):
                        yield rows_to_arrow(part.batch, wanted, part.indexes)
                return
            living: Iterator[Part | Gap] = (
                read_living(self._log, start, end, self._now())
                if limit >= end - start
                else self._parts(chosen)
            )
            yield from to_arrow_batches((p for p in living if isinstance(p, Slice)), wanted)
        except MemoryError as error:
            raise self._out_of_memory() from error

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand everything readable now to a library that takes Arrow streams.

        `pa.table(topic)`, `pl.from_arrow(topic)` and `duckdb.sql("from topic")` call this. Each
        call is a separate read of what the topic has at that moment.
        """
        return self.read_arrow(self._log.earliest).__arrow_c_stream__(requested_schema)

    def offset_at(self, timestamp: Time) -> int:
        """Find the first offset whose record has this time or a later one, or `next_offset`."""
        wanted = check_moment("timestamp", timestamp)
        self._store.make_readable(self._log)
        return offset_at(self._log, wanted)

    def watch(
        self,
        start: int | None = None,
        timeout: float | None = None,
        *,
        key: bytes | None = None,
        tag: str | None = None,
        node: str | None = None,
    ) -> Iterator[Record[T] | Gap]:
        """Give new records as they arrive; ends when none arrived for `timeout` seconds.

        `start=None` begins now; an offset gives everything from there first. `key`, `tag` and
        `node` select exact matches; records that do not match still restart `timeout`.
        """
        chosen = Filter.check(key, tag, node)
        return self._watch(self.watch_start(start), check_timeout(timeout), chosen)

    def watch_start(self, start: int | None) -> int:
        """Resolve the offset that a watch begins with."""
        self.make_readable()
        return self._log.committed if start is None else self._range(start, None)[0]

    def make_readable(self) -> None:
        """Make readable what was acknowledged, or what another process has written."""
        self._store.make_readable(self._log)

    @property
    def clock(self) -> Clock:
        """The store's clock, for other handles."""
        return self._store.clock

    @property
    def is_followed(self) -> bool:
        """Whether another process may append, which wakes no waiter in this one."""
        return self._store.is_read_only

    def _watch(
        self, start: int, timeout: float | None, chosen: Filter | None
    ) -> Iterator[Record[T] | Gap]:
        while self._store.wait(self._log, start, timeout):
            end = self._log.committed
            yield from self._read(Selection(start, end, end - start, chosen, False))
            start = end

    def diff(self, after: int = -1, limit: int = 500, node: str | None = None) -> Diff[T]:
        """Return the changes after an offset, for a follower that advances step by step.

        Deleted and expired records are left out, and with `node` also those that this node has
        appended. `next` is past them all the same: pass it as `after` the next time.
        """
        check_range("after", after, -1, 1 << 63)
        check_range("limit", limit, 1, 1 << 31)
        start, end = self._range(after + 1, None)
        try:
            found = changes(self._log, start, end, limit, node, self._now())
        except MemoryError as error:
            raise self._out_of_memory() from error

        if self._codec is None:
            return found  # type: ignore[return-value]  # without a type, values are bytes
        typed: Any = self._codec.records_of(found.records)
        return cast("Diff[T]", msgspec.structs.replace(found, records=typed))

    def _range(self, start: int, end: int | None) -> tuple[int, int]:
        check_range("start", start, 0, 1 << 63)
        if end is not None:
            check_range("end", end, 0, 1 << 63)
        self._store.make_readable(self._log)
        committed = self._log.committed
        if start > committed:
            raise OffsetOutOfRangeError(
                f"topic {self._log.name!r} has no offset {start} yet: the next one is {committed}"
            )
        return start, committed if end is None else min(end, committed)

    def _select(
        self, start: int, end: int | None, limit: int | None, since: Any, until: Any, key: Any,
        tag: Any, node: Any, reverse: Any, event_since: Any, event_until: Any,
    ) -> Selection:  # fmt: skip
        """Check the arguments of a read, and combine them."""
        conditions = Filter.check(key, tag, node, event_since, event_until)
        left = self._limit(limit)
        times = [
            None if time is None else check_moment(name, time)
            for name, time in (("since", since), ("until", until))
        ]
        start, end = self._range(start, end)
        if times[0] is not None:
            start = max(start, offset_at(self._log, times[0]))
        if times[1] is not None:
            end = min(end, offset_at(self._log, times[1]))
        return Selection(start, end, left, conditions, bool(reverse))

    def _limit(self, limit: int | None) -> int:
        return 1 << 63 if limit is None else check_range("limit", limit, 0, 1 << 63)

    def _now(self) -> int:
        return self._store.clock.time_ns()


def lost(topic: str, gap: Gap) -> DataLossError:
    """Build the error for records that are gone where none may be."""
    where = (
        f"offset {gap.first} is"
        if gap.first == gap.last
        else (f"offsets {gap.first} to {gap.last} are")
    )
    return DataLossError(
        f"Topic {topic!r} cannot be read without a gap: {where} gone ({gap.reason}). Begin after "
        f'offset {gap.last}, pass over gaps with gaps="skip", or see them with read().'
    )
