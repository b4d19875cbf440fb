"""A call that raised has changed nothing: every operation of queues and groups on a full disk.

Story: an `ack` raised `DiskFullError`, its consumer rolled back what it had done, and the next
commit wrote the acknowledgement all the same: the message was gone. Changes were made in memory
first and, when their commit failed, kept for the next one. The same was true of `nack`, `seek`,
`drop`, of options, and of what `get` took at most once, which was lost at once.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.crash.model import open_store

from stratalog.consume.queue_engine import Deliveries
from stratalog.errors import StorageError
from stratalog.handles.group import Group
from stratalog.handles.queue import Queue
from stratalog.handles.store import Store
from stratalog.model import Delivery, Message
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock


class Scene:
    """A store with queues and groups of which something is held, on a disk that can be full."""

    def __init__(self, durability: str) -> None:
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.durability = durability
        self.open()
        for name in ("jobs", "once", "doomed"):
            self.queue(name).put_many([b"%d" % number for number in range(8)])
        self.orders.append_many([b"%d" % number for number in range(8)])
        self.clock.advance(1.0)
        self.held: list[Message] = self.jobs.get_many(2)
        self.given_back = self.jobs.get(timeout=0)
        self.jobs.nack(self.given_back)
        self.doomed = self.queue("doomed").get(timeout=0)
        self.taken: list[Delivery] = self.group.poll("a", limit=3)
        self.streamed: list[Delivery] = self.stream.poll("a", limit=3)
        self.store.sync()

    def open(self) -> None:
        """Open the store, on a disk that has room."""
        self.faults = FaultFs(self.disk)
        self.store: Store = open_store(self.faults, self.clock)
        durability = self.durability
        self.jobs = self.store.queue("jobs", durability=durability)
        self.once = self.store.queue("once", durability=durability, delivery="at_most_once")
        self.store.queue("doomed", durability=durability, max_deliveries=1)
        if "orders" not in self.store.topics():
            self.store.create_topic("orders", durability=durability)
        self.orders = self.store.topic("orders")
        self.group: Group = self.orders.group("billing")
        self.stream: Group = self.orders.group("audit", mode="stream")

    def queue(self, name: str) -> Queue:
        """One of the queues."""
        return self.store.queue(name)

    def dead(self) -> list[bytes | None]:
        """List the dead letters."""
        return [letter.value for letter in self.queue("doomed").dead.read()]

    def look(self) -> dict[str, Any]:
        """All that users can see, and what decides over what is delivered next."""
        found: dict[str, Any] = {"groups": self.orders.groups()}
        for name in ("jobs", "once", "doomed"):
            queue = self.queue(name)
            stats = queue.stats()  # takes in what was published
            found[name] = _engine_of(queue.engine), stats, queue.options
        # That a consumer was heard of stays true, whatever became of its call.
        found["billing"] = self.group.pending(), replace(self.group.stats(), consumers=0)
        found["audit"] = replace(self.stream.stats(), consumers=0)
        found["dead"] = self.dead()
        found["settled"] = [one.is_settled for one in self.held]
        found["leases"] = [one.lease.deadline for one in self.held]
        found["records"] = self.orders.next_offset, self.queue("jobs").topic.next_offset
        return found


def _engine_of(engine: Any) -> dict[str, Any]:
    assert isinstance(engine, Deliveries)
    with engine.lock:
        engine.open_inbox()
        waiting = {priority: sorted(bits) for priority, bits in engine.waiting().items()}
        deliverable = {priority: sorted(bits) for priority, bits in engine.deliverable().items()}
    pending = {
        offset: (lease.consumer, lease.deadline, lease.delivery_count, lease.serial)
        for offset, lease in sorted(engine.state.pending.items())
    }
    assert not engine.state.settling, "set aside, and nothing is under way"
    return {
        "pending": pending, "waiting": waiting, "deliverable": deliverable,
        "delayed": sorted(engine.state.delays.offsets().tolist()),
    }  # fmt: skip


def _lasting(look: dict[str, Any]) -> dict[str, Any]:
    """Collect the visible state that a restart has to keep."""
    found = dict(look)
    for name in ("jobs", "once", "doomed"):
        engine, stats, options = look[name]
        pending = engine["pending"]
        # Which of those that are pending could be delivered now is found out by the next call.
        found[name] = (pending, engine["waiting"], engine["delayed"], options)
        found[name] += (stats.dead, stats.floor, stats.next_offset, stats.consumed)
    pending, stats = look["billing"]
    found["billing"] = pending, stats.lag, stats.floor, stats.consumed
    found["audit"] = look["audit"].lag, look["audit"].floor
    return found


def _batch(scene: Scene) -> None:
    with scene.store.batch() as batch:
        batch.topic("orders").append(b"new")
        batch.queue("jobs").put(b"new", dedup_id="new")
        batch.queue("jobs").ack(scene.held[0])
        batch.queue("jobs").nack(scene.held[1], delay=5.0)
        batch.group("orders", "billing").ack(scene.taken)
        batch.group("orders", "audit").ack(scene.streamed)


def _die(scene: Scene) -> None:
    """Give a message back once too often: it is given back, whatever becomes of the letter."""
    scene.doomed.nack(reason="no")


OPERATIONS: dict[str, Callable[[Scene], object]] = {
    "ack": lambda scene: scene.jobs.ack(scene.held[0]),
    "ack many": lambda scene: scene.jobs.ack(scene.held),
    "nack": lambda scene: scene.jobs.nack(scene.held[0]),
    "nack with a delay": lambda scene: scene.jobs.nack(scene.held, delay=5.0),
    "nack the last time": _die,
    "touch": lambda scene: scene.jobs.touch(scene.held, lease=99.0),
    "put": lambda scene: scene.jobs.put(b"new"),
    "put with an id": lambda scene: scene.jobs.put(b"new", priority=3, dedup_id="new"),
    "put many": lambda scene: scene.jobs.put_many([b"new", b"newer"]),
    "get": lambda scene: scene.jobs.get(timeout=0),
    "get many": lambda scene: scene.jobs.get_many(3),
    "get at most once": lambda scene: scene.once.get(timeout=0),
    "get many at most once": lambda scene: scene.once.get_many(3),
    "seek": lambda scene: scene.jobs.seek(0),
    "purge": lambda scene: scene.jobs.purge(),
    "options": lambda scene: scene.store.queue("jobs", lease=5.0, max_deliveries=9),
    "a new queue": lambda scene: scene.store.queue("new"),
    "poll": lambda scene: scene.group.poll("b", limit=2),
    "group ack": lambda scene: scene.group.ack(scene.taken),
    "group ack by offset": lambda scene: scene.group.ack([0, 1]),
    "group nack": lambda scene: scene.group.nack(scene.taken, delay=5.0),
    "group touch": lambda scene: scene.group.touch(scene.taken, lease=99.0),
    "claim": lambda scene: scene.group.claim("b", idle=0.0),
    "heartbeat": lambda scene: scene.group.heartbeat("a", lease=99.0),
    "leave": lambda scene: scene.group.leave("a"),
    "group seek": lambda scene: scene.group.seek(0),
    "stream ack": lambda scene: scene.stream.ack(scene.streamed),
    "stream seek": lambda scene: scene.stream.seek(5),
    "a new group": lambda scene: scene.orders.group("new"),
    "drop": lambda scene: scene.group.drop(),
    "batch": _batch,
}
MAY_NOT_WRITE = {"touch", "leave", "heartbeat", "group touch"}
"""Operations that leave their writing to the next commit, in every class."""


def _fill(scene: Scene, operation: str, call: int) -> None:
    scene.faults.add(Fault(operation=operation, call=call, error=errno.ENOSPC, always=True))


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_call_that_raised_has_changed_nothing(name: str, durability: str) -> None:
    """Whatever write finds the disk full: now, with what follows, and after a restart."""
    raised = 0
    for operation in ("pwrite", "preallocate"):
        for call in range(1, 5):
            scene = Scene(durability)
            before = scene.look()
            _fill(scene, operation, call)
            try:
                OPERATIONS[name](scene)
            except StorageError:  # another error is no answer to a full disk
                raised += 1
            else:
                scene.faults.clear()
                scene.store.close()
                continue
            scene.faults.clear()
            note = f"{name} with {operation} {call} failing"
            assert scene.look() == before, f"{note}: changed, though it raised"
            _shake(scene)
            assert _lasting(scene.look()) == _lasting(before), f"{note}: takes effect later"
            scene.store.close()
            scene.open()
            assert _lasting(scene.look()) == _lasting(before), f"{note}: after a restart"
            scene.store.close()
    if durability == "fsync" and name not in MAY_NOT_WRITE:
        assert raised, "the disk was full, and the call did not find out"


def _shake(scene: Scene) -> None:
    """Have everything written that waits to be."""
    scene.store.topic("other").append(b"some commit")
    scene.group.join("another")
    scene.store.sync()
    scene.store.snapshot()


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_call_that_failed_on_a_full_disk_works_once_there_is_room(
    name: str, durability: str
) -> None:
    """It comes to what it would have come to the first time, also after a restart."""
    untouched, tried = Scene(durability), Scene(durability)
    _fill(tried, "pwrite", 1)
    is_done = True
    try:
        OPERATIONS[name](tried)
    except StorageError:
        is_done = False
    tried.faults.clear()
    if not is_done:
        OPERATIONS[name](tried)
    OPERATIONS[name](untouched)
    for scene in (untouched, tried):
        with contextlib.suppress(StorageError):  # of class `disk` it is told by the next call
            scene.store.sync()
        scene.store.sync()
    assert _lasting(tried.look()) == _lasting(untouched.look())
    for scene in (untouched, tried):
        scene.store.close()
        scene.open()
    assert _lasting(tried.look()) == _lasting(untouched.look())
    for scene in (untouched, tried):
        scene.store.close()


@pytest.mark.parametrize("name", ["ack", "ack many", "get at most once", "batch"])
def test_a_snapshot_never_has_what_failed(name: str) -> None:
    """A snapshot that is made while the disk is full, and after it, knows the old state."""
    scene = Scene("fsync")
    before = scene.look()
    _fill(scene, "pwrite", 1)
    with pytest.raises(StorageError):
        OPERATIONS[name](scene)
    scene.faults.clear()
    scene.store.snapshot()
    scene.store.close()
    scene.open()
    assert _lasting(scene.look()) == _lasting(before)
    scene.store.close()
