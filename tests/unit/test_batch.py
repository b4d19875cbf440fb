"""Atomic batches, as users hold them."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.conftest import OpenStore

from stratalog.errors import (
    ClosedError,
    OptionError,
    ReadOnlyError,
    StateError,
    TooLargeError,
    UnknownTopicError,
    WrongTypeError,
)
from stratalog.handles.store import Store
from stratalog.model import Gap, Record
from stratalog.testing import ManualClock

NAMES = ("a", "b", "c", "d", "e", "f")


def names_of_two_shards(store: Store) -> tuple[str, str]:
    """Two topics that are in different shards."""
    shards = {store.topic(name).log.shard: name for name in NAMES}
    first, second, *_ = shards.values()
    return first, second


def multis(store: Store) -> int:
    """Frames so far that have others inside."""
    from stratalog.tools.dump import dump

    store.sync()
    return sum(row["kind"] == "multi" for row in dump(store.path))


@pytest.mark.parametrize("shards", [1, 3])
def test_everything_is_there_once_the_block_is_left(open_store: OpenStore, shards: int) -> None:
    """Nothing before, all of it after, and handles say where."""
    with open_store(shards=shards) as store:
        store.topic("a").append(b"before")
        with store.batch() as batch:
            one = batch.topic("a").append(b"1", key=b"k", headers={"h": b"v"}, tag="t", node="eu")
            two = batch.topic("b").append_many([b"2", Record(b"3", tag="x"), None])
            three = batch.topic("a").append(b"4")
            assert store.topic("a").read_values() == [b"before"]
            assert store.topic("b").read_values() == []
            with pytest.raises(StateError, match="not committed"):
                _ = one.offset
            assert "not committed" in repr(two)
        assert (one.offset, three.offset, two.first, two.last) == (1, 2, 0, 2)
        assert repr(two) == "<stratalog.Appended 0 to 2>"
        record = next(iter(store.topic("a").read(1, 2)))
        assert isinstance(record, Record)
        assert (record.value, record.key, record.tag, record.node) == (b"1", b"k", "t", "eu")
        assert record.headers == {"h": b"v"}
        assert store.topic("b").read_values() == [b"2", b"3", None]
        assert multis(store) == 1
    with open_store(shards=2) as store:
        assert store.topic("a").read_values() == [b"before", b"1", b"4"]
        assert store.topic("b").read_values() == [b"2", b"3", None]


def test_an_exception_in_the_block_discards_everything(open_store: OpenStore) -> None:
    """The handles never know an offset."""
    with open_store() as store:
        with contextlib.suppress(KeyError), store.batch() as batch:
            handle = batch.topic("a").append(b"1")
            batch.topic("b").append(b"2")
            raise KeyError("mine")
        assert len(store.topic("a")) == len(store.topic("b")) == 0
        with pytest.raises(StateError):
            _ = handle.offset
        assert store.topic("a").append(b"next") == 0


def test_an_empty_batch_is_nothing(open_store: OpenStore) -> None:
    """No frame, no sync."""
    with open_store(background=False) as store:
        store.topic("a")
        before = store.stats()
        with store.batch() as batch:
            batch.topic("a")
        after = store.stats()
        assert (after.commits, after.syncs) == (before.commits, before.syncs)


def test_a_batch_of_one_topic_needs_no_frame_around_it(open_store: OpenStore) -> None:
    """It is what append_many writes."""
    with open_store() as store:
        with store.batch() as batch:
            batch.topic("a").append(b"1")
            batch.topic("b")
        assert store.topic("a").read_values() == [b"1"]
        assert multis(store) == 0


def test_what_is_wrong_is_told_in_the_call(open_store: OpenStore) -> None:
    """Types, sizes and names; and the rest of the batch is not affected."""
    with open_store(record_bytes_max=100, batch_bytes_max=250) as store:
        store.create_topic("ticks", durability="ephemeral")
        with store.batch() as batch:
            topic = batch.topic("a")
            wrong: list[tuple[type[Exception], str, Any]] = [
                (WrongTypeError, "encode it first", lambda: topic.append("text")),  # type: ignore[arg-type]
                (WrongTypeError, "text or None", lambda: topic.append(b"", tag=7)),  # type: ignore[arg-type]
                (WrongTypeError, "mapping", lambda: topic.append(b"", headers=[1])),  # type: ignore[arg-type]
                (OptionError, "before 1970", lambda: topic.append(b"", timestamp=-1.0)),
                (OptionError, "ttl", lambda: topic.append(b"", ttl=-1.0)),
                (TooLargeError, "record_bytes_max", lambda: topic.append(bytes(101))),
                (WrongTypeError, "use append for one", lambda: topic.append_many(b"x")),  # type: ignore[arg-type]
                (OptionError, "at least one", lambda: topic.append_many([])),
                (OptionError, "is ephemeral", lambda: batch.topic("ticks")),
                (WrongTypeError, "name", lambda: batch.topic(7)),  # type: ignore[call-overload]
                (WrongTypeError, "name", lambda: batch.table(7)),  # type: ignore[call-overload]
                (TooLargeError, "at most 250", lambda: topic.append_many([bytes(99)] * 3)),
            ]
            for kind, text, call in wrong:
                with pytest.raises(kind, match=text):
                    call()
            topic.append(b"good")
            batch.topic("b").append(b"good")
        assert store.topic("a").read_values() == [b"good"]


def test_a_batch_that_is_too_large_as_a_whole_changes_nothing(open_store: OpenStore) -> None:
    """Told by the append that is too much, or at the end if only the frames show it."""
    with open_store(batch_bytes_max=400) as store:
        with store.batch() as batch:
            for name in NAMES[:4]:
                batch.topic(name).append(bytes(20), tag="a tag")
            with pytest.raises(TooLargeError, match="make several batches"):
                batch.topic("e").append(b"")
            with pytest.raises(TooLargeError, match="make several batches"):
                batch.commit()
        assert [len(store.topic(name)) for name in NAMES] == [0] * 6


def test_topics_that_a_batch_names_are_made_when_it_is_committed(open_store: OpenStore) -> None:
    """One that is discarded, or has nothing for them, makes none."""
    with open_store(shards=2) as store:
        with contextlib.suppress(KeyError), store.batch() as batch:
            batch.topic("a").append(b"1")
            raise KeyError
        with store.batch() as batch:
            batch.topic("b").append(b"1")
            batch.topic("c")
            store.create_topic("b", compression="zstd")  # meanwhile
        assert store.topics() == ["b"]
        assert store.topic("b").read_values() == [b"1"]
    with (
        open_store(durability="ephemeral") as store,
        store.batch() as batch,
        pytest.raises(OptionError, match="is ephemeral"),
    ):
        batch.topic("new")


def test_a_batch_is_used_once_and_in_a_block(open_store: OpenStore) -> None:
    """Before, nested and afterwards: clear errors."""
    with open_store() as store:
        batch = store.batch()
        with pytest.raises(StateError, match="collects in a with block"):
            batch.topic("a")
        with batch:
            topic = batch.topic("a")
            topic.append(b"1")
            with pytest.raises(StateError, match="used once"), batch:
                pass
        for call in (lambda: batch.topic("a"), lambda: topic.append(b"2")):
            with pytest.raises(StateError, match="is over"):
                call()
        with pytest.raises(StateError, match="used once"), batch:
            pass
        assert store.topic("a").read_values() == [b"1"]


def test_batches_inside_of_each_other_are_two_batches(open_store: OpenStore) -> None:
    """The inner one is committed first."""
    with open_store() as store:
        with store.batch() as outer:
            late = outer.topic("a").append(b"outer")
            outer.topic("b").append(b"outer")
            with store.batch() as inner:
                inner.topic("a").append(b"inner")
                inner.topic("b").append(b"inner")
        assert store.topic("a").read_values() == [b"inner", b"outer"]
        assert late.offset == 1


def test_a_store_that_cannot_be_written_says_so(open_store: OpenStore) -> None:
    """Read-only, closed, or closed while the batch was open."""
    with open_store() as store:
        store.topic("a")
        with open_store(read_only=True) as view, pytest.raises(ReadOnlyError):
            view.batch()
        batch = store.batch()
        with batch:
            topic = batch.topic("a")
            topic.append(b"1")
            batch.topic("b").append(b"1")
            store.close()
            with pytest.raises(ClosedError):
                topic.append(b"2")
            with pytest.raises(ClosedError):
                batch.commit()
        with pytest.raises(ClosedError):
            store.batch()


def test_a_topic_dropped_meanwhile_fails_the_batch_as_a_whole(open_store: OpenStore) -> None:
    """The others keep their offsets."""
    with open_store(shards=3) as store:
        store.topic("c")
        with store.batch() as batch:
            for name in NAMES:
                batch.topic(name).append(b"1")
            store.drop_topic("c")
            with pytest.raises(UnknownTopicError, match="was dropped"):
                batch.commit()
        for name in "abdef":
            assert store.topic(name).append(b"next") == 0


@pytest.mark.parametrize("shards", [1, 2])
def test_the_class_is_the_strictest_of_its_topics_or_its_own(
    open_store: OpenStore, shards: int
) -> None:
    """Over several shards it is synced in any case."""
    with open_store(shards=shards, background=False, durability="disk") as store:
        first, second = ("a", "b") if shards == 1 else names_of_two_shards(store)
        assert store._log is not None
        home = store.topic(first).log.shard

        def is_synced() -> bool:
            return home.files.position == home.files.synced and not home.group.entries

        store.sync()
        with store.batch() as batch:
            batch.topic(first).append(b"1")
            batch.topic(second).append(b"1")
        assert is_synced() == (shards == 2)
        with store.batch(durability="fsync") as batch:
            batch.topic(first).append(b"2")
            batch.topic(second).append(b"2")
        assert is_synced()
        assert store.topic(second).read_values() == [b"1", b"2"]
        for wrong, text in (("ephemeral", "not possible"), ("often", "durability")):
            with pytest.raises(OptionError, match=text):
                store.batch(durability=wrong)


def test_times_do_not_go_back(open_store: OpenStore) -> None:
    """Records that bring a time, older than what the topic has by the time they are committed."""
    clock = ManualClock()
    with open_store(shards=2, clock=clock, background=False) as store:
        now = clock.time_ns()
        with store.batch() as batch:
            for name in NAMES:
                batch.topic(name).append(b"old", timestamp=now - 10**9, ttl=timedelta(hours=1))
                batch.topic(name).append(b"older", timestamp=now - 10**10)
            store.topic("a").append(b"between", timestamp=now)
        assert store.topic("a").read_values() == [b"between", b"old", b"older"]
        for name in NAMES:
            stamps = [one.timestamp for one in store.topic(name).read() if isinstance(one, Record)]
            assert stamps == sorted(stamps)
        clock.advance(4000.0)
        assert next(iter(store.topic("b").read())) == Gap(0, 0, "expired")


def test_what_the_caller_changes_afterwards_is_not_appended(open_store: OpenStore) -> None:
    """Bytes and headers are taken as they are in the call."""
    with open_store() as store:
        value, headers = bytearray(b"before"), {"h": b"before"}
        buffers: dict[str, Any] = {"h": bytearray(b"before")}
        with store.batch() as batch:
            batch.topic("a").append(value, headers=headers)
            batch.topic("b").append_many([Record(value, headers=headers)])  # type: ignore[arg-type]
            batch.topic("c").append(value, headers=buffers)
            value[:] = b"later"
            headers["h"] = b"later"
            buffers["h"][:] = b"later"
        for name in "abc":
            record = next(iter(store.topic(name).read()))
            assert isinstance(record, Record)
            assert (record.value, record.headers) == (b"before", {"h": b"before"})


def test_a_view_beside_the_writer_sees_batches(open_store: OpenStore) -> None:
    """Also one that follows it from frame to frame."""
    with open_store(shards=3) as store, open_store(read_only=True) as view:
        for number in range(5):
            with store.batch() as batch:
                for name in NAMES:
                    batch.topic(name).append(b"%d" % number)
            for name in NAMES:
                assert view.topic(name).read_values() == [b"%d" % n for n in range(number + 1)]


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3])
def test_whoever_sees_one_part_finds_all_others(open_store: OpenStore, shards: int) -> None:
    """Readers in other threads look at the topics in the order that would show half a batch."""
    rounds = 150
    with open_store(shards=shards, durability="disk") as store:
        topics = [store.topic(name) for name in NAMES]
        seen: list[list[int]] = []
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.is_set():
                seen.append([topic.next_offset for topic in topics])

        threads = [threading.Thread(target=watch) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(rounds):
            with store.batch(durability="fsync") as batch:
                for name in NAMES:
                    batch.topic(name).append(b"x")
        is_over.set()
        for thread in threads:
            thread.join()
        # Later looks see at least as much: the first topic is looked at first.
        assert all(counts == sorted(counts) for counts in seen)
        assert [len(topic) for topic in topics] == [rounds] * 6


def test_batches_and_appends_of_many_threads_share_topics(open_store: OpenStore) -> None:
    """Offsets are unique, in order, and nothing waits for ever."""
    with open_store(shards=3) as store:
        found: dict[str, dict[int, bytes]] = {name: {} for name in NAMES}
        lock = threading.Lock()

        def work(me: int) -> None:
            for number in range(40):
                value = b"%d %d" % (me, number)
                names = [NAMES[(me + number + step) % 6] for step in range(1 + number % 3)]
                if number % 4 == 3:
                    offset = store.topic(names[0]).append(value, durability="disk")
                    with lock:
                        found[names[0]][offset] = value
                    continue
                with store.batch() as batch:
                    handles = [(name, batch.topic(name).append(value)) for name in set(names)]
                with lock:
                    for name, handle in handles:
                        found[name][handle.offset] = value

        threads = [threading.Thread(target=work, args=(me,)) for me in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        for name, values in found.items():
            assert store.topic(name).read_values() == [values[n] for n in range(len(values))]
    with open_store(shards=2) as store:
        for name, values in found.items():
            assert store.topic(name).read_values() == [values[n] for n in range(len(values))]
