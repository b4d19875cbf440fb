"""A consumer group, as users hold it: poll, acknowledge, take over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stratalog.consuming import (
    Place,
    check_consumer,
    delay_ns,
    find_place,
    lease_ns,
    split,
    tell,
)
from stratalog.errors import OptionError, UnknownGroupError
from stratalog.format.groups import Description
from stratalog.inputs import check_text, check_timeout
from stratalog.log.topic import TopicLog
from stratalog.memory import MemoryBudget
from stratalog.model import Delivery, Lease
from stratalog.options import check_range
from stratalog.projections.delivery import Deliveries
from stratalog.projections.engine import Engine
from stratalog.projections.groups import MODES, QUEUE, GroupState
from stratalog.projections.rules import Rules
from stratalog.projections.streaming import Streaming
from stratalog.reports import ConsumerInfo, GroupStats, PendingEntry

if TYPE_CHECKING:
    from stratalog.store import Store


class Group:
    """A handle on one consumer group: cheap to make, safe to share between threads."""

    def __init__(self, store: Store, log: TopicLog, state: GroupState) -> None:
        self._store = store
        self._log = log
        self._state = state

    def __repr__(self) -> str:
        return f"<stratalog.Group {self.name!r} of {self._log.name!r} mode={self.mode!r}>"

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._state.name

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
    ) -> list[Delivery]:
        """Up to so many records for a consumer, as soon as there are any; none in time is none.

        They are this consumer's for `lease` seconds (30 unless said otherwise) and then somebody
        else's. `timeout=None` waits for ever.
        """
        engine = self._engine()
        check_range("limit", limit, 1, 1 << 31)
        name = check_consumer(consumer)
        return engine.poll(
            limit, name, lease_ns(engine, lease), check_timeout(timeout),
            self._store.clock.time_ns, self._store.check_writable,
        )  # fmt: skip

    def ack(self, deliveries: Iterable[int | Delivery]) -> int:
        """Acknowledge records, by offset or as they were delivered; returns how many were pending.

        A delivery, unlike an offset, says whose it was: `LeaseLostError` if it is somebody else's
        by now, and then none is acknowledged. In mode `stream` everything up to the highest is.
        """
        engine = self._engine()
        offsets, held = split(deliveries)
        with engine.lock:
            count = 0
            if held and isinstance(engine, Deliveries):
                count = engine.ack(held)
            else:
                offsets += [delivery.offset for delivery in held]
            count += engine.ack_offsets(offsets) if offsets else 0
            group = engine.operations.group
        if count:
            engine.settle(group)
        return count

    def nack(
        self, deliveries: Iterable[int | Delivery], delay: float = 0.0, reason: str = ""
    ) -> int:
        """Give records back, to be delivered again after so many seconds; returns how many."""
        engine = self._engine()
        offsets, held = split(deliveries)
        now = self._store.clock.time_ns()
        due = now + delay_ns(delay)
        with engine.lock:
            if isinstance(engine, Streaming):
                engine.give_back(offsets + [delivery.offset for delivery in held])
                return len(offsets) + len(held)
            assert isinstance(engine, Deliveries)
            for delivery in held:
                engine.check_held(delivery, "given back")
            known = [offset for offset in offsets if offset in engine.state.pending]
            for offset in known:
                engine.give_back(offset, due, now, reason)
            for delivery in held:
                engine.give_back(delivery.offset, due, now, reason, delivery)
                delivery.settled = True
            group = engine.operations.group
        if known or held:
            engine.settle(group)
        return len(known) + len(held)

    def touch(self, deliveries: Iterable[int | Delivery], lease: float | None = None) -> int:
        """Let the leases of records start again now; returns how many there were."""
        engine = self._leasing("touch")
        offsets, held = split(deliveries)
        deadline = self._store.clock.time_ns() + lease_ns(engine, lease)
        with engine.lock:
            for delivery in held:
                engine.check_held(delivery, "kept")
            for delivery in held:
                delivery.lease = engine.extend(delivery.offset, deadline)
            known = [offset for offset in offsets if offset in engine.state.pending]
            for offset in known:
                engine.extend(offset, deadline)
        return len(known) + len(held)

    def claim(
        self, consumer: str, idle: float = 30.0, limit: int = 10, lease: float | None = None
    ) -> list[Delivery]:
        """Take over records that others were given at least `idle` seconds ago, oldest first."""
        engine = self._leasing("claim")
        name = check_consumer(consumer)
        check_range("limit", limit, 1, 1 << 31)
        now = self._store.clock.time_ns()
        before = now - delay_ns(idle, "idle")
        with engine.lock:
            old = [o for o, one in engine.state.pending.items() if one.delivered_at <= before]
            chosen = sorted(old, key=lambda o: engine.state.pending[o].delivered_at)[:limit]
            found = engine.claim(chosen, name, lease_ns(engine, lease), now) if chosen else []
            engine.seen[name] = now
            group = engine.operations.group
        if found and group is not None:
            engine.settle(group)
        return found

    def seek(self, place: Place) -> int:
        """Go on from an offset (an int), a time (a float or a datetime), "earliest" or "latest".

        Everything from there on is delivered again, and nothing below; what is pending is no
        longer anybody's. Returns the offset.
        """
        engine = self._engine()
        self._store.settle(self._log)
        offset = find_place(self._log, "seek", place)
        with engine.lock:
            engine.seek(offset)
            group = engine.operations.group
        assert group is not None
        engine.operations.wait(group, sync=True, written=True)
        return offset

    # --- consumers ------------------------------------------------------------------------

    def join(self, consumer: str) -> None:
        """Make a consumer known before it asks for anything."""
        self.heartbeat(consumer, lease=None)

    def heartbeat(self, consumer: str, lease: float | None = None) -> int:
        """A consumer is alive: with `lease`, what it holds is its own for so long from now."""
        engine = self._engine()
        name = check_consumer(consumer)
        now = self._store.clock.time_ns()
        with engine.lock:
            engine.seen[name] = now
            if lease is None or not isinstance(engine, Deliveries):
                return 0
            deadline = now + lease_ns(engine, lease)
            held = [o for o, one in engine.state.pending.items() if one.consumer == name]
            for offset in held:
                engine.extend(offset, deadline)
        return len(held)

    def leave(self, consumer: str) -> int:
        """A consumer goes: what it holds is given back at once; returns how many records."""
        engine = self._engine()
        name = check_consumer(consumer)
        now = self._store.clock.time_ns()
        held: list[int] = []
        with engine.lock:
            engine.seen.pop(name, None)
            if isinstance(engine, Deliveries):
                held = [o for o, one in engine.state.pending.items() if one.consumer == name]
                for offset in held:
                    engine.give_back(offset, now, now, "its consumer left")
            group = engine.operations.group
        if held:
            engine.settle(group)
        return len(held)

    def consumers(self) -> list[ConsumerInfo]:
        """Those that were heard of, or hold something, by name."""
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
        """What was delivered, or given back, and is not acknowledged, in the order of offsets."""
        return [
            PendingEntry(offset, one.consumer, one.delivery_count, one.delivered_at, one.deadline)
            for offset, one in sorted(self._leases().items())
            if consumer is None or one.consumer == consumer
        ]

    @property
    def lag(self) -> int:
        """How many records are not acknowledged."""
        return self._numbers()[0]

    @property
    def floor(self) -> int:
        """Everything below this offset is acknowledged."""
        return self._numbers()[1]

    def stats(self) -> GroupStats:
        """Numbers about the group, taken from memory."""
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
        engine = self._engine()
        with engine.lock:
            engine.state.drop()
            engine.operations.drop()
            group = engine.operations.enter(sync=True)
        engine.operations.wait(group, sync=True, written=True)
        self._log.groups.live.pop(self._state.id, None)
        engine.close()

    def engine(self) -> Engine:
        """What delivers its records, for other handles."""
        return self._engine()

    # --- inside ---------------------------------------------------------------------------

    def _engine(self) -> Engine:
        self._store.check_writable()
        engine = self._log.groups.live.get(self._state.id)
        if engine is None:
            self._log.check_dropped()
            raise UnknownGroupError(
                f"group {self._state.name!r} of {self._log.name!r} was dropped: topic.group() "
                "makes it again"
            )
        return engine

    def _leasing(self, what: str) -> Deliveries:
        engine = self._engine()
        if not isinstance(engine, Deliveries):
            raise OptionError(
                f"{what} is for groups of mode 'queue': {self.name!r} is one of mode 'stream', "
                "where nothing is pending"
            )
        return engine

    def _leases(self) -> dict[int, Lease]:
        self._store.settle(self._log)
        self._log.groups.states()
        engine = self._log.groups.live.get(self._state.id)
        if engine is None:
            return dict(self._state.pending)
        with engine.lock:
            return dict(self._state.pending)

    def _numbers(self) -> tuple[int, int]:
        """Lag and floor."""
        self._store.settle(self._log)
        self._log.groups.states()
        engine = self._log.groups.live.get(self._state.id)
        committed = self._log.committed
        if isinstance(engine, Deliveries):
            with engine.lock:
                lag = sum(engine.counts())
            return lag, engine.floor()
        return self._state.lag(committed), self._state.floor()


def open_group(
    store: Store, log: TopicLog, budget: MemoryBudget | None, name: str, mode: str | None,
    start: Place, pending_max: int | None,
) -> Group:  # fmt: skip
    """The group of that name; a writer makes it if there is none."""
    if not check_text("group name", name):
        raise OptionError("a group name is empty: give it at least one character")
    name = str.__str__(name)
    if mode is not None and mode not in MODES:
        raise OptionError(f"mode={mode!r} is not known: use one of {', '.join(MODES)}")
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
        store.settle(log)
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
            Streaming(log, state, rules, budget)
            if kind is Streaming
            else Deliveries(log, state, rules, budget, handle)
        )
        groups.live[state.id] = engine
    if is_new:
        tell(engine, state.description(), state.ingested)
    return Group(store, log, state)
