"""Tiering: old segments move, are read where they are, and never stand in the way of new ones."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.crash.model import Session
from tests.unit.segments.topics import check, files, fill, segments, upkeep, value

import stratalog
from stratalog import ColdStoreError, CorruptionError, Gap
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs, FaultyCold, ManualClock


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    """Where cold segments go."""
    return tmp_path / "cold"


def _faulty(store: Store) -> FaultyCold:
    """Put switches on the cold store of an open store."""
    pool = store._replay.pool
    assert pool.cold is not None
    pool.cold = faulty = FaultyCold(pool.cold)
    return faulty


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, 4), ({"hot_segments": 2}, 2), ({"hot_segments": 0}, 0), ({"hot_segments": 100}, 6),
        ({"hot_bytes": 1}, 0), ({"hot_bytes": 1 << 30}, 4),
        ({"hot_segments": 5, "hot_bytes": 3}, 3), ({"hot_segments": 1, "hot_bytes": 3}, 1),
    ],
)  # fmt: skip
def test_the_stricter_bound_says_what_stays(
    open_store: OpenStore, tmp_path: Path, cold: Path, options: dict[str, int], kept: int
) -> None:
    """Segments and bytes; the open one always stays. Bytes below 10 are sizes of a segment."""
    with open_store(tmp_path / "probe", background=False) as store:
        topic = store.create_topic("t", segment_records=100)
        segments(store, topic, 1, size=100)
        size = topic.stats().bytes + 1200
    if 1 < options.get("hot_bytes", 0) < 10:
        options = options | {"hot_bytes": options["hot_bytes"] * size}
    store = open_store(background=False, cold=str(cold), **options)
    topic = store.create_topic("t", segment_records=100)
    segments(store, topic, 6, size=100)
    fill(topic, 5)
    assert store.compact().segments_moved == 6 - kept
    assert len(files(cold)) == topic.stats().cold_segments == 6 - kept
    assert len(files(tmp_path / "data")) == kept
    assert len(files(tmp_path / "data", ".open")) == 1
    check(topic, range(605))
    assert store.compact().segments_moved == 0


def test_a_diff_says_what_it_read_from_the_cold_store(open_store: OpenStore, cold: Path) -> None:
    """How many segments, and none for what is new."""
    store = open_store(background=False, cold=str(cold), hot_segments=1)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 4)
    assert topic.diff().cold_segments_read == 0
    store.compact()
    assert topic.diff().cold_segments_read == 3
    assert topic.diff(after=14).cold_segments_read == 2
    assert topic.diff(after=4, limit=3).cold_segments_read == 1
    assert topic.diff(after=29).cold_segments_read == 0


def test_the_hot_copy_wins_while_both_exist(open_store: OpenStore, cold: Path) -> None:
    """The file here could not be removed: it is read, and removed by the next move.

    Opening the store removed it without a look at the object, which may be gone by then.
    """
    fs = FaultFs(PosixFileSystem())
    with open_store(background=False, cold=str(cold), hot_segments=1, fs=fs) as store:
        topic = store.create_topic("t", segment_records=10)
        segments(store, topic, 3)
        fs.add(Fault(operation="unlink", error=errno.EIO, path_contains="data/topics"))
        with pytest.raises(OSError, match="Input/output"):
            store.compact()
        view = open_store(read_only=True)
        assert view.topic("t").diff().cold_segments_read == 0, "a view finds both"
        check(view.topic("t"), range(30))
        view.close()
        check(topic, range(30))
    (object_,) = cold.rglob("*.seg")
    object_.rename(tmp := cold / "away")
    store = open_store(background=False, cold=str(cold), hot_segments=1)
    check(store.topic("t"), range(30))
    assert store.topic("t").diff().cold_segments_read == 0
    tmp.rename(object_)
    assert store.compact().segments_moved == 2
    check(store.topic("t"), range(30))
    assert store.topic("t").diff().cold_segments_read == 2
    assert len(files(cold)) == 2


@pytest.mark.parametrize("stop", range(0, 40, 2))
def test_a_segment_is_somewhere_at_every_instant(stop: int) -> None:
    """Copy, flip, delete: after a crash in any place everything is read, and moving goes on."""
    options = {"cold": "/cold", "hot_segments": 1}
    session = Session(FakeDisk(), ManualClock(), **options)
    session.open()
    topic = session.store.create_topic("t", segment_records=5)
    segments(session.store, topic, 4, size=5)
    session.disk.crash_after = session.disk.operations + stop
    try:
        session.store.compact()
    except Crashed:
        session.kill()
    session.kill()
    session.disk = session.disk.crash(stop)
    session.open()
    check(session.store.topic("t"), range(20))
    session.store.compact()
    assert session.store.topic("t").stats().cold_segments == 3
    check(session.store.topic("t"), range(20))
    session.store.close()


def test_an_unreachable_cold_store_fails_cold_reads_alone(
    open_store: OpenStore, cold: Path
) -> None:
    """Appends, hot reads, checkpoints, snapshots and eviction go on; moving is tried again."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False, cold=str(cold), hot_segments=1)
    topic = store.create_topic("t", segment_records=10)
    other = store.create_topic("u", segment_records=10, retention_records=10)
    segments(store, topic, 4)
    store.compact()
    for segment in topic._log.history.chain.segments:
        segment.forget()
    faulty = _faulty(store)
    faulty.is_unreachable = True
    for read in (
        lambda: list(topic.read()), lambda: topic.read_values(25, 1), lambda: topic.diff(),
        lambda: topic.read_arrow().read_all(), lambda: topic.delete(before=3),
        lambda: topic.delete(offsets=[3]), lambda: list(topic.watch(0, timeout=0)),
    ):  # fmt: skip
        with pytest.raises(ColdStoreError):
            read()
    assert topic.read_values(30) == [value(n) for n in range(30, 40)]
    segments(store, topic, 2)
    segments(store, other, 4)
    assert topic.read_values(30) == [value(n) for n in range(30, 60)]
    assert topic.delete(offsets=[59]) == 1
    snapshots = store.stats().snapshots
    clock.advance(1000)
    upkeep(store).round()
    assert "cannot be reached" in (store.stats().upkeep or "")
    assert other.earliest == 30, "the other topic was evicted all the same"
    assert store.stats().snapshots == snapshots + 1, "and the log can be given up"
    with pytest.raises(ColdStoreError):
        store.compact()
    faulty.is_unreachable = False
    upkeep(store).round()
    assert store.stats().upkeep is None
    assert topic.stats().cold_segments == 5
    check(topic, range(59))


@pytest.mark.parametrize("operation", ["put", "size"])
@pytest.mark.parametrize("is_answer_lost", [True, False])
def test_a_move_that_failed_is_made_again(
    open_store: OpenStore, cold: Path, operation: str, is_answer_lost: bool
) -> None:
    """Its outcome is unknown, so it is done once more."""
    store = open_store(background=False, cold=str(cold), hot_segments=0)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 3)
    faulty = _faulty(store)
    faulty.is_answer_lost = is_answer_lost
    faulty.fail(2, [operation])
    with pytest.raises(ColdStoreError):
        store.compact()
    check(topic, range(30))
    faulty.fail(0)
    store.compact()
    assert topic.stats().cold_segments == 3
    check(topic, range(30))


def test_a_copy_of_the_wrong_size_is_no_copy(
    open_store: OpenStore, cold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment stays here."""
    store = open_store(background=False, cold=str(cold), hot_segments=0)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 1)
    faulty = _faulty(store)
    monkeypatch.setattr(faulty, "size", lambda name: 17)
    with pytest.raises(ColdStoreError, match="has 17 bytes"):
        store.compact()
    assert topic.stats().cold_segments == 0
    check(topic, range(10))


def test_a_damaged_segment_stays_where_it_can_be_repaired(
    open_store: OpenStore, tmp_path: Path, cold: Path
) -> None:
    """A bit flipped in a segment; upkeep moved it as it was, and repair leaves cold objects alone.

    The topic could not be read past it any more, although repair had said that all was mended.
    """
    store = open_store(background=False, cold=str(cold), hot_segments=0)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 3)
    store.close()
    damaged = sorted((tmp_path / "data").rglob("*.seg"))[1]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 3] ^= 1
    damaged.write_bytes(content)
    store = open_store(background=False, cold=str(cold), hot_segments=0)
    with pytest.raises(CorruptionError, match=damaged.name):
        store.compact()
    assert store.topic("t").stats().cold_segments == 2
    store.close()
    stratalog.repair(tmp_path / "data", cold=str(cold))
    store = open_store(background=False, cold=str(cold), hot_segments=0)
    check(store.topic("t"), range(30))


@pytest.mark.parametrize("is_away", [True, False])
@pytest.mark.parametrize("is_reopened", [True, False])
@pytest.mark.parametrize("is_dropped", [True, False])
def test_what_goes_goes_from_the_cold_store_too(
    open_store: OpenStore, cold: Path, is_away: bool, is_reopened: bool, is_dropped: bool
) -> None:
    """By retention and by drop; later, if the store was away; also without cold=... by then."""
    clock = ManualClock()
    options: dict[str, Any] = {"clock": clock, "background": False}
    store = open_store(**options, cold=str(cold), hot_segments=1)
    topic = store.create_topic("t", segment_records=10, retention_seconds=100.0)
    segments(store, topic, 4)
    store.compact()
    assert len(files(cold)) == 3
    faulty = _faulty(store)
    faulty.is_unreachable = is_away
    clock.advance(200)
    if is_dropped:
        store.drop_topic("t")
    else:
        fill(topic, 1)
        store.checkpoint()
    upkeep(store).round()
    assert (store.stats().upkeep is not None) == is_away
    assert len(files(cold)) == (3 if is_away else 0)
    if not is_dropped:
        check(topic, [40], [Gap(0, 39, "evicted")])
    if is_reopened:
        store.snapshot()
        store.snapshot()
        store.close()
        store = open_store(**options)
    faulty.is_unreachable = False
    upkeep(store).round()
    assert store.stats().upkeep is None
    assert files(cold) == []


def test_a_store_remembers_where_its_cold_segments_are(open_store: OpenStore, cold: Path) -> None:
    """Reopened without cold=... it reads them, in a view too, and moves nothing more."""
    with open_store(background=False, cold=str(cold), hot_segments=1) as store:
        segments(store, store.create_topic("t", segment_records=10), 4)
        store.compact()
    for is_snapshot in (False, True):
        store = open_store(background=False, hot_segments=0)
        topic = store.topic("t")
        check(topic, range(topic.next_offset))
        assert topic.diff().cold_segments_read == 3
        segments(store, topic, 1)
        assert store.compact().segments_moved == 0
        check(open_store(read_only=True).topic("t"), range(topic.next_offset))
        if is_snapshot:
            store.snapshot()
        store.close()
    assert len(files(cold)) == 3


def test_compact_topics_are_not_moved(open_store: OpenStore, cold: Path) -> None:
    """They are rewritten again and again."""
    store = open_store(background=False, cold=str(cold), hot_segments=0)
    topic = store.create_topic("t", segment_records=10, compact=True)
    segments(store, topic, 3)
    assert store.compact().segments_moved == 0
    assert files(cold) == []
    check(topic, range(30))


def test_a_view_follows_a_segment_that_moves(open_store: OpenStore, cold: Path) -> None:
    """A reader in the middle goes on, in this process and in another."""
    store = open_store(background=False, cold=str(cold), hot_segments=1)
    topic = store.create_topic("t", segment_records=10)
    segments(store, topic, 5)
    view = open_store(read_only=True).topic("t")
    here, there = topic.read(), view.read()
    next(here)
    next(there)
    store.compact()
    assert [item.offset for item in here] == list(range(1, 50))  # type: ignore[union-attr]
    assert [item.offset for item in there] == list(range(1, 50))  # type: ignore[union-attr]
    check(view, range(50))


@pytest.mark.parametrize("is_view", [True, False])
def test_a_cold_segment_that_was_evicted_is_a_gap(
    open_store: OpenStore, cold: Path, is_view: bool
) -> None:
    """A reader that had yet to come to it was told that the cold store had lost it."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False, cold=str(cold), hot_segments=1)
    topic = store.create_topic("t", segment_records=10, retention_records=20)
    begun = clock.time_ns()
    segments(store, topic, 3)
    store.compact()
    segments(store, topic, 2)
    source = open_store(read_only=True).topic("t") if is_view else topic
    reading = source.read(15)
    first = next(reading)
    store.compact()
    rest = list(reading)
    assert [item for item in rest if isinstance(item, Gap)] == [Gap(20, 29, "evicted")]
    assert [item.offset for item in [first, *rest] if not isinstance(item, Gap)] == [
        *range(15, 20), *range(30, 50),
    ]  # fmt: skip
    assert source.offset_at(begun) == 30
