"""Delivery: what a group of mode `queue` does in a live store.

Records are delivered in the order of their priority, then of their offsets; what was given back
or whose lease ran out comes again in its old place. Leases run out lazily: nobody looks at them
before somebody asks for a record. Everything is noted in `Operations`, and written by the next
commit.

Invariants:
- A record is in one place: among the ready ones, among the delayed, or pending. One that is
  pending and in `returned` is also among the ready, and keeps its lease until it is delivered.
- Whoever holds the newest lease of a record, and nobody else, can acknowledge it.

Concurrency: any thread; `lock` is held for as long as memory is looked at and records are read
ahead, never while waiting for a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

import numpy as np
from pyroaring import BitMap64

from stratalog.log.topic import SYNCED, TopicLog
from stratalog.memory import MemoryBudget
from stratalog.model import Delivery, Lease, Message
from stratalog.projections.deadlines import Deadlines
from stratalog.projections.delays import NEVER
from stratalog.projections.engine import Engine, lost
from stratalog.projections.fetch import fetch
from stratalog.projections.groups import GroupState
from stratalog.projections.ready import Class, Ready
from stratalog.projections.rules import Rules

# A pending record: its lease, its slots in two dictionaries, its place in the heap.
_PENDING_BYTES = 320


class Deliveries(Engine):
    """One group at work."""

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget, source: Any
    ) -> None:
        super().__init__(topic, state, rules, budget)
        self.ready = Ready(state)
        self.dying: dict[int, str] = {}
        """Offsets that were delivered too often, and why they failed last."""
        self.on_dying: Callable[[], None] | None = None
        """Brings them to the dead letters; called with no lock held."""
        self.expired = 0
        self.most_urgent_put = 256
        """Of the messages that were put and not yet published."""
        self._make = Message if state.is_queue else Delivery
        self._source = source
        self._returned: set[int] = set()
        self._cancelled: set[int] = set()
        """Offsets among the ready ones that are somebody's again, or consumed."""
        self._deadlines = Deadlines()
        self._deadlines.rebuild(state.pending, ())

    # --- out ------------------------------------------------------------------------------

    def take(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """Up to so many records, leased to a consumer for so many nanoseconds; the lock is held."""
        if self.topic.shard.refusal is not None or self.topic.is_dropped:
            self.check()
        self.look(now)
        limit = min(limit, self.rules.pending_max - len(self.state.pending) + len(self._returned))
        self.seen[consumer] = now
        found: list[Any] = []
        while limit > 0:
            chosen = self._choose(now)
            if chosen is None:
                break
            count = 1 if self.rules.promote_after else limit
            taken = self._deliver(chosen, count, consumer, lease, now)
            limit -= len(taken)
            found += taken
        if found:
            self.operations.enter(sync=self.rules.is_at_most_once and self.topic.rank == SYNCED)
        return found

    def wants_more(self, limit: int) -> bool:
        """Whether what was put and is not published could be among the next so many."""
        for priority in self.ready.order:
            if buffer := self.ready.classes[priority].buffer:
                return self.most_urgent_put < priority or len(buffer) < limit
        return True

    def ingest(self) -> None:
        """Take in what was published; the lock is held."""
        end = self.topic.committed
        if end == self.topic.next_offset:
            self.most_urgent_put = 256
        self.state.ingest(self.topic, end)
        self.ready.look()

    def _choose(self, now: int) -> Class | None:
        """The priority whose turn it is, with a record at hand; None if there is none."""
        ready = self.ready
        chosen: Class | None = None
        promote_after = self.rules.promote_after
        for priority in ready.order:
            one = ready.classes[priority]
            if not one.buffer and not (
                one.waiting and one.fill(lambda offsets: self._fetch(offsets, now), self._expire)
            ):
                continue
            if not promote_after:
                return one
            # Who has waited too long goes first, the oldest of them before the others.
            is_old = one.buffer[0].timestamp + promote_after <= now
            if chosen is None:
                chosen = one
                oldest = one.buffer[0].offset if is_old else NEVER
            elif is_old and one.buffer[0].offset < oldest:
                chosen, oldest = one, one.buffer[0].offset
        return chosen

    def _deliver(
        self, chosen: Class, limit: int, consumer: str, lease_ns: int, now: int
    ) -> list[Delivery]:
        buffer, state = chosen.buffer, self.state
        serial = state.deliveries + 1
        deadline = 0 if self.rules.is_at_most_once else now + lease_ns
        lease = tuple.__new__(Lease, (deadline, 1, consumer, now, serial, chosen.priority))
        found: list[Delivery] = []
        while buffer and len(found) < limit:
            delivery = buffer.popleft()
            if self._cancelled and delivery.offset in self._cancelled:
                self._cancelled.discard(delivery.offset)
            elif delivery.expires_at and delivery.expires_at <= now:
                self._expire((delivery.offset,))
            else:
                delivery.lease = lease
                found.append(delivery)
        if not found:
            return found
        state.deliveries += len(found)
        offsets = [delivery.offset for delivery in found]
        if self._returned and not self._returned.isdisjoint(offsets):
            self._count_again(found, lease)
        if self.rules.is_at_most_once:
            for offset in offsets if state.pending else ():
                state.pending.pop(offset, None)
            state.consumed += len(offsets)
            self.operations.consumed += offsets
        else:
            if len(offsets) == 1:
                state.pending[offsets[0]] = found[0].lease
            else:
                state.pending.update((delivery.offset, delivery.lease) for delivery in found)
            self.operations.touched += offsets
            self.watch(deadline, serial, offsets)
        return found

    def _count_again(self, found: list[Delivery], lease: Lease) -> None:
        for delivery in found:
            if delivery.offset in self._returned:
                self._returned.discard(delivery.offset)
                count = self.state.pending[delivery.offset].delivery_count + 1
                delivery.lease = lease._replace(delivery_count=count)

    def _fetch(self, offsets: Any, now: int) -> list[Delivery]:
        self.account()
        return fetch(self.topic, offsets, now, self._make, self._source)

    def _expire(self, offsets: Iterable[int]) -> None:
        """Records that were to be delivered are there no longer: expired, evicted or deleted."""
        for offset in offsets:
            if offset in self._cancelled:
                self._cancelled.discard(offset)
                continue
            self.state.pending.pop(offset, None)
            self._returned.discard(offset)
            self.expired += 1
            self.state.consumed += 1
            self.operations.consumed.append(offset)
            self.operations.enter(sync=False)

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

    def ack(self, deliveries: Iterable[Delivery]) -> int:
        """Acknowledge; all of them or, if one is somebody else's by now, none. The lock is held."""
        pending = self.state.pending
        chosen = [one for one in deliveries if not one.is_settled]
        for delivery in chosen:
            if pending.get(delivery.offset) is not delivery.lease and delivery.lease.deadline:
                self.check_held(delivery, "acknowledged")
        offsets = [delivery.offset for delivery in chosen if delivery.lease.deadline]
        for delivery in chosen:
            delivery.is_settled = True
        return self.ack_offsets(offsets)

    def ack_offsets(self, offsets: Sequence[int]) -> int:
        """Acknowledge what is pending of these; returns how many. The lock is held."""
        pending = self.state.pending
        # Noted before it is taken out: a commit that runs meanwhile has it in one place or both.
        known = [offset for offset in offsets if offset in pending]
        self.operations.consumed += known
        for offset in known:
            del pending[offset]
        self.state.consumed += len(known)
        if self._returned:
            self.cancel(known)
        if known:
            self.operations.enter(sync=self.topic.rank == SYNCED)
            if self.line:
                self.line.wake()
        return len(known)

    def cancel(self, offsets: Sequence[int]) -> None:
        """Do not deliver these again, if they are to be: the lock is held."""
        again = self._returned.intersection(offsets)
        self._returned -= again
        self._cancelled |= again

    def give_back(
        self, offset: int, due: int, now: int, reason: str, delivery: Delivery | None = None
    ) -> None:
        """Have a pending record delivered again from a time on; the lock is held."""
        state = self.state
        lease = state.pending[offset]
        state.pending[offset] = lease._replace(deadline=due, consumer="")
        self.operations.touched.append(offset)
        if self.rules.max_deliveries and lease.delivery_count >= self.rules.max_deliveries:
            self.dying[offset] = reason
        elif due > now:
            self.cancel((offset,))
            self.watch(due, lease.serial, (offset,))
        elif offset not in self._returned:
            self._return(offset, lease.priority, delivery)
        self.operations.enter(sync=self.topic.rank == SYNCED)
        if self.line:
            self.line.wake()

    def extend(self, offset: int, deadline: int, consumer: str | None = None) -> Lease:
        """Another deadline for a pending record, and if given another consumer; lock held."""
        lease = self.state.pending[offset]._replace(deadline=deadline)
        if consumer is not None:
            lease = lease._replace(consumer=consumer)
        self.state.pending[offset] = lease
        self.operations.touched.append(offset)
        self.cancel((offset,))
        self.watch(deadline, lease.serial, (offset,))
        self.operations.enter(sync=False)
        return lease

    def claim(self, offsets: Sequence[int], consumer: str, lease: int, now: int) -> list[Delivery]:
        """Take pending records over from whoever has them; the lock is held."""
        found = self._fetch(np.array(sorted(offsets), np.int64), now)
        self._expire(set(offsets).difference(one.offset for one in found))
        for delivery in found:
            self.state.deliveries += 1
            old = self.state.pending[delivery.offset]
            delivery.lease = self.state.pending[delivery.offset] = Lease(
                now + lease, old.delivery_count + 1, consumer, now, self.state.deliveries,
                old.priority,
            )  # fmt: skip
            self.cancel((delivery.offset,))
            self.operations.touched.append(delivery.offset)
            self.watch(now + lease, self.state.deliveries, (delivery.offset,))
        if found:
            self.operations.enter(sync=False)
        return found

    def bury(self, offset: int) -> None:
        """A record is among the dead letters: it is consumed; the lock is held."""
        self.dying.pop(offset, None)
        if self.state.pending.pop(offset, None) is not None:
            self.state.consumed += 1
            self.operations.consumed.append(offset)
            self.operations.enter(sync=False)

    def seek(self, offset: int) -> None:
        """Go on from an offset, with nothing pending; the lock is held."""
        self.ready.clear()
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

    def look(self, now: int) -> None:
        """Take note of what is due, and of what was published; the lock is held."""
        if self.inbox:
            self.open_inbox()
        if now >= self._deadlines.next_due or now >= self.state.delays.next_due:
            self._look_at_time(now)
        if self.topic.committed > self.state.ingested:
            self.ingest()

    def _look_at_time(self, now: int) -> None:
        delays = self.state.delays
        if delays.next_due <= now:
            offsets, priorities = delays.pop_due(now)
            for priority in np.unique(priorities).tolist():
                self.ready.of(priority).add(offsets[priorities == priority].tolist())
        for offset in self._deadlines.pop_due(now):
            lease = self.state.pending.get(offset)
            if lease is not None and lease.deadline <= now:
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
        self._returned.add(offset)
        if offset in self._cancelled:
            self._cancelled.discard(offset)  # it is still there
        elif delivery is None:
            self.ready.of(priority).add((offset,))
        else:
            again = copy(delivery)
            again.is_settled = False
            self.ready.of(priority).insert(again)

    def watch(self, deadline: int, serial: int, offsets: Sequence[int]) -> None:
        """Look at leases again when they run out."""
        self._deadlines.add(deadline, serial, offsets)
        self.told(deadline)
        # What was acknowledged stays until its time comes, or until it is most of all.
        if self._deadlines.count > 2 * len(self.state.pending) + 1024:
            self._deadlines.rebuild(self.state.pending, self._returned)

    # --- what it comes to -----------------------------------------------------------------

    def waiting(self) -> dict[int, BitMap64]:
        """Offsets that wait, by priority, and are not pending; the lock is held."""
        found = self.deliverable()
        for bits in found.values() if self._returned else ():
            bits.difference_update(BitMap64(self._returned))
        return found

    def deliverable(self) -> dict[int, BitMap64]:
        """Offsets that could be delivered now, by priority; the lock is held."""
        found = dict(self.ready.waiting())
        for bits in found.values() if self._cancelled else ():
            bits.difference_update(BitMap64(self._cancelled))
        return found

    def tend(self) -> None:
        """See to those that were delivered too often; no lock is held."""
        if self.dying and self.on_dying is not None:
            self.on_dying()

    def counts(self) -> tuple[int, int, int]:
        """How many records wait, are delayed, and are held by consumers; the lock is held."""
        waiting = sum(map(len, self.waiting().values())) + len(self._returned)
        waiting += max(0, self.topic.committed - self.state.ingested)
        given_back = sum(not lease.consumer for lease in self.state.pending.values())
        later = given_back - sum(
            not self.state.pending[offset].consumer for offset in self._returned
        )
        held = len(self.state.pending) - len(self._returned) - later
        return waiting, len(self.state.delays) + later, held

    def estimate(self) -> int:
        """Bytes that are held; the lock is held."""
        return (
            self.ready.held_bytes + self.state.delays.held_bytes
            + _PENDING_BYTES * len(self.state.pending)
        )  # fmt: skip

    def forget(self) -> bool:
        """Records that were read ahead can be read again; the lock is held."""
        return self.ready.put_back()
