"""Stores to be damaged, on a disk in memory, and what must be left of them."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from tests.crash.model import ROOT, Session, kill, open_store

from stratalog.model import Gap, Record
from stratalog.testing import FakeDisk, ManualClock
from stratalog.tools.repair import repair
from stratalog.tools.report import Report
from stratalog.tools.verify import verify

Image = dict[str, bytes]
Sent = dict[str, list[bytes | None]]
"""Values by topic and offset."""


def disk_of(image: Image, crash_after: int | None = None) -> FakeDisk:
    """A disk with these files, all of them durable."""
    disk = FakeDisk()
    for path, data in image.items():
        disk.makedirs(posixpath.dirname(path))
        file = disk.open(path, "create")
        file.pwrite([data], 0)
        file.fdatasync()
        file.close()
        disk.sync_dir(posixpath.dirname(path))
    disk.operations = 0
    disk.crash_after = crash_after
    return disk


def build(work: Callable[[Session], None], *, close: bool) -> tuple[Image, Sent]:
    """Do some work on a store, close it or kill it, and take its files."""
    session = Session(FakeDisk(), ManualClock())
    work(session)
    if close:
        session.store.close()
    else:
        session.store.sync()
        kill(session.store)
    image = {path: data for path, data in session.disk.image().items() if "/lock" not in path}
    sent: Sent = {
        name: [value for value, _, _ in model.sent] for name, model in session.topics.items()
    }
    return image, sent


def log_only(session: Session) -> None:
    """Records that are in the log alone, over several files and two shards."""
    session.open(shards=2)
    for number in range(30):
        session.append_many("orders", [b"order %d.%d" % (number, n) * 30 for n in range(3)])
        session.append("refunds", b"refund %d" % number)


def segments(session: Session) -> None:
    """Sealed segments, an open one, a snapshot, and a log after all of them."""
    session.open(shards=1)
    session.create("orders", segment_records=20)
    session.create("packed", compression="zstd", segment_records=15)
    for number in range(4):
        session.append_many("orders", [b"order %d.%d" % (number, n) for n in range(12)])
        session.append_many("packed", [b"packed %d " % number * 30] * 7)
        session.checkpoint()
    session.snapshot()
    for number in range(4):
        session.append("orders", b"later %d" % number)
        session.append("packed", b"later %d" % number, key=b"k", tag="t")


def given_up(session: Session) -> None:
    """The log was released after snapshots: segments alone have what is old."""
    session.open(shards=2)
    session.create("orders", segment_records=25)
    for number in range(12):
        session.append_many("orders", [b"order %d.%d " % (number, n) * 40 for n in range(6)])
        session.append("refunds", b"refund %d " % number * 60)
        session.snapshot()
    for number in range(3):
        session.append("orders", b"later %d" % number)
        session.append("refunds", b"later %d" % number)


WORK = [log_only, segments, given_up]


def check_readable(disk: FakeDisk, sent: Sent) -> int:
    """Open a repaired store and append to it; returns how many records are gone.

    Everything that is returned must be what was sent, and everything else an explicit gap.
    """
    store = open_store(disk, ManualClock(), shards=1)
    assert store.damage is None, store.damage
    gone = 0
    names = set(store.topics())
    for id, (name, values) in enumerate(sent.items(), 1):  # ids are given in this order
        if name not in names:
            name = f"recovered-{id}"
        if name not in names:
            gone += len(values)  # nothing of it is left
            continue
        topic = store.topic(name)
        following = 0
        for item in topic.read():
            if isinstance(item, Gap):
                assert item.first == following
                assert item.reason == "damaged", item
                following = item.last + 1
                gone += item.last + 1 - item.first
            else:
                assert isinstance(item, Record)
                assert item.offset == following
                assert item.value == values[item.offset]
                following += 1
        gone += len(values) - following
        assert topic.append(b"goes on") == topic.next_offset - 1
    store.close()
    return gone


def check_repair(image: Image, sent: Sent) -> tuple[Report, int]:
    """Repair, and hold the outcome against all that is promised; returns how much is gone."""
    disk = disk_of(image)
    before = disk.image()
    plan = repair(ROOT, dry_run=True, fs=disk, clock=ManualClock())
    assert disk.image() == before, "a dry run changed something"
    report = repair(ROOT, fs=disk, clock=ManualClock())
    assert [action.kind for action in plan.actions] == [action.kind for action in report.actions]
    assert report.ok, str(report)
    after = {path: data for path, data in disk.image().items() if not path.endswith("/lock")}
    verified = verify(ROOT, fs=disk)
    assert verified.ok, str(verified)
    again = repair(ROOT, fs=disk, clock=ManualClock())
    assert again.actions == [], str(again)
    assert after == {path: data for path, data in disk.image().items() if "/lock" not in path}
    return report, check_readable(disk, sent)
