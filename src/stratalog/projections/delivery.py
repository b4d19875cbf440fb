"""Delivery: what a group of mode `queue` does in a live store.

Records are delivered in the order of their priority, then of their offsets; what was given back
or whose lease ran out comes again in its old place. Everything is noted in `Operations`, and
written by the next commit.

Concurrency: any thread; `lock` is held for as long as memory is looked at and records are read
ahead, never while waiting for a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import numpy as np
from msgspec.structs import replace
from pyroaring import BitMap64

from stratalog.log.topic import SYNCED, TopicLog
from stratalog.memory import MemoryBudget
from stratalog.model import NO_LEASE, Delivery, Lease, Message
from stratalog.projections.delays import NEVER
from stratalog.projections.fetch import Kept, fetch
from stratalog.projections.groups import GroupState
from stratalog.projections.leasing import Leasing
from stratalog.projections.ready import Class
from stratalog.projections.rows import Rows
from stratalog.projections.rules import Rules

# A pending record: its lease, its slots in two dictionaries, its place in the heap.
_PENDING_BYTES = 320


class Deliveries(Leasing):
    """One group at work."""

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget, source: Any
    ) -> None:
        super().__init__(topic, state, rules, budget)
        self.expired = 0
        self._make = Message if state.is_queue else Delivery
        self._source = source
        self._kept = Kept()

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
            self._look_ahead(chosen or self.ready.classes[self.ready.order[0]])
            self.operations.enter(sync=self.rules.is_at_most_once and self.topic.rank == SYNCED)
        return found

    def take_at_hand(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """The next records, if nothing has to be looked at to know which; the lock is held.

        The way nearly every delivery takes, spelled out. Empty where it takes more to tell.
        """
        front, state, topic = self._front, self.state, self.topic
        if (
            front is None or len(front.buffer.offsets) < limit
            or now >= self._deadlines.next_due or now >= state.delays.next_due
            or (front.priority and topic.next_offset != state.ingested)
            or len(state.pending) + limit > self.rules.pending_max
            or topic.shard.refusal is not None or topic.is_dropped or self.inbox
        ):  # fmt: skip
            return []
        deadline = now + lease
        token = Lease(deadline, 1, consumer, now, state.deliveries + 1, front.priority, limit)
        state.deliveries += limit
        operations, deadlines, pending = self.operations, self._deadlines, state.pending
        if limit == 1:
            delivery = front.buffer.pop(self._make, self._source, token)
            offset = delivery.offset
            found = [delivery]
            pending[offset] = token
            operations.touched.append(offset)
            deadlines.add(deadline, offset)
        else:
            rows = front.buffer.take(limit)
            found = rows.deliveries(self._make, self._source, token)
            pending.update(zip(rows.offsets, repeat(token)))
            operations.touched += rows.offsets
            deadlines.add_exactly(deadline, rows.offsets)
        if deadlines.count > 2 * len(pending) + 4096:
            deadlines.rebuild(pending, ())
        if operations.entered is None:
            operations.enter(sync=False)
        if self.line.waiters:
            self.told(deadline)
        self.seen[consumer] = now
        return found

    def _look_ahead(self, chosen: Class) -> None:
        """What `take_at_hand` may deliver without asking whose turn it is."""
        rules = self.rules
        is_simple = not (
            self._returned or self._cancelled or chosen.buffer.has_expiry or rules.promote_after
            or rules.is_at_most_once
        )  # fmt: skip
        self._front = chosen if is_simple else None

    def wants_more(self, limit: int) -> bool:
        """Whether what was put and is not published could be among the next so many."""
        for priority in self.ready.order:
            if buffer := self.ready.classes[priority].buffer:
                return self.most_urgent_put < priority or len(buffer) < limit
        return True

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
            head = one.buffer.offsets[-1]
            is_old = one.buffer.timestamps[-1] + promote_after <= now
            if chosen is None:
                chosen = one
                oldest = head if is_old else NEVER
            elif is_old and head < oldest:
                chosen, oldest = one, head
        return chosen

    def _deliver(
        self, chosen: Class, limit: int, consumer: str, lease_ns: int, now: int
    ) -> list[Delivery]:
        state = self.state
        deadline = 0 if self.rules.is_at_most_once else now + lease_ns
        rows = self._next(chosen, limit, now)
        if not rows:
            return []
        serial = state.deliveries + 1
        lease = Lease(deadline, 1, consumer, now, serial, chosen.priority, len(rows))
        found = rows.deliveries(self._make, self._source, lease)
        offsets = rows.offsets
        state.deliveries += len(found)
        if self.rules.is_at_most_once:
            for offset in offsets if state.pending else ():
                state.pending.pop(offset, None)
                self._returned.discard(offset)
            state.consumed += len(offsets)
            self.operations.consumed += offsets
            return found
        if not self._returned or self._returned.isdisjoint(offsets):
            state.pending.update(zip(offsets, repeat(lease)))
        else:
            self._count_again(found)
            state.pending.update((delivery.offset, delivery.lease) for delivery in found)
        self.operations.touched += offsets
        self.watch(deadline, offsets)
        return found

    def _next(self, chosen: Class, limit: int, now: int) -> Rows:
        """Take so many out of what was read, and leave out what is no longer to be delivered."""
        rows = chosen.buffer.take(limit)
        if self._cancelled or rows.has_expiry:
            cancelled = self._cancelled.intersection(rows.offsets)
            expired = rows.expired(now) - cancelled
            if cancelled or expired:
                self._cancelled -= cancelled
                self._expire(expired)
                rows.leave_out(cancelled | expired)
        return rows

    def _count_again(self, found: list[Delivery]) -> None:
        for delivery in found:
            if delivery.offset in self._returned:
                self._returned.discard(delivery.offset)
                count = self.state.pending[delivery.offset].delivery_count + 1
                delivery.lease = replace(delivery.lease, delivery_count=count)

    def _fetch(self, offsets: Any, now: int) -> Rows:
        self.account()
        return fetch(self.topic, offsets, now, self._kept)

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

    def claim(self, offsets: Sequence[int], consumer: str, lease: int, now: int) -> list[Delivery]:
        """Take pending records over from whoever has them; the lock is held."""
        rows = self._fetch(np.array(sorted(offsets), np.int64), now)
        found: list[Delivery] = rows.deliveries(self._make, self._source, NO_LEASE)
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
            self.watch(now + lease, (delivery.offset,))
        if found:
            self.operations.enter(sync=False)
        return found

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
        queue = self.topic.groups.queue
        return (
            self.ready.held_bytes + self._kept.held_bytes + self.state.delays.held_bytes
            + _PENDING_BYTES * len(self.state.pending)
            + (queue.dedup.held_bytes if queue is not None and self.state.is_queue else 0)
        )  # fmt: skip

    def forget(self) -> bool:
        """Records that were read ahead can be read again; the lock is held."""
        had, self._kept.batch = self._kept.batch is not None, None
        return self.ready.put_back() or had
