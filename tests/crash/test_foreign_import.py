"""Imports of foreign directories over crashes: run again, each ends as if nothing had happened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stratalog.handles.store import Store
from stratalog.interop import read_directory
from stratalog.interop.load import load
from stratalog.testing import Crashed, FakeDisk, ManualClock, MonitorFs
from tests.crash.model import Session, open_store
from tests.fuzz.test_foreign import flo_segment

FOREIGN = Path(__file__).parents[1] / "golden" / "foreign"
CASES = [
    ("ledgerq", "dlq", "data"), ("ledgerq", "torn_tail", "data"),
    ("fluxmq", "bit_flip", "data"), ("fluxmq", "group_compacted", "data"),
    ("topics", "queue_leases", "data/hot"), ("topics", "shard2_killed", "data/hot"),
    ("flo", "written", ""),
]  # fmt: skip
POINTS = 10**6 if os.environ.get("STRATALOG_SWEEP") == "exhaustive" else 12
WRITTEN: dict[str, Path] = {}
# Before all leases of the cases end.
NOW = 1794777300 * 10**9


@pytest.fixture(scope="module", autouse=True)
def flo(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A directory of Flo, for which there is no real one: keys, messages, records and points."""
    WRITTEN["flo"] = tmp_path_factory.mktemp("flo")
    segments = WRITTEN["flo"] / "00000" / "segs"
    segments.mkdir(parents=True)
    (segments / "0000000001.flseg").write_bytes(flo_segment(1, 40))


def bring(store: Store, layout: str, case: str, data: str) -> None:
    """Import a directory, reading it anew."""
    path = WRITTEN.get(layout, FOREIGN / layout / case / data)
    load(read_directory(layout, path, name="n"), store)


def contents(store: Store) -> dict[str, Any]:
    """All records, gaps, and where consumers are."""
    found: dict[str, Any] = {}
    for name in store.topics():
        topic = store.topic(name)
        found[name] = list(topic.read())
        found[f"{name} end"] = topic.earliest, topic.next_offset
        for group in topic.groups():
            handle = topic.group(group)
            found[f"{name}/{group}"] = (
                [(one.offset, one.delivery_count, one.consumer) for one in handle.pending()],
                handle.lag,
            )
    for name in store.tables():
        found[f"{name} table"] = list(store.table(name).scan())
    for name in store.queues():
        queue = store.queue(name)
        stats = queue.stats()
        found[f"{name} queue"] = stats.waiting, stats.pending, stats.dead, queue.options
    return found


def run(crash_after: int | None, case: tuple[str, str, str]) -> Session:
    """Import into a store on a disk that crashes."""
    session = Session(FakeDisk(crash_after=crash_after), ManualClock(NOW))
    try:
        session.open(shards=2)
        bring(session.store, *case)
    except Crashed:
        pass
    session.kill()
    return session


@pytest.mark.parametrize("case", CASES, ids=["-".join(case[:2]) for case in CASES])
def test_an_import_that_crashed_is_finished_by_the_next(case: tuple[str, str, str]) -> None:
    """Records, gaps, positions and pending entries are those of an import without a crash."""
    whole = open_store(MonitorFs(FakeDisk()), ManualClock(NOW), shards=2)
    bring(whole, *case)
    expected = contents(whole)
    assert expected
    whole.close()
    operations = run(None, case).disk.operations
    for point in range(0, operations, max(1, operations // POINTS)):
        session = run(point, case)
        for seed, damage in ((0, "keep"), (1, "drop"), (2, "random")):
            disk = session.disk.crash(seed, damage=damage)  # type: ignore[arg-type]
            try:
                store = open_store(MonitorFs(disk), session.clock, shards=2)
                assert store.damage is None
                bring(store, *case)
                assert contents(store) == expected
                store.close()
            except BaseException as error:
                error.add_note(f"{point} operations, {damage} {seed}")
                raise
