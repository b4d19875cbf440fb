"""The lake: sealed history as Parquet, which other engines read by themselves."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import NoLakeError, Topic
from stratalog.errors import ColdStoreError, OptionError, WrongTypeError
from stratalog.format.lake import LakeFile
from stratalog.fs import PosixFileSystem
from stratalog.fs.cold import open_cold
from stratalog.handles.store import Store
from stratalog.lake.policy import FILE_BYTES_MIN, joins
from stratalog.testing import ManualClock


def _rows(topic: Topic) -> pa.Table:
    files = topic.lake().files()
    return pa.concat_tables([pq.read_table(path) for path in files])


def _offsets(topic: Topic) -> list[int]:
    found: list[int] = _rows(topic)["offset"].to_pylist()
    return found


def _fill(topic: Topic, count: int = 20) -> None:
    topic.append_many([b"%d" % n for n in range(count)])


def _objects(root: Path, suffix: str) -> set[str]:
    return {path.name for path in root.rglob(f"*{suffix}")}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Where the lake is."""
    return tmp_path / "lake"


def _open(open_store: OpenStore, lake: Path, **options: Any) -> Store:
    given: dict[str, Any] = {"lake": str(lake), "background": False, "shards": 1}
    return open_store(**(given | options))


def test_sealed_history_is_there_as_parquet(open_store: OpenStore, lake: Path) -> None:
    """Every column and every nanosecond, in the order of offsets, with statistics."""
    store = _open(open_store, lake)
    topic = store.create_topic("orders", lake=True, segment_records=10)
    topic.append(b"v", key=b"k", headers={"h": b"x"}, tag="t", node="n", timestamp=1.000000789)
    topic.append(None)
    _fill(topic, 8)
    store.checkpoint()
    store.compact()
    rows = _rows(topic)
    assert rows["offset"].to_pylist() == list(range(10))
    wanted = {"key": b"k", "value": b"v", "headers": [{"key": "h", "value": b"x"}], "tag": "t"}
    first = rows.slice(0, 1).to_pylist()[0]
    assert {name: first[name] for name in wanted} == wanted
    nanoseconds = rows["timestamp"].cast(pa.int64()).to_numpy() * 1000 + rows["timestamp_ns"]
    assert nanoseconds.tolist() == [one.timestamp for one in topic.records(0)]
    assert rows["value"][1].as_py() is None
    group = pq.ParquetFile(topic.lake().files()[0]).metadata.row_group(0)
    assert [group.column(place).statistics.max for place in (0,)] == [9]
    assert group.column(1).statistics.has_min_max
    assert topic.lake().end_offset == 10


def test_a_topic_without_a_lake_says_so(open_store: OpenStore, lake: Path) -> None:
    """Before the first segment is sealed, and without the option."""
    store = _open(open_store, lake)
    plain = store.create_topic("plain", segment_records=10)
    early = store.create_topic("early", lake=True)
    _fill(plain)
    _fill(early)
    store.checkpoint()
    store.compact()
    for topic in (plain, early):
        with pytest.raises(NoLakeError, match="has no lake yet"):
            topic.lake()


def test_deleted_records_leave_every_file_with_a_compaction(
    open_store: OpenStore, lake: Path
) -> None:
    """Those that were named, and those below an offset; files that were superseded stay a while."""
    clock = ManualClock()
    store = _open(open_store, lake, clock=clock, lake_grace=60.0)
    topic = store.create_topic("orders", lake=True, segment_records=10)
    _fill(topic, 30)
    store.checkpoint()
    store.compact()
    before = topic.lake().files()
    topic.delete(offsets=[3, 17])
    topic.delete(before=2)
    store.compact()
    assert _offsets(topic) == [n for n in range(2, 30) if n not in (3, 17)]
    assert all(os.path.exists(path) for path in before)
    clock.advance(61.0)
    store.compact()
    assert not any(os.path.exists(path) for path in before)
    topic.delete(offsets=[5])
    before = topic.lake().files()
    store.compact(purge=True)
    assert not any(os.path.exists(path) for path in before)
    assert 5 not in _offsets(topic)


def test_a_lake_may_outlive_the_topics_own_retention(open_store: OpenStore, lake: Path) -> None:
    """Evicted records stay there as long as they may; what is deleted below goes there, too."""
    clock = ManualClock()
    store = _open(open_store, lake, clock=clock)
    kept: Any = {"retention_records": 10, "retention_segments_min": 0}
    long = store.create_topic("long", lake=True, segment_records=10, lake_retention=3600.0, **kept)
    short = store.create_topic("short", lake=True, segment_records=10, **kept)
    for topic in (long, short):
        _fill(topic, 40)
    store.checkpoint()
    store.compact()
    for topic in (long, short):
        _fill(topic, 10)
    store.checkpoint()
    store.compact()
    store.compact()
    assert long.earliest == short.earliest == 40
    assert _offsets(long) == list(range(50))
    assert _offsets(short) == list(range(40, 50))
    clock.advance(3601.0)
    _fill(long, 10)
    store.checkpoint()
    store.compact()
    assert _offsets(long) == list(range(50, 60))


def _evicted(store: Store, clock: ManualClock, *, is_local: bool = True) -> Topic:
    """A topic whose first forty records are in the lake alone, a second apart."""
    topic = store.create_topic(
        "long", lake=True, segment_records=10, lake_retention=3600.0, retention_records=10,
        retention_segments_min=0,
    )  # fmt: skip
    for n in range(50):
        topic.append(b"%d" % n, key=b"k%d" % (n % 5), tag=f"t{n % 2}")
        clock.advance(1.0)
    store.checkpoint()
    store.compact()
    store.compact()
    assert topic.earliest == 40
    assert not is_local or _offsets(topic) == list(range(50))
    return topic


@pytest.mark.parametrize(
    ("conditions", "gone"),
    [
        ({"key": b"k3"}, range(3, 50, 5)),
        ({"tag": "t1", "before": 30}, range(1, 30, 2)),
        ({"tag_glob": "t*", "key": b"k0"}, range(0, 50, 5)),
        ({"offsets": [1, 7, 39, 41]}, [1, 7, 39, 41]),
        ({"before": 25}, range(25)),
        ({"before": 45}, range(45)),
    ],
)
def test_a_delete_means_records_that_only_the_lake_has(
    open_store: OpenStore, lake: Path, conditions: dict[str, Any], gone: Any
) -> None:
    """They are counted, are in no file after a compaction, and stay away after a restart."""
    clock = ManualClock()
    store = _open(open_store, lake, clock=clock)
    topic = _evicted(store, clock)
    assert topic.delete(**conditions) == len(gone)
    assert topic.delete(**conditions) == 0
    store.close()
    store = _open(open_store, lake, clock=clock)
    topic = store.topic("long")
    store.compact(purge=True)
    assert _offsets(topic) == [n for n in range(50) if n not in gone]
    offsets = {n for path in lake.rglob("*.parquet") for n in pq.read_table(path)["offset"]}
    assert not {n.as_py() for n in offsets} & set(gone)


@pytest.mark.parametrize("number", [0, 7, 39, 40, 44])
def test_a_delete_before_a_time_means_the_lake_too(
    open_store: OpenStore, lake: Path, number: int
) -> None:
    """Records of that time and later ones stay, wherever they are."""
    clock = ManualClock()
    store = _open(open_store, lake, clock=clock)
    begin = clock.time_ns()
    topic = _evicted(store, clock)
    assert topic.delete(before=float((begin + number * 10**9) / 10**9)) == number
    store.compact()
    assert _offsets(topic) == list(range(number, 50))


def test_a_delete_fails_while_the_lake_cannot_be_read(open_store: OpenStore, lake: Path) -> None:
    """Nothing is taken for deleted that may still be in a file of the lake alone."""
    clock = ManualClock()
    store = _open(open_store, lake, clock=clock)
    topic = _evicted(store, clock)
    lake.rename(lake.parent / "elsewhere")
    with pytest.raises(ColdStoreError, match="missing"):
        topic.delete(key=b"k1")
    (lake.parent / "elsewhere").rename(lake)
    assert topic.delete(key=b"k1") == 10


def test_consumed_records_wait_for_a_lake_that_is_to_keep_them(
    open_store: OpenStore, lake: Path
) -> None:
    """A topic that keeps nothing that was consumed evicts nothing before the lake has it."""
    store = _open(open_store, lake)
    topic = store.create_topic(
        "orders", lake=True, segment_records=10, lake_retention=3600.0, retention="consumed",
        retention_records=0, retention_segments_min=0,
    )  # fmt: skip
    group = topic.group("billing")
    _fill(topic, 20)
    group.ack([one.offset for one in group.poll("worker", limit=20, timeout=0)])
    for _ in range(3):
        store.checkpoint()
        store.compact()
    assert topic.earliest == 20
    assert _offsets(topic) == list(range(20))


def test_a_topic_that_gives_its_lake_up_leaves_no_files(open_store: OpenStore, lake: Path) -> None:
    """They go after the grace period, and come again if it changes its mind."""
    store = _open(open_store, lake, lake_grace=0.0)
    topic = store.create_topic("orders", lake=True, segment_records=10)
    _fill(topic)
    store.checkpoint()
    store.compact()
    assert _objects(lake, ".parquet")
    topic.alter(lake=False)
    store.compact()
    assert topic.lake().files() == []
    assert not _objects(lake, ".parquet")
    topic.alter(lake=True)
    store.compact()
    assert _offsets(topic) == list(range(20))


def test_the_lake_of_a_dropped_topic_goes_with_it(open_store: OpenStore, lake: Path) -> None:
    """One of its name that is made later has files of its own."""
    store = _open(open_store, lake)
    for turn in range(2):
        topic = store.create_topic("orders", lake=True, segment_records=10)
        _fill(topic, 20 + 10 * turn)
        store.checkpoint()
        store.compact()
        assert _offsets(topic) == list(range(20 + 10 * turn))
        store.drop_topic("orders")
        store.compact()
        assert not _objects(lake, ".parquet") | _objects(lake, ".lake")


def test_a_lake_may_be_in_an_object_store(open_store: OpenStore, s3_endpoint: str) -> None:
    """Made, rewritten, looked through by deletes and purged; no path shows the password."""
    base = f"bucket/{uuid.uuid4().hex}"
    url = f"s3://me:secret@{base}?endpoint_override={s3_endpoint}&scheme=http"
    clock = ManualClock()
    store = open_store(lake=url, background=False, shards=1, clock=clock)
    topic = _evicted(store, clock, is_local=False)
    assert topic.delete(key=b"k1") == 10
    store.compact(purge=True)
    files = topic.lake().files()
    assert files
    assert all(path.startswith(f"s3://{base}/") for path in files)
    place = open_cold(url, PosixFileSystem())
    names = [path.removeprefix(f"s3://{base}/") for path in files]
    found = [name for name in place.names("") if name.endswith(".parquet")]
    assert sorted(found) == sorted(names)
    tables = [
        pq.read_table(pa.BufferReader(place.read(name, 0, place.size(name) or 0))) for name in names
    ]
    offsets = pa.concat_tables(tables)["offset"].to_pylist()
    assert offsets == [n for n in range(50) if n % 5 != 1]
    store.drop_topic("long")
    store.compact()
    assert place.names("") == []


def test_a_lake_goes_on_after_a_restart(open_store: OpenStore, lake: Path) -> None:
    """From the snapshot and from the log; a reader beside the writer sees the same files."""
    for turn in range(3):
        store = _open(open_store, lake)
        topic = store.create_topic("orders", lake=True, segment_records=10, exist_ok=True)
        _fill(topic, 10)
        store.checkpoint()
        store.compact()
        assert _offsets(topic) == list(range(10 * turn + 10))
        reader = stratalog.open(store.path, read_only=True)
        assert reader.topic("orders").lake().files() == topic.lake().files()
        reader.close()
        store.close()


def test_a_lake_and_a_cold_store_in_one_place_leave_each_other_alone(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """A purge of either removes none of the other's files."""
    place = tmp_path / "both"
    store = _open(open_store, place, cold=str(place), hot_segments=0)
    topic = store.create_topic("orders", lake=True, segment_records=10)
    _fill(topic, 40)
    store.checkpoint()
    for purge in (False, True, True):
        store.compact(purge=purge)
    assert store.stats().upkeep is None
    assert _objects(place, ".seg")
    assert _offsets(topic) == list(range(40))
    assert [one.offset for one in topic.records(0)] == list(range(40))


def test_a_copy_of_a_store_begins_a_lake_of_its_own(
    open_store: OpenStore, lake: Path, tmp_path: Path
) -> None:
    """Its work there leaves the original's files as they are."""
    store = _open(open_store, lake)
    topic = store.create_topic("orders", lake=True, segment_records=10)
    _fill(topic, 20)
    store.checkpoint()
    store.compact()
    store.backup(tmp_path / "copy")
    copy = stratalog.open(tmp_path / "copy", lake=lake)
    copy.topic("orders").delete(offsets=[1, 2])
    copy.compact(purge=True)
    assert _offsets(copy.topic("orders")) == [0, *range(3, 20)]
    assert not set(copy.topic("orders").lake().files()) & set(topic.lake().files())
    copy.drop_topic("orders")
    copy.compact(purge=True)
    copy.close()
    assert _offsets(topic) == list(range(20))


def test_a_lake_that_was_removed_is_made_again(open_store: OpenStore, lake: Path) -> None:
    """All of it is in the log, so nothing is lost but time."""
    store = _open(open_store, lake)
    topic = store.create_topic("orders", lake=True, segment_records=10)
    _fill(topic, 20)
    store.checkpoint()
    store.compact()
    store.close()
    lake.rename(lake.parent / "elsewhere")
    store = _open(open_store, lake)
    store.compact()
    assert _offsets(store.topic("orders")) == list(range(20))


def test_a_purge_without_the_lake_says_what_it_did_not_reach(
    open_store: OpenStore, lake: Path
) -> None:
    """The store was opened without its lake: nothing there is changed."""
    store = _open(open_store, lake)
    topic = store.create_topic("orders", lake=True, segment_records=10)
    _fill(topic, 20)
    store.checkpoint()
    store.compact()
    store.close()
    store = open_store(background=False, shards=1)
    store.topic("orders").delete(offsets=[3])
    purge = store.compact(purge=True).purge
    assert purge is not None
    assert any("lake of topic 'orders'" in sentence for sentence in purge.unreached)


@pytest.mark.parametrize("where", ["", "inside/of/it", ".."])
def test_a_lake_inside_of_the_store_is_refused(tmp_path: Path, where: str) -> None:
    """Or around it: files of one would be taken for those of the other."""
    root = tmp_path / "a" / "store"
    with pytest.raises(OptionError, match=r"lake=.* overlap"):
        stratalog.open(root, lake=root / where)


def test_options_of_a_lake_are_checked(open_store: OpenStore, lake: Path) -> None:
    """Before anything is made."""
    store = _open(open_store, lake)
    with pytest.raises(WrongTypeError, match="lake='yes' must be True or False"):
        store.create_topic("orders", lake="yes")  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="contradict each other"):
        store.create_topic("orders", lake=True, durability="ephemeral")
    with pytest.raises(OptionError, match="lake_retention"):
        store.create_topic("orders", lake=True, lake_retention=-1)
    assert store.topics() == []


def _files(sizes: list[int]) -> list[LakeFile]:
    return [LakeFile("", n, n + 1, 1, size, 0, 0, 0, 0, []) for n, size in enumerate(sizes)]


@pytest.mark.parametrize("size", [1, 1000, 100_000, 3_000_000, 20_000_000])
def test_small_files_are_joined_until_few_are_left(size: int) -> None:
    """However many come; no record is written more often than there are classes of sizes."""
    sizes: list[int] = []
    written = total = 0
    for _ in range(2000):
        sizes.append(size)
        total += size
        while found := joins(_files(sizes)):
            for places in reversed(found):
                merged = sum(sizes[places.start : places.stop])
                sizes[places.start : places.stop] = [merged]
                written += merged
        small = [one for one in sizes if one < FILE_BYTES_MIN]
        assert len(small) <= 64
        if total > 50 * FILE_BYTES_MIN:
            break
    # Below 64 KiB, to write a file takes the same time however small it is.
    assert size < 1 << 16 or written <= 8 * total


def test_the_lake_is_kept_in_the_background(open_store: OpenStore, lake: Path) -> None:
    """By a thread of its own, without a call."""
    store = _open(open_store, lake, background=True, checkpoint_interval=0.01)
    topic = store.create_topic("orders", lake=True, segment_records=10)
    _fill(topic, 20)
    for _ in range(60):
        if topic.log.history.lake is not None and topic.lake().end_offset == 20:
            break
        topic.append(b"more")
        store.wait(topic.log, 1 << 40, 0.5)
    assert set(range(20)) <= set(_offsets(topic))
