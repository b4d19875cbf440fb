"""A plan that is read later: the records it was made of, or an error. Never fewer, never others.

A topic that is compacted keeps the last record of every key. Between planning and reading, the
writer once updated all keys and compacted: the old records were gone, the new ones were beyond the
end of the plan, and a query that must fail on data loss returned nothing and no error.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.spark.frames import read, read_offsets, run, tasks

from stratalog.errors import DataLossError
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.spark.source.plan import plan_read
from stratalog.spark.source.read_options import ReadOptions
from stratalog.state.recovery import Replay
from stratalog.testing import ManualClock
from stratalog.view import View

KEYS = 40


def update(store: Store, round: int, count: int = KEYS) -> None:
    """A record for every key, in a sealed segment; for fewer of them, in an open one."""
    store.topic("t").append_many(
        [Record(key=b"key %d" % n, value=b"%d %d" % (round, n)) for n in range(count)]
    )
    store.checkpoint()


@pytest.fixture
def state(open_store: OpenStore) -> Store:
    """A compacted topic with every key in a sealed segment."""
    store = open_store(background=False, log_file_bytes=1 << 13, log_chunk_bytes=1 << 12)
    store.create_topic("t", compact=True, segment_records=KEYS)
    update(store, 0)
    return store


def keys(table: Any) -> set[bytes]:
    """The keys that were found."""
    return set(table["key"].to_pylist())


def test_compaction_between_planning_and_reading_is_an_error(state: Store) -> None:
    """Neither the old records nor the new ones are read: a strict reader says so."""
    strict, lax = tasks(state.path, "t"), tasks(state.path, "t", failOnDataLoss="false")
    update(state, 1)
    update(state, 2)
    state.compact()
    with pytest.raises(DataLossError, match=r"40 of the records between offsets 0 and 39 are gone"):
        run(strict)
    assert run(lax).num_rows == 0
    assert len(keys(read(state.path, "t"))) == KEYS


def test_a_plan_of_a_compacted_topic_is_read_whole_until_it_is_compacted(state: Store) -> None:
    """Updates alone change nothing, wherever the records are moved."""
    made = tasks(state.path, "t", minPartitions=3)
    wanted = run(made)
    update(state, 1)
    state.snapshot()
    assert run(made).equals(wanted)


def test_what_a_compacted_topic_had_in_the_log_is_missed_as_well(state: Store) -> None:
    """Planned in the log, then put into a segment and compacted, and the log given up."""
    new = [Record(key=b"new %d" % n, value=bytes(100)) for n in range(KEYS)]
    state.topic("t").append_many(new[:5])
    made = tasks(state.path, "t")
    for _ in range(6):
        state.topic("t").append_many(new)
        state.snapshot()
    state.compact()
    with pytest.raises(DataLossError, match="5 of the records between offsets 40 and 44 are gone"):
        run(made)


@pytest.mark.parametrize("start", [0, 3, 11])
def test_a_range_of_a_segment_with_holes_knows_how_much_it_has(state: Store, start: int) -> None:
    """Some records of a batch are outside of the range, and some offsets of it are gone."""
    topic = state.topic("t")
    topic.append_many([Record(key=b"key %d" % n, value=b"1") for n in range(0, KEYS, 3)])
    topic.append_many([Record(key=b"other %d" % n, value=b"1") for n in range(KEYS)])
    state.checkpoint()
    state.compact()
    wanted = [offset for offset in range(start, 35) if offset % 3]
    options = {"startingOffsets": start, "endingOffsets": 35}
    made = tasks(state.path, "t", **options)
    assert run(made)["offset"].to_pylist() == wanted
    topic.append(b"2", key=b"key 34")
    topic.append_many([Record(key=b"more %d" % n, value=b"1") for n in range(KEYS)])
    state.checkpoint()
    state.compact()
    with pytest.raises(DataLossError, match=rf"1 of the records between offsets {start} and 34 "):
        run(made)
    assert read_offsets(state.path, "t", **options) == wanted[:-1]


def test_a_view_that_is_overtaken_while_it_is_made_misses_no_key(
    state: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the log, then the files; in between the writer replaced and compacted everything.

    The new records were in the open segment, which a view knows of from the log alone.
    """
    look = Replay._look
    turns = iter([None])

    def late(replay: Replay) -> None:
        for _ in turns:
            update(state, 1, KEYS - 1)
            state.compact()
        look(replay)

    monkeypatch.setattr(Replay, "_look", late)
    made = tasks(state.path, "t")
    assert len(keys(run(made))) == KEYS


def test_a_rewrite_that_leaves_the_file_as_large_as_it_was_is_seen(open_store: OpenStore) -> None:
    """A view took a segment for unchanged, by its size, and believed an older count of records.

    A rewrite takes records away and adds their offsets. Here 25 records of 8 bytes go, and the
    offsets of the other 75 take as much.
    """
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=100)
    topic.append_many([b"8 bytes." for _ in range(100)])
    store.checkpoint()
    view = View(PosixFileSystem(), store.path)
    history = view.catalog.find("t").history
    (before,) = (segment.summary for segment in history.chain.segments)
    topic.delete(offsets=range(1, 50, 2))
    store.compact()
    history.refresh()
    (after,) = (segment.summary for segment in history.chain.segments)
    view.close()
    assert after.bytes == before.bytes
    assert (before.records, after.records) == (100, 75)


def test_records_that_were_deleted_before_are_not_missed(open_store: OpenStore) -> None:
    """They are filtered while they are there, and once they are not."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=100)
    topic.append_many([b"%d" % n for n in range(300)])
    store.checkpoint()
    gone: set[int] = set()
    for some in (range(0, 60, 2), range(30, 90, 3), range(100, 200)):
        topic.delete(offsets=some)
        gone |= set(some)
        made = tasks(store.path, "t")
        store.compact()
        assert run(made)["offset"].to_pylist() == sorted(set(range(300)) - gone)


def test_records_that_are_deleted_later_are_read_or_missed(open_store: OpenStore) -> None:
    """As long as they are there, and then with an error; by offset and from the beginning on."""
    store = open_store(background=False)
    topic = store.create_topic("t", segment_records=100)
    topic.append_many([b"%d" % n for n in range(250)])
    store.checkpoint()
    made = tasks(store.path, "t")
    topic.delete(offsets=range(0, 100, 2))
    assert run(made)["offset"].to_pylist() == list(range(250))
    store.compact()
    with pytest.raises(DataLossError, match="50 of the records between offsets 0 and 99 are gone"):
        run(made)
    lax = tasks(store.path, "t", startingOffsets="100", failOnDataLoss="false")
    made = tasks(store.path, "t", startingOffsets="100")
    topic.delete(before=200)
    store.compact()
    with pytest.raises(DataLossError, match="100 of the records between offsets 100 and 199"):
        run(made)
    assert run(lax)["offset"].to_pylist() == list(range(200, 250))


def test_what_expires_later_is_read_or_missed(open_store: OpenStore) -> None:
    """A plan is of one moment: what has expired by then is not missed, what expires later is."""
    clock = ManualClock(10**18)
    store = open_store(background=False, clock=clock)
    topic = store.create_topic("t", segment_records=10, ttl=60.0, retention_segments_min=0)
    for _ in range(3):
        topic.append_many([b"%d" % n for n in range(10)])
        store.checkpoint()
        clock.advance(30.0)
    options = ReadOptions.parse({"path": store.path, "topic": "t"})
    made = plan_read(options, clock.time_ns())
    assert run(made)["offset"].to_pylist() == list(range(20, 30))
    made = plan_read(options, clock.time_ns() - 10**9)
    assert run(made)["offset"].to_pylist() == list(range(10, 30))
    strict = plan_read(options, clock.time_ns())
    store.compact()
    assert run(strict)["offset"].to_pylist() == list(range(20, 30))
    with pytest.raises(DataLossError, match=r"offsets 10 to 19 .* they have expired since"):
        run(made)


Step = Callable[[], object]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_a_strict_plan_reads_what_it_was_made_of(
    open_store: OpenStore, tmp_path: Any, seed: int
) -> None:
    """All of it or an error; with compaction, deletes, eviction, cold segments and ranges."""
    dice = random.Random(seed)
    store = open_store(
        background=False, durability="disk", cold=str(tmp_path / "cold"), hot_segments=1,
        log_file_bytes=1 << 14, log_chunk_bytes=1 << 12, shards=dice.choice([1, 3]),
    )  # fmt: skip
    options: dict[str, Any] = {"segment_records": 30, "compact": seed % 2 == 0}
    if seed % 3 == 0:
        options["retention_records"] = 150
    topic = store.create_topic("t", **options)
    plans: list[tuple[list[tuple[int, bytes]], list[Any]]] = []

    def append() -> None:
        topic.append_many(
            [Record(key=b"%d" % dice.randrange(25), value=dice.randbytes(9)) for _ in range(17)]
        )

    def delete() -> None:
        some = range(topic.earliest, topic.next_offset)
        topic.delete(offsets=dice.sample(some, min(3, len(some))))

    def plan() -> None:
        store.sync()
        start = dice.randint(topic.earliest, topic.next_offset)
        end = dice.randint(start, topic.next_offset)
        made = tasks(
            store.path, "t", startingOffsets=start, endingOffsets=end,
            minPartitions=dice.choice([1, 3]),
        )  # fmt: skip
        plans.append((_records(store, start, end), made))

    steps: list[Step] = [
        append, append, lambda: topic.append(b"one", key=b"single"), store.checkpoint,
        store.snapshot, store.compact, delete, plan,
    ]  # fmt: skip
    outcomes = {"whole": 0, "error": 0}
    for _ in range(80):
        dice.choice(steps)()
        for wanted, made in dice.sample(plans, min(2, len(plans))):
            try:
                table = run(made)
            except DataLossError:
                outcomes["error"] += 1
            else:
                found = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
                assert list(found) == wanted
                outcomes["whole"] += 1
    assert outcomes["whole"]


def _records(store: Store, start: int, end: int) -> list[tuple[int, bytes]]:
    found = store.topic("t").read(start, limit=end - start) if start < end else []
    return [
        (one.offset, one.value)
        for one in found
        if isinstance(one, Record) and one.value is not None and one.offset < end
    ]
