"""Topics as a user meets them: append, read, watch, and what they refuse."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import OpenStore

from stratalog import (
    ClosedError,
    Durability,
    Gap,
    OffsetOutOfRangeError,
    OptionError,
    Record,
    TooLargeError,
    TopicExistsError,
    WrongTypeError,
)
from stratalog.testing import ManualClock


def test_offsets_start_at_0_and_are_dense(open_store: OpenStore) -> None:
    """Single appends and batches share one sequence."""
    topic = open_store().topic("orders")
    assert topic.append(b"a") == 0
    assert topic.append_many([b"b", b"c"]) == (1, 2)
    assert topic.append_nowait(b"d").result() == 3
    assert topic.append_arrow(pa.table({"value": [b"e"]})) == (4, 4)
    assert (topic.earliest, topic.next_offset, len(topic)) == (0, 5, 5)
    assert topic.read_values() == [b"a", b"b", b"c", b"d", b"e"]


def test_everything_given_comes_back(open_store: OpenStore) -> None:
    """Key, headers, tag, node, time and time to live are kept as they were."""
    topic = open_store().topic("orders")
    topic.append(b"v", key=b"k", headers={"h": b"1", "ü": b""}, tag="order-7", node="eu-1", ttl=60)
    (record,) = topic.read()
    assert isinstance(record, Record)
    assert (record.value, record.key, record.tag, record.node) == (b"v", b"k", "order-7", "eu-1")
    assert record.headers == {"h": b"1", "ü": b""}
    assert record.expires_at == record.timestamp + 60 * 10**9
    assert abs(record.timestamp - time.time_ns()) < 10**10


def test_none_and_empty_are_different(open_store: OpenStore) -> None:
    """For keys and for values, alone and in batches."""
    topic = open_store().topic("orders")
    topic.append(None, key=b"")
    topic.append(b"")
    topic.append_many([None, b"", Record(value=b"", key=b""), Record()])
    found = [(r.value, r.key) for r in topic.read() if isinstance(r, Record)]
    assert found == [
        (None, b""), (b"", None), (None, None), (b"", None), (b"", b""), (None, None),
    ]  # fmt: skip


def test_a_batch_may_mix_values_and_records(open_store: OpenStore) -> None:
    """Any iterable of bytes and records, with every field a record has."""
    topic = open_store().topic("orders")
    full = Record(
        value=b"x", key=b"k", headers={"h": b"v"}, tag="t", node="n", priority=9,
        expires_at=time.time_ns() + 10**12, not_before=10**18, operation=1,
    )  # fmt: skip
    topic.append_many(item for item in (b"plain", full, bytearray(b"copied")))
    records = [r for r in topic.read() if isinstance(r, Record)]
    assert [r.value for r in records] == [b"plain", b"x", b"copied"]
    for name in ("key", "headers", "tag", "node", "priority", "expires_at", "operation"):
        assert getattr(records[1], name) == getattr(full, name)


def test_arrow_goes_in_and_comes_out_the_same(open_store: OpenStore) -> None:
    """A table read from one topic can be appended to another, times included."""
    store = open_store()
    source = store.topic("source")
    for number in range(50):
        source.append(
            b"%d" % number, key=b"k" if number % 2 else None, tag="t", headers={"a": b"b"}
        )
    table = source.read_arrow().read_all()
    store.topic("copy").append_arrow(table)
    assert store.topic("copy").read_arrow().read_all().equals(table)
    assert table.schema.names == ["offset", "timestamp", "key", "value", "headers", "tag", "node"]


def test_columns_can_be_chosen(open_store: OpenStore) -> None:
    """Only what is asked for is built; what is unknown is refused by name."""
    topic = open_store().topic("orders")
    topic.append_many([Record(value=b"x", priority=3)])
    table = topic.read_arrow(columns=["priority", "value"]).read_all()
    assert table.to_pydict() == {"priority": [3], "value": [b"x"]}
    with pytest.raises(OptionError, match="did you mean 'value'"):
        topic.read_arrow(columns=["vale"])


def test_ranges_are_half_open_and_limited(open_store: OpenStore) -> None:
    """From the middle of one batch to the middle of another."""
    topic = open_store().topic("orders")
    for start in range(0, 30, 10):
        topic.append_many([b"%d" % number for number in range(start, start + 10)])
    assert [r.offset for r in topic.read(7, 23) if isinstance(r, Record)] == list(range(7, 23))
    assert [r.offset for r in topic.read(7, limit=5) if isinstance(r, Record)] == [7, 8, 9, 10, 11]
    assert topic.read_values(28, 5) == [b"28", b"29"]
    assert topic.read_arrow(9, 11).read_all()["value"].to_pylist() == [b"9", b"10"]
    assert list(topic.read(30)) == []
    assert list(topic.read(5, 5)) == []
    assert list(topic.read(0, limit=0)) == []
    assert topic.read_values(3, 0) == []


def test_an_offset_that_does_not_exist_yet_is_an_error(open_store: OpenStore) -> None:
    """A reader that is ahead of the topic has made a mistake."""
    topic = open_store().topic("orders")
    topic.append(b"x")
    with pytest.raises(OffsetOutOfRangeError, match="no offset 2 yet: the next one is 1"):
        topic.read(2)
    with pytest.raises(OptionError):
        topic.read(-1)


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_an_append_can_be_read_at_once(open_store: OpenStore, durability: str) -> None:
    """Whatever the class: a reader sees every append that returned before it asked."""
    topic = open_store(durability=durability, flush_interval=5.0, sync_interval=60.0).topic("t")
    for number in range(20):
        assert topic.append(b"%d" % number) == number
        assert topic.read_values(number) == [b"%d" % number]
    topic.append_many([b"a", b"b"])
    assert len(topic) == 22


def test_the_class_of_one_append_is_its_own(open_store: OpenStore) -> None:
    """A relaxed append to an fsync topic does not sync, and the other way round."""
    store = open_store(shards=1, background=False)
    topic = store.topic("orders")
    syncs = store.stats().syncs
    for _ in range(10):
        topic.append(b"x", durability="disk")
    topic.append_many([b"x"] * 10, durability=Durability.MEMORY)
    assert store.stats().syncs == syncs
    topic.append(b"y")
    assert store.stats().syncs == syncs + 1


def test_time_never_goes_back(open_store: OpenStore) -> None:
    """A clock that is set back, or times given out of order, are held at the last value."""
    clock = ManualClock()
    topic = open_store(clock=clock).topic("orders")
    topic.append(b"a")
    clock.jump(-1000)
    topic.append(b"b")
    topic.append(b"c", timestamp=1.0)
    topic.append_many([Record(value=b"d", timestamp=clock.time_ns() - 5), b"e"])
    topic.append_arrow(
        pa.table({"value": [b"f", b"g"], "timestamp": pa.array([2, 1]).cast("timestamp[s]")})
    )
    clock.jump(5000)
    topic.append(b"h")
    stamps = [r.timestamp for r in topic.read() if isinstance(r, Record)]
    assert stamps == sorted(stamps)
    assert len(stamps) == 8
    assert stamps[-1] > stamps[0]


def test_a_given_time_is_kept_when_it_is_in_order(open_store: OpenStore) -> None:
    """Imported history keeps its times, to the nanosecond."""
    topic = open_store().topic("orders")
    topic.append(b"a", timestamp=1_000_000_000.5)
    topic.append(b"b", timestamp=datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC))
    topic.append(b"c", timestamp=1_600_000_000_123_456_789)
    stamps = [r.timestamp for r in topic.read() if isinstance(r, Record)]
    assert stamps == [1_000_000_000_500_000_000, 1577934245678901000, 1_600_000_000_123_456_789]


def test_a_time_finds_its_offset(open_store: OpenStore) -> None:
    """The first record at or after it; the next offset when there is none."""
    topic = open_store().topic("orders")
    topic.append_many([Record(value=b"x", timestamp=t * 10**9 + 10**18) for t in range(10)])
    topic.append(b"y", timestamp=10**18 + 50 * 10**9)
    assert topic.offset_at(10**9) == 0
    assert topic.offset_at(10**18 + 3 * 10**9) == 3
    assert topic.offset_at(10**18 + 3 * 10**9 + 1) == 4
    assert topic.offset_at(10.0**9 + 20) == 10
    assert topic.offset_at(datetime.fromtimestamp(10**9 + 50, UTC)) == 10
    assert topic.offset_at(10**9 + 51) == 11


def test_expired_records_are_an_explicit_gap(open_store: OpenStore) -> None:
    """By their own time to live or by the topic's; neighbours in one gap."""
    clock = ManualClock()
    store = open_store(clock=clock)
    topic = store.topic("orders")
    topic.append(b"a")
    topic.append_many([Record(value=b"b", expires_at=clock.time_ns() + 10**9)] * 3)
    topic.append(b"c", ttl=1)
    topic.append(b"d", ttl=100)
    clock.advance(2)
    assert [r if isinstance(r, Gap) else r.value for r in topic.read()] == [
        b"a", Gap(1, 4, "expired"), b"d",
    ]  # fmt: skip
    assert topic.read_values() == [b"a", b"d"]
    assert topic.read_arrow().read_all()["offset"].to_pylist() == [0, 5]
    short = store.create_topic("short", ttl=10)
    short.append_many([b"x", b"y"])
    clock.advance(11)
    short.append(b"z")
    assert [r if isinstance(r, Gap) else r.value for r in short.read()] == [
        Gap(0, 1, "expired"), b"z",
    ]  # fmt: skip


def test_watch_gives_new_records_as_they_come(open_store: OpenStore) -> None:
    """Without polling: the watcher is woken by the commit, and ends when nothing comes."""
    topic = open_store().topic("orders")
    topic.append(b"before")
    seen: list[bytes | None] = []
    ready = threading.Event()

    def watch() -> None:
        watcher = topic.watch(timeout=2.0)
        ready.set()
        for record in watcher:
            assert isinstance(record, Record)
            seen.append(record.value)
            if len(seen) == 3:
                return

    thread = threading.Thread(target=watch)
    thread.start()
    ready.wait()
    for value in (b"1", b"2", b"3"):
        topic.append(value)
    thread.join()
    assert seen == [b"1", b"2", b"3"]
    assert [r.value for r in topic.watch(2, timeout=0.01) if isinstance(r, Record)] == [b"2", b"3"]
    assert list(topic.watch(timeout=0)) == []


def test_a_watcher_ends_when_the_store_closes(open_store: OpenStore) -> None:
    """It does not keep a program from ending."""
    store = open_store()
    topic = store.topic("orders")
    result: list[object] = []
    thread = threading.Thread(target=lambda: result.extend(topic.watch()))
    thread.start()
    time.sleep(0.05)
    store.close()
    thread.join(5)
    assert not thread.is_alive()
    assert result == []


def test_futures_work_with_everything_that_takes_futures(open_store: OpenStore) -> None:
    """wait, as_completed, callbacks, asyncio; they cannot be cancelled, the log has no undo."""
    topic = open_store().topic("orders")
    futures = [topic.append_nowait(b"%d" % number) for number in range(5)]
    assert not futures[0].cancel()
    done, left = concurrent.futures.wait(futures, timeout=5)
    assert (len(done), len(left)) == (5, 0)
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures)) == [0, 1, 2, 3, 4]
    calls: list[int] = []
    future = topic.append_nowait(b"x")
    future.add_done_callback(lambda f: calls.append(f.result()))
    future.add_done_callback(lambda f: calls.append(-1))
    assert future.result(timeout=5) == 5
    future.add_done_callback(lambda f: calls.append(f.result()))
    deadline = time.monotonic() + 5
    while len(calls) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(calls) == [-1, 5, 5]
    assert future.done()
    assert future.exception() is None

    async def append() -> int:
        return await asyncio.wrap_future(topic.append_nowait(b"y"))

    assert asyncio.run(append()) == 6


def test_many_threads_append_and_read_at_once(open_store: OpenStore) -> None:
    """Every record once, offsets as returned, order kept per thread, groups shared."""
    store = open_store(shards=2)
    topics = [store.topic(name) for name in ("a", "b")]
    returned: list[dict[int, bytes]] = [{}, {}]

    def append(worker: int) -> None:
        for number in range(60):
            value = b"%d-%d" % (worker, number)
            which = (worker + number) % 2
            kind = "disk" if number % 7 == 0 else None
            if number % 5 == 0:
                first, _ = topics[which].append_many([value, value + b"'"], durability=kind)
                returned[which][first + 1] = value + b"'"
            else:
                first = topics[which].append(value, durability=kind)
            returned[which][first] = value

    def read() -> None:
        for _ in range(30):
            for topic in topics:
                offsets = [r.offset for r in topic.read() if isinstance(r, Record)]
                assert offsets == list(range(len(offsets)))

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        jobs = [pool.submit(append, worker) for worker in range(8)]
        jobs += [pool.submit(read) for _ in range(2)]
        for job in jobs:
            job.result()
    for which, topic in enumerate(topics):
        values = dict(enumerate(topic.read_values()))
        assert values == returned[which]
    assert store.stats().commits < sum(map(len, returned))


def test_ephemeral_records_live_in_memory_only(open_store: OpenStore, tmp_path: Path) -> None:
    """They can be read while the store is open; the next offset outlives it."""
    with open_store(tmp_path / "e") as store:
        topic = store.create_topic("ticks", durability="ephemeral")
        topic.append_many([b"a", b"b"])
        topic.append(b"c", tag="t")
        assert topic.read_values() == [b"a", b"b", b"c"]
        assert topic.read_arrow().read_all().num_rows == 3
    store = open_store(tmp_path / "e")
    topic = store.topic("ticks")
    assert topic.next_offset == 3
    assert list(topic.read()) == [Gap(0, 2, "ephemeral")]
    assert topic.append(b"d") == 3
    assert [r if isinstance(r, Gap) else r.value for r in topic.read()] == [
        Gap(0, 2, "ephemeral"), b"d",
    ]  # fmt: skip


def test_an_ephemeral_topic_forgets_the_oldest(open_store: OpenStore) -> None:
    """Its memory is bounded; what is gone is a gap."""
    topic = open_store(tail_bytes=10_000).create_topic("ticks", durability="ephemeral")
    for number in range(100):
        topic.append_many([b"%03d" % number * 100])
    items = list(topic.read())
    assert isinstance(items[0], Gap)
    assert items[0].first == 0
    assert topic.earliest == items[0].last + 1 > 0
    assert len(items) - 1 == len(topic) < 40
    assert items[-1].value == b"099" * 100  # type: ignore[union-attr]


def test_compression_is_kept_only_when_it_pays(open_store: OpenStore) -> None:
    """A value that shrinks is stored small, others are stored plain, both read the same."""
    import os

    store = open_store()
    for codec in ("zstd", "lz4", "gzip"):
        topic = store.create_topic(codec, compression=codec)
        topic.append_many([b"again and again " * 50] * 20)
        small = topic.stats().bytes
        assert small < 4000
        noise = [os.urandom(1000) for _ in range(20)]
        topic.append_many(noise)
        assert topic.stats().bytes - small > 20_000
        assert topic.read_values() == [b"again and again " * 50] * 20 + noise
        assert topic.read_arrow(20).read_all()["value"].to_pylist() == noise


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda t: t.append("text"), WrongTypeError, "encode it first"),
        (lambda t: t.append(5), WrongTypeError, "bytes or None, not int"),
        (lambda t: t.append(b"", key="text"), WrongTypeError, "a key is bytes"),
        (lambda t: t.append(b"", headers={"a": "b"}), WrongTypeError, "header 'a'"),
        (lambda t: t.append(b"", headers=[("a", b"b")]), WrongTypeError, "mapping"),
        (lambda t: t.append(b"", tag=b"bytes"), WrongTypeError, "a tag is text"),
        (lambda t: t.append(b"", tag="\ud800"), OptionError, "UTF-8"),
        (lambda t: t.append(b"", ttl=0), OptionError, "more than 0"),
        (lambda t: t.append(b"", ttl=float("nan")), OptionError, "more than 0"),
        (lambda t: t.append(b"", timestamp=-1.0), OptionError, "before 1970"),
        (lambda t: t.append(b"", timestamp="now"), WrongTypeError, "datetime"),
        (lambda t: t.append(b"", durability="fast"), OptionError, "ephemeral, memory, disk, fsync"),
        (lambda t: t.append(b"", durability="ephemeral"), OptionError, "whole topic"),
        (lambda t: t.append(b"x" * 2_000_000), TooLargeError, "record_bytes_max is 1000000"),
        (lambda t: t.append_many([]), OptionError, "at least one"),
        (lambda t: t.append_many(b"abc"), WrongTypeError, "use append for one"),
        (lambda t: t.append_many([b"a", "b"]), WrongTypeError, "encode it first"),
        (lambda t: t.append_many([b"x" * 2_000_000]), TooLargeError, "record 0 of the batch"),
        (lambda t: t.append_many([b"x" * 900_000] * 5), TooLargeError, "append it in parts"),
        (lambda t: t.append_many([Record(priority=256)]), OptionError, "priority=256"),
        (lambda t: t.append_arrow([1]), WrongTypeError, "RecordBatch or Table"),
        (lambda t: t.append_arrow(pa.table({"valu": [b""]})), OptionError, "did you mean 'value'"),
        (lambda t: t.append_arrow(pa.table({"value": pa.nulls(0)})), OptionError, "at least one"),
        (lambda t: t.append_arrow(pa.table({"value": [bytes(2 << 20)]})), TooLargeError, "nothing"),
        (lambda t: t.read("a"), WrongTypeError, "start='a'"),
        (lambda t: t.read(0, limit=-1), OptionError, "limit=-1"),
        (lambda t: t.watch(timeout=-1), OptionError, "timeout=-1"),
        (lambda t: t.offset_at("now"), WrongTypeError, "datetime"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_and_leave_nothing_behind(
    open_store: OpenStore, call: object, error: type[Exception], message: str
) -> None:
    """A clear error in the caller's own call, and not a byte in the log."""
    store = open_store(record_bytes_max=1_000_000, batch_bytes_max=3_000_000)
    topic = store.topic("orders")
    with pytest.raises(error, match=message):
        call(topic)  # type: ignore[operator]
    assert len(topic) == 0
    assert topic.append(b"fine") == 0


def test_topics_are_created_once(open_store: OpenStore) -> None:
    """`topic` opens or creates, `create_topic` only creates, unknown options are refused."""
    store = open_store()
    store.create_topic("orders", compression="zstd")
    assert store.topic("orders").options.compression == "zstd"
    with pytest.raises(TopicExistsError, match=r"store.topic\('orders'\)"):
        store.create_topic("orders")
    with pytest.raises(OptionError, match="did you mean 'compression'"):
        store.create_topic("other", compresion="zstd")  # type: ignore[call-overload]
    assert store.topics() == ["orders"]
    assert bool(store.topic("empty"))


def test_a_closed_store_says_so(open_store: OpenStore) -> None:
    """Every call on a handle that outlived its store."""
    store = open_store()
    topic = store.topic("orders")
    store.close()
    store.close()
    for call in (
        lambda: topic.append(b"x"), lambda: topic.append_many([b"x"]), lambda: topic.read(),
        lambda: topic.append_nowait(b"x"), lambda: len(topic), lambda: store.topic("orders"),
        lambda: store.sync(), lambda: store.stats(), lambda: store.topics(),
        lambda: topic.watch(),
    ):  # fmt: skip
        with pytest.raises(ClosedError, match="open it again"):
            call()
