"""A purge that is cut short anywhere: nothing is lost or back, and the next one finishes it.

The workloads of the sweep crash in purges, too; here the files are searched as well.
"""

from __future__ import annotations

import re
from functools import partial

import pytest

from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.testing import Crashed, FakeDisk, ManualClock
from tests.crash.ctrl_c import moments
from tests.crash.model import Session, check_recovered, kill, open_store
from tests.crash.test_ctrl_c_upkeep import OutsideOfTheDisk
from tests.grep import search_image

PATTERN = rb"person[0-9]{2}"

# About this many crashes in one purge, and ways to lose what was pending.
POINTS = 30

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def filled(disk: FakeDisk) -> Session:
    """A store with persons in the log, in open and sealed segments, half of them deleted."""
    session = Session(disk, ManualClock(), shards=2)
    session.store = open_store(disk, session.clock, shards=2)
    session.create("t", segment_records=8, compression="zstd")
    session.create("keyed", segment_records=8, compact=True)
    for number in range(4):
        for name in ("t", "keyed"):
            session.append_many(
                name,
                [
                    Record(b"person%02d " % n * 20, b"person%02d" % n, tag=f"person{n:02d}")
                    for n in range(5 * number, 5 * number + 5)
                ],
            )
        if number < 3:
            session.checkpoint()
    for n in range(0, 20, 2):
        for name in ("t", "keyed"):
            session.delete(name, key=b"person%02d" % n)
    return session


def check_clean(store: Store, disk: FakeDisk) -> None:
    """Those who were not deleted are there, and the others nowhere, not even after a power cut."""
    store.compact(purge=True)
    wanted = {b"person%02d" % n for n in range(1, 20, 2)}
    for name in ("t", "keyed"):
        values = b" ".join(value or b"" for value in store.topic(name).read_values())
        assert set(re.findall(PATTERN, values)) == wanted
    for image in (disk.image(), disk.durable_image(), disk.crash(7).image()):
        assert search_image(PATTERN, image).keys() == wanted


def test_a_purge_takes_all_of_them_at_once() -> None:
    """Without a crash, so that the search below is known to find what there is."""
    disk = FakeDisk()
    session = filled(disk)
    assert len(search_image(PATTERN, disk.image())) == 20
    check_clean(session.store, disk)
    check_recovered(session.store, session.topics)
    session.kill()


@pytest.mark.parametrize("damage", ["keep", "drop", "random"])
def test_a_crash_in_a_purge(damage: str) -> None:
    """After any file operation of it; the store opens, and the next purge leaves nothing."""
    whole = FakeDisk()
    session = filled(whole)
    before = whole.operations
    session.store.compact(purge=True)
    operations = whole.operations - before
    session.kill()
    crashes = 0
    for point in range(0, operations, max(1, operations // POINTS)):
        disk = FakeDisk(crash_after=before + point)
        session = filled(disk)
        with pytest.raises(Crashed):
            session.store.compact(purge=True)
        session.kill()
        after = disk.crash(point, damage=damage)  # type: ignore[arg-type]
        store = open_store(after, session.clock, shards=2)
        check_recovered(store, session.topics)
        check_clean(store, after)
        kill(store)
        again = open_store(after.crash(1, damage="drop"), session.clock, shards=2)
        check_recovered(again, session.topics)
        kill(again)
        crashes += 1
    assert crashes >= POINTS


def test_an_interrupted_purge() -> None:
    """Ctrl-C at any moment; the same store goes on, and the next purge leaves nothing."""
    for at in moments(2003, 3):
        disk = FakeDisk()
        session = filled(disk)
        ctrl_c = OutsideOfTheDisk(at)
        ctrl_c.run(partial(session.store.compact, purge=True))
        session.append("t", b"goes on")
        check_recovered(session.store, session.topics)
        check_clean(session.store, disk)
        session.kill()
        store = open_store(disk.crash(at), session.clock, shards=2)
        check_recovered(store, session.topics)
        kill(store)
        if not ctrl_c.came:
            break
