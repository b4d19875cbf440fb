"""What groups of both modes have in common in a live store: asking, waiting, and being captured."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from pyroaring import BitMap64

from stratalog.errors import LeaseLostError
from stratalog.format.snapshot import GroupSnapshot
from stratalog.log.group import Group
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.log.watched import Waiter
from stratalog.memory import MemoryBudget
from stratalog.model import Delivery, Lease
from stratalog.projections.delays import NEVER
from stratalog.projections.groups import GroupState
from stratalog.projections.line import Line
from stratalog.projections.operations import CHANGES_MAX, Operations
from stratalog.projections.rules import Rules

SHARE = "queues"

# Waiting is for a wake-up or for something to be due. This is for a wall clock that was set.
WAIT_SECONDS_MAX = 600.0


class Engine:
    """A group at work.

    Concurrency: `lock` guards the state. It is never held while waiting for a commit.
    """

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget
    ) -> None:
        self.topic = topic
        self.state = state
        self.rules = rules
        self.lock = threading.Lock()
        self.operations = Operations(topic, state)
        self.line = Line(topic)
        self.seen: dict[str, int] = {}
        """When a consumer was last heard of, in nanoseconds since 1970."""
        self.expected = NEVER
        """When the first in line looks again by itself."""
        self.inbox: deque[Callable[[], None]] = deque()
        """What those who hold no lock of the group want to be done to it, the next time it is."""
        self._budget = budget
        self.held_bytes = 0
        budget.hold(SHARE, self)

    # --- each mode has its own ------------------------------------------------------------

    def take(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """Up to so many records for a consumer; the lock is held."""
        raise NotImplementedError

    def wants_more(self, limit: int) -> bool:
        """Whether what was appended and is not published could come before what is at hand."""
        return True

    def next_due(self) -> int:
        """When something can be delivered that now cannot, at the earliest."""
        return NEVER

    def ack_offsets(self, offsets: Sequence[int]) -> int:
        """Acknowledge; returns how many. The lock is held."""
        raise NotImplementedError

    def seek(self, offset: int) -> None:
        """Go on from an offset; the lock is held."""
        raise NotImplementedError

    def waiting(self) -> dict[int, BitMap64]:
        """Offsets that wait, by priority, and are not pending; the lock is held."""
        return {}

    def estimate(self) -> int:
        """Bytes that are held; the lock is held."""
        return 0

    def forget(self) -> bool:
        """Forget what can be read again; returns whether there was any. The lock is held."""
        return False

    def forward(self, cursor: int) -> None:
        """The cursor moved, by a frame that is written; the lock is held."""

    def open_inbox(self) -> None:
        """Do what others left to be done; the lock is held."""
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
        """Records for a consumer, as soon as there are any; none when the time is up."""
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
        """How many seconds the first in line may wait before it looks again by itself."""
        due = self.expected = self.next_due()
        if due != NEVER:
            left = min(left, max(due - now, 0) / 1e9)
        return min(left, WAIT_SECONDS_MAX)

    def leave(self, place: Waiter) -> None:
        """Somebody waits no longer."""
        self.line.leave(place)
        self.expected = NEVER
        self.line.wake()  # there may be more, and somebody has to watch the time

    def attempt(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """Records for a consumer, if there are any now; no lock is held."""
        topic = self.topic
        if topic.next_offset != topic.committed and self.wants_more(limit):
            topic.shard.settle()
        with self.lock:
            found = self.take(limit, consumer, lease, now)
        if found and self.operations.group is not None:
            self.delivered()
        self.tend()
        return found

    def delivered(self) -> None:
        """Return once a delivery that was noted is as durable as it has to be; no lock is held.

        Of class `fsync` it is written, so that a consumer that is killed by what it got finds the
        count raised; and synced if it was taken for good. Of the others it is left to `settle`,
        when most of it may be acknowledged, unless far too much has gathered.
        """
        operations = self.operations
        is_synced = self.topic.rank == SYNCED
        if is_synced or len(operations.touched) + len(operations.consumed) > 2 * CHANGES_MAX:
            assert operations.group is not None
            self.topic.shard.commit(operations.group)

    def tend(self) -> None:
        """See to what cannot be done with the lock held; each mode has its own."""

    def told(self, due: int) -> None:
        """Something is due earlier than whoever waits expects."""
        if self.line.waiters and due < self.expected:
            self.line.wake()

    def settle(self, group: Group | None) -> None:
        """Return once what was noted is as durable as the topic's class promises."""
        operations = self.operations
        if (
            self.topic.rank == SYNCED
            or len(operations.touched) + len(operations.consumed) > CHANGES_MAX
        ) and group is not None:
            self.topic.shard.commit(group)

    def check(self) -> None:
        """Raise if nothing can be written."""
        with self.topic.shard.lock:
            self.topic.check()

    # --- what it comes to -----------------------------------------------------------------

    def floor(self) -> int:
        """The first offset that is not consumed."""
        with self.lock:
            firsts = [bits.min() for bits in self.waiting().values() if bits]
            return min([self.state.floor(), *firsts])

    def capture(self) -> GroupSnapshot:
        """The state as a snapshot has it, at one moment."""
        with self.lock:
            return self.state.capture(self.topic.id, self.waiting())

    # --- memory ---------------------------------------------------------------------------

    def account(self) -> None:
        """Tell the memory budget what is held; the lock is held."""
        held = self.estimate()
        self._budget.add(SHARE, held - self.held_bytes)
        self.held_bytes = held

    def shed(self) -> bool:
        """Do without what can be read again."""
        with self.lock:
            had = self.forget()
            self.account()
        return had

    def disown(self) -> None:
        """Hold no lock, and have the next change refused: this is a fork."""
        self.lock = threading.Lock()
        self.operations.disown()

    def close(self) -> None:
        """Let the memory go: the group or its topic is gone."""
        with self.lock:
            self._budget.add(SHARE, -self.held_bytes)
            self.held_bytes = 0
        self._budget.release(SHARE, self)


def lost(name: str, delivery: Delivery, current: Lease | None, what: str) -> LeaseLostError:
    """What a consumer is told that acts on a record which is no longer its own."""
    how = "it was acknowledged, or is among the dead letters"
    if current is not None and current.consumer:
        how = f"consumer {current.consumer!r} has it, as delivery {current.delivery_count}"
    elif current is not None:
        how = "it was given back, and waits for its next delivery"
    return LeaseLostError(
        f"offset {delivery.offset} of {name!r} cannot be {what}: its lease is no longer yours, "
        f"because {how}. Work that takes longer needs a longer lease, or touch()."
    )
