"""A queue against a dictionary: several consumers, time, crashes, restarts with other shards.

Nothing acknowledged is lost or comes back, nothing is delivered twice at most once, and what is
delivered is always the most urgent message that can be, and of those the oldest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from stratalog.errors import LeaseLostError
from stratalog.format.control import decode_offsets
from stratalog.handles.dead_letters import ORIGINAL_OFFSET
from stratalog.handles.queue import Queue
from stratalog.handles.store import Store
from stratalog.model import Message
from stratalog.testing import FakeDisk, ManualClock, MonitorFs
from tests.crash.model import kill, open_store

LEASE = 10.0
MAX_DELIVERIES = 3
SECOND = 10**9


@dataclasses.dataclass
class Model:
    """One message that is not consumed."""

    value: bytes
    priority: int
    due: int = 0
    """When it can be delivered, or delivered again."""
    expires: int = 0
    not_before: int = 0
    count: int = 0
    held: Message | None = None


class QueueMachine(RuleBasedStateMachine):
    """A queue of class `fsync` on a fake disk."""

    delivery = "at_least_once"

    @initialize(shards=st.integers(1, 3))
    def begin(self, shards: int) -> None:
        """A new directory."""
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.messages: dict[int, Model] = {}
        self.consumed: set[int] = set()
        self.dead: set[int] = set()
        self.ids: dict[str, int] = {}
        self.stale: list[Message] = []
        self.next_offset = 0
        self.store: Store
        self.queue: Queue
        self._open(shards)

    def _open(self, shards: int) -> None:
        self.store = open_store(MonitorFs(self.disk), self.clock, shards=shards)
        self.queue = self.store.queue(
            "jobs", lease=LEASE, max_deliveries=MAX_DELIVERIES, delivery=self.delivery,
            dedup_window=1e6,
        )  # fmt: skip

    # --- what users do --------------------------------------------------------------------

    @rule(
        priority=st.sampled_from([0, 0, 0, 1, 7, 255]),
        delay=st.sampled_from([None, None, 1.0, 15.0]),
        ttl=st.sampled_from([None, None, None, 12.0]),
        id=st.one_of(st.none(), st.sampled_from("abcdef")),
        size=st.sampled_from([3, 3, 40, 900]),
    )
    def put(
        self, priority: int, delay: float | None, ttl: float | None, id: str | None, size: int
    ) -> None:
        """A message of any kind."""
        value = (b"%d " % self.next_offset) * size
        put = self.queue.put(value, priority=priority, delay=delay, ttl=ttl, dedup_id=id)
        if id in self.ids:
            assert put == (self.ids[id], True)
            return
        assert put == (self.next_offset, False)
        now = self.clock.time_ns()
        due = now + round(delay * SECOND) if delay else 0
        expires = now + round(ttl * SECOND) if ttl else 0
        self.messages[put.offset] = Model(value, priority, due, expires, due)
        if id is not None:
            self.ids[id] = put.offset
        self.next_offset += 1

    @rule(values=st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=5))
    def put_many(self, values: list[bytes]) -> None:
        """A batch."""
        puts = self.queue.put_many(values)
        assert [put.offset for put in puts] == list(
            range(self.next_offset, self.next_offset + len(values))
        )
        for put, value in zip(puts, values, strict=True):
            self.messages[put.offset] = Model(value, 0)
        self.next_offset += len(values)

    def _settle_time(self) -> list[int]:
        """List what can be delivered now, in order; dead and expired messages are taken out."""
        now = self.clock.time_ns()
        ready = []
        for offset, model in list(self.messages.items()):
            if model.due > now:
                continue
            if model.count >= MAX_DELIVERIES:
                self.dead.add(offset)
                del self.messages[offset]
            elif not model.expires or model.expires > now:
                ready.append((model.priority, offset))
        return [offset for _, offset in sorted(ready)]

    @rule(limit=st.integers(1, 4), consumer=st.sampled_from(["a", "b"]))
    def get(self, limit: int, consumer: str) -> None:
        """The most urgent and oldest, each once."""
        now = self.clock.time_ns()
        expected = self._settle_time()[:limit]
        found = self.queue.get_many(limit, consumer=consumer)
        assert [message.offset for message in found] == expected
        for message in found:
            model = self.messages[message.offset]
            assert message.value == model.value
            model.count += 1
            assert message.delivery_count == (1 if self.delivery == "at_most_once" else model.count)
            if self.delivery == "at_most_once":
                del self.messages[message.offset]
                self.consumed.add(message.offset)
                continue
            if model.held is not None:
                self.stale.append(model.held)
            model.held = message
            model.due = now + round(LEASE * SECOND)

    def _some_held(self, data: st.DataObject) -> tuple[int, Model] | None:
        held = [(offset, one) for offset, one in self.messages.items() if one.held is not None]
        return data.draw(st.sampled_from(held)) if held else None

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        """The last consumer can, also when its time is up."""
        if (chosen := self._some_held(data)) is None:
            return
        offset, model = chosen
        assert model.held is not None
        self._settle_time()
        if offset in self.dead:
            # It may be there already, or be taken there by the next get.
            with contextlib.suppress(LeaseLostError):
                self.queue.ack(model.held)
                self.dead.discard(offset)
                self.consumed.add(offset)
            return
        self.queue.ack(model.held)
        del self.messages[offset]
        self.consumed.add(offset)

    @rule(data=st.data(), delay=st.sampled_from([None, 0.0, 3.0, 20.0]))
    def nack(self, data: st.DataObject, delay: float | None) -> None:
        """It comes again, or dies."""
        chosen = self._some_held(data)
        if chosen is None or chosen[1].count >= MAX_DELIVERIES:
            return
        _, model = chosen
        assert model.held is not None
        self.queue.nack(model.held, delay=delay)
        model.held = None
        model.due = self.clock.time_ns() + round((delay or 0.0) * SECOND)

    @rule(data=st.data(), reason=st.text(max_size=5))
    def kill_message(self, data: st.DataObject, reason: str) -> None:
        """Given back once too often."""
        chosen = self._some_held(data)
        if chosen is None or chosen[1].count < MAX_DELIVERIES:
            return
        offset, model = chosen
        assert model.held is not None
        if model.due <= self.clock.time_ns():
            return  # it dies by itself
        self.queue.nack(model.held, reason=reason)
        del self.messages[offset]
        self.dead.add(offset)

    @rule(data=st.data(), lease=st.sampled_from([None, 1.0, 30.0]))
    def touch(self, data: st.DataObject, lease: float | None) -> None:
        """It is kept longer."""
        chosen = self._some_held(data)
        if chosen is None or chosen[1].count >= MAX_DELIVERIES:
            return
        model = chosen[1]
        assert model.held is not None
        self.queue.touch(model.held, lease=lease)
        model.due = self.clock.time_ns() + round((lease or LEASE) * SECOND)

    @precondition(lambda self: self.stale)
    @rule()
    def stale_ack(self) -> None:
        """An earlier consumer cannot."""
        with pytest.raises(LeaseLostError):
            self.queue.ack(self.stale.pop())

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        """Leases run out, delays end."""
        self.clock.advance(seconds)

    # --- what happens to it ---------------------------------------------------------------

    @rule()
    def tick(self) -> None:
        """The background thread."""
        assert self.store._log is not None
        self.store._log.tick()

    @rule(kind=st.sampled_from(["snapshot", "checkpoint", "compact"]))
    def upkeep(self, kind: str) -> None:
        """Segments, snapshots, retention."""
        getattr(self.store, kind)()

    @rule(shards=st.integers(1, 3))
    def reopen(self, shards: int) -> None:
        """A clean restart: nothing changes, and consumers still have their messages."""
        before = self._state()
        self.store.close()
        self._open(shards)
        assert self._state() == before, "replay comes to something else"

    def _state(self) -> tuple[object, ...]:
        """Return the group's state, as a snapshot would have it."""
        assert self.store._log is not None
        self.store.sync()
        engine = self.queue._engine
        assert engine is not None
        with engine.lock:
            engine.look(self.clock.time_ns())  # what is due by now waits, in replay as before
        found = engine.capture()
        offsets = engine.state.delays.offsets().tolist()
        waiting = {p: sorted(decode_offsets(data)) for p, data in found.waiting.items()}
        # With how many others a message was delivered is known to the process that did it alone.
        pending = {o: replace(one, size=0) for o, one in sorted(engine.state.pending.items())}
        return waiting, sorted(offsets), pending, found.ingested

    @rule(seed=st.integers(0, 1000), shards=st.integers(1, 3))
    def crash(self, seed: int, shards: int) -> None:
        """Unsynced bytes are lost or torn: deliveries may be forgotten, nothing else."""
        kill(self.store)
        self.disk = self.disk.crash(seed)
        self._open(shards)
        self.stale = []
        pending = self.queue._state.pending
        for offset, model in self.messages.items():
            lease = pending.get(offset)
            if lease is None:  # all deliveries are forgotten
                model.held, model.count, model.due = None, 0, model.not_before
                continue
            assert lease.delivery_count <= model.count
            model.count, model.due = lease.delivery_count, lease.deadline
            if model.held is not None and model.held.lease.serial != lease.serial:
                model.held = None

    def teardown(self) -> None:
        """Leave it as it is."""
        if hasattr(self, "store"):
            kill(self.store)

    # --- what must always be true ---------------------------------------------------------

    @invariant()
    def nothing_is_lost_or_back(self) -> None:
        """Every message is where the model has it."""
        if not hasattr(self, "queue"):
            return
        state = self.queue._state
        with self.queue._engine.lock:  # type: ignore[union-attr]
            waiting = set().union(*map(set, self.queue._engine.waiting().values()))  # type: ignore[union-attr]
        there = waiting | set(state.pending) | set(state.delays.offsets().tolist())
        there |= set(range(state.ingested, self.next_offset))
        assert not there & self.consumed, "consumed, and back"
        now = self.clock.time_ns()
        living = {
            offset for offset, one in self.messages.items() if not one.expires or one.expires > now
        }
        assert living <= there, f"lost: {living - there}"

    @invariant()
    def the_dead_are_dead_once(self) -> None:
        """Each at most once, and only those that should be."""
        if not hasattr(self, "queue"):
            return
        offsets = [int(one.headers[ORIGINAL_OFFSET]) for one in self.queue.dead.read()]
        assert len(set(offsets)) == len(offsets)
        assert not set(offsets) & self.consumed
        self._settle_time()
        assert set(offsets) <= self.dead


class TakingMachine(QueueMachine):
    """With at most once, nothing is delivered twice."""

    delivery = "at_most_once"


_settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "25")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestQueue = QueueMachine.TestCase
TestQueue.settings = _settings
TestTaking = TakingMachine.TestCase
TestTaking.settings = _settings
