"""A topic, as users hold it: append, read, watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Unpack

from stratalog.arguments import (
    check_bytes,
    check_sizes,
    check_time,
    columns_of,
    given_columns,
    listed,
    record_items,
    set_times,
)
from stratalog.errors import OffsetOutOfRangeError, OptionError, TooLargeError
from stratalog.format.columns import Columns, encode_columns, encode_values
from stratalog.handles.kinds import check_takes_records
from stratalog.handles.notebook import html_of
from stratalog.handles.read import Time, TopicReading
from stratalog.log.append import (
    append_entries,
    append_nowait,
    append_record,
    append_synced,
    enter_entries,
    enter_record,
)
from stratalog.log.commit_group import (
    GROUP_BYTES_MAX,
    Entry,
    Group,
    Item,
    check_batch,
    plain_entry,
    records_entry,
)
from stratalog.log.future import AppendFuture
from stratalog.log.topic import EPHEMERAL, RANKS, SYNCED, TopicLog
from stratalog.metrics import Histogram
from stratalog.model import Durability, Record, T
from stratalog.options import TopicOptions, check_durability, check_range
from stratalog.reports import SegmentStats, TopicStats
from stratalog.segments.delete import Conditions
from stratalog.settings import TopicSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.handles.consumer_arguments import Place
    from stratalog.handles.group import Group as ConsumerGroup
    from stratalog.handles.lake import LakeStatus

Value = bytes | bytearray | memoryview | None
Buffer = bytearray | memoryview
"""Values besides bytes that a topic without a type takes."""


class Topic(TopicReading[T]):
    """A handle on one topic: cheap to make, safe to share between threads."""

    def __repr__(self) -> str:
        return f"<stratalog.Topic {self.name!r} next_offset={self._log.next_offset}>"

    def _repr_html_(self) -> str:
        return html_of(self)

    @property
    def log(self) -> TopicLog:
        """The topic's log, for other handles."""
        return self._log

    @property
    def name(self) -> str:
        """The name it was created with."""
        return self._log.name

    @property
    def options(self) -> TopicOptions:
        """The options it was created with, as changed by `alter` since."""
        return self._log.options

    @property
    def durability(self) -> Durability:
        """The class of appends that do not give another."""
        if self._store.is_read_only:
            return self._log.options.durability or self._store.options.durability
        return next(name for name, rank in RANKS.items() if rank == self._log.rank)

    @property
    def epoch(self) -> int:
        """How many topics of this name were dropped before this one was created."""
        return self._log.epoch

    @property
    def is_dropped(self) -> bool:
        """Whether the topic was dropped; another of its name may exist."""
        return self._log.is_dropped

    @property
    def earliest(self) -> int:
        """First offset that can still be read."""
        self._store.make_readable(self._log)
        return self._log.earliest

    @property
    def next_offset(self) -> int:
        """The offset that the next append gets."""
        self._store.make_readable(self._log)
        return self._log.next_offset

    def __bool__(self) -> bool:
        return True  # a handle, even on an empty topic

    def __len__(self) -> int:
        self._store.make_readable(self._log)
        return self._log.history.count(self._log.earliest, self._log.committed)

    # --- samples -------------------------------------------------------------------------

    def begin_sample(self, times: Histogram) -> bool:
        """Have the next single append time itself; returns False if that is not possible now.

        That append leaves the fast path, where the timing is requested, so no other append pays.
        """
        if not self._log.is_plain:
            return False
        self._sampled_in = times
        self._log.is_plain = False
        return True

    def stop_sample(self) -> bool:
        """Cancel the request to time an append; returns whether it was still open."""
        was_waiting = self._sampled_in is not None
        self._sampled_in = None
        if was_waiting:
            self._be_plain()
        return was_waiting

    def _timed(self, times: Histogram, *given: Any) -> int:
        """Append as requested, and record how long it took."""
        self.stop_sample()
        begin = perf_counter_ns()
        offset = self.append(*given)
        times.record(perf_counter_ns() - begin)
        return offset

    def _be_plain(self) -> None:
        # A topic that was closed or dropped meanwhile raises on either path.
        self._log.is_plain = not (self._store.is_closed or self._log.is_dropped)

    # --- append --------------------------------------------------------------------------

    def append(
        self,
        value: T | Buffer,
        # Meant to be given by name. Not keyword-only, because CPython looks each default of a
        # keyword-only argument up in a dictionary, which costs 100 ns a call for all of them.
        key: Value = None,
        headers: Mapping[str, bytes] | None = None,
        tag: str | None = None,
        node: str | None = None,
        timestamp: Time | None = None,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> int:
        """Append one record and return its offset, once its durability class is satisfied."""
        log = self._log
        # Usually a bare value: `_checked` costs as much as the append.
        if (
            key is None and headers is None and tag is None and node is None
            and timestamp is None and ttl is None and durability is None
            and type(value) is bytes and log.is_plain
            and (size := len(value)) <= log.single_bytes_max
        ):  # fmt: skip
            if (rank := log.rank) == SYNCED:
                return append_synced(log, value, size)
            offset, group = enter_record(log, value, size, rank)
            if group.bytes > GROUP_BYTES_MAX:  # tested inline: a call costs 50 ns
                log.shard.wait(group, rank)
            return offset
        if (times := self._sampled_in) is not None:
            return self._timed(times, value, key, headers, tag, node, timestamp, ttl, durability)
        data, size, rank, items = self._checked(
            value, key, headers, tag, node, timestamp, ttl, durability
        )
        if rank == SYNCED:
            return append_synced(log, data, size, items)
        if log.is_ephemeral:
            return append_record(log, data, size, rank, items)
        offset, group = enter_record(log, data, size, rank, items)
        if group.bytes > GROUP_BYTES_MAX:  # as above: two calls less, a tenth of it
            log.shard.wait(group, rank)
        return offset

    def append_nowait(
        self,
        value: T | Buffer,
        *,
        key: Value = None,
        headers: Mapping[str, bytes] | None = None,
        tag: str | None = None,
        node: str | None = None,
        timestamp: Time | None = None,
        ttl: float | timedelta | None = None,
        durability: Durability | str | None = None,
    ) -> Future[int]:
        """Append one record without waiting for the disk; many in flight share one sync.

        The future resolves to the offset once the class is satisfied, or raises the error. Its
        callbacks run one after the other in a thread of the store.
        """
        return append_nowait(
            self._log,
            *self._checked(value, key, headers, tag, node, timestamp, ttl, durability),
        )

    def enter(
        self, value: T | Buffer, rest: tuple[Any, ...], durability: Any
    ) -> tuple[AppendFuture, int]:
        """Append like `append_nowait`, but never wait for room; also returns the class's rank."""
        log = self._log
        checked = self._checked(*(value, *rest, durability))
        offset, group = enter_record(log, *checked, is_left=True)
        return log.shard.future(group, offset), checked[2]

    def _checked(
        self, value: Any, key: Any, headers: Any, tag: Any, node: Any, timestamp: Any, ttl: Any,
        durability: Any,
    ) -> tuple[bytes | None, int, int, list[Item]]:  # fmt: skip
        """Check a record; returns the arguments of `stratalog.log.append` from the second on."""
        log = self._log
        if not log.is_plain:
            self._store.check_writable()
            check_takes_records(log)
        data = value if type(value) is bytes else check_bytes("value", value)
        size, items = record_items(key, headers, tag, node, timestamp, ttl)
        if data is not None:
            size += len(data)
        if size > log.single_bytes_max:
            self.check_size(size)
        rank = log.rank if durability is None else self.rank(durability)
        return data, size, rank, items

    def check_size(self, size: int) -> None:
        """Raise if a record of that many bytes is too large."""
        log = self._log
        if size > log.record_bytes_max:
            raise TooLargeError(
                f"a record of {size} bytes is too large for topic {log.name!r}: "
                f"record_bytes_max is {log.record_bytes_max}"
            )
        if size + 256 > log.batch_bytes_max:
            raise TooLargeError(
                f"a record of {size} bytes does not fit into a log file of topic {log.name!r}: "
                "raise log_file_bytes or batch_bytes_max"
            )

    def append_many(
        self,
        records: Iterable[T | Buffer | Record[T]] | None = None,
        *,
        values: Iterable[T | Buffer | None] | None = None,
        keys: Iterable[Value] | None = None,
        headers: Iterable[Mapping[str, bytes] | None] | None = None,
        timestamps: Iterable[Time | None] | None = None,
        durability: Durability | str | None = None,
    ) -> tuple[int, int]:
        """Append records as one atomic batch; returns the first and the last offset.

        They are values and `Record`s, or else columns: `values`, and one item of `keys`, `headers`
        and `timestamps` for each of them. Columns may be lists, NumPy or Arrow arrays, and None
        stands for no item. After a crash either all records are there or none.
        """
        log = self._log
        if records is None:
            return self._append_columns(values, keys, headers, timestamps, durability)
        if not (values is None and keys is None and headers is None and timestamps is None):
            raise OptionError("append_many takes records, or columns: not both")
        if (
            type(records) is not list or not records or durability is not None
            or not log.is_plain or log.codec
        ):  # fmt: skip
            return append_entries(log, *self._encode_many(records, durability))
        encoded = encode_values(records)
        if encoded is not None and len(encoded[0]) <= log.plain_bytes_max:
            return append_entries(log, [plain_entry(log, *encoded)], log.rank)
        entries, remake = self.encode_records(list(records))
        return append_entries(log, entries, log.rank, remake)

    def _append_columns(
        self, values: Any, keys: Any, headers: Any, timestamps: Any, durability: Any
    ) -> tuple[int, int]:
        log = self._log
        if not log.is_plain:
            self._store.check_writable()
            check_takes_records(log)
        if values is None:
            raise OptionError("append_many needs records, or values=")
        rank = log.rank if durability is None else self.rank(durability)
        columns, times = given_columns(values, keys, headers, timestamps)
        entries, remake = self._encode_columns(columns, times)
        if log.codec or len(entries[0].body) > log.record_bytes_max:
            check_sizes(columns, log.record_bytes_max)
        return append_entries(log, entries, rank, remake)

    def enter_many(
        self, records: Iterable[T | Buffer | Record[T]], durability: Durability | str | None
    ) -> tuple[Group, int, int, int]:
        """Append many without waiting; returns the commit group, both offsets and the rank."""
        entries, rank, remake = self._encode_many(records, durability)
        return *enter_entries(self._log, entries, rank, remake, is_left=True), rank

    def _encode_many(
        self, records: Iterable[T | Buffer | Record[T]], durability: Durability | str | None
    ) -> tuple[list[Entry], int, Callable[[int], list[Entry]] | None]:
        log = self._log
        if not log.is_plain:
            self._store.check_writable()
            check_takes_records(log)
        items = records if type(records) is list else listed(records)
        if not items:
            raise OptionError("append_many needs at least one record")
        encoded = encode_values(items)
        rank = log.rank if durability is None else self.rank(durability)
        if encoded is not None and len(encoded[0]) <= log.plain_bytes_max:
            return [records_entry(log, 0, *encoded)], rank, None
        entries, remake = self.encode_records(list(items))
        return entries, rank, remake

    def encode_records(
        self, items: list[Any]
    ) -> tuple[list[Entry], Callable[[int], list[Entry]] | None]:
        """Encode records as frames, with a function that encodes them again above a later time.

        The function is None if no record brings its own time. Raises for any invalid record.
        """
        return self._encode_columns(*columns_of(items, self._log.record_bytes_max))

    def _encode_columns(
        self, columns: Columns, times: list[int] | None
    ) -> tuple[list[Entry], Callable[[int], list[Entry]] | None]:
        log = self._log
        count = len(columns.values)
        given = columns.event_times

        def make(floor: int) -> list[Entry]:
            if times is not None:
                columns.event_times = given
                set_times(columns, times, self._now(), floor)
            flags, body = encode_columns(columns)
            check_batch(log, len(body))
            stamps = columns.timestamps or (0,)
            return [records_entry(log, flags, body, count, 0, stamps[0], stamps[-1])]

        return make(log.last_timestamp), make if times else None

    def append_arrow(
        self, data: pa.RecordBatch | pa.Table, *, durability: Durability | str | None = None
    ) -> tuple[int, int]:
        """Append Arrow data, column by column; returns the first and the last offset.

        Columns are those of `read_arrow`; `value` alone is enough, `offset` and `topic` are
        ignored. About a megabyte at a time is atomic; all of it shares one sync.
        """
        self._store.check_writable()
        check_takes_records(self._log)
        from stratalog.log.arrow import ArrowAppend

        log = self._log
        append = ArrowAppend(log, data, self._store.clock.time_ns)
        return append_entries(
            log,
            append.entries(log.last_timestamp),
            self.rank(durability),
            append.entries if append.is_timed else None,
        )

    def rank(self, durability: Durability | str | None) -> int:
        """Return the rank by which the log compares durability classes; None is the topic's own."""
        log = self._log
        if durability is None:
            return log.rank
        rank = RANKS[check_durability(durability)]
        if log.is_ephemeral != (rank == EPHEMERAL):
            raise OptionError(
                f"durability={durability!r} is not possible for one append to topic "
                f"{log.name!r}: ephemeral is for a whole topic, from its creation on"
            )
        return rank

    # --- groups --------------------------------------------------------------------------

    def group(
        self,
        name: str,
        mode: str | None = None,
        *,
        start: Place = "earliest",
        pending_max: int | None = None,
    ) -> ConsumerGroup[T]:
        """Get the consumer group of that name, created on first use.

        Mode `queue` (the default) shares the records among its consumers, `stream` is a cursor of
        its own. `start` is where a new group begins: "earliest", "latest", an offset (an int), or a
        time (a float or a datetime). `pending_max` limits how many records are pending at a time.
        """
        group: ConsumerGroup[T] = self._store.group(
            self._log, name, mode, start, pending_max, self._codec
        )
        return group

    def groups(self) -> list[str]:
        """List the names of the topic's consumer groups, sorted."""
        self._store.make_readable(self._log)
        return [state.name for state in self._log.groups.named()]

    # --- options -------------------------------------------------------------------------

    def alter(self, **options: Unpack[TopicSettings]) -> None:
        """Change options of the topic, durably; options that are not given stay unchanged.

        All but `durability` can change. Stored records are compressed, sealed and evicted by the
        new options from the next checkpoint on; a `ttl` applies to every record at once.
        """
        self._store.alter(self._log, options)

    def lake(self) -> LakeStatus:
        """Describe what the store's lake has of the topic; raises `NoLakeError` if nothing yet."""
        self._store.make_readable(self._log)
        return self._store.lake_of(self._log)

    # --- delete --------------------------------------------------------------------------

    def delete(
        self,
        *,
        before: int | float | datetime | None = None,
        key: Value = None,
        tag: str | None = None,
        tag_glob: str | None = None,
        offsets: Iterable[int] | None = None,
    ) -> int:
        """Delete the records that meet every given condition, permanently; returns how many.

        `before` is an offset (an int) or a time (a float or a datetime): records below it. `key`
        means every record with that key; in a compacted topic, all of its versions. Readers see no
        gap where records were deleted. Records appended later are not affected. The bytes leave
        the disk over time; `store.compact(purge=True)` removes them at once.
        """
        if all(one is None for one in (before, key, tag, tag_glob, offsets)):
            raise OptionError("delete needs a condition: before, key, tag, tag_glob or offsets")
        self._store.check_writable()
        check_takes_records(self._log)
        self._store.make_readable(self._log)
        log = self._log
        conditions = Conditions.check(log, key, tag, tag_glob, offsets)
        if before is None:
            end = log.committed
        elif isinstance(before, int) and not isinstance(before, bool):
            if before > log.committed:
                raise OffsetOutOfRangeError(
                    f"before={before} is an int, so it is an offset, and the next one of topic "
                    f"{log.name!r} is {log.committed}. For a time, give a datetime, or seconds as "
                    "a float."
                )
            end = self._range(before, None)[0]
        else:
            only = self._store.lake_only(log)
            end = only.offset_before(check_time("before", before), self._store.clock.time_ns())
        return self._store.delete(log, end, conditions)

    def stats(self) -> TopicStats:
        """Return numbers about the topic, taken from memory."""
        self._store.make_readable(self._log)
        log = self._log
        return TopicStats(
            name=log.name,
            id=log.id,
            earliest=log.earliest,
            next_offset=log.committed,
            records=log.history.count(log.earliest, log.committed),
            bytes=log.index.total_bytes() + log.history.total_bytes(),
            frames=len(log.index),
            newest_timestamp=log.last_timestamp,
            durability=str(self.durability),
            compression=log.options.compression,
            epoch=log.epoch,
            open_records=log.committed - max(log.earliest, log.history.sealed_end()),
            created_at=log.created_at,
            **log.history.stats(),
        )

    def segments(self) -> list[SegmentStats]:
        """Describe the segments of the topic, oldest first; what is only in the log is in none."""
        self._store.make_readable(self._log)
        return self._log.history.segment_stats()

    def offset_by_size(self, size: int) -> int:
        """Return the offset from which on the topic has at most so many bytes on disk.

        Counted by whole segments, and by frames of the log: reading from there reads no more than
        `size` bytes of files. `next_offset` if even the newest of them is larger.
        """
        check_range("size", size, 0, 1 << 62)
        self._store.make_readable(self._log)
        log = self._log
        left = size - log.index.total_bytes()
        found = log.committed if left < 0 else max(log.history.checkpointed, log.earliest)
        for segment in reversed(log.history.segment_stats()):
            left -= segment.bytes
            if left < 0:
                break
            found = max(segment.first, log.earliest)
        return found
