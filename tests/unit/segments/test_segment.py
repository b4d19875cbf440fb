"""Reading a segment: by offset, by time, and past damage."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from tests.unit.segments.files import NOW, TOPIC, block, offsets, sealed, writer

from stratalog.errors import CorruptionError
from stratalog.format.frame import HEADER_BYTES as FRAME_BYTES
from stratalog.format.merge import Part, merge
from stratalog.format.names import segment_name, topic_path
from stratalog.format.segment import HEADER_BYTES, Summary
from stratalog.segments.pool import SegmentPool
from stratalog.segments.segment import Segment, index_end, scan_index
from stratalog.testing import FakeDisk

ROOT = "/data"
SEG = f"{topic_path(ROOT, TOPIC)}/{segment_name(0)}"


def _segment(disk: FakeDisk, summary: Summary) -> Segment:
    return SegmentPool(disk, ROOT).segment(TOPIC, summary)


def _flip(disk: FakeDisk, position: int, path: str = SEG) -> None:
    """Change one byte of a file, which is then as the disk has it."""
    file = disk.open(path, "write")
    file.pwrite([bytes([file.pread(1, position)[0] ^ 1])], position)
    file.close()


@pytest.fixture(params=["sealed", "open"])
def segment(request: pytest.FixtureRequest) -> Segment:
    """Offsets 0 to 29 and 50 to 59, in batches of ten; the end is 70."""
    disk = FakeDisk()
    one = writer(disk, ROOT)
    for base, codec in ((0, "none"), (10, "zstd"), (20, "none"), (50, "lz4")):
        one.append(block(base, codec=codec, step=5))
    if request.param == "sealed":
        return _segment(disk, one.seal(70, NOW))
    one.sync()
    return _segment(disk, one.summary(70))


HELD = [*range(30), *range(50, 60)]


def test_all_records_are_read_back(segment: Segment) -> None:
    """From a map, or from a file that still grows."""
    assert (segment.first, segment.end) == (0, 70)
    assert offsets(segment) == HELD
    assert not segment.is_cold


def test_records_are_found_by_offset(segment: Segment) -> None:
    """Between any two, also where some are missing."""
    for start in range(0, 71, 3):
        for end in (start, start + 1, start + 9, start + 25, 70):
            assert offsets(segment, start, end) == [n for n in HELD if start <= n < end]


def test_records_are_found_by_time(segment: Segment) -> None:
    """The first that is not earlier; the end after the last."""
    for moment in range(-5, 310):
        later = [n for n in HELD if 5 * n >= moment]
        assert segment.offset_at(NOW + moment) == (later[0] if later else 70)


def test_a_batch_with_holes_is_read_as_what_is_left() -> None:
    """Start and end may be offsets that were removed."""
    disk = FakeDisk()
    whole = _segment(disk, sealed(disk, ROOT, batches=1)).load().batch(0)
    keep = np.arange(10) % 3 == 1
    one = writer(disk, ROOT, suffix=".tmp")
    one.append(merge([Part(whole, 0, 10, keep)], 0))
    thin = _segment(disk, one.seal(10, NOW))
    assert offsets(thin) == [1, 4, 7]
    assert offsets(thin, 2, 7) == [4]
    assert offsets(thin, 5, 6) == []
    assert thin.offset_at(NOW + 2) == 4


def test_lookups_keep_a_batch_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is verified again, and read anew."""
    disk = FakeDisk()
    segment = _segment(disk, sealed(disk, ROOT))
    loaded = segment.load()
    first = loaded.recent(2)
    assert loaded.recent(2) is first
    assert loaded.batch(2) is not first
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61.0)
    assert loaded.recent(2) is not first
    assert segment.load() is loaded
    segment.forget()
    assert segment.load() is not loaded


@pytest.mark.parametrize("place", [0, 10, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 30])
def test_damage_is_named_and_everything_around_it_is_read(place: int) -> None:
    """File, position and offsets, whether a header or a body was hit."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    position = _segment(disk, summary).load().positions[2]
    _flip(disk, position + place)
    segment = _segment(disk, summary)
    expected = f"{SEG} at position {position}: .*topic {TOPIC}, offsets 20 to 29"
    with pytest.raises(CorruptionError, match=expected):
        offsets(segment)
    assert offsets(segment, 0, 20) == list(range(20))
    assert offsets(segment, 30) == list(range(30, 50))


def test_damage_in_the_last_batch_is_named_to_the_end_of_the_segment() -> None:
    """There is no batch after it to say where it ends."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT, batches=2)
    _flip(disk, _segment(disk, summary).load().positions[1] + FRAME_BYTES)
    with pytest.raises(CorruptionError, match="offsets 10 to 19"):
        offsets(_segment(disk, summary))


def test_every_flipped_byte_is_noticed_or_does_not_matter() -> None:
    """All records or an error: nothing wrong, and nothing missing without a word."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT, batches=3)
    same = 0
    messages = []
    for position in range(summary.bytes):
        _flip(disk, position)
        try:
            found = offsets(_segment(disk, summary))
        except CorruptionError as error:
            messages.append(str(error))
        else:
            assert found == list(range(30))
            same += 1
        _flip(disk, position)
    assert all(SEG in message for message in messages)
    # The header is not looked at while the footer is good, and the footer and the index are made
    # again; damage to a batch is an error.
    batches = index_end(_segment(disk, summary).load().index) - HEADER_BYTES
    assert (same, len(messages)) == (summary.bytes - batches, batches)


def test_a_batch_moved_to_another_place_is_damage() -> None:
    """Its checksums are right, and it is not the batch the index says."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    positions = _segment(disk, summary).load().positions
    file = disk.open(SEG, "write")
    length = positions[3] - positions[2]
    assert length == positions[2] - positions[1]
    file.pwrite([file.pread(length, positions[2])], positions[1])
    with pytest.raises(CorruptionError, match="another frame is where this one was"):
        offsets(_segment(disk, summary))


# --- an index made again ---------------------------------------------------------------------


def test_an_index_is_made_again_from_the_headers() -> None:
    """Equal entries, up to where there is no header."""
    disk = FakeDisk()
    summary = sealed(disk, ROOT)
    index = _segment(disk, summary).load().index
    data = disk.image()[SEG]

    def fetch(position: int, length: int) -> bytes:
        return data[position : position + length]

    assert scan_index(fetch, TOPIC, len(data)).tolist() == index.tolist()
    assert scan_index(fetch, TOPIC + 1, len(data)).tolist() == []
    assert index_end(scan_index(fetch, TOPIC + 1, len(data))) == HEADER_BYTES
    ends = [*(index["position"] + index["length"]).tolist()]
    for end in range(0, len(data), 8):  # a batch that is not whole is not there
        expected = sum(one <= end for one in ends)
        assert scan_index(fetch, TOPIC, end).tolist() == index.tolist()[:expected]


@pytest.mark.parametrize("bases", [(0, 0), (10, 0), (0, 5)])
def test_batches_out_of_order_make_no_index(bases: tuple[int, int]) -> None:
    """Headers that are each right and together wrong are damage."""
    disk = FakeDisk()
    one = writer(disk, ROOT)
    for base in bases:
        one.append(block(base))
    one.sync()
    with pytest.raises(CorruptionError, match=re.escape(one.path) + ".*order"):
        offsets(_segment(disk, one.summary(20)))
