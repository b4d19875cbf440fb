"""Leases: which consumer has a delivered record, until when, and what happens then.

Invariants:
- A record is in one place: among the ready ones, among the delayed, or pending. One that is
  pending and in `_returned` is also among the ready, and keeps its lease until it is delivered.
- The holder of a record's newest lease, and no other consumer, can acknowledge it.

Leases run out lazily: they are checked when a consumer asks for a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import force_setattr, replace

from stratalog.consume.deadlines import Deadlines
from stratalog.consume.engine import SHARE, Engine, Source, lost
from stratalog.consume.fetch import Kept
from stratalog.consume.lanes import Lane, Ready
from stratalog.consume.rules import Rules
from stratalog.consume.undo import Ticket
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.memory_budget import MemoryBudget
from stratalog.model import NO_LEASE, Delivery, Lease
from stratalog.state.delays import NEVER
from stratalog.state.group_state import GroupState

# Records whose failures are remembered: a message that fails is rare, or all of them do.
_FAILURES_MAX = 1 << 14


class Return(NamedTuple):
    """A record that is to be given back."""

    offset: int
    delivery: Delivery | None
    """As it was delivered, or None if only its offset is known."""
    due: int
    """Nanoseconds since 1970 from which on it is delivered again."""
    reason: str


class Leasing(Engine):
    """The leases of a group, by record."""

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget, source: Source
    ) -> None:
        super().__init__(topic, state, rules, budget, source)
        self._read_ahead_bytes = budget.limit(SHARE) // 4
        self.ready = Ready(state, self._read_ahead_bytes)
        self._kept = Kept()
        self.room = 0
        """How many records may be pending in the granted memory."""
        self.dying: dict[int, str] = {}
        """Offsets that were delivered too often, with their last failure."""
        self.failures: dict[int, list[str]] = {}
        """Why records that were given back failed so far; removed some time after an ack."""
        self.on_dying: Callable[[], None] | None = None
        """Moves them to the dead letters; called with no lock held."""
        self.most_urgent_put = 256
        """Most urgent priority of messages that were put and are not published yet."""
        self._returned: set[int] = set()
        self._cancelled: set[int] = set()
        """Offsets among the ready ones that are leased again, or consumed."""
        self._front: Lane | None = None
        """The lane whose records come next as long as nothing changes."""
        self._deadlines = Deadlines()
        self._deadlines.rebuild(state.pending, ())

    # --- back -----------------------------------------------------------------------------

    def holds(self, delivery: Delivery) -> bool:
        """Return whether a delivery still belongs to its consumer; the lock is held."""
        current = self.state.pending.get(delivery.offset)
        lease = delivery.lease
        return current is lease or (
            current is not None
            and current.serial == lease.serial
            and current.consumer == lease.consumer
            and self.is_own(delivery)
        )

    def check_held(self, delivery: Delivery, what: str) -> None:
        """Raise unless a delivery still belongs to its consumer; the lock is held."""
        if not self.holds(delivery):
            self.check_own(delivery, what)
            raise lost(self.topic.name, delivery, self.state.pending.get(delivery.offset), what)

    def ack(self, deliveries: Sequence[Delivery], offsets: Sequence[int] = ()) -> int:
        """Acknowledge deliveries, and the pending ones of these offsets; returns how many.

        All of them or, if a delivery is void, none. The lock is held.
        """
        pending = self.state.pending
        token = deliveries[0].lease if deliveries else NO_LEASE
        # A lease is known by its identity, which no other queue, group or store has: the check
        # against messages of others costs nothing here.
        try:
            known = [o for one in deliveries if pending[o := one.offset] is token is one.lease]
            is_whole = len(known) == len(deliveries) == token.size
            if len(known) < len(deliveries):  # they come from several polls
                known = [o for one in deliveries if pending[o := one.offset] is one.lease]
        except KeyError:
            known, is_whole = [], False
        if len(known) < len(deliveries):
            known = [one.offset for one in self.check_all(deliveries, "acknowledged")]
        if offsets:
            known += [offset for offset in offsets if offset in pending]
            is_whole = False
        if self.topic.rank == SYNCED:
            return self._set_aside(known, deliveries, token if is_whole else None)
        count = self._consume(known)
        if is_whole and count == token.size:  # less, if one of them was passed twice
            force_setattr(token, "is_settled", True)
        else:
            for one in deliveries:
                one.settled = True
        return count

    def check_all(self, deliveries: Sequence[Delivery], what: str) -> list[Delivery]:
        """Return those still open; raises unless each belongs to its consumer. The lock is held."""
        for one in deliveries:
            self.check_own(one, what)
        chosen = [one for one in deliveries if not one.is_settled and one.lease.deadline]
        for one in chosen:
            self.check_held(one, what)
        return chosen

    def ack_one(self, delivery: Delivery) -> bool:
        """Acknowledge in the simple case, and return whether it was; the lock is held."""
        offset = delivery.offset
        pending = self.state.pending
        operations = self.operations
        group = operations.entered
        if (
            pending.get(offset) is not delivery.lease or group is None or self._returned
            or self.topic.rank == SYNCED
        ):  # fmt: skip
            return False
        operations.consumed.append(offset)
        if operations.entered is not group:
            operations.confirm(operations.consumed, (offset,))
        del pending[offset]
        self.state.consumed += 1
        delivery.settled = True
        if self.line.waiters and len(pending) + 1 >= self.rules.pending_max:
            self.line.wake()
        return True

    def _consume(self, known: list[int]) -> int:
        """Consume pending records; returns how many."""
        if not known:
            return 0
        operations = self.operations
        group = operations.entered
        # Noted before it is removed: a concurrent commit has it in one place or both.
        if group is None:
            operations.note(known)
        else:
            operations.consumed += known
            if operations.entered is not group:
                operations.confirm(operations.consumed, known)
        pending = self.state.pending
        before = len(pending)
        try:
            for offset in known:
                del pending[offset]
        except KeyError:  # one of them was passed twice
            for offset in known:
                pending.pop(offset, None)
        operations.untouch(known)
        count = before - len(pending)
        self.state.consumed += count
        if self._returned:
            self.cancel(known)
        if self.line.waiters:
            self.line.wake()
        return count

    def _set_aside(
        self, known: Sequence[int], deliveries: Sequence[Delivery], whole: Lease | None
    ) -> int:
        """Consume records of class `fsync`, undone if the commit fails."""
        leases = {offset: self.state.pending[offset] for offset in known}
        if leases:
            if whole is not None and len(leases) < whole.size:  # one of them was passed twice
                whole = None
            ticket = Ticket(self, leases, deliveries, whole)
            self.operations.note(list(leases), sync=True, ticket=ticket)
            ticket.set_aside()
            self.cancel(known)
            if self.line.waiters:
                self.line.wake()
        return len(leases)

    def returns(
        self, offsets: Sequence[int], deliveries: Sequence[Delivery], due: int, reason: str
    ) -> list[Return]:
        """Return those to be given back; raises if a delivery is void. The lock is held."""
        pending = self.state.pending
        known = {one.offset: one for one in self.check_all(deliveries, "given back")}
        chosen = [Return(offset, one, due, reason) for offset, one in known.items()]
        return chosen + [
            Return(offset, None, due, reason)
            for offset in dict.fromkeys(offsets)
            if offset in pending and offset not in known
        ]

    def nack(self, returns: Sequence[Return], now: int) -> None:
        """Give records back without waiting for a commit; the lock is held."""
        if returns:
            self.give_back(returns, now)
            for one in returns:
                if one.delivery is not None:
                    one.delivery.settled = True

    def touch(self, deliveries: Sequence[Delivery], offsets: Sequence[int], deadline: int) -> int:
        """Set another deadline for deliveries and pending offsets. The lock is held."""
        for one in deliveries:
            self.check_held(one, "kept")
        known = [offset for offset in dict.fromkeys(offsets) if offset in self.state.pending]
        leases = self.extend([one.offset for one in deliveries] + known, deadline)
        for one, lease in zip(deliveries, leases, strict=False):
            one.lease = lease
        return len(leases)

    def give_back(self, returns: Sequence[Return], now: int, *, is_written: bool = False) -> None:
        """Deliver pending records again from a time on; the lock is held.

        `is_written` if a frame of the log has it already.
        """
        pending = self.state.pending
        old = {one.offset: pending[one.offset] for one in returns}
        for one in returns:
            pending[one.offset] = replace(old[one.offset], deadline=one.due, consumer="")
        if not is_written:
            try:
                self.operations.note(touched=list(old))
            except BaseException:
                pending.update(old)
                raise
        self._deliver_again(returns, old, now)
        if self.line.waiters:
            self.line.wake()

    def give_back_uncounted(self, deliveries: Sequence[Delivery], now: int, reason: str) -> None:
        """Deliver records again as if they had not been delivered; the lock is held.

        Acknowledged ones, and those of another consumer by now, are skipped.
        """
        returns = []
        for one in deliveries:
            if one.lease.deadline and not one.is_settled and self.holds(one):
                lease = self.state.pending[one.offset]
                count = lease.delivery_count - 1
                self.state.pending[one.offset] = replace(lease, delivery_count=count)
                returns.append(Return(one.offset, one, now, reason))
        if returns:
            self.nack(returns, now)

    def _deliver_again(self, returns: Sequence[Return], old: Mapping[int, Lease], now: int) -> None:
        limit = self.rules.max_deliveries
        later: dict[int, list[int]] = {}
        at_once: dict[int, list[int]] = {}
        for one in returns:
            lease = old[one.offset]
            if one.reason and limit:
                self._note_failure(one.offset, one.reason)
            if limit and lease.delivery_count >= limit:
                self.dying[one.offset] = one.reason
            elif one.due > now:
                later.setdefault(one.due, []).append(one.offset)
            elif one.offset in self._returned:
                pass
            elif one.delivery is not None or one.offset in self._cancelled:
                self._return(one.offset, lease.priority, one.delivery)
            else:
                at_once.setdefault(lease.priority, []).append(one.offset)
        for due, offsets in later.items():
            self.cancel(offsets)
            self.watch(due, offsets)
        for priority, offsets in at_once.items():
            self._return_many(priority, offsets)

    def _note_failure(self, offset: int, reason: str) -> None:
        failures = self.failures
        failures.setdefault(offset, []).append(reason)
        if len(failures) > _FAILURES_MAX:
            pending = self.state.pending
            kept = {one: why for one, why in failures.items() if one in pending}
            self.failures = dict(list(kept.items())[-_FAILURES_MAX // 2 :])

    def extend(self, offsets: Sequence[int], deadline: int) -> list[Lease]:
        """Set another deadline for pending records; returns their leases. The lock is held."""
        pending = self.state.pending
        old = {offset: pending[offset] for offset in offsets}
        for offset, lease in old.items():
            pending[offset] = replace(lease, deadline=deadline)
        try:
            self.operations.note(touched=list(old))
        except BaseException:
            pending.update(old)
            raise
        self.cancel(offsets)
        if old:
            self.watch(deadline, list(old))
        return [pending[offset] for offset in offsets]

    def keep(self, consumer: str, deadline: int) -> int:
        """Set another deadline for all that a consumer holds; returns how much. Lock held."""
        pending = self.state.pending
        held = [offset for offset, lease in pending.items() if lease.consumer == consumer]
        # Changed in place, once for each poll: all records of a poll belong to one consumer.
        leases = {id(lease): lease for lease in map(pending.__getitem__, held)}
        before = [lease.deadline for lease in leases.values()]
        for lease in leases.values():
            force_setattr(lease, "deadline", deadline)
        try:
            self.operations.note(touched=held)
        except BaseException:
            for lease, old in zip(leases.values(), before, strict=True):
                force_setattr(lease, "deadline", old)
            raise
        if held:
            self.cancel(held)
            self.watch(deadline, held)
        return len(held)

    def release(self, consumer: str, now: int, reason: str) -> int:
        """Give back everything a consumer holds; returns how much. The lock is held."""
        pending = self.state.pending
        held = {offset: one for offset, one in pending.items() if one.consumer == consumer}
        if self.rules.max_deliveries:
            self.give_back([Return(offset, None, now, reason) for offset in held], now)
            return len(held)
        # Poll by poll, not record by record: a consumer may hold a million.
        leases = {id(lease): lease for lease in held.values()}
        made = {key: replace(one, deadline=now, consumer="") for key, one in leases.items()}
        pending.update(zip(held, map(made.__getitem__, map(id, held.values())), strict=True))
        try:
            self.operations.note(touched=list(held))
        except BaseException:
            pending.update(held)
            raise
        by_priority: dict[int, list[int]] = {}
        for offset, lease in held.items():
            if offset not in self._returned:
                by_priority.setdefault(lease.priority, []).append(offset)
        for priority, offsets in by_priority.items():
            self._return_many(priority, offsets)
        if self.line.waiters:
            self.line.wake()
        return len(held)

    def bury(self, offsets: Sequence[int]) -> None:
        """Consume records that are among the dead letters; the lock is held."""
        pending = self.state.pending
        known = [offset for offset in offsets if offset in pending]
        self.operations.note(known)
        for offset in offsets:
            self.dying.pop(offset, None)
            self.failures.pop(offset, None)
        self.cancel(offsets)
        for offset in known:
            del pending[offset]
        self.state.consumed += len(known)

    def seek(self, offset: int) -> Callable[[], None]:
        """Continue from an offset, with nothing pending; returns the undo function. Lock held."""
        state = self.state
        kept = (self.ready, self._returned, self._cancelled, self.dying, self._deadlines)
        noted = self.operations.consumed[:], self.operations.touched[:]
        undo_state = state.save()

        def undo() -> None:
            self.ready, self._returned, self._cancelled, self.dying, self._deadlines = kept
            self._front = None
            undo_state()
            self.operations.consumed[:0], self.operations.touched[:0] = noted

        state.reset(offset)
        self.ready = Ready(state, self._read_ahead_bytes)
        self._front = None
        self._returned, self._cancelled, self.dying = set(), set(), {}
        self._deadlines = Deadlines()
        self.operations.seek(offset)
        return undo

    # --- time -----------------------------------------------------------------------------

    def next_due(self) -> int:
        """Return the earliest time at which something more can be delivered."""
        return min(self._deadlines.next_due, self.state.delays.next_due)

    def ingest(self) -> None:
        """Ingest what was published; the lock is held."""
        end = self.topic.committed
        if end == self.topic.next_offset:
            self.most_urgent_put = 256
        self.state.ingest(self.topic, end, self._kept.offer)
        if self.state.delays.next_due != NEVER:
            self.account()
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
            due, priorities = delays.pop_due(now)
            for priority in np.flatnonzero(np.bincount(priorities)).tolist():
                self.ready.of(priority).add(due[priorities == priority].tolist())
        limit = self.rules.max_deliveries
        again: dict[int, list[int]] = {}
        later: dict[int, list[int]] = {}
        pending, returned, dying = self.state.pending, self._returned, self.dying
        for offset in self._deadlines.pop_due(now):
            lease = pending.get(offset)
            if lease is None or offset in returned or offset in dying:
                continue
            if lease.deadline > now:
                later.setdefault(lease.deadline, []).append(offset)
            elif limit and lease.delivery_count >= limit:
                dying[offset] = "its lease ran out"
                self._note_failure(offset, dying[offset])
            else:
                again.setdefault(lease.priority, []).append(offset)
        for deadline, offsets in later.items():
            self._deadlines.add_exactly(deadline, offsets)
        for priority, offsets in again.items():
            self._return_many(priority, offsets)

    def _return_many(self, priority: int, offsets: list[int]) -> None:
        """Return pending records of one priority to the ready ones."""
        self._front = None
        there = self._cancelled.intersection(offsets) if self._cancelled else None
        self._returned.update(offsets)
        if there:
            self._cancelled -= there
            offsets = [offset for offset in offsets if offset not in there]
        self.ready.of(priority).add(offsets)

    def take_back_for_good(self, deliveries: Sequence[Delivery]) -> None:
        """Undo at-most-once deliveries that did not reach their consumer; the lock is held."""
        raise NotImplementedError

    def wait_again(self, deliveries: Sequence[Delivery]) -> None:
        """Return undelivered records to the waiting ones; the lock is held."""
        self._front = None
        for delivery in deliveries:
            self.ready.of(delivery.lease.priority).insert(delivery)

    def _return(self, offset: int, priority: int, delivery: Delivery | None) -> None:
        """Return a pending record to the ready ones."""
        self._front = None
        self._returned.add(offset)
        if offset in self._cancelled:
            self._cancelled.discard(offset)  # it is still among the ready ones
        elif delivery is None:
            self.ready.of(priority).add((offset,))
        else:
            self.ready.of(priority).insert(delivery)

    def cancel(self, offsets: Sequence[int]) -> None:
        """Do not deliver these again, if that was intended: the lock is held."""
        again = self._returned.intersection(offsets) if self._returned else None
        if again:
            self._front = None
            self._returned -= again
            self._cancelled |= again

    def watch(self, deadline: int, offsets: Sequence[int]) -> None:
        """Check leases again when they run out."""
        deadlines = self._deadlines
        if len(offsets) == 1:
            deadlines.add(deadline, offsets[0])
        else:
            deadlines.add_exactly(deadline, offsets)
        if self.line.waiters:
            self.wake_before(deadline)
        # Acknowledged records stay until their time comes, or until they are the majority.
        if deadlines.count > 2 * len(self.state.pending) + 4096:
            deadlines.rebuild(self.state.pending, self._returned)
