"""Consumer groups as a projection: which records were delivered, and which were consumed.

For a group, a record of a topic is in one of four states: not ingested yet (from `ingested` on),
waiting (by priority, or until it is due), pending (delivered or given back, with its lease), or
consumed, which is everything else and takes no memory.

`GroupState.apply` applies a frame, and `ingest` the records of the topic: both are pure, and equal
in recovery and in a live store. `consume/engine.py` adds what only a live store has.

Invariants:
- Frames are applied in the order of their numbers, whatever shard they come from.
- No record is both waiting and pending.

Concurrency: recovery, then the holder of the group's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap64

from stratalog.errors import UnsupportedVersionError
from stratalog.format.batch import Batch
from stratalog.format.control import Option, decode_offsets
from stratalog.format.groups import (
    Changes,
    Description,
    decode_group,
    decode_leases,
    encode_leases,
)
from stratalog.format.snapshot import GroupSnapshot, QueueSnapshot
from stratalog.model import Gap, Lease
from stratalog.options import QueueOptions
from stratalog.segments.column_probe import plain_until
from stratalog.segments.read import read_batches
from stratalog.state.delays import Delays
from stratalog.state.queue_state import QueueState

if TYPE_CHECKING:
    from stratalog.consume.engine import Engine
    from stratalog.log.topic import TopicLog

QUEUE = "queue"
STREAM = "stream"
MODES = (QUEUE, STREAM)


class GroupState:
    """The state of one group."""

    __slots__ = (
        "_gone", "consumed", "created_at", "cursor", "delays", "deliveries", "id", "ingested",
        "is_dropped", "is_queue", "mode", "name", "number", "options", "pending", "settling",
        "take_keys", "waiting",
    )  # fmt: skip

    def __init__(self, id: int, *, is_queue: bool) -> None:
        self.id = id
        self.is_queue = is_queue
        """Whether priorities and delays of records count: the topic is a queue, and this is its own
        group."""
        self.name = "" if is_queue else f"group-{id}"
        self.mode = QUEUE
        self.created_at = 0
        self.options: dict[str, Option] = {}
        self.number = 0
        """Number of the newest frame that was applied."""
        self.ingested = 0
        """Records below this are ingested."""
        self.waiting: dict[int, BitMap64] = {}
        """Offsets that can be delivered, by priority."""
        self.delays = Delays()
        self.pending: dict[int, Lease] = {}
        self.settling: dict[int, Lease] = {}
        """Pending records that a frame on its way to the log changes."""
        self.deliveries = 0
        self.consumed = 0
        self.cursor = 0
        """In mode `stream`: the first offset that is not acknowledged."""
        self.is_dropped = False
        """A dropped group keeps its number, so that no other group gets its frames."""
        self.take_keys: Callable[[Batch, int, int], None] | None = None
        """For a queue: called with batches that have keys, which are deduplication ids."""
        self._gone = BitMap64()
        """Offsets that frames since the last `finish` refer to."""

    # --- from frames and records ----------------------------------------------------------

    def describe(self, description: Description) -> None:
        """Take over the description of the group."""
        if description.mode not in MODES:
            raise UnsupportedVersionError(
                f"group {description.name!r} is of mode {description.mode!r}, which this release "
                "does not know: upgrade stratalog"
            )
        self.name = description.name
        self.mode = description.mode
        self.created_at = description.created_at
        self.options = dict(description.options)

    def description(self) -> Description:
        """The description of the group."""
        return Description(self.name, self.mode, self.created_at, dict(self.options))

    def reset(self, offset: int) -> None:
        """Deliver everything from an offset on again, and nothing below it."""
        self.ingested = self.cursor = offset
        self.waiting = {}
        self.delays = Delays()
        self.pending = {}
        self.settling = {}
        self._gone = BitMap64()

    def save(self) -> Callable[[], None]:
        """Save what `reset` is about to discard; returns the function that restores it."""
        names = ("ingested", "cursor", "waiting", "delays", "pending", "settling", "_gone")
        kept = [(name, getattr(self, name)) for name in names]

        def restore() -> None:
            for name, value in kept:
                setattr(self, name, value)

        return restore

    def apply(self, number: int, changes: Changes) -> None:
        """Apply a frame; call `finish` before the state is used."""
        if number <= self.number:
            return
        self.number = number
        text = changes.text
        if text.description is not None:
            self.describe(text.description)
        if text.seek is not None:
            self.reset(text.seek)
        if text.is_dropped:
            self.drop()
        self.deliveries = changes.deliveries
        self.cursor = changes.cursor
        if changes.leases:
            self.pending.update(changes.leases)
            self._gone.update(changes.leases)
        if changes.consumed:
            # Loops over the smaller of the two: either may be large.
            pending, chosen = self.pending, changes.consumed
            is_few = len(pending) < len(chosen)
            for offset in [o for o in pending if o in chosen] if is_few else chosen:
                pending.pop(offset, None)
            self.consumed += len(changes.consumed)
            self._gone |= changes.consumed

    def drop(self) -> None:
        """Discard everything but the group's existence."""
        self.reset(0)
        self.is_dropped = True
        self.name = ""

    def finish(self, topic: TopicLog) -> None:
        """Ingest the topic's records, except those that frames refer to."""
        self.ingest(topic, topic.committed)
        gone, self._gone = self._gone, BitMap64()
        if gone:
            for priority in list(self.waiting):
                self.waiting[priority] -= gone
                if not self.waiting[priority]:
                    del self.waiting[priority]
            self.delays.remove(gone)

    def ingest(
        self, topic: TopicLog, end: int, keep: Callable[[Batch], None] | None = None
    ) -> None:
        """Ingest the records below `end`; `keep` is given the batches that were read for it."""
        start = max(self.ingested, topic.earliest)
        if self.ingested >= end:
            return
        if self.mode == QUEUE and start < end:
            if self.is_queue:
                if (plain := plain_until(topic, start, end)) > start:
                    self.wait(0).add_range(start, plain)
                for part in read_batches(topic, plain, end):
                    if not isinstance(part, Gap):
                        self._take_in(*part)
                        if keep is not None:
                            keep(part.batch)
            else:
                self.wait(0).add_range(start, end)
        self.ingested = end

    def wait(self, priority: int) -> BitMap64:
        """Return the offsets that wait with a priority."""
        waiting = self.waiting.get(priority)
        if waiting is None:
            waiting = self.waiting[priority] = BitMap64()
        return waiting

    def _take_in(self, batch: Batch, first: int, end: int) -> None:
        if batch.key is not None and self.take_keys is not None:
            self.take_keys(batch, first, end)
        if batch.priority is None and batch.not_before is None and batch.offset_deltas is None:
            self.wait(0).add_range(batch.base_offset + first, batch.base_offset + end)
            return
        offsets = batch.offsets(first, end)
        count = end - first
        priorities = (
            np.zeros(count, np.uint8) if batch.priority is None else batch.priority[first:end]
        )
        if batch.not_before is not None:
            due = batch.not_before[first:end]
            late = due > 0
            self.delays.add(due[late], offsets[late], priorities[late])
            offsets, priorities = offsets[~late], priorities[~late]
        if count == 1 and len(offsets):  # the usual result of single puts
            self.wait(int(priorities[0])).add(int(offsets[0]))
            return
        for priority in np.flatnonzero(np.bincount(priorities)).tolist():
            self.wait(priority).update(offsets[priorities == priority].astype(np.uint64).tolist())

    # --- what it comes to -----------------------------------------------------------------

    def floor(self) -> int:
        """Return the first offset that is not consumed."""
        if self.mode == STREAM:
            return self.cursor
        offsets = [self.ingested, *(bits.min() for bits in self.waiting.values() if bits)]
        offsets += [min(held) for held in (self.pending, self.settling) if held]
        if len(self.delays):
            offsets.append(int(self.delays.offsets().min()))
        return min(offsets)

    def held(self, waiting: Mapping[int, BitMap64]) -> BitMap64:
        """Return unconsumed offsets below `ingested`, with these waiting; mode `queue`."""
        held = BitMap64(self.delays.offsets().tolist())
        held.update(self.pending, self.settling)
        for bits in waiting.values():
            held |= bits
        return held

    def lag(self, committed: int) -> int:
        """Count the records that are not consumed."""
        if self.mode == STREAM:
            return committed - self.cursor
        waiting = sum(map(len, self.waiting.values()))
        unread = max(0, committed - self.ingested)
        held = len(self.pending) + len(self.settling)
        return waiting + len(self.delays) + held + unread

    # --- snapshot -------------------------------------------------------------------------

    def capture(self, topic_id: int, waiting: dict[int, BitMap64]) -> GroupSnapshot:
        """Capture the state for a snapshot, with these offsets waiting."""
        names: dict[str, int] = {}
        # The number first: frames after it are applied to the records that are pending here.
        number = self.number
        pending = self.pending | self.settling
        leases = encode_leases(pending, names) if pending else b""
        return GroupSnapshot(
            topic_id=topic_id,
            id=self.id,
            name=self.name,
            mode=self.mode,
            created_at=self.created_at,
            options=dict(self.options),
            number=number,
            ingested=self.ingested,
            deliveries=self.deliveries,
            consumed=self.consumed,
            cursor=self.cursor,
            is_dropped=self.is_dropped,
            waiting={priority: bits.serialize() for priority, bits in waiting.items() if bits},
            delays=self.delays.to_bytes(),
            pending=len(pending),
            leases=leases,
            consumers=list(names),
        )

    def restore(self, state: GroupSnapshot) -> None:
        """Take over the state of a snapshot, unless a newer one is known."""
        if state.number < self.number:
            return
        self.describe(Description(state.name, state.mode, state.created_at, state.options))
        self.reset(state.ingested)
        self.number = state.number
        self.deliveries = state.deliveries
        self.consumed = state.consumed
        self.cursor = state.cursor
        self.is_dropped = state.is_dropped
        self.waiting = {p: decode_offsets(data) for p, data in state.waiting.items()}
        self.delays = Delays.from_bytes(state.delays)
        self.pending = decode_leases(state.leases, state.pending, state.consumers)


class Groups:
    """The groups of one topic, and frames that are still to be applied to them.

    Concurrency: any thread; a live group's own lock guards its state.
    """

    __slots__ = ("_collected", "_lock", "_states", "live", "queue", "topic")

    def __init__(self, topic: TopicLog) -> None:
        self.topic = topic
        self.live: dict[int, Engine] = {}
        """The engines that deliver in the writer's process, by group."""
        self.queue: QueueState | None = None
        """The additional state of a queue; None for other topics."""
        self._lock = threading.RLock()
        self._states: dict[int, GroupState] = {}
        self._collected: list[tuple[int, Changes]] = []

    def disown(self) -> None:
        """Replace all locks: in a fork, their holders may not exist."""
        self._lock = threading.RLock()
        for engine in self.live.values():
            engine.disown()
        if self.queue is not None:
            self.queue.lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._states or self._collected)

    def collect(self, number: int, body: bytes) -> None:
        """Keep a frame until all frames can be sorted."""
        self._collected.append((number, decode_group(body)))

    def restore(self, states: Iterable[GroupSnapshot], queue: QueueSnapshot | None) -> None:
        """Take over the states of a snapshot."""
        with self._lock:
            for state in states:
                self._state(state.id).restore(state)
            if queue is not None and self.queue is not None:
                self.queue.restore(queue)

    def states(self) -> list[GroupState]:
        """Return all groups, with all collected frames applied and every record ingested."""
        with self._lock:
            if self._collected:
                collected, self._collected = self._collected, []
                collected.sort(key=lambda one: (one[1].group, one[0]))
                for number, changes in collected:
                    self._state(changes.group).apply(number, changes)
            return self._finished()

    def _finished(self) -> list[GroupState]:
        for id, state in self._states.items():
            if id not in self.live and not state.is_dropped:
                if state.is_queue and self.queue is not None:
                    options = QueueOptions.restore(state.options)  # the deduplication window
                    self.queue.configure(options.dedup_window, options.dedup_entries)
                    start = max(state.ingested, self.topic.earliest)
                    self.queue.catch_up(min(start, self.topic.committed))
                state.finish(self.topic)
                if state.is_queue and self.queue is not None:
                    self.queue.deduped = max(self.queue.deduped, state.ingested)
        return [state for state in self._states.values() if not state.is_dropped]

    def _state(self, id: int) -> GroupState:
        state = self._states.get(id)
        if state is None:
            state = self._states[id] = self._new(id)
        return state

    def _new(self, id: int) -> GroupState:
        is_queue = id == 0 and self.topic.kind == QUEUE
        if is_queue and self.queue is None:
            self.queue = QueueState(self.topic)
        state = GroupState(id, is_queue=is_queue)
        if is_queue and self.queue is not None:
            state.take_keys = self.queue.take_keys
        return state

    def find(self, name: str, *, is_queue: bool = False) -> GroupState | None:
        """Find the group of that name, or a queue's own group."""
        for state in self.states():
            if state.is_queue == is_queue and state.name == name:
                return state
        return None

    def add(self, *, is_queue: bool) -> GroupState:
        """Create a group with the next free number."""
        with self._lock:
            self.states()
            # Number 0 is reserved for a queue's own group.
            id = 0 if is_queue else max(self._states, default=0) + 1
            return self._state(id)

    def forget(self, state: GroupState) -> None:
        """Remove a group that could not be created."""
        with self._lock:
            self._states.pop(state.id, None)
            engine = self.live.pop(state.id, None)
        if engine is not None:
            engine.close()

    def named(self) -> list[GroupState]:
        """List all groups except a queue's own, by name."""
        named = [state for state in self.states() if not state.is_queue]
        return sorted(named, key=lambda one: one.name)

    def consumed_below(self) -> int:
        """Return the offset below which all groups in mode `queue` have consumed; 0 for none."""
        floors = []
        for state in self.states():
            if state.mode == QUEUE:
                live = self.live.get(state.id)
                floors.append(state.floor() if live is None else live.floor())
        return min(floors, default=0)

    def consumed(self, end: int) -> BitMap64:
        """Return the offsets below `end` that every group in mode `queue` has consumed.

        Empty if there is no such group.
        """
        consumed: BitMap64 | None = None
        for state in self.states():
            if state.mode == QUEUE:
                live = self.live.get(state.id)
                stop, held = (
                    (state.ingested, state.held(state.waiting)) if live is None else live.held()
                )
                own = BitMap64()
                own.add_range(0, min(stop, end))
                own -= held
                consumed = own if consumed is None else consumed & own
        return BitMap64() if consumed is None else consumed

    def capture(self) -> tuple[list[GroupSnapshot], QueueSnapshot | None]:
        """Capture all groups for a snapshot, each of them at one moment."""
        if not self:
            return [], None
        with self._lock:
            self.states()
            found = []
            for state in self._states.values():
                live = self.live.get(state.id)
                found.append(
                    state.capture(self.topic.id, state.waiting) if live is None else live.capture()
                )
            # After the groups: the ids of every message that they have ingested are included.
            return found, None if self.queue is None else self.queue.capture()
