"""Leases: whose a delivered record is, until when, and what becomes of it then.

Invariants:
- A record is in one place: among the ready ones, among the delayed, or pending. One that is
  pending and in `_returned` is also among the ready, and keeps its lease until it is delivered.
- Whoever holds the newest lease of a record, and nobody else, can acknowledge it.

Leases run out lazily: nobody looks at them before somebody asks for a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import force_setattr, replace

from stratalog.log.topic import SYNCED, TopicLog
from stratalog.memory import MemoryBudget
from stratalog.model import Delivery, Lease
from stratalog.projections.deadlines import Deadlines
from stratalog.projections.engine import Engine, lost
from stratalog.projections.groups import GroupState
from stratalog.projections.ready import Class, Ready
from stratalog.projections.rules import Rules


class Leasing(Engine):
    """Who has what, and for how long."""

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget
    ) -> None:
        super().__init__(topic, state, rules, budget)
        self.ready = Ready(state)
        self.dying: dict[int, str] = {}
        """Offsets that were delivered too often, and why they failed last."""
        self.on_dying: Callable[[], None] | None = None
        """Brings them to the dead letters; called with no lock held."""
        self.most_urgent_put = 256
        """Of the messages that were put and not yet published."""
        self._returned: set[int] = set()
        self._cancelled: set[int] = set()
        """Offsets among the ready ones that are somebody's again, or consumed."""
        self._front: Class | None = None
        """Whose records come next as long as nothing changes."""
        self._deadlines = Deadlines()
        self._deadlines.rebuild(state.pending, ())

    # --- back -----------------------------------------------------------------------------

    def holds(self, delivery: Delivery) -> bool:
        """Whether a delivery is still its consumer's; the lock is held."""
        current = self.state.pending.get(delivery.offset)
        lease = delivery.lease
        return current is lease or (
            current is not None
            and current.serial == lease.serial
            and current.consumer == lease.consumer
        )

    def check_held(self, delivery: Delivery, what: str) -> None:
        """Raise unless a delivery is still its consumer's; the lock is held."""
        if not self.holds(delivery):
            raise lost(self.topic.name, delivery, self.state.pending.get(delivery.offset), what)

    def ack(self, deliveries: Sequence[Delivery]) -> int:
        """Acknowledge; all of them or, if one is somebody else's by now, none. The lock is held."""
        if not deliveries:
            return 0
        pending = self.state.pending
        token = deliveries[0].lease
        try:
            known = [o for one in deliveries if pending[o := one.offset] is token is one.lease]
            is_whole = len(known) == len(deliveries) == token.size
            if len(known) < len(deliveries):  # they were not all delivered at once
                known = [o for one in deliveries if pending[o := one.offset] is one.lease]
        except KeyError:
            known, is_whole = [], False
        if len(known) < len(deliveries):
            chosen = [one for one in deliveries if not one.is_settled and one.lease.deadline]
            for one in chosen:
                self.check_held(one, "acknowledged")
            known = [one.offset for one in chosen]
        self.operations.untouch(known)
        count = self._consume(known)
        if is_whole and count == token.size:  # less, if one of them was given twice
            force_setattr(token, "is_settled", True)
        else:
            for one in deliveries:
                one.settled = True
        return count

    def ack_one(self, delivery: Delivery) -> bool:
        """Acknowledge, if that is simple; the lock is held."""
        offset = delivery.offset
        pending = self.state.pending
        if pending.get(offset) is not delivery.lease or self._returned or delivery.is_settled:
            return False
        operations = self.operations
        operations.consumed.append(offset)
        del pending[offset]
        self.state.consumed += 1
        delivery.settled = True
        is_synced = self.topic.rank == SYNCED
        if is_synced or operations.entered is None:
            operations.enter(sync=is_synced)
        if self.line.waiters and len(pending) + 1 >= self.rules.pending_max:
            self.line.wake()
        return True

    def ack_offsets(self, offsets: Sequence[int]) -> int:
        """Acknowledge what is pending of these; returns how many. The lock is held."""
        pending = self.state.pending
        return self._consume([offset for offset in dict.fromkeys(offsets) if offset in pending])

    def _consume(self, known: list[int]) -> int:
        """Records that are pending are done with; returns how many."""
        # Noted before it is taken out: a commit that runs meanwhile has it in one place or both.
        self.operations.consumed += known
        pending = self.state.pending
        before = len(pending)
        try:
            for offset in known:
                del pending[offset]
        except KeyError:  # one of them was given twice
            for offset in known:
                pending.pop(offset, None)
        count = before - len(pending)
        self.state.consumed += count
        if self._returned:
            self.cancel(known)
        if known:
            self.operations.enter(sync=self.topic.rank == SYNCED)
            if self.line.waiters:
                self.line.wake()
        return count

    def give_back(
        self, offset: int, due: int, now: int, reason: str, delivery: Delivery | None = None
    ) -> None:
        """Have a pending record delivered again from a time on; the lock is held."""
        state = self.state
        lease = state.pending[offset]
        state.pending[offset] = replace(lease, deadline=due, consumer="")
        self.operations.touched.append(offset)
        if self.rules.max_deliveries and lease.delivery_count >= self.rules.max_deliveries:
            self.dying[offset] = reason
        elif due > now:
            self.cancel((offset,))
            self.watch(due, (offset,))
        elif offset not in self._returned:
            self._return(offset, lease.priority, delivery)
        self.operations.enter(sync=self.topic.rank == SYNCED)
        if self.line.waiters:
            self.line.wake()

    def extend(self, offset: int, deadline: int, consumer: str | None = None) -> Lease:
        """Another deadline for a pending record, and if given another consumer; lock held."""
        lease = replace(self.state.pending[offset], deadline=deadline)
        if consumer is not None:
            lease = replace(lease, consumer=consumer)
        self.state.pending[offset] = lease
        self.operations.touched.append(offset)
        self.cancel((offset,))
        self.watch(deadline, (offset,))
        self.operations.enter(sync=False)
        return lease

    def bury(self, offset: int) -> None:
        """A record is among the dead letters: it is consumed; the lock is held."""
        self.dying.pop(offset, None)
        self.cancel((offset,))
        if self.state.pending.pop(offset, None) is not None:
            self.state.consumed += 1
            self.operations.consumed.append(offset)
            self.operations.enter(sync=False)

    def seek(self, offset: int) -> None:
        """Go on from an offset, with nothing pending; the lock is held."""
        self.ready.clear()
        self._front = None
        self.state.reset(offset)
        self._returned.clear()
        self._cancelled.clear()
        self.dying.clear()
        self.operations.seek(offset)
        self._deadlines.rebuild(self.state.pending, self._returned)
        self.operations.enter(sync=True)
        self.line.wake()

    # --- time -----------------------------------------------------------------------------

    def next_due(self) -> int:
        """When something can be delivered that now cannot, at the earliest."""
        return min(self._deadlines.next_due, self.state.delays.next_due)

    def ingest(self) -> None:
        """Take in what was published; the lock is held."""
        end = self.topic.committed
        if end == self.topic.next_offset:
            self.most_urgent_put = 256
        self.state.ingest(self.topic, end)
        self.ready.look()
        self._front = None

    def look(self, now: int) -> None:
        """Take note of what is due, and of what was published; the lock is held."""
        if self.inbox:
            self.open_inbox()
        if self.topic.committed > self.state.ingested:
            self.ingest()
        if now >= self._deadlines.next_due or now >= self.state.delays.next_due:
            self._look_at_time(now)

    def _look_at_time(self, now: int) -> None:
        delays = self.state.delays
        self._front = None
        if delays.next_due <= now:
            offsets, priorities = delays.pop_due(now)
            for priority in np.flatnonzero(np.bincount(priorities)).tolist():
                self.ready.of(priority).add(offsets[priorities == priority].tolist())
        for offset in self._deadlines.pop_due(now):
            lease = self.state.pending.get(offset)
            if lease is not None and lease.deadline > now:
                self._deadlines.add_exactly(lease.deadline, (offset,))
            elif lease is not None:
                self._run_out(offset, lease)

    def _run_out(self, offset: int, lease: Lease) -> None:
        if offset in self._returned or offset in self.dying:
            return
        if self.rules.max_deliveries and lease.delivery_count >= self.rules.max_deliveries:
            self.dying[offset] = "its lease ran out"
        else:
            self._return(offset, lease.priority, None)

    def _return(self, offset: int, priority: int, delivery: Delivery | None) -> None:
        """Put a pending record among the ready ones."""
        self._front = None
        self._returned.add(offset)
        if offset in self._cancelled:
            self._cancelled.discard(offset)  # it is still there
        elif delivery is None:
            self.ready.of(priority).add((offset,))
        else:
            self.ready.of(priority).insert(delivery)

    def cancel(self, offsets: Sequence[int]) -> None:
        """Do not deliver these again, if they are to be: the lock is held."""
        again = self._returned.intersection(offsets)
        if again:
            self._front = None
            self._returned -= again
            self._cancelled |= again

    def watch(self, deadline: int, offsets: Sequence[int]) -> None:
        """Look at leases again when they run out."""
        deadlines = self._deadlines
        if len(offsets) == 1:
            deadlines.add(deadline, offsets[0])
        else:
            deadlines.add_exactly(deadline, offsets)
        if self.line.waiters:
            self.told(deadline)
        # What was acknowledged stays until its time comes, or until it is most of all.
        if deadlines.count > 2 * len(self.state.pending) + 4096:
            deadlines.rebuild(self.state.pending, self._returned)
