"""A state machine for routes: any order of appends, turns, pauses, drops, upkeep and crashes.

The model is the source itself: a destination has what matches below the route's cursor, once and in
order, whatever happened; and a route that is neither paused nor broken catches up.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.handles.route import Route
from stratalog.model import Record
from stratalog.testing import FakeDisk, ManualClock, MonitorFs
from tests.crash.model import kill, open_store

Fields = tuple[bytes | None, str | None, int]

# Source, destination and tag: a chain, a fork, and a destination of class `disk`.
ROUTES: list[tuple[str, str, str | None]] = [
    ("orders", "all", None), ("all", "again", None), ("orders", "some", "x"),
    ("orders", "relaxed", "y"),
]  # fmt: skip
ANY_ROUTE = st.sampled_from(ROUTES)
TAGS = st.sampled_from([None, "x", "y"])
CLASSES = st.sampled_from(["memory", "disk", "fsync"])


class RouteMachine(RuleBasedStateMachine):
    """Routes on a fake disk against what their sources have."""

    @initialize(shards=st.integers(1, 3))
    def begin(self, shards: int) -> None:
        """A new directory."""
        self.disk, self.clock = FakeDisk(), ManualClock()
        self.before: dict[str, list[Fields]] = {}
        """Records that a destination has of routes that were dropped."""
        self.is_paused: set[str] = set()
        self._open(shards)
        self.store.create_topic("orders", segment_records=7)
        self.store.create_topic("relaxed", durability="disk")
        for route in ROUTES:
            self._make(route)

    def _open(self, shards: int) -> None:
        self.monitor = MonitorFs(self.disk)
        self.store = open_store(self.monitor, self.clock, shards=shards)
        assert self.store.damage is None, self.store.damage

    def _make(self, route: tuple[str, str, str | None]) -> Route:
        return self.store.route(route[0], route[1], tag_glob=route[2])

    def _fields(self, name: str, end: int | None = None, tag: str | None = None) -> list[Fields]:
        items = self.store.topic(name).read(0, end)
        found = [item for item in items if isinstance(item, Record)]
        return [(r.value, r.tag, r.timestamp) for r in found if tag in (None, r.tag)]

    # --- what users do --------------------------------------------------------------------

    @rule(values=st.lists(st.binary(max_size=30), min_size=1, max_size=8), tag=TAGS, kind=CLASSES)
    def append_batch(self, values: list[bytes], tag: str | None, kind: str) -> None:
        """A batch with one tag."""
        self.store.topic("orders").append_many(
            [Record(v, tag=tag) for v in values], durability=kind
        )

    @rule(value=st.binary(max_size=1500), tag=TAGS, kind=CLASSES)
    def append(self, value: bytes, tag: str | None, kind: str) -> None:
        """A single record, perhaps a large one."""
        self.store.topic("orders").append(value, tag=tag, durability=kind)

    @rule(route=ANY_ROUTE)
    def pause(self, route: tuple[str, str, str | None]) -> None:
        """A route stands still."""
        self._make(route).pause()
        self.is_paused.add(route[1])

    @rule(route=ANY_ROUTE)
    def resume(self, route: tuple[str, str, str | None]) -> None:
        """A route goes on."""
        self._make(route).resume()
        self.is_paused.discard(route[1])

    @rule(route=st.sampled_from([ROUTES[1], ROUTES[2]]))
    def drop(self, route: tuple[str, str, str | None]) -> None:
        """A route goes, and the next one between its topics forwards everything again."""
        source, destination, tag = route
        cursor = self._make(route).stats().cursor
        self.before.setdefault(destination, []).extend(self._fields(source, cursor, tag))
        self._make(route).drop()
        self._make(route)
        self.is_paused.discard(destination)

    # --- what time and upkeep do ----------------------------------------------------------

    @rule()
    def forward(self) -> None:
        """Every route has a turn, with whatever is synced."""
        assert self.store._upkeep is not None
        self.store._upkeep.forwarder.run()

    @rule()
    def catch_up(self) -> None:
        """Once all is synced, only paused routes lag."""
        assert self.store._upkeep is not None
        for _ in range(2):  # the second link of the chain has new records after the first turn
            self.store.sync()
            self.store._upkeep.forwarder.run()
        for route in self.store.routes():
            if route.destination not in self.is_paused:
                assert route.lag == 0, route.stats()

    @rule(seconds=st.floats(0, 2))
    def tick(self, seconds: float) -> None:
        """The background writer has a turn."""
        self.clock.advance(seconds)
        assert self.store._log is not None
        self.store._log.tick()

    @rule(seconds=st.floats(-500, 500))
    def jump(self, seconds: float) -> None:
        """The clock is set."""
        self.clock.jump(seconds)

    @rule(action=st.sampled_from(["checkpoint", "snapshot", "compact", "sync"]))
    def keep_up(self, action: str) -> None:
        """Records go to segments, and the log is given up."""
        getattr(self.store, action)()

    @rule(shards=st.integers(1, 3))
    def reopen(self, shards: int) -> None:
        """A clean close, and another number of shards."""
        self.store.close()
        self._open(shards)

    @rule(seed=st.integers(0, 1 << 16), shards=st.integers(1, 3))
    def crash(self, seed: int, shards: int) -> None:
        """The machine goes down; what was not durable may be lost."""
        kill(self.store)
        self.disk = self.disk.crash(seed)
        self._open(shards)

    # --- what holds -----------------------------------------------------------------------

    @invariant()
    def every_record_once(self) -> None:
        """A destination has what matches below the cursor, with the times of the source."""
        if not hasattr(self, "store"):
            return
        self.monitor.check()
        for route, (source, destination, tag) in zip(self._routes(), ROUTES, strict=True):
            stats = route.stats()
            state = self.store._replay.routes.get(stats.id)
            assert state is not None
            assert stats.error is None
            assert route.is_paused == (destination in self.is_paused)
            here = self._fields(source, state.cursor, tag)
            expected = self.before.get(destination, []) + here
            found = self._fields(destination)
            assert [one[:2] for one in found] == [one[:2] for one in expected]
            assert all(now >= then for (*_, now), (*_, then) in zip(found, expected, strict=True))
            assert (stats.forwarded, stats.missed) == (len(here), 0)

    def _routes(self) -> list[Route]:
        found = {(one.source, one.destination): one for one in self.store.routes()}
        return [found[source, destination] for source, destination, _ in ROUTES]

    def teardown(self) -> None:
        """Nothing is left over."""
        if hasattr(self, "store"):
            self.store.close()


TestRoutes = RouteMachine.TestCase
TestRoutes.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "20")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
