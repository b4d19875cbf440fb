"""Reading by condition: times, key, tag, node, newest first, and loops without gaps."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import OpenStore

import stratalog
import stratalog.aio
from stratalog import (
    ClosedError,
    DataLossError,
    Gap,
    OffsetOutOfRangeError,
    OptionError,
    Record,
    Topic,
    WrongTypeError,
)
from stratalog.testing import ManualClock

BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)
LONG = b"k" * 40


def _mixed(store: stratalog.Store, clock: ManualClock, *, seed: int) -> Topic:
    """A topic whose records are in segments and in the log, some deleted, some expired."""
    random_ = random.Random(seed)
    topic = store.topic("mixed")
    number = 0
    for step in range(12):
        records = []
        for _ in range(random_.choice((1, 3, 200))):
            key = random_.choice((None, b"", b"a", b"b", b"ab", LONG, LONG[:-1] + b"x"))
            tag = random_.choice((None, "", "x", "ü"))
            node = random_.choice((None, "eu-1", "us-1"))
            expires = clock.time_ns() + 5 * 10**9 if random_.random() < 0.05 else 0
            value = random_.choice((b"%d" % number, None))
            records.append(Record(value, key, tag=tag, node=node, expires_at=expires))
            number += 1
        topic.append_many(records)
        clock.advance(1)
        if step in (3, 7):
            store.checkpoint()
    end = topic.next_offset
    topic.delete(offsets=random_.sample(range(end), end // 10))
    topic.delete(key=b"b", before=end // 2)
    return topic


CONDITIONS: list[dict[str, Any]] = [
    {},
    {"key": b"a"},
    {"key": b""},
    {"key": LONG},
    {"tag": "x"},
    {"tag": ""},
    {"tag": "ü", "node": "eu-1"},
    {"node": "us-1", "key": b"ab"},
    {"key": b"nowhere"},
    {"tag": "nowhere"},
]


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_way_of_reading_chooses_the_same_records(
    open_store: OpenStore, conditions: dict[str, Any], reverse: bool
) -> None:
    """Compared with a plain loop over all records, for limits and ranges of offsets and times."""
    clock = ManualClock()
    begin = clock.time_ns()
    store = open_store(clock=clock, background=False)
    topic = _mixed(store, clock, seed=7)
    everything = [item for item in topic.read() if isinstance(item, Record)]
    end = topic.next_offset
    for start, stop, limit, since, until in (
        (0, None, None, None, None),
        (0, None, 1, None, None),
        (5, end - 5, 7, None, None),
        (0, None, None, begin / 1e9 + 3, begin / 1e9 + 8.5),
        (0, None, 3, None, begin / 1e9 + 2),
        (end, None, None, None, None),
        (0, 0, None, None, None),
        (0, None, 0, None, None),
    ):
        expected = [
            record
            for record in everything
            if start <= record.offset < (end if stop is None else stop)
            and (since is None or record.timestamp >= since * 1e9)
            and (until is None or record.timestamp < until * 1e9)
            and all(getattr(record, name) == item for name, item in conditions.items())
        ]
        expected = (expected[::-1] if reverse else expected)[:limit]
        how: dict[str, Any] = {"since": since, "until": until, "reverse": reverse} | conditions
        assert list(topic.records(start, stop, limit=limit, gaps="skip", **how)) == expected
        found = topic.read(start, stop, limit, **how)
        assert [item for item in found if isinstance(item, Record)] == expected
        values = [record.value for record in expected]
        assert topic.read_values(start, limit, stop, **how) == values
        table = topic.read_arrow(start, stop, limit=limit, **how).read_all()
        assert table.column("value").to_pylist() == values
        assert table.column("offset").to_pylist() == [record.offset for record in expected]
        assert table.column("tag").to_pylist() == [record.tag for record in expected]


@pytest.mark.parametrize("reverse", [False, True])
def test_gaps_are_the_same_in_both_directions(open_store: OpenStore, reverse: bool) -> None:
    """Neighbouring gaps of one reason are one, however the range is cut up into windows."""
    clock = ManualClock()
    store = open_store(clock=clock, background=False)
    topic = store.topic("t")
    for number in range(700):
        topic.append(b"%d" % number, ttl=1.0 if 100 <= number < 600 or number > 650 else None)
    clock.advance(2)
    items = list(topic.read(reverse=reverse))
    gaps = [item for item in items if isinstance(item, Gap)]
    assert sorted((gap.first, gap.last) for gap in gaps) == [(100, 599), (651, 699)]
    assert all(gap.reason == "expired" for gap in gaps)
    offsets = [item.first if isinstance(item, Gap) else item.offset for item in items]
    assert offsets == sorted(offsets, reverse=reverse)
    assert len(items) == 151 + 2


def test_a_plain_loop_raises_at_a_gap_unless_told_to_pass_over(open_store: OpenStore) -> None:
    """Records before the gap are handed out first; deleted records are no gap."""
    clock = ManualClock()
    topic = open_store(clock=clock).topic("t")
    topic.append_many([b"a", b"b"])
    topic.append(b"c", ttl=1.0)
    topic.append(b"d")
    topic.delete(offsets=[0])
    assert [record.value for record in topic.records()] == [b"b", b"c", b"d"]
    clock.advance(2)
    found: list[Record] = []
    with pytest.raises(DataLossError, match=r"offset 2 is gone \(expired\).*gaps=\"skip\""):
        found.extend(topic.records())
    assert [record.value for record in found] == [b"b"]
    assert [record.value for record in topic.records(gaps="skip")] == [b"b", b"d"]
    assert [record.value for record in topic.records(start=3)] == [b"d"]


def test_a_record_has_its_time_as_a_datetime(open_store: OpenStore) -> None:
    """In UTC, to the microsecond, also of a delivery; it finds the record again."""
    topic = open_store().topic("t")
    topic.append(b"a", timestamp=BEGIN)
    topic.append(b"b", timestamp=BEGIN + timedelta(microseconds=1))
    first, second = topic.records()
    assert (first.time, second.time) == (BEGIN, BEGIN + timedelta(microseconds=1))
    assert [record.value for record in topic.records(since=second.time)] == [b"b"]
    assert [record.value for record in topic.records(until=second.time)] == [b"a"]
    (delivery, _) = topic.group("g").poll()
    assert delivery.time == BEGIN
    assert Record(timestamp=1_700_000_000_123_456_789).time.microsecond == 123_456


def test_a_time_before_or_after_all_records_is_no_error(open_store: OpenStore) -> None:
    """An empty topic, everything, nothing."""
    store = open_store()
    empty, topic = store.topic("empty"), store.topic("t")
    topic.append(b"a", timestamp=BEGIN)
    hour = timedelta(hours=1)
    assert list(empty.records(since=BEGIN, until=BEGIN + hour, reverse=True)) == []
    assert topic.read_values(since=BEGIN - hour) == [b"a"]
    assert topic.read_values(since=BEGIN + hour) == []
    assert topic.read_values(until=BEGIN) == []
    assert topic.read_values(since=BEGIN + hour, until=BEGIN - hour) == []


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"key": "text"}, WrongTypeError),
        ({"tag": b"bytes"}, WrongTypeError),
        ({"node": 5}, WrongTypeError),
        ({"tag": "\ud800"}, OptionError),
        ({"since": "yesterday"}, WrongTypeError),
        ({"until": -1.0}, OptionError),
        ({"limit": -1}, OptionError),
        ({"start": 2}, OffsetOutOfRangeError),
        ({"start": -1}, OptionError),
        ({"end": 1.5}, WrongTypeError),
    ],
)
def test_wrong_conditions_are_told_at_the_call(
    open_store: OpenStore, how: dict[str, Any], error: type[Exception]
) -> None:
    """Not at the first step of the loop."""
    topic = open_store().topic("t")
    topic.append(b"a")
    for read in (topic.read, topic.records, topic.read_values, topic.read_arrow):
        with pytest.raises(error):
            read(**how)
    with pytest.raises(OptionError, match="gaps='fill' is not known"):
        topic.records(gaps="fill")  # type: ignore[arg-type]


def test_large_records_are_read_backwards_a_few_at_a_time(open_store: OpenStore) -> None:
    """The window is in bytes, too; a limit ends the read early."""
    topic = open_store(durability="disk").topic("t")
    for number in range(40):
        topic.append(bytes([number]) * (1 << 19))
    found = topic.records(reverse=True)
    assert [record.value[0] for record in found if record.value] == list(range(39, -1, -1))
    (last,) = topic.records(reverse=True, limit=1)
    assert last.offset == 39


def test_an_ephemeral_and_an_evicted_topic_are_read_backwards(open_store: OpenStore) -> None:
    """The gap of what went comes last."""
    store = open_store(tail_bytes=4096, background=False)
    live = store.create_topic("live", durability="ephemeral")
    for _ in range(64):
        live.append(bytes(256))
    items = list(live.read(reverse=True))
    assert items[-1] == Gap(0, live.earliest - 1, "ephemeral")
    assert [item.offset for item in items[:-1] if isinstance(item, Record)] == list(
        range(63, live.earliest - 1, -1)
    )
    with pytest.raises(DataLossError, match="ephemeral"):
        list(live.records())


def test_a_watch_can_be_for_some_records_only(open_store: OpenStore) -> None:
    """By tag, by node and by key; others do not end it early."""
    topic = open_store().topic("t")
    for number in range(6):
        topic.append(b"%d" % number, tag="odd" if number % 2 else "even", node=f"n{number % 3}")
    found = topic.watch(0, timeout=0.05, tag="odd")
    assert [record.value for record in found if isinstance(record, Record)] == [b"1", b"3", b"5"]
    found = topic.watch(0, timeout=0.05, tag="odd", node="n1")
    assert [record.value for record in found if isinstance(record, Record)] == [b"1"]
    with pytest.raises(WrongTypeError):
        topic.watch(tag=b"odd")  # type: ignore[arg-type]


def test_a_topic_is_arrow_to_those_who_take_it(open_store: OpenStore) -> None:
    """`pa.table(topic)`, with the schema that is asked for."""
    topic = open_store().topic("t")
    topic.append_many([b"a", b"b"])
    table = pa.table(topic)
    assert table.column_names[:2] == ["offset", "timestamp"]
    assert table.column("value").to_pylist() == [b"a", b"b"]
    assert pa.RecordBatchReader.from_stream(topic).read_all() == table


def test_readers_beside_a_writer_and_closed_stores_behave(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """A read-only view chooses the same; a closed store says so at the call or at the next step."""
    store = open_store()
    topic = store.topic("t")
    topic.append_many([Record(b"a", tag="x"), Record(b"b"), Record(b"c", tag="x")])
    view = open_store(read_only=True).topic("t")
    assert [record.value for record in view.records(tag="x", reverse=True)] == [b"c", b"a"]
    store.drop_topic("t")
    with pytest.raises(stratalog.UnknownTopicError):
        topic.records()
    other = store.topic("u")
    store.close()
    with pytest.raises(ClosedError):
        other.records(tag="x")


def test_tasks_read_by_condition(tmp_path: Path) -> None:
    """Records before a gap are handed out before the error, in asyncio as well."""

    async def main() -> None:
        async with stratalog.aio.open(tmp_path / "data") as store:
            topic = await store.topic("t")
            for number in range(10):
                tag = "even" if number % 2 == 0 else None
                await topic.append(b"%d" % number, tag=tag, ttl=0.001 if number == 8 else None)
            await asyncio.sleep(0.01)
            found = [record.value async for record in topic.records(tag="even", gaps="skip")]
            assert found == [b"0", b"2", b"4", b"6"]
            found = []

            async def collect() -> None:
                async for record in topic.records():
                    found.append(record.value)

            with pytest.raises(DataLossError):
                await collect()
            assert found == [b"%d" % number for number in range(8)]
            newest = topic.read(reverse=True, limit=1)
            assert [item.value async for item in newest if isinstance(item, Record)] == [b"9"]
            assert await topic.read_values(end=3) == [b"0", b"1", b"2"]
            watched = topic.watch(0, timeout=0.01, tag="even")
            values = [item.value async for item in watched if isinstance(item, Record)]
            assert values == [b"0", b"2", b"4", b"6"]

    asyncio.run(main())


def test_an_iterator_is_lazy(open_store: OpenStore) -> None:
    """A loop that is left early has read little, and records appended later are not in it."""
    topic = open_store().topic("t")
    topic.append_many([b"%d" % number for number in range(1000)])
    records: Iterator[Record] = topic.records(reverse=True)
    topic.append(b"later")
    assert [record.value for record in itertools.islice(records, 2)] == [b"999", b"998"]
