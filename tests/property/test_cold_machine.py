"""A state machine of stores that share one cold place: each reads what it wrote, and nothing else.

Two stores to begin with; backups and plain copies of them go on beside them. Topics are appended
to, moved to the cold store, evicted, dropped and made again; stores are closed, killed and opened.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.errors import ColdStoreError
from stratalog.handles.store import Store
from stratalog.model import Gap
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, ManualClock, MonitorFs
from tests.crash.model import kill

OPTIONS: dict[str, Any] = {
    "shards": 1, "log_file_bytes": 8192, "log_chunk_bytes": 4096, "disk_reserve_bytes": 0,
    "cold": "/cold", "hot_segments": 1, "rewrite_ratio": 0.3,
}  # fmt: skip
TOPICS = ("a", "b")
KEEP: dict[str, Any] = {"a": {}, "b": {"retention_records": 9}}
STORES_MAX = 5


class Member:
    """One of the stores, and what it must hold: values by topic and offset."""

    def __init__(self, name: str, *, may_miss: bool = False) -> None:
        self.name = name
        self.path = f"/{name}"
        self.may_miss = may_miss
        """Whether another may have removed objects that it refers to: not known to be a copy."""
        self.values: dict[str, dict[int, bytes]] = {}
        self.store: Store | None = None


class ColdMachine(RuleBasedStateMachine):
    """Stores against dictionaries."""

    @initialize()
    def begin(self) -> None:
        """Two stores, and a disk that they share."""
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.next_value = 0
        self.members = [Member("one"), Member("two")]
        for member in self.members:
            self._open(member)

    def _open(self, member: Member) -> Store:
        options = StoreOptions.build(OPTIONS, {})
        member.store = Store(
            member.path, options, fs=MonitorFs(self.disk), clock=self.clock, background=False
        )
        assert member.store.damage is None, member.store.damage
        return member.store

    def _pick(self, number: int) -> tuple[Member, Store]:
        member = self.members[number % len(self.members)]
        return member, member.store or self._open(member)

    # --- what happens to one of them ------------------------------------------------------

    @rule(
        who=st.integers(0, 9), name=st.sampled_from(TOPICS), count=st.integers(4, 12),
        is_moved=st.booleans(),
    )  # fmt: skip
    def append(self, who: int, name: str, count: int, is_moved: bool) -> None:
        """Values that no other store has, all of one size."""
        member, store = self._pick(who)
        if name not in store.topics():
            store.create_topic(name, segment_records=3, **KEEP[name])
            member.values[name] = {}
        for number in range(count):
            self.next_value += 1
            value = b"%08d" % self.next_value
            member.values[name][store.topic(name).append(value)] = value
            if number % 4 == 3:
                store.checkpoint()
        self.clock.advance(1.0)
        if is_moved:
            store.compact()

    @rule(who=st.integers(0, 9))
    def compact(self, who: int) -> None:
        """Evict, rewrite, and move to the cold store."""
        self._pick(who)[1].compact()

    @rule(who=st.integers(0, 9), name=st.sampled_from(TOPICS), share=st.floats(0, 1))
    def delete_below(self, who: int, name: str, share: float) -> None:
        """Whole segments go, in the cold store too."""
        member, store = self._pick(who)
        if name in store.topics():
            topic = store.topic(name)
            below = topic.earliest + round((topic.next_offset - topic.earliest) * share)
            try:
                topic.delete(before=below)
            except ColdStoreError:
                assert member.may_miss
                return
            values = member.values[name]
            member.values[name] = {at: value for at, value in values.items() if at >= below}

    @rule(who=st.integers(0, 9), name=st.sampled_from(TOPICS), pick=st.integers(0, 99))
    def delete_one(self, who: int, name: str, pick: int) -> None:
        """One record that is here goes: what is moved twice is not the same twice."""
        member, store = self._pick(who)
        if name in store.topics() and member.values[name]:
            offset = sorted(member.values[name])[pick % len(member.values[name])]
            try:
                store.topic(name).delete(offsets=[offset])
            except ColdStoreError:
                assert member.may_miss
                return
            member.values[name].pop(offset)

    @rule(who=st.integers(0, 9), name=st.sampled_from(TOPICS))
    def drop(self, who: int, name: str) -> None:
        """A topic of one store goes, and its objects."""
        member, store = self._pick(who)
        if name in store.topics():
            store.drop_topic(name)
            del member.values[name]
            store.compact()

    @rule(who=st.integers(0, 9), is_killed=st.booleans())
    def reopen(self, who: int, is_killed: bool) -> None:
        """As it was left, by a close or by the end of its process."""
        member, store = self._pick(who)
        if is_killed:
            kill(store)
            assert store._lock is not None
            store._lock.close()
        else:
            store.close()
        member.store = None
        self._open(member)

    # --- copies ---------------------------------------------------------------------------

    @precondition(lambda self: len(self.members) < STORES_MAX)
    @rule(who=st.integers(0, 9))
    def back_up(self, who: int) -> None:
        """Another store, which knows that it is a copy; so does the original."""
        member, store = self._pick(who)
        copy = Member(f"backup{len(self.members)}", may_miss=member.may_miss)
        store.backup(copy.path)
        self._add(member, copy)

    @precondition(lambda self: len(self.members) < STORES_MAX)
    @rule(who=st.integers(0, 9))
    def copy(self, who: int) -> None:
        """Another store, as `cp -r` makes it of a closed one: the original does not know."""
        member, store = self._pick(who)
        store.close()
        member.store = None
        copy = Member(f"copy{len(self.members)}", may_miss=True)
        for path, data in self.disk.image().items():
            if path.startswith(member.path + "/"):
                target = copy.path + path.removeprefix(member.path)
                self.disk.makedirs(os.path.dirname(target))
                file = self.disk.open(target, "create")
                file.pwrite([data], 0)
                file.close()
        self._add(member, copy)

    def _add(self, member: Member, copy: Member) -> None:
        copy.values = {name: dict(values) for name, values in member.values.items()}
        self.members.append(copy)

    # --- what holds -----------------------------------------------------------------------

    @invariant()
    def each_reads_its_own(self) -> None:
        """Every record, or an error where an object may be gone; never another one."""
        if not hasattr(self, "members"):
            return
        for member in self.members:
            store = member.store or self._open(member)
            assert set(store.topics()) == set(member.values)
            for name, values in member.values.items():
                self._check(member, store, name, values)

    def _check(self, member: Member, store: Store, name: str, values: dict[int, bytes]) -> None:
        topic = store.topic(name)
        for segment in topic.log.history.chain.segments:
            segment.forget()  # or it would be read from memory
        found: dict[int, bytes | None] = {}
        try:
            for item in topic.read():
                if not isinstance(item, Gap):
                    found[item.offset] = item.value
        except ColdStoreError:
            assert member.may_miss
            values = {at: value for at, value in values.items() if at in found}
        assert found == {at: value for at, value in values.items() if at >= topic.earliest}
        if name == "a":  # nothing is evicted there
            assert len(found) == len(values)

    def teardown(self) -> None:
        """All are closed, and what they have in the cold store is whole."""
        for member in getattr(self, "members", []):
            if member.store is not None:
                member.store.close()


TestColdMachine = ColdMachine.TestCase
TestColdMachine.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "60")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
