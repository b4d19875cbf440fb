"""Queues: put, get, acknowledge, give back, die, come again after a restart."""

from __future__ import annotations

import queue as stdlib_queue
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

from stratalog import (
    ClosedError,
    Gap,
    LeaseLostError,
    Message,
    OptionError,
    Priority,
    Put,
    Queue,
    QueueEmptyError,
    ReadOnlyError,
    Record,
    TooLargeError,
    UnknownTopicError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """Time that passes when a test says so."""
    return ManualClock()


@pytest.fixture
def store(open_store: OpenStore, clock: ManualClock) -> Store:
    """A store without threads of its own."""
    return open_store(clock=clock, background=False, durability="disk", shards=2)


def values(messages: list[Message]) -> list[bytes | None]:
    """List their values."""
    return [message.value for message in messages]


def drain(queue: Queue) -> list[bytes | None]:
    """Get and acknowledge everything that can be got."""
    found = []
    while (message := queue.get_nowait()) is not None:
        queue.ack(message)
        found.append(message.value)
    return found


def test_messages_are_got_in_the_order_they_were_put(store: Store) -> None:
    """First in, first out, and each once."""
    jobs = store.queue("jobs")
    assert [jobs.put(b"%d" % n) for n in range(3)] == [Put(n, False) for n in range(3)]
    assert len(jobs) == 3
    assert drain(jobs) == [b"0", b"1", b"2"]
    assert len(jobs) == 0
    assert jobs.get_nowait() is None


def test_an_empty_queue_is_told_from_a_message(store: Store) -> None:
    """`get` raises, also as the standard library's `Empty`; the others return nothing."""
    jobs = store.queue("jobs")
    with pytest.raises(QueueEmptyError, match="'jobs' had no message"):
        jobs.get(timeout=0)
    with pytest.raises(stdlib_queue.Empty):
        jobs.get(timeout=0.01)
    assert jobs.get_many(5) == []


def test_urgent_messages_come_first_and_each_priority_in_order(store: Store) -> None:
    """Also when they are put while others wait, and are not written yet."""
    jobs = store.queue("jobs")
    for number, priority in enumerate((Priority.LOW, 5, Priority.NORMAL, 5, Priority.HIGH)):
        jobs.put(b"%d" % number, priority=priority)
    first = jobs.get_nowait()
    assert first is not None
    assert first.priority == 0
    jobs.put(b"urgent", priority=1)
    assert values(jobs.get_many(10)) == [b"urgent", b"1", b"3", b"2", b"0"]


def test_a_block_that_ends_well_acknowledges_and_one_that_raises_gives_back(store: Store) -> None:
    """The exception is the reason, and goes on."""
    jobs = store.queue("jobs", max_deliveries=2)
    jobs.put(b"work")
    with pytest.raises(KeyError), jobs.get(timeout=0) as message:
        raise KeyError("missing")
    with pytest.raises(KeyError), jobs.get(timeout=0) as message:
        raise KeyError("missing")
    assert message.delivery_count == 2
    (letter,) = jobs.dead.read()
    assert letter.headers["dlq.reason"] == b"KeyError: 'missing'"
    jobs.put(b"more")
    with jobs.get(timeout=0) as message:
        jobs.ack(message)  # twice is fine
    assert jobs.stats().pending == 0


def test_a_lease_that_runs_out_gives_the_message_to_somebody_else(
    store: Store, clock: ManualClock
) -> None:
    """And the one who had it can no longer acknowledge, give back or keep it."""
    jobs = store.queue("jobs", lease=10.0)
    jobs.put(b"work")
    slow = jobs.get(timeout=0, consumer="slow")
    assert jobs.get_nowait() is None
    clock.advance(9.9)
    assert jobs.get_nowait() is None
    clock.advance(0.1)
    fast = jobs.get(timeout=0, consumer="fast")
    assert (fast.value, fast.delivery_count, fast.consumer) == (b"work", 2, "fast")
    for action in (jobs.ack, jobs.nack, jobs.touch):
        with pytest.raises(LeaseLostError, match="'fast' has it, as delivery 2"):
            action(slow)
    jobs.ack(fast)
    with pytest.raises(LeaseLostError, match="acknowledged"):
        jobs.ack(slow)


def test_a_late_acknowledgement_counts_if_nobody_else_has_the_message(
    store: Store, clock: ManualClock
) -> None:
    """The lease ran out, and the message waited to be delivered again: it no longer does."""
    jobs = store.queue("jobs", lease=10.0)
    jobs.put(b"work")
    jobs.put(b"next")
    message = jobs.get(timeout=0)
    clock.advance(11.0)
    assert len(jobs) == 2
    jobs.ack(message)
    assert drain(jobs) == [b"next"]


def test_touch_starts_the_lease_again(store: Store, clock: ManualClock) -> None:
    """Also when it had run out and was not taken over, any number of times."""
    jobs = store.queue("jobs", lease=10.0)
    jobs.put(b"work")
    message = jobs.get(timeout=0)
    clock.advance(9.0)
    jobs.touch(message)
    clock.advance(9.0)
    assert jobs.get_nowait() is None
    clock.advance(2.0)
    assert len(jobs) == 1  # it can be got again
    jobs.touch(message, lease=60.0)
    assert len(jobs) == 0
    clock.advance(59.0)
    assert jobs.get_nowait() is None
    clock.advance(2.0)
    again = jobs.get(timeout=0)
    assert again.delivery_count == 2
    with pytest.raises(LeaseLostError):
        jobs.touch(message)


def test_what_is_given_back_comes_again_at_once_and_in_its_place(store: Store) -> None:
    """Unless a delay says otherwise."""
    jobs = store.queue("jobs")
    for number in range(4):
        jobs.put(b"%d" % number)
    first, second, third = jobs.get_many(3)
    jobs.nack(second)
    jobs.nack(first)
    assert values(jobs.get_many(10)) == [b"0", b"1", b"3"]
    jobs.ack(third)
    assert third.is_settled


def test_a_delay_keeps_a_message_back(store: Store, clock: ManualClock) -> None:
    """When it is put, and when it is given back."""
    jobs = store.queue("jobs")
    jobs.put(b"later", delay=5.0)
    jobs.put(b"now")
    message = jobs.get(timeout=0)
    assert message.value == b"now"
    jobs.nack(message, delay=3.0)
    assert jobs.get_nowait() is None
    assert (jobs.stats().waiting, jobs.stats().delayed, len(jobs)) == (0, 2, 2)
    clock.advance(3.0)
    assert jobs.get(timeout=0).value == b"now"
    clock.advance(2.0)
    assert jobs.get(timeout=0).value == b"later"


def test_backoff_doubles_up_to_its_bound(store: Store, clock: ManualClock) -> None:
    """One second, two, four, then five."""
    jobs = store.queue("jobs", backoff=1.0, backoff_max=5.0, max_deliveries=0)
    jobs.put(b"work")
    for wait in (1.0, 2.0, 4.0, 5.0, 5.0):
        jobs.nack(jobs.get(timeout=0))
        clock.advance(wait - 0.01)
        assert jobs.get_nowait() is None
        clock.advance(0.01)
    assert jobs.get(timeout=0).delivery_count == 6


def test_a_message_expires_when_its_time_is_up(store: Store, clock: ManualClock) -> None:
    """Waiting or read ahead already, its own time or the queue's."""
    jobs = store.queue("jobs", ttl=60.0)
    jobs.put(b"short", ttl=5.0)
    jobs.put_many([b"long", Record(value=b"own", expires_at=clock.time_ns() + 10**9)])
    jobs.put(b"long too")
    assert values(jobs.peek(4)) == [b"short", b"long", b"own", b"long too"]  # type: ignore[arg-type]
    clock.advance(5.0)
    assert values(jobs.peek(4)) == [b"long", b"long too"]  # type: ignore[arg-type]
    assert drain(jobs) == [b"long", b"long too"]
    assert jobs.stats().expired == 2
    jobs.put(b"last")
    clock.advance(60.0)
    assert jobs.get_nowait() is None


def test_a_message_that_fails_too_often_dies(store: Store, clock: ManualClock) -> None:
    """By hand or because its lease runs out; its headers say what became of it."""
    jobs = store.queue("jobs", max_deliveries=2, lease=10.0)
    jobs.put(b"by hand", priority=3, headers={"trace": b"7"})
    jobs.put(b"by time", priority=4)
    first = jobs.get(timeout=0)
    jobs.nack(first, reason="no luck")
    again = jobs.get(timeout=0)
    jobs.get(timeout=0)
    jobs.nack(again, reason="none again")
    (letter,) = jobs.dead.read()
    assert letter.value == b"by hand"
    assert letter.headers == {
        "trace": b"7",
        "dlq.original_offset": b"0",
        "dlq.delivery_count": b"2",
        "dlq.reason": b"none again",
        "dlq.reasons": b'["no luck","none again"]',
        "dlq.failed_at": b"%d" % clock.time_ns(),
    }
    clock.advance(10.0)
    jobs.get(timeout=0)
    clock.advance(10.0)
    assert jobs.get_nowait() is None
    assert [letter.value for letter in jobs.dead.read()] == [b"by hand", b"by time"]
    assert (len(jobs.dead), jobs.stats().dead, len(jobs)) == (2, 2, 0)
    assert store.topics() == ["jobs", "jobs.dead"]


def test_dead_letters_go_back_or_go_for_good(store: Store) -> None:
    """All of them or some; what goes back starts anew."""
    jobs = store.queue("jobs", max_deliveries=1)
    for number in range(4):
        jobs.put(b"%d" % number, priority=number, headers={"n": b"%d" % number})
    jobs.nack(*jobs.get_many(4), reason="all")
    assert len(jobs.dead) == 4
    assert jobs.dead.requeue(1, 3, priority=7) == [Put(4, False), Put(5, False)]
    with pytest.raises(OptionError, match="no dead letter at offset 3"):
        jobs.dead.requeue(3)
    (first, second) = jobs.get_many(5)
    assert (first.value, first.priority, first.delivery_count) == (b"1", 7, 1)
    assert second.headers == {"n": b"3"}
    assert len(jobs.dead.requeue()) == 2
    assert values(jobs.get_many(5)) == [b"0", b"2"]
    jobs.nack(first, second, reason="again")
    assert jobs.dead.purge() == 2
    assert (jobs.dead.purge(), list(jobs.dead.read())) == (0, [])


def test_a_duplicate_is_not_put_and_the_first_is_named(store: Store, clock: ManualClock) -> None:
    """Within the window; text and bytes are the same id."""
    jobs = store.queue("jobs", dedup_window=60.0)
    assert jobs.put(b"a", dedup_id="x") == (0, False)
    assert jobs.put(b"b", dedup_id=b"x", priority=3) == (0, True)
    assert jobs.put(b"c", dedup_id="y") == (1, False)
    drain(jobs)
    assert jobs.put(b"d", dedup_id="x") == (0, True)  # also when it was consumed
    clock.advance(59.0)
    assert jobs.put(b"e", dedup_id="y").duplicate
    clock.advance(1.0)
    assert jobs.put(b"f", dedup_id="x") == (2, False)
    assert jobs.stats().duplicates == 3


def test_duplicates_in_a_batch_are_left_out(store: Store) -> None:
    """Those of messages before, and of each other; the key of a record is its id."""
    jobs = store.queue("jobs")
    jobs.put(b"0", dedup_id="a")
    batch: list[Any] = [Record(value=b"1", key=b"b"), b"2", Record(value=b"3", key=b"a"),
             Record(value=b"4", key=b"b")]  # fmt: skip
    assert jobs.put_many(batch) == [(1, False), (2, False), (0, True), (1, True)]
    assert jobs.put_many([]) == []
    assert drain(jobs) == [b"0", b"1", b"2"]


def test_the_oldest_id_goes_when_there_are_too_many(store: Store) -> None:
    """The window is bounded in number as well as in time."""
    jobs = store.queue("jobs", dedup_entries=100)
    for number in range(150):
        jobs.put(b"", dedup_id=f"{number}")
    assert jobs.stats().dedup_entries == 100
    assert jobs.put(b"", dedup_id="50").duplicate
    assert not jobs.put(b"", dedup_id="49").duplicate
    assert not jobs.put(b"", dedup_id="50").duplicate


def test_at_most_once_takes_for_good(open_store: OpenStore, clock: ManualClock) -> None:
    """Nothing is pending, nothing comes again, and there is nothing to acknowledge."""
    store = open_store(clock=clock, background=False)
    jobs = store.queue("jobs", delivery="at_most_once")
    jobs.put_many([b"0", b"1", b"2"])
    with pytest.raises(ValueError, match="whatever"), jobs.get(timeout=0) as message:
        raise ValueError("whatever")
    jobs.ack(message)
    jobs.nack(jobs.get(timeout=0))
    assert (jobs.stats().pending, len(jobs)) == (0, 1)
    store.close()
    store = open_store(clock=clock, background=False)
    assert drain(store.queue("jobs")) == [b"2"]


def test_everything_is_remembered(open_store: OpenStore, clock: ManualClock) -> None:
    """After a close, and with a snapshot: counts, leases, delays, ids, priorities, options."""
    for turn in range(2):
        name = f"jobs-{turn}"
        store = open_store(clock=clock, background=False, durability="disk")
        jobs = store.queue(name, lease=20.0, max_deliveries=3)
        for number in range(6):
            jobs.put(b"%d" % number, priority=number % 2, dedup_id=f"{number}")
        jobs.put(b"later", delay=100.0)
        a, b, c = jobs.get_many(3, consumer="worker")
        jobs.ack(a)
        jobs.nack(b, delay=50.0)
        if turn:
            store.snapshot()
        before = jobs.stats()
        store.close()
        store = open_store(clock=clock, background=False, durability="disk")
        jobs = store.queue(name)
        assert jobs.stats() == before
        assert (jobs.options.lease, jobs.options.max_deliveries) == (20.0, 3)
        assert jobs.put(b"", dedup_id="3") == (3, True)
        assert values(jobs.get_many(10)) == [b"1", b"3", b"5"]
        clock.advance(20.0)
        again = jobs.get(timeout=0)
        assert (again.offset, again.delivery_count) == (c.offset, 2)
        jobs.seek("latest")
        store.close()


def test_seek_delivers_again_from_an_offset_or_a_time(store: Store, clock: ManualClock) -> None:
    """Consumed messages, too; pending deliveries become void."""
    jobs = store.queue("jobs")
    for number in range(6):
        jobs.put(b"%d" % number, priority=number % 2)
        clock.advance(1.0)
    store.sync()
    middle = store.topic("jobs").offset_at(clock.time_ns() / 1e9 - 3.5)
    assert middle == 3
    held = jobs.get_many(3)
    assert jobs.seek(0) == 0
    with pytest.raises(LeaseLostError):
        jobs.ack(held[0])
    assert values(jobs.get_many(10)) == [b"0", b"2", b"4", b"1", b"3", b"5"]
    assert jobs.seek(clock.time_ns() / 1e9 - 3.5) == 3
    assert sorted(drain(jobs)) == [b"3", b"4", b"5"]  # type: ignore[type-var]
    jobs.seek("earliest")
    assert jobs.purge() == 6
    assert (drain(jobs), jobs.seek("latest")) == ([], 6)


def test_too_many_pending_messages_hold_the_others_back(store: Store) -> None:
    """Back-pressure: an acknowledgement makes room."""
    jobs = store.queue("jobs", pending_max=3)
    jobs.put_many([b"%d" % n for n in range(5)])
    first, *_ = jobs.get_many(5)
    assert jobs.get_nowait() is None
    jobs.ack(first)
    assert values(jobs.get_many(5)) == [b"3"]


def test_messages_that_waited_too_long_are_promoted(store: Store, clock: ManualClock) -> None:
    """A steady stream of urgent ones does not keep the others for ever."""
    jobs = store.queue("jobs", promote_after=10.0)
    jobs.put(b"low", priority=200)
    clock.advance(5.0)
    jobs.put(b"middle", priority=100)
    jobs.put_many([b"high"] * 3)
    assert jobs.get(timeout=0).value == b"high"
    clock.advance(5.0)
    assert jobs.get(timeout=0).value == b"low"
    assert jobs.get(timeout=0).value == b"high"
    clock.advance(5.0)
    assert values(jobs.get_many(5)) == [b"middle", b"high"]


def test_a_waiting_get_is_woken_by_a_put(open_store: OpenStore) -> None:
    """Without looking again and again, and each message once."""
    store = open_store(durability="disk")
    jobs = store.queue("jobs")
    found: list[bytes | None] = []

    def consume() -> None:
        with jobs.get(timeout=30.0) as message:
            found.append(message.value)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(4):
        jobs.put(b"%d" % number)
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [b"0", b"1", b"2", b"3"]  # type: ignore[type-var]


def test_a_waiting_get_is_woken_when_something_is_due(open_store: OpenStore) -> None:
    """A delay, a lease that began after it waited, and a message that is given back."""
    store = open_store(durability="disk")
    jobs = store.queue("jobs")
    jobs.put(b"later", delay=0.05)
    held = jobs.get(timeout=30.0, lease=600.0)
    found: list[Message] = []
    waits = threading.Thread(target=lambda: found.append(jobs.get(timeout=30.0)))
    waits.start()
    while not jobs._engine.line:  # type: ignore[union-attr]
        pass
    jobs.touch(held, lease=0.05)
    waits.join(30)
    assert found[0].delivery_count == 2
    waits = threading.Thread(target=lambda: found.append(jobs.get(timeout=30.0)))
    waits.start()
    while not jobs._engine.line:  # type: ignore[union-attr]
        pass
    jobs.nack(found[0])
    waits.join(30)
    assert found[1].delivery_count == 3


def test_closing_the_store_ends_the_wait(open_store: OpenStore) -> None:
    """With an error that says so, for all who wait."""
    store = open_store(durability="disk")
    jobs = store.queue("jobs")
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            jobs.get()
        except ClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(jobs._engine.line.waiters) < 3:  # type: ignore[union-attr]
        pass
    store.close()
    for thread in threads:
        thread.join(30)
    assert len(errors) == 3
    with pytest.raises(ClosedError):
        jobs.put(b"x")
    with pytest.raises(ClosedError):
        jobs.get_nowait()


def test_a_queue_is_a_topic_and_a_topic_is_no_queue(store: Store) -> None:
    """Its messages can be read and consumed by groups; mixing the two up is an error."""
    jobs = store.queue("jobs")
    jobs.put(b"work", priority=3)
    assert store.queues() == ["jobs"]
    assert store.topic("jobs").read_values() == [b"work"]
    assert store.topic("jobs").append(b"appended") == 1
    audit = jobs.topic.group("audit")
    assert [one.value for one in audit.poll("a")] == [b"work", b"appended"]
    assert values(jobs.get_many(5)) == [b"appended", b"work"]
    store.topic("plain")
    with pytest.raises(WrongKindError, match=r"is a topic, not a queue.*\.group\("):
        store.queue("plain")
    with pytest.raises(WrongKindError):
        store.drop_queue("plain")
    with pytest.raises(OptionError, match="dead letters"):
        store.queue("jobs.dead")


def test_a_dropped_queue_is_gone_with_its_dead_letters(store: Store) -> None:
    """And one of its name starts from nothing."""
    jobs = store.queue("jobs", max_deliveries=1, durability="fsync")
    jobs.put(b"a", dedup_id="x")
    jobs.put(b"b")
    jobs.nack(jobs.get(timeout=0))
    store.drop_queue("jobs")
    assert store.topics() == []
    for call in (lambda: jobs.put(b"c"), jobs.get_nowait, lambda: jobs.put(b"c", dedup_id="y")):
        with pytest.raises(UnknownTopicError, match="was dropped"):
            call()
    assert store.queue("jobs").put(b"", dedup_id="x") == (0, False)
    assert store.stats().memory["queues"] < 10_000


def test_a_reader_sees_a_queue_and_changes_nothing(
    open_store: OpenStore, clock: ManualClock
) -> None:
    """Beside a live writer: what waits, what is pending, what died."""
    store = open_store(clock=clock, background=False)
    jobs = store.queue("jobs", max_deliveries=1)
    jobs.put(b"a", delay=50.0)
    jobs.put(b"b", priority=2)
    jobs.put_many([b"c", b"d", b"e"])
    jobs.nack(jobs.get(timeout=0))
    jobs.get(timeout=0)
    view = open_store(read_only=True, clock=clock).queue("jobs")
    for _ in range(2):
        assert view.stats() == jobs.stats()
        assert values(view.peek(5)) == values(jobs.peek(5))  # type: ignore[arg-type]
        assert len(view) == len(jobs)
        assert [one.value for one in view.dead.read()] == [b"c"]
        jobs.put(b"f", priority=7)
        store.snapshot()
    clock.advance(60.0)
    assert values(view.peek(5)) == [b"a", b"e", b"b", b"f", b"f"]  # type: ignore[arg-type]
    for call in (lambda: view.put(b"x"), view.get_nowait, lambda: view.seek(0), view.dead.purge):
        with pytest.raises(ReadOnlyError):
            call()
    reader = open_store(read_only=True)
    assert reader.queue("jobs", max_deliveries=1).name == "jobs"
    with pytest.raises(ReadOnlyError, match="lease"):
        reader.queue("jobs", lease=77.0)
    with pytest.raises(UnknownTopicError):
        reader.queue("none")


def test_consumed_messages_give_their_space_back(store: Store) -> None:
    """Whole segments, once everything in them is consumed, and by further groups as well."""
    jobs = store.queue("jobs")
    other = jobs.topic.group("other")
    log = jobs.topic._log
    object.__setattr__(log.options, "segment_records", 10)
    jobs.put_many([b"x" * 100] * 40)
    store.checkpoint()
    jobs.ack(*jobs.get_many(25))
    store.compact()
    assert jobs.topic.earliest == 0  # the other group has not seen them
    other.ack(other.poll("o", limit=15))
    store.compact()
    assert jobs.topic.earliest == 10
    other.drop()
    store.compact()
    assert jobs.topic.earliest == 20
    assert len(jobs) == 15


def test_a_queue_that_keeps_up_writes_no_message_twice(
    open_store: OpenStore, clock: ManualClock
) -> None:
    """Messages consumed before a checkpoint are not put into a segment, and stay consumed."""
    store = open_store(clock=clock, background=False)
    jobs = store.queue("jobs")
    jobs.put_many([b"%03d" % n + b"x" * 1000 for n in range(100)])
    jobs.ack(*jobs.get_many(90))
    jobs.get_many(3)  # held: they are not consumed
    store.checkpoint()
    assert jobs.topic.earliest == 90
    assert jobs.topic.stats().bytes < 20_000
    assert next(jobs.topic.read(0)) == Gap(0, 89, "evicted")
    store.close()
    again = open_store(clock=clock, background=False).queue("jobs")
    assert [(m.value or b"")[:3] for m in again.get_many(10)] == [
        b"%03d" % n for n in range(93, 100)
    ]
    clock.advance(60)
    assert [(m.value or b"")[:3] for m in again.get_many(10)] == [
        b"%03d" % n for n in range(90, 100)
    ]


def test_ids_of_consumed_messages_count_behind_a_checkpoint_and_a_crash(
    open_store: OpenStore, clock: ManualClock, tmp_path: Path
) -> None:
    """They are in the messages until a snapshot has them: so those are kept until then."""
    store = open_store(clock=clock, background=False)
    jobs = store.queue("jobs")
    jobs.put(b"a", dedup_id="x")
    jobs.ack(jobs.get(0))
    store.checkpoint()
    shutil.copytree(store.path, tmp_path / "crashed")
    with Store(tmp_path / "crashed", StoreOptions(), clock=clock, background=False) as again:
        assert again.queue("jobs").put(b"b", dedup_id="x") == (0, True)


def test_options_that_are_given_again_are_the_queues_from_then_on(
    open_store: OpenStore, clock: ManualClock
) -> None:
    """All but its durability, which is for good."""
    store = open_store(clock=clock, background=False)
    store.queue("jobs", lease=5.0, durability="disk")
    assert store.queue("jobs", max_deliveries=9).options.lease == 5.0
    with pytest.raises(OptionError, match="made with durability=disk"):
        store.queue("jobs", durability="fsync")
    with pytest.raises(OptionError, match="did you mean 'lease'"):
        store.queue("jobs", leese=1.0)  # type: ignore[call-overload]
    with pytest.raises(OptionError, match="delivery='twice'"):
        store.queue("jobs", delivery="twice")
    store.close()
    jobs = open_store(clock=clock, background=False).queue("jobs")
    assert (jobs.options.lease, jobs.options.max_deliveries) == (5.0, 9)


def test_bad_arguments_change_nothing(store: Store) -> None:
    """Each is told what is wrong with it."""
    jobs = store.queue("jobs")
    for options in ({"priority": 256}, {"priority": -1}, {"ttl": -1.0}, {"delay": -2.0}):
        with pytest.raises(OptionError):
            jobs.put(b"x", **options)
    for bad in ({"dedup_id": 7}, {"priority": "high"}, {"headers": [1]}):
        with pytest.raises(WrongTypeError):
            jobs.put(b"x", **bad)
    with pytest.raises(WrongTypeError):
        jobs.put("text")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError):
        jobs.put("text", priority=3)  # type: ignore[arg-type]
    with pytest.raises(TooLargeError):
        jobs.put(bytes(17 << 20), priority=3)
    with pytest.raises(OptionError):
        jobs.get_many(0)
    with pytest.raises(OptionError):
        jobs.get(timeout=-1)
    with pytest.raises(OptionError):
        jobs.get_nowait(lease=0)
    assert (len(jobs), jobs.topic.next_offset) == (0, 0)


def test_an_ephemeral_queue_works_for_as_long_as_the_process_does(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Its messages are gone with it, and nothing of them is delivered after."""
    store = open_store(background=False)
    jobs = store.queue("jobs", durability="ephemeral")
    for number in range(5):
        jobs.put(b"%d" % number, priority=number % 2)
    assert values(jobs.get_many(2)) == [b"0", b"2"]
    store.close()
    jobs = open_store(background=False).queue("jobs")
    assert drain(jobs) == []
    jobs.put(b"new")
    assert drain(jobs) == [b"new"]
