"""Files that are whole and in the wrong place: put back if they can be, an explicit gap if not.

A sealed segment that was overwritten by a copy of its neighbour, or two that were swapped, lost 40
to 80 records without a gap: the copy seemed to be covered by the segment before it, and was passed
over. `verify` said that the store is whole, and every write to it was refused as damaged.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import CorruptionError, Gap
from stratalog.tools.report import Report


@pytest.fixture
def root(tmp_path: Path, open_store: OpenStore) -> Path:
    """A closed store of 60 records in three segments; the log has none of them any more."""
    # No thread prepares the file that is given up here.
    with open_store(shards=1, background=False) as store:
        topic = store.create_topic("orders", segment_records=20)
        topic.append_many([b"order %d" % number for number in range(60)])
        store.snapshot()
        store.snapshot()
        assert store._log is not None
        store._log.rotate()
        store._log.release(store._replay.snapshots.released())
    return tmp_path / "data"


def segments(root: Path) -> list[Path]:
    return sorted(root.rglob("*.seg"))


def mend(root: Path, *, is_refused: bool = False) -> Report:
    """Repair a store; `verify`, opening and a second repair agree that it is whole then."""
    assert not stratalog.verify(root).ok
    if is_refused:
        for read_only in (True, False):
            with pytest.raises(CorruptionError, match="is the store file of another store"):
                stratalog.open(root, read_only=read_only)
    else:
        with stratalog.open(root) as store:
            assert store.damage is not None
    report = stratalog.repair(root)
    assert report.ok, str(report)
    assert stratalog.verify(root).ok
    assert stratalog.repair(root).actions == []
    with stratalog.open(root) as store:
        assert store.damage is None
        store.topic("orders").append(b"goes on")
    return report


def items(root: Path) -> list[bytes | Gap | None]:
    with stratalog.open(root, read_only=True) as store:
        read = list(store.topic("orders").read())
    return [item if isinstance(item, Gap) else item.value for item in read][:-1]


EVERYTHING = [b"order %d" % number for number in range(60)]


def test_two_segments_that_were_swapped_are_put_back(root: Path) -> None:
    """Nothing is lost, and nothing is written again."""
    one, two, _ = segments(root)
    before = {path: path.read_bytes() for path in (one, two)}
    one.rename(root / "swap")
    two.rename(one)
    (root / "swap").rename(two)
    report = mend(root)
    assert {action.kind for action in report.actions} == {"misplaced"}
    assert {path: path.read_bytes() for path in (one, two)} == before
    assert items(root) == EVERYTHING


def test_a_copy_of_a_neighbour_over_a_segment_is_an_explicit_gap(root: Path) -> None:
    """The copy goes to quarantine, and the offsets that were in its place are given up."""
    one, two, _ = segments(root)
    shutil.copyfile(one, two)
    mend(root)
    assert items(root) == [*EVERYTHING[:20], Gap(20, 39, "damaged"), *EVERYTHING[40:]]


def test_a_segment_that_was_renamed_gets_its_name_back(root: Path) -> None:
    """Its header says which it is."""
    two = segments(root)[1]
    two.rename(two.with_name(f"{27:020d}.seg"))
    mend(root)
    assert items(root) == EVERYTHING


def test_a_segment_of_another_store_is_not_read(
    root: Path, tmp_path: Path, open_store: OpenStore
) -> None:
    """It has the same topic, offsets and name, and other records."""
    with open_store(tmp_path / "other", shards=1) as store:
        topic = store.create_topic("orders", segment_records=20)
        topic.append_many([b"other %d" % number for number in range(60)])
        store.snapshot()
    two = segments(root)[1]
    shutil.copyfile(tmp_path / "other" / two.relative_to(root), two)
    mend(root)
    assert items(root) == [*EVERYTHING[:20], Gap(20, 39, "damaged"), *EVERYTHING[40:]]


def test_the_store_file_of_another_store_is_made_again(
    root: Path, tmp_path: Path, open_store: OpenStore
) -> None:
    """Everything else says whose store it is."""
    before = (root / "store").read_bytes()
    open_store(tmp_path / "other").close()
    shutil.copyfile(tmp_path / "other" / "store", root / "store")
    mend(root, is_refused=True)
    assert (root / "store").read_bytes()[16:32] == before[16:32]
    assert items(root) == EVERYTHING


def test_nothing_is_read_as_that_of_another_store_whose_store_file_is_here(
    root: Path, tmp_path: Path, open_store: OpenStore
) -> None:
    """A log of the other store came with it: its records were served."""
    with open_store(tmp_path / "other", shards=1) as other:
        other.topic("orders").append(b"theirs")
    shutil.copyfile(tmp_path / "other" / "store", root / "store")
    shutil.rmtree(root / "log" / "shard-00")
    shutil.copytree(tmp_path / "other" / "log" / "shard-00", root / "log" / "shard-00")
    (root / "log" / "ends").unlink()
    mend(root, is_refused=True)
    assert items(root) == EVERYTHING


def test_a_log_that_was_cut_between_two_frames_is_not_just_a_shorter_log(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """Nothing but the ends that were written down tells."""
    with open_store(shards=1) as store:
        topic = store.topic("orders")
        topic.append(b"kept")
        assert store._log is not None
        end = store._log.shards[0].files.position
        topic.append(b"cut off")
    log = next(tmp_path.rglob("*.log"))
    log.write_bytes(log.read_bytes()[:end])
    with open_store() as store:
        assert store.damage is not None
        assert "the log ends here" in store.damage
    report = mend(tmp_path / "data")
    assert any(action.lost for action in report.actions)
    assert items(tmp_path / "data") == [b"kept"]


def test_a_log_that_is_older_than_the_segments_is_told_though_no_snapshot_is_left(
    tmp_path: Path, open_store: OpenStore
) -> None:
    """The open segment alone shows that there was more; the report said that nothing was lost."""
    root = tmp_path / "data"
    with open_store(shards=1, background=False) as store:
        topic = store.create_topic("orders", segment_records=20)
        topic.append(b"first")
        store.sync()
        shutil.copytree(root / "log", tmp_path / "past")
        topic.append_many([b"order %d" % number for number in range(25)])
        store.checkpoint()
        topic.append(b"in the log alone")
    shutil.rmtree(root / "log")
    shutil.copytree(tmp_path / "past", root / "log")
    shutil.rmtree(root / "snapshots", ignore_errors=True)
    assert not stratalog.verify(root).ok
    report = stratalog.repair(root)
    assert report.ok, str(report)
    assert any("what came after it in the log" in action.lost for action in report.actions)
    with stratalog.open(root) as store:
        assert store.topic("orders").next_offset == 26
