"""A consumer group, as users hold it: poll, acknowledge, take over."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic

from stratalog.arguments import check_text, check_timeout
from stratalog.consume.batch_changes import GroupChanges
from stratalog.consume.engine import Engine, Origin
from stratalog.consume.queue_engine import Deliveries
from stratalog.consume.rules import Rules
from stratalog.consume.stream_engine import Streaming
from stratalog.errors import OptionError, StratalogError, UnknownGroupError
from stratalog.format.groups import Description
from stratalog.format.values import Codec
from stratalog.handles.consumer_arguments import (
    Given,
    Place,
    check_consumer,
    check_reason,
    commit,
    delay_ns,
    find_place,
    lease_ns,
    split,
    write_description,
)
from stratalog.handles.documented import Documented
from stratalog.handles.notebook import html_of
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.memory_budget import MemoryBudget
from stratalog.model import Delivery, Lease, T
from stratalog.options import check_range, plain
from stratalog.reports import ConsumerInfo, GroupStats, PendingEntry
from stratalog.state.group_state import MODES, QUEUE, GroupState

if TYPE_CHECKING:
    from stratalog.handles.store import Store


class Group(Documented, Generic[T]):
    """A handle on one consumer group: cheap to make, safe to share between threads."""

    def __init__(self, store: Store, log: TopicLog, state: GroupState) -> None:
        self._store = store
        self._log = log
        self._state = state
        self._name = state.name  # the state of a dropped group has none
        self._codec: Codec[T] | None = None

    def _read_as(self, codec: Codec[Any] | None) -> None:
        """Read values as a type from now on; for the store."""
        self._codec = codec

    def _typed(self, found: list[Delivery]) -> list[Delivery[T]]:
        """Read the values of deliveries as the type of the handle, if it has one."""
        if self._codec is None:
            return found  # type: ignore[return-value]  # without a type, values are bytes
        return self._codec.deliveries(found)

    def __repr__(self) -> str:
        return f"<stratalog.Group {self.name!r} of {self._log.name!r} mode={self.mode!r}>"

    def _repr_html_(self) -> str:
        return html_of(self)

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._name

    @property
    def mode(self) -> str:
        """`queue`: each record goes to one consumer. `stream`: a cursor, and nothing more."""
        return self._state.mode

    # --- consuming ------------------------------------------------------------------------

    def poll(
        self,
        consumer: str = "",
        limit: int = 100,
        lease: float | None = None,
        timeout: float | None = 0.0,
    ) -> list[Delivery[T]]:
        """Get up to `limit` records for a consumer as soon as there are any; none after `timeout`.

        They belong to this consumer for `lease` seconds (30 by default), then to the next that
        polls. `timeout=None` waits for ever.
        """
        engine = self._engine()
        check_range("limit", limit, 1, 1 << 31)
        name = check_consumer(consumer)
        found = engine.poll(
            limit, name, lease_ns(engine, lease), check_timeout(timeout),
            self._store.clock.time_ns, self._store.check_writable,
        )  # fmt: skip
        return self._typed(found)

    def ack(self, *deliveries: Given) -> int:
        """Acknowledge records, one or many; returns how many were pending.

        `LeaseLostError` if a delivery is void, because its lease ran out and the record was
        delivered again, or because another queue, group or store made it: then none is
        acknowledged. An offset, unlike a delivery, does not name a consumer: the pending record at
        that offset is acknowledged, whichever consumer has it. In mode `stream` everything up to
        the highest offset is acknowledged.
        """
        engine = self._engine()
        offsets, held = split(deliveries)
        if isinstance(engine, Streaming):
            return self._move(engine, offsets, held)
        assert isinstance(engine, Deliveries)
        with engine.lock:
            engine.open_inbox()
            count = engine.ack(held, offsets)
            group = engine.operations.group
        if count:
            engine.wait(group)
        return count

    def _move(self, engine: Streaming, offsets: list[int], held: list[Delivery]) -> int:
        """Acknowledge in mode `stream`."""
        changes = GroupChanges(engine)
        changes.offsets, changes.acks = offsets, held
        with engine.lock:
            before = engine.state.cursor
            if self._log.rank != SYNCED:
                return engine.move(changes.cursor())
        commit(self._store.cross_shard, changes)
        with engine.lock:
            return max(changes.cursor() - before, 0)

    def nack(
        self, *deliveries: Given, delay: float | timedelta | None = None, reason: str = ""
    ) -> int:
        """Give records back, to be delivered again after `delay` seconds; returns how many.

        Void deliveries and offsets are treated as in `ack`.
        """
        engine = self._engine()
        offsets, held = split(deliveries)
        now = self._store.clock.time_ns()
        due = now if delay is None else now + delay_ns(delay)
        with engine.lock:
            engine.open_inbox()
            if isinstance(engine, Streaming):
                for delivery in held:
                    engine.check_held(delivery, "given back")
                engine.give_back(offsets + [delivery.offset for delivery in held])
                return len(offsets) + len(held)
            assert isinstance(engine, Deliveries)
            returns = engine.returns(offsets, held, due, check_reason(reason))
            if self._log.rank != SYNCED:
                engine.nack(returns, now)
        if self._log.rank == SYNCED:
            changes = GroupChanges(engine)
            changes.returns = returns
            commit(self._store.cross_shard, changes)
        elif returns:
            engine.wait(engine.operations.group)
        return len(returns)

    def touch(self, *deliveries: Given, lease: float | timedelta | None = None) -> int:
        """Restart the leases of records now; returns how many there were.

        Void deliveries and offsets are treated as in `ack`.
        """
        engine = self._leasing("touch")
        offsets, held = split(deliveries)
        deadline = self._store.clock.time_ns() + lease_ns(engine, lease)
        with engine.lock:
            engine.open_inbox()
            return engine.touch(held, offsets, deadline)

    def claim(
        self, consumer: str, idle: float = 30.0, limit: int = 10, lease: float | None = None
    ) -> list[Delivery[T]]:
        """Take over records that others received at least `idle` seconds ago, oldest first."""
        engine = self._leasing("claim")
        name = check_consumer(consumer)
        check_range("limit", limit, 1, 1 << 31)
        now = self._store.clock.time_ns()
        before = now - delay_ns(idle, "idle")
        with engine.lock:
            old = (
                (lease.delivered_at, offset)
                for offset, lease in engine.state.pending.items()
                if lease.delivered_at <= before
            )
            chosen = [offset for _, offset in heapq.nsmallest(limit, old)]
            found = engine.claim(chosen, name, lease_ns(engine, lease), now) if chosen else []
            engine.seen[name] = now
            group = engine.operations.group
        if found:
            try:
                engine.wait(group)
            except StratalogError:
                with engine.lock:
                    engine.unclaim(found)
                raise
            engine.written(found)
        return self._typed(found)

    def seek(self, place: Place) -> int:
        """Continue from an offset (an int), a time (a float or a datetime), "earliest" or "latest".

        Everything from there on is delivered again, and nothing below; pending deliveries become
        void. Returns the offset.
        """
        engine = self._engine()
        self._store.make_readable(self._log)
        offset = find_place(self._log, "seek", place)
        engine.change(lambda: engine.seek(offset))
        return offset

    # --- consumers ------------------------------------------------------------------------

    def join(self, consumer: str) -> None:
        """Register a consumer before it polls."""
        self.heartbeat(consumer, lease=None)

    def heartbeat(self, consumer: str, lease: float | None = None) -> int:
        """Report that a consumer is alive; `lease` restarts the leases of what it holds."""
        engine = self._engine()
        name = check_consumer(consumer)
        now = self._store.clock.time_ns()
        with engine.lock:
            engine.seen[name] = now
            if lease is None or not isinstance(engine, Deliveries):
                return 0
            return engine.keep(name, now + lease_ns(engine, lease))

    def leave(self, consumer: str) -> int:
        """Remove a consumer and give back at once what it holds; returns how many records.

        The next commit writes it: after an earlier crash the leases run out by themselves.
        """
        engine = self._engine()
        name = check_consumer(consumer)
        now = self._store.clock.time_ns()
        with engine.lock:
            engine.open_inbox()
            count = 0
            if isinstance(engine, Deliveries):
                count = engine.release(name, now, "its consumer left")
            engine.seen.pop(name, None)
        return count

    def consumers(self) -> list[ConsumerInfo]:
        """List consumers that are registered or hold something, by name."""
        held: dict[str, int] = {}
        for lease in self._leases().values():
            if lease.consumer:
                held[lease.consumer] = held.get(lease.consumer, 0) + 1
        engine = self._log.groups.live.get(self._state.id)
        seen = {} if engine is None else dict(engine.seen)
        return [
            ConsumerInfo(name, held.get(name, 0), seen.get(name, 0)) for name in sorted(held | seen)
        ]

    # --- looking --------------------------------------------------------------------------

    def pending(self, consumer: str | None = None) -> list[PendingEntry]:
        """List records that were delivered or given back and are not acknowledged, by offset."""
        return [
            PendingEntry(offset, one.consumer, one.delivery_count, one.delivered_at, one.deadline)
            for offset, one in sorted(self._leases().items())
            if consumer is None or one.consumer == consumer
        ]

    @property
    def lag(self) -> int:
        """Count the records that are not acknowledged."""
        return self._numbers()[0]

    @property
    def floor(self) -> int:
        """Return the offset below which everything is acknowledged."""
        return self._numbers()[1]

    def stats(self) -> GroupStats:
        """Return numbers about the group, taken from memory."""
        lag, floor = self._numbers()
        state = self._state
        return GroupStats(
            topic=self._log.name,
            name=state.name,
            mode=state.mode,
            lag=lag,
            pending=len(state.pending),
            floor=floor,
            deliveries=state.deliveries,
            consumed=state.consumed,
            consumers=len(self.consumers()),
        )

    def drop(self) -> None:
        """Remove the group, durably; its topic and the topic's records stay."""
        with self._store.groups_lock:
            engine = self._engine()
            state = engine.state

            def note() -> Callable[[], None]:
                name, undo_state = state.name, state.save()

                def undo() -> None:
                    undo_state()
                    state.name, state.is_dropped = name, False

                state.drop()
                engine.operations.drop()
                return undo

            engine.change(note)
            self._log.groups.live.pop(state.id, None)
            engine.close()

    def engine(self) -> Engine:
        """The engine that delivers its records, for other handles."""
        return self._engine()

    @property
    def origin(self) -> Origin:
        """Identity that distinguishes its deliveries from those of other groups."""
        return self._store.origin(self._log, self._state)

    # --- inside ---------------------------------------------------------------------------

    def _engine(self) -> Engine:
        self._store.check_writable()
        engine = self._log.groups.live.get(self._state.id)
        if engine is None:
            self._log.check_dropped()
            raise self._dropped()
        return engine

    def _dropped(self) -> UnknownGroupError:
        return UnknownGroupError(
            f"Group {self._name!r} of {self._log.name!r} was dropped. Call topic.group() to make "
            "it again."
        )

    def _leasing(self, what: str) -> Deliveries:
        engine = self._engine()
        if not isinstance(engine, Deliveries):
            raise OptionError(
                f"{what} is for groups of mode 'queue': {self.name!r} is one of mode 'stream', "
                "where nothing is pending"
            )
        return engine

    def _make_readable(self) -> None:
        self._store.make_readable(self._log)
        self._log.groups.states()

    def _leases(self) -> dict[int, Lease]:
        self._make_readable()
        engine = self._log.groups.live.get(self._state.id)
        if engine is None:
            return dict(self._state.pending)
        with engine.lock:
            engine.open_inbox()
            return dict(self._state.pending)

    def _numbers(self) -> tuple[int, int]:
        """Return lag and floor."""
        self._make_readable()
        engine = self._log.groups.live.get(self._state.id)
        committed = self._log.committed
        if isinstance(engine, Deliveries):
            with engine.lock:
                engine.open_inbox()
                lag = sum(engine.counts())
            return lag, engine.floor()
        return self._state.lag(committed), self._state.floor()


def open_group(
    store: Store, log: TopicLog, budget: MemoryBudget | None, name: str, mode: str | None,
    start: Place, pending_max: int | None,
) -> Group:  # fmt: skip
    """Open the group of that name; a writer creates it if there is none."""
    if not check_text("group name", name):
        raise OptionError("a group name is empty: give it at least one character")
    name = str.__str__(name)
    if pending_max is not None:
        check_range("pending_max", pending_max, 1, 1 << 40)
    if mode is not None and mode not in MODES:
        raise OptionError(f"mode={mode!r} is not known: use one of {', '.join(MODES)}")
    mode = plain(mode)
    groups = log.groups
    state = groups.find(name)
    if budget is None:
        if state is None:
            raise UnknownGroupError(
                f"topic {log.name!r} has no group {name!r}: there are {len(groups.named())}"
            )
        return Group(store, log, state)
    is_new = state is None
    if state is None:
        store.make_readable(log)
        offset = find_place(log, "start", start)
        state = groups.add(is_queue=False)
        state.describe(Description(name, mode or QUEUE, store.clock.time_ns(), {}))
        state.reset(offset)
    elif mode is not None and mode != state.mode:
        raise OptionError(
            f"group {name!r} of {log.name!r} is of mode {state.mode!r}, not {mode!r}: take another "
            "name, or drop it first"
        )
    engine = groups.live.get(state.id)
    if engine is None:
        rules = Rules() if pending_max is None else Rules(pending_max=pending_max)
        kind = Deliveries if state.mode == QUEUE else Streaming
        handle = Group(store, log, state)
        engine = (
            Streaming(log, state, rules, budget, handle)
            if kind is Streaming
            else Deliveries(log, state, rules, budget, handle)
        )
        groups.live[state.id] = engine
    elif pending_max is not None:
        engine.rules = engine.rules._replace(pending_max=pending_max)
    if is_new:
        try:
            write_description(engine, state.description(), state.ingested)
        except StratalogError:
            groups.forget(state)
            raise
    return Group(store, log, state)
