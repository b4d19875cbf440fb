"""Snapshot files: the newest good one is used, and there is always one."""

from __future__ import annotations

import errno
import logging
import struct

import pytest
from xxhash import xxh3_64_intdigest

from stratalog.errors import UnsupportedVersionError
from stratalog.format.names import snapshot_path, snapshots_path
from stratalog.format.snapshot import CatalogState, LogState, Snapshot, encode_snapshot
from stratalog.fs import FileSystem
from stratalog.state.snapshot import SnapshotFiles
from stratalog.testing import Crashed, FakeDisk, Fault, FaultFs

ROOT = "/data"
IDENTITY = bytes(range(16))


def _files(fs: FileSystem) -> SnapshotFiles:
    return SnapshotFiles(fs, ROOT, IDENTITY)


def _catalog(number: int) -> CatalogState:
    """Told from all others by its next id, and long enough to be torn."""
    return CatalogState(number, {"x" * 2000: number}, "", [], [])


def _write(files: SnapshotFiles, number: int) -> None:
    files.write(LogState({0: 1000 * number, 1: 5000 - number}), _catalog(number), number)


def _disk(count: int) -> FakeDisk:
    disk = FakeDisk()
    files = _files(disk)
    for number in range(1, count + 1):
        _write(files, number)
    return disk


def _put(disk: FakeDisk, number: int, data: bytes, suffix: str = ".snap") -> None:
    """A file as something else left it."""
    path = snapshot_path(ROOT, number, suffix)
    disk.makedirs(snapshots_path(ROOT))
    disk.unlink(path)
    file = disk.open(path, "create")
    file.pwrite([data], 0)
    file.fdatasync()
    file.close()
    disk.sync_dir(snapshots_path(ROOT))


def _get(disk: FakeDisk, number: int) -> bytes:
    return disk.image()[snapshot_path(ROOT, number)]


def _damage(disk: FakeDisk, number: int) -> None:
    data = bytearray(_get(disk, number))
    data[len(data) // 2] ^= 1
    _put(disk, number, bytes(data))


def _names(fs: FileSystem) -> list[str]:
    return [name.lstrip("0") for name in fs.listdir(snapshots_path(ROOT))]


def test_a_store_without_a_snapshot_has_none() -> None:
    """It is replayed from the beginning, and nothing is wrong with that."""
    files = _files(FakeDisk())
    assert files.load() is None
    assert files.problems() == []
    assert files.released() == {}
    files.clean()


def test_a_snapshot_is_loaded_as_it_was_written() -> None:
    """With its number, its time and whose it is."""
    disk = FakeDisk()
    _write(_files(disk), 1)
    expected = Snapshot(1, 1, IDENTITY, LogState({0: 1000, 1: 4999}), _catalog(1))
    assert _files(disk).load() == expected


def test_the_newest_wins() -> None:
    """The one before it is known as well."""
    files = _files(_disk(2))
    newest = files.load()
    assert newest is not None
    assert newest.number == 2
    assert sorted(files.good) == [1, 2]


def test_only_two_are_kept() -> None:
    """However many are written, by this process or the one before."""
    disk = _disk(5)
    assert _names(disk) == ["4.snap", "5.snap"]
    files = _files(disk)
    files.load()
    _write(files, 6)
    assert _names(disk) == ["5.snap", "6.snap"]
    assert sorted(files.good) == [5, 6]


def test_a_damaged_one_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The one before it is used, which is no problem."""
    disk = _disk(2)
    _damage(disk, 2)
    files = _files(disk)
    with caplog.at_level(logging.WARNING, "stratalog"):
        snapshot = files.load()
    assert snapshot is not None
    assert snapshot.number == 1
    assert files.problems() == []
    assert list(files.bad) == [2]
    assert snapshot_path(ROOT, 2) in caplog.text
    assert "the one before it is used" in caplog.text


def test_an_older_one_that_is_damaged_changes_nothing() -> None:
    """But the log is not given up on its account."""
    disk = _disk(2)
    _damage(disk, 1)
    files = _files(disk)
    snapshot = files.load()
    assert snapshot is not None
    assert snapshot.number == 2
    assert files.released() == {}


def test_all_of_them_damaged_is_a_problem() -> None:
    """Each is named, and none is used."""
    disk = _disk(2)
    _damage(disk, 1)
    _damage(disk, 2)
    files = _files(disk)
    assert files.load() is None
    assert [problem.partition(":")[0] for problem in files.problems()] == [
        snapshot_path(ROOT, 2), snapshot_path(ROOT, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "identity", "reason"),
    [(2, bytes(16), "of another store"), (9, IDENTITY, "it is number 9")],
)
def test_one_that_belongs_elsewhere_is_skipped(number: int, identity: bytes, reason: str) -> None:
    """Copied from another store, or renamed: its checksums are right, and it is not this one."""
    disk = _disk(1)
    snapshot = Snapshot(number, 1, identity, LogState({}), _catalog(7))
    _put(disk, 2, encode_snapshot(snapshot))
    files = _files(disk)
    loaded = files.load()
    assert loaded is not None
    assert loaded.number == 1
    assert reason in files.bad[2]


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"not a snapshot"])
def test_one_that_is_none_is_skipped(data: bytes) -> None:
    """Empty, zeros, or another file."""
    disk = _disk(1)
    _put(disk, 2, data)
    loaded = _files(disk).load()
    assert loaded is not None
    assert loaded.number == 1


def test_one_of_a_newer_version_is_not_passed_over() -> None:
    """An older snapshot would be read as if the newer had never been: that must not open."""
    disk = _disk(2)
    data = bytearray(_get(disk, 2))
    struct.pack_into("<I", data, 8, 2)
    struct.pack_into("<Q", data, 56, xxh3_64_intdigest(bytes(data[:56])))
    _put(disk, 2, bytes(data))
    with pytest.raises(UnsupportedVersionError, match=f"{snapshot_path(ROOT, 2)}: .*upgrade"):
        _files(disk).load()


def test_other_files_are_left_alone() -> None:
    """They are not loaded, not counted, and not removed."""
    disk = _disk(2)
    for name in ("7.snap", "notes.txt", f"{3:020d}.snap.bak"):
        disk.open(f"{snapshots_path(ROOT)}/{name}", "create").close()
    files = _files(disk)
    files.load()
    files.clean()
    _write(files, 3)
    kept = disk.listdir(snapshots_path(ROOT))
    assert {"7.snap", "notes.txt", f"{3:020d}.snap.bak"} < set(kept)
    assert len(kept) == 5


def test_what_a_crash_left_unfinished_is_removed() -> None:
    """By name alone: it may hold anything."""
    disk = _disk(2)
    _put(disk, 3, b"half of a snapsh", ".tmp")
    _put(disk, 1, b"", ".tmp")
    files = _files(disk)
    files.load()
    files.clean()
    assert _names(disk) == ["1.snap", "2.snap"]


def test_a_leftover_of_the_same_name_is_written_over() -> None:
    """Also when nothing was cleaned up."""
    disk = _disk(2)
    _put(disk, 3, b"x" * 100_000, ".tmp")
    _write(_files(disk), 3)
    loaded = _files(disk).load()
    assert loaded is not None
    assert loaded.number == 3


def test_a_damaged_one_does_not_take_the_place_of_a_good_one() -> None:
    """Two that can be read are kept, so that one more may be damaged.

    The two with the highest numbers were kept, good or not: with the newest damaged, the only
    other good one was removed as soon as the next was written.
    """
    disk = _disk(2)
    _damage(disk, 2)
    files = _files(disk)
    files.load()
    _write(files, 3)
    assert _names(disk) == ["1.snap", "3.snap"]
    assert files.released() == {0: 1000, 1: 4997}
    _damage(disk, 3)
    loaded = _files(disk).load()
    assert loaded is not None
    assert loaded.number == 1


def test_numbers_go_on_behind_a_damaged_one() -> None:
    """A name is never used for two snapshots."""
    disk = _disk(2)
    _damage(disk, 1)
    _damage(disk, 2)
    files = _files(disk)
    files.load()
    _write(files, 3)
    assert "3.snap" in _names(disk)
    assert files.problems() == []


# --- what the log can give up ----------------------------------------------------------------


def test_the_log_is_needed_from_the_older_of_the_two() -> None:
    """Per shard, wherever each of them is."""
    disk = FakeDisk()
    files = _files(disk)
    states = [{0: 100, 1: 700}, {0: 300, 1: 500, 2: 9}, {0: 200, 1: 800, 2: 11}]
    released = []
    for shards in states:
        files.write(LogState(shards), _catalog(1), 0)
        released.append(files.released())
    assert released == [{}, {0: 100, 1: 500}, {0: 200, 1: 500, 2: 9}]
    again = _files(disk)
    again.load()
    assert again.released() == released[-1]


def test_a_shard_that_one_of_them_does_not_know_is_needed_whole() -> None:
    """It came between the two."""
    files = _files(FakeDisk())
    files.write(LogState({0: 100}), _catalog(1), 0)
    files.write(LogState({0: 200, 1: 300}), _catalog(1), 0)
    assert files.released() == {0: 100}


# --- crashes and errors ----------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("damage", ["random", "keep", "drop"])
def test_a_crash_at_any_operation_leaves_a_snapshot_that_loads(before: int, damage: str) -> None:
    """The one before or the new one, never none and never part of one."""
    after = crashes = 0
    while True:
        disk = _disk(before)
        files = _files(disk)
        files.load()
        disk.crash_after = disk.operations + after
        try:
            _write(files, before + 1)
            is_done = True
        except Crashed:
            crashes += 1
            is_done = False
        for seed in range(8):
            image = disk.crash(seed, damage)  # type: ignore[arg-type]
            found = _files(image)
            snapshot = found.load()
            number = 0 if snapshot is None else snapshot.number
            assert number in ((before + 1,) if is_done else (before, before + 1))
            assert snapshot is None or snapshot.catalog == _catalog(number)
            assert not found.bad, "a name was given to what was not whole"
            found.clean()
            _write(found, number + 1)
            assert not any(name.endswith(".tmp") for name in _names(image))
            assert len(_names(image)) <= 2
        if is_done:
            break
        after += 1
    assert crashes >= 6


def test_what_is_released_is_behind_what_any_crash_leaves() -> None:
    """Whichever snapshot loads after a crash, the log it starts from is still there."""
    for after in range(40):
        disk = FakeDisk(crash_after=after)
        files = _files(disk)
        released: dict[int, int] = {}
        try:
            for number in range(1, 5):
                files.write(LogState({0: number, 1: 10 + number}), _catalog(number), 0)
                released = files.released()
        except Crashed:
            pass
        for seed in range(8):
            snapshot = _files(disk.crash(seed)).load()
            if released:
                assert snapshot is not None
            for shard, lsn in released.items():
                assert snapshot is not None
                assert snapshot.log.shards[shard] >= lsn


@pytest.mark.parametrize(
    "operation", ["makedirs", "create", "pwrite", "fdatasync", "rename", "sync_dir", "unlink"]
)
def test_a_disk_that_fails_leaves_the_snapshots_before(operation: str) -> None:
    """The error is the disk's, and the next attempt succeeds."""
    faults = FaultFs(_disk(2))
    files = _files(faults)
    files.load()
    faults.add(Fault(operation=operation, error=errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        _write(files, 3)
    assert _files(faults).load() is not None
    _write(files, 4)
    loaded = _files(faults)
    snapshot = loaded.load()
    assert snapshot is not None
    assert snapshot.catalog == _catalog(4)
    assert not loaded.bad
    files.clean()
    assert len(_names(faults)) == 2


def test_one_replaced_while_it_is_looked_at_is_no_damage() -> None:
    """The writer beside a reader removes what the reader has just listed."""
    faults = FaultFs(_disk(2))
    faults.add(Fault(operation="open", path_contains="1.snap", error=errno.ENOENT))
    files = _files(faults)
    snapshot = files.load()
    assert snapshot is not None
    assert snapshot.number == 2
    assert not files.bad


class Interrupted(FaultFs):
    """Ctrl-C comes right after the removal of a snapshot, once."""

    is_armed = False

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if self.is_armed and path.endswith(".snap"):
            self.is_armed = False
            raise KeyboardInterrupt


def test_one_that_was_removed_when_ctrl_c_came_is_none_of_those_there_are() -> None:
    """It was still counted, and every backup after that looked for its file."""
    fs = Interrupted(_disk(2))
    files = _files(fs)
    files.load()
    fs.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        _write(files, 3)
    assert sorted(files.good) == [2, 3]
    assert _names(fs) == ["2.snap", "3.snap"]
    _write(files, 4)
    assert sorted(files.good) == [3, 4]
