"""Offsets that were given out before a crash: never given to another record."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

import pytest
from tests.crash.test_ctrl_c_and_faults import Meanwhile

from stratalog.errors import DiskFullError, StratalogError
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.log.ceilings import GIVEN_AHEAD, RESERVED_AHEAD_MAX
from stratalog.model import Durability, Gap, Record
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock
from stratalog.tools.verify import verify

# After a power cut the offsets of a lost tail were once given out again, though callers, readers
# in other processes and checkpoints of streams had seen them: those then missed the new records.


def opened(fs: Any, **options: Any) -> Store:
    """A store without threads: only what a test does is written."""
    return Store(
        "/s", StoreOptions(shards=1, **options), fs=fs, clock=ManualClock(), background=False
    )


def kill(store: Store) -> None:
    """Leave a store as a killed process does."""
    store.is_closed = store._has_let_go = True
    assert store._lock is not None
    store._lock.close()


def gaps(topic: Topic) -> list[Gap]:
    """All gaps."""
    return [item for item in topic.read() if isinstance(item, Gap)]


def kept(topic: Topic) -> dict[int, bytes | None]:
    """All records, by offset."""
    return {item.offset: item.value for item in topic.read() if isinstance(item, Record)}


def many(topic: Topic) -> int:
    """Append a batch; returns the last offset."""
    return topic.append_many([b"m"] * 7)[1]


def put(topic: Topic) -> int:
    """Append one with a key."""
    return topic.append(b"k", key=b"key")


def batch(topic: Topic) -> int:
    """Append in an atomic batch."""
    with topic._store.batch() as atomic:
        appended = atomic.topic(topic.name).append_many([b"b"] * 3)
    return appended.last


APPENDS: dict[str, Callable[[Topic], int]] = {
    "append": lambda topic: topic.append(b"v"),
    "append with a key": put,
    "append_many": many,
    "append_nowait": lambda topic: topic.append_nowait(b"v").result(),
    "batch": batch,
}


@pytest.mark.parametrize("durability", ["disk", "memory"])
@pytest.mark.parametrize("crash", ["kill", "power", "kill, then power", "power keeps all"])
@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS.keys())
@pytest.mark.parametrize("is_written", [False, True])
def test_no_offset_is_given_twice(
    append: Callable[[Topic], int], crash: str, durability: str, is_written: bool
) -> None:
    """Whatever the class and the crash, the next offset is above all that callers were told."""
    disk = FakeDisk()
    store = opened(disk, durability=durability)
    topic = store.topic("t")
    told = max(append(topic) for _ in range(5))
    if is_written:
        assert store._log is not None
        topic.read_values(0)  # commits what was acknowledged
        store._log.tick()
    before = kept(topic) if is_written else {}
    kill(store)
    after = disk if crash == "kill" else disk.crash(1, "keep" if "keeps" in crash else "drop")
    for turn in range(2):  # recovering again gives the same
        with opened(after, durability=durability) as store:
            topic = store.topic("t")
            assert topic.next_offset > told
            survivors = kept(topic)
            if crash == "kill" and is_written:
                assert survivors == before
                assert gaps(topic) == []
                assert topic.next_offset == told + 1, "after a mere kill what was written is there"
            missing = sorted(set(range(topic.next_offset)) - set(survivors))
            if missing:
                [gap] = gaps(topic)
                assert gap == Gap(missing[0], missing[-1], "crash")
                assert len(missing) <= (GIVEN_AHEAD if crash == "kill" else RESERVED_AHEAD_MAX) + 40
        del turn


@pytest.mark.parametrize("durability", ["disk", "memory", "fsync"])
def test_a_clean_close_leaves_no_gap_and_no_file(durability: str) -> None:
    """Everything is durable then, and the machine may go down at any time later."""
    disk = FakeDisk()
    for turn in range(3):
        with opened(disk, durability=durability) as store:
            assert store.topic("t").append(b"v") == turn
        assert "/s/ceilings" not in disk.image()
        disk = disk.crash(turn, "drop")
    with opened(disk) as store:
        assert kept(store.topic("t")) == {0: b"v", 1: b"v", 2: b"v"}
        assert gaps(store.topic("t")) == []


def test_fsync_appends_alone_make_no_file_and_leave_no_gap() -> None:
    """They are told their offsets once they are durable: a crash takes nothing."""
    disk = FakeDisk()
    store = opened(disk)
    for number in range(10):
        assert store.topic("t").append(b"v") == number
    assert "/s/ceilings" not in disk.image()
    kill(store)
    with opened(disk.crash(3, "drop")) as store:
        assert (store.topic("t").next_offset, gaps(store.topic("t"))) == (10, [])


def test_a_gap_survives_snapshots_and_consumers_go_over_it() -> None:
    """Readers, diffs, groups and queues see an explicit gap, also when the log is given up."""
    disk = FakeDisk()
    store = opened(disk, durability="disk")
    store.topic("t").append(b"safe", durability="fsync")
    store.topic("t").group("g")
    queue = store.queue("q")
    store.topic("t").append(b"lost")
    queue.put(b"lost")
    kill(store)
    disk = disk.crash(0, "drop")
    store = opened(disk, durability="disk")
    topic = store.topic("t")
    first = topic.append(b"after", durability="fsync")
    [gap] = gaps(topic)
    assert gap == Gap(1, first - 1, "crash")
    for _ in range(2):
        store.snapshot()
        store.close()
        store = opened(disk, durability="disk")
        topic = store.topic("t")
        assert kept(topic) == {0: b"safe", first: b"after"}
        assert gaps(topic) == [gap]
    news = topic.diff(after=0, limit=10)
    assert (news.gap, [record.value for record in news.records]) == (gap, [b"after"])
    group = topic.group("g")
    polled = group.poll("c", limit=10)
    assert [delivery.value for delivery in polled] == [b"safe", b"after"]
    group.ack(polled)
    assert group.poll("c", limit=10) == []
    queue = store.queue("q")
    queue.put(b"new")
    message = queue.get(timeout=0)
    assert message.value == b"new"
    queue.ack(message)
    store.close()


def test_ceilings_are_raised_as_appends_come_to_them() -> None:
    """Far more records than one reservation, by single appends and by batches."""
    disk = FakeDisk()
    store = opened(disk, durability="disk")
    topic = store.topic("t")
    offsets = [topic.append(b"v") for _ in range(3 * GIVEN_AHEAD)]
    assert offsets == list(range(3 * GIVEN_AHEAD))
    topic.append_many([b""] * 300_000)
    last = topic.append(b"v")
    assert topic._log.next_offset <= topic._log.given <= topic._log.reserved
    kill(store)
    with opened(disk.crash(0, "drop"), durability="disk") as store:
        assert store.topic("t").next_offset > last


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync", "create", "rename", "sync_dir"])
def test_an_append_that_cannot_be_covered_fails_alone(operation: str) -> None:
    """A failing disk makes the append fail, typed, and nothing else; the next one works."""
    fs = FaultFs(FakeDisk())
    store = opened(fs, durability="disk")
    topic = store.topic("t")
    path = "" if operation == "sync_dir" else "ceilings"
    fs.add(Fault(operation=operation, path_contains=path, error=28))
    with pytest.raises(DiskFullError):
        topic.append(b"lost")
    fs.clear()
    assert topic.append(b"kept") == 0
    store.close()


def test_a_damaged_file_is_told_and_does_not_stop_the_store(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its contents are not known any more; everything else is as it was."""
    disk = FakeDisk()
    store = opened(disk, durability="disk")
    store.topic("t").append(b"v")
    store.sync()
    kill(store)
    disk = disk.crash(0, "keep")
    disk.open("/s/ceilings", "write").pwrite([b"x"], 20)
    with opened(disk, durability="disk") as store:
        assert kept(store.topic("t")) == {0: b"v"}
    assert "checksum does not match" in caplog.text


def test_a_poisoned_store_keeps_its_ceilings() -> None:
    """Callers know offsets that it could not write: the next open leaves a gap."""
    disk = FakeDisk()
    fs = FaultFs(disk)
    store = opened(fs, durability="disk")
    topic = store.topic("t")
    told = [topic.append(b"v") for _ in range(5)]
    fs.add(Fault(operation="pwrite", path_contains=".log", always=True))
    with pytest.raises(StratalogError):
        store.close()
    with opened(disk, durability="disk") as store:
        assert store.topic("t").next_offset > told[-1]


# --- a disk that refuses, and takes more later -------------------------------------------------

# While the store stayed open, the offsets of relaxed appends that a full disk refused were given to
# the next records: two callers had been told the same offset for different ones.

LIMITS = {"full": errno.ENOSPC, "descriptors": errno.EMFILE, "memory": errno.ENOMEM}
RELAXED = {name: append for name, append in APPENDS.items() if name != "append_nowait"}


def refuse(store: Store, fs: FaultFs, code: int = errno.ENOSPC) -> None:
    """Make the commit of unawaited appends fail, and take the news of it."""
    assert store._log is not None
    fs.add(Fault(operation="pwrite", path_contains=".log", error=code, always=True))
    for shard in store._log.shards:
        shard.flush()
    fs.clear()
    with pytest.raises(StratalogError):
        store.sync()


def viewed(fs: Any, name: str) -> tuple[dict[int, bytes | None], list[Gap]]:
    """Records and gaps of a topic as another process sees them."""
    options = StoreOptions(shards=1)
    with Store("/s", options, read_only=True, fs=fs, clock=ManualClock()) as view:
        return kept(view.topic(name)), gaps(view.topic(name))


@pytest.mark.parametrize("durability", ["disk", "memory"])
@pytest.mark.parametrize("code", LIMITS.values(), ids=LIMITS.keys())
@pytest.mark.parametrize("append", RELAXED.values(), ids=RELAXED.keys())
@pytest.mark.parametrize("then", ["append", "append_many", "fsync", "batch", "checkpoint", "close"])
def test_an_offset_that_was_told_is_not_given_again_when_the_disk_has_space(
    append: Callable[[Topic], int], code: int, durability: str, then: str
) -> None:
    """It is an explicit gap: here, in another process, and after any end of this one."""
    disk = FakeDisk()
    fs = FaultFs(disk)
    store = opened(fs, durability=durability)
    topic = store.topic("t")
    assert topic.append(b"safe", durability="fsync") == 0
    told = max(append(topic) for _ in range(3))
    refuse(store, fs, code)
    expected: dict[int, bytes | None] = {0: b"safe"}
    if then == "append_many":
        expected |= {told + 1: b"next", told + 2: b"next"}
        assert topic.append_many([b"next"] * 2) == (told + 1, told + 2)
    elif then == "batch":
        expected[told + 1] = b"b"
        with store.batch() as atomic:
            atomic.topic("t").append(b"b")
    elif then in ("append", "fsync"):
        expected[told + 1] = b"next"
        relaxed = durability if then == "append" else "fsync"
        assert topic.append(b"next", durability=relaxed) == told + 1
    elif then == "checkpoint":
        store.checkpoint()
        store.snapshot()
    expected_gaps = [Gap(1, told, "crash")]
    if then != "close":
        assert (kept(topic), gaps(topic)) == (expected, expected_gaps)
        assert viewed(fs, "t") == (expected, expected_gaps)
        store.sync()
        crashed = disk.crash(1, "drop")
        with opened(crashed, durability=durability) as after:
            assert kept(after.topic("t")) == expected
            [gap, *others] = gaps(after.topic("t"))
            assert (gap.first, gap.reason) == (1, "crash")
            assert all(other.first > told for other in others)
            assert after.topic("t").next_offset > max(told, *expected)
    store.close()
    assert "/s/ceilings" not in disk.image()
    assert verify("/s", fs=disk).ok
    with opened(disk, durability=durability) as store:
        assert (kept(store.topic("t")), gaps(store.topic("t"))) == (expected, expected_gaps)
        assert store.topic("t").next_offset == max(told, *expected) + 1
        news = store.topic("t").diff(after=0, limit=10)
        assert news.gap == expected_gaps[0]


def test_a_disk_that_stays_full_adds_to_the_gap() -> None:
    """Whatever is told and lost meanwhile, and whatever fails for callers that waited."""
    fs = FaultFs(FakeDisk())
    store = opened(fs, durability="disk")
    topic, other = store.topic("t"), store.topic("other")
    assert other.append(b"safe", durability="fsync") == 0
    told = []
    for _ in range(4):
        told.append(topic.append(b"lost"))
        refuse(store, fs)
        fs.add(Fault(operation="pwrite", path_contains=".log", error=errno.ENOSPC))
        with pytest.raises(DiskFullError):
            other.append(b"never told", durability="fsync")
    assert told == sorted(set(told))
    assert other.append(b"next", durability="fsync") == 1, "it was told to no caller"
    following = topic.append(b"kept")
    assert following > told[-1]
    assert kept(topic) == {following: b"kept"}
    assert gaps(topic) == [Gap(0, following - 1, "crash")]
    store.close()


def test_a_close_on_a_full_disk_leaves_the_gap_to_the_next_open() -> None:
    """Offsets that could not be logged are still in the file of ceilings."""
    disk = FakeDisk()
    fs = FaultFs(disk)
    store = opened(fs, durability="disk")
    told = store.topic("t").append(b"lost")
    refuse(store, fs)
    fs.add(Fault(operation="pwrite", path_contains=".log", error=errno.ENOSPC, always=True))
    with pytest.raises(StratalogError):
        store.close()
    with opened(disk, durability="disk") as store:
        assert store.topic("t").next_offset > told
        assert gaps(store.topic("t"))[0].first == 0


def test_a_poisoned_store_that_rests_keeps_its_ceilings() -> None:
    """The ticker once took what was lost for written, and brought the ceiling down to it."""
    disk = FakeDisk()
    fs = FaultFs(disk)
    store = opened(fs, durability="disk")
    told = [store.topic("t").append(b"v") for _ in range(5)]
    fs.add(Fault(operation="pwrite", path_contains=".log", error=errno.EIO))
    assert store._log is not None
    for _ in range(3):
        store._log.tick()
    kill(store)
    with opened(disk, durability="disk") as store:
        assert store.topic("t").next_offset > told[-1]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_batch_over_shards_follows_the_gaps_of_all_of_its_topics(shards: int) -> None:
    """Its frame is in one shard, and what the others owe has to be in the log before it."""
    disk = FakeDisk()
    fs = FaultFs(disk)
    options = StoreOptions(shards=shards, durability=Durability.DISK)
    store = Store("/s", options, fs=fs, clock=ManualClock(), background=False)
    names = ["a", "b", "c", "d"]
    topics = {name: store.topic(name) for name in names}
    for name in names:
        assert topics[name].append(b"lost") == 0
    refuse(store, fs)
    assert store._log is not None
    for shard in store._log.shards:
        with contextlib.suppress(DiskFullError), shard.lock:
            shard.check()
    with store.batch(durability="fsync") as batch:
        for name in names:
            batch.topic(name).append(b"joint")
    kill(store)
    store = Store("/s", options, fs=disk.crash(0, "drop"), clock=ManualClock(), background=False)
    assert store.damage is None
    for name in names:
        assert kept(store.topic(name)) == {1: b"joint"}
        assert gaps(store.topic(name))[0].first == 0
    store.close()


def test_consumers_go_over_what_a_full_disk_refused() -> None:
    """Groups and queues deliver what comes after it, and an id that was lost may be put again."""
    fs = FaultFs(FakeDisk())
    store = opened(fs, durability="disk")
    queue, topic = store.queue("q"), store.topic("t")
    group = topic.group("g")
    store.sync()
    assert queue.put(b"lost", dedup_id="one").offset == 0
    topic.append(b"lost")
    refuse(store, fs)
    assert queue.get_many(1) == []
    again = queue.put(b"again", dedup_id="one")
    assert (again.offset, again.duplicate) == (1, False)
    assert topic.append(b"next") == 1
    assert [message.value for message in queue.get_many(10)] == [b"again"]
    polled = group.poll("c", limit=10)
    assert [delivery.offset for delivery in polled] == [1]
    store.close()


def test_an_offset_that_a_duplicate_was_told_is_not_given_again() -> None:
    """A put that waits for the disk is in flight; one that does not is told the same offset."""
    fs = Meanwhile(FakeDisk())
    store = opened(fs)
    queue = store.queue("q")
    told: list[tuple[int, bool]] = []

    def duplicate() -> None:
        told.append(queue.put(b"second", dedup_id="one", durability="disk"))

    fs.fault = Fault(operation="pwrite", path_contains=".log", error=errno.ENOSPC)
    fs.meanwhile = duplicate
    with pytest.raises(DiskFullError):
        queue.put(b"first", dedup_id="one")
    assert told == [(0, True)]
    assert queue.put(b"third", dedup_id="one") == (1, False)
    store.close()


def test_an_ephemeral_offset_is_not_given_again() -> None:
    """Its group fails with that of a topic in the log; the records are gone, the offsets too."""
    fs = FaultFs(FakeDisk())
    store = opened(fs, durability="disk")
    topic, other = store.create_topic("e", durability="ephemeral"), store.topic("t")
    assert topic.append(b"first") == 0
    store.sync()
    other.append(b"lost")
    assert topic.append(b"lost") == 1
    refuse(store, fs)
    assert topic.append(b"next") == 2
    assert kept(topic) == {0: b"first", 2: b"next"}
    assert gaps(topic) == [Gap(1, 1, "ephemeral")]
    store.close()
