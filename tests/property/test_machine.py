"""State machines: any sequence of what users and upkeep do, of clock jumps, crashes and reopens.

One for what enters the log, against a list per topic; one for what becomes of it later, against a
dictionary of offsets and the floors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.arguments import check_time
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.model import Gap, Record
from stratalog.options import StoreOptions
from stratalog.testing import Crashed, FakeDisk, ManualClock, MonitorFs
from tests.crash.model import (
    ROOT,
    Session,
    check_adoptions,
    check_joints,
    check_recovered,
    kept_end,
    kill,
    open_store,
    settle_model,
)

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
        self.adopted = 0

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

    @rule(
        names=st.sets(NAMES, min_size=1),
        values=st.lists(st.binary(max_size=30), min_size=1, max_size=3),
        kind=CLASSES,
    )
    def append_to_several(self, names: set[str], values: list[bytes], kind: str | None) -> None:
        """One batch over several topics, and so over several shards."""
        self.session.batch(dict.fromkeys(sorted(names), values), durability=kind)

    @rule(
        names=st.sets(NAMES, min_size=1),
        values=st.lists(st.binary(max_size=30), min_size=1, max_size=3),
        upkeep=st.booleans(),
    )
    def adopt(self, names: set[str], values: list[bytes], upkeep: bool) -> None:
        """Another process publishes a batch, twice, and the store adopts it, once."""
        self.adopted += 1
        for _ in range(2):
            self.session.publish("others", self.adopted, **dict.fromkeys(sorted(names), values))
            self.session.adopt(upkeep=upkeep)

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
        """The clock is set."""
        self.session.clock.jump(seconds)

    @rule()
    def refuse(self) -> None:
        """The disk is full for a moment: unawaited appends are lost, their offsets stay used."""
        self.session.refuse()

    @rule()
    def sync(self) -> None:
        """Everything is made durable."""
        self.session.sync()

    @rule(action=st.sampled_from(["checkpoint", "snapshot", "compact"]))
    def keep_up(self, action: str) -> None:
        """Records go to segments, and the log is released; no reader sees a difference."""
        getattr(self.session.store, action)()
        self.session._all_durable()

    @rule(name=NAMES, data=st.data())
    def read_part(self, name: str, data: st.DataObject) -> None:
        """Any part of a topic can be read, and reads the same in every form."""
        topic, model = self.session.store.topic(name), self.session.topics.get(name)
        size = len(model.sent) if model else 0
        start = data.draw(st.integers(0, size))
        end = data.draw(st.integers(start, size))
        skipped = model.skipped if model else set()
        offsets = [offset for offset in range(start, end) if offset not in skipped]
        expected = [model.sent[offset][0] for offset in offsets] if model else []
        assert [r.value for r in topic.read(start, end) if isinstance(r, Record)] == expected
        assert topic.read_values(start, end - start)[: len(expected)] == expected
        table = topic.read_arrow(start, end).read_all()
        assert table["value"].to_pylist() == expected
        assert table["offset"].to_pylist() == offsets

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
        check_joints(session.store, session)
        check_adoptions(session.store, session.adoptions)
        session.joints.clear()
        session.adoptions.clear()
        for name, model in session.topics.items():
            topic = session.store.topic(name)
            kept = kept_end(topic)
            model.batches = [batch for batch in model.batches if batch[1] <= kept]
            settle_model(topic, model)
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


@dataclasses.dataclass
class TopicModel:
    """One topic: what is at every offset that was not deleted, and where the floors are."""

    epoch: int
    records: dict[int, tuple[bytes | None, str | None, int]] = dataclasses.field(
        default_factory=dict
    )
    """Value, tag and time by offset; what was deleted or evicted is taken out."""
    next: int = 0
    earliest: int = 0
    evicted_below: int = 0


# Options, and which loss they permit: records that must be kept, or an age that must be reached.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {"compression": "zstd"},
    "limited": {"retention_records": 10},
    "aged": {"retention_seconds": 100.0},
    "mortal": {"ttl": 100.0},
}
KIND_NAMES = st.sampled_from(sorted(KINDS))
TAGS = st.sampled_from([None, "a", "ab", "b"])


class HistoryMachine(RuleBasedStateMachine):
    """The life of records: segments, deletes, retention, tiers, drops, and crashes in it."""

    @initialize(shards=st.integers(1, 3))
    def begin(self, shards: int) -> None:
        """A new directory, with a cold store beside it."""
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.topics: dict[str, TopicModel] = {}
        self.epochs: dict[str, int] = {}
        self.view: Store | None = None
        self._open(shards)

    def _open(self, shards: int) -> None:
        self.monitor = MonitorFs(self.disk)
        self.store = open_store(
            self.monitor, self.clock, shards=shards, cold="/cold", hot_segments=1, rewrite_ratio=0.3
        )
        assert self.store.damage is None, self.store.damage

    def _topic(self, name: str) -> tuple[Topic, TopicModel]:
        if name not in self.topics:
            self.store.create_topic(name, segment_records=6, **KINDS[name])
            self.topics[name] = TopicModel(self.epochs.get(name, 0))
        return self.store.topic(name), self.topics[name]

    def _living(self, name: str) -> dict[int, tuple[bytes | None, str | None, int]]:
        """Return what can be read now."""
        records = self.topics[name].records
        if "ttl" not in KINDS[name]:
            return records
        oldest = self.clock.time_ns() - 100 * 10**9
        return {offset: fields for offset, fields in records.items() if fields[2] > oldest}

    # --- what users do --------------------------------------------------------------------

    @rule(name=KIND_NAMES, values=st.lists(VALUES, min_size=1, max_size=9), tag=TAGS)
    def append(self, name: str, values: list[bytes | None], tag: str | None) -> None:
        """A batch, durable when it returns."""
        topic, model = self._topic(name)
        batch = values[:4] if any(len(value or b"") > 40 for value in values) else values
        first, last = topic.append_many([Record(value, tag=tag) for value in batch])
        assert (first, last) == (model.next, model.next + len(batch) - 1)
        stamp = topic.stats().newest_timestamp
        assert all(stamp >= fields[2] for fields in model.records.values())
        model.records |= {first + n: (value, tag, stamp) for n, value in enumerate(batch)}
        model.next = last + 1

    @precondition(lambda self: self.topics)
    @rule(data=st.data(), by=st.sets(st.sampled_from(["before", "time", "tag", "glob", "offsets"])))
    def delete(self, data: st.DataObject, by: set[str]) -> None:
        """By any conditions, together; the count is exact."""
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic, model = self._topic(name)
        given: dict[str, Any] = {}
        meant = dict(self._living(name))
        if "offsets" in by and model.next:
            chosen = data.draw(st.sets(st.integers(0, model.next - 1), max_size=8))
            given["offsets"] = sorted(chosen)
            meant = {offset: meant[offset] for offset in chosen & meant.keys()}
        if "tag" in by:
            given["tag"] = data.draw(st.sampled_from(["a", "ab", "x"]))
            meant = {n: fields for n, fields in meant.items() if fields[1] == given["tag"]}
        if "glob" in by:
            given["tag_glob"] = data.draw(st.sampled_from(["a*", "?", "*b"]))
            glob = given["tag_glob"]
            meant = {n: f for n, f in meant.items() if f[1] and fnmatch.fnmatchcase(f[1], glob)}
        if "before" in by:
            given["before"] = data.draw(st.integers(0, model.next))
            meant = {n: fields for n, fields in meant.items() if n < given["before"]}
        elif "time" in by:
            given["before"] = self.clock.time_ns() / 1e9 - data.draw(st.integers(-10, 150))
            stamp = check_time("before", given["before"])
            meant = {n: fields for n, fields in meant.items() if fields[2] < stamp}
        if not given:
            return
        assert topic.delete(**given) == len(meant)
        if given.keys() == {"before"}:
            model.earliest = topic.earliest
            meant |= {n: f for n, f in model.records.items() if n < model.earliest}
        for offset in meant:
            del model.records[offset]

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        """Everything there is, wherever it is; the topic goes on."""
        name = data.draw(st.sampled_from(sorted(self.topics)))
        topic, model = self._topic(name)
        assert topic.delete(before=topic.next_offset) == len(self._living(name))
        model.earliest = topic.earliest
        model.records.clear()

    @precondition(lambda self: self.topics)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A topic goes; the next of its name has nothing of it."""
        name = data.draw(st.sampled_from(sorted(self.topics)))
        old = self.store.topic(name)
        self.store.drop_topic(name)
        self.epochs[name] = self.topics.pop(name).epoch + 1
        assert old.is_dropped

    # --- what time and upkeep do ----------------------------------------------------------

    @rule(seconds=st.floats(0, 150))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)

    @rule(seconds=st.floats(-500, 500))
    def jump(self, seconds: float) -> None:
        """The clock is set."""
        self.clock.jump(seconds)

    @rule(action=st.sampled_from(["checkpoint", "snapshot", "compact", "round"]))
    def keep_up(self, action: str) -> None:
        """Segments, snapshots, eviction, rewrites and moves."""
        self._act(action)
        self._take_floors()

    def _act(self, action: str) -> None:
        if action == "round":
            assert self.store._upkeep is not None
            self.store._upkeep.round()
            assert self.store.stats().upkeep is None
        else:
            getattr(self.store, action)()

    def _take_floors(self) -> None:
        """Hold the floors against what the topic's options permit, and believe them."""
        now = self.clock.time_ns()
        for name, model in self.topics.items():
            stats = self.store.topic(name).stats()
            assert stats.evicted_below >= model.evicted_below
            assert stats.earliest == max(model.earliest, stats.evicted_below)
            gone = [n for n in model.records if n < stats.evicted_below]
            if stats.evicted_below > model.evicted_below:
                options = KINDS[name]
                if name == "limited":
                    assert model.next - stats.evicted_below >= options["retention_records"]
                else:
                    assert name in ("aged", "mortal"), f"{name} has no limit"
                    assert all(model.records[n][2] + 100 * 10**9 <= now for n in gone)
            model.evicted_below, model.earliest = stats.evicted_below, stats.earliest
            for offset in gone:
                del model.records[offset]

    # --- reopen and crash -----------------------------------------------------------------

    @rule(shards=st.integers(1, 4))
    def reopen(self, shards: int) -> None:
        """A clean close, and another number of shards."""
        self.store.close()
        self._open(shards)

    @rule(
        seed=st.integers(0, 1 << 16),
        shards=st.integers(1, 4),
        action=st.sampled_from(["", "checkpoint", "snapshot", "compact", "round"]),
        operations=st.integers(0, 40),
    )
    def crash(self, seed: int, shards: int, action: str, operations: int) -> None:
        """The machine goes down, in the middle of something or not: nothing is lost."""
        if action:
            self.disk.crash_after = self.disk.operations + operations
            with contextlib.suppress(Crashed):
                self._act(action)
        kill(self.store)
        self._leave_view()
        self.disk = self.disk.crash(seed)
        self._open(shards)
        self._take_floors()

    # --- what must hold -------------------------------------------------------------------

    @rule()
    def look_from_outside(self) -> None:
        """A view that stays open sees the same, whatever was moved and given up since."""
        if self.view is None:
            options = StoreOptions.build({}, {})
            self.view = Store(ROOT, options, read_only=True, fs=self.disk, clock=self.clock)
        self._check(self.view)

    def _leave_view(self) -> None:
        if self.view is not None:
            kill(self.view)
            self.view = None

    @invariant()
    def is_as_the_model_says(self) -> None:
        """Every topic has exactly what it must have, and says exactly what it has not."""
        if hasattr(self, "store"):
            self._check(self.store)
            self.monitor.check()

    def _check(self, store: Store) -> None:
        assert store.topics() == sorted(self.topics)
        for name, model in self.topics.items():
            topic = store.topic(name)
            living = self._living(name)
            assert (topic.epoch, topic.next_offset) == (model.epoch, model.next)
            assert topic.earliest == model.earliest
            items = list(topic.read())
            records = [item for item in items if isinstance(item, Record)]
            assert {r.offset: (r.value, r.tag, r.timestamp) for r in records} == living
            assert [record.offset for record in records] == sorted(living)
            gaps = [item for item in items if isinstance(item, Gap)]
            told = {n for gap in gaps for n in range(gap.first, gap.last + 1)}
            assert not told & living.keys()
            assert told >= set(range(model.evicted_below)) | (model.records.keys() - living.keys())
            if model.evicted_below == 0 and len(living) == len(model.records):
                assert gaps == [], "what was deleted is not mentioned"
            diff = topic.diff(limit=1 << 20)
            assert diff.records == records
            assert (diff.next, diff.caught_up) == (model.next - 1, True)

    def teardown(self) -> None:
        """It is still so after a clean close."""
        if hasattr(self, "store"):
            self._leave_view()
            self.reopen(2)
            self._check(self.store)
            self.store.close()


TestHistoryMachine = HistoryMachine.TestCase
TestHistoryMachine.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "60")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
