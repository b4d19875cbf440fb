"""FakeDisk: behaves like a disk while it runs, and like a bad one when it crashes."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from stratalog.errors import LockedError
from stratalog.fs import FileSystem, PosixFileSystem
from stratalog.testing import Crashed, FakeDisk
from stratalog.testing.file import FakeFile
from stratalog.testing.inode import SECTOR_BYTES

SEEDS = range(1000)


def _disk(**options: int) -> FakeDisk:
    disk = FakeDisk(**options)
    disk.makedirs("/d")
    return disk


def _durable_file(disk: FakeDisk, path: str, data: bytes = b"") -> FakeFile:
    file = disk.open(path, "create")
    file.pwrite([data], 0)
    file.fdatasync()
    disk.sync_dir("/d")
    return file


def _outcomes(disk: FakeDisk, path: str) -> set[bytes | None]:
    """Read the file after a crash, over many seeds; None where it is gone."""
    return {disk.crash(seed).image().get(path) for seed in SEEDS}


# While it runs, it is a file system: the same steps on the real one give the same answers.


def _steps(fs: FileSystem, root: str) -> list[object]:
    seen: list[object] = []

    def attempt(call: Callable[[], object]) -> None:
        try:
            seen.append(call())
        except OSError as error:
            seen.append(type(error))

    fs.makedirs(f"{root}/x/y")
    fs.makedirs(f"{root}/x")
    file = fs.open(f"{root}/x/a", "create")
    file.pwrite([b"hello ", b"", b"world"], 0)
    file.pwrite([b"far"], 20)
    file.pwrite([], 100)
    seen += [file.size(), file.pread(100, 0), file.pread(3, 4), file.pread(5, 99)]
    file.truncate(8)
    file.preallocate(6, 4)
    file.truncate(12)
    seen += [file.pread(100, 0), bytes(file.mmap()), file.mmap().readonly]
    attempt(lambda: fs.open(f"{root}/x/a", "create"))
    attempt(lambda: fs.open(f"{root}/x/none", "read"))
    attempt(lambda: fs.open(f"{root}/x/none", "write"))
    attempt(lambda: fs.open(f"{root}/none/a", "create"))
    attempt(lambda: fs.open(f"{root}/x/y", "write"))
    attempt(lambda: fs.listdir(f"{root}/x/a"))
    attempt(lambda: fs.rename(f"{root}/x/none", f"{root}/x/b"))
    attempt(lambda: fs.unlink(f"{root}/x/none"))
    attempt(lambda: fs.unlink(f"{root}/none/none"))
    attempt(lambda: fs.sync_dir(f"{root}/none"))
    attempt(lambda: fs.free_bytes(f"{root}/none"))
    attempt(lambda: fs.open(f"{root}/x/a", "read").pwrite([b"x"], 0))
    attempt(lambda: fs.open(f"{root}/x/a", "read").fdatasync())
    attempt(lambda: file.pread(1, -1))
    fs.open(f"{root}/x/b", "create").pwrite([b"old b"], 0)
    fs.rename(f"{root}/x/a", f"{root}/x/b")
    fs.rename(f"{root}/x/b", f"{root}/x/b")
    seen += [fs.listdir(f"{root}/x"), fs.listdir(f"{root}/none"), file.pread(5, 0)]
    attempt(lambda: fs.link(f"{root}/x/none", f"{root}/x/d"))
    attempt(lambda: fs.link(f"{root}/x/y", f"{root}/x/d"))
    attempt(lambda: fs.link(f"{root}/x/b", f"{root}/none/d"))
    attempt(lambda: fs.link(f"{root}/x/b", f"{root}/x/y"))
    fs.link(f"{root}/x/b", f"{root}/x/y/d")
    attempt(lambda: fs.link(f"{root}/x/b", f"{root}/x/y/d"))
    file.pwrite([b"seen by both"], 0)
    fs.rename(f"{root}/x/b", f"{root}/x/y/d")  # two names of one file: nothing happens
    seen += [fs.listdir(f"{root}/x"), fs.open(f"{root}/x/y/d", "read").pread(12, 0)]
    fs.unlink(f"{root}/x/y/d")
    fs.rename(f"{root}/x/b", f"{root}/x/y/c")
    fs.unlink(f"{root}/x/y/c")
    file.pwrite([b"J"], 0)
    seen += [fs.listdir(f"{root}/x"), fs.listdir(f"{root}/x/y"), file.pread(5, 0)]
    file.close()
    file.close()
    attempt(lambda: file.pread(1, 0))
    return seen


def test_it_answers_like_the_real_file_system(tmp_path: Path) -> None:
    """One script of calls, errors included, gives the same answers on both."""
    assert _steps(FakeDisk(), "/store") == _steps(PosixFileSystem(), str(tmp_path))


def test_a_file_stays_open_when_another_takes_its_name() -> None:
    """A handle keeps its own file, the name leads to the new one."""
    disk = _disk()
    old = _durable_file(disk, "/d/a", b"old")
    _durable_file(disk, "/d/b", b"new")
    disk.rename("/d/b", "/d/a")
    assert old.pread(9, 0) == b"old"
    assert disk.open("/d/a", "read").pread(9, 0) == b"new"


def test_mapped_memory_does_not_follow_later_writes() -> None:
    """The map is a copy, so that nothing holds the file's buffer."""
    file = _durable_file(_disk(), "/d/a", b"abc")
    view = file.mmap()
    file.pwrite([b"X"], 0)
    assert bytes(view) == b"abc"


def test_a_second_lock_names_the_holder_until_the_first_is_closed() -> None:
    """The lock is exclusive, says who has it, and closing an old one twice frees nothing."""
    disk = _disk()
    first = disk.lock("/d/lock", "pid 1 on here")
    with pytest.raises(LockedError, match="pid 1 on here"):
        disk.lock("/d/lock", "pid 2")
    first.close()
    disk.lock("/d/lock", "pid 3")
    first.close()
    with pytest.raises(LockedError, match="pid 3"):
        disk.lock("/d/lock", "pid 4")
    assert disk.image() == {"/d/lock": b"pid 3"}


def test_a_crash_frees_every_lock() -> None:
    """Locks die with their process."""
    disk = _disk()
    disk.lock("/d/lock", "a")
    disk.crash(0, "keep").lock("/d/lock", "b")


def test_a_full_disk_takes_what_fits() -> None:
    """A write past the capacity leaves its first part and fails; in place there is no need."""
    disk = _disk(capacity_bytes=1000)
    file = _durable_file(disk, "/d/a", bytes(600))
    assert disk.free_bytes("/d") == 400
    with pytest.raises(OSError, match="No space") as raised:
        file.pwrite([b"x" * 300, b"y" * 300], 500)
    assert raised.value.errno == errno.ENOSPC
    assert file.pread(1000, 500) == b"x" * 300 + b"y" * 200
    assert disk.free_bytes("/d") == 0
    file.pwrite([b"z"], 999)
    with pytest.raises(OSError, match="No space"):
        disk.open("/d/b", "create").preallocate(0, 1)
    disk.unlink("/d/a")
    assert disk.free_bytes("/d") == 1000


def test_many_threads_can_write_at_once() -> None:
    """No operation is lost or miscounted between threads."""
    disk = _disk()
    before = disk.operations

    def work(number: int) -> None:
        file = disk.open(f"/d/{number}", "create")
        for position in range(200):
            file.pwrite([b"x"], position)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert disk.image() == {f"/d/{number}": b"x" * 200 for number in range(8)}
    assert disk.operations - before == 8 * 201


# What a crash may take, and what it must not.


def test_synced_bytes_under_a_synced_name_survive_every_crash() -> None:
    """Durable is durable, whatever is pending in the same file and sector."""
    disk = _disk()
    file = _durable_file(disk, "/d/a", b"durable!" * 100)
    file.pwrite([b"x" * 3000], 800)
    file.preallocate(3800, 10_000)
    for seed in SEEDS:
        assert disk.crash(seed).image()["/d/a"][:800] == b"durable!" * 100, f"seed {seed}"


def test_a_sync_of_the_file_alone_does_not_keep_its_name() -> None:
    """A created file is gone in some crashes until its directory is synced."""
    disk = _disk()
    file = disk.open("/d/a", "create")
    file.pwrite([b"x"], 0)
    file.fdatasync()
    assert _outcomes(disk, "/d/a") == {None, b"x"}
    disk.sync_dir("/d")
    assert _outcomes(disk, "/d/a") == {b"x"}


def test_a_sync_of_the_directory_alone_does_not_keep_the_bytes() -> None:
    """The name survives, the bytes may not."""
    disk = _disk()
    file = disk.open("/d/a", "create")
    disk.sync_dir("/d")
    file.pwrite([b"x"], 0)
    assert _outcomes(disk, "/d/a") == {b"", b"\0", b"x"}


def test_a_sync_covers_one_file_only() -> None:
    """Syncing one file leaves the other pending."""
    disk = _disk()
    first, second = _durable_file(disk, "/d/a"), _durable_file(disk, "/d/b")
    first.pwrite([b"1"], 0)
    second.pwrite([b"2"], 0)
    second.fdatasync()
    assert disk.durable_image() == {"/d/a": b"", "/d/b": b"2"}
    assert disk.image() == {"/d/a": b"1", "/d/b": b"2"}


def test_a_later_write_may_survive_an_earlier_one() -> None:
    """Two pending writes meet their fates apart: all four combinations come up."""
    disk = _disk()
    file = _durable_file(disk, "/d/a", b"--")
    file.pwrite([b"1"], 0)
    file.pwrite([b"2"], 1)
    assert _outcomes(disk, "/d/a") == {b"--", b"1-", b"-2", b"12"}


def test_a_torn_write_loses_whole_sectors_of_the_file() -> None:
    """Sectors are those of the file, not of the write, and each is old or new as a whole."""
    disk = _disk()
    size = 4 * SECTOR_BYTES
    file = _durable_file(disk, "/d/a", b"o" * size)
    file.pwrite([b"n" * (size - 200)], 100)
    torn = set()
    for image in _outcomes(disk, "/d/a"):
        assert image is not None
        assert image[:100] == b"o" * 100
        assert image[-100:] == b"o" * 100
        written = image[100:-100]
        pieces = [written[:412], written[412:924], written[924:1436], written[1436:]]
        assert all(len(set(piece)) == 1 for piece in pieces)
        torn.add(b"".join(piece[:1] for piece in pieces))
    assert len(torn) == 16  # every combination, from all old to all new


def test_a_write_inside_one_sector_does_not_tear() -> None:
    """A sector is written whole or not at all."""
    disk = _disk()
    file = _durable_file(disk, "/d/a", b"o" * SECTOR_BYTES)
    file.pwrite([b"n" * 300], 100)
    new = b"o" * 100 + b"n" * 300 + b"o" * 112
    assert _outcomes(disk, "/d/a") == {b"o" * SECTOR_BYTES, new}


def test_a_lost_write_may_leave_its_length_as_zeros() -> None:
    """The file has grown but what was written reads as zeros; older bytes are not zeroed."""
    disk = _disk()
    file = _durable_file(disk, "/d/a", b"oo")
    file.pwrite([b"nnnn"], 1)
    assert _outcomes(disk, "/d/a") == {b"oo", b"onnnn", b"oo\0\0\0"}
    file.pwrite([b"n" * 5000], 1)
    assert b"oo" + bytes(4999) in _outcomes(disk, "/d/a")


def test_a_pending_cut_is_kept_or_dropped_whole() -> None:
    """A truncate without a sync may come undone, in either direction."""
    disk = _disk()
    file = _durable_file(disk, "/d/a", b"abcdef")
    file.truncate(2)
    assert _outcomes(disk, "/d/a") == {b"abcdef", b"ab"}
    file.truncate(4)
    assert disk.durable_image() == {"/d/a": b"abcdef"}
    assert _outcomes(disk, "/d/a") == {b"abcdef", b"ab", b"ab\0\0", b"abcd"}


def test_durable_bytes_are_exact_after_any_mix_of_changes() -> None:
    """Taking changes back gives the bytes of the last sync, against a plain copy as the model."""
    random = Random(7)
    file = _durable_file(disk := _disk(), "/d/a")
    durable = b""
    for step in range(2000):
        position, length = random.randrange(3000), random.randrange(1, 900)
        match random.choice(["write", "write", "zeros", "truncate", "sync"]):
            case "write":
                file.pwrite([random.randbytes(length)], position)
            case "zeros":
                file.preallocate(position, length)
            case "truncate":
                file.truncate(position)
            case _:
                file.fdatasync()
                durable = disk.image()["/d/a"]
        assert disk.durable_image() == {"/d/a": durable}, f"step {step}"
        assert disk.crash(step, "keep").image() == disk.image()


def test_a_rename_replaces_or_does_not() -> None:
    """After a crash the name leads to the old file or to the new one, never to neither."""
    disk = _disk()
    _durable_file(disk, "/d/a", b"old")
    _durable_file(disk, "/d/temporary", b"new")
    disk.rename("/d/temporary", "/d/a")
    images = [disk.crash(seed).image() for seed in SEEDS]
    assert {"/d/a": b"old", "/d/temporary": b"new"} in images
    assert {"/d/a": b"new"} in images
    assert {image["/d/a"] for image in images} == {b"old", b"new"}
    assert all(len(image) == 2 for image in images if image["/d/a"] == b"old")
    disk.sync_dir("/d")
    assert _outcomes(disk, "/d/a") == {b"new"}


def test_an_unlinked_file_may_come_back_with_its_bytes() -> None:
    """Until the directory is synced a removed name may return."""
    disk = _disk()
    _durable_file(disk, "/d/a", b"x")
    disk.unlink("/d/a")
    assert _outcomes(disk, "/d/a") == {None, b"x"}
    disk.sync_dir("/d")
    assert _outcomes(disk, "/d/a") == {None}


def test_names_of_one_directory_survive_in_their_order() -> None:
    """A prefix of a directory's changes survives, any prefix."""
    disk = _disk()
    for name in "abc":
        disk.open(f"/d/{name}", "create")
    names = {"".join(disk.crash(seed).listdir("/d")) for seed in SEEDS}
    assert names == {"", "a", "ab", "abc"}


def test_names_of_two_directories_survive_apart() -> None:
    """A later change in one directory may outlive an earlier one in another."""
    disk = _disk()
    disk.makedirs("/e")
    disk.open("/d/first", "create")
    disk.open("/e/second", "create")
    kept = {tuple(sorted(disk.crash(seed).image())) for seed in SEEDS}
    assert kept == {(), ("/d/first",), ("/e/second",), ("/d/first", "/e/second")}


def test_a_rename_between_directories_may_leave_both_names_or_none() -> None:
    """Each directory needs its own sync; two surviving names are one file."""
    disk = _disk()
    disk.makedirs("/e")
    _durable_file(disk, "/d/a", b"x").pwrite([b"pending" * 500], 1)
    disk.rename("/d/a", "/e/b")
    images = [disk.crash(seed).image() for seed in SEEDS]
    assert {tuple(sorted(image)) for image in images} == {
        (),
        ("/d/a",),
        ("/e/b",),
        ("/d/a", "/e/b"),
    }
    assert all(image["/d/a"] == image["/e/b"] for image in images if len(image) == 2)


def test_a_link_is_there_or_not_and_both_names_are_one_file() -> None:
    """The new name needs a sync of its own directory; pending bytes have one fate, not two."""
    disk = _disk()
    disk.makedirs("/e")
    file = _durable_file(disk, "/d/a", b"x")
    file.pwrite([b"pending" * 500], 1)
    disk.link("/d/a", "/e/b")
    images = [disk.crash(seed).image() for seed in SEEDS]
    assert {tuple(sorted(image)) for image in images} == {("/d/a",), ("/d/a", "/e/b")}
    assert all(image["/d/a"] == image["/e/b"] for image in images if len(image) == 2)
    file.fdatasync()
    disk.sync_dir("/e")
    assert _outcomes(disk, "/e/b") == {b"x" + b"pending" * 500}


def test_a_linked_file_outlives_either_name() -> None:
    """Its bytes take space once, until the last name goes; what replaces one spares the other."""
    disk = _disk(capacity_bytes=100)
    _durable_file(disk, "/d/a", b"0123456789")
    disk.link("/d/a", "/d/b")
    assert disk.free_bytes("/d") == 90
    _durable_file(disk, "/d/other", b"new")
    disk.rename("/d/other", "/d/a")
    assert disk.image() == {"/d/a": b"new", "/d/b": b"0123456789"}
    disk.unlink("/d/b")
    assert disk.free_bytes("/d") == 97


def test_directories_are_durable_at_once() -> None:
    """makedirs syncs what it makes, so a crash keeps the whole path."""
    disk = FakeDisk()
    disk.makedirs("/a/b/c")
    after = disk.crash(0, "drop")
    assert [after.listdir(path) for path in ("/", "/a", "/a/b", "/a/b/c")] == [
        ["a"],
        ["b"],
        ["c"],
        [],
    ]


def test_keep_and_drop_are_the_two_ends() -> None:
    """Damage `keep` loses nothing and `drop` loses everything pending, for every seed."""
    disk = _disk()
    file = _durable_file(disk, "/d/a", b"old")
    file.pwrite([b"new"], 0)
    disk.open("/d/b", "create")
    for seed in range(20):
        assert disk.crash(seed, "keep").image() == {"/d/a": b"new", "/d/b": b""}
        assert disk.crash(seed, "drop").image() == {"/d/a": b"old"}
    with pytest.raises(ValueError, match="random, keep or drop"):
        disk.crash(0, "some")  # type: ignore[arg-type]


def test_the_same_seed_gives_the_same_crash() -> None:
    """A failing seed can be run again."""

    def crashed(seed: int) -> dict[str, bytes]:
        disk = _disk()
        for name in "abcdef":
            disk.open(f"/d/{name}", "create").pwrite([name.encode() * 5000], 0)
        return disk.crash(seed).image()

    assert all(crashed(seed) == crashed(seed) for seed in range(20))
    assert len({tuple(crashed(seed).items()) for seed in range(20)}) > 10


def test_the_disk_after_a_crash_is_a_disk_of_its_own() -> None:
    """All that survived is durable there, and neither disk sees the other's writes."""
    disk = _disk()
    old = disk.open("/d/a", "create")
    old.pwrite([b"x"], 0)
    after = disk.crash(0, "keep")
    assert after.durable_image() == {"/d/a": b"x"}
    old.pwrite([b"y"], 0)
    after.open("/d/a", "write").pwrite([b"z"], 0)
    assert (disk.image(), after.image()) == ({"/d/a": b"y"}, {"/d/a": b"z"})
    assert after.durable_image() == {"/d/a": b"x"}


# Crash points.


def _every_change(disk: FakeDisk) -> None:
    disk.makedirs("/d")
    disk.lock("/d/lock", "me")
    file = disk.open("/d/a", "create")
    disk.sync_dir("/d")
    file.preallocate(0, 10)
    file.pwrite([b"a", b"b"], 0)
    file.truncate(5)
    file.fdatasync()
    disk.rename("/d/a", "/d/b")
    disk.link("/d/b", "/d/c")
    disk.unlink("/d/b")


def _state(disk: FakeDisk) -> list[object]:
    return [disk.image(), disk.durable_image(), disk.crash(0, "keep").listdir("/")]


def test_each_change_counts_one_operation_and_reads_count_none() -> None:
    """The count is what a sweep over crash points runs through."""
    disk = FakeDisk()
    _every_change(disk)
    assert disk.operations == 11
    file = disk.open("/d/lock", "read")
    file.pread(1, 0)
    file.size()
    file.mmap()
    disk.listdir("/d")
    disk.free_bytes("/d")
    disk.promise(file, 0)
    assert disk.operations == 11


def test_the_operation_past_the_crash_point_is_not_performed() -> None:
    """Exactly `crash_after` operations happen: every crash point leaves a state of its own."""
    states = []
    for crash_after in range(11):
        disk = FakeDisk(crash_after=crash_after)
        with pytest.raises(Crashed):
            _every_change(disk)
        assert disk.operations == crash_after
        assert disk.is_crashed
        states.append(_state(disk))
    finished = FakeDisk(crash_after=11)
    _every_change(finished)
    states.append(_state(finished))
    assert states[0] == _state(FakeDisk())
    assert all(before != after for before, after in itertools.pairwise(states))


def test_a_crashed_disk_answers_nothing_any_more() -> None:
    """Reads fail too, and a handler for errors does not catch it; closing still works."""
    disk = FakeDisk(crash_after=2)
    disk.makedirs("/d")
    file = disk.open("/d/a", "create")
    with pytest.raises(Crashed):
        file.pwrite([b"x"], 0)
    calls: list[Callable[[], object]] = [
        lambda: file.pread(1, 0),
        file.size,
        file.mmap,
        file.fdatasync,
        lambda: disk.open("/d/a", "read"),
        lambda: disk.listdir("/d"),
        lambda: disk.free_bytes("/d"),
        lambda: disk.promise(file, 0),
        lambda: disk.unlink("/d/a"),
    ]
    for call in calls:
        with pytest.raises(Crashed):
            call()
    file.close()
    assert not issubclass(Crashed, Exception)
    assert disk.image() == {"/d/a": b""}
    assert disk.crash(0, "keep").image() == {"/d/a": b""}


def test_a_crash_point_can_be_set_for_the_recovery_too() -> None:
    """The disk after a crash counts from zero and can crash again."""
    after = _disk().crash(0, crash_after=1)
    file = after.open("/d/a", "create")
    with pytest.raises(Crashed):
        file.pwrite([b"x"], 0)
    assert after.operations == 1
