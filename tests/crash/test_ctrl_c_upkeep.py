"""Ctrl-C at any moment of upkeep: the next round goes on, nothing is lost or there twice."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from stratalog.handles.store import Store
from stratalog.testing import FakeDisk, ManualClock
from tests.crash.ctrl_c import CtrlC, moments
from tests.crash.model import Session, kill, open_store

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class OutsideOfTheDisk(CtrlC):
    """As it is on a real one, whose operations are done or not."""

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_globals["__name__"].startswith("stratalog.testing"):
            return None
        return super()._trace(frame, event, argument)


def filled(session: Session) -> None:
    """The open segment becomes full."""
    session.create("t", segment_records=6)
    session.append_many("t", [b"%d" % n for n in range(4)])
    session.checkpoint()
    session.append_many("t", [b"%d more" % n for n in range(5)])


def emptied(session: Session) -> None:
    """All of the open segment is deleted."""
    session.append_many("t", [b"%d" % n for n in range(4)])
    session.checkpoint()
    session.delete("t", before=4)


def adopted(session: Session) -> None:
    """A segment is put in its place, after an open one, and a small one is copied."""
    session.create("t", segment_bytes=4096)
    session.append("t", b"first")
    session.checkpoint()
    session.append("t", b"second")
    session.publish("w", 1, t=[b"%d" % n * 100 for n in range(10)])
    session.publish("w", 2, t=[b"small"])
    session.adopt(upkeep=False)
    session.append("t", b"last")


def expected(session: Session) -> list[bytes | None]:
    """Read the contents of the topic."""
    model = session.topics["t"]
    return [fields[0] for offset, fields in enumerate(model.sent) if offset not in model.deleted]


def check(store: Store, session: Session) -> None:
    """Everything is there once, in order."""
    assert store.damage is None
    assert store.topic("t").read_values() == expected(session)
    assert store.topic("t").next_offset == len(session.topics["t"].sent)


def check_after_a_crash(disk: FakeDisk, session: Session) -> None:
    """Read what the next process finds."""
    again = open_store(disk, session.clock, shards=1)
    check(again, session)
    kill(again)


@pytest.mark.parametrize("prepare", [filled, emptied, adopted], ids=lambda one: one.__name__)
def test_an_interrupted_checkpoint(prepare: Callable[[Session], None]) -> None:
    """Records acknowledged before and after it are there, live and after a crash."""
    for at in moments(41, 3):
        disk, clock = FakeDisk(), ManualClock()
        session = Session(disk, clock, shards=1)
        # Without a monitor: what is promised of a segment is void if Ctrl-C comes before its mark.
        session.store = open_store(disk, clock, shards=1)
        prepare(session)
        ctrl_c = OutsideOfTheDisk(at)
        ctrl_c.run(session.store.checkpoint)
        check_after_a_crash(disk.crash(at), session)
        session.append("t", b"after it")
        session.checkpoint()
        check(session.store, session)
        session.snapshot()
        session.snapshot()
        session.kill()
        check_after_a_crash(disk.crash(at), session)
        if not ctrl_c.came:
            break


def test_an_interrupted_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment that was adopted takes the place of the others in the end, and none before."""
    for at in moments(101, 3):
        disk, clock = FakeDisk(), ManualClock()
        session = Session(disk, clock, shards=1)
        session.store = open_store(disk, clock, shards=1)
        session.create("t", segment_records=4)
        session.append_many("t", [b"%d" % n * 30 for n in range(20)])
        session.checkpoint()
        with monkeypatch.context() as patch:
            patch.setattr(session, "adopt", lambda: None)
            session.replace("t", 0, 8)
        ctrl_c = OutsideOfTheDisk(at)
        ctrl_c.run(session.store.adopt)
        check_after_a_crash(disk.crash(at), session)
        check(session.store, session)
        session.delete("t", offsets=[1, 9])
        session.store.adopt()
        session.store.compact()
        check(session.store, session)
        segments = session.store.topic("t").log.history.chain.segments
        assert [one.first for one in segments] == [0, 8, 12, 16]
        session.kill()
        check_after_a_crash(disk.crash(at), session)
        if not ctrl_c.came:
            break
