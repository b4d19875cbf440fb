"""Several stores and one cold place: each finds its own segments there, and removes no other's.

Objects were named by the number of the topic and the first offset alone. A second store in the same
place overwrote the first one's objects, and either served the other's records; one store's drop
deleted both's; and `verify` found nothing wrong.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import ColdStoreError, CorruptionError, OptionError
from stratalog.fs import PosixFileSystem
from stratalog.fs.cold import open_cold
from stratalog.handles.store import Store

HERE = Path(__file__).parent


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """The place that all stores share."""
    return tmp_path / "cold"


def _values(who: str, first: int, end: int) -> list[bytes]:
    return [f"{who} {number:04}".encode() for number in range(first, end)]


def _fill(store: Store, who: str, count: int = 30) -> None:
    """Append so many records, of one size in all stores, and move all but the newest segment."""
    topic = store.topic("t")
    topic.append_many(_values(who, topic.next_offset, topic.next_offset + count))
    store.compact()


def _open(open_store: OpenStore, path: Path, cold: Path, **options: Any) -> Store:
    store = open_store(path, background=False, cold=str(cold), hot_segments=1, **options)
    if "t" not in store.topics():
        store.create_topic("t", segment_records=10)
    return store


def _objects(cold: Path) -> set[Path]:
    return set(cold.rglob("*.seg"))


def test_two_stores_in_one_place_read_their_own_records(
    open_store: OpenStore, tmp_path: Path, cold: Path
) -> None:
    """After moves in turn, after a reopen, and both are found whole."""
    paths = {who: tmp_path / who for who in ("one", "two")}
    for _ in range(2):
        for who, path in paths.items():
            with _open(open_store, path, cold) as store:
                _fill(store, who)
    for who, path in paths.items():
        with _open(open_store, path, cold) as store:
            assert store.topic("t").stats().cold_segments == 5
            assert store.topic("t").read_values() == _values(who, 0, 60)
        assert stratalog.verify(path, cold=str(cold)).ok
    assert len(_objects(cold)) == 10


@pytest.mark.parametrize("how", ["drop", "delete", "retention"])
def test_what_one_store_removes_the_other_keeps(
    open_store: OpenStore, tmp_path: Path, cold: Path, how: str
) -> None:
    """Its own objects go, the other's are all there."""
    one, two = (_open(open_store, tmp_path / who, cold) for who in ("one", "two"))
    _fill(one, "one")
    _fill(two, "two")
    before = _objects(cold)
    if how == "drop":
        one.drop_topic("t")
    elif how == "delete":
        one.topic("t").delete(before=20)
    else:
        one.drop_topic("t")
        one.create_topic("t", segment_records=10, retention_records=10)
        _fill(one, "one", 50)
    one.compact()
    assert two.topic("t").read_values() == _values("two", 0, 30)
    assert len(_objects(cold) & before) == 2
    assert stratalog.verify(tmp_path / "two", cold=str(cold)).ok


@pytest.mark.parametrize("goes_first", ["original", "backup"])
def test_a_store_and_its_backup_both_go_on(
    open_store: OpenStore, tmp_path: Path, cold: Path, goes_first: str
) -> None:
    """They share objects of before, which neither removes, and each has its own from then on."""
    original = _open(open_store, tmp_path / "original", cold)
    _fill(original, "both")
    shared = _objects(cold)
    assert original.backup(tmp_path / "backup").cold_segments == 2
    backup = _open(open_store, tmp_path / "backup", cold)
    stores = {"original": original, "backup": backup}
    for who, store in stores.items():
        _fill(store, who)
    for who, store in stores.items():
        expected = _values("both", 0, 30) + _values(who, 30, 60)
        assert store.topic("t").read_values() == expected
        assert stratalog.verify(tmp_path / who, cold=str(cold)).ok
    first = stores.pop(goes_first)
    first.drop_topic("t")
    first.compact()
    ((who, other),) = stores.items()
    assert other.topic("t").read_values() == _values("both", 0, 30) + _values(who, 30, 60)
    assert shared <= _objects(cold)
    assert len(_objects(cold)) == 5, "what the first has put there itself is gone"
    other.topic("t").delete(before=45)
    other.compact()
    assert shared <= _objects(cold)
    assert len(_objects(cold)) == 3
    assert other.topic("t").read_values() == _values(who, 45, 60)


def test_a_copied_directory_is_noticed(open_store: OpenStore, tmp_path: Path, cold: Path) -> None:
    """By the number of a file that says its own: the copy removes nothing of the original's."""
    with _open(open_store, tmp_path / "original", cold) as store:
        _fill(store, "both")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    original = _open(open_store, tmp_path / "original", cold)
    copy = _open(open_store, tmp_path / "copy", cold)
    _fill(copy, "copy")
    _fill(original, "original")
    assert original.topic("t").read_values() == _values("both", 0, 30) + _values("original", 30, 60)
    assert copy.topic("t").read_values() == _values("both", 0, 30) + _values("copy", 30, 60)
    copy.drop_topic("t")
    copy.compact()
    assert original.topic("t").read_values() == _values("both", 0, 30) + _values("original", 30, 60)
    assert len(_objects(cold)) == 5


def test_a_directory_that_was_moved_is_the_same(
    open_store: OpenStore, tmp_path: Path, cold: Path
) -> None:
    """It may remove its own objects, under whatever path it is opened."""
    with _open(open_store, tmp_path / "before", cold) as store:
        _fill(store, "one")
    (tmp_path / "before").rename(tmp_path / "after")
    with _open(open_store, tmp_path / "after", cold) as store:
        store.drop_topic("t")
        store.compact()
    assert _objects(cold) == set()


@pytest.mark.parametrize("damage", [b"", b"rubbish", None])
def test_a_damaged_claim_costs_nothing_but_the_right_to_delete(
    open_store: OpenStore, tmp_path: Path, cold: Path, damage: bytes | None
) -> None:
    """Also one of another store: what is there is read, more is moved, and what is old stays."""
    with _open(open_store, tmp_path / "other", cold) as store:
        _fill(store, "other")
    with _open(open_store, tmp_path / "one", cold) as store:
        _fill(store, "one")
    others = (tmp_path / "other" / "claim").read_bytes()
    (tmp_path / "one" / "claim").write_bytes(others if damage is None else damage)
    with _open(open_store, tmp_path / "one", cold) as store:
        _fill(store, "one")
        assert store.topic("t").read_values() == _values("one", 0, 60)
        store.drop_topic("t")
        store.compact()
    assert len(_objects(cold)) == 4


@pytest.mark.parametrize("place", [".", "topics", "cold", "..", "../..", "link", "link/cold"])
@pytest.mark.parametrize("is_relative", [True, False])
def test_a_cold_store_inside_or_around_the_store_is_refused(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str,
    is_relative: bool,
) -> None:  # fmt: skip
    """Objects had the names of segments: a move overwrote the segment with itself, cut to nothing.

    By any path, also through a link; and the store is as it was.
    """
    path = tmp_path / "stores" / "data"
    with _open(open_store, path, tmp_path / "cold") as store:
        _fill(store, "one")
    (tmp_path / "link").symlink_to(path)
    where = tmp_path / place if place.startswith("link") else path / place
    if is_relative:
        monkeypatch.chdir(tmp_path)
        where = Path(os.path.relpath(where))
    locations = [str(where), where.absolute().as_uri()]
    for location in locations:
        with pytest.raises(OptionError, match="overlap"):
            open_store(path, background=False, cold=location)
    with _open(open_store, path, tmp_path / "cold") as store:
        assert store.topic("t").read_values() == _values("one", 0, 30)


def test_an_object_with_an_old_name_is_served_only_if_it_is_the_one(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Another store's segment of the same topic, offsets and size was returned as this one's."""
    shutil.copytree(HERE.parent / "golden" / "v1-cold", tmp_path, dirs_exist_ok=True)
    cold = tmp_path / "cold"
    shutil.copy(
        cold / "0000000000000002" / "00000000000000000005.seg",
        cold / "0000000000000001" / "00000000000000000005.seg",
    )
    store = open_store(tmp_path / "data", background=False, cold=str(cold))
    with pytest.raises(CorruptionError):
        store.topic("kept").read_values(5, 5)
    with _open(open_store, tmp_path / "other", tmp_path / "elsewhere") as other:
        topic = other.create_topic("kept", segment_records=5)
        for _ in range(3):
            topic.append_many([b"x-%d" % number for number in range(5)])
            other.checkpoint()
        other.compact()
    (wrong,) = (
        path
        for path in (tmp_path / "elsewhere").rglob("*.seg")
        if "-00000000000000000005-" in path.name
    )
    target = cold / "0000000000000002" / "00000000000000000005.seg"
    assert wrong.stat().st_size == target.stat().st_size
    shutil.copy(wrong, target)
    with pytest.raises(CorruptionError, match="another segment"):
        store.topic("evicted").read_values(5, 5)
    report = stratalog.verify(tmp_path / "data", cold=str(cold))
    assert len(report.problems) == 2


@pytest.mark.parametrize("act", ["flip", "swap", "cut", "remove", "foreign"])
def test_verify_and_repair_judge_objects_by_their_contents(
    open_store: OpenStore, tmp_path: Path, cold: Path, act: str
) -> None:
    """They looked at names and sizes, and `repair` at nothing: it said ok where verify did not."""
    for who in ("one", "two"):
        with _open(open_store, tmp_path / who, cold) as store:
            _fill(store, who)
    with stratalog.open(tmp_path / "one", read_only=True) as view:
        identity = view.stats().identity
    first, second = sorted(path for path in _objects(cold) if identity in str(path))
    foreign = next(path for path in sorted(_objects(cold)) if identity not in str(path))
    data = first.read_bytes()
    if act == "flip":
        first.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif act == "cut":
        first.write_bytes(data[:-8])
    elif act == "remove":
        first.unlink()
    elif act == "swap":
        first.write_bytes(second.read_bytes())
        second.write_bytes(data)
    else:
        assert foreign.stat().st_size == first.stat().st_size
        first.write_bytes(foreign.read_bytes())
    path = tmp_path / "one"
    for judge in (stratalog.verify, stratalog.repair):
        report = judge(path, cold=str(cold))
        assert not report.ok
        assert {problem.kind for problem in report.problems} == {"cold"}
        assert len(report.problems) == (2 if act == "swap" else 1)
        assert judge(path, cold=str(cold), cold_depth="sizes").ok == (
            act in ("flip", "swap", "foreign")
        )
        assert judge(path).ok, "what was not looked at is not called damaged"
    with _open(open_store, path, cold) as store, pytest.raises((CorruptionError, ColdStoreError)):
        store.topic("t").read_values()
    with pytest.raises(OptionError, match="cold_depth"):
        stratalog.verify(path, cold_depth="deep")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="cold_depth"):
        stratalog.repair(path, cold_depth="deep")  # type: ignore[arg-type]


@pytest.mark.slow
def test_repair_takes_nothing_of_another_store(
    open_store: OpenStore, tmp_path: Path, cold: Path
) -> None:
    """A missing local segment was taken from any store with one of that topic and offset."""
    with _open(open_store, tmp_path / "two", cold) as store:
        _fill(store, "two")
    with open_store(tmp_path / "one", background=False) as store:
        store.create_topic("t", segment_records=10)
        _fill(store, "one")
        store.snapshot()
        store.snapshot()
    (tmp_path / "one" / "topics" / f"{1:016x}" / f"{0:020}.seg").unlink()
    assert stratalog.repair(tmp_path / "one", cold=str(cold)).actions
    with open_store(tmp_path / "one", background=False) as store:
        assert set(store.topic("t").read_values()) <= set(_values("one", 0, 30))


@pytest.mark.parametrize("has_backup", [True, False])
def test_a_purge_removes_own_objects_and_names_those_that_it_may_not(
    open_store: OpenStore, tmp_path: Path, cold: Path, has_backup: bool
) -> None:
    """The object of a segment before a rewrite is removed, unless a copy may refer to it."""
    store = _open(open_store, tmp_path / "one", cold)
    _fill(store, "one")
    if has_backup:
        store.backup(tmp_path / "backup")
    before = _objects(cold)
    store.topic("t").delete(offsets=[5])
    report = store.compact(purge=True).purge
    assert report is not None
    holding = [path for path in _objects(cold) if b"one 0005" in path.read_bytes()]
    assert len(holding) == has_backup
    assert [
        str(path.relative_to(cold)) in line for path in holding for line in report.unreached
    ] == [True] * has_backup
    expected = _values("one", 0, 30)
    assert store.topic("t").read_values() == expected[:5] + expected[6:]
    assert store.topic("t").stats().cold_segments == 2
    assert len(_objects(cold)) == (3 if has_backup else 2)
    assert len(_objects(cold) & before) == (2 if has_backup else 1)
    if has_backup:
        with _open(open_store, tmp_path / "backup", cold) as backup:
            assert backup.topic("t").read_values() == expected


def test_what_a_crash_left_of_a_move_goes_with_its_topic(
    open_store: OpenStore, tmp_path: Path, cold: Path
) -> None:
    """An object of a segment that was rewritten before the move was made again: no frame has it."""
    store = _open(open_store, tmp_path / "one", cold)
    _fill(store, "one")
    (own,) = cold.iterdir()
    left = own / f"{1:016x}-{0:020}-{7:016x}.seg"
    left.write_bytes(b"what it was")
    store.topic("t").delete(before=15)
    store.compact()
    assert not left.exists()
    left.write_bytes(b"what it was")
    store.drop_topic("t")
    store.compact()
    assert _objects(cold) == set()


@pytest.mark.parametrize("how", ["drop", "delete"])
def test_stores_that_share_a_bucket_are_apart(tmp_path: Path, s3_endpoint: str, how: str) -> None:
    """As in a directory: each reads its own, and removes nothing else."""
    prefix = uuid.uuid4().hex
    location = f"s3://me:secret@bucket/{prefix}?endpoint_override={s3_endpoint}&scheme=http"
    stores = {}
    for who in ("one", "two"):
        stores[who] = store = stratalog.open(tmp_path / who, cold=location, hot_segments=1)
        store.create_topic("t", segment_records=10)
        _fill(store, who)
    for who, store in stores.items():
        assert store.topic("t").stats().cold_segments == 2
        assert store.topic("t").read_values() == _values(who, 0, 30)
    if how == "drop":
        stores["one"].drop_topic("t")
    else:
        stores["one"].topic("t").delete(before=25)
    stores["one"].compact()
    assert stores["two"].topic("t").read_values() == _values("two", 0, 30)
    names = open_cold(location, PosixFileSystem()).names("")
    identity = stores["two"].stats().identity
    assert len(names) == 2
    assert all(name.startswith(identity) for name in names)
    for who, store in stores.items():
        store.close()
        assert stratalog.verify(tmp_path / who, cold=location).ok
