"""Ctrl-C at any moment of a table's calls: a change is made or not, and conditions see which."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stratalog.handles.store import Store
from stratalog.state import table_projection
from stratalog.testing import FakeDisk, ManualClock
from tests.crash.ctrl_c import moments
from tests.crash.model import kill, open_store
from tests.crash.test_ctrl_c_upkeep import OutsideOfTheDisk

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

BEFORE = {"k": b"old", "n": b"5", "short": b"lived"}


def put(store: Store) -> None:
    """Put a key."""
    store.table("t").put("k", b"new")


def put_if_version(store: Store) -> None:
    """Put a key on a condition that holds."""
    store.table("t").put("k", b"new", if_version=0)


def put_many(store: Store) -> None:
    """Put two keys at once."""
    store.table("t").put_many({"k": b"new", "j": b"new"})


def delete(store: Store) -> None:
    """Delete a key."""
    store.table("t").delete("k")


def add(store: Store) -> None:
    """Count."""
    store.table("t").add("n", 10)


def batch(store: Store) -> None:
    """Change two tables and a topic, which are in several shards."""
    with store.batch() as batch:
        batch.table("t").add("n", 10)
        batch.table("u").add("n", 10)
        batch.topic("events").append(b"10")


def expire(store: Store) -> None:
    """Delete what has expired."""
    store.table("t").expire()


def read(store: Store) -> None:
    """Read a key, which moves committed rows into the state."""
    assert store.table("t").get("k") == b"old"


def snapshot(store: Store) -> None:
    """Write the state to its file."""
    store.snapshot()


AFTER: dict[Callable[[Store], None], dict[str, bytes]] = {
    put: BEFORE | {"k": b"new"},
    put_if_version: BEFORE | {"k": b"new"},
    put_many: BEFORE | {"k": b"new", "j": b"new"},
    delete: {"n": b"5", "short": b"lived"},
    add: BEFORE | {"n": b"15"},
    batch: BEFORE | {"n": b"15"},
    expire: {"k": b"old", "n": b"5"},
    read: BEFORE,
    snapshot: BEFORE,
}


def check(store: Store, after: dict[str, bytes], *, is_batch: bool) -> dict[str, bytes]:
    """All of the change is there or nothing, in every view of it, and conditions agree."""
    assert store.damage is None
    store.sync()  # a change that entered the log without an answer to its caller is made now
    table, other = store.table("t"), store.table("u")
    found = {str(key): value for key, value in table.scan()}
    assert found in (BEFORE, after), found
    assert len(table) == len(found)
    for key, value in found.items():
        entry = table.entry(key)
        assert entry is not None
        assert (entry.value, table.get(key)) == (value, value)
    is_done = store.topic("events").next_offset == 1
    assert not is_batch or is_done == (found["n"] == b"15") == (other["n"] == b"15")
    assert table.add("n", 1) == int(found["n"]) + 1
    newest = table.put("last", b"1", if_absent=True)
    assert table.put("last", b"2", if_version=newest) == newest + 1
    expected = found | {"n": b"%d" % (int(found["n"]) + 1), "last": b"2"}
    assert dict(table.scan()) == expected
    store.rebuild("t")
    assert dict(table.scan()) == expected
    return expected


@pytest.mark.parametrize("action", AFTER, ids=lambda one: one.__name__)
def test_an_interrupted_call_of_a_table_is_done_or_not(
    action: Callable[[Store], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the store that goes on, and in the one that the next process finds."""
    monkeypatch.setattr(table_projection, "_CHANGES_MIN", 2)
    monkeypatch.setattr(table_projection, "_REST_SECONDS", 0.0)
    is_batch = action is batch
    for at in moments(199 if action is snapshot else 97, 3):
        disk, clock = FakeDisk(), ManualClock()
        store = open_store(disk, clock, shards=3)
        table = store.table("t")
        table.put_many({"k": b"old", "n": b"5"})
        store.table("u").put("n", b"5")
        store.topic("events")
        if action is expire:
            table.put("short", b"lived", ttl=5.0)
            clock.advance(4.0)
            assert dict(table.scan()) == BEFORE
        else:
            table.put("short", b"lived")
        ctrl_c = OutsideOfTheDisk(at)
        if action is expire:
            clock.advance(1.0)
        ctrl_c.run(lambda: action(store))  # noqa: B023  # called at once
        after = AFTER[action]
        crashed = open_store(disk.crash(at), clock, shards=2)
        check(crashed, after, is_batch=is_batch)
        kill(crashed)
        expected = check(store, after, is_batch=is_batch)
        kill(store)
        again = open_store(disk.crash(0, damage="keep"), clock, shards=1)
        assert dict(again.table("t").scan()) == expected
        kill(again)
        if not ctrl_c.came:
            break
