"""A queue, as users hold it: put, get, acknowledge.

A queue is a topic of kind `queue` with a group of its own. Its records are messages, and can be
read, watched and consumed by more groups, like those of any topic.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import perf_counter_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stratalog.arguments import check_timeout
from stratalog.consume.batch_changes import GroupChanges
from stratalog.consume.engine import Origin
from stratalog.consume.keep import RUN_SECONDS_MAX, Keeper
from stratalog.consume.leases import Return
from stratalog.consume.operations import CHANGES_MAX
from stratalog.consume.peek import deliverable, peek
from stratalog.consume.queue_engine import Deliveries
from stratalog.consume.rules import Rules
from stratalog.errors import (
    LeaseLostError,
    OptionError,
    QueueEmptyError,
    ReadOnlyError,
    StratalogError,
    UnsupportedVersionError,
    UsageError,
    WrongKindError,
    WrongTypeError,
)
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
from stratalog.handles.dead_letters import SUFFIX, DeadLetters
from stratalog.handles.notebook import html_of
from stratalog.handles.put import QueuePutting
from stratalog.handles.work import Stop, Work, Workers, check_run_max, reason_of
from stratalog.log.commit_group import Group as CommitGroup
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.model import Delivery, Durability, Message, Record, T
from stratalog.options import QueueOptions, check_durability, check_range
from stratalog.reports import QueueStats
from stratalog.state.group_state import QUEUE, GroupState

if TYPE_CHECKING:
    from stratalog.handles.store import Store
    from stratalog.handles.topic import Topic


QUEUE_TOPIC: dict[str, Any] = {
    "retention": "consumed", "retention_records": 0, "retention_segments_min": 0,
}  # fmt: skip
"""Options of a queue's topic: a segment is removed once all of it is consumed."""

# One call of `get` in 16 is timed: reading the clock costs 40 ns, and a call needs it twice.
_UNTIMED = 15

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Queue(QueuePutting[T]):
    """A handle on one queue: cheap to make, safe to share between threads."""

    def __init__(self, store: Store, log: TopicLog, state: GroupState, topic: Topic) -> None:
        self._store = store
        self._log = log
        self._state = state
        self._topic = topic
        self._gets = 0
        self.dead: DeadLetters[T] = DeadLetters(store, log)
        """Messages that were delivered too often."""
        self.options = stored_options(log, state)
        """The options in force."""
        self._engine: Deliveries | None = None
        self._ttl = 0
        self._keeper = Keeper(log.name, self._renew)

    def __repr__(self) -> str:
        return f"<stratalog.Queue {self.name!r}>"

    def _repr_html_(self) -> str:
        return html_of(self)

    def __bool__(self) -> bool:
        return True  # a handle, even on an empty queue

    @property
    def name(self) -> str:
        """The name it was made with."""
        return self._log.name

    @property
    def type(self) -> builtins.type[T] | None:
        """The type of its messages; None if they are bytes."""
        return None

    @property
    def durability(self) -> Durability:
        """The class by which `put` and `ack` are acknowledged."""
        return self._topic.durability

    @property
    def topic(self) -> Topic:
        """The topic that holds the messages, to read, to watch, or for more groups."""
        return self._topic

    @property
    def engine(self) -> Deliveries:
        """The engine that delivers its messages, for other handles."""
        return self._working()

    @property
    def origin(self) -> Origin:
        """Identity that distinguishes its messages from those of other queues."""
        return self._store.origin(self._log, self._state)

    @property
    def ttl_ns(self) -> int:
        """Default time to live of messages in nanoseconds; 0 is for ever."""
        return self._ttl

    def start(self, engine: Deliveries) -> None:
        """Register as the handle whose messages the engine delivers; called by the store."""
        self._engine = engine
        engine.on_dying = self._bury

    def configure(self, options: QueueOptions) -> None:
        """Apply these options from now on."""
        self.options = options
        self._ttl = 0 if options.ttl is None else round(options.ttl * 1e9)
        assert self._engine is not None
        self._engine.rules = Rules.of(options)
        queue = self._log.groups.queue
        assert queue is not None
        queue.configure(options.dedup_window, options.dedup_entries)

    # --- out ------------------------------------------------------------------------------

    def _typed(self, found: list[Message]) -> list[Message[T]]:
        """Read the values of messages as the type of the handle, if it has one."""
        return found  # type: ignore[return-value]  # without a type, values are bytes

    def _encoded(self, value: Any) -> Any:
        """A message as it is stored."""
        return value

    def get(
        self, timeout: float | None = None, lease: float | None = None, consumer: str = ""
    ) -> Message[T]:
        """Get the next message, waiting for one; `QueueEmptyError` if none came in time.

        Until `ack` or `nack` it belongs to this consumer, for `lease` seconds. `timeout=None` waits
        for ever. A `with` block acknowledges it at the end, or gives it back if the block raises.
        """
        found = self._get(1, timeout, lease, consumer)
        if not found:
            raise QueueEmptyError(f"queue {self.name!r} had no message for {timeout} seconds")
        return found[0]

    def get_nowait(self, lease: float | None = None, consumer: str = "") -> Message[T] | None:
        """Get the next message, or None if none can be delivered now."""
        found = self._get(1, 0, lease, consumer)
        return found[0] if found else None

    def get_many(
        self,
        limit: int,
        timeout: float | None = 0.0,
        lease: float | None = None,
        consumer: str = "",
    ) -> list[Message[T]]:
        """Get up to `limit` messages as soon as there is one; an empty list if none came in time.

        `timeout=None` waits for ever, as in `get`; by default it does not wait.
        """
        if type(limit) is not int or not 1 <= limit < 1 << 31:
            check_range("limit", limit, 1, 1 << 31)
        return self._get(limit, timeout, lease, consumer)

    def _get(
        self, limit: int, timeout: float | None, lease: Any, consumer: str
    ) -> list[Message[T]]:
        self._gets = gets = self._gets + 1
        if gets & _UNTIMED:
            return self._take(limit, timeout, lease, consumer)
        begin = perf_counter_ns()
        found = self._take(limit, 0, lease, consumer)
        if found:
            self._store.sampler.gets.record(perf_counter_ns() - begin)
            self._store.sampler.gets.fold_if_full()
            return found
        return self._take(limit, timeout, lease, consumer)  # the wait is not timed

    def _take(
        self, limit: int, timeout: float | None, lease: Any, consumer: str
    ) -> list[Message[T]]:
        engine = self._engine
        if engine is not None and lease is None and not consumer:
            with engine.lock:
                found = engine.take_at_hand(
                    limit, "consumer", engine.rules.lease, engine.topic.sane_time_ns()
                )
                group = engine.operations.group
            if found:
                engine.delivered(found, group)
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

    def ack(self, *messages: Given) -> None:
        """Acknowledge one or many messages, all or none: they are not delivered again.

        `LeaseLostError` if one of them is void: it was delivered again since, or by another queue.
        A message that is already acknowledged or given back is ignored. An offset, unlike a
        message, does not name a delivery: the pending message there is acknowledged, whichever
        consumer has it.
        """
        engine = self._engine or self._working()
        try:
            with engine.lock:
                # Nearly every call has one message; `ack_one` returns whether it was the simple
                # case.
                if len(messages) == 1 and engine.ack_one(messages[0]):  # type: ignore[arg-type]
                    # No call waits for it. `wait` limits what gathers; a call costs 2 % here.
                    if len(engine.operations.consumed) <= CHANGES_MAX:
                        return
                    is_new = True
                else:
                    engine.open_inbox()
                    is_new = engine.ack(messages) > 0  # type: ignore[arg-type]
                group = engine.operations.group
        except AttributeError:  # an argument is no message: checked only now
            group = self.enter_ack(*messages)
            is_new = group is not None
        if is_new:
            engine.wait(group)

    def enter_ack(self, *messages: Given) -> CommitGroup | None:
        """Acknowledge without waiting; returns the commit group that it is written with, if any."""
        engine = self._working()
        offsets, held = split(messages)
        with engine.lock:
            engine.open_inbox()
            return engine.operations.group if engine.ack(held, offsets) else None

    def nack(
        self, *messages: Given, reason: str = "", delay: float | timedelta | None = None
    ) -> None:
        """Give one or many messages back, to be delivered again after `delay` seconds.

        Without `delay` the queue's `backoff` applies, doubled each time. A message that was
        delivered `max_deliveries` times goes to the dead letters instead. Errors and offsets as in
        `ack`.
        """
        engine = self._working()
        offsets, held = split(messages)
        now = self._store.clock.time_ns()
        with engine.lock:
            engine.open_inbox()
            returns = engine.returns(offsets, held, now, check_reason(reason))
            returns = [one._replace(due=now + self.wait_ns(one, delay)) for one in returns]
            if self._log.rank != SYNCED:
                engine.nack(returns, now)
                group = engine.operations.group
        if self._log.rank == SYNCED:
            changes = GroupChanges(engine)
            changes.returns = returns
            commit(self._store.cross_shard, changes)
        elif returns:
            engine.wait(group)
        # They are given back. If dead letters cannot be moved now, the next get() moves them.
        with contextlib.suppress(StratalogError):
            engine.tend()

    def wait_ns(self, one: Return, delay: float | timedelta | None) -> int:
        """Return how long a message that is given back waits, in nanoseconds."""
        if delay is not None:
            return delay_ns(delay)
        engine = self.engine
        lease = engine.state.pending.get(one.offset) if one.delivery is None else one.delivery.lease
        return engine.rules.delay(lease.delivery_count if lease is not None else 1)

    def touch(self, *messages: Given, lease: float | timedelta | None = None) -> None:
        """Restart the leases of one or many messages now. Errors as in `ack`."""
        engine = self._working()
        offsets, held = split(messages)
        deadline = self._store.clock.time_ns() + lease_ns(engine, lease)
        with engine.lock:
            engine.open_inbox()
            engine.touch(held, offsets, deadline)

    def hold(self, messages: Sequence[Message[Any]], run_max: float = RUN_SECONDS_MAX) -> int:
        """Renew the leases of messages until `let_go`, for at most `run_max` seconds."""
        return self._keeper.hold(messages, run_max)

    def let_go(self, number: int) -> None:
        """Stop renewing leases: `number` is what `hold` returned."""
        self._keeper.let_go(number)

    def _renew(self, deliveries: Sequence[Delivery[Any]], lease: float) -> None:
        engine = self._working()
        deadline = self._store.clock.time_ns() + round(lease * 1e9)
        with engine.lock:
            engine.open_inbox()
            engine.touch(deliveries, (), deadline)

    def give_back(self, messages: Sequence[Message[Any]]) -> None:
        """Give back messages that were not started: they count as not delivered."""
        if messages:
            engine = self._working()
            with engine.lock:
                engine.open_inbox()
                engine.give_back_uncounted(
                    messages, self._store.clock.time_ns(), "its worker was stopped"
                )

    def work(
        self,
        handler: Callable[[Message[T]], object],
        *,
        threads: int = 1,
        stop: Stop | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        run_max: float | timedelta | None = None,
        consumer: str = "",
    ) -> Work:
        """Call a handler with one message after another, in `threads` threads; returns counts.

        A handler that returns acknowledges its message. One that raises gives it back: it is
        delivered again after the queue's `backoff`, and after `max_deliveries` it becomes a dead
        letter. Leases are renewed while a handler runs, for at most `run_max` seconds (by default
        an hour). The call returns when `stop` is set (a `threading.Event`) and the running handlers
        have returned, or when no message came for `timeout` seconds.
        """
        check_range("threads", threads, 1, 1 << 12)
        if not callable(handler):
            raise WrongTypeError(f"a handler is a function of a message, not {handler!r:.80}")
        if stop is not None and not callable(getattr(stop, "is_set", None)):
            raise WrongTypeError(f"stop is a threading.Event or the like, not {stop!r:.80}")
        engine = self._working()
        if lease is not None:
            lease_ns(engine, lease)
        workers = Workers(
            self, handler, stop, check_timeout(timeout), lease, check_run_max(run_max),
            check_consumer(consumer) if consumer else "",
        )  # fmt: skip
        return workers.run(threads)

    def leave(self, message: Message[Any], error: BaseException | None) -> None:
        """End a `with` block: acknowledge, or give back with the error as the reason."""
        if error is None:
            self.ack(message)
            return
        # Another consumer may have it by now: the error of the block matters more.
        with contextlib.suppress(LeaseLostError):
            self.nack(message, reason=reason_of(error))

    def seek(self, place: Place) -> int:
        """Deliver everything from an offset or a time on, and nothing below; returns the offset.

        Consumed messages are delivered again, as far as they are still stored.
        """
        engine = self._working()
        self._store.make_readable(self._log)
        offset = find_place(self._log, "seek", place)
        engine.change(lambda: engine.seek(offset))
        return offset

    def purge(self) -> int:
        """Consume every message that is waiting or pending; returns how many."""
        count = sum(self._counts())
        self.seek("latest")
        return count

    # --- looking --------------------------------------------------------------------------

    def peek(self, limit: int = 1) -> list[Delivery[T]]:
        """Return the next messages in delivery order, without delivering them."""
        check_range("limit", limit, 1, 1 << 31)
        now = self._store.clock.time_ns()
        self._make_readable()
        if self._engine is None:
            waiting = deliverable(self._state, now, self.options.max_deliveries)
        else:
            with self._engine.lock:
                self._engine.look(now)
                waiting = self._engine.deliverable()
        return peek(self._log, waiting, limit, now)  # type: ignore[return-value]  # bytes

    def __len__(self) -> int:
        waiting, delayed, _ = self._counts()
        return waiting + delayed

    def stats(self) -> QueueStats:
        """Return numbers about the queue, taken from memory."""
        waiting, delayed, pending = self._counts()
        engine, state, queue = self._engine, self._state, self._log.groups.queue
        if engine is not None and queue is not None:
            with queue.lock:
                queue.tidy(self._store.clock.time_ns())
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
            bytes=self._log.index.total_bytes() + self._log.history.total_bytes(),
            segments=self._log.history.stats()["segments"],
            created_at=self._log.created_at,
            updated_at=self._updated_at(),
        )

    def _updated_at(self) -> int:
        """Return the time of the newest message that is published, or that of the queue's start."""
        index = self._log.index
        newest = index.max_timestamp(len(index) - 1) if len(index) else 0
        return max(newest, self._log.history.newest_timestamp(), self._log.created_at)

    def _counts(self) -> tuple[int, int, int]:
        """Count waiting, delayed and pending messages."""
        self._make_readable()
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

    def _make_readable(self) -> None:
        self._store.make_readable(self._log)
        self._log.groups.states()
        if self._engine is not None:
            self._engine.tend()

    def _bury(self) -> None:
        assert self._engine is not None
        self.dead.move(self._engine)


def open_queue(
    store: Store, log: TopicLog, topic: Topic, given: Mapping[str, Any],
    defaults: Mapping[str, Any] = NO_OPTIONS, make: Callable[..., Queue[Any]] = Queue,
) -> Queue[Any]:  # fmt: skip
    """Open the queue of a topic; a writer logs what is new about it.

    `defaults` are options of a queue that is created now, unless the caller gives them. `make`
    makes the handle.
    """
    groups = log.groups
    state = groups.find("", is_queue=True)
    if store.is_read_only:
        state = state or groups.add(is_queue=True)
        before = stored_options(log, state)
        if QueueOptions.build({**before.to_dict(), **given}) != before:
            raise ReadOnlyError(
                f"{store.path} is open read-only. Other options than those of queue {log.name!r} "
                f"were given: {', '.join(sorted(given))}. Leave them out, or open it for writing."
            )
        return make(store, log, state, topic)
    is_new = state is None
    if state is None:
        state = groups.add(is_queue=True)
        state.created_at = store.clock.time_ns()
        state.reset(0)
    before = stored_options(log, state)
    options = QueueOptions.build({**(defaults if is_new else before.to_dict()), **given})
    state.options = options.to_dict()
    queue = make(store, log, state, topic)
    engine = groups.live.get(state.id)
    if engine is None:
        engine = Deliveries(log, state, Rules.of(options), store.budget, queue)
        groups.live[state.id] = engine
        assert groups.queue is not None
        groups.queue.is_live = True
        groups.queue.dedup.on_growth = engine.ensure
    assert isinstance(engine, Deliveries)
    queue.start(engine)
    queue.configure(options)
    if is_new or options != before:
        try:
            write_description(engine, state.description(), 0 if is_new else None)
        except StratalogError:
            if is_new:
                groups.forget(state)
            else:
                state.options = before.to_dict()
                queue.configure(before)
            raise
    return queue


def stored_options(log: TopicLog, state: GroupState) -> QueueOptions:
    """Decode the options that a queue was created with."""
    try:
        return QueueOptions.restore(state.options)
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
    """Raise if a name ends like that of a dead-letter topic."""
    if isinstance(name, str) and name.endswith(SUFFIX):
        raise OptionError(
            f"queue name {name!r} ends as dead letters do ({SUFFIX!r}): give it another"
        )
