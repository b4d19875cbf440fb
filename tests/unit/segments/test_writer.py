"""Writing segments: batches, sync, seal, and what a crash leaves of each."""

from __future__ import annotations

import errno

import pytest
from tests.unit.segments.files import NOW, TOPIC, block, offsets, sealed, writer

from stratalog.errors import SyncFailedError
from stratalog.format.names import segment_name, topic_path
from stratalog.format.segment import FOOTER_BYTES, HEADER_BYTES, INDEX_BYTES, State
from stratalog.segments.pool import SegmentPool
from stratalog.segments.writer import SegmentWriter, latest, put_in_place
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, MonitorFs

ROOT = "/data"
OPEN = f"{topic_path(ROOT, TOPIC)}/{segment_name(0, '.open')}"
SEG = f"{topic_path(ROOT, TOPIC)}/{segment_name(0)}"


def test_a_sealed_segment_says_what_it_holds() -> None:
    """Its summary is what a look into its file gives."""
    disk = FakeDisk()
    one = writer(disk, ROOT)
    for base in (0, 10, 30):
        one.append(block(base))
    summary = one.seal(50, NOW + 99)
    assert list(disk.image()) == [SEG]
    assert summary.bytes == len(disk.image()[SEG])
    assert summary.bytes == one.position + 3 * INDEX_BYTES + FOOTER_BYTES
    assert (summary.first_offset, summary.end_offset, summary.records) == (0, 50, 30)
    assert (summary.min_timestamp, summary.max_timestamp) == (NOW, NOW + 39)
    assert (summary.created_at, summary.state) == (NOW, State.SEALED)
    assert SegmentPool(disk, ROOT).summarise(TOPIC, 0) == summary


def test_a_segment_without_a_record_can_be_sealed() -> None:
    """It answers for its offsets, with nothing."""
    disk = FakeDisk()
    summary = writer(disk, ROOT).seal(40, NOW)
    assert summary.bytes == HEADER_BYTES + FOOTER_BYTES
    assert (summary.end_offset, summary.records, summary.expires_at) == (40, 0, 0)
    segment = SegmentPool(disk, ROOT).segment(TOPIC, summary)
    assert offsets(segment) == []
    assert segment.offset_at(NOW) == 40


def test_an_open_segment_goes_on_where_it_stopped() -> None:
    """After a restart the rest is added, and it is one segment."""
    disk = FakeDisk()
    one = writer(disk, ROOT)
    one.append(block(0))
    one.sync()
    summary = one.summary(10)
    index = SegmentPool(disk, ROOT).segment(TOPIC, summary).load().index
    two = SegmentWriter(disk, topic_path(ROOT, TOPIC), TOPIC, 0, NOW)
    two.resume(summary, index)
    two.append(block(10))
    final = two.seal(20, NOW)
    assert (final.records, final.min_timestamp, final.max_timestamp) == (20, NOW, NOW + 19)
    assert offsets(SegmentPool(disk, ROOT).segment(TOPIC, final)) == list(range(20))


def test_a_file_left_by_a_crash_is_replaced() -> None:
    """Nothing of it shines through."""
    disk = FakeDisk()
    for _ in range(2):
        one = writer(disk, ROOT)
        one.append(block(0, 50))
    assert len(disk.image()[OPEN]) == one.position


def test_what_a_failed_attempt_left_behind_is_cut_off() -> None:
    """A sealed file ends with its footer."""
    disk = FakeDisk()
    one = writer(disk, ROOT)
    one.append(block(0))
    one.file.pwrite([b"left over" * 1000], one.position)
    assert one.seal(10, NOW).bytes == len(disk.image()[SEG])


def test_a_rewritten_segment_takes_the_place_of_the_one_before() -> None:
    """It is written under another name until it is whole."""
    disk = FakeDisk()
    sealed(disk, ROOT)
    one = writer(disk, ROOT, suffix=".tmp")
    one.append(block(20))
    assert sorted(disk.image()) == [SEG, SEG.replace(".seg", ".tmp")]
    summary = one.seal(50, NOW)
    assert list(disk.image()) == [SEG]
    assert offsets(SegmentPool(disk, ROOT).segment(TOPIC, summary)) == list(range(20, 30))


def test_a_segment_that_syncs_keeps_its_word() -> None:
    """The monitor hears no promise of bytes or of a name that a crash could take."""
    monitor = MonitorFs(FakeDisk())
    one = writer(monitor, ROOT)
    for base in (0, 10):
        one.append(block(base))
        one.sync()
    one.seal(20, NOW)
    monitor.check()


@pytest.mark.parametrize("damage", ["random", "drop", "keep"])
def test_a_crash_anywhere_leaves_what_was_synced(damage: str) -> None:
    """And a sealed name only on a whole file: at every operation, many times."""
    operations = 1
    after = 0
    while after < operations:
        disk = FakeDisk(crash_after=after)
        synced = 0
        try:
            one = writer(disk, ROOT)
            one.append(block(0))
            one.append(block(10))
            one.sync()
            synced = one.position
            one.append(block(20))
            one.seal(30, NOW)
        except Crashed:
            operations = after + 2
        for seed in range(5):
            image = disk.crash(seed, damage)  # type: ignore[arg-type]
            names = image.listdir(topic_path(ROOT, TOPIC))
            pool = SegmentPool(image, ROOT)
            if segment_name(0) in names:
                segment = pool.segment(TOPIC, pool.summarise(TOPIC, 0))
                assert offsets(segment) == list(range(30))
            elif synced:
                durable = one.summary(20)._replace(bytes=synced, records=20)
                assert offsets(pool.segment(TOPIC, durable)) == list(range(20))
        after += 1
    assert after >= 8


def test_a_sync_that_fails_is_said_so() -> None:
    """With the file, and that the log has it all."""
    faults = FaultFs(FakeDisk(), [Fault(operation="fdatasync", error=errno.EIO)])
    one = writer(faults, ROOT)
    with pytest.raises(SyncFailedError, match=f"{OPEN}: sync failed.*the log has it all"):
        one.sync()


def test_a_sync_that_fails_while_a_segment_gets_its_place_is_said_so() -> None:
    """With the file that has it all, which stays where it was and can be put in place again."""
    faults = FaultFs(FakeDisk())
    one = writer(faults, ROOT)
    one.append(block(0))
    summary = one.seal(10, NOW)
    assert one.footer is not None
    target = topic_path(ROOT, 8)
    faults.add(Fault(operation="fdatasync", error=errno.EIO))
    with pytest.raises(SyncFailedError, match=f"{SEG}: sync failed.*this file has it all"):
        put_in_place(faults, SEG, target, one.footer, summary.bytes)
    assert faults.listdir(topic_path(ROOT, TOPIC)) == [segment_name(0)]
    put_in_place(faults, SEG, target, one.footer, summary.bytes)
    assert faults.listdir(topic_path(ROOT, TOPIC)) == []
    assert faults.listdir(target) == [segment_name(0)]


def test_a_segment_that_cannot_be_synced_is_not_sealed() -> None:
    """Its name stays that of an open one."""
    faults = FaultFs(FakeDisk())
    one = writer(faults, ROOT)
    faults.add(Fault(operation="fdatasync"))
    with pytest.raises(SyncFailedError):
        one.seal(10, NOW)
    assert faults.listdir(topic_path(ROOT, TOPIC)) == [segment_name(0, ".open")]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [(-1, -1, -1), (-1, 0, 0), (0, -1, 0), (-1, 5, 5), (5, 0, 0), (0, 5, 0), (5, 9, 9), (9, 5, 9)],
)
def test_the_later_expiry_wins_and_never_beats_all(one: int, other: int, expected: int) -> None:
    """No record yet is no opinion."""
    assert latest(one, other) == expected


def test_a_segment_expires_with_its_last_record() -> None:
    """Unless one of its batches has a record that never does."""
    disk = FakeDisk()
    one = writer(disk, ROOT)
    one.append(block(0, expires_at=NOW + 500))
    one.append(block(10, expires_at=NOW + 300))
    assert one.summary(20).expires_at == NOW + 500
    one.append(block(20))
    assert one.seal(30, NOW).expires_at == 0
