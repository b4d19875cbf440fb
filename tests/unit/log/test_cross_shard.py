"""Frames over several shards: what a disk that fails leaves, and what must not be mistaken."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal

import pytest
from tests.crash.model import ROOT, kill, open_store
from tests.unit.tools.stores import disk_of

from stratalog.errors import DiskFullError, PoisonedError, StratalogError, SyncFailedError
from stratalog.format.frame import HEADER_BYTES, MAGIC, log_seed
from stratalog.format.names import shard_number
from stratalog.handles.store import Store
from stratalog.log.scan import find_frame
from stratalog.model import Gap
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock, MonitorFs
from stratalog.tools.repair import repair
from stratalog.tools.verify import verify

NAMES = ("a", "b", "c", "d", "e", "f")


class Disk:
    """A fake disk with faults, and a store of three shards with six topics on it."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.faults = FaultFs(self.disk)
        self.clock = ManualClock()
        self.store = self.open()
        for name in NAMES:
            self.store.topic(name).append(b"good")

    def open(self) -> Store:
        return open_store(MonitorFs(self.faults), self.clock, shards=3, log_file_bytes=1 << 16)

    def reopen(self, damage: Literal["drop", "keep"] = "drop") -> Store:
        """As after a crash of the machine, or of the process alone: that keeps all."""
        kill(self.store)
        self.disk = self.disk.crash(1, damage=damage)
        self.faults = FaultFs(self.disk)
        self.store = self.open()
        return self.store

    def batch(self, value: bytes) -> None:
        """Append to all topics."""
        with self.store.batch() as batch:
            for name in NAMES:
                batch.topic(name).append(value)

    def values(self) -> list[list[bytes | None]]:
        return [self.store.topic(name).read_values() for name in NAMES]


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("call", range(1, 6))
def test_a_failure_anywhere_gives_all_offsets_back(operation: str, call: int) -> None:
    """In the shard of the frame or in another, before it or in it: nothing of it is there."""
    disk = Disk()
    for name in NAMES:  # what has to be drained and synced before the frame
        disk.store.topic(name).append(b"relaxed", durability="disk")
    fault = Fault(operation=operation, call=call, error=errno.EIO)
    disk.faults.add(fault)
    try:
        disk.batch(b"bad")
    except SyncFailedError:
        failed = True
    else:
        failed = False
    disk.faults.clear()
    kept = [b"good", b"relaxed"] + ([] if failed else [b"bad"])
    refused = 0
    for name in NAMES:
        topic = disk.store.topic(name)
        count = topic.log.committed
        following = topic.next_offset
        if count < 2:  # the relaxed one was told its offset, which stays used
            assert following >= 2, "an offset that was told would be given again"
        else:
            assert following == count, "an offset was not given back"
        assert topic.read_values(0, count) == kept[:count]
        try:
            assert topic.append(b"after") == following
        except (PoisonedError, SyncFailedError):
            refused += 1  # that shard has failed, or lost a relaxed append
    assert bool(refused) == failed
    store = disk.reopen()
    for name in NAMES:
        assert b"bad" not in store.topic(name).read_values() or not failed
        assert store.topic(name).read_values()[0] == b"good"
    disk.batch(b"again")
    assert all(values[-1] == b"again" for values in disk.values())
    store.close()


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("call", range(1, 6))
def test_offsets_of_a_batch_that_may_be_there_are_not_given_again(
    operation: str, call: int
) -> None:
    """The sync of its frame failed, and all its bytes are there when the process is restarted."""
    disk = Disk()
    for name in NAMES:
        disk.store.topic(name).append(b"relaxed", durability="disk")
    disk.faults.add(Fault(operation=operation, call=call, error=errno.EIO))
    with contextlib.suppress(SyncFailedError):
        disk.batch(b"bad")
    disk.faults.clear()
    after: dict[str, int] = {}
    for name in [*NAMES, *NAMES]:  # the first may only be told what was lost
        with contextlib.suppress(StratalogError):
            after.setdefault(name, disk.store.topic(name).append_many([b"after"] * 3)[0])
    store = disk.reopen("keep")
    assert store.damage is None
    for name in NAMES:
        values = store.topic(name).read_values()
        if name in after:
            assert set(values[after[name] :]) == {b"after"}
    disk.batch(b"again")
    assert all(values[-1] == b"again" for values in disk.values())
    store.close()


def test_a_full_disk_leaves_no_trace_of_a_batch() -> None:
    """All topics go on with the offsets that it did not get."""
    disk = Disk()
    disk.faults.add(Fault(operation="pwrite", error=errno.ENOSPC, short=300))
    with pytest.raises(DiskFullError, match="free some space"):
        disk.batch(b"bad" * 50)
    assert disk.values() == [[b"good"]] * 6
    disk.batch(b"fits")
    assert disk.values() == [[b"good", b"fits"]] * 6
    store = disk.reopen()
    assert disk.values() == [[b"good", b"fits"]] * 6
    store.close()


def test_appends_behind_a_batch_that_fails_fail_with_it() -> None:
    """They have offsets that follow its own, in shards that have no other reason to fail."""
    disk = Disk()
    store = disk.store
    assert store._log is not None
    futures: list[Future[int]] = []
    real = type(store._log.shards[0].files).write

    def write(files: object, *arguments: object, **options: object) -> int:
        """Between the offsets and the disk, others append."""
        if not futures:
            futures.extend(store.topic(name).append_nowait(b"later") for name in NAMES)
            disk.faults.add(Fault(operation="fdatasync", error=errno.EIO))
        return real(files, *arguments, **options)  # type: ignore[arg-type]

    for shard in store._log.shards:
        shard.files.write = write.__get__(shard.files)  # type: ignore[method-assign]
    with pytest.raises(SyncFailedError):
        disk.batch(b"bad")
    assert len(futures) == 6
    for future in futures:
        assert isinstance(future.exception(timeout=5), StratalogError)
    for name in NAMES:
        log = store.topic(name).log
        assert log.next_offset == log.committed == 1
    reopened = disk.reopen()
    assert disk.values() == [[b"good"]] * 6
    reopened.close()


def _log_files(disk: FakeDisk) -> dict[str, bytes]:
    return {path: data for path, data in disk.image().items() if path.endswith(".log")}


def _multi(disk: FakeDisk) -> tuple[str, int, int]:
    """Path, position and length of the only frame that has others inside."""
    for path, data in _log_files(disk).items():
        at = data.find(MAGIC + b"\1\6")
        if at >= 0:
            length = int.from_bytes(data[at + 8 : at + 12], "little")
            return path, at, HEADER_BYTES + length
    raise AssertionError("there is none")


def _image(disk: Disk, change: Callable[[bytearray, int, int], None]) -> dict[str, bytes]:
    """The files after a crash, with something done to the frame that has others inside."""
    disk.store.close()
    image = {p: d for p, d in disk.disk.image().items() if not p.endswith(("/lock", "/ends"))}
    path, at, length = _multi(disk.disk)
    data = bytearray(image[path])
    change(data, at, length)
    image[path] = bytes(data)
    return image


def test_whole_inner_frames_behind_a_torn_beginning_are_not_taken_for_frames() -> None:
    """The header of the frame never reached the disk, its inner frames did: a torn tail."""
    disk = Disk()
    disk.batch(b"x" * 100)

    def tear(data: bytearray, at: int, length: int) -> None:
        data[at : at + HEADER_BYTES] = bytes(HEADER_BYTES)

    image = _image(disk, tear)
    torn = disk_of(image)
    path, _, _ = _multi(disk.disk)
    file = torn.open(path, "read")
    inner = image[path].count(MAGIC)
    assert inner >= 6
    frames = 0
    position = 0
    seed = log_seed(disk.store._replay.reader.identity, shard_number(os.path.dirname(path)), 0)
    while found := find_frame(file, seed, position):
        frames += 1
        position = found[0] + HEADER_BYTES
    assert frames == inner - 6, "an inner frame was taken for one of the log"
    store = open_store(torn, ManualClock(), shards=3)
    assert store.damage is None
    assert [store.topic(name).read_values() for name in NAMES] == [[b"good"]] * 6
    store.close()


@pytest.mark.parametrize("inside", [False, True])
def test_a_damaged_frame_is_given_up_in_all_its_topics(inside: bool) -> None:
    """In the middle of the log: found, read around, and repaired to gaps of exactly its records."""
    disk = Disk()
    disk.batch(b"x" * 100)
    for name in NAMES:
        disk.store.topic(name).append(b"later")

    def flip(data: bytearray, at: int, length: int) -> None:
        data[at + (length // 2 if inside else 33)] ^= 1

    damaged = disk_of(_image(disk, flip))
    report = verify(ROOT, fs=damaged)
    assert not report.ok
    store = open_store(damaged, ManualClock(), shards=3)
    assert store.damage is not None
    assert "lacks offsets 1 to 1" in store.damage
    store.close()
    assert repair(ROOT, fs=damaged, clock=ManualClock()).ok
    assert verify(ROOT, fs=damaged).ok
    store = open_store(damaged, ManualClock(), shards=3)
    assert store.damage is None
    for name in NAMES:
        items = list(store.topic(name).read())
        assert items[1] == Gap(1, 1, "damaged")
        assert store.topic(name).read_values() == [b"good", b"later"]
        assert store.topic(name).append(b"more") == 3
    store.close()


def test_the_newest_frame_damaged_takes_back_all_of_it() -> None:
    """Its offsets were given out, perhaps: a repair keeps them from being given out again."""
    disk = Disk()
    disk.batch(b"x" * 100)

    def flip(data: bytearray, at: int, length: int) -> None:
        data[at + length - 20] ^= 1

    damaged = disk_of(_image(disk, flip))
    store = open_store(damaged, ManualClock(), shards=3)
    assert [store.topic(name).read_values() for name in NAMES] == [[b"good"]] * 6
    store.close()


def test_the_log_gives_back_what_a_damaged_segment_lost() -> None:
    """Also from inside of frames of several topics."""
    disk = Disk()
    for number in range(4):
        disk.batch(b"%d" % number * 100)
    disk.store.checkpoint()
    kill(disk.store)
    image = {path: data for path, data in disk.disk.image().items() if "/lock" not in path}
    path = next(path for path in image if path.endswith(".open"))
    data = bytearray(image[path])
    data[len(data) // 2] ^= 1
    image[path] = bytes(data)
    damaged = disk_of(image)
    assert not verify(ROOT, fs=damaged).ok
    report = repair(ROOT, fs=damaged, clock=ManualClock())
    assert report.ok
    store = open_store(damaged, ManualClock(), shards=3)
    wanted = [b"good", *(b"%d" % number * 100 for number in range(4))]
    assert [store.topic(name).read_values() for name in NAMES] == [wanted] * 6
    store.close()


def test_a_copy_is_made_between_frames_not_through_one() -> None:
    """Shards are frozen one by one; a frame over several must not come in between.

    It would be missing in the copy of its own shard, and what came after it in that of another
    would be there: a topic with a hole.
    """
    disk = Disk()
    log = disk.store._log
    assert log is not None
    started = threading.Event()

    def append() -> None:
        started.set()
        disk.batch(b"meanwhile")

    thread = threading.Thread(target=append)
    ends: list[dict[str, int]] = []

    def look(shard: object) -> None:
        if not ends:
            thread.start()
            started.wait(5)
            thread.join(0.05)
        ends.append({name: disk.store.topic(name).log.committed for name in NAMES})

    log.freeze(look)
    thread.join(10)
    assert not thread.is_alive()
    assert ends == [dict.fromkeys(NAMES, 1)] * 3
    assert disk.values() == [[b"good", b"meanwhile"]] * 6
    disk.store.close()
