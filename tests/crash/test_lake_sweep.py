"""A lake crashed after every file operation, or met by an error: no record is lost or doubled.

`STRATALOG_SWEEP=exhaustive` crashes after every single operation, and has every one of them fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import Record
from stratalog.errors import StratalogError
from stratalog.format.names import parse_lake_name
from stratalog.fs.cold import open_cold
from stratalog.handles.store import Store
from stratalog.lake.manifests import read_file, read_manifest
from stratalog.lake.sums import summed_name, sums_name
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, ManualClock, MonitorFs
from stratalog.testing.inode import Damage
from tests.crash.model import kill, open_store

EXHAUSTIVE = os.environ.get("STRATALOG_SWEEP") == "exhaustive"
POINTS = 12
FAULTS = 12
DAMAGES: list[tuple[Damage, int]] = [("keep", 0), ("drop", 0), ("random", 1)]
ERRORS = [errno.EIO, errno.ENOSPC, errno.EMFILE]
LAKE = "/lake"


class LakeSession:
    """A store whose appends are told to a model first."""

    def __init__(self, disk: Any) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.options: dict[str, Any] = {"shards": 1, "lake": LAKE, "lake_grace": 5.0}
        self.values: dict[str, list[bytes]] = {}
        self.asked: set[tuple[str, int]] = set()
        """Records that were to be deleted, whether or not that was acknowledged."""
        self.store: Store

    def open(self) -> None:
        """Open the store with small files."""
        self.store = open_store(MonitorFs(self.disk), self.clock, **self.options)

    def create(self, name: str, **options: Any) -> None:
        """Make a topic that is kept as Parquet, too."""
        self.values[name] = []
        self.store.create_topic(name, lake=True, **({"segment_records": 7} | options))

    def fill(self, name: str, count: int) -> None:
        """Append, with keys that come again."""
        told = self.values[name]
        new = [Record(b"%s %d" % (name.encode(), len(told) + n), b"k%d" % (n % 5))
               for n in range(count)]  # fmt: skip
        told += [one.value or b"" for one in new]
        self.store.topic(name).append_many(new)
        self.clock.advance(1.0)

    def delete(self, name: str, *offsets: int) -> None:
        """Delete records."""
        self.asked |= {(name, offset) for offset in offsets}
        self.store.topic(name).delete(offsets=offsets)

    def keep_up(self) -> None:
        """Do what runs in the background."""
        self.store.checkpoint()
        upkeep = self.store._upkeep
        assert upkeep is not None
        upkeep.round()
        assert upkeep.lake.failure is None, upkeep.lake.failure

    # --- after a crash, or an error -----------------------------------------------------------

    def check(self, store: Store) -> None:
        """Hold every lake against its topic, then have it brought up to date, and once more."""
        for name in store.topics():
            self._check(store, name, is_fresh=False)
        store.compact()
        for name in store.topics():
            self._check(store, name, is_fresh=True)
        self._check_names(store)

    def _check(self, store: Store, name: str, *, is_fresh: bool) -> None:
        topic = store.log_named(name)
        lake = topic.history.lake
        if lake is None:
            return
        rows = self.rows(store, name)
        offsets = rows["offset"].to_pylist()
        assert offsets == sorted(set(offsets)), "a record is there twice, or out of order"
        assert all(lake.start <= offset < lake.end for offset in offsets)
        told = self.values[name]
        assert rows["value"].to_pylist() == [told[offset] for offset in offsets]
        living = {
            one.offset for one in store.topic(name).read(topic.earliest) if isinstance(one, Record)
        }
        in_reach = {offset for offset in living if lake.start <= offset < lake.end}
        assert in_reach <= set(offsets), f"{name}: the lake lacks {in_reach - set(offsets)}"
        if is_fresh:
            gone = set(offsets) - living
            assert all(offset < topic.earliest for offset in gone), f"{name}: {gone} were to go"
            assert not gone or topic.options.lake_retention is not None
            assert not any(
                (name, offset) in self.asked and offset in topic.history.deleted for offset in gone
            )
            sealed = [one.end for one in topic.history.chain.segments if not one.is_open]
            assert lake.end >= max(sealed, default=0)

    def rows(self, store: Store, name: str) -> pa.Table:
        """All rows that the manifest of a topic lists."""
        topic = store.log_named(name)
        lake = topic.history.lake
        assert lake is not None
        place = open_cold(LAKE, store._fs)
        manifest = read_manifest(place, lake, topic, store._store_file.identity)
        tables = [
            pq.read_table(pa.BufferReader(read_file(place, file)))
            for file in manifest.content.files
        ]
        counts = [(table.num_rows, file.records) for table, file in
                  zip(tables, manifest.content.files, strict=True)]  # fmt: skip
        assert all(rows == told for rows, told in counts)
        if not tables:
            return pa.table(
                {"offset": pa.array([], pa.int64()), "value": pa.array([], pa.binary())}
            )
        return pa.concat_tables(tables).select(["offset", "value"])

    def _check_names(self, store: Store) -> None:
        """Hold what is in the lake against what manifests list, once it was swept."""
        upkeep = store._upkeep
        assert upkeep is not None
        upkeep.lake.run(0.0, is_purge=True)
        place = open_cold(LAKE, store._fs)
        listed = set()
        for name in store.topics():
            topic = store.log_named(name)
            if topic.history.lake is not None:
                manifest = read_manifest(
                    place, topic.history.lake, topic, store._store_file.identity
                )
                listed |= {topic.history.lake.name, *(one.name for one in manifest.content.files)}
        listed |= {sums_name(name) for name in listed if name.endswith(".parquet")}
        found = {name for name in place.names("") if parse_lake_name(summed_name(name)) is not None}
        assert found == listed, f"left over: {found - listed}, missing: {listed - found}"


def grows(session: LakeSession) -> None:
    """Files are made of segments, and joined once there are many."""
    session.open()
    session.create("orders")
    session.create("more", ttl=60.0)
    for number in range(11):
        session.fill("orders", 7)
        session.fill("more", 9)
        session.keep_up()
        if number == 5:
            session.store.snapshot()


def shrinks(session: LakeSession) -> None:
    """Records are deleted, evicted and replaced, files rewritten, and a topic is made again."""
    session.open()
    session.create("orders")
    session.create("kept", retention_records=10, retention_segments_min=0, lake_retention=3600.0)
    session.create("keys", compact=True)
    for number in range(4):
        for name in ("orders", "kept", "keys"):
            session.fill(name, 12)
        session.keep_up()
        session.delete("orders", 3 * number, 12 * number + 5)
        session.delete("kept", 12 * number + 7)
        session.store.compact()
        session.clock.advance(3.0)
    session.asked |= {("kept", offset) for offset in range(len(session.values["kept"]))
                      if offset % 12 % 5 == 2}  # fmt: skip
    session.store.topic("kept").delete(key=b"k2")  # most of them are in the lake alone
    session.store.topic("kept").delete(before=5)
    session.store.topic("orders").delete(before=17)
    session.store.compact(purge=True)
    session.store.drop_topic("keys")
    session.create("keys")
    session.fill("keys", 9)
    session.keep_up()


WORKLOADS = [grows, shrinks]
Workload = Callable[[LakeSession], None]


def run(workload: Workload, crash_after: int | None) -> LakeSession:
    """Run a workload until its disk crashes, or to its end."""
    session = LakeSession(FakeDisk(crash_after=crash_after))
    with contextlib.suppress(Crashed):
        workload(session)
    if hasattr(session, "store"):
        kill(session.store)
    return session


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_crash_of_a_lake_is_recovered(workload: Workload) -> None:
    """Files in a manifest exist, whole, each record once; no other file stays for long."""
    whole = run(workload, None)
    assert any(path.endswith(".parquet") for path in whole.disk.image())
    operations = whole.disk.operations
    step = 1 if EXHAUSTIVE else max(1, operations // POINTS)
    for point in range(0, operations + 1, step):
        session = run(workload, point)
        for damage, seed in DAMAGES:
            disk = session.disk.crash(seed, damage=damage)
            try:
                store = open_store(MonitorFs(disk), session.clock, **session.options)
                assert store.damage is None
                session.check(store)
                store.close()
            except BaseException as error:
                error.add_note(f"{workload.__name__}, {point} operations, {damage} {seed}")
                raise


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_an_error_of_any_file_operation_leaves_a_lake_whole(workload: Workload) -> None:
    """The reopened store has a lake that is right, and is brought up to date."""
    whole = FaultFs(FakeDisk())
    session = LakeSession(whole)
    workload(session)
    kill(session.store)
    calls = sum(whole.calls.values())
    for turn, call in enumerate(range(1, calls + 1, 1 if EXHAUSTIVE else max(1, calls // FAULTS))):
        code = ERRORS[turn % len(ERRORS)]
        disk = FakeDisk()
        fs = FaultFs(disk, [Fault(operation="any", call=call, error=code)])
        session = LakeSession(fs)
        try:
            with contextlib.suppress(StratalogError, AssertionError):
                workload(session)
            fs.clear()
            if hasattr(session, "store"):
                kill(session.store)
            store = open_store(disk.crash(call, damage="keep"), session.clock, **session.options)
            session.check(store)
            store.close()
        except BaseException as problem:
            problem.add_note(f"{workload.__name__}: call {call}, {errno.errorcode[code]}")
            raise
