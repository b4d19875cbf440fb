"""Atomic batches: changes of several topics, queues and groups that are all kept or none.

Everything is collected in memory and checked in the call itself. When the `with` block is left all
of it is written as one frame; an exception in the block discards it. A batch is used by one thread
and once.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from stratalog.batched import Appended, BatchGroup, BatchQueue, BatchTopic
from stratalog.errors import OptionError, StateError, TooLargeError, UsageError
from stratalog.format.frame import HEADER_BYTES
from stratalog.format.names import check_topic_name
from stratalog.log.crossing import Crossing
from stratalog.log.group import Group, batch_bytes_max
from stratalog.log.interrupts import holding
from stratalog.log.shard import GROUP_BYTES_MAX, Shard
from stratalog.log.topic import EPHEMERAL, RANKS, SYNCED, TopicLog
from stratalog.model import Durability
from stratalog.options import check_durability
from stratalog.projections.atomic import Atomic, Records
from stratalog.projections.engine import Engine
from stratalog.projections.queue import QueueState
from stratalog.projections.settling import Settlement

if TYPE_CHECKING:
    from stratalog.projections.catalog import Catalog
    from stratalog.store import Store

# How long a batch waits at a time for the first message with an id to be written.
_WAIT_SECONDS = 1.0


class _BusyError(Exception):
    """A message with the same id is not written yet: wait for it, and look again."""

    def __init__(self, log: TopicLog, offset: int) -> None:
        super().__init__()
        self.log = log
        self.offset = offset


class Entered(NamedTuple):
    """A batch that is in the log's open group."""

    shard: Shard
    group: Group
    has_to_wait: bool
    """Whether its class is satisfied only when the group is committed."""


class Batch:
    """Changes of topics, queues and groups, all of them or none: see `Store.batch`."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        crossing: Crossing,
        durability: Durability | str | None,
    ) -> None:
        rank = None if durability is None else RANKS[check_durability(durability)]
        if rank == EPHEMERAL:
            raise OptionError("durability='ephemeral' is not possible for a batch: it is written")
        self._store = store
        self._catalog = catalog
        self._crossing = crossing
        self._rank = rank
        self._parts: dict[tuple[str, str], BatchTopic] = {}
        self._settlements: dict[Engine, Settlement] = {}
        self._placed: list[tuple[BatchTopic, int]] = []
        self._atomic: Atomic | None = None
        self._state = "new"
        self._bytes = 0
        self._bytes_max = batch_bytes_max(store.options)

    # --- what is in it --------------------------------------------------------------------

    def topic(self, name: str) -> BatchTopic:
        """A topic to append to; if there is none it is made when the batch is committed."""
        self.check()
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

    def queue(self, name: str) -> BatchQueue:
        """A queue to put into, and whose messages to settle; it is made at once if need be."""
        self.check()
        queue = self._store.queue(name)
        if queue.topic.log.is_ephemeral:
            raise _ephemeral("queue", name)
        records = self._parts.get(("queue", name))
        if records is None:
            records = BatchTopic(self, self._store, name, queue.topic)
            self._parts["queue", name] = records
        return BatchQueue(self, self._store, queue, records)

    def group(self, topic: str, name: str) -> BatchGroup:
        """A consumer group of a topic, to acknowledge for; it is made at once if need be."""
        self.check()
        return BatchGroup(self, self._store, self._store.topic(topic).group(name).engine())

    def table(self, name: str) -> Any:
        """Tables are not part of this release."""
        raise UsageError(f"batch.table({name!r}): this release has no tables yet")

    def settlement(self, engine: Engine) -> Settlement:
        """What the batch does to a group's records."""
        self.check()
        found = self._settlements.get(engine)
        if found is None:
            found = self._settlements[engine] = Settlement(engine)
        return found

    def add_bytes(self, size: int) -> None:
        """Count what was added; raises when it can no longer be one frame."""
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
        kind: type[BaseException] | None,
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
        try:
            if entered is not None and entered.has_to_wait:
                entered.shard.commit(entered.group)
        except BaseException:
            self.finish()
            raise
        self.settle()

    def enter(self) -> Entered | None:
        """Commit without waiting; when that is committed `settle` is to be called, else `finish`.

        None if one has to wait, or if there is nothing to commit: then nothing was done.
        """
        self._check_state()
        logs = [part.topic.log for part in self._parts.values() if part.items and not part.is_new]
        logs += [one.topic for one in self._settlements.values() if one]
        is_new = any(part.is_new and part.items for part in self._parts.values())
        if not logs or is_new or self._crossing.is_needed(logs):
            return None
        try:
            entered = self._enter(is_left=True)
        except _BusyError:
            return None
        except BaseException:
            self._state = "over"
            raise
        self._state = "over"
        return entered

    def settle(self) -> None:
        """It is committed: tell the handles where their records are."""
        for part, base in self._placed:
            part.tell(base)
        self.finish()

    def finish(self) -> None:
        """Take in what became of messages that were settled; may wait a little."""
        if self._atomic is not None:
            self._atomic.finish()

    @property
    def may_wait_to_settle(self) -> bool:
        """Whether `settle` and `finish` have something to do that takes time."""
        return bool(self._settlements)

    def _enter(self, *, is_left: bool) -> Entered | None:
        """Put everything into the log; several shards at once are waited for."""
        parts = [part for part in self._parts.values() if part.items]
        settlements = [one for one in self._settlements.values() if one]
        if not parts and not settlements:
            return None
        self._store.check_writable()
        ids = {part: queue for part in parts if (queue := part.ids) is not None}
        # In one order for all batches.
        locks = [q.lock for q in sorted(set(ids.values()), key=lambda one: one.topic.id)]
        return holding(locks, lambda: self._enter_with(parts, ids, settlements, is_left))

    def _enter_with(
        self,
        parts: list[BatchTopic],
        ids: dict[BatchTopic, QueueState],
        settlements: list[Settlement],
        is_left: bool,
    ) -> Entered | None:
        """The same with all that remembers ids of messages locked."""
        now = self._store.clock.time_ns()
        chosen: list[tuple[BatchTopic, Records | None]] = []
        for part in parts:
            items = part.items
            if part in ids:
                items, unwritten = part.without_duplicates(ids[part], now)
                if unwritten >= 0:
                    raise _BusyError(part.topic.log, unwritten)
            chosen.append((part, part.encode(items) if items else None))
        records = [one for _, one in chosen if one is not None]
        bodies = [entry.body for one in records for entry in one.entries]
        self._check_bytes(sum(HEADER_BYTES + len(body) for body in bodies))
        entered: Entered | None = None
        bases: list[int] = []
        if records or settlements:
            atomic = self._atomic = Atomic(self._crossing, records, settlements)
            rank = atomic.rank if self._rank is None else self._rank
            for part in parts:
                part.announce()
            group = atomic.enter(rank, is_left=is_left)
            if group is None:
                atomic.commit(rank)
            else:
                has_to_wait = rank == SYNCED or group.bytes > GROUP_BYTES_MAX
                entered = Entered(atomic.topics[0].shard, group, has_to_wait)
            bases = atomic.bases
        left = iter(bases)
        self._placed = [(part, 0 if one is None else next(left)) for part, one in chosen]
        for part, base in self._placed:
            if part in ids:
                part.remember(ids[part], base, now)
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


__all__ = ["Appended", "Batch"]
