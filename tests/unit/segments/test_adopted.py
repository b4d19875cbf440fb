"""Segments that were adopted and whose story goes on: deletes, faults and other files meanwhile."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from tests.crash.model import Session, kill, open_store
from tests.unit.segments.files import Interrupted

from stratalog.format.segment import State
from stratalog.handles.store import Store
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, ManualClock


def test_what_was_adopted_and_deleted_in_the_middle_of_the_log_is_not_missed() -> None:
    """The frames around it were still in the log, below the floor, with a hole between them.

    A store that was closed cleanly was damaged when it was opened again.
    """
    session = Session(FakeDisk(), ManualClock())
    session.open(shards=1)
    session.append("t", b"before")
    session.publish("w", 1, t=[b"adopted"])
    session.adopt(upkeep=False)
    session.append("t", b"after")
    session.store.topic("t").delete(before=2)
    session.reopen()
    assert session.store.damage is None
    assert session.store.topic("t").read_values() == [b"after"]
    session.append("t", b"more")
    session.store.close()


def test_what_was_adopted_and_deleted_is_not_missed_where_it_was_staged() -> None:
    """It had been put in its place, and the crash came before the mark that says so.

    There it was passed over, because it is below the floor, and its old place was empty.
    """
    for point in range(100):
        disk, clock = FakeDisk(), ManualClock()
        session = Session(disk, clock)
        session.open(shards=1)
        session.create("t", segment_bytes=4096)  # with an eighth of that it stays the file it is
        session.publish("w", 1, t=[b"%d" % n * 100 for n in range(10)])
        session.adopt(upkeep=False)
        session.store.topic("t").delete(before=10)
        disk.crash_after = disk.operations + point
        try:
            session.store.checkpoint()
            is_done = True
        except Crashed:
            is_done = False
        session.kill()
        for damage in ("keep", "drop"):
            store = open_store(disk.crash(1, damage), clock, shards=1)
            assert store.damage is None, point
            assert store.topic("t").next_offset == 10
            kill(store)
        if is_done:
            return
    raise AssertionError("the checkpoint never came to its end")


VALUES = [b"%d" % n * 30 for n in range(20)]


def replacing(fs: FaultFs, disk: FakeDisk, *faults: Fault, **options: Any) -> Session:
    """A store with a segment that was adopted in the place of two others, but for what failed."""
    session = Session(disk, ManualClock())
    session.store = open_store(fs, session.clock, shards=1, **options)
    session.create("t", segment_records=4)
    session.append_many("t", VALUES)
    session.checkpoint()
    session.store.topic("t").read_values()  # the job then finds them open, and meets no fault
    for fault in faults:
        fs.add(fault)
    with contextlib.suppress(OSError, KeyboardInterrupt):
        session.replace("t", 0, 8)
        raise AssertionError("it did not fail")
    fs.clear()
    return session


def places(store: Store) -> list[tuple[int, int]]:
    """Where the segments of the topic begin and end."""
    return [(one.first, one.end) for one in store.topic("t").log.history.chain.segments]


NEW = [(0, 8), (8, 12), (12, 16), (16, 20)]
NO_LINKS = Fault(operation="link", path_contains="/topics/", always=True)


@pytest.mark.parametrize(
    "faults",
    [
        [NO_LINKS, Fault(operation="rename", path_contains="/topics/")],
        [Fault(operation="open", path_contains="/incoming/", call=3)],
        [Fault(operation="rename", path_contains="/topics/")],
        [Fault(operation="sync_dir", path_contains="/topics/")],
        [Fault(operation="sync_dir", path_contains="/topics/", call=2)],
        [NO_LINKS, Fault(operation="sync_dir", path_contains="/topics/")],
        [Fault(operation="listdir", path_contains="/topics/")],
        [Fault(operation="unlink", path_contains="/topics/", call=2)],
        [Fault(operation="unlink", path_contains=".seg", call=1)],
    ],
)
def test_an_exchange_that_failed_is_made_up_for(faults: list[Fault]) -> None:
    """It waited for the next manifest, with a chain of files that may be gone already.

    Then a segment was rewritten to what the chain said it was, and half of its records were lost.
    """
    disk = FakeDisk()
    fs = FaultFs(disk)
    session = replacing(fs, disk, *faults)
    topic = session.store.topic("t")
    assert topic.read_values() == VALUES
    topic.delete(offsets=[0, 1])
    session.store.compact()
    assert places(session.store) == NEW
    assert topic.read_values() == VALUES[2:]
    for _ in range(2):
        session.store.close()
        session.store = open_store(disk, session.clock, shards=1)
        assert session.store.damage is None
        assert places(session.store) == NEW
        assert session.store.topic("t").read_values() == VALUES[2:]
    session.store.close()


def test_what_is_to_be_replaced_is_not_moved_before_it_is() -> None:
    """It went to the cold store, then the new one took the place that it had here.

    That has the same first offset: the file was removed, because the cold store had "it".
    """
    disk = FakeDisk()
    fs = FaultFs(disk)
    cold: dict[str, Any] = {"cold": "/cold", "hot_segments": 1}
    session = replacing(fs, disk, Fault(operation="rename", path_contains="/topics/"), **cold)
    fs.add(Fault(operation="rename", path_contains="/topics/", always=True))
    with pytest.raises(OSError, match="error"):
        session.store.compact()
    assert session.store.topic("t").stats().cold_segments == 0
    fs.clear()
    session.store.compact()
    assert places(session.store) == NEW
    assert session.store.topic("t").stats().cold_segments == 3
    for _ in range(2):
        session.store.close()
        session.store = open_store(disk, session.clock, shards=1, **cold)
        assert session.store.damage is None
        assert session.store.topic("t").read_values() == VALUES
        session.store.snapshot()
    session.store.close()


@pytest.mark.parametrize("part", ["/incoming/", "/topics/"])
@pytest.mark.parametrize("operation", ["rename", "sync_dir", "unlink"])
def test_a_segment_that_was_put_in_its_place_when_ctrl_c_came_is_found_there(
    operation: str, part: str
) -> None:
    """It was looked for where it had been staged, by readers and by every later checkpoint."""
    disk, clock = FakeDisk(), ManualClock()
    fs = Interrupted(disk)
    session = Session(disk, clock)
    session.store = open_store(fs, clock, shards=1)
    session.create("t", segment_bytes=4096)
    values = [b"%d" % n * 100 for n in range(10)]
    session.publish("w", 1, t=values)
    session.adopt(upkeep=False)
    fs.operation, fs.part = operation, part
    with contextlib.suppress(KeyboardInterrupt):
        session.store.checkpoint()
    for _ in range(2):
        assert session.store.topic("t").read_values() == values
        session.store.checkpoint()
    session.store.close()
    with open_store(disk, clock, shards=1) as store:
        assert store.damage is None
        assert store.topic("t").read_values() == values


def test_a_segment_of_which_the_cold_store_has_a_part_stays_here() -> None:
    """The cold store has what it replaced first; its first offset is the same, its end is not."""
    disk = FakeDisk()
    session = replacing(FaultFs(disk), disk, Fault(operation="rename", path_contains="/topics/"))
    history = session.store.topic("t").log.history
    old = history.chain.segments[0].summary
    session.store.compact()
    history.note_tier(old._replace(state=State.COLD), "")
    history.prefer_hot(0)
    history.clean_up(0)
    assert places(session.store) == NEW
    assert session.store.topic("t").read_values() == VALUES
    session.store.close()
