"""Atomic batches: changes of topics, queues, groups, tables and series, all kept or none.

Changes are collected in memory, and each call checks its own. Leaving the `with` block writes all
of them as one frame; an exception in the block discards them. A batch is used by one thread, and
once.
"""

from __future__ import annotations

import builtins
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, overload

from stratalog.consume.atomic_frame import AtomicFrame, Records
from stratalog.consume.batch_changes import GroupChanges
from stratalog.consume.engine import Engine
from stratalog.errors import OptionError, StateError, TooLargeError
from stratalog.format.frame import HEADER_BYTES
from stratalog.format.names import check_topic_name
from stratalog.format.values import Encoding
from stratalog.handles.batch_parts import (
    Appended,
    BatchGroup,
    BatchQueue,
    BatchTopic,
    TypedBatchTopic,
)
from stratalog.handles.batch_series import BatchSeries
from stratalog.handles.batch_table import BatchTable, TypedBatchTable, Written
from stratalog.handles.documented import Documented
from stratalog.handles.typed import is_raw
from stratalog.handles.typed_table import TypedTable
from stratalog.log.commit_group import Group, batch_bytes_max
from stratalog.log.cross_shard import CrossShard
from stratalog.log.interrupts import holding
from stratalog.log.shard import Shard
from stratalog.log.topic import EPHEMERAL, RANKS, TopicLog
from stratalog.model import Durability, T, V
from stratalog.options import check_durability
from stratalog.state.queue_state import QueueState

if TYPE_CHECKING:
    from stratalog.handles.store import Store
    from stratalog.state.catalog import Catalog

# How long a batch waits at a time until the first message with an id is written.
_WAIT_SECONDS = 1.0


class _BusyError(Exception):
    """A message with the same id is not written yet: wait for it, and look again."""

    def __init__(self, log: TopicLog, offset: int) -> None:
        super().__init__()
        self.log = log
        self.offset = offset


class _StaleError(Exception):
    """A table was written to since conditions were judged: judge them again."""


class Entered(NamedTuple):
    """A batch that is in the log's open group."""

    shard: Shard
    group: Group
    has_to_wait: bool
    """Whether its class is satisfied only once the group is committed."""


class Batch(Documented):
    """Changes of several places, all of them or none: see `Store.batch`."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        cross_shard: CrossShard,
        durability: Durability | str | None,
    ) -> None:
        rank = None if durability is None else RANKS[check_durability(durability)]
        if rank == EPHEMERAL:
            raise OptionError("durability='ephemeral' is not possible for a batch: it is written")
        self._store = store
        self._catalog = catalog
        self._cross_shard = cross_shard
        self._rank = rank
        self._parts: dict[tuple[str, str], BatchTopic] = {}
        self._tables: dict[str, BatchTable] = {}
        self._group_changes: dict[Engine, GroupChanges] = {}
        self._placed: list[tuple[BatchTopic, int]] = []
        self._atomic: AtomicFrame | None = None
        self._state = "new"
        self._bytes = 0
        self._bytes_max = batch_bytes_max(store.options)

    # --- what is in it --------------------------------------------------------------------

    @overload
    def topic(self, name: str, *, type: None = None, encoding: None = None) -> BatchTopic: ...

    @overload
    def topic(
        self, name: str, *, type: builtins.type[T], encoding: Encoding | None = None
    ) -> TypedBatchTopic[T]: ...

    def topic(
        self, name: str, *, type: Any = None, encoding: Encoding | None = None
    ) -> BatchTopic | TypedBatchTopic[Any]:
        """Get a topic to append to; the commit creates it if there is none.

        With `type`, as in `Store.topic`, it is created at once.
        """
        self.check()
        if not is_raw(type, encoding):
            typed = self._store.topic(name, type=type, encoding=encoding)
            assert typed._codec is not None
            return TypedBatchTopic(self.topic(name), typed._codec)
        found = self._parts.get(("topic", name)) if isinstance(name, str) else None
        if found is None:
            name = check_topic_name(name)
            topic = None if self._catalog.get(name) is None else self._store.topic(name)
            default = self._store.options.durability
            is_new_one = topic is None and default == Durability.EPHEMERAL
            if is_new_one or (topic is not None and topic.log.is_ephemeral):
                raise _ephemeral("topic", name)
            found = self._parts["topic", name] = BatchTopic(self, self._store, name, topic)
        return found

    @overload
    def queue(self, name: str, *, type: None = None, encoding: None = None) -> BatchQueue: ...

    @overload
    def queue(
        self, name: str, *, type: builtins.type[T], encoding: Encoding | None = None
    ) -> BatchQueue[T]: ...

    def queue(
        self, name: str, *, type: Any = None, encoding: Encoding | None = None
    ) -> BatchQueue[Any]:
        """Get a queue to put into and to acknowledge messages of; it is created at once.

        `type` and `encoding` as in `Store.queue`.
        """
        self.check()
        queue = self._store.queue(name, type=type, encoding=encoding)
        if queue.topic.log.is_ephemeral:
            raise _ephemeral("queue", name)
        records = self._parts.get(("queue", name))
        if records is None:
            records = BatchTopic(self, self._store, name, queue.topic)
            self._parts["queue", name] = records
        return BatchQueue(self, self._store, queue, records)

    def group(self, topic: str, name: str) -> BatchGroup:
        """Get a consumer group of a topic, to acknowledge for; it is created at once."""
        self.check()
        return BatchGroup(self, self._store, self._store.topic(topic).group(name).engine())

    def has_type(self, name: str, type: Any, encoding: str | None) -> bool:
        """Whether a topic is open with a type, so that `topic` need not make or change it."""
        handle = self._store._typed.get((name, type, encoding))
        return handle is not None and handle._is_current

    def has_topic(self, name: str) -> bool:
        """Return whether there is a topic of that name, so that none need be created."""
        return self._catalog.get(name) is not None

    def series(self, name: str) -> BatchSeries:
        """Get a series to write points to; it is created at once."""
        self.check()
        series = self._store.series(name)
        records = self._parts.get(("series", name))
        if records is None:
            topic = self._store.handle(name, series.log)
            records = self._parts["series", name] = BatchTopic(self, self._store, name, topic)
        return BatchSeries(series, records)

    @overload
    def table(self, name: str, *, type: None = None, encoding: None = None) -> BatchTable: ...

    @overload
    def table(
        self, name: str, *, type: builtins.type[V], encoding: Encoding | None = None
    ) -> TypedBatchTable[V]: ...

    def table(
        self, name: str, *, type: Any = None, encoding: Encoding | None = None
    ) -> BatchTable | TypedBatchTable[Any]:
        """Get a table to put into; it is created at once.

        `type` and `encoding` as in `Store.table`.
        """
        self.check()
        if not is_raw(type, encoding):
            typed = self._store.table(name, type=type, encoding=encoding)
            assert isinstance(typed, TypedTable)
            return TypedBatchTable(self.table(name), typed)
        found = self._tables.get(name) if isinstance(name, str) else None
        if found is None:
            table = self._store.table(name)
            found = self._tables[name] = BatchTable(self, table)
        return found

    def group_changes(self, engine: Engine) -> GroupChanges:
        """Return the batch's changes of a group's records."""
        self.check()
        found = self._group_changes.get(engine)
        if found is None:
            found = self._group_changes[engine] = GroupChanges(engine)
        return found

    def add_bytes(self, size: int) -> None:
        """Count bytes that were added; raises once they no longer fit into one frame."""
        self._check_bytes(self._bytes + size)
        self._bytes += size

    # --- the block ------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._state != "new":
            raise StateError("a batch is used once: get another one with store.batch()")
        self._state = "open"
        return self

    def __exit__(
        self,
        kind: builtins.type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._state != "open":
            return  # committed in the block
        if error is None:
            self.commit()
        self._state = "over"

    @property
    def is_open(self) -> bool:
        """Whether something can be added."""
        return self._state == "open"

    def check(self) -> None:
        """Raise unless something can be added."""
        self._check_state()
        self._store.check_writable()

    def _check_state(self) -> None:
        if self._state == "new":
            raise StateError("a batch collects in a with block: with store.batch() as batch: ...")
        if self._state != "open":
            raise StateError("this batch is over: get another one with store.batch()")

    # --- commit ---------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit now instead of at the end of the block; nothing more can be added."""
        self._check_state()
        self._state = "over"
        while True:
            try:
                entered = self._enter(is_left=False)
                break
            except _BusyError as busy:
                busy.log.wait(busy.offset, _WAIT_SECONDS)
                busy.log.check_dropped()
                busy.log.shard.check()
            except _StaleError:
                continue
        try:
            if entered is not None and entered.has_to_wait:
                entered.shard.commit(entered.group)
        except BaseException:
            self.finish()
            raise
        self.resolve()

    def enter(self) -> Entered | None:
        """Commit without waiting; call `resolve` once the group is committed, otherwise `finish`.

        None if that would have to wait, or if there is nothing to commit: then nothing was done.
        """
        self._check_state()
        logs = [part.topic.log for part in self._parts.values() if part.items and not part.is_new]
        logs += [one.topic for one in self._group_changes.values() if one]
        logs += [one.log for one in self._tables.values() if one]
        if not all(one.projection.is_prepared for one in self._tables.values()):
            return None
        is_new = any(part.is_new and part.items for part in self._parts.values())
        if not logs or is_new or self._cross_shard.is_needed(logs):
            return None
        try:
            entered = self._enter(is_left=True)
        except (_BusyError, _StaleError):
            return None
        except BaseException:
            self._state = "over"
            raise
        self._state = "over"
        return entered

    def resolve(self) -> None:
        """Give the handles their offsets, once the batch is committed."""
        for part, base in self._placed:
            part.resolve(base)
        for table in self._tables.values():
            table.resolve()
        self.finish()

    def finish(self) -> None:
        """Take in the result for messages that were acknowledged or returned; may wait a little."""
        if self._atomic is not None:
            self._atomic.finish()

    @property
    def may_wait_to_resolve(self) -> bool:
        """Whether `resolve` and `finish` have slow work to do."""
        return bool(self._group_changes or self._tables)

    def _enter(self, *, is_left: bool) -> Entered | None:
        """Put everything into the log; waits for several shards at once."""
        parts = [part for part in self._parts.values() if part.items]
        group_changes = [one for one in self._group_changes.values() if one]
        tables = sorted(filter(None, self._tables.values()), key=lambda one: one.log.id)
        if not parts and not group_changes and not tables:
            return None
        self._store.check_writable()
        for table in tables:
            table.log.check_dropped()
            table.make_room()
        ids = {part: queue for part in parts if (queue := part.ids) is not None}
        # All batches lock in one order.
        locks = [q.lock for q in sorted(set(ids.values()), key=lambda one: one.topic.id)]
        locks += [table.projection.writing for table in tables]
        return holding(locks, lambda: self._enter_with(parts, ids, tables, group_changes, is_left))

    def _enter_with(
        self,
        parts: list[BatchTopic],
        ids: dict[BatchTopic, QueueState],
        tables: list[BatchTable],
        group_changes: list[GroupChanges],
        is_left: bool,
    ) -> Entered | None:
        """Enter the log with every lock held that guards message ids or conditions of tables."""
        now = self._store.clock.time_ns()
        chosen: list[tuple[BatchTopic, Records | None]] = []
        for part in parts:
            items = part.items
            if part in ids:
                items, unwritten = part.without_duplicates(ids[part], now)
                if unwritten >= 0:
                    raise _BusyError(part.topic.log, unwritten)
            chosen.append((part, part.encode(items) if items else None))
        judged = [(table, one) for table in tables if (one := table.judge(now)) is not None]
        records = [one for _, one in chosen if one is not None] + [one for _, one in judged]
        bodies = [entry.body for one in records for entry in one.entries]
        self._check_bytes(sum(HEADER_BYTES + len(body) for body in bodies))
        entered: Entered | None = None
        bases: list[int] = []
        if records or group_changes:

            def check() -> None:
                if not all(table.is_current for table in tables):
                    raise _StaleError

            atomic = self._atomic = AtomicFrame(
                self._cross_shard, records, group_changes, check if tables else None
            )
            rank = atomic.rank if self._rank is None else self._rank
            for part in parts:
                part.announce()
            group = atomic.enter(rank, is_left=is_left)
            if group is None:
                atomic.commit(rank)
            else:
                has_to_wait = group.is_awaited(rank)
                entered = Entered(atomic.topics[0].shard, group, has_to_wait)
            bases = atomic.bases
        left = iter(bases)
        self._placed = [(part, 0 if one is None else next(left)) for part, one in chosen]
        for part, base in self._placed:
            if part in ids:
                part.remember(ids[part], base, now)
        for table, one in judged:
            table.note(one)
        return entered

    def _check_bytes(self, size: int) -> None:
        if size > self._bytes_max:
            raise TooLargeError(
                f"the batch has {size} bytes, at most {self._bytes_max} are atomic: make several "
                "batches of it, or raise batch_bytes_max or log_file_bytes"
            )


def _ephemeral(what: str, name: str) -> OptionError:
    return OptionError(
        f"{what} {name!r} is ephemeral, so its records are never in the log: they cannot be part "
        "of an atomic batch; append to it outside of the batch"
    )


__all__ = ["Appended", "Batch", "Written"]
