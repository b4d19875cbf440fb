"""A state machine for schedules: any order of time, pauses, changes, drops, upkeep and crashes.

The model is arithmetic: between two looks, a schedule that is not paused puts one message if a due
time has passed, for the newest one; and a crash takes message and due time together or neither.
"""

from __future__ import annotations

import os
from datetime import datetime

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.handles.schedule import Schedule
from stratalog.model import Record
from stratalog.testing import FakeDisk, ManualClock, MonitorFs
from tests.crash.model import kill, open_store

SECOND = 10**9
NAMES = st.sampled_from(["a", "b", "relaxed"])


class ScheduleMachine(RuleBasedStateMachine):
    """Schedules on a fake disk against what arithmetic says."""

    @initialize(shards=st.integers(1, 3))
    def begin(self, shards: int) -> None:
        """A new directory with a queue of each class."""
        self.disk, self.clock = FakeDisk(), ManualClock()
        self.every = {"a": 60, "b": 7, "relaxed": 60}
        self.anchor: dict[str, int] = {}
        self.paused: set[str] = set()
        self.before = dict.fromkeys(self.every, 0)
        """Messages of schedules of a name that were dropped."""
        self._open(shards)
        self.store.queue("relaxed", durability="disk")
        for name in self.every:
            self._make(name)
            self.anchor[name] = self.clock.time_ns()

    def _open(self, shards: int) -> None:
        self.monitor = MonitorFs(self.disk)
        self.store = open_store(self.monitor, self.clock, shards=shards)
        assert self.store.damage is None, self.store.damage

    def _make(self, name: str) -> Schedule:
        queue = "relaxed" if name == "relaxed" else "jobs"
        return self.store.schedule(name, every=float(self.every[name]), queue=queue)

    @rule(name=NAMES)
    def pause(self, name: str) -> None:
        """A schedule stands still."""
        self._make(name).pause()
        self.paused.add(name)

    @rule(name=NAMES)
    def resume(self, name: str) -> None:
        """A schedule goes on, with what is due after now."""
        self._make(name).resume()
        self.paused.discard(name)

    @rule(name=NAMES, every=st.sampled_from([7, 60, 100]))
    def change(self, name: str, every: int) -> None:
        """Other settings count from now."""
        if every != self.every[name]:
            self.every[name] = every
            self._make(name)
            self.anchor[name] = self.clock.time_ns()

    @rule(name=st.sampled_from(["a", "b"]))
    def drop(self, name: str) -> None:
        """A schedule goes, and its successor begins again."""
        self.before[name] = len(self._due_times(name))
        self._make(name).drop()
        assert len(self._due_times(name)) == self.before[name]
        self._make(name)
        self.anchor[name] = self.clock.time_ns()
        self.paused.discard(name)

    @rule(seconds=st.floats(0, 300))
    def pass_time(self, seconds: float) -> None:
        """A due message comes once, for the newest due time that passed."""
        self.clock.advance(seconds)
        now = self.clock.time_ns()
        before = {name: self._due_times(name) for name in self.every}
        wanted: dict[str, list[int]] = {}
        for one in self.store.schedules():
            due = one.stats().next_due
            step, anchor = self.every[one.name] * SECOND, self.anchor[one.name]
            wanted[one.name] = [now - (now - anchor) % step] if due and due <= now else []
        assert self.store.run_schedules() == sum(map(len, wanted.values()))
        for name, times in before.items():
            assert self._due_times(name)[len(times) :] == [t // 10**6 for t in wanted[name]]
        assert self.store.run_schedules() == 0

    @rule(seconds=st.floats(-500, 0))
    def set_back(self, seconds: float) -> None:
        """The clock is set back: nothing is due before time has caught up."""
        self.clock.jump(seconds)
        assert self.store.run_schedules() in range(len(self.every) + 1)

    @rule(action=st.sampled_from(["checkpoint", "snapshot", "compact", "sync"]))
    def keep_up(self, action: str) -> None:
        """Messages go to segments, and the log is given up."""
        getattr(self.store, action)()

    @rule(shards=st.integers(1, 3))
    def reopen(self, shards: int) -> None:
        """A clean close, and another number of shards."""
        before = [one.stats() for one in self.store.schedules()]
        self.store.close()
        self._open(shards)
        assert [one.stats() for one in self.store.schedules()] == before

    @rule(seed=st.integers(0, 1 << 16), shards=st.integers(1, 3))
    def crash(self, seed: int, shards: int) -> None:
        """The machine goes down; what was not durable may be lost."""
        kill(self.store)
        self.disk = self.disk.crash(seed)
        self._open(shards)

    def _due_times(self, name: str) -> list[int]:
        """Milliseconds of the due times that a schedule has put messages for."""
        queue = "relaxed" if name == "relaxed" else "jobs"
        records = [r for r in self.store.topic(queue).read() if isinstance(r, Record)]
        return [
            round(datetime.fromisoformat(r.headers["schedule.due"].decode()).timestamp() * 1000)
            for r in records
            if r.headers["schedule.name"].decode() == name
        ]

    @invariant()
    def every_due_time_once(self) -> None:
        """A message for each due time that is in the state, and for no other."""
        if not hasattr(self, "store"):
            return
        self.monitor.check()
        found = {one.name: one.stats() for one in self.store.schedules()}
        assert set(found) == set(self.every)
        for name, stats in found.items():
            assert (stats.state == "paused") == (name in self.paused)
            times = self._due_times(name)[self.before[name] :]
            assert len(times) == stats.fired
            assert times == sorted(set(times)), "a due time came twice"
            if stats.last_due is not None:
                assert times[-1] == stats.last_due // 10**6
            assert stats.next_due is None or stats.next_due > (stats.last_due or 0)

    def teardown(self) -> None:
        """Nothing is left over."""
        if hasattr(self, "store"):
            self.store.close()


TestSchedules = ScheduleMachine.TestCase
TestSchedules.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "20")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
