"""The common part of groups of both modes in a live store: polling, waiting, snapshots."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from pyroaring import BitMap64

from stratalog.consume.operations import CHANGES_MAX, Operations
from stratalog.consume.rules import Rules
from stratalog.consume.wait_queue import Line
from stratalog.errors import LeaseLostError, StratalogError, UnknownGroupError
from stratalog.format.snapshot import GroupSnapshot
from stratalog.log.commit_group import Group
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.log.waiters import Waiter
from stratalog.memory_budget import MemoryBudget
from stratalog.model import Delivery, Lease
from stratalog.state.delays import NEVER
from stratalog.state.group_state import GroupState

SHARE = "queues"

# Waiters are woken by a commit or a due time. This interval is for a wall clock that was set.
WAIT_SECONDS_MAX = 600.0


class NoRoomError(Exception):
    """There is no memory for a delivery: call `make_room` and retry. Users never see it."""


class Origin(NamedTuple):
    """Identity of a queue or group, unique also among earlier ones of its name."""

    path: str
    store: bytes
    """Identity of the store."""
    topic: int
    epoch: int
    group: int
    created_at: int


class Source(Protocol):
    """The handle that deliveries of a group refer to."""

    @property
    def origin(self) -> Origin:
        """The identity of the group that made the deliveries."""


class Engine:
    """A live group.

    Concurrency: `lock` guards the state. It is never held while waiting for a commit.
    """

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget, source: Source
    ) -> None:
        self.topic = topic
        self.source = source
        """The source that its deliveries name."""
        self.restored = state.deliveries
        """Deliveries up to this number were made before the store was opened."""
        self.state = state
        self.rules = rules
        self.lock = threading.Lock()
        self.operations = Operations(topic, state)
        self.line = Line(topic)
        self.seen: dict[str, int] = {}
        """When each consumer was last seen, in nanoseconds since 1970."""
        self.expected = NEVER
        """When the first waiter looks again by itself."""
        self.inbox: deque[Callable[[], None]] = deque()
        """Changes from threads that do not hold the group's lock, applied when it is next taken."""
        self.budget = budget
        self.held_bytes = 0
        budget.hold(SHARE, self)

    # --- whose a delivery is --------------------------------------------------------------

    def is_own(self, delivery: Delivery) -> bool:
        """Return whether this group made a delivery, now or before the store was opened again.

        A number above `restored` was given out again, so an old delivery with it is void: the log
        lost that one.
        """
        source = delivery.source
        if source is self.source:
            return True
        is_here = getattr(source, "origin", None) == self.source.origin
        return is_here and delivery.lease.serial <= self.restored

    def check_own(self, delivery: Delivery, what: str) -> None:
        """Raise unless this group made a delivery."""
        if not self.is_own(delivery):
            raise LeaseLostError(
                f"Offset {delivery.offset} cannot be {what} in {self.topic.name!r}: this delivery "
                f"was made by {delivery.source!r}. That is another queue, group or store, or one "
                "that was dropped or opened again since. Acknowledge it where it came from."
            )

    def check_held(self, delivery: Delivery, what: str) -> None:
        """Raise unless a delivery still belongs to its consumer; the lock is held."""
        raise NotImplementedError

    def check_exists(self) -> None:
        """Raise if the group was dropped; the lock is held."""
        self.topic.check_dropped()
        if self.state.is_dropped:
            raise UnknownGroupError(
                f"a group of topic {self.topic.name!r} was dropped: topic.group() makes it again"
            )

    # --- each mode has its own ------------------------------------------------------------

    def check_offsets(self, offsets: Sequence[int]) -> None:
        """Raise if offsets cannot be acknowledged; the lock is held."""

    def take(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """Take up to `limit` records for a consumer; the lock is held."""
        raise NotImplementedError

    def wants_more(self, limit: int) -> bool:
        """Return whether unpublished appends could come before the records at hand."""
        return True

    def next_due(self) -> int:
        """Return the earliest time at which something more can be delivered."""
        return NEVER

    def seek(self, offset: int) -> Callable[[], None]:
        """Continue from an offset; returns the function that undoes it. For `change`."""
        raise NotImplementedError

    def waiting(self) -> dict[int, BitMap64]:
        """Return waiting offsets that are not pending, by priority; the lock is held."""
        return {}

    def estimate(self) -> int:
        """Return the bytes that are held; the lock is held."""
        return 0

    def forget(self) -> bool:
        """Drop what can be read again; returns whether there was any. The lock is held."""
        return False

    def forward(self, cursor: int) -> None:
        """Advance the cursor after a frame was written; the lock is held."""

    def open_inbox(self) -> None:
        """Apply the changes in the inbox; the lock is held."""
        while self.inbox:
            self.inbox.popleft()()

    # --- asking ---------------------------------------------------------------------------

    def poll(
        self,
        limit: int,
        consumer: str,
        lease: int,
        timeout: float | None,
        time_ns: Callable[[], int],
        check_open: Callable[[], None],
    ) -> list[Any]:
        """Get records for a consumer as soon as there are any; none when the time is up."""
        found = self.attempt(limit, consumer, lease, time_ns())
        if found or timeout == 0:
            return found
        deadline = None if timeout is None else time.monotonic() + timeout
        place = self.line.join()
        try:
            while True:
                now = time_ns()
                found = self.attempt(limit, consumer, lease, now)
                if found:
                    return found
                check_open()
                left = WAIT_SECONDS_MAX if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    return found
                place.acquire(timeout=self.patience(left, now))
                self.line.rejoin(place)
        finally:
            self.leave(place)

    def patience(self, left: float, now: int) -> float:
        """Return how many seconds the first waiter may wait before it looks again by itself."""
        due = self.expected = self.next_due()
        if due != NEVER:
            left = min(left, max(due - now, 0) / 1e9)
        return min(left, WAIT_SECONDS_MAX)

    def leave(self, place: Waiter) -> None:
        """Remove a waiter."""
        self.line.leave(place)
        self.expected = NEVER
        self.line.wake()  # there may be more records, and one waiter has to watch the time

    def attempt(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """Get records for a consumer, if there are any now; no lock is held."""
        topic = self.topic
        if topic.next_offset != topic.committed and self.wants_more(limit):
            topic.shard.flush()
        while True:
            try:
                with self.lock:
                    found = self.take(limit, consumer, lease, now)
                    group = self.operations.group
                break
            except NoRoomError:
                self.make_room()
        if found:
            self.delivered(found, group)
            # The records are delivered. If dead letters cannot be moved now, the next call moves
            # them.
            with contextlib.suppress(StratalogError):
                self.tend()
        else:
            self.tend()
        return found

    def make_room(self) -> None:
        """Get memory for deliveries; raises `MemoryPressureError` if none is left. No lock held."""
        raise NotImplementedError

    def delivered(self, found: Sequence[Delivery], group: Group | None) -> None:
        """Return once a noted delivery is as durable as it has to be; no lock is held.

        In class `fsync` it is written, so that a consumer that its message kills finds the count
        raised; and synced if it was taken for good. If that fails nothing was delivered. In the
        other classes it is left to `wait`, when most of it may be acknowledged, unless far too much
        has gathered.
        """
        operations = self.operations
        if group is None:
            return
        if self.topic.rank == SYNCED:
            try:
                self.topic.shard.commit(group)
            except StratalogError:
                with self.lock:
                    self.take_back(found)
                raise
            self.written(found)
        elif len(operations.touched) + len(operations.consumed) > 2 * CHANGES_MAX:
            self.topic.shard.finish(group)

    def take_back(self, deliveries: Sequence[Delivery]) -> None:
        """Undo deliveries that did not reach their consumer. The lock is held."""

    def written(self, deliveries: Sequence[Delivery]) -> None:
        """Note that deliveries are in the log; no lock is held."""

    def tend(self) -> None:
        """Do the work that must not hold the lock; each mode has its own."""

    def wake_before(self, due: int) -> None:
        """Wake the waiters if something is due earlier than they expect."""
        if self.line.waiters and due < self.expected:
            self.line.wake()

    def wait(self, group: Group | None) -> None:
        """Return once the noted changes are as durable as the topic's class promises.

        In class `fsync`, a failure undoes them. In the other classes they are already acknowledged:
        a commit there only bounds memory, and failed changes are written with the next one.
        """
        operations = self.operations
        if group is None:
            return
        if self.topic.rank == SYNCED:
            try:
                self.topic.shard.commit(group)
            except StratalogError:
                with self.lock:
                    self.open_inbox()
                raise
        elif len(operations.touched) + len(operations.consumed) > CHANGES_MAX:
            self.topic.shard.finish(group)

    def change(self, note: Callable[[], Callable[[], None]]) -> None:
        """Change the description of the group durably; a failure undoes it and is raised.

        `note` makes the change, with the lock held, and returns the function that undoes it. The
        lock is held until the log has the change, so that nothing depends on it before. Pending
        changes of other threads are finished first.
        """
        shard = self.topic.shard
        with self.lock:
            with shard.lock:
                group = shard.group
            shard.finish(group)
            self.open_inbox()
            undo = note()
            try:
                shard.commit(self.operations.note(sync=True))
            except StratalogError:
                self.operations.forget_news()
                undo()
                raise
            finally:
                self.line.wake()

    def check(self) -> None:
        """Raise if nothing can be written."""
        with self.topic.shard.lock:
            self.topic.check()

    # --- what it comes to -----------------------------------------------------------------

    def floor(self) -> int:
        """Return the first offset that is not consumed."""
        with self.lock:
            firsts = (bits.min() for bits in self.waiting().values() if bits)
            return min([self.state.floor(), *firsts])

    def held(self) -> tuple[int, BitMap64]:
        """Return the offset up to which records are ingested, and those that are not consumed."""
        with self.lock:
            return self.state.ingested, self.state.held(self.waiting())

    def capture(self) -> GroupSnapshot:
        """Capture the state for a snapshot, at one moment."""
        with self.lock:
            return self.state.capture(self.topic.id, self.waiting())

    # --- memory ---------------------------------------------------------------------------

    def ensure(self, size: int) -> None:
        """Ensure memory for that many bytes; raises if there is none. The lock is not held."""
        self.budget.ensure(SHARE, size)

    def account(self) -> None:
        """Report the memory that is held to the budget; the lock is held."""
        held = self.estimate()
        self.budget.add(SHARE, held - self.held_bytes)
        self.held_bytes = held

    def shed(self) -> bool:
        """Drop what can be read again."""
        with self.lock:
            had = self.forget()
            self.account()
        return had

    def disown(self) -> None:
        """Replace the lock, and refuse the next change: this is a fork."""
        self.lock = threading.Lock()
        self.operations.disown()

    def close(self) -> None:
        """Release the memory: the group or its topic was dropped."""
        with self.lock:
            self.operations.entered = None  # so that the next change checks again
            self.budget.add(SHARE, -self.held_bytes)
            self.held_bytes = 0
        self.budget.release(SHARE, self)


def lost(name: str, delivery: Delivery, current: Lease | None, what: str) -> LeaseLostError:
    """Build the error for a consumer that acts on a record which is no longer its own."""
    how = "it was acknowledged, or is among the dead letters"
    if current is not None and current.consumer:
        how = f"consumer {current.consumer!r} has it, as delivery {current.delivery_count}"
    elif current is not None:
        how = "it was given back, and waits for its next delivery"
    return LeaseLostError(
        f"offset {delivery.offset} of {name!r} cannot be {what}: its lease is no longer yours, "
        f"because {how}. Work that takes longer needs a longer lease, or touch()."
    )
