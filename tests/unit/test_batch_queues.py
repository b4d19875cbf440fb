"""Batches over queues and consumer groups: consume, transform and produce in one."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable

import pytest
from tests.conftest import OpenStore
from tests.crash.model import kill, open_store

from stratalog.errors import (
    DiskFullError,
    LeaseLostError,
    OptionError,
    StateError,
    SyncFailedError,
    WrongTypeError,
)
from stratalog.handles.queue import Queue
from stratalog.handles.store import Store
from stratalog.model import Message
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock, MonitorFs
from stratalog.tools.dump import dump

shards = pytest.mark.parametrize("shards", [1, 3])


def kinds(store: Store) -> list[str]:
    """Kinds of the frames inside of others, so far."""
    store.sync()
    return [row["kind"] for row in dump(store.path) if "inside" in row]


def values(store: Store, name: str) -> list[bytes | None]:
    """Read a topic."""
    return store.topic(name).read_values()


@shards
def test_consume_transform_produce_in_one_frame(open_store: OpenStore, shards: int) -> None:
    """The message is gone and its result is there, in one; and both survive."""
    with open_store(shards=shards) as store:
        jobs = store.queue("jobs")
        for number in range(3):
            jobs.put(b"%d" % number)
        message = jobs.get(timeout=1)
        with store.batch() as batch:
            result = batch.topic("results").append(b"result of " + (message.value or b""))
            onward = batch.queue("mails").put(b"mail", priority=3, headers={"h": b"v"})
            batch.queue("jobs").ack(message)
            assert len(jobs) == 2
            assert store.queue("jobs").stats().pending == 1
        assert (result.offset, onward.offset, onward.duplicate) == (0, 0, False)
        assert message.is_settled
        assert jobs.stats().pending == 0
        assert values(store, "results") == [b"result of 0"]
        mail = store.queue("mails").get(timeout=1)
        assert (mail.value, mail.priority, mail.headers) == (b"mail", 3, {"h": b"v"})
        inside = kinds(store)
        assert sorted(inside) == ["group", "records", "records"]
    with open_store(shards=2) as store:
        assert [one.value for one in store.queue("jobs").get_many(10)] == [b"1", b"2"]


def test_the_end_of_the_message_s_own_block_finds_it_settled(open_store: OpenStore) -> None:
    """`with jobs.get()` around a batch that acknowledges: once is enough."""
    with open_store() as store:
        jobs = store.queue("jobs")
        jobs.put(b"job")
        with jobs.get(timeout=1) as message, store.batch() as batch:
            batch.topic("results").append(b"done")
            batch.queue("jobs").ack(message)
        assert len(jobs) == 0
        assert jobs.stats().consumed == 1


@shards
def test_a_batch_that_is_discarded_leaves_the_message(open_store: OpenStore, shards: int) -> None:
    """Still the consumer's, to be acknowledged or given back."""
    with open_store(shards=shards) as store:
        jobs = store.queue("jobs")
        jobs.put(b"job")
        message = jobs.get(timeout=1)
        with contextlib.suppress(KeyError), store.batch() as batch:
            batch.topic("results").append(b"bad")
            batch.queue("jobs").ack(message)
            raise KeyError
        assert not message.is_settled
        jobs.nack(message)
        assert jobs.get(timeout=1).delivery_count == 2
        assert store.topics() == ["jobs"]


@shards
def test_a_lost_lease_fails_the_whole_batch(open_store: OpenStore, shards: int) -> None:
    """Whether it is found in the call or at the end: nothing of the batch is there."""
    clock = ManualClock()
    with open_store(shards=shards, clock=clock, background=False) as store:
        jobs = store.queue("jobs", lease=10.0)
        jobs.put(b"job")
        slow = jobs.get(timeout=0)
        with store.batch() as batch:
            batch.topic("results").append(b"of the slow one")
            batch.queue("jobs").ack(slow)
            clock.advance(11.0)
            quick = jobs.get(timeout=0)
            with pytest.raises(LeaseLostError, match="no longer yours"):
                batch.commit()
        with store.batch() as batch:
            with pytest.raises(LeaseLostError):
                batch.queue("jobs").ack(slow)
            with pytest.raises(LeaseLostError):
                batch.queue("jobs").nack(slow)
            batch.topic("results").append(b"of the quick one")
            batch.queue("jobs").ack(quick)
        assert values(store, "results") == [b"of the quick one"]
        assert len(jobs) == 0


def test_of_two_batches_for_one_message_one_is_kept(open_store: OpenStore) -> None:
    """The second finds it acknowledged, whichever has the lease."""
    with open_store(shards=2) as store:
        jobs = store.queue("jobs")
        jobs.put(b"job")
        message = jobs.get(timeout=1)
        with store.batch() as first, store.batch() as second:
            for number, batch in enumerate((first, second)):
                batch.topic("results").append(b"%d" % number)
                batch.queue("jobs").ack(message)
            first.commit()
            second.commit()  # the message is settled: what is left of it is the append
        assert values(store, "results") == [b"0", b"1"]
        jobs.put(b"other")
        message = jobs.get(timeout=1)
        again = Message(message.value, offset=message.offset, lease=message.lease, source=jobs)
        with store.batch() as first, store.batch() as second:
            for number, (batch, one) in enumerate(((first, message), (second, again))):
                batch.topic("results").append(b"%d" % number)
                batch.queue("jobs").ack(one)
            first.commit()
            with pytest.raises(LeaseLostError):
                second.commit()
        assert values(store, "results") == [b"0", b"1", b"0"]


@shards
def test_puts_of_a_batch_are_deduplicated(open_store: OpenStore, shards: int) -> None:
    """Against what was put before, against each other; and a batch of nothing else is nothing."""
    clock = ManualClock()
    with open_store(shards=shards, clock=clock, background=False) as store:
        jobs = store.queue("jobs", dedup_window=60.0)
        jobs.put(b"first", dedup_id="a")
        with store.batch() as batch:
            queue = batch.queue("jobs")
            again = queue.put(b"again", dedup_id="a")
            new = queue.put(b"new", dedup_id="b")
            plain = queue.put(b"plain")
            twice = queue.put(b"twice", dedup_id="b")
            batch.topic("audit").append(b"x")
        assert [(one.offset, one.duplicate) for one in (again, new, plain, twice)] == [
            (0, True), (1, False), (2, False), (1, True),
        ]  # fmt: skip
        assert jobs.put(b"b", dedup_id="b") == (1, True)
        with store.batch() as batch:
            nothing = batch.queue("jobs").put(b"again", dedup_id="a")
        assert (nothing.offset, nothing.duplicate) == (0, True)
        assert values(store, "jobs") == [b"first", b"new", b"plain"]
        clock.advance(61.0)
        with store.batch() as batch:
            batch.topic("audit").append(b"y")
            later = batch.queue("jobs").put(b"later", dedup_id="b")
        assert (later.offset, later.duplicate) == (3, False)
    with open_store(shards=2, clock=clock, background=False) as store:
        assert store.queue("jobs").put(b"x", dedup_id="b") == (3, True)


def test_a_message_of_a_batch_has_its_priority_delay_and_time_to_live(
    open_store: OpenStore,
) -> None:
    """As `put` gives them, the queue's own time to live included."""
    clock = ManualClock()
    with open_store(clock=clock, background=False) as store:
        jobs = store.queue("jobs", ttl=100.0)
        jobs.put(b"plain", priority=5)
        with store.batch() as batch:
            queue = batch.queue("jobs")
            assert queue.name == "jobs"
            queue.put(b"urgent", priority=1)
            queue.put(b"late", delay=10.0)
            queue.put(b"short", ttl=5.0, priority=9)
            with pytest.raises(WrongTypeError):
                queue.put("x")  # type: ignore[arg-type]
            with pytest.raises(WrongTypeError):
                queue.put(b"", dedup_id=7)  # type: ignore[arg-type]
            with pytest.raises(OptionError):
                queue.put(b"", priority=256)
        clock.advance(6.0)
        assert [one.value for one in jobs.get_many(5)] == [b"urgent", b"plain"]
        clock.advance(5.0)
        assert [one.value for one in jobs.get_many(5)] == [b"late"]


@shards
def test_messages_are_given_back_in_a_batch(open_store: OpenStore, shards: int) -> None:
    """With a delay, by the queue's own backoff, or to the dead letters."""
    clock = ManualClock()
    with open_store(shards=shards, clock=clock, background=False) as store:
        jobs = store.queue("jobs", max_deliveries=2)
        for number in range(3):
            jobs.put(b"%d" % number)
        zero, one, two = jobs.get_many(3)
        with store.batch() as batch:
            batch.topic("errors").append(b"no luck")
            batch.queue("jobs").nack(zero, one, reason="no luck", delay=5.0)
            batch.queue("jobs").ack(two)
        assert zero.is_settled
        assert jobs.get_nowait() is None
        clock.advance(6.0)
        again = jobs.get_many(3)
        assert [(message.value, message.delivery_count) for message in again] == [
            (b"0", 2), (b"1", 2),
        ]  # fmt: skip
        with store.batch() as batch:
            batch.queue("jobs").nack(*again, reason="never")
        letters = list(jobs.dead.read())
        assert [letter.value for letter in letters] == [b"0", b"1"]
        assert letters[0].headers["dlq.reason"] == b"never"
        assert len(jobs) == 0
    with open_store(shards=2, clock=clock, background=False) as store:
        assert len(store.queue("jobs")) == 0
        assert len(store.queue("jobs").dead) == 2


@shards
def test_groups_acknowledge_in_a_batch(open_store: OpenStore, shards: int) -> None:
    """By offset and by delivery, in mode queue and in mode stream."""
    with open_store(shards=shards) as store:
        orders = store.topic("orders")
        orders.append_many([b"%d" % number for number in range(6)])
        billing, stats = orders.group("billing"), orders.group("stats", mode="stream")
        found = billing.poll("worker", limit=4)
        stats.poll("reader", limit=5)
        with store.batch() as batch:
            batch.topic("bills").append(b"bill")
            batch.group("orders", "billing").ack([0, found[1], 5])
            batch.group("orders", "billing").nack([found[2]], reason="later", delay=0.0)
            batch.group("orders", "stats").ack([3])
            with pytest.raises(OptionError, match="nothing is pending"):
                batch.group("orders", "stats").nack([1])
        assert [entry.offset for entry in billing.pending()] == [2, 3]
        assert (stats.lag, stats.floor) == (2, 4)
        assert [one.offset for one in billing.poll("other", limit=1)] == [2]
        assert stats.ack([2]) == 0
    with open_store(shards=2) as store:
        group = store.topic("orders").group("billing")
        assert [entry.offset for entry in group.pending()] == [2, 3]
        assert store.topic("orders").group("stats").floor == 4


def test_an_acknowledgement_alone_is_a_batch(open_store: OpenStore) -> None:
    """And one of nothing that is pending is nothing."""
    with open_store() as store:
        jobs = store.queue("jobs")
        jobs.put(b"job")
        message = jobs.get(timeout=1)
        with store.batch() as batch:
            batch.queue("jobs").ack(message)
        assert len(jobs) == 0
        with store.batch() as batch:
            batch.queue("jobs").ack(message)  # settled already
        assert jobs.stats().consumed == 1
        with store.batch() as batch:
            queue = batch.queue("jobs")
        for call in (lambda: queue.put(b"x"), lambda: queue.ack(message)):
            with pytest.raises(StateError, match="is over"):
                call()


def test_queues_that_are_not_written_cannot_be_in_a_batch(open_store: OpenStore) -> None:
    """As topics of class ephemeral; and at most once there is nothing to acknowledge."""
    with open_store() as store:
        store.queue("ticks", durability="ephemeral")
        once = store.queue("once", delivery="at_most_once")
        once.put(b"x")
        message = once.get(timeout=1)
        with store.batch() as batch:
            with pytest.raises(OptionError, match="is ephemeral"):
                batch.queue("ticks")
            batch.queue("once").ack(message)
            batch.queue("once").nack(message)
            batch.topic("a").append(b"1")
        assert len(once) == 0


class Failing:
    """A store of several shards on a disk that fails on demand."""

    def __init__(self, shards: int, durability: str = "fsync") -> None:
        self.disk = FakeDisk()
        self.faults = FaultFs(self.disk)
        self.clock = ManualClock()
        self.shards = shards
        self.durability = durability
        self.store = self._open()

    def _open(self) -> Store:
        return open_store(
            MonitorFs(self.faults), self.clock, shards=self.shards, durability=self.durability
        )

    def crash(self) -> Store:
        """Lose what was not durable."""
        kill(self.store)
        self.disk = self.disk.crash(0, damage="drop")
        self.faults = FaultFs(self.disk)
        self.store = self._open()
        return self.store


@shards
def test_a_batch_that_does_not_fit_the_disk_leaves_the_message_pending(shards: int) -> None:
    """Its consumer still has it, and can settle it in the next one."""
    disk = Failing(shards)
    store = disk.store
    jobs = store.queue("jobs")
    jobs.put(b"job")
    message = jobs.get(timeout=0)
    store.topic("results")
    disk.faults.add(Fault(operation="pwrite", error=errno.ENOSPC, short=100))
    with store.batch() as batch:
        batch.topic("results").append(b"bad")
        batch.queue("jobs").ack(message)
        batch.queue("jobs").put(b"bad", dedup_id="x")
        with pytest.raises(DiskFullError):
            batch.commit()
    assert not message.is_settled
    assert jobs.stats().pending == 1
    with store.batch() as batch:
        batch.topic("results").append(b"good")
        batch.queue("jobs").ack(message)
        put = batch.queue("jobs").put(b"good", dedup_id="x")
    assert (put.offset, put.duplicate) == (1, False)
    store = disk.crash()
    assert values(store, "results") == [b"good"]
    assert [one.value for one in store.queue("jobs").get_many(5)] == [b"good"]
    store.close()


@shards
def test_a_batch_whose_sync_fails_is_not_there_after_a_crash(shards: int) -> None:
    """Neither its acknowledgement nor its record."""
    disk = Failing(shards)
    store = disk.store
    jobs = store.queue("jobs")
    jobs.put(b"job")
    message = jobs.get(timeout=0)
    store.topic("results")
    disk.faults.add(Fault(operation="fdatasync", error=errno.EIO))
    with store.batch() as batch:
        batch.topic("results").append(b"bad")
        batch.queue("jobs").ack(message)
        with pytest.raises(SyncFailedError):
            batch.commit()
    assert not message.is_settled
    store = disk.crash()
    assert values(store, "results") == []
    disk.clock.advance(100.0)
    assert [one.value for one in store.queue("jobs").get_many(5)] == [b"job"]
    store.close()


def test_a_relaxed_batch_that_could_not_be_written_gives_its_messages_back() -> None:
    """No thread waited for it: the message comes again when its lease runs out."""
    disk = Failing(1, "disk")
    store = disk.store
    jobs = store.queue("jobs", lease=10.0)
    jobs.put(b"job")
    message = jobs.get(timeout=0)
    store.topic("results")
    store.sync()
    fault = Fault(operation="pwrite", error=errno.ENOSPC, short=100, path_contains=".log")
    disk.faults.add(fault)
    with store.batch() as batch:
        batch.topic("results").append(b"bad")
        batch.queue("jobs").ack(message)
    assert store._log is not None
    store._log.tick()
    with pytest.raises(DiskFullError):
        store.topic("results").append(b"told")
    disk.clock.advance(11.0)
    (again,) = jobs.get_many(5)
    assert again.delivery_count == 2
    assert values(store, "results") == []
    kill(store)


@shards
def test_a_snapshot_while_a_batch_is_written_has_the_message_pending(shards: int) -> None:
    """The snapshot is durable, the batch is not: the message must come again, not be lost."""
    disk = Failing(shards)
    store = disk.store
    jobs = store.queue("jobs")
    jobs.put(b"job")
    message = jobs.get(timeout=0)
    store.topic("results")
    captured: list[set[int]] = []
    during(store, lambda: captured.append(pending_of(jobs)))
    with store.batch() as batch:
        batch.topic("results").append(b"x")
        batch.queue("jobs").ack(message)
    assert {0} in captured
    assert pending_of(jobs) == set()
    store.close()


def pending_of(jobs: Queue) -> set[int]:
    """Offsets that a snapshot of the queue has as pending."""
    from stratalog.format.groups import decode_leases

    state = jobs.engine.capture()
    return set(decode_leases(state.leases, state.pending, state.consumers))


def during(store: Store, action: Callable[[], object]) -> None:
    """Do something whenever the log is about to be written."""
    assert store._log is not None
    for shard in store._log.shards:
        real = shard.files.write

        def write(*arguments: object, real: Callable[..., int] = real, **options: object) -> int:
            action()
            return real(*arguments, **options)

        shard.files.write = write  # type: ignore[method-assign]


@shards
def test_dead_letters_are_moved_in_one_frame(open_store: OpenStore, shards: int) -> None:
    """Written and consumed at once, however many at a time."""
    with open_store(shards=shards) as store:
        jobs = store.queue("jobs", max_deliveries=1)
        for number in range(5):
            jobs.put(b"%d" % number)
        jobs.nack(*jobs.get_many(5), reason="no")
        assert [letter.value for letter in jobs.dead.read()] == [b"0", b"1", b"2", b"3", b"4"]
        # Besides what was given back: the letters, and what they consume.
        assert sorted(kinds(store)) == ["group", "group", "records"]


def test_dead_letters_that_are_too_many_for_one_frame_take_several(
    open_store: OpenStore,
) -> None:
    """None is forgotten, whatever their size."""
    with open_store(batch_bytes_max=4096) as store:
        jobs = store.queue("jobs", max_deliveries=1)
        for number in range(12):
            jobs.put(bytes([number]) * 1000)
        jobs.nack(*jobs.get_many(12), reason="no")
        assert [(letter.value or b"")[0] for letter in jobs.dead.read()] == list(range(12))
        assert len(jobs) == jobs.stats().pending == 0


@shards
def test_workers_that_consume_and_produce_do_so_exactly_once(
    open_store: OpenStore, shards: int
) -> None:
    """Many threads, messages that are given back, leases that run out under their hands."""
    count = 120
    with open_store(shards=shards) as store:
        jobs = store.queue("jobs", lease=0.05, max_deliveries=0)
        for number in range(count):
            jobs.put(b"%d" % number)

        def work(me: int) -> None:
            turn = me
            while jobs.stats().consumed < count:
                for message in jobs.get_many(3, timeout=0.02):
                    turn += 1
                    if turn % 7 == 0:
                        threading.Event().wait(0.06)  # too slow: another consumer has it by now
                    with contextlib.suppress(LeaseLostError), store.batch() as batch:
                        batch.topic("results").append(message.value)
                        if turn % 5 == 0:
                            batch.topic("retries").append(message.value)
                            batch.queue("jobs").nack(message, delay=0.0)
                            raise LeaseLostError  # discarded: it stays pending, and comes again
                        batch.queue("jobs").ack(message)

        threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        results = values(store, "results")
        assert sorted(int(value or b"") for value in results) == list(range(count))
    with open_store(shards=2) as store:
        assert sorted(values(store, "results")) == sorted(results)  # type: ignore[type-var]
        assert len(store.queue("jobs")) == 0
