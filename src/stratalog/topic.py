"""A topic, as users hold it: append, read, watch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from stratalog.errors import OptionError, TooLargeError
from stratalog.format.columns import encode_columns, encode_values
from stratalog.inputs import check_bytes, check_time, columns_of, listed, record_extras, rising
from stratalog.log.alone import append_synced
from stratalog.log.future import AppendFuture
from stratalog.log.gathering import commit_gathered, gather
from stratalog.log.group import Entry, Group, check_batch, records_entry
from stratalog.log.plain import append_body
from stratalog.log.topic import EPHEMERAL, PLAIN_BYTES_MAX, RANKS, SYNCED, TopicLog
from stratalog.model import Durability, Record
from stratalog.options import TopicOptions, check_durability
from stratalog.reading import Time, TopicReading
from stratalog.reports import TopicStats
from stratalog.segments.delete import Conditions
from stratalog.segments.read import offset_at

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.consuming import Place
    from stratalog.group import Group as ConsumerGroup

Value = bytes | bytearray | memoryview | None

# What gathers before the append itself commits it: 4 MiB at most. Each commit lets go of the
# interpreter and waits to get it back: 1024 took a fifth longer beside a checkpoint.
_GATHER_RECORDS_MAX = 1 << 12


class Topic(TopicReading):
    """A handle on one topic: cheap to make, safe to share between threads."""

    def __repr__(self) -> str:
        return f"<stratalog.Topic {self.name!r} next_offset={self._log.next_offset}>"

    @property
    def log(self) -> TopicLog:
        """The topic's end of the log, for other handles."""
        return self._log

    @property
    def name(self) -> str:
        """The name it was created with."""
        return self._log.name

    @property
    def options(self) -> TopicOptions:
        """The options it was created with."""
        return self._log.options

    @property
    def durability(self) -> Durability:
        """The class of appends that do not ask for another."""
        if self._store.is_read_only:
            return self._log.options.durability or self._store.options.durability
        return next(name for name, rank in RANKS.items() if rank == self._log.rank)

    @property
    def epoch(self) -> int:
        """How many topics of this name were dropped before this one was made."""
        return self._log.epoch

    @property
    def is_dropped(self) -> bool:
        """Whether the topic is gone; another of its name may be there."""
        return self._log.is_dropped

    @property
    def earliest(self) -> int:
        """First offset that can still be read."""
        self._store.settle(self._log)
        return self._log.earliest

    @property
    def next_offset(self) -> int:
        """The offset that the next append gets."""
        self._store.settle(self._log)
        return self._log.next_offset

    def __bool__(self) -> bool:
        return True  # a handle, however many records it has

    def __len__(self) -> int:
        self._store.settle(self._log)
        return self._log.committed - self._log.earliest

    # --- append --------------------------------------------------------------------------

    def append(
        self,
        value: Value,
        # Meant to be given by name. Not keyword-only: CPython looks each default of those up in
        # a dictionary, 100 ns a call together.
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
        if not (
            log.is_plain and type(value) is bytes and len(value) <= PLAIN_BYTES_MAX
            and key is None and headers is None and tag is None and node is None
            and timestamp is None and ttl is None and durability is None
        ):  # fmt: skip
            return self._append(  # type: ignore[return-value]
                value, (key, headers, tag, node, timestamp, ttl), durability, nowait=False
            )
        if log.rank == SYNCED:
            return append_synced(log, value, len(value), None)
        # The way nearly every append takes: see `stratalog.log.gathering`.
        try:
            send = log.send  # named before it is called: looked up as a method it costs 20 ns more
            offset = send(value)
        except (StopIteration, ValueError):  # none runs, or another thread is in it
            pass
        else:
            # Every so many offsets the append itself commits what has gathered: bounds memory.
            if not (offset + 1) % _GATHER_RECORDS_MAX:
                commit_gathered(log, offset)
            return offset
        return gather(log, value)

    def append_nowait(
        self,
        value: Value,
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

        The future resolves to the offset once the class is satisfied, or raises what went wrong.
        Its callbacks are called one after the other in a thread of the store's.
        """
        log = self._log
        if (
            log.is_plain and type(value) is bytes and len(value) <= PLAIN_BYTES_MAX
            and key is None and headers is None and tag is None and node is None
            and timestamp is None and ttl is None and durability is None
        ):  # fmt: skip
            return log.append(value, len(value), None, log.rank, True)  # type: ignore[return-value]
        return self._append(  # type: ignore[return-value]
            value, (key, headers, tag, node, timestamp, ttl), durability, nowait=True
        )

    def _append(
        self, value: Value, rest: tuple[Any, ...], durability: Any, *, nowait: bool
    ) -> int | AppendFuture:
        data, size, extras, rank = self._checked(value, rest, durability)
        if rank == SYNCED and not nowait:
            return append_synced(self._log, data, size, extras)
        return self._log.append(data, size, extras, rank, nowait)

    def enter(
        self, value: Value, rest: tuple[Any, ...], durability: Any
    ) -> tuple[AppendFuture, int]:
        """As `append_nowait`, but never waits, however much has gathered; and the class's rank."""
        checked = self._checked(value, rest, durability)
        return self._log.append(*checked, True, False), checked[3]  # type: ignore[return-value]

    def _checked(
        self, value: Value, rest: tuple[Any, ...], durability: Any
    ) -> tuple[bytes | None, int, dict[str, Any] | None, int]:
        """A record as the log takes it: value, size, optional columns, rank of its class."""
        self._store.check_writable()
        data = check_bytes("value", value)
        size = len(data or b"")
        extras = None
        if any(item is not None for item in rest):
            more, extras = record_extras(*rest)
            size += more
        self.check_size(size)
        return data, size, extras, self.rank(durability)

    def check_size(self, size: int) -> None:
        """Raise if a record of so many bytes is too large."""
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
        self, records: Iterable[Value | Record], *, durability: Durability | str | None = None
    ) -> tuple[int, int]:
        """Append records as one atomic batch; returns the first and the last offset.

        After a crash either all of them are there or none.
        """
        log = self._log
        if (
            type(records) is not list or not records or durability is not None
            or not log.is_plain or log.codec
        ):  # fmt: skip
            return log.append_entries(*self._encode_many(records, durability))
        encoded = encode_values(records)
        if encoded is not None and len(encoded[0]) <= log.plain_bytes_max:
            return append_body(log, *encoded)
        entries, remake = self.encode_records(list(records))
        return log.append_entries(entries, log.rank, remake)

    def enter_many(
        self, records: Iterable[Value | Record], durability: Durability | str | None
    ) -> tuple[Group, int, int, int]:
        """The same without waiting: the group to wait for, both offsets, the class's rank."""
        entries, rank, remake = self._encode_many(records, durability)
        return *self._log.enter(entries, rank, remake, is_left=True), rank

    def _encode_many(
        self, records: Iterable[Value | Record], durability: Durability | str | None
    ) -> tuple[list[Entry], int, Callable[[int], list[Entry]] | None]:
        log = self._log
        if not log.is_plain:
            self._store.check_writable()
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
        """Records as frames, and what makes them again with no time below a later floor.

        That is None if no record brings a time of its own. Everything wrong with them is found.
        """
        log = self._log
        columns, times = columns_of(items, log.record_bytes_max)

        def make(floor: int) -> list[Entry]:
            if times is not None:
                columns.timestamps = rising(np.array(times, np.int64), self._now(), floor).tolist()
            flags, body = encode_columns(columns)
            check_batch(log, len(body))
            stamps = columns.timestamps or (0,)
            return [records_entry(log, flags, body, len(items), 0, stamps[0], stamps[-1])]

        return make(log.last_timestamp), make if times else None

    def append_arrow(
        self, data: pa.RecordBatch | pa.Table, *, durability: Durability | str | None = None
    ) -> tuple[int, int]:
        """Append Arrow data, column by column; returns the first and the last offset.

        Columns are those of `read_arrow`; `value` alone is enough, `offset` and `topic` are not
        looked at. About a megabyte at a time is atomic; all of it shares one sync.
        """
        self._store.check_writable()
        from stratalog.log.arrow import ArrowAppend

        log = self._log
        append = ArrowAppend(log, data, self._store.clock.time_ns)
        return log.append_entries(
            append.entries(log.last_timestamp),
            self.rank(durability),
            append.entries if append.is_timed else None,
        )

    def rank(self, durability: Durability | str | None) -> int:
        """How the log compares a durability class; None is the topic's own."""
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
    ) -> ConsumerGroup:
        """The consumer group of that name, made on first use.

        Mode `queue` (the default) shares the records out among its consumers, `stream` is a
        cursor of its own. `start` is where a new group begins: "earliest", "latest", an offset (an
        int), or a time (a float or a datetime). `pending_max` bounds what its consumers hold.
        """
        return self._store.group(self._log, name, mode, start, pending_max)

    def groups(self) -> list[str]:
        """Names of the topic's consumer groups, sorted."""
        self._store.settle(self._log)
        return [state.name for state in self._log.groups.named()]

    # --- delete --------------------------------------------------------------------------

    def delete(
        self,
        *,
        before: int | float | datetime | None = None,
        tag: str | None = None,
        tag_glob: str | None = None,
        offsets: Iterable[int] | None = None,
    ) -> int:
        """Delete the records that meet every condition given, for good; returns how many.

        `before` is an offset (an int) or a time (a float or a datetime): records below it. Readers
        do not see a gap where records were deleted. Records appended later are not affected.
        """
        if before is None and tag is None and tag_glob is None and offsets is None:
            raise OptionError("delete needs a condition: before, tag, tag_glob or offsets")
        self._store.check_writable()
        self._store.settle(self._log)
        log = self._log
        conditions = Conditions.check(log, tag, tag_glob, offsets)
        if before is None:
            end = log.committed
        elif isinstance(before, int) and not isinstance(before, bool):
            end = self._range(before, None)[0]
        else:
            end = offset_at(log, check_time("before", before))
        return self._store.delete(log, end, conditions)

    def stats(self) -> TopicStats:
        """Numbers about the topic, taken from memory."""
        self._store.settle(self._log)
        log = self._log
        return TopicStats(
            name=log.name,
            id=log.id,
            earliest=log.earliest,
            next_offset=log.committed,
            records=log.committed - log.earliest,
            bytes=log.index.total_bytes() + log.history.total_bytes(),
            frames=len(log.index),
            newest_timestamp=log.last_timestamp,
            durability=str(self.durability),
            compression=log.options.compression,
            epoch=log.epoch,
            **log.history.stats(),
        )
