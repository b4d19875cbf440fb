"""A state machine: any sequence of appends, reads, ticks, clock jumps, crashes and reopens."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.model import Record
from stratalog.testing import FakeDisk, ManualClock
from tests.crash.model import Session, check_recovered

NAMES = st.sampled_from(["orders", "refunds", "ticks and tocks"])
CLASSES = st.sampled_from(["memory", "disk", "fsync", None])
VALUES = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=600, max_size=1500))


class StoreMachine(RuleBasedStateMachine):
    """The store on a fake disk against a list per topic."""

    @initialize(shards=st.integers(1, 3))
    def begin(self, shards: int) -> None:
        """A new directory."""
        self.session = Session(FakeDisk(), ManualClock())
        self.session.open(shards=shards)

    @rule(name=NAMES, value=VALUES, key=st.one_of(st.none(), st.binary(max_size=3)), kind=CLASSES)
    def append(self, name: str, value: bytes | None, key: bytes | None, kind: str | None) -> None:
        """One record."""
        self.session.append(name, value, key=key, durability=kind)

    @rule(name=NAMES, values=st.lists(st.binary(max_size=30), min_size=1, max_size=8), kind=CLASSES)
    def append_batch(self, name: str, values: list[bytes], kind: str | None) -> None:
        """An atomic batch."""
        self.session.append_many(name, values, durability=kind)

    @rule(name=NAMES, values=st.lists(st.binary(max_size=30), min_size=1, max_size=4))
    def append_records(self, name: str, values: list[bytes]) -> None:
        """A batch of records that bring times of their own."""
        now = self.session.clock.time_ns()
        records = [
            Record(value=value, tag="t", timestamp=now - 10**12 * number)
            for number, value in enumerate(values)
        ]
        self.session.append_many(name, records)

    @rule(name=NAMES, count=st.integers(1, 5))
    def pipeline(self, name: str, count: int) -> None:
        """Several in flight."""
        futures = [self.session.nowait(name, b"%d" % number) for number in range(count)]
        self.session.resolved(name, futures[-1].result())

    @rule(seconds=st.floats(0, 2))
    def tick(self, seconds: float) -> None:
        """The background thread has a turn."""
        self.session.tick(seconds)

    @rule(seconds=st.floats(-(10.0**6), 10.0**6))
    def jump(self, seconds: float) -> None:
        """Somebody sets the clock."""
        self.session.clock.jump(seconds)

    @rule()
    def sync(self) -> None:
        """Everything is made durable."""
        self.session.sync()

    @rule(name=NAMES, data=st.data())
    def read_part(self, name: str, data: st.DataObject) -> None:
        """Any part of a topic can be read, and reads the same in every form."""
        topic, model = self.session.store.topic(name), self.session.topics.get(name)
        size = len(model.sent) if model else 0
        start = data.draw(st.integers(0, size))
        end = data.draw(st.integers(start, size))
        expected = [fields[0] for fields in model.sent[start:end]] if model else []
        assert [r.value for r in topic.read(start, end) if isinstance(r, Record)] == expected
        assert topic.read_values(start, end - start) == expected
        table = topic.read_arrow(start, end).read_all()
        assert table["value"].to_pylist() == expected
        assert table["offset"].to_pylist() == list(range(start, end))

    @precondition(lambda self: any(model.sent for model in self.session.topics.values()))
    @rule(name=NAMES)
    def look_up_a_time(self, name: str) -> None:
        """`offset_at` of a record's time is the first record that has it."""
        records = [r for r in self.session.store.topic(name).read() if isinstance(r, Record)]
        for record in records[:: max(1, len(records) // 3)]:
            expected = next(r.offset for r in records if r.timestamp >= record.timestamp)
            assert self.session.store.topic(name).offset_at(record.timestamp) == expected

    @rule(shards=st.integers(1, 4))
    def reopen(self, shards: int) -> None:
        """A clean close, and another number of shards."""
        self.session.reopen(shards=shards)

    @rule(seed=st.integers(0, 1 << 16), shards=st.integers(1, 4))
    def crash(self, seed: int, shards: int) -> None:
        """The machine goes down; what was not durable may be lost, from the end only."""
        session = self.session
        session.kill()
        session.disk = session.disk.crash(seed)
        session.open(shards=shards)
        check_recovered(session.store, session.topics)
        for name, model in session.topics.items():
            kept = session.store.topic(name).next_offset
            del model.sent[kept:]
            model.batches = [batch for batch in model.batches if batch[1] <= kept]
            model.durable = kept  # recovery synced what it found

    @invariant()
    def order_was_kept(self) -> None:
        """No file operation came before the one it depends on."""
        if hasattr(self, "session"):
            self.session.monitor.check()

    def teardown(self) -> None:
        """Everything that was sent can be read at the end."""
        if hasattr(self, "session"):
            self.session.reopen()
            check_recovered(self.session.store, self.session.topics)
            self.session.store.close()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
