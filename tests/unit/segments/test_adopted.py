"""Segments that were adopted and whose story goes on: deletes, faults and other files meanwhile."""

from __future__ import annotations

from tests.crash.model import Session, kill, open_store

from stratalog.testing import Crashed, FakeDisk, ManualClock


def test_what_was_adopted_and_deleted_in_the_middle_of_the_log_is_not_missed() -> None:
    """The frames around it were still in the log, below the floor, with a hole between them.

    A store that was closed cleanly was damaged when it was opened again.
    """
    session = Session(FakeDisk(), ManualClock())
    session.open(shards=1)
    session.append("t", b"before")
    session.publish("w", 1, t=[b"adopted"])
    session.adopt(upkeep=False)
    session.append("t", b"behind")
    session.store.topic("t").delete(before=2)
    session.reopen()
    assert session.store.damage is None
    assert session.store.topic("t").read_values() == [b"behind"]
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
