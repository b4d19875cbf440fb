"""Adoption: segments that others staged become part of a store, once, all or nothing."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stratalog
from stratalog.errors import RejectedError, VersionConflictError
from stratalog.format.manifest import Manifest, StagedSegment
from stratalog.format.merge import Part, merge
from stratalog.format.names import incoming_path, manifest_key
from stratalog.fs import PosixFileSystem
from stratalog.handles.publish import Publisher, adopt_now, is_adopted, publish
from stratalog.model import Gap, Record
from stratalog.segments import staging as stage_module
from stratalog.segments.read import read_batches
from stratalog.segments.segment import Slice
from stratalog.segments.staging import (
    BlockStage,
    StageWriter,
    append_part,
    backlog_part,
    manifest_of,
    replace_part,
    upsert_part,
)
from stratalog.tools.dump import dump

FS = PosixFileSystem()
HOUR = 3600 * 10**9


def stage(root: Path | str, values: Sequence[bytes | None], **columns: Any) -> StagedSegment:
    """A staged segment of these values."""
    writer = StageWriter(FS, str(root), compression=columns.pop("compression", "none"))
    writer.write(pa.table({"value": pa.array(values, pa.binary()), **columns}))
    staged = writer.finish()
    assert staged is not None
    return staged


def one(root: Path | str, writer: str, batch: int | None, **topics: list[bytes]) -> Manifest:
    """A manifest with one segment for each topic."""
    parts = [append_part(name, [stage(root, values)]) for name, values in topics.items()]
    return manifest_of(writer, batch, parts)


def values(store: stratalog.Store, topic: str) -> list[bytes | None]:
    return store.topic(topic).read_values()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that exists, and that no process has open."""
    path = tmp_path / "data"
    stratalog.open(path).close()
    return path


def test_a_staged_segment_is_small_talk_between_processes(root: Path) -> None:
    """The result of a task for the driver can be pickled."""
    staged = stage(root, [b"a", b"b"])
    assert pickle.loads(pickle.dumps(staged)) == staged
    assert (staged.records, staged.first_offset, staged.end_offset) == (2, 0, 2)


def test_nothing_staged_leaves_nothing_behind(root: Path) -> None:
    """A task without records has no segment."""
    assert StageWriter(FS, str(root)).finish() is None
    assert os.listdir(incoming_path(str(root))) == []


def test_a_batch_is_adopted_without_a_writer(root: Path) -> None:
    """The driver takes the lock itself; the topic is created."""
    assert publish(root, one(root, "job", None, orders=[b"a", b"b"]))
    assert adopt_now(root, "job", 0, timeout=0)
    assert is_adopted(root, "job", 0)
    assert os.listdir(incoming_path(str(root))) == []
    with stratalog.open(root) as store:
        assert values(store, "orders") == [b"a", b"b"]
        assert store.topic("orders").append(b"c") == 2


def test_a_writer_in_this_process_adopts_at_once(root: Path) -> None:
    """After what it has appended, and before what it appends next."""
    with stratalog.open(root) as store:
        orders = store.topic("orders")
        orders.append(b"before", durability="memory")
        assert publish(root, one(root, "job", 0, orders=[b"a", b"b"], other=[b"x"]))
        assert adopt_now(root, "job", 0, timeout=0)
        assert orders.append(b"after") == 3
        assert values(store, "orders") == [b"before", b"a", b"b", b"after"]
        assert values(store, "other") == [b"x"]
        assert not publish(root, one(root, "job", 0, orders=[b"again"]))


def test_a_live_writer_adopts_by_itself(root: Path) -> None:
    """Without being asked to; a watcher sees the records."""
    with stratalog.open(root) as store:
        seen = store.topic("orders").watch(timeout=20)
        thread = threading.Thread(
            target=lambda: publish(root, one(root, "job", 0, orders=[b"a", b"b"]))
        )
        thread.start()
        first = next(seen)
        assert isinstance(first, Record)
        assert first.value == b"a"
        thread.join()


def test_a_reader_beside_the_writer_sees_what_was_adopted(root: Path) -> None:
    """Before a checkpoint has moved it, and after."""
    with stratalog.open(root, checkpoint_interval=3600) as store:
        store.topic("orders").append(b"before")
        with stratalog.open(root, read_only=True) as view:
            publish(root, one(root, "job", 0, orders=[b"a", b"b"]))
            assert store._upkeep is not None
            store._upkeep.round()
            assert values(view, "orders") == [b"before", b"a", b"b"]
            store.topic("orders").append(b"after")
            store.checkpoint()
            assert values(view, "orders") == [b"before", b"a", b"b", b"after"]
            assert view.is_adopted("job", 0)


def test_batches_of_one_writer_are_adopted_in_order_and_once(root: Path) -> None:
    """Whatever order they are published in by then."""
    for batch in (2, 0, 1):
        publish(root, one(root, "query", batch, orders=[b"%d" % batch]))
    assert adopt_now(root, "query", 2, timeout=0)
    assert not publish(root, one(root, "query", 1, orders=[b"again"]))
    # Put there all the same, by one who did not look.
    put = stage_module.publish
    assert put(FS, str(root), one(root, "query", 1, orders=[b"again"]))
    assert not put(FS, str(root), one(root, "query", 1, orders=[b"again"]))
    with stratalog.open(root) as store:
        store.adopt()
        assert values(store, "orders") == [b"0", b"1", b"2"]
        store.snapshot()
    with stratalog.open(root) as store:
        assert store.is_adopted("query", 2)
        assert not store.is_adopted("query", 3)


LARGE = [b"%08d" % n + b"x" * 4088 for n in range(2000)]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_large_segment_stays_the_file_it_is(root: Path, compression: str) -> None:
    """It is moved, not copied; reads, lookups, deletes and rewrites work as with any other."""
    with stratalog.open(root, checkpoint_interval=3600) as store:
        orders = store.create_topic("orders", segment_bytes=1 << 22)
        for n in range(10):
            orders.append(b"before %d" % n, timestamp=float(n + 1))
        times = pa.array([20_000_000_000 + n for n in range(2000)], pa.timestamp("ns", tz="UTC"))
        staged = stage(
            root, [value + os.urandom(600) for value in LARGE], timestamp=times,
            compression=compression,
        )  # fmt: skip
        inode = os.stat(incoming_path(str(root), f"{staged.name}.seg")).st_ino
        publish(root, manifest_of("job", 1, [append_part("orders", [staged])]))
        store._upkeep.round()  # type: ignore[union-attr]
        assert orders.append(b"after", timestamp=30.0) == 2010
        for _ in range(2):
            read = list(orders.read())
            assert [item.offset for item in read if isinstance(item, Record)] == list(range(2011))
            assert orders.offset_at(5.0) == 4
            assert orders.offset_at(20.0) == 10
            assert orders.offset_at(20.0000005) == 510
            assert orders.offset_at(25.0) == 2010
            assert next(orders.read(11, limit=1)).value[:8] == b"00000001"  # type: ignore[union-attr,index]
            table = orders.read_arrow(5, 15).read_all()
            assert table["offset"].to_pylist() == list(range(5, 15))
            store.checkpoint()
        files = {os.stat(path).st_ino for path in root.glob("topics/*/*.seg")}
        assert inode in files
        orders.delete(offsets=list(range(10, 1500)))
        store.compact()
        assert [item.offset for item in orders.read(0) if isinstance(item, Record)] == [
            *range(10), *range(1500, 2011),
        ]  # fmt: skip
    assert stratalog.verify(root).ok
    with stratalog.open(root) as store:
        assert store.topic("orders").offset_at(20.0000017) == 1710


def test_many_small_batches_do_not_make_many_segments(root: Path) -> None:
    """They are copied into the open segment, and their files go."""
    with stratalog.open(root) as store:
        for batch in range(20):
            publish(root, one(root, "query", batch, orders=[b"%d" % batch] * 3))
            store.adopt()
        assert store.topic("orders").stats().segments == 1
        assert len(values(store, "orders")) == 60
    assert os.listdir(incoming_path(str(root))) == []


def test_times_never_go_back(root: Path) -> None:
    """Records that were staged with earlier times than the topic's newest have that one."""
    old = pa.array([1 * HOUR, 2 * HOUR, 9 * HOUR], pa.timestamp("ns", tz="UTC"))
    older = pa.array([3 * HOUR, 4 * HOUR, 5 * HOUR], pa.timestamp("ns", tz="UTC"))
    large = [value * 700 for value in (b"a" * 1000, b"b" * 1000, b"c" * 1000)]
    for kind in ([b"a", b"b", b"c"], large):
        name = f"orders-{len(kind[0])}"
        with stratalog.open(root, checkpoint_interval=3600) as store:
            orders = store.create_topic(name, segment_bytes=1 << 22)
            orders.append(b"now", timestamp=float(1.5 * 3600))
            segments = [stage(root, kind, timestamp=old), stage(root, kind, timestamp=older)]
            publish(root, manifest_of(name, None, [append_part(name, segments)]))
            store._upkeep.round()  # type: ignore[union-attr]
            for _ in range(2):
                stamps = [r.timestamp / HOUR for r in orders.read() if isinstance(r, Record)]
                assert stamps == [1.5, 1.5, 2, 9, 9, 9, 9]
                assert [orders.offset_at(h * 3600.0) for h in (1, 1.5, 2, 5, 9, 9.5)] == [
                    0, 0, 2, 3, 3, 7,
                ]  # fmt: skip
                stamp = orders.read_arrow(columns=["timestamp"]).read_all()["timestamp"]
                assert stamp.cast(pa.int64()).to_pylist() == [int(s * HOUR) for s in stamps]
                store.checkpoint()
            assert orders.append(b"next", timestamp=8.0) == 7
            assert next(orders.read(7, limit=1)).timestamp == 9 * HOUR  # type: ignore[union-attr]
        assert stratalog.verify(root).ok


def _restage(store: stratalog.Store, name: str, first: int, end: int, keep: Any) -> StagedSegment:
    """Stage what a rewriting job stages: the records of a range that it keeps, at their offsets."""
    log = store.topic(name)._log
    writer = BlockStage(FS, store.path, log.id, first)
    parts = []
    for part in read_batches(log, first, end):
        assert isinstance(part, Slice)
        mask = [keep(offset) for offset in part.batch.offsets(part.first, part.end).tolist()]
        if any(mask):
            parts.append(Part(*part, np.array(mask, np.bool_)))
    writer.append(merge(parts, 0))
    return writer.finish(end)


def _sealed(root: Path) -> stratalog.Store:
    store = stratalog.open(root, checkpoint_interval=3600)
    orders = store.create_topic("orders", segment_records=5)
    orders.append_many([b"%d" % n for n in range(23)])
    store.checkpoint()
    return store


def test_segments_are_replaced_by_others(root: Path) -> None:
    """Several become one, without some of their records; everything else is as it was."""
    with _sealed(root) as store:
        log = store.topic("orders")._log
        old = [segment.summary for segment in log.history.chain.segments]
        staged = _restage(store, "orders", 5, 15, lambda offset: offset % 2)
        part = replace_part(log.id, log.epoch, [staged], old)
        publish(root, manifest_of("compact", None, [part]))
        assert adopt_now(root, "compact", 0, timeout=0)
        kept = [n for n in range(23) if n % 2 or not 5 <= n < 15]
        assert values(store, "orders") == [b"%d" % n for n in kept]
        assert [segment.first for segment in log.history.chain.segments] == [0, 5, 15, 20]
    assert stratalog.verify(root).ok
    with stratalog.open(root) as store:
        assert values(store, "orders") == [b"%d" % n for n in kept]


def test_a_replacement_for_what_has_changed_is_refused(root: Path) -> None:
    """The state at the job's beginning is not the current one: it must begin again."""
    with _sealed(root) as store:
        log = store.topic("orders")._log
        old = [segment.summary for segment in log.history.chain.segments]
        staged = _restage(store, "orders", 0, 10, lambda offset: True)
        store.topic("orders").delete(offsets=[1, 2, 3, 4])
        store.compact()
        publish(root, manifest_of("job", None, [replace_part(log.id, 0, [staged], old)]))
        with pytest.raises(RejectedError, match="no longer in the segments"):
            adopt_now(root, "job", 0, timeout=0)
        (reason,) = store.stats().rejected.values()
        assert "no longer in the segments" in reason
        assert len(values(store, "orders")) == 19


def test_a_backlog_of_the_log_becomes_segments(root: Path) -> None:
    """As a checkpoint would make them, but for who does the work."""
    with stratalog.open(root, checkpoint_interval=3600) as store:
        orders = store.topic("orders")
        orders.append_many([b"%d" % n for n in range(23)])
        log = orders._log
        segments = [
            _restage(store, "orders", first, first + 10, lambda offset: True) for first in (0, 10)
        ]
        publish(root, manifest_of("backfill", None, [backlog_part(log.id, 0, segments)]))
        assert adopt_now(root, "backfill", 0, timeout=0)
        assert values(store, "orders") == [b"%d" % n for n in range(23)]
        orders.append(b"23")
        assert log.history.checkpointed >= 20
        late = _restage(store, "orders", 10, 20, lambda offset: True)
        publish(root, manifest_of("late", None, [backlog_part(log.id, 0, [late])]))
        with pytest.raises(RejectedError, match="is in segments up to offset"):
            adopt_now(root, "late", 0, timeout=0)
    with stratalog.open(root) as store:
        assert values(store, "orders") == [b"%d" % n for n in range(24)]


def _break_manifest(root: Path, manifest: Manifest) -> None:
    path = Path(incoming_path(str(root), f"{manifest_key(manifest.writer, 0)}.manifest"))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def _remove_file(root: Path, manifest: Manifest) -> None:
    os.unlink(incoming_path(str(root), f"{manifest.parts[-1].segments[0].name}.seg"))


def _break_index(root: Path, manifest: Manifest) -> None:
    path = Path(incoming_path(str(root), f"{manifest.parts[-1].segments[0].name}.seg"))
    data = bytearray(path.read_bytes())
    data[-110] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (_break_manifest, "checksum does not match"),
        (_remove_file, "is missing"),
        (_break_index, "index checksum"),
    ],
)
def test_what_is_damaged_is_set_aside(root: Path, harm: Any, reason: str) -> None:
    """Nothing of it is in the store, the driver is told, and the store goes on."""
    with stratalog.open(root) as store:
        manifest = one(root, "job", 0, orders=[b"a"], other=[b"b"])
        with store._upkeep._lock:  # type: ignore[union-attr]  # or it would be adopted by now
            publish(root, manifest)
            harm(root, manifest)
        with pytest.raises(RejectedError, match=reason):
            adopt_now(root, "job", 0, timeout=20)
        assert not store.is_adopted("job", 0)
        assert all(values(store, name) == [] for name in store.topics())
        assert reason in " ".join(store.stats().rejected.values())
        assert any("set aside" in note for note in stratalog.verify(root).notes)
        # The batch is written again, and this time it is fine.
        assert publish(root, one(root, "job", 0, orders=[b"a"]))
        assert adopt_now(root, "job", 0)
        assert store.stats().rejected == {}
        assert values(store, "orders") == [b"a"]


def test_an_ephemeral_topic_adopts_nothing(root: Path) -> None:
    """Its records are in memory alone."""
    with stratalog.open(root) as store:
        store.create_topic("ticks", durability="ephemeral")
        publish(root, one(root, "job", 0, ticks=[b"a"]))
        with pytest.raises(RejectedError, match="ephemeral"):
            adopt_now(root, "job", 0)


def test_what_nobody_published_goes_after_a_day(root: Path) -> None:
    """But not before, and never what a manifest names."""
    directory = Path(incoming_path(str(root)))
    orphan, young = stage(root, [b"a"]), stage(root, [b"b"])
    day = 25 * HOUR
    old = f"{int(orphan.name[:20]) - day:020d}{orphan.name[20:]}.seg"
    os.rename(directory / f"{orphan.name}.seg", directory / old)
    with stratalog.open(root):
        assert [path.name for path in directory.iterdir()] == [f"{young.name}.seg"]


def test_a_dropped_topic_takes_what_it_adopted_along(root: Path) -> None:
    """Also what no checkpoint has reached."""
    with stratalog.open(root, checkpoint_interval=3600) as store:
        publish(root, one(root, "job", 0, orders=[b"a"]))
        store._upkeep.round()  # type: ignore[union-attr]
        assert values(store, "orders") == [b"a"]
        store.drop_topic("orders")
        assert store.topic("orders").append(b"new") == 0
    with stratalog.open(root) as store:
        assert values(store, "orders") == [b"new"]
    assert os.listdir(incoming_path(str(root))) == []


def test_appends_and_adoptions_at_once_leave_no_hole(root: Path) -> None:
    """Threads append to topics of several shards while batches over all of them are adopted."""
    names = [f"t{n}" for n in range(6)]
    with stratalog.open(root, shards=4) as store:
        counts = dict.fromkeys(names, 0)

        def run(name: str) -> None:
            topic = store.topic(name)
            while counts[name] < 1500:
                topic.append(b"own %d" % counts[name], durability="disk")
                counts[name] += 1

        threads = [threading.Thread(target=run, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for batch in range(8):
            publish(root, one(root, "q", batch, **{name: [b"%d" % batch] * 5 for name in names}))
            assert adopt_now(root, "q", batch)
        for thread in threads:
            thread.join()
        for name in names:
            found = list(store.topic(name).read())
            assert not any(isinstance(item, Gap) for item in found)
            own = [r.value for r in found if isinstance(r, Record) and r.value[:3] == b"own"]  # type: ignore[index]
            assert own == [b"own %d" % n for n in range(counts[name])]
            adopted = [r.value for r in found if isinstance(r, Record) and r.value[:3] != b"own"]  # type: ignore[index]
            assert adopted == [b"%d" % batch for batch in range(8) for _ in range(5)]
            stamps = [r.timestamp for r in found if isinstance(r, Record)]
            assert stamps == sorted(stamps)
    assert stratalog.verify(root).ok


def test_a_publisher_is_told_when_nobody_adopts_in_time(root: Path) -> None:
    """The batch is published all the same, and adopted later."""
    with stratalog.open(root) as store, store._upkeep._lock:  # type: ignore[union-attr]
        publish(root, one(root, "job", 3, orders=[b"a"]))
        with Publisher(root) as publisher:
            began = time.monotonic()
            assert not publisher.is_adopted("job", 3)
            assert time.monotonic() - began < 5


def test_a_staged_file_that_is_lost_after_it_was_adopted_becomes_a_gap(root: Path) -> None:
    """Opening says so and writes nothing; a repair makes it explicit, and offsets go on."""
    with stratalog.open(root, checkpoint_interval=3600) as store:
        store.topic("orders").append(b"before")
        publish(root, one(root, "job", 0, orders=[b"a", b"b", b"c"]))
        store._upkeep.round()  # type: ignore[union-attr]
        store.topic("orders").append(b"after")
    (staged,) = Path(incoming_path(str(root))).glob("*.seg")
    assert stratalog.verify(root).ok
    staged.unlink()
    assert not stratalog.verify(root).ok
    with stratalog.open(root) as store:
        assert store.damage is not None
        assert "offsets 1 to 3" in store.damage
    assert stratalog.repair(root).ok
    with stratalog.open(root) as store:
        first, gap, last = store.topic("orders").read()
        assert (first.value, last.value) == (b"before", b"after")  # type: ignore[union-attr]
        assert gap == Gap(1, 3, "damaged")
        assert store.topic("orders").append(b"next") == 5
        store.checkpoint()
        assert len(store.topic("orders").read_values()) == 3


def test_damage_in_a_staged_file_is_found(root: Path) -> None:
    """By verify, and by any reader: nothing damaged is returned."""
    with stratalog.open(root, checkpoint_interval=3600) as store:
        publish(root, one(root, "job", 0, orders=[b"aaaaaaaa", b"b"]))
        store._upkeep.round()  # type: ignore[union-attr]
    (staged,) = Path(incoming_path(str(root))).glob("*.seg")
    data = staged.read_bytes()
    staged.write_bytes(data.replace(b"aaaaaaaa", b"aaaabaaa"))
    (problem,) = stratalog.verify(root).problems
    assert (problem.topic, problem.first_offset, problem.path) == ("orders", 0, str(staged))
    with (
        stratalog.open(root) as store,
        pytest.raises(stratalog.CorruptionError, match="checksum does not match"),
    ):
        store.topic("orders").read_values()


def test_what_is_incoming_can_be_looked_into(root: Path) -> None:
    """Manifests and staged segments, and the frame that adopted one."""
    publish(root, one(root, "job", 7, orders=[b"a"]))
    kinds = {row["kind"] for row in dump(incoming_path(str(root)))}
    assert {"manifest", "header", "records", "index", "footer"} <= kinds
    adopt_now(root, "job", 7)
    (row,) = (row for row in dump(root) if row["kind"] == "adopt")
    assert (row["writer"], row["batch"]) == ("job", 7)


def test_a_segment_of_others_that_lost_its_end_is_read_and_repaired(root: Path) -> None:
    """Its frames count from 0, and the name of the file says from where."""
    with stratalog.open(root) as store:
        orders = store.create_topic("orders", segment_bytes=1 << 15)
        orders.append_many([b"own"] * 10)
        publish(root, one(root, "job", 0, orders=[b"%d" % n * 3000 for n in range(10, 20)]))
        store.adopt()
        wanted = orders.read_values()
    (path,) = root.glob("topics/*/00000000000000000010.seg")
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    with stratalog.open(root, read_only=True) as view:
        assert view.damage is not None
    report = stratalog.repair(root)
    assert report.ok, report
    with stratalog.open(root) as store:
        assert store.topic("orders").read_values() == wanted


def test_what_a_queue_adopts_are_messages(root: Path) -> None:
    """Delivered by their priorities, among those that were put."""
    with stratalog.open(root) as store:
        queue = store.queue("jobs")
        queue.put(b"first")
        staged = stage(root, [b"later", b"urgent"], priority=pa.array([200, 0], pa.uint8()))
        publish(root, manifest_of("job", 0, [append_part("jobs", [staged])]))
        assert adopt_now(root, "job", 0)
        queue.put(b"last", priority=255)
        got = [queue.get(timeout=5) for _ in range(4)]
        assert [message.value for message in got] == [b"first", b"urgent", b"later", b"last"]


def _changes(root: Path, batch: int, **rows: bytes | None) -> Manifest:
    staged = stage(root, list(rows.values()), key=pa.array(list(rows), pa.string()))
    return manifest_of("query", batch, [upsert_part("users", [staged])])


def test_changes_of_a_table_are_adopted(root: Path) -> None:
    """A null deletes; conditions, counters and the fast put see them; the table is created."""
    publish(root, _changes(root, 0, ada=b"1", bob=b"1"))
    with stratalog.open(root, durability="disk") as store:
        store.adopt()
        users = store.table("users")
        assert dict(users) == {"ada": b"1", "bob": b"1"}
        assert users.options.compact
        assert users.options.versions == 8
        users.put("own", b"1")
        publish(root, _changes(root, 1, ada=b"2", bob=None, hits=b"41"))
        store.adopt()
        users.put("own", b"2")  # which notes its own row alone
        with pytest.raises(VersionConflictError):
            users.put("ada", b"3", if_version=0)
        with pytest.raises(VersionConflictError):
            users.put("bob", b"2", if_version=1)
        assert users.put("bob", b"2", if_absent=True) == 7
        assert users.add("hits") == 42
        assert dict(users) == {"ada": b"2", "bob": b"2", "hits": b"42", "own": b"2"}
        (last,) = [one for one in users.topic.records(key=b"bob") if one.offset == 4]
        assert last.value is None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("topic", "'users' is a topic, not a table"),
        ("series", "'users' is a series, not a table"),
    ],
)
def test_changes_of_what_is_no_table_are_set_aside(root: Path, kind: str, reason: str) -> None:
    """And the writer is told."""
    with stratalog.open(root) as store:
        getattr(store, kind)("users")
        publish(root, _changes(root, 0, ada=b"1"))
        with pytest.raises(RejectedError, match=reason):
            adopt_now(root, "query", 0, timeout=0)


@pytest.mark.parametrize("kind", ["table", "series"])
def test_records_for_a_table_or_a_series_are_set_aside(root: Path, kind: str) -> None:
    """Both take what their own handles make, and nothing else."""
    with stratalog.open(root) as store:
        getattr(store, kind)("users")
        publish(root, one(root, "job", 0, users=[b"x"]))
        with pytest.raises(RejectedError, match=f"'users' is a {kind}"):
            adopt_now(root, "job", 0, timeout=0)
