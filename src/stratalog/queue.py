"""A queue, as users hold it: put, get, acknowledge.

A queue is a topic of kind `queue` with a group of its own. Its records are messages, and can be
read, watched and consumed by further groups as those of any topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stratalog.consuming import (
    Place,
    check_consumer,
    delay_ns,
    find_place,
    lease_ns,
    tell,
)
from stratalog.dead import SUFFIX, DeadLetters
from stratalog.errors import (
    LeaseLostError,
    OptionError,
    QueueEmptyError,
    UnsupportedVersionError,
    UsageError,
    WrongKindError,
)
from stratalog.inputs import check_timeout
from stratalog.log.group import Group as CommitGroup
from stratalog.log.topic import TopicLog
from stratalog.model import Delivery, Durability, Message, Record
from stratalog.options import QueueOptions, check_durability, check_range
from stratalog.projections.delivery import Deliveries
from stratalog.projections.groups import QUEUE, GroupState
from stratalog.projections.peek import deliverable, peek
from stratalog.projections.rules import Rules
from stratalog.putting import QueuePutting
from stratalog.reports import QueueStats

if TYPE_CHECKING:
    from stratalog.store import Store
    from stratalog.topic import Topic


QUEUE_TOPIC: dict[str, Any] = {
    "retention": "consumed", "retention_records": 0, "retention_segments_min": 0,
}  # fmt: skip
"""Options of a queue's topic: a segment goes as soon as all of it is consumed."""


class Queue(QueuePutting):
    """A handle on one queue: cheap to make, safe to share between threads."""

    def __init__(self, store: Store, log: TopicLog, state: GroupState, topic: Topic) -> None:
        self._store = store
        self._log = log
        self._state = state
        self._topic = topic
        self.dead = DeadLetters(store, log)
        """Messages that were delivered too often."""
        self.options = stored_options(log, state)
        """The options it goes by."""
        self._engine: Deliveries | None = None
        self._ttl = 0

    def __repr__(self) -> str:
        return f"<stratalog.Queue {self.name!r}>"

    def __bool__(self) -> bool:
        return True  # a handle, however many messages it has

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._log.name

    @property
    def durability(self) -> Durability:
        """What an acknowledged `put` and `ack` has survived."""
        return self._topic.durability

    @property
    def topic(self) -> Topic:
        """The topic that has the messages: to read, to watch, or for further groups."""
        return self._topic

    @property
    def engine(self) -> Deliveries:
        """What delivers its messages, for other handles."""
        return self._working()

    @property
    def ttl_ns(self) -> int:
        """Nanoseconds that messages live which say nothing else; 0 is for ever."""
        return self._ttl

    def start(self, engine: Deliveries) -> None:
        """Be the one whose messages the engine delivers; for the store."""
        self._engine = engine
        engine.on_dying = self._bury

    def configure(self, options: QueueOptions) -> None:
        """Go by these options from now on."""
        self.options = options
        self._ttl = 0 if options.ttl is None else round(options.ttl * 1e9)
        assert self._engine is not None
        self._engine.rules = Rules.of(options)
        queue = self._log.groups.queue
        assert queue is not None
        queue.configure(options.dedup_window, options.dedup_entries)

    # --- out ------------------------------------------------------------------------------

    def get(
        self, timeout: float | None = None, lease: float | None = None, consumer: str = ""
    ) -> Message:
        """The next message, as soon as there is one; `QueueEmptyError` if none came in time.

        Until `ack` or `nack` it is this consumer's, for `lease` seconds. `timeout=None` waits for
        ever. In a `with` block it is acknowledged at the end, or given back if the block raises.
        """
        found = self._get(1, timeout, lease, consumer)
        if not found:
            raise QueueEmptyError(f"queue {self.name!r} had no message for {timeout} seconds")
        return found[0]

    def get_nowait(self, lease: float | None = None, consumer: str = "") -> Message | None:
        """The next message, or None if there is none that can be delivered now."""
        found = self._get(1, 0, lease, consumer)
        return found[0] if found else None

    def get_many(
        self,
        limit: int,
        timeout: float | None = 0.0,
        lease: float | None = None,
        consumer: str = "",
    ) -> list[Message]:
        """Up to so many messages at once, as soon as there is one; an empty list if none came."""
        if type(limit) is not int or not 1 <= limit < 1 << 31:
            check_range("limit", limit, 1, 1 << 31)
        return self._get(limit, timeout, lease, consumer)

    def _get(self, limit: int, timeout: float | None, lease: Any, consumer: str) -> list[Message]:
        engine = self._engine
        if engine is not None and lease is None and not consumer:
            with engine.lock:
                found = engine.take_at_hand(
                    limit, "consumer", engine.rules.lease, engine.topic.time_ns()
                )
            if found:
                engine.delivered()
                return found
        if engine is None or self._store.is_closed:
            engine = self._working()
        return engine.poll(
            limit,
            check_consumer(consumer) if consumer else "consumer",
            engine.rules.lease if lease is None else lease_ns(engine, lease),
            0 if timeout == 0 else check_timeout(timeout),
            self._store.clock.time_ns,
            self._store.check_writable,
        )

    def ack(self, *messages: Message) -> None:
        """Done with these: they are not delivered again. All of them, or none and an error.

        `LeaseLostError` if one of them is no longer this consumer's.
        """
        engine = self._engine or self._working()
        with engine.lock:
            if len(messages) != 1 or not engine.ack_one(messages[0]):
                engine.ack(messages)
            group = engine.operations.group
        engine.settle(group)

    def enter_ack(self, messages: Iterable[Message]) -> CommitGroup | None:
        """As `ack` without waiting: returns the group that it is written with."""
        engine = self._working()
        with engine.lock:
            engine.ack(tuple(messages))
            return engine.operations.group

    def nack(
        self, *messages: Message, reason: str = "", delay: float | timedelta | None = None
    ) -> None:
        """Give these back, to be delivered again after `delay` seconds.

        Without `delay` it is the queue's `backoff`, twice as long each time. A message that was
        delivered `max_deliveries` times goes to the dead letters instead.
        """
        engine = self._working()
        now = self._store.clock.time_ns()
        with engine.lock:
            chosen = [one for one in messages if not one.is_settled and one.lease.deadline]
            for message in chosen:
                engine.check_held(message, "given back")
            for message in chosen:
                wait = (
                    engine.rules.delay(message.lease.delivery_count)
                    if delay is None
                    else delay_ns(delay)
                )
                engine.give_back(message.offset, now + wait, now, reason, message)
                message.settled = True
            group = engine.operations.group
        engine.settle(group)
        engine.tend()

    def touch(self, *messages: Message, lease: float | timedelta | None = None) -> None:
        """Keep these longer: their leases start again now."""
        engine = self._working()
        deadline = self._store.clock.time_ns() + lease_ns(engine, lease)
        with engine.lock:
            for message in messages:
                engine.check_held(message, "kept")
            for message in messages:
                message.lease = engine.extend(message.offset, deadline)

    def leave(self, message: Message, error: BaseException | None) -> None:
        """End of a `with` block: acknowledge, or give back with the error as the reason."""
        if error is None:
            self.ack(message)
            return
        # Somebody else may have it by now: what was raised in the block matters more.
        with contextlib.suppress(LeaseLostError):
            self.nack(message, reason=f"{type(error).__name__}: {error}")

    def seek(self, place: Place) -> int:
        """Deliver everything from an offset or a time on, and nothing below; returns the offset.

        What was consumed comes again, as far as it is still stored.
        """
        engine = self._working()
        self._store.settle(self._log)
        offset = find_place(self._log, "seek", place)
        with engine.lock:
            engine.seek(offset)
            group = engine.operations.group
        assert group is not None
        engine.operations.wait(group, sync=True, written=True)
        return offset

    def purge(self) -> int:
        """Forget every message that is waiting or pending; returns how many."""
        count = sum(self._counts())
        self.seek("latest")
        return count

    # --- looking --------------------------------------------------------------------------

    def peek(self, limit: int = 1) -> list[Delivery]:
        """The next messages, in the order they would be delivered, without delivering them."""
        check_range("limit", limit, 1, 1 << 31)
        now = self._store.clock.time_ns()
        self._settle()
        if self._engine is None:
            return peek(
                self._log, deliverable(self._state, now, self.options.max_deliveries), limit, now
            )
        with self._engine.lock:
            self._engine.look(now)
            waiting = self._engine.deliverable()
        return peek(self._log, waiting, limit, now)

    def __len__(self) -> int:
        waiting, delayed, _ = self._counts()
        return waiting + delayed

    def stats(self) -> QueueStats:
        """Numbers about the queue, taken from memory."""
        waiting, delayed, pending = self._counts()
        engine, state, queue = self._engine, self._state, self._log.groups.queue
        floor = state.floor() if engine is None else engine.floor()
        oldest = next(iter(self._topic.read(floor, limit=1)), None)
        return QueueStats(
            name=self.name,
            waiting=waiting,
            delayed=delayed,
            pending=pending,
            dead=len(self.dead),
            floor=floor,
            next_offset=self._log.committed,
            oldest_timestamp=oldest.timestamp if isinstance(oldest, Record) else 0,
            deliveries=state.deliveries,
            consumed=state.consumed,
            expired=0 if engine is None else engine.expired,
            duplicates=0 if queue is None else queue.duplicates,
            dedup_entries=0 if queue is None else len(queue.dedup),
            durability=str(self.durability),
            delivery=self.options.delivery,
        )

    def _counts(self) -> tuple[int, int, int]:
        """Waiting, delayed, pending."""
        self._settle()
        now = self._store.clock.time_ns()
        if self._engine is None:
            waiting = sum(
                map(len, deliverable(self._state, now, self.options.max_deliveries).values())
            )
            held = sum(
                lease.deadline > now and bool(lease.consumer)
                for lease in self._state.pending.values()
            )
            return waiting, self._state.lag(self._log.committed) - waiting - held, held
        with self._engine.lock:
            self._engine.look(now)
            return self._engine.counts()

    def _settle(self) -> None:
        self._store.settle(self._log)
        self._log.groups.states()
        if self._engine is not None:
            self._engine.tend()

    def _bury(self) -> None:
        assert self._engine is not None
        self.dead.move(self._engine)


def open_queue(store: Store, log: TopicLog, topic: Topic, given: dict[str, Any]) -> Queue:
    """The queue that a topic is; a writer writes down what is new about it."""
    groups = log.groups
    state = groups.find("", is_queue=True)
    if store.is_read_only:
        return Queue(store, log, state or groups.add(is_queue=True), topic)
    is_new = state is None
    if state is None:
        state = groups.add(is_queue=True)
        state.created_at = store.clock.time_ns()
        state.reset(0)
    before = stored_options(log, state)
    options = QueueOptions.build(before.to_dict() | given)
    state.options = options.to_dict()
    queue = Queue(store, log, state, topic)
    engine = groups.live.get(state.id)
    if engine is None:
        engine = Deliveries(log, state, Rules.of(options), store.budget, queue)
        groups.live[state.id] = engine
        assert groups.queue is not None
        groups.queue.is_live = True
    assert isinstance(engine, Deliveries)
    queue.start(engine)
    queue.configure(options)
    if is_new or options != before:
        tell(engine, state.description(), 0 if is_new else None)
    return queue


def stored_options(log: TopicLog, state: GroupState) -> QueueOptions:
    """The options that a queue was made with."""
    try:
        return QueueOptions.build(state.options)
    except UsageError as error:
        raise UnsupportedVersionError(
            f"queue {log.name!r} has options that this release does not know ({error}): upgrade "
            "stratalog to use it"
        ) from error


def check_kind(log: TopicLog, durability: Any) -> None:
    """Raise unless a topic is a queue, and of this class if one is given."""
    if log.kind != QUEUE:
        raise WrongKindError(
            f"{log.name!r} is a {log.kind}, not a queue: consume it with "
            f"store.topic({log.name!r}).group(...), or give the queue another name"
        )
    if durability is not None and check_durability(durability) != log.options.durability:
        raise OptionError(
            f"queue {log.name!r} was made with durability={log.options.durability!s}, which is "
            f"for good: leave durability={durability!s} out, or take another name"
        )


def check_queue_name(name: str) -> None:
    """A queue has room for its dead letters beside it."""
    if isinstance(name, str) and name.endswith(SUFFIX):
        raise OptionError(
            f"queue name {name!r} ends as dead letters do ({SUFFIX!r}): give it another"
        )
