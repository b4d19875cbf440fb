"""From segments to slices and gaps: what was given up is said, wherever it would be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap64
from tests.conftest import OpenStore
from tests.unit.segments.files import NOW, TOPIC, block, sealed, writer
from tests.unit.segments.topics import check, fill

import stratalog
from stratalog.format.merge import Part, merge
from stratalog.fs import PosixFileSystem
from stratalog.model import Gap
from stratalog.segments.pool import SegmentPool
from stratalog.segments.read import _segment_parts
from stratalog.segments.topic_segments import History
from stratalog.testing import FakeDisk

ROOT = "/data"


def _read(history: History, start: int, end: int) -> list[int | Gap]:
    """Offsets and gaps; each part says where to go on, and that only ever rises."""
    segment = history.chain.segments[0]
    found: list[int | Gap] = []
    for part, following in _segment_parts(history, segment, start, end):
        assert start <= following
        start = following
        if isinstance(part, Gap):
            found.append(part)
        elif part is not None:
            assert part.first < part.end
            found += part.batch.offsets(part.first, part.end).tolist()
    assert start == end
    return found


@pytest.fixture
def history() -> History:
    """Offsets 0 to 9 without 0, 3, 4, 7 and 9 in one batch, then 20 to 29; the end is 40."""
    disk = FakeDisk()
    pool = SegmentPool(disk, ROOT)
    whole = pool.segment(TOPIC, sealed(disk, ROOT, batches=1)).load().batch(0)
    keep = np.isin(np.arange(10), [1, 2, 5, 6, 8])
    one = writer(disk, ROOT, suffix=".tmp")
    one.append(merge([Part(whole, 0, 10, keep)], 0))
    one.append(block(20))
    history = History(pool, TOPIC)
    history.restore([one.seal(40, NOW)], 40, {})
    return history


def test_what_was_removed_is_not_mentioned(history: History) -> None:
    """Without a repair a hole is a hole."""
    assert _read(history, 0, 40) == [1, 2, 5, 6, 8, *range(20, 30)]


def test_what_was_given_up_is_a_gap_wherever_it_was(history: History) -> None:
    """Before, between and after batches, and between the records of one.

    Gaps were looked for between batches alone, so that those between merged records were lost.
    """
    history.lost = BitMap64([0, 3, 4, 9, 12, 13, 35])
    gaps = [Gap(n, m, "damaged") for n, m in ((0, 0), (3, 4), (9, 9), (12, 13), (35, 35))]
    wanted = [gaps[0], 1, 2, gaps[1], 5, 6, 8, gaps[2], gaps[3], *range(20, 30), gaps[4]]
    assert _read(history, 0, 40) == wanted
    assert _read(history, 4, 9) == [Gap(4, 4, "damaged"), 5, 6, 8]
    assert _read(history, 2, 4) == [2, Gap(3, 3, "damaged")]


def test_what_was_given_up_and_is_there_all_the_same_is_read(history: History) -> None:
    """A record that can be read is no gap."""
    history.lost = BitMap64([5, 25])
    assert _read(history, 0, 40) == [1, 2, 5, 6, 8, *range(20, 30)]


def test_one_record_reads_as_among_others(tmp_path: Path) -> None:
    """From a segment and from the log; what is deleted or has expired is as gone as ever."""
    with stratalog.open(tmp_path) as store:
        topic = store.topic("t")
        topic.append_many([b"%d" % index for index in range(10)])
        topic.append(b"short", ttl=1e-9)
        topic.append(b"keyed", key=b"k")
        store.checkpoint()
        topic.append(b"in the log")
        topic.delete(offsets=[3])
        everything = {r.offset: r for r in topic.read() if isinstance(r, stratalog.Record)}
        assert sorted(everything) == [0, 1, 2, *range(4, 10), 11, 12]
        for offset in everything:
            assert list(topic.read(offset, limit=1)) == [everything[offset]]
        # As before: the next one that is there, after a gap if there is one.
        assert list(topic.read(3, limit=1)) == [everything[4]]
        assert list(topic.read(10, limit=1)) == [Gap(10, 10, "expired"), everything[11]]
        assert list(topic.read(13, limit=1)) == []
        assert list(topic.read(5, end=5, limit=1)) == []


@pytest.mark.parametrize("is_view", [True, False])
def test_a_segment_is_read_while_it_is_sealed(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, is_view: bool
) -> None:
    """It has its new name before readers are told, for as long as a sync of the directory takes.

    Under the old name nothing was found, five times in a row, and that was taken for damage.
    """
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=20)
    fill(topic, 15)
    store.checkpoint()
    source = open_store(read_only=True).topic("t") if is_view else topic
    assert source.next_offset == 15
    seen: list[int] = []
    sync_dir = PosixFileSystem.sync_dir

    def read_meanwhile(fs: PosixFileSystem, path: str) -> None:
        if "topics" in path:
            check(source, range(20))
            seen.append(len(source))
        sync_dir(fs, path)

    fill(topic, 5)
    monkeypatch.setattr(PosixFileSystem, "sync_dir", read_meanwhile)
    store.checkpoint()
    assert seen == [20]
    check(source, range(20))
