"""The pool: which segments are open, how much memory they take, and what is wrong with them."""

from __future__ import annotations

import logging
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.segments.files import NOW, TOPIC, block, offsets, sealed, writer
from xxhash import xxh3_64_intdigest

from stratalog.errors import (
    BadMagicError,
    ColdStoreError,
    CorruptionError,
    FormatError,
    UnsupportedVersionError,
)
from stratalog.format.names import segment_name, topic_path
from stratalog.format.segment import FOOTER_BYTES, HEADER_BYTES, INDEX_BYTES, State
from stratalog.fs import PosixFileSystem
from stratalog.fs import forget_pages as real_forget_pages
from stratalog.segments import pool as pool_module
from stratalog.segments.pool import ColdGate, SegmentPool, _ReadAhead
from stratalog.testing import FakeDisk

ROOT = "/data"
DIRECTORY = topic_path(ROOT, TOPIC)
SEG = f"{DIRECTORY}/{segment_name(0)}"
OPEN = f"{DIRECTORY}/{segment_name(0, '.open')}"


def _write(disk: FakeDisk, position: int, data: bytes, path: str = SEG) -> None:
    file = disk.open(path, "write")
    file.pwrite([data], position)
    file.close()


def _flip(disk: FakeDisk, position: int, path: str = SEG) -> None:
    _write(disk, position, bytes([disk.image()[path][position] ^ 1]), path)


# --- damage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("from_end", [1, 20, FOOTER_BYTES, FOOTER_BYTES + 1, FOOTER_BYTES + 199])
def test_a_damaged_footer_or_index_is_made_again(
    from_end: int, caplog: pytest.LogCaptureFixture
) -> None:
    """All records are read, and a warning says what is wrong with which file."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    _flip(disk, summary.bytes - from_end)
    with caplog.at_level(logging.WARNING, "stratalog"):
        segment = SegmentPool(disk, ROOT).segment(TOPIC, summary)
        assert offsets(segment) == list(range(50))
        assert segment.offset_at(NOW + 31) == 31
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert SEG in caplog.text
    assert "its index was made again" in caplog.text


def test_a_file_cut_behind_its_batches_is_still_read(caplog: pytest.LogCaptureFixture) -> None:
    """At every length that has all of them."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    for size in range(summary.bytes - FOOTER_BYTES - 5 * INDEX_BYTES, summary.bytes, 7):
        copy = disk.crash(0, "keep")
        file = copy.open(SEG, "write")
        file.truncate(size)
        segment = SegmentPool(copy, ROOT).segment(TOPIC, summary)
        assert offsets(segment) == list(range(50))


def test_a_batch_that_is_lost_with_the_footer_is_not_passed_over() -> None:
    """Records after a damaged header are an error that names them, not a hole.

    The index was made again up to the damage, and what was after it read as removed.
    """
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    segment = SegmentPool(disk, ROOT).segment(TOPIC, summary)
    position = segment.load().positions[2]
    _flip(disk, summary.bytes - 1)
    _flip(disk, position + 9)
    expected = f"{SEG}: .*position {position} .topic {TOPIC}, offsets 20 to 49"
    with pytest.raises(CorruptionError, match=expected):
        offsets(SegmentPool(disk, ROOT).segment(TOPIC, summary))
    _flip(disk, HEADER_BYTES + 9)
    with pytest.raises(CorruptionError, match=f"position {HEADER_BYTES} .*offsets 0 to 49"):
        offsets(SegmentPool(disk, ROOT).segment(TOPIC, summary))


def test_a_file_cut_inside_of_its_batches_is_damage() -> None:
    """At any length below, down to nothing; the error names the file."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    for size in range(0, summary.bytes - FOOTER_BYTES - 5 * INDEX_BYTES, 13):
        copy = disk.crash(0, "keep")
        copy.open(SEG, "write").truncate(size)
        with pytest.raises(FormatError, match=SEG):
            offsets(SegmentPool(copy, ROOT).segment(TOPIC, summary))


def test_the_header_counts_when_the_footer_does_not() -> None:
    """Without either, nothing says whose file it is."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    _flip(disk, summary.bytes - 1)
    _flip(disk, 40)
    with pytest.raises(CorruptionError, match=f"{SEG}: segment header checksum"):
        offsets(SegmentPool(disk, ROOT).segment(TOPIC, summary))


def test_a_footer_of_a_newer_version_is_not_damage() -> None:
    """It says to upgrade: making the index again could lose what the new version means."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    foot = bytearray(disk.image()[SEG][-FOOTER_BYTES:])
    struct.pack_into("<I", foot, 76, 2)
    struct.pack_into("<Q", foot, 88, xxh3_64_intdigest(bytes(foot[:-16])))
    _write(disk, summary.bytes - FOOTER_BYTES, bytes(foot))
    pool = SegmentPool(disk, ROOT)
    with pytest.raises(UnsupportedVersionError, match=f"{SEG}: .*upgrade"):
        offsets(pool.segment(TOPIC, summary))
    with pytest.raises(UnsupportedVersionError, match=f"{SEG}: .*upgrade"):
        pool.summarise(TOPIC, 0)


@pytest.mark.parametrize(("topic", "first"), [(8, 0), (TOPIC, 100)])
def test_the_file_of_another_is_not_taken_for_this_one(topic: int, first: int) -> None:
    """Copied to another topic's directory, or to another name."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)._replace(first_offset=first, end_offset=first + 50)
    disk.makedirs(topic_path(ROOT, topic))
    path = f"{topic_path(ROOT, topic)}/{segment_name(first)}"
    disk.rename(SEG, path)
    pool = SegmentPool(disk, ROOT)
    with pytest.raises(CorruptionError, match=f"{path}: segment of topic {TOPIC} from offset 0"):
        pool.summarise(topic, first)
    with pytest.raises(CorruptionError, match=f"{path}: segment of topic {TOPIC} from offset 0"):
        offsets(pool.segment(topic, summary))


def test_a_segment_found_on_disk_is_summarised_or_named() -> None:
    """Damage to its header or its footer is an error with the path."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    pool = SegmentPool(disk, ROOT)
    assert pool.summarise(TOPIC, 0) == summary
    for position in (0, 20, summary.bytes - 50, summary.bytes - 1):
        _flip(disk, position)
        with pytest.raises((BadMagicError, CorruptionError), match=SEG):
            pool.summarise(TOPIC, 0)
        _flip(disk, position)


def test_a_segment_that_is_gone_is_a_file_not_found() -> None:
    """The reader looks again where it went."""
    segment = SegmentPool(FakeDisk(), ROOT).segment(TOPIC, sealed(FakeDisk(), ROOT))
    with pytest.raises(FileNotFoundError):
        segment.load()


# --- open segments ---------------------------------------------------------------------------


def test_an_open_segment_is_read_up_to_what_is_durable() -> None:
    """Later bytes are not looked at, whatever they are."""
    disk = FakeDisk()
    one = writer(disk, ROOT)
    one.append(block(0))
    one.append(block(10))
    summary = one.summary(20)
    one.append(block(20))
    one.file.pwrite([b"torn" * 100], one.position)
    assert offsets(SegmentPool(disk, ROOT).segment(TOPIC, summary)) == list(range(20))


def test_an_open_segment_with_nothing_in_it_is_read_as_nothing() -> None:
    """Its header alone is durable, and that is no damage."""
    disk = FakeDisk()
    summary = writer(disk, ROOT).summary(0)
    assert summary.bytes == HEADER_BYTES
    assert offsets(SegmentPool(disk, ROOT).segment(TOPIC, summary)) == []


def test_damage_to_an_open_segment_names_file_and_position() -> None:
    """Nothing after it can be reached: there is no index to go by."""
    disk = FakeDisk()
    one = writer(disk, ROOT)
    one.append(block(0))
    second = one.position
    one.append(block(10))
    summary = one.summary(20)
    for position in (second, HEADER_BYTES):
        _flip(disk, position + 20, OPEN)
        with pytest.raises(CorruptionError, match=f"{OPEN}: damaged at position {position}"):
            offsets(SegmentPool(disk, ROOT).segment(TOPIC, summary))
    _flip(disk, 20, OPEN)
    with pytest.raises(CorruptionError, match=f"{OPEN}: segment header checksum"):
        offsets(SegmentPool(disk, ROOT).segment(TOPIC, summary))


def test_a_cold_segment_without_a_cold_store_says_so() -> None:
    """And that the rest can be read."""
    disk = FakeDisk()
    pool = SegmentPool(disk, ROOT)
    segment = pool.segment(TOPIC, sealed(disk, ROOT)._replace(state=State.COLD))
    with pytest.raises(ColdStoreError, match=r"not known here.*cold="):
        segment.load()


# --- memory ----------------------------------------------------------------------------------


def test_pages_are_given_back_and_everything_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every few batches, while a reader is in the middle of one."""
    given_back: list[int] = []

    def forget_pages(view: memoryview) -> None:
        given_back.append(len(view))
        real_forget_pages(view)

    monkeypatch.setattr(pool_module, "forget_pages", forget_pages)
    fs = PosixFileSystem()
    pool = SegmentPool(fs, str(tmp_path), resident_bytes_max=1000)
    segments = [pool.segment(TOPIC, sealed(fs, str(tmp_path), 50 * n)) for n in range(4)]
    for _ in range(2):
        parts = [part for segment in segments for part in segment.batches(0, 1 << 40)]
        found = [record for part in parts for record in part.batch.records(part.first, part.end)]
        assert [record.offset for record in found] == list(range(200))
        assert all(record.value == b"record %d" % record.offset for record in found)
    assert len(given_back) > 10
    pool.close()


def test_what_lookups_have_verified_is_kept(tmp_path: Path) -> None:
    """Also when pages are given back: what is kept is a view of them."""
    fs = PosixFileSystem()
    pool = SegmentPool(fs, str(tmp_path))
    loaded = pool.segment(TOPIC, sealed(fs, str(tmp_path))).load()
    before = [loaded.recent(number) for number in range(5)]
    loaded.release()
    assert [loaded.recent(number) for number in range(5)] == before
    pool.close()


def test_a_batch_is_verified_whenever_it_is_read(tmp_path: Path) -> None:
    """A change of the disk meanwhile is noticed."""
    fs = PosixFileSystem()
    pool = SegmentPool(fs, str(tmp_path))
    segment = pool.segment(TOPIC, sealed(fs, str(tmp_path)))
    assert offsets(segment, 0, 10) == list(range(10))
    data = bytearray(Path(segment.path).read_bytes())
    data[HEADER_BYTES + 70] ^= 1
    with open(segment.path, "r+b") as file:
        file.write(data)
    segment.load().release()
    with pytest.raises(CorruptionError, match="offsets 0 to 9"):
        offsets(segment, 0, 10)
    pool.close()


def test_segments_not_used_for_a_while_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is read again and again stays, however many are opened meanwhile.

    They were closed in the order in which they were opened, whether used or not.
    """
    monkeypatch.setattr(pool_module, "_SEGMENTS_MAX", 3)
    disk = FakeDisk()
    pool = SegmentPool(disk, ROOT)
    segments = [pool.segment(TOPIC, sealed(disk, ROOT, 50 * n)) for n in range(10)]
    loaded = segments[0].load()
    for segment in segments[1:]:
        assert len(offsets(segment)) == 50
        assert segments[0].load() is loaded
        assert len(pool._loaded) <= 3
    assert [one for one in segments if one._loaded is not None] == sorted(
        pool._loaded, key=lambda one: one.first
    )
    assert [offsets(one) for one in segments] == [
        list(range(50 * n, 50 * n + 50)) for n in range(10)
    ]


def test_a_reader_goes_on_with_a_segment_that_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing is letting go: the last reader turns off the light."""
    monkeypatch.setattr(pool_module, "_SEGMENTS_MAX", 1)
    disk = FakeDisk()
    pool = SegmentPool(disk, ROOT)
    one, two = (pool.segment(TOPIC, sealed(disk, ROOT, first)) for first in (0, 50))
    reading = one.batches(0, 50)
    assert next(reading).batch.base_offset == 0
    assert len(offsets(two)) == 50
    pool.forget(one)
    assert one._loaded is None
    assert [part.batch.base_offset for part in reading] == [10, 20, 30, 40]


def test_a_closed_pool_holds_nothing(tmp_path: Path) -> None:
    """Closing twice is fine."""
    fs = PosixFileSystem()
    pool = SegmentPool(fs, str(tmp_path))
    segment = pool.segment(TOPIC, sealed(fs, str(tmp_path)))
    segment.load()
    pool.close()
    pool.close()
    assert segment._loaded is None
    assert not pool._loaded


# --- the cold store --------------------------------------------------------------------------


def test_the_cold_gate_rests_only_while_there_are_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of a store without a writer is not slowed down."""
    rests: list[float] = []
    clock = SimpleNamespace(sleep=rests.append, monotonic=lambda: 1000.0)
    monkeypatch.setattr(pool_module, "time", clock)
    gate = ColdGate()
    with gate:
        pass
    assert rests == []
    gate.commits = lambda: 1
    with gate:
        pass
    assert len(rests) == 1
    clock.monotonic = lambda: 1001.0
    with gate:
        pass
    assert len(rests) == 1


def test_the_cold_gate_opens_again_after_an_error() -> None:
    """Damage in one batch does not lock other readers out."""
    gate = ColdGate()
    with pytest.raises(CorruptionError), gate:
        raise CorruptionError("broken")
    with gate:
        pass


def test_readers_at_different_places_keep_their_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two who scan one cold segment do not read it again for every batch."""
    monkeypatch.setattr(pool_module, "_COLD_READ_BYTES", 100)
    data = bytes(range(256)) * 4
    asked: list[tuple[int, int]] = []
    noted: list[int] = []

    def remote(position: int, length: int) -> bytes:
        asked.append((position, length))
        return data[position : position + length]

    fetch = _ReadAhead(remote, len(data), noted.append)
    for step in range(0, 100, 10):
        assert fetch(step, 10) == data[step : step + 10]
        assert fetch(500 + step, 10) == data[500 + step : 510 + step]
    assert asked == [(0, 100), (500, 100)]
    assert noted == [100, 100]
    assert fetch(1000, 24) == data[1000:]  # never past the end
    fetch.release()
    assert fetch(0, 150) == data[:150]  # more than a piece
    assert asked[2:] == [(1000, 24), (0, 150)]
