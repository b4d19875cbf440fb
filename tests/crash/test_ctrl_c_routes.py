"""Ctrl-C at any moment of making, changing or running a route: all of it or nothing, and once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.handles.store import Store
from stratalog.testing import FakeDisk, ManualClock
from tests.crash.ctrl_c import moments
from tests.crash.model import kill, open_store
from tests.crash.test_ctrl_c_upkeep import OutsideOfTheDisk

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

VALUES: list[bytes | None] = [b"%d" % number for number in range(6)]


def make(store: Store) -> None:
    """Make a route."""
    store.route("orders", "copy")


def pause(store: Store) -> None:
    """Pause a route that is there."""
    store.route("orders", "copy").pause()


def drop(store: Store) -> None:
    """Drop a route that is there."""
    store.route("orders", "copy").drop()


def forward(store: Store) -> None:
    """Have the records forwarded."""
    assert store._upkeep is not None
    store._upkeep.forwarder.run()


def check(store: Store) -> None:
    """There is one route at most, and with it every record comes once."""
    assert store.damage is None
    routes = store.routes()
    assert len(routes) <= 1
    before = store.topic("copy").read_values() if "copy" in store.topics() else []
    assert before in ([], VALUES)
    route = store.route("orders", "copy")
    assert not routes or route.stats().forwarded == len(before)
    expected = VALUES if routes else before + VALUES
    route.resume()
    forward(store)
    assert store.topic("copy").read_values() == expected
    store.topic("orders").append(b"next")
    forward(store)
    assert store.topic("copy").read_values() == [*expected, b"next"]
    assert route.lag == 0


@pytest.mark.parametrize("action", [make, pause, drop, forward], ids=lambda one: one.__name__)
def test_an_interrupted_call_is_done_or_not(action: Callable[[Store], None]) -> None:
    """In the store that goes on, and in the one that the next process finds."""
    for at in moments(37, 3):
        disk, clock = FakeDisk(), ManualClock()
        store = open_store(disk, clock, shards=2)
        store.topic("orders").append_many([b"%d" % number for number in range(6)])
        store.topic("copy")
        if action is not make:
            store.route("orders", "copy")
        ctrl_c = OutsideOfTheDisk(at)
        ctrl_c.run(lambda: action(store))  # noqa: B023  # called at once
        after = open_store(disk.crash(at), clock, shards=2)
        check(after)
        kill(after)
        check(store)
        kill(store)
        again = open_store(disk.crash(0, damage="keep"), clock, shards=1)
        assert again.topic("copy").read_values()[-1] == b"next"
        assert again.routes()[0].lag == 0
        kill(again)
        if not ctrl_c.came:
            break
