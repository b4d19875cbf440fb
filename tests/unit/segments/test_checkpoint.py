"""Checkpoints that are cut short: the next one goes on from what is there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import pytest
from tests.crash.model import open_store
from tests.unit.segments.files import Interrupted
from tests.unit.segments.topics import check, fill

from stratalog.handles.store import Store
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock


def failing(operation: str) -> tuple[FakeDisk, FaultFs]:
    """A disk whose operation in a topic's directory fails once, or is the last before Ctrl-C."""
    disk = FakeDisk()
    if operation == "failed sync_dir":
        return disk, FaultFs(disk)
    return disk, Interrupted(disk)


def arm(fs: FaultFs, operation: str) -> None:
    """Have it happen from now on."""
    if isinstance(fs, Interrupted):
        fs.operation, fs.part = operation, "/topics/"
    else:
        fs.add(Fault(operation="sync_dir", path_contains="/topics/"))


def try_checkpoint(store: Store) -> None:
    """A checkpoint that is cut short."""
    with contextlib.suppress(OSError, KeyboardInterrupt):
        store.checkpoint()
        raise AssertionError("nothing cut it short")


def check_reopened(disk: FakeDisk, living: Iterable[int]) -> None:
    """The store is whole, and has these records."""
    with open_store(disk, ManualClock(), shards=1) as store:
        assert store.damage is None
        check(store.topic("t"), living)


WAYS = pytest.mark.parametrize("operation", ["failed sync_dir", "sync_dir", "rename"])


@WAYS
def test_a_segment_whose_sealing_was_cut_short_is_not_written_to(operation: str) -> None:
    """It had its lasting name, and the next checkpoint wrote after its footer.

    All of the open segment was deleted, so it was sealed outside of what begins again from what is
    durable; the log was released after the next snapshots, and acknowledged records with it.
    """
    disk, fs = failing(operation)
    store = open_store(fs, ManualClock(), shards=1)
    topic = store.topic("t")
    fill(topic, 4)
    store.checkpoint()
    topic.delete(before=4)
    arm(fs, operation)
    try_checkpoint(store)
    check(topic, [])
    fill(topic, 2)
    store.checkpoint()
    store.snapshot()
    store.snapshot()
    check(topic, [4, 5])
    store.close()
    check_reopened(disk, [4, 5])


@WAYS
@pytest.mark.parametrize("begun", [0, 4])
def test_a_checkpoint_that_was_cut_short_while_it_sealed_goes_on(
    operation: str, begun: int
) -> None:
    """Every later one failed, because the open segment was not found any more."""
    disk, fs = failing(operation)
    store = open_store(fs, ManualClock(), shards=1)
    topic = store.create_topic("t", segment_records=6)
    if begun:
        fill(topic, begun)
        store.checkpoint()
    fill(topic, 8 - begun)
    arm(fs, operation)
    try_checkpoint(store)
    check(topic, range(8))
    store.checkpoint()
    check(topic, range(8))
    assert topic.stats().frames == 0
    store.close()
    check_reopened(disk, range(8))


def test_what_was_sealed_is_found_also_if_the_next_attempt_would_cut_otherwise() -> None:
    """Two files began at the same offset: the sealed one was preferred, and ended too early."""
    disk, fs = failing("failed sync_dir")
    store = open_store(fs, ManualClock(), shards=1)
    topic = store.create_topic("t", segment_records=6)
    fill(topic, 8)
    arm(fs, "failed sync_dir")
    try_checkpoint(store)
    topic.delete(before=4)  # what is left does not fill a segment
    store.checkpoint()
    store.snapshot()
    store.snapshot()
    store.close()
    check_reopened(disk, range(4, 8))
