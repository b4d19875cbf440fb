"""Delivery: what a group of mode `queue` does in a live store.

Records are delivered in the order of their priority, then of their offsets; what was given back
or whose lease ran out comes again in its old place. Everything is noted in `Operations`, and
written by the next commit.

Concurrency: any thread; `lock` is held for as long as memory is looked at and records are read
ahead, never while waiting for a commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any

import numpy as np
from msgspec.structs import replace
from pyroaring import BitMap64

from stratalog.consume.engine import SHARE, NoRoomError, Source
from stratalog.consume.fetch import fetch
from stratalog.consume.lanes import Lane
from stratalog.consume.leases import Leasing
from stratalog.consume.read_ahead import Rows
from stratalog.consume.rules import Rules
from stratalog.consume.undo import Taken
from stratalog.errors import MemoryPressureError, StratalogError, TooLargeError
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.memory_budget import MemoryBudget
from stratalog.model import NO_LEASE, Delivery, Lease, Message
from stratalog.state.delays import NEVER
from stratalog.state.group_state import GroupState

# A pending record: its offset, its slots in a dictionary, its place in the heap. And its lease,
# unless it shares that with others.
_PENDING_BYTES = 112
_LEASE_BYTES = 208

# Oldest and newest records that are sampled to estimate how many share a lease.
_SAMPLE = 64

# Room that is requested at once: for so many, or for a quarter of what there is.
_ROOM_MIN = 64


class Deliveries(Leasing):
    """A live group of mode `queue`."""

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget, source: Source
    ) -> None:
        super().__init__(topic, state, rules, budget, source)
        self.expired = 0
        self._make = Message if state.is_queue else Delivery
        self._replaced: dict[int, Lease] = {}
        """Previous leases of records that are being delivered again, until that is written."""

    # --- out ------------------------------------------------------------------------------

    def take(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """Lease up to `limit` records to a consumer for `lease` nanoseconds; the lock is held."""
        if self.topic.shard.refusal is not None or self.topic.is_dropped:
            self.check()
        self.look(now)
        # Records that are delivered again are pending already.
        held = len(self.state.pending) - len(self._returned)
        limit = min(limit, self.rules.pending_max - held)
        fetch = self._fetch
        if not self.rules.is_at_most_once and held + limit > self.room:
            self._grow(held + limit)
            fetch = self._read  # the memory that is held was accounted for just now
            room, is_full = self.room - held, self.room <= held
            limit = min(limit, max(room, 1))
        else:
            is_full = False
        self.seen[consumer] = now
        found: list[Any] = []
        try:
            while limit > 0:
                chosen = self._choose(now, fetch)
                if chosen is None:
                    break
                if is_full:
                    raise NoRoomError
                count = 1 if self.rules.promote_after else limit
                taken = self._deliver(chosen, count, consumer, lease, now)
                limit -= len(taken)
                found += taken
        except StratalogError:
            self.take_back(found)
            raise
        if found:
            self._look_ahead(chosen or self.ready.classes[self.ready.order[0]])
        return found

    def take_at_hand(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """Take the next records if they are already known; the lock is held.

        Fast path of nearly every delivery. Empty where the general way has to decide.
        """
        front, state, topic = self._front, self.state, self.topic
        if (
            front is None or len(front.buffer.offsets) < limit
            or now >= self._deadlines.next_due or now >= state.delays.next_due
            or (front.priority and topic.next_offset != state.ingested)
            or (held := len(state.pending) + limit) > self.room or held > self.rules.pending_max
            or topic.shard.refusal is not None or topic.is_dropped or self.inbox
        ):  # fmt: skip
            return []
        operations, deadlines, pending = self.operations, self._deadlines, state.pending
        # Before anything is changed: it raises if nothing can be written.
        group = operations.entered or operations.note(waits=topic.rank == SYNCED)
        deadline = now + lease
        token = Lease(deadline, 1, consumer, now, state.deliveries + 1, front.priority, limit)
        state.deliveries += limit
        if limit == 1:
            delivery = front.buffer.pop(self._make, self.source, token)
            offset = delivery.offset
            found = [delivery]
            pending[offset] = token
            operations.touched.append(offset)
            deadlines.add(deadline, offset)
        else:
            rows = front.buffer.take(limit)
            found = rows.deliveries(self._make, self.source, token)
            pending.update(zip(rows.offsets, repeat(token)))
            operations.touched += rows.offsets
            deadlines.add_exactly(deadline, rows.offsets)
        if deadlines.count > 2 * len(pending) + 4096:
            deadlines.rebuild(pending, ())
        if operations.entered is not group:
            self._confirm(found)
        if self.line.waiters:
            self.wake_before(deadline)
        self.seen[consumer] = now
        return found

    def _confirm(self, found: list[Any]) -> None:
        """Write deliveries that were noted while a commit ran."""
        try:
            self.operations.confirm(self.operations.touched, [one.offset for one in found])
        except BaseException:
            self.take_back(found)
            raise

    def take_back(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries did not reach their consumer: all is as it was before. The lock is held."""
        self.open_inbox()
        state = self.state
        mine = [one for one in deliveries if state.pending.get(one.offset) is one.lease]
        if not mine:
            return
        touched = set(self.operations.touched)
        fresh: list[Delivery] = []
        for one in mine:
            lease, before = one.lease, self._replaced.pop(one.offset, None)
            if before is None and one.offset in touched:  # the log knows nothing of it
                del state.pending[one.offset]
                fresh.append(one)
                continue
            if before is None:  # it was written for the sake of another call
                before = replace(lease, deadline=lease.delivered_at, delivery_count=0, consumer="")
            state.pending[one.offset] = before
            self._return(one.offset, lease.priority, one)
        self.wait_again(fresh)
        self._forget_serials(deliveries)
        if len(fresh) < len(mine):
            with contextlib.suppress(StratalogError):  # a shard that takes no more says so
                self.operations.note(touched=[one.offset for one in mine], waits=True)

    def take_back_for_good(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries that were for good did not reach their consumer; the lock is held."""
        self.wait_again(deliveries)
        if deliveries:
            self._forget_serials(deliveries)

    def _forget_serials(self, deliveries: Sequence[Delivery]) -> None:
        """Use the numbers of deliveries again that no consumer has seen, if they are the last."""
        first = min(one.lease.serial for one in deliveries)
        if self.state.deliveries == first + len(deliveries) - 1:
            self.state.deliveries = first - 1

    def written(self, deliveries: Sequence[Delivery]) -> None:
        """Deliveries are in the log; no lock is held."""
        for one in deliveries if self._replaced else ():
            self._replaced.pop(one.offset, None)

    def _look_ahead(self, chosen: Lane) -> None:
        """Find how far `take_at_hand` may deliver without choosing a priority again."""
        rules = self.rules
        is_simple = not (
            self._returned or self._cancelled or chosen.buffer.has_expiry or rules.promote_after
            or rules.is_at_most_once
        )  # fmt: skip
        self._front = chosen if is_simple else None

    def wants_more(self, limit: int) -> bool:
        """Return whether unpublished messages could be among the next `limit`."""
        for priority in self.ready.order:
            if buffer := self.ready.classes[priority].buffer:
                return self.most_urgent_put < priority or len(buffer) < limit
        return True

    def _choose(self, now: int, fetch: Callable[[int, Any], Rows]) -> Lane | None:
        """Choose the lane whose turn it is, with a record at hand; None if there is none."""
        ready = self.ready
        chosen: Lane | None = None
        promote_after = self.rules.promote_after
        for priority in ready.order:
            one = ready.classes[priority]
            if not one.buffer.offsets and not (
                one.waiting and one.fill(partial(fetch, now), self._expire)
            ):
                continue
            if not promote_after:
                return one
            # Records that have waited too long go first, the oldest before the others.
            head = one.buffer.offsets[-1]
            is_old = one.buffer.timestamps[-1] + promote_after <= now
            if chosen is None:
                chosen = one
                oldest = head if is_old else NEVER
            elif is_old and head < oldest:
                chosen, oldest = one, head
        return chosen

    def _deliver(
        self, chosen: Lane, limit: int, consumer: str, lease_ns: int, now: int
    ) -> list[Delivery]:
        state = self.state
        deadline = 0 if self.rules.is_at_most_once else now + lease_ns
        rows = self._next(chosen, limit, now)
        offsets = rows.offsets
        if not offsets:
            return []
        serial = state.deliveries + 1
        lease = Lease(deadline, 1, consumer, now, serial, chosen.priority, len(offsets))
        found = rows.deliveries(self._make, self.source, lease)
        state.deliveries += len(found)
        if self.rules.is_at_most_once:
            self._take_for_good(found)
            return found
        if not self._returned or self._returned.isdisjoint(offsets):
            state.pending.update(zip(offsets, repeat(lease)))
        else:
            self._count_again(found)
            state.pending.update((delivery.offset, delivery.lease) for delivery in found)
        try:
            self.operations.note(touched=offsets, waits=self.topic.rank == SYNCED)
        except BaseException:
            self.take_back(found)
            raise
        self.watch(deadline, offsets)
        return found

    def _take_for_good(self, found: list[Delivery]) -> None:
        """Deliver at most once: records are consumed."""
        state = self.state
        offsets = [one.offset for one in found]
        try:
            if self.topic.rank == SYNCED:
                ticket = Taken(self, {one.offset: one.lease for one in found}, found)
                self.operations.note(offsets, sync=True, ticket=ticket)
                ticket.set_aside()
            else:
                self.operations.note(offsets)
                state.consumed += len(offsets)
        except BaseException:
            self.take_back_for_good(found)
            raise
        for offset in offsets if state.pending else ():
            state.pending.pop(offset, None)
            self._returned.discard(offset)

    def _next(self, chosen: Lane, limit: int, now: int) -> Rows:
        """Take up to `limit` records that were read, without those that are not deliverable now."""
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
                before = self.state.pending[delivery.offset]
                if self.topic.rank == SYNCED:  # the call waits for the commit, which may fail
                    self._replaced[delivery.offset] = before
                count = before.delivery_count + 1
                delivery.lease = replace(delivery.lease, delivery_count=count)

    def _fetch(self, now: int, offsets: Any) -> Rows:
        self.account()
        return fetch(self.topic, offsets, now, self._kept)

    def _read(self, now: int, offsets: Any) -> Rows:
        return fetch(self.topic, offsets, now, self._kept)

    def _expire(self, offsets: Iterable[int]) -> None:
        """Consume records that are no longer there: expired, evicted or deleted."""
        gone = [offset for offset in offsets if offset not in self._cancelled]
        self._cancelled.difference_update(offsets)
        if not gone:
            return
        self.operations.remember(gone)
        with contextlib.suppress(StratalogError):  # then with the next change that can be written
            self.operations.note()
        for offset in gone:
            self.state.pending.pop(offset, None)
            self._returned.discard(offset)
        self.expired += len(gone)
        self.state.consumed += len(gone)

    def claim(self, offsets: Sequence[int], consumer: str, lease: int, now: int) -> list[Delivery]:
        """Take pending records over from the consumers that have them; the lock is held."""
        waits = self.topic.rank == SYNCED
        self.operations.note(waits=waits)  # raises before any change if nothing can be written
        rows = self._fetch(now, np.array(sorted(offsets), np.int64))
        found: list[Delivery] = rows.deliveries(self._make, self.source, NO_LEASE)
        self._expire(set(offsets).difference(one.offset for one in found))
        for delivery in found:
            self.state.deliveries += 1
            old = self._replaced[delivery.offset] = self.state.pending[delivery.offset]
            delivery.lease = self.state.pending[delivery.offset] = Lease(
                now + lease, old.delivery_count + 1, consumer, now, self.state.deliveries,
                old.priority,
            )  # fmt: skip
        taken = [delivery.offset for delivery in found]
        try:
            self.operations.note(touched=taken, waits=waits)
        except BaseException:
            self.unclaim(found)
            raise
        if taken:
            self.cancel(taken)
            self.watch(now + lease, taken)
        return found

    def unclaim(self, found: Sequence[Delivery]) -> None:
        """Return claimed records to their earlier consumers; the lock is held."""
        state = self.state
        for one in found:
            before = self._replaced.pop(one.offset)
            if state.pending.get(one.offset) is one.lease:
                state.pending[one.offset] = before
                self.watch(before.deadline, (one.offset,))
        self._forget_serials(found)

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
        """Move messages that were delivered too often; no lock is held."""
        if self.dying and self.on_dying is not None:
            self.on_dying()

    def counts(self) -> tuple[int, int, int]:
        """Count waiting, delayed and pending records; the lock is held."""
        waiting = sum(map(len, self.waiting().values())) + len(self._returned)
        waiting += max(0, self.topic.committed - self.state.ingested)
        given_back = sum(not lease.consumer for lease in self.state.pending.values())
        later = given_back - sum(
            not self.state.pending[offset].consumer for offset in self._returned
        )
        held = len(self.state.pending) - len(self._returned) - later
        return waiting, len(self.state.delays) + later, held

    def estimate(self) -> int:
        """Bytes that are held or granted; the lock is held."""
        queue, delays, kept = self.topic.groups.queue, self.state.delays, self._kept.batch
        return (
            self.ready.held_bytes + (0 if kept is None else len(kept.body))
            + (delays.held_bytes if delays.next_due != NEVER else 0)
            + self._entry_bytes() * max(len(self.state.pending), self.room)
            + (queue.dedup.held_bytes if queue is not None and self.state.is_queue else 0)
        )  # fmt: skip

    def _entry_bytes(self) -> int:
        """Return the bytes that a pending record takes, its part of a lease included."""
        leases = self.state.pending.values()
        shares = []
        for some in (islice(leases, _SAMPLE), islice(reversed(leases), _SAMPLE)):
            sample = list(map(id, some))
            shares.append(len(set(sample)) / len(sample) if sample else 1.0)
        return _PENDING_BYTES + round(_LEASE_BYTES * max(shares))

    def _grow(self, wanted: int) -> None:
        """Reserve memory for that many pending records, or as many as fit. The lock is held."""
        self.room = min(self.room, max(len(self.state.pending), wanted))
        self.account()
        entry_bytes = self._entry_bytes()
        step = max(_ROOM_MIN, self.room // 4)
        for room in (max(wanted, self.room + step), wanted):
            size = entry_bytes * (room - self.room)
            if size > 0 and self.budget.take(SHARE, size):
                self.held_bytes += size
                self.room = room
                return

    def make_room(self) -> None:
        """Get memory for one more delivery, from others or from the reserve. No lock is held."""
        with self.lock:
            size = self._entry_bytes() * _ROOM_MIN
        try:
            self.budget.claim(SHARE, size)
        except (MemoryPressureError, TooLargeError):
            size //= _ROOM_MIN
            self.budget.claim(SHARE, size)
            entries = 1
        else:
            entries = _ROOM_MIN
        with self.lock:
            self.held_bytes += size
            self.room = max(self.room, len(self.state.pending) - len(self._returned)) + entries

    def forget(self) -> bool:
        """Drop records that were read ahead, which can be read again; the lock is held."""
        self.room = min(self.room, len(self.state.pending))
        had, self._kept.batch = self._kept.batch is not None, None
        return self.ready.put_back() or had
