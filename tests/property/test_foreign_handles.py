"""Handles crossed at random: two stores, queues and groups that are dropped and made again.

Story: a message was known by its offset, its number in its queue and the name of its consumer. All
of these are equal for the first messages of any two queues, so `b.ack(message_of_a)` settled the
message of `b` that happened to be there: it was lost. The same went for groups, for batches, and
for a queue that was dropped and made again under the same name.

The model is a list of deliveries, each with the incarnation that made it. An operation with a
delivery that does not hold its record there raises `LeaseLostError` and changes nothing at all.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.aio.queue import unwrap
from stratalog.errors import LeaseLostError
from stratalog.handles.group import Group
from stratalog.handles.queue import Queue
from stratalog.handles.store import Store
from stratalog.model import Delivery
from stratalog.testing import FakeDisk, ManualClock
from tests.crash.model import kill, open_store

STORES = ("one", "two")
NAMES = ("a", "b")
KINDS = ("queue", "group", "stream")
LEASE = 10.0
SECOND = 10**9

Place = tuple[str, str, str]
"""Store, kind, name."""


@dataclasses.dataclass
class Held:
    """A delivery, and what the model knows of it."""

    delivery: Delivery
    place: Place
    incarnation: int
    is_void: bool = False
    """Settled, delivered again, or made void by a seek or a restart."""


class ForeignHandles(RuleBasedStateMachine):
    """Two of everything."""

    @initialize(durability=st.sampled_from(["fsync", "disk"]))
    def begin(self, durability: str) -> None:
        """Two new stores, in two directories of the same name."""
        self.durability = durability
        self.clock = ManualClock()
        self.disks = {name: FakeDisk() for name in STORES}
        self.stores: dict[str, Store] = {}
        self.handles: dict[Place, Queue | Group] = {}
        self.incarnations: dict[Place, int] = {}
        self.held: list[Held] = []
        self.count = 0
        for store in STORES:
            self._open(store)

    def _open(self, store: str) -> None:
        self.stores[store] = open_store(self.disks[store], self.clock)
        for name in NAMES:
            for kind in KINDS:
                self._make((store, kind, name))

    def _make(self, place: Place) -> None:
        """A queue, or a group; the first of its name has the first numbers, as all others do."""
        store, kind, name = place
        if kind == "queue":
            queue = self.stores[store].queue(
                f"queue-{name}", durability=self.durability, lease=LEASE, max_deliveries=0
            )
            if place not in self.incarnations:
                queue.put_many([b"%d" % number for number in range(6)])
            self.handles[place] = queue
        else:
            topic = f"topic-{name}"
            if topic not in self.stores[store].topics():
                made = self.stores[store].create_topic(topic, durability=self.durability)
                made.append_many([b"%d" % number for number in range(6)])
            mode = "stream" if kind == "stream" else "queue"
            self.handles[place] = self.stores[store].topic(topic).group(kind, mode=mode)
        self.incarnations.setdefault(place, 0)

    # --- legitimate -----------------------------------------------------------------------

    places = st.tuples(st.sampled_from(STORES), st.sampled_from(KINDS), st.sampled_from(NAMES))

    @rule(place=places, limit=st.integers(1, 3))
    def take(self, place: Place, limit: int) -> None:
        """Deliver; an earlier consumer no longer has the record."""
        handle = self.handles[place]
        if isinstance(handle, Queue):
            found: list[Any] = handle.get_many(limit)
        else:
            found = handle.poll("consumer", limit=limit, lease=LEASE)
        offsets = {one.offset for one in found}
        for one in self.held:
            if one.place == place and one.delivery.offset in offsets and place[1] != "stream":
                one.is_void = True
        self.held += [Held(one, place, self.incarnations[place]) for one in found]

    @rule(place=places)
    def put(self, place: Place) -> None:
        """More to deliver."""
        store, kind, name = place
        self.count += 1
        topic = f"queue-{name}" if kind == "queue" else f"topic-{name}"
        self.stores[store].topic(topic).append(b"more %d" % self.count)

    @rule(place=places)
    def drop(self, place: Place) -> None:
        """Drop it, and make it again under its name."""
        store, kind, name = place
        if kind == "queue":
            self.stores[store].drop_queue(f"queue-{name}")
            del self.incarnations[place]
        else:
            handle = self.handles[place]
            assert isinstance(handle, Group)
            handle.drop()
        self._forget(place)
        self._make(place)
        self.incarnations[place] = self.count = self.count + 1

    @rule(store=st.sampled_from(STORES), name=st.sampled_from(NAMES))
    def drop_topic(self, store: str, name: str) -> None:
        """Drop a topic with its groups, and make all of it again."""
        self.stores[store].drop_topic(f"topic-{name}")
        for kind in ("group", "stream"):
            self._forget((store, kind, name))
            self._make((store, kind, name))
            self.incarnations[store, kind, name] = self.count = self.count + 1

    @rule(place=places)
    def seek(self, place: Place) -> None:
        """Deliver all of it again: what was delivered before is void."""
        self.handles[place].seek(0)
        self._forget(place)

    @rule(store=st.sampled_from(STORES), is_clean=st.booleans())
    def reopen(self, store: str, is_clean: bool) -> None:
        """Leases outlive a restart, if they are in the log; positions of streams do not."""
        if is_clean:
            self.stores[store].close()
        else:
            kill(self.stores[store])
            self.disks[store] = self.disks[store].crash(0)
        self._open(store)
        for one in self.held:
            if one.place[0] != store or one.is_void:
                continue
            handle = self.handles[one.place]
            lease = handle._state.pending.get(one.delivery.offset)
            is_written = lease is not None and lease.serial == one.delivery.lease.serial
            one.is_void = not is_written

    def _forget(self, place: Place) -> None:
        for one in self.held:
            if one.place == place:
                one.is_void = True

    @rule(seconds=st.sampled_from([1.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        """Leases run out: what is delivered again is another consumer's."""
        self.clock.advance(seconds)

    # --- crossed --------------------------------------------------------------------------

    @rule(
        data=st.data(),
        place=places,
        verb=st.sampled_from(["ack", "nack", "touch", "batch.ack", "batch.nack", "aio"]),
        is_many=st.booleans(),
        is_at_home=st.booleans(),
    )
    def settle(
        self, data: st.DataObject, place: Place, verb: str, is_many: bool, is_at_home: bool
    ) -> None:
        """Settle any delivery at any place, alone or with one that is right."""
        if not self.held:
            return
        held = data.draw(st.sampled_from(self.held))
        if is_at_home:
            place = held.place
        if place[1] == "stream" and verb in ("touch", "batch.nack"):
            return
        chosen = [held]
        rights = [one for one in self.held if self._holds(one, place) and one is not held]
        if is_many and rights:
            chosen.append(rights[0])
        before = self._look()
        is_right = all(self._holds(one, place) or self._is_settled_here(one, place, verb)
                       for one in chosen)  # fmt: skip
        try:
            self._call(place, verb, [one.delivery for one in chosen])
        except LeaseLostError:
            assert not is_right, "a delivery that holds its record was refused"
            assert self._look() == before, "it raised, and changed something"
        else:
            assert is_right, f"{verb} at {place} with a delivery of {held.place}"
            self._settled(chosen, verb, place)

    def _holds(self, one: Held, place: Place) -> bool:
        is_here = one.place == place and one.incarnation == self.incarnations[place]
        return is_here and not one.is_void

    def _is_settled_here(self, one: Held, place: Place, verb: str) -> bool:
        """Settled before by itself: passed over by all but touch, which has nothing to keep."""
        handle = self.handles[place]
        is_here = one.delivery.source.origin == handle.origin and (
            one.delivery.lease.serial <= handle_engine(handle).restored
            or one.delivery.source is handle_engine(handle).source
        )
        return is_here and one.delivery.is_settled and verb != "touch" and place[1] != "stream"

    def _settled(self, chosen: list[Held], verb: str, place: Place) -> None:
        if verb == "touch" or place[1] == "stream":
            return
        for one in chosen:
            one.is_void = True

    def _call(self, place: Place, verb: str, deliveries: list[Delivery]) -> None:
        handle = self.handles[place]
        if not verb.startswith("batch"):
            call: Callable[..., Any] = handle.ack if verb == "aio" else getattr(handle, verb)
            call(unwrap([deliveries]) if verb == "aio" else deliveries)
            return
        store, kind, name = place
        with self.stores[store].batch() as batch:
            part: Any = (
                batch.queue(f"queue-{name}")
                if kind == "queue"
                else batch.group(f"topic-{name}", kind)
            )
            getattr(part, verb.removeprefix("batch."))(deliveries)

    # --- what must always be true ---------------------------------------------------------

    def _look(self) -> dict[Place, Any]:
        found = {}
        for store in self.stores.values():
            store.sync()
        for place, handle in self.handles.items():
            engine = handle_engine(handle)
            with engine.lock:
                engine.open_inbox()
                state = engine.state
                waiting = {p: sorted(bits) for p, bits in engine.waiting().items()}
                found[place] = (
                    dict(state.pending), waiting, state.cursor, state.consumed, state.deliveries,
                    getattr(engine, "position", 0),
                )  # fmt: skip
        return found

    @invariant()
    def nothing_is_set_aside(self) -> None:
        """No operation is under way once all is written, so no record is between two states."""
        if hasattr(self, "handles"):
            self._look()
        for handle in getattr(self, "handles", {}).values():
            assert not handle_engine(handle).state.settling

    def teardown(self) -> None:
        """Leave it as it is."""
        for store in getattr(self, "stores", {}).values():
            kill(store)


def handle_engine(handle: Queue | Group) -> Any:
    """Return the engine of a handle."""
    return handle.engine if isinstance(handle, Queue) else handle.engine()


TestForeignHandles = ForeignHandles.TestCase
TestForeignHandles.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "40")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
