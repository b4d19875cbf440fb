"""Groups as a projection: what frames say is what was done, whatever a crash left of it."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap64
from tests.crash.model import Session, kill, open_store

from stratalog.consume.deadlines import Deadlines
from stratalog.errors import UnsupportedVersionError
from stratalog.format.groups import Changes, Description, GroupText
from stratalog.model import Lease
from stratalog.state.group_state import GroupState
from stratalog.testing import FakeDisk, ManualClock, MonitorFs

NOW = 1_700_000_000_000_000_000


def _changes(
    consumed: list[int], leases: dict[int, Lease] | None = None, seek: int | None = None
) -> Changes:
    return Changes(0, 1, 0, leases or {}, BitMap64(consumed), GroupText(seek=seek))


def test_a_frame_may_be_applied_again_to_what_came_after_it() -> None:
    """As it is when a snapshot is ahead of its number: all that follow come to the same."""
    lease = Lease(NOW, 1, "a", NOW, 1, 0)
    frames = [
        (1, _changes([], {1: lease, 2: lease, 3: lease})),
        (2, _changes([1, 2])),
        (3, _changes([9], {2: lease}, seek=0)),
        (4, _changes([2, 3])),
    ]
    once, twice = GroupState(0, is_queue=False), GroupState(0, is_queue=False)
    for number, changes in frames:
        once.apply(number, changes)
        twice.apply(number, changes)
    for number, changes in frames:
        twice.apply(number, changes)
    assert once.pending == twice.pending == {}
    assert once.number == twice.number == 4


def test_frames_that_a_snapshot_has_are_not_applied() -> None:
    """They are known by their numbers."""
    state = GroupState(0, is_queue=False)
    state.apply(7, _changes([], {5: Lease(NOW, 2, "größe", NOW, 9, 3)}))
    captured = state.capture(12, {3: BitMap64([8])})
    other = GroupState(0, is_queue=False)
    other.restore(captured)
    other.apply(7, _changes([5]))
    assert other.pending == state.pending
    assert (other.number, dict(other.waiting)) == (7, {3: BitMap64([8])})
    other.apply(8, _changes([5]))
    assert other.pending == {}


def test_a_mode_of_a_later_release_is_told() -> None:
    """It is no damage."""
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        GroupState(1, is_queue=False).describe(Description("g", "ring", NOW, {}))


def test_a_snapshot_never_knows_more_than_a_crash_leaves() -> None:
    """Records and acknowledgements that were not synced came back under a state that had them.

    New records then got their offsets, and were taken for consumed.
    """
    session = Session(FakeDisk(), ManualClock())
    session.open(durability="disk", shards=2)
    jobs = session.store.queue("jobs")
    for number in range(6):
        jobs.put(b"old %d" % number, priority=number % 2)
        session.tick()
    assert session.store._log is not None
    assert any(one.files.synced < one.files.position for one in session.store._log.shards)
    jobs.ack(*jobs.get_many(4))
    upkeep = session.store._upkeep
    assert upkeep is not None
    upkeep._snapshot()  # without the checkpoint, whose sync would hide it
    for number in range(3):
        jobs.put(b"lost %d" % number)
    kill(session.store)
    disk = session.disk.crash(0, damage="drop")
    store = open_store(MonitorFs(disk), session.clock, durability="disk", shards=2)
    jobs = store.queue("jobs")
    for number in range(3):
        jobs.put(b"new %d" % number)
    found = sorted(message.value or b"" for message in jobs.get_many(20))
    assert found == [b"new 0", b"new 1", b"new 2", b"old 3", b"old 5"]
    store.close()


def test_deadlines_are_looked_at_no_later_than_they_are_due() -> None:
    """A bit before, those of about one time together; and what is built again is the same."""
    deadlines = Deadlines()
    times = NOW + np.arange(0, 10**9, 7 * 10**6)
    for offset, time in enumerate(times.tolist()):
        deadlines.add(time, offset)
    assert deadlines.count == len(times)
    assert deadlines.next_due <= NOW
    seen: set[int] = set()
    for now in range(NOW, NOW + 10**9, 10**8):
        seen |= set(deadlines.pop_due(now))
        assert {offset for offset, time in enumerate(times.tolist()) if time <= now} <= seen
        assert len(seen) <= np.searchsorted(times, now + (1 << 24)) + 1
    tick = 1 << 24
    leases = {offset: Lease(NOW + offset * tick, 1, "", 0, 0, 0) for offset in range(10)}
    deadlines.rebuild(leases, {3})
    assert sorted(deadlines.pop_due(NOW + 5 * tick)) == [0, 1, 2, 4, 5]
    assert deadlines.next_due == NOW + 6 * tick
