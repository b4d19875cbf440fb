"""The audit of OSErrors: every file operation of everything a store does, with every errno.

Bare `OSError`s once escaped from `checkpoint`, `snapshot`, `compact`, `repair` and `open`: each
caller of the disk was to turn them into errors of the package, and many did not. They are now made
at the one seam that all file access goes through; here each call of that seam fails once.

Sampled by default: one error per call, a few dozen calls per workload. `STRATALOG_SWEEP=exhaustive`
fails every call with every error.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stratalog import Gap
from stratalog.errors import DiskFullError, OutOfMemoryError, StratalogError, TooManyFilesError
from stratalog.handles.store import Store
from stratalog.handles.topic import Topic
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock
from stratalog.tools.dump import dump
from stratalog.tools.repair import repair
from stratalog.tools.verify import verify
from tests.crash.model import (
    ROOT,
    Session,
    TopicModel,
    Workload,
    check_adoptions,
    check_joints,
    check_recovered,
    check_topic,
    kill,
    open_store,
    settle_model,
)
from tests.crash.queues import QueueModel
from tests.crash.workloads import CATALOGUE, emptied_segments

EXHAUSTIVE = os.environ.get("STRATALOG_SWEEP") == "exhaustive"
POINTS = 40

ERRORS = (
    errno.ENOSPC, errno.EMFILE, errno.EIO, errno.EACCES, errno.ENOMEM, errno.EISDIR, errno.EROFS,
    errno.EDQUOT, errno.ENFILE, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EFBIG,
    errno.ENOENT, errno.EPERM, errno.EBUSY, errno.ESTALE,
)  # fmt: skip
RETRIABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def faults(calls: int) -> Iterator[tuple[int, int]]:
    """Which call fails, and how."""
    step = 1 if EXHAUSTIVE else max(1, calls // POINTS)
    for turn, call in enumerate(range(1, calls + 1, step)):
        for code in ERRORS if EXHAUSTIVE else (ERRORS[turn % len(ERRORS)],):
            yield call, code


def raised_by(action: Callable[[], object]) -> StratalogError | None:
    """Do something; returns what it raised, which is one of ours and says something."""
    try:
        action()
    except StratalogError as error:
        raised = error
    else:
        return None
    assert str(raised).strip(), "an error without a message"
    return raised


class AuditSession(Session):
    """A session on a disk that fails, which ends with the first error, in any thread."""

    def reopen(self, **options: Any) -> None:
        """Close and open again; if `ceilings` could not be removed, that leaves a gap."""
        super().reopen(**options)
        for name in self.topics.keys() & set(self.store.topics()):
            if not self.topics[name].is_ephemeral:
                settle_model(self.store.topic(name), self.topics[name])

    def tick(self, seconds: float = 0.01) -> None:
        """Do what the background thread would do; what it lost is raised here, not later."""
        super().tick(seconds)
        assert self.store._log is not None
        for shard in self.store._log.shards:
            if shard.lost is not None:
                raise shard.lost


def run(workload: Workload, fs: FaultFs) -> tuple[Session, StratalogError | None]:
    """Run a workload to its end, or to the first error, which is one of ours."""
    session = AuditSession(fs, ManualClock())  # type: ignore[arg-type]  # in the place of its disk
    return session, raised_by(lambda: workload(session))


def check(session: Session, store: Store) -> None:
    """Hold a store against what it was told."""
    for model in session.topics.values():
        if model.queue is not None:
            model.queue.is_disk_faulty = True
    check_recovered(store, session.topics)
    check_joints(store, session)
    check_adoptions(store, session.adoptions)


def check_live(session: Session) -> None:
    """Hold a store that has just met an error against what it was told."""
    store = session.store
    check_joints(store, session)
    check_adoptions(store, session.adoptions)
    for name in session.topics.keys() & set(store.topics()):
        model = session.topics[name]
        if model.queue is not None:
            check_live_queue(store, name, model)
        elif not model.is_ephemeral:
            check_topic(store.topic(name), model)


def check_live_queue(store: Store, name: str, model: TopicModel) -> None:
    """Every message that was not consumed is leased, waits, or is delivered now."""
    known: QueueModel = model.queue
    for offset in range(store.topic(name).next_offset):  # as many, or less if it is not got
        known.delivered[offset] = known.delivered.get(offset, 0) + 1
    try:
        queue = store.queue(name)
        got = {message.offset for message in queue.get_many(1000)}
    except StratalogError:
        known.dead.clear()  # a shard that takes no more delivers none, and moves no dead letters
        return
    state = queue._state
    left = got | set(state.pending) | set(state.delays.offsets().tolist())
    if queue.options.delivery == "at_most_once":
        known.consuming |= got
    gone = known.consuming | known.dying | known.requeueing
    # What the disk refused after its offset was told is a gap, and was reported.
    there = {item.offset for item in queue.topic.read() if not isinstance(item, Gap)}
    assert there - gone <= left, "a message is lost"
    assert not got & known.consumed, "a consumed message comes again"


@pytest.mark.parametrize("workload", CATALOGUE, ids=lambda workload: workload.__name__)
def test_any_error_of_any_file_operation_is_typed_and_leaves_nothing_half_applied(
    workload: Workload,
) -> None:
    """The live store and the reopened one hold what was acknowledged, and nothing half."""
    whole = FaultFs(FakeDisk())
    session, error = run(workload, whole)
    assert error is None
    session.kill()
    for call, code in faults(sum(whole.calls.values())):
        check_fault(workload, Fault(operation="any", call=call, error=code))


def test_a_rewrite_whose_directory_was_not_synced_is_finished_later() -> None:
    """The new file had its name, the chain the old summary, and that went to the cold store."""
    whole = FaultFs(FakeDisk())
    session, _ = run(emptied_segments, whole)
    session.kill()
    for call in range(1, whole.calls["sync_dir"] + 1):
        check_fault(emptied_segments, Fault(operation="sync_dir", call=call, error=errno.EPERM))


def check_fault(workload: Workload, fault: Fault) -> None:
    """Run a workload into an error; check the live store, and what a crash leaves of it."""
    disk = FakeDisk()
    fs = FaultFs(disk, [fault])
    session, error = run(workload, fs)
    try:
        fs.clear()
        if hasattr(session, "store") and not session.store.is_closed:
            check_live(session)
        session.kill()
        for damage in ("keep", "drop"):
            after = disk.crash(fault.call, damage=damage)
            store = open_store(after, session.clock, **session.options)
            check(session, store)
            store.topic("after the error").append(b"life goes on", durability="fsync")
            store.close()
    except BaseException as problem:
        place = f"{fault.operation} {fault.call}, {errno.errorcode[fault.error]}"
        problem.add_note(f"{workload.__name__}: {place}: {error}")
        raise


@pytest.mark.parametrize("code", RETRIABLE, ids=errno.errorcode.get)
def test_an_append_that_met_a_limit_may_be_repeated(code: int) -> None:
    """Nothing of it is kept, the shard takes more, and rotation is no exception.

    To run out of descriptors at a rotation once poisoned the shard: the next log file had its
    name, and could not be opened.
    """
    for call in range(1, 60):
        disk = FakeDisk()
        fs = FaultFs(disk)
        store = open_store(fs, ManualClock(), shards=1)
        topic = store.topic("orders")
        topic.append(b"first")
        # A sync that fails is no limit, whatever the code: nothing written before can be trusted.
        for operation in ("create", "open", "pwrite", "preallocate", "rename"):
            fs.add(Fault(operation=operation, call=call, error=code))
        failed = [append_again_and_again(topic, b"%d" % number * 300) for number in range(40)]
        kill(store)
        store = open_store(disk.crash(0, damage="drop"), ManualClock(), shards=1)
        assert store.damage is None
        values = [b"first", *(b"%d" % number * 300 for number in range(40))]
        assert store.topic("orders").read_values() == values
        store.close()
        if not any(failed):
            break
    assert call > 3


def append_again_and_again(topic: Topic, value: bytes) -> int:
    """Append until it is taken; returns how often it was not, which nothing is kept of."""
    failed = 0
    before = topic.next_offset
    while error := raised_by(lambda: topic.append(value)):
        assert isinstance(error, DiskFullError | TooManyFilesError | OutOfMemoryError)
        assert topic.next_offset == before
        failed += 1
    assert topic.next_offset == before + 1
    return failed


def test_what_a_relaxed_batch_lost_is_told_to_the_next_one() -> None:
    """No thread waits for a batch of class `disk`; a full disk takes it back, and that is reported.

    The messages that it acknowledged are given back in the background, by code that raises
    nothing: it once took the news with it, and no caller was ever told.
    """
    fs = FaultFs(FakeDisk())
    store = open_store(fs, ManualClock(), shards=1, durability="disk")
    jobs = store.queue("jobs")
    jobs.put(b"job")
    store.sync()
    (message,) = jobs.get_many(1)
    with store.batch() as batch:
        batch.topic("results").append(b"result")
        batch.queue("jobs").ack(message)
    fs.add(Fault(operation="pwrite", error=errno.ENOSPC))
    assert store._log is not None
    store._log.tick()
    fs.clear()
    jobs.get_many(1)
    with pytest.raises(DiskFullError):
        store.topic("results").append(b"another")
    assert store.topic("results").next_offset == 1
    kill(store)


def full_store(disk: FakeDisk) -> None:
    """A store with segments, deletes, a compacted topic, groups, a queue and a log tail."""
    store = open_store(disk, ManualClock())
    orders = store.create_topic("orders", segment_records=20)
    state = store.create_topic("state", compact=True, segment_records=10)
    jobs = store.queue("jobs")
    for number in range(50):
        orders.append(b"order %d" % number, key=b"%d" % number, tag=f"t{number % 5}")
        state.append(b"state %d" % number, key=b"k%d" % (number % 4))
        jobs.put(b"job %d" % number)
    store.checkpoint()
    orders.delete(tag="t3")
    for message in jobs.get_many(5, timeout=0):
        message.ack()
    store.snapshot()
    for number in range(20):
        orders.append(b"tail %d" % number)
    kill(store)


def damaged_store(disk: FakeDisk) -> None:
    """One of which a sealed segment, a log file and a snapshot are damaged."""
    full_store(disk)
    for suffix in (".seg", ".log", ".snap"):
        path = next(path for path in sorted(disk.image()) if path.endswith(suffix))
        file = disk.open(path, "write")
        file.pwrite([b"\xff" * 16], 96)
        file.fdatasync()
        file.close()


def opened(fs: FaultFs) -> None:
    open_store(fs, ManualClock()).close()


def viewed(fs: FaultFs) -> None:
    store = Store(ROOT, StoreOptions.build({}, {}), read_only=True, fs=fs, clock=ManualClock())
    try:
        for name in store.topics():
            store.topic(name).read_values()
            store.topic(name).stats()
        store.stats()
    finally:
        store.close()


def backed_up(fs: FaultFs) -> None:
    store = open_store(fs, ManualClock())
    try:
        store.backup("/copy")
    finally:
        store.close()


def compacted(fs: FaultFs) -> None:
    store = open_store(fs, ManualClock())
    try:
        store.compact()
    finally:
        store.close()


def verified(fs: FaultFs) -> None:
    verify(ROOT, fs=fs)


def repaired(fs: FaultFs) -> None:
    repair(ROOT, fs=fs, clock=ManualClock())


def planned(fs: FaultFs) -> None:
    repair(ROOT, fs=fs, dry_run=True, clock=ManualClock())


def dumped(fs: FaultFs) -> None:
    for _ in dump(ROOT, fs=fs):
        pass


def image(disk: FakeDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.image().items() if not path.endswith("/lock")}


def contents(disk: FakeDisk) -> dict[str, list[bytes | None]]:
    store = open_store(disk, ManualClock())
    assert store.damage is None, store.damage
    found = {name: store.topic(name).read_values() for name in store.topics()}
    store.close()
    return found


@pytest.mark.parametrize(
    ("make", "action"),
    [
        (full_store, opened), (full_store, viewed), (full_store, backed_up),
        (full_store, compacted), (full_store, verified), (full_store, repaired),
        (full_store, planned), (full_store, dumped), (damaged_store, repaired),
        (damaged_store, verified), (damaged_store, planned), (damaged_store, viewed),
    ],
    ids=lambda item: item.__name__,
)  # fmt: skip
def test_any_error_in_any_tool_is_typed_and_the_store_is_as_good_as_before(
    make: Callable[[FakeDisk], None], action: Callable[[FaultFs], object]
) -> None:
    """Done again without the error, it comes to the same end."""
    origin = FakeDisk()
    make(origin)
    whole = FaultFs(origin.crash(0, damage="keep"))
    action(whole)
    changes = action in (compacted, repaired)
    if changes or make is full_store:
        expected = contents(whole.inner)  # type: ignore[arg-type]
    for call, code in faults(sum(whole.calls.values())):
        disk = origin.crash(0, damage="keep")
        try:
            fs = FaultFs(disk, [Fault(operation="any", call=call, error=code)])
            raised_by(lambda fs=fs: action(fs))  # type: ignore[misc]
            if action in (verified, planned, viewed, dumped):
                assert image(disk) == image(origin)
            after = disk.crash(call, damage="drop")
            if changes:
                action(FaultFs(after))
            if changes or make is full_store:
                assert contents(after) == expected
        except BaseException as problem:
            problem.add_note(f"call {call}, {errno.errorcode[code]}")
            raise
