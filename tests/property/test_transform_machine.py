"""A state machine of consumers that produce: whatever happens, a job and its result are one.

Jobs are consumed in batches that append their results and put further jobs. Consumers are slow,
lose their leases, give back and give up; the store is snapshotted, closed, killed and opened with
another number of shards, and the machine goes down in the middle of a batch.
"""

from __future__ import annotations

import contextlib
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.errors import LeaseLostError
from stratalog.handles.store import Store
from stratalog.model import Message, Record
from stratalog.testing import Crashed, FakeDisk, ManualClock, MonitorFs
from tests.crash.model import kill, open_store

TOPICS = ("results", "audit", "more results")


class TransformMachine(RuleBasedStateMachine):
    """The store against the set of jobs, and of those whose result was acknowledged."""

    @initialize(shards=st.integers(1, 3), durability=st.sampled_from(["fsync", "disk"]))
    def begin(self, shards: int, durability: str) -> None:
        """A new directory."""
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.durability = durability
        self.next_job = 0
        self.held: list[Message] = []
        self.stale: list[Message] = []
        """Messages of which another consumer may have the lease by now."""
        self.done: set[bytes] = set()
        """Jobs whose result is durable."""
        self._open(shards)

    def _open(self, shards: int) -> None:
        self.monitor = MonitorFs(self.disk)
        self.store: Store = open_store(
            self.monitor, self.clock, shards=shards, durability=self.durability
        )
        assert self.store.damage is None, self.store.damage
        self.jobs = self.store.queue("jobs", lease=10.0, max_deliveries=0)
        self.stale += self.held
        self.held = []

    def _job(self) -> bytes:
        self.next_job += 1
        return b"job %d" % self.next_job

    # --- what consumers do ----------------------------------------------------------------

    @rule(count=st.integers(1, 4), priority=st.integers(0, 2))
    def put(self, count: int, priority: int) -> None:
        """Some work."""
        for _ in range(count):
            self.jobs.put(self._job(), priority=priority)

    @rule(limit=st.integers(1, 3))
    def get(self, limit: int) -> None:
        """A consumer takes some of it."""
        self.held += self.jobs.get_many(limit)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), onward=st.booleans(), topics=st.sets(st.sampled_from(TOPICS), min_size=1))
    def transform(self, data: st.DataObject, onward: bool, topics: set[str]) -> None:
        """Consume and produce in one."""
        message = data.draw(st.sampled_from(self.held))
        self.held.remove(message)
        with contextlib.suppress(LeaseLostError):
            self._transform(message, onward, sorted(topics | {"results"}))

    def _transform(self, message: Message, onward: bool, topics: list[str]) -> None:
        with self.store.batch() as batch:
            for name in topics:
                batch.topic(name).append(message.value)
            if onward:
                batch.queue("jobs").put(self._job())
            batch.queue("jobs").ack(message)
        if self.durability == "fsync":
            self.done.add(message.value or b"")

    @precondition(lambda self: len(self.held) > 1)
    @rule(delay=st.sampled_from([0.0, 5.0]))
    def transform_one_and_give_one_back(self, delay: float) -> None:
        """Both in one batch."""
        first, second = self.held.pop(0), self.held.pop(0)
        with contextlib.suppress(LeaseLostError):
            with self.store.batch() as batch:
                batch.queue("jobs").nack(second, delay=delay)
                batch.topic("results").append(first.value)
                batch.queue("jobs").ack(first)
            if self.durability == "fsync":
                self.done.add(first.value or b"")

    @precondition(lambda self: self.held)
    @rule()
    def give_up(self) -> None:
        """A batch that is never committed: the message stays whose it was."""
        with contextlib.suppress(KeyError, LeaseLostError), self.store.batch() as batch:
            batch.topic("results").append(self.held[0].value)
            batch.queue("jobs").ack(self.held[0])
            raise KeyError

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def come_back_late(self, data: st.DataObject) -> None:
        """A consumer of another life tries to commit: it is told, or it still has the lease."""
        message = data.draw(st.sampled_from(self.stale))
        self.stale.remove(message)
        with contextlib.suppress(LeaseLostError):
            self._transform(message, False, ["results"])

    # --- what time and the machine do -----------------------------------------------------

    @rule(seconds=st.floats(0, 15))
    def wait(self, seconds: float) -> None:
        """Leases run out."""
        self.clock.advance(seconds)
        assert self.store._log is not None
        self.store._log.tick()

    @rule(action=st.sampled_from(["checkpoint", "snapshot", "compact", "sync"]))
    def keep_up(self, action: str) -> None:
        """Everything is made durable, in one way or another."""
        getattr(self.store, action)()
        self.done |= {value or b"" for value in self.store.topic("results").read_values()}

    @rule(shards=st.integers(1, 4))
    def reopen(self, shards: int) -> None:
        """A clean close, and another number of shards."""
        self.store.close()
        self._open(shards)

    @rule(
        seed=st.integers(0, 1 << 16),
        shards=st.integers(1, 4),
        operations=st.integers(0, 12),
        is_working=st.booleans(),
    )
    def crash(self, seed: int, shards: int, operations: int, is_working: bool) -> None:
        """The machine goes down, perhaps while a batch is written."""
        if is_working and self.held:
            self.disk.crash_after = self.disk.operations + operations
            with contextlib.suppress(Crashed, LeaseLostError):
                self._transform(self.held.pop(), True, list(TOPICS))
        kill(self.store)
        self.disk = self.disk.crash(seed)
        self._open(shards)

    # --- what must hold -------------------------------------------------------------------

    @invariant()
    def a_job_and_its_result_are_one(self) -> None:
        """Consumed if and only if the result is there; never twice, and never lost again."""
        if not hasattr(self, "store"):
            return
        results = self.store.topic("results").read_values()
        assert len(set(results)) == len(results), "a job was done twice"
        assert self.done <= set(results), "a result is lost"
        state = self.jobs.engine.state
        with self.jobs.engine.lock:
            self.jobs.engine.open_inbox()
            self.jobs.engine.look(self.clock.time_ns())
            left = unconsumed_live(self)
        assert not state.settling
        for item in self.jobs.topic.read():
            if isinstance(item, Record):
                is_left = item.offset in left
                assert (item.value in results) != is_left, f"{item.value!r} and its result differ"
        self.monitor.check()

    def teardown(self) -> None:
        """Whatever is left can be done, once."""
        if not hasattr(self, "store"):
            return
        self.clock.advance(100.0)
        while found := self.jobs.get_many(10):
            for message in found:
                self._transform(message, False, ["results"])
        self.a_job_and_its_result_are_one()
        assert len(self.jobs) == 0
        self.store.close()


def unconsumed_live(machine: TransformMachine) -> set[int]:
    """Every offset that is still to be delivered, or acknowledged."""
    engine = machine.jobs.engine
    left = set(engine.state.pending) | set(engine.state.delays.offsets().tolist())
    for bits in engine.deliverable().values():
        left |= set(bits)
    return left | set(range(engine.state.ingested, machine.jobs.topic.next_offset))


TestTransformMachine = TransformMachine.TestCase
TestTransformMachine.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
