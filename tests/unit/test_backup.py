"""Backup: a consistent copy of a running store, which is a store of its own."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import stratalog
from stratalog import (
    ClosedError,
    CorruptionError,
    DiskFullError,
    NotAStoreError,
    OptionError,
    ReadOnlyError,
    StorageError,
)
from stratalog.backup.plan import Plan
from stratalog.fs import PosixFileSystem
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock, MonitorFs


def values(path: Path, name: str) -> list[bytes | None]:
    """Read a topic of a store on the real disk."""
    with stratalog.open(path, read_only=True) as store:
        assert store.damage is None
        return store.topic(name).read_values()


def fill(store: Store, name: str = "small", count: int = 100, **options: Any) -> list[bytes]:
    """A topic of many sealed segments and an open one, with records in the log too."""
    sent = [b"%d " % number * 20 for number in range(count)]
    topic = store.create_topic(name, segment_records=7, **options)
    topic.append_many(sent[: count // 2])
    store.snapshot()
    topic.append_many(sent[count // 2 :])
    return sent


def sealed(path: Path) -> list[Path]:
    """All sealed segments of a store."""
    return sorted(path.rglob("*.seg"))


def test_a_backup_is_a_store_with_the_same_records(open_store: OpenStore, tmp_path: Path) -> None:
    """Identity, topics, options and records are those of the store; the lock is not there."""
    store = open_store()
    sent = fill(store)
    store.topic("other").append(b"x", key=b"k", tag="t")
    report = store.backup(tmp_path / "copy")
    assert (report.path, report.topics, report.records) == (str(tmp_path / "copy"), 2, 101)
    assert not (tmp_path / "copy" / "lock").exists()
    files = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert report.files == len(files)
    assert report.bytes_linked + report.bytes_copied == sum(f.stat().st_size for f in files)
    assert set(report.positions) == set(range(store.stats().shards))
    assert (report.cold_segments, report.cold) == (0, "")
    with open_store(tmp_path / "copy") as copy:
        assert copy.damage is None
        assert copy.stats().identity == store.stats().identity
        assert copy.topics() == ["other", "small"]
        assert copy.topic("small").read_values() == sent
        assert list(copy.topic("other").read()) == list(store.topic("other").read())
        assert copy.topic("small").options == store.topic("small").options


def test_a_store_that_holds_nothing_can_be_backed_up(open_store: OpenStore, tmp_path: Path) -> None:
    """The copy is a store all the same, and takes appends."""
    open_store().backup(tmp_path / "copy")
    with open_store(tmp_path / "copy") as copy:
        copy.topic("t").append(b"first")
    assert values(tmp_path / "copy", "t") == [b"first"]


@pytest.mark.slow
def test_a_busy_store_is_copied_at_one_position(open_store: OpenStore, tmp_path: Path) -> None:
    """All that was acknowledged before the call is in it, and of every topic a prefix."""
    store = open_store(shards=3, log_file_bytes=1 << 16, checkpoint_bytes=1 << 15)
    acknowledged: dict[str, int] = {}
    is_over = threading.Event()
    errors: list[BaseException] = []

    def append(name: str, durability: str) -> None:
        topic = store.create_topic(name, segment_records=500, durability=durability)
        number = 0
        try:
            while not is_over.wait(0.0005):
                topic.append_many([b"%d" % n for n in range(number, number + 3)])
                number += 3
                topic.append(b"%d" % number)
                number += 1
                acknowledged[name] = number
                if number % 400 == 0:
                    store.topic(f"new {name} {number}").append(b"new")
        except BaseException as error:
            errors.append(error)

    kinds = [("a", "fsync"), ("b", "disk"), ("c", "memory"), ("d", "fsync")]
    threads = [threading.Thread(target=append, args=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    reports, before = [], []
    try:
        for turn in range(6):
            while len(acknowledged) < len(kinds) or min(acknowledged.values()) < 100 * turn:
                assert not errors, errors
            before.append(dict(acknowledged))
            reports.append(store.backup(tmp_path / f"copy {turn}"))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    for turn, known in enumerate(before):
        with open_store(tmp_path / f"copy {turn}", shards=3) as copy:
            assert copy.damage is None
            assert copy.stats().torn_bytes == 0
            assert copy.stats().records == reports[turn].records
            for name, count in known.items():
                found = copy.topic(name).read_values()
                assert len(found) >= count
                assert found == [b"%d" % n for n in range(len(found))]
    for name, count in acknowledged.items():
        assert len(store.topic(name)) == count


def test_store_and_copy_go_their_own_ways(open_store: OpenStore, tmp_path: Path) -> None:
    """Appends, checkpoints and closes of one are nothing to the other, nor are later copies."""
    store = open_store(log_file_bytes=1 << 14)
    sent = fill(store)
    store.backup(tmp_path / "copy")
    copy = open_store(tmp_path / "copy", log_file_bytes=1 << 14)
    for turn in range(5):
        store.topic("small").append_many([b"ours %d" % turn] * 40)
        copy.topic("small").append_many([b"theirs %d" % turn] * 30)
        store.snapshot()
        copy.snapshot()
    copy.backup(tmp_path / "copy of the copy")
    store.close()
    copy.close()
    ours = [b"ours %d" % turn for turn in range(5) for _ in range(40)]
    theirs = [b"theirs %d" % turn for turn in range(5) for _ in range(30)]
    assert values(tmp_path / "data", "small") == sent + ours
    assert values(tmp_path / "copy", "small") == sent + theirs
    assert values(tmp_path / "copy of the copy", "small") == sent + theirs


def test_what_the_store_removes_or_rewrites_stays_in_the_copy(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Eviction is an unlink and a rewrite a rename: the linked file goes on under its own name."""
    with open_store() as store:
        sent = fill(store)
        store.backup(tmp_path / "copy")
    first, second, *_ = sealed(tmp_path / "data")
    first.unlink()
    (tmp_path / "new").write_bytes(b"rewritten")
    (tmp_path / "new").rename(second)
    assert values(tmp_path / "copy", "small") == sent


@pytest.mark.parametrize(("moment", "topics"), [("__init__", ["b"]), ("_snapshots", ["a", "b"])])
def test_a_topic_that_is_dropped_meanwhile_is_copied_whole_or_not_at_all(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str,
    topics: list[str],
) -> None:  # fmt: skip
    """It was in the copy's log, and its segments were left out: the copy was called damaged."""
    store = open_store(background=False, shards=1)
    sent = {name: fill(store, name) for name in ("a", "b")}
    before = getattr(Plan, moment)

    def drop_first(plan: Plan, *about: Any) -> Any:
        thread = threading.Thread(target=store.drop_topic, args=("a",))
        thread.start()
        thread.join()
        return before(plan, *about)

    monkeypatch.setattr(Plan, moment, drop_first)
    store.backup(tmp_path / "copy")
    with open_store(tmp_path / "copy") as copy:
        assert copy.damage is None
        assert copy.topics() == topics
        assert {name: copy.topic(name).read_values() for name in topics} == {
            name: sent[name] for name in topics
        }


def test_sealed_segments_are_linked_and_nothing_else(open_store: OpenStore, tmp_path: Path) -> None:
    """Log files are recycled in place: a link to one would change under the copy."""
    store = open_store()
    fill(store)
    report = store.backup(tmp_path / "copy")
    assert report.bytes_linked == sum(f.stat().st_size for f in sealed(tmp_path / "copy")) > 0
    for path in (tmp_path / "copy").rglob("*"):
        twin = tmp_path / "data" / path.relative_to(tmp_path / "copy")
        if path.is_file():
            assert os.path.samefile(path, twin) == (path.suffix == ".seg"), path


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_what_cannot_be_linked_is_copied(open_store: OpenStore, tmp_path: Path, code: int) -> None:
    """On another device, say."""
    faults = FaultFs(PosixFileSystem(), [Fault(operation="link", error=code, always=True)])
    store = open_store(fs=faults)
    sent = fill(store)
    report = store.backup(tmp_path / "copy")
    assert report.bytes_linked == 0
    assert faults.calls["link"] == len(sealed(tmp_path / "copy")) > 3
    assert all(path.stat().st_nlink == 1 for path in sealed(tmp_path / "copy"))
    assert values(tmp_path / "copy", "small") == sent


def test_compressed_and_ephemeral_topics(open_store: OpenStore, tmp_path: Path) -> None:
    """Bytes are copied as they are; of an ephemeral topic there is its name and next offset."""
    store = open_store()
    sent = fill(store, "packed", compression="zstd")
    ticks = store.create_topic("ticks", durability="ephemeral")
    ticks.append_many([b"tick"] * 5)
    assert store.backup(tmp_path / "copy").records == len(sent)
    ticks.append(b"later")
    with open_store(tmp_path / "copy") as copy:
        assert copy.topic("packed").read_values() == sent
        assert copy.topic("packed").options.compression == "zstd"
        assert copy.topic("ticks").read_values() == []
        assert copy.topic("ticks").append(b"tick") >= 5


def test_a_store_that_once_had_more_shards(open_store: OpenStore, tmp_path: Path) -> None:
    """Shards that are no longer written belong to the copy too."""
    with open_store(shards=4) as store:
        for number in range(8):
            store.topic(f"t{number}").append(b"old")
    store = open_store(shards=1)
    for number in range(8):
        store.topic(f"t{number}").append(b"new")
    assert set(store.backup(tmp_path / "copy").positions) == {0, 1, 2, 3}
    for number in range(8):
        assert values(tmp_path / "copy", f"t{number}") == [b"old", b"new"]


def test_the_log_is_copied_from_the_oldest_snapshot_on(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """The newest snapshot may be damaged later: the one before needs its own log."""
    store = open_store(shards=1, log_file_bytes=1 << 13)
    topic = store.create_topic("small", segment_records=7)
    for turn in range(6):
        topic.append_many([b"%d" % turn * 100] * 30)
        store.snapshot()
    store.backup(tmp_path / "copy")
    snapshots = sorted((tmp_path / "copy" / "snapshots").iterdir())
    assert len(snapshots) == 2
    snapshots[-1].write_bytes(b"damaged")
    expected = [b"%d" % turn * 100 for turn in range(6) for _ in range(30)]
    assert values(tmp_path / "copy", "small") == expected


@pytest.mark.parametrize("name", ["store", "notes.txt", "log/shard-00/00000000000000000000.log"])
def test_a_target_that_holds_something_is_refused(
    open_store: OpenStore, tmp_path: Path, name: str
) -> None:
    """It is named, and not touched."""
    store = open_store()
    (tmp_path / "copy" / name).parent.mkdir(parents=True)
    (tmp_path / "copy" / name).write_bytes(b"mine")
    with pytest.raises(OptionError, match=f"not empty .*{name}"):
        store.backup(tmp_path / "copy")
    assert [p for p in (tmp_path / "copy").rglob("*") if p.is_file()] == [tmp_path / "copy" / name]


def test_a_target_that_cannot_be_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    """A file, the store itself, or a place inside of it."""
    store = open_store()
    (tmp_path / "file").write_bytes(b"")
    for target in ("file", "data", "data/copy", "data/topics/copy"):
        with pytest.raises(OptionError):
            store.backup(tmp_path / target)
    (tmp_path / "empty").mkdir()
    store.backup(tmp_path / "empty")
    store.backup(tmp_path / "data-copy")


def test_a_closed_or_read_only_store_is_not_backed_up(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Only its writer can keep a store's files where they are."""
    store = open_store()
    with pytest.raises(ReadOnlyError):
        open_store(read_only=True).backup(tmp_path / "copy")
    store.close()
    with pytest.raises(ClosedError):
        store.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_closing_waits_for_a_backup(open_store: OpenStore, tmp_path: Path) -> None:
    """Else the next writer could give up files that are still to be copied."""
    store = open_store()
    sent = fill(store)
    closing = threading.Thread(target=store.close)
    was_alive: list[bool] = []

    def progress(done: int, total: int) -> None:
        if not was_alive:
            closing.start()
            closing.join(0.05)
            was_alive.append(closing.is_alive())

    store.backup(tmp_path / "copy", progress=progress)
    closing.join()
    assert was_alive == [True]
    assert values(tmp_path / "copy", "small") == values(tmp_path / "data", "small") == sent


def test_progress_goes_from_nothing_to_everything(open_store: OpenStore, tmp_path: Path) -> None:
    """In bytes, never back."""
    store = open_store()
    fill(store)
    seen: list[tuple[int, int]] = []
    store.backup(tmp_path / "copy", progress=lambda *numbers: seen.append(numbers))
    done = [number for number, _ in seen]
    assert done == sorted(done)
    assert {total for _, total in seen} == {done[-1]}


def fake_store(fs: Any) -> Store:
    """A store on a fake disk."""
    options = {"shards": 1, "log_file_bytes": 8192, "log_chunk_bytes": 4096}
    built = StoreOptions.build(options | {"disk_reserve_bytes": 0}, {})
    return Store("/data", built, fs=fs, clock=ManualClock(), background=False)


def check_failed_backup(store: Store, disk: FakeDisk, fs: Any, sent: list[bytes]) -> None:
    """The store is well, the target not a store, and the next attempt on it succeeds."""
    assert [path for path in disk.image() if path.startswith("/copy/")] == []
    with pytest.raises(NotAStoreError):
        Store("/copy", StoreOptions.build({}, {}), read_only=True, fs=disk)
    store.topic("small").append(b"on")
    assert store.topic("small").read_values() == [*sent, b"on"]
    store.backup("/copy")
    with Store("/copy", StoreOptions.build({}, {}), read_only=True, fs=disk) as copy:
        assert copy.topic("small").read_values() == [*sent, b"on"]
    store.close()
    fs.check()


def test_a_full_disk_is_noticed_before_it_is_full() -> None:
    """The store keeps its reserve, what was copied is removed, and another attempt may succeed."""
    disk = FakeDisk()
    fs = MonitorFs(disk)
    store = fake_store(fs)
    sent = fill(store)
    store.snapshot()
    store.snapshot()
    disk.capacity_bytes = sum(map(len, disk.image().values())) + 3000
    with pytest.raises(DiskFullError, match=r"backup of /data to /copy failed.* bytes are needed"):
        store.backup("/copy")
    disk.capacity_bytes = None
    check_failed_backup(store, disk, fs, sent)


FAULTS = [
    ("pwrite", errno.ENOSPC, DiskFullError),
    ("create", errno.EDQUOT, DiskFullError),
    ("pwrite", errno.EIO, StorageError),
    ("fdatasync", errno.EIO, StorageError),
    ("sync_dir", errno.EIO, StorageError),
    ("link", errno.EIO, StorageError),
    ("rename", errno.EIO, StorageError),
    ("makedirs", errno.EACCES, StorageError),
    ("pread", errno.EIO, StorageError),
]


@pytest.mark.parametrize("call", [1, 2, 4])
@pytest.mark.parametrize(("operation", "code", "kind"), FAULTS)
def test_a_failed_backup_leaves_the_store_well(
    operation: str, code: int, kind: type[StorageError], call: int
) -> None:
    """A clear error, no store in the target, and the next attempt succeeds."""
    disk = FakeDisk()
    faults = FaultFs(disk)
    fs = MonitorFs(faults)
    store = fake_store(fs)
    sent = fill(store)
    faults.add(Fault(operation=operation, error=code, call=call, path_contains="/copy"))
    if (operation, call) in {("rename", 2), ("rename", 4)}:
        store.close()
        return  # there is one rename: nothing to fail
    with pytest.raises(kind, match=r"backup of /data to /copy failed.* back up again"):
        store.backup("/copy")
    faults.clear()
    check_failed_backup(store, disk, fs, sent)


def harm(disk: FakeDisk, directory: str) -> None:
    """Change a byte of a file unnoticed."""
    inode = next(iter(disk._directories[directory].live.values()))
    inode.live[len(inode.live) // 2] ^= 0x55


@pytest.mark.parametrize("directory", ["/copy/log/shard-00", "/copy/snapshots"])
def test_a_copy_that_differs_is_given_up(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written files are read back before the copy becomes a store."""
    disk = FakeDisk()
    fs = MonitorFs(disk)
    store = fake_store(fs)
    sent = fill(store)
    sync_dir = disk.sync_dir

    def sync_and_rot(path: str) -> None:
        sync_dir(path)
        if path == directory:
            harm(disk, directory)
            monkeypatch.undo()

    monkeypatch.setattr(disk, "sync_dir", sync_and_rot)
    with pytest.raises(CorruptionError, match="does not hold what was written"):
        store.backup("/copy")
    check_failed_backup(store, disk, fs, sent)


def test_a_segment_that_rotted_in_the_store_is_not_backed_up(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """The error names the file; a link would have kept the damage."""
    store = open_store()
    fill(store)
    store.snapshot()
    victim = sealed(tmp_path / "data")[0]
    data = bytearray(victim.read_bytes())
    data[-20] ^= 0xFF
    victim.write_bytes(data)
    with pytest.raises(CorruptionError, match=victim.name):
        store.backup(tmp_path / "copy")
    with pytest.raises(NotAStoreError):
        stratalog.open(tmp_path / "copy", read_only=True)
