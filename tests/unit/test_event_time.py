"""Times that records were given, where the log's own time has gone on since."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
import stratalog.aio
from stratalog import OptionError, Record, Store

SECOND = 10**9
NOW = 1_700_000_000 * SECOND
LATE = [NOW - number * SECOND for number in range(5)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stratalog.open(tmp_path / "data", durability="memory", shards=1) as store:
        yield store


def _append(topic: Any, way: str) -> None:
    if way == "append":
        for number, time in enumerate(LATE):
            topic.append(b"%d" % number, timestamp=time)
    elif way == "append_nowait":
        for number, time in enumerate(LATE):
            topic.append_nowait(b"%d" % number, timestamp=time).result()
    elif way == "append_many":
        topic.append_many([Record(b"%d" % n, timestamp=time) for n, time in enumerate(LATE)])
    else:
        times = pa.array(LATE, pa.timestamp("ns", tz="UTC"))
        topic.append_arrow(pa.table({"value": [b"%d" % n for n in range(5)], "timestamp": times}))


@pytest.mark.parametrize("way", ["append", "append_nowait", "append_many", "append_arrow"])
@pytest.mark.parametrize("durability", ["memory", "fsync", "ephemeral"])
def test_a_record_keeps_the_time_it_was_given(store: Store, way: str, durability: str) -> None:
    """Beside the log's own, which does not go back; the first, which is on time, has none."""
    topic = store.create_topic("t", durability=durability)
    _append(topic, way)
    for _ in range(2):
        records = list(topic.records())
        assert [record.timestamp for record in records] == [NOW] * 5
        assert [record.event_time for record in records] == LATE
        assert [record.given_time for record in records] == [0, *LATE[1:]]
        arrow = topic.read_arrow(columns=["timestamp", "event_time"]).read_all()
        assert arrow["event_time"].cast(pa.int64()).to_pylist() == LATE
        assert arrow["timestamp"].cast(pa.int64()).to_pylist() == [NOW] * 5
        store.checkpoint()


def test_a_record_on_time_has_one_time(store: Store) -> None:
    """No column is written for it, and its event time is its time."""
    topic = store.topic("t")
    topic.append(b"x")
    topic.append_many([b"y", Record(b"z", timestamp=NOW + 10**18)])
    for record in topic.records():
        assert (record.event_time, record.given_time) == (record.timestamp, 0)
    table = topic.read_arrow(columns=["timestamp", "event_time"]).read_all()
    assert table["event_time"] == table["timestamp"]


def test_a_batch_is_made_again_if_time_has_gone_on(store: Store) -> None:
    """Times that were fine when it was encoded, and are late when it enters, are kept, too."""
    topic = store.topic("t")
    entries, remake = topic.encode_records([Record(b"x", timestamp=NOW)])
    assert remake is not None
    again = remake(NOW + 5)
    assert (entries[0].base_timestamp, again[0].base_timestamp) == (NOW, NOW + 5)
    assert len(again[0].body) == len(entries[0].body) + 8
    assert len(remake(NOW - 5)[0].body) == len(entries[0].body)


def test_what_was_read_can_be_appended_again(store: Store) -> None:
    """To another topic, record by record or as Arrow: event times go with it."""
    topic = store.topic("t")
    _append(topic, "append")
    store.topic("u").append_many(list(topic.records()))
    columns = ["value", "timestamp", "event_time"]
    store.topic("v").append_arrow(topic.read_arrow(columns=columns).read_all())
    store.topic("w").append_arrow(topic.read_arrow(columns=["value", "event_time"]).read_all())
    for name in ("u", "v", "w"):
        assert [record.event_time for record in store.topic(name).records()] == LATE


def test_records_are_chosen_by_event_time(store: Store) -> None:
    """By every way of reading, in both directions, with other conditions, in any layer."""
    topic = store.topic("t")
    _append(topic, "append")
    topic.append(b"later", timestamp=NOW + SECOND, tag="x")
    since, until = LATE[3], LATE[1]
    for _ in range(2):
        assert topic.read_values(event_since=since, event_until=until) == [b"2", b"3"]
        assert topic.read_values(event_since=since, event_until=until, reverse=True) == [b"3", b"2"]
        assert [r.value for r in topic.records(event_since=NOW)] == [b"0", b"later"]
        assert [r.value for r in topic.records(event_since=since, tag="x")] == [b"later"]
        assert len(list(topic.read(event_until=LATE[4] / 1e9))) == 0
        found = topic.read_arrow(event_until=LATE[2], columns=["value"]).read_all()
        assert found["value"].to_pylist() == [b"3", b"4"]
        store.checkpoint()
    with pytest.raises(OptionError, match="event_since"):
        topic.read_values(event_since=-1)


def test_messages_and_letters_have_it(store: Store) -> None:
    """A message, and what it becomes after it failed too often."""
    queue = store.queue("q", max_deliveries=1)
    queue.topic.append_many([b"first", Record(b"x", timestamp=NOW)])
    first, late = queue.get_many(2)
    assert first.event_time == first.timestamp
    assert late.event_time == NOW < late.timestamp
    late.nack("no")
    (letter,) = queue.dead.read()
    assert letter.event_time == NOW


def test_a_route_keeps_times_that_it_has_to_raise(store: Store) -> None:
    """The destination has its own time, and each record the one it came with."""
    source, copies = store.topic("source"), store.topic("copies")
    copies.append(b"newest", timestamp=NOW + SECOND)
    _append(source, "append")
    source.append(b"with headers", headers={"h": b"v"}, timestamp=LATE[2])
    store.route("source", "copies").wait(timeout=30.0)
    records = list(copies.records(1))
    assert [record.event_time for record in records] == [*LATE, LATE[2]]
    assert {record.timestamp for record in records} == {NOW + SECOND}


def test_deletes_compaction_and_backups_keep_it(store: Store, tmp_path: Path) -> None:
    """Rewritten with others left out, and copied."""
    topic = store.create_topic("t", compact=True, segment_records=2)
    for number, time in enumerate(LATE):
        topic.append(b"%d" % number, key=b"%d" % (number % 4), timestamp=time)
    topic.append(b"plain", key=b"9")
    store.snapshot()
    topic.delete(offsets=[1])
    store.compact(purge=True)
    found = {record.value: record.event_time for record in topic.records()}
    assert {b"2": LATE[2], b"3": LATE[3], b"4": LATE[4]}.items() <= found.items()
    assert b"1" not in found
    store.backup(tmp_path / "copy")
    with stratalog.open(tmp_path / "copy", read_only=True) as copy:
        assert {r.value: r.event_time for r in copy.topic("t").records()} == found


def test_tasks_choose_by_it(tmp_path: Path) -> None:
    """As threads do."""

    async def main() -> None:
        async with stratalog.aio.open(tmp_path / "data", shards=1) as store:
            topic = await store.topic("t")
            for number, time in enumerate(LATE):
                await topic.append(b"%d" % number, timestamp=time)
            assert await topic.read_values(event_until=LATE[3]) == [b"4"]
            assert [r.value async for r in topic.records(event_since=LATE[1])] == [b"0", b"1"]

    asyncio.run(main())
