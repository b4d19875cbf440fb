"""Directories that are taken away from a store, and lock files that are removed."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import stratalog
from stratalog import FencedError, LockedError, StratalogError
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.testing import FakeDisk, ManualClock

# Two writers once shared a directory after `lock` was removed, as a cleaner of temporary files
# does: both were given the same offsets, and the records of one vanished.


@pytest.mark.parametrize("act", ["removed", "replaced"])
def test_a_removed_lock_file_lets_no_second_writer_in(tmp_path: Path, act: str) -> None:
    """The directory itself is locked, also by another path that leads to it, and for repair."""
    with stratalog.open(tmp_path / "s") as store:
        store.topic("t").append(b"1")
        (tmp_path / "s" / "lock").unlink()
        if act == "replaced":
            (tmp_path / "s" / "lock").write_text("")
        (tmp_path / "link").symlink_to(tmp_path / "s")
        for path in (tmp_path / "s", tmp_path / "link", tmp_path / "s" / ".." / "s"):
            with pytest.raises(LockedError):
                stratalog.open(path)
            with pytest.raises(LockedError):
                stratalog.repair(path)
        store.topic("t").append(b"2")
    with stratalog.open(tmp_path / "link") as store:
        assert store.topic("t").read_values(0) == [b"1", b"2"]
        with pytest.raises(LockedError):
            stratalog.open(tmp_path / "s")


def test_a_removed_lock_file_is_made_again(tmp_path: Path) -> None:
    """Earlier releases know no other lock: the file is back, locked, and names its holder."""
    with stratalog.open(tmp_path / "s") as store:
        (tmp_path / "s" / "lock").unlink()
        store.sync()
        assert str(os.getpid()) in (tmp_path / "s" / "lock").read_text()


def test_an_earlier_release_that_got_in_fences_this_one() -> None:
    """It took the lock file that was made after ours was removed: there are two writers."""
    disk = FakeDisk()
    store = opened(disk)
    disk.unlink("/s/lock")
    disk.open("/s/lock", "create")
    disk._directories["/s"].live["lock"].holder = "an earlier release"
    with pytest.raises(FencedError, match="an earlier release"):
        store.sync()
    with pytest.raises(FencedError):
        store.topic("t").append(b"v")
    with pytest.raises(FencedError):
        store.close()


def test_a_lock_file_of_an_earlier_release_is_respected(tmp_path: Path) -> None:
    """It locks the file alone."""
    import fcntl

    with stratalog.open(tmp_path / "s"):
        pass
    with open(tmp_path / "s" / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(LockedError):
            stratalog.open(tmp_path / "s")
    with stratalog.open(tmp_path / "s") as store:  # nothing is left locked by the failed open
        store.topic("t").append(b"v")


def opened(disk: FakeDisk) -> Store:
    """A store without threads."""
    options = StoreOptions(shards=1, log_file_bytes=4096, log_chunk_bytes=4096)
    return Store("/s", options, fs=disk, clock=ManualClock(), background=False)


CALLS = {
    "sync": lambda store: store.sync(),
    "checkpoint": lambda store: store.checkpoint(),
    "snapshot": lambda store: store.snapshot(),
    "compact": lambda store: store.compact(),
    "adopt": lambda store: store.adopt(),
    "backup": lambda store: store.backup("/copy"),
    "rotate": lambda store: [store.topic("t").append(bytes(900)) for _ in range(20)],
    "close": lambda store: store.close(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_store_whose_directory_was_replaced_touches_nothing_of_the_new_one(
    call: object, is_made_anew: bool
) -> None:
    """A store once went on in a directory of the same name that another had made."""
    disk = FakeDisk()
    store = opened(disk)
    store.topic("t").append_many([bytes(700)] * 3)
    disk.remove_tree("/s")
    if is_made_anew:
        with opened(disk) as other:
            other.topic("other").append(b"theirs")
    before = disk.image()
    with pytest.raises(FencedError, match="was taken away while it was open"):
        call(store)  # type: ignore[operator]
    with pytest.raises(StratalogError):
        store.topic("t").append(b"v")
    with pytest.raises(StratalogError):
        store.create_topic("another")
    if not store.is_closed:
        with pytest.raises(FencedError):
            store.close()
    store.close()
    assert disk.image() == before


def _append_until_refused(topic: stratalog.Topic) -> None:
    """Append now and then, for twenty seconds at most: the lock is looked at by another thread."""
    for _ in range(1000):
        topic.append(b"v")
        time.sleep(0.02)


@pytest.mark.parametrize("act", ["renamed", "removed", "replaced"])
def test_the_background_notices_that_the_directory_went(tmp_path: Path, act: str) -> None:
    """Within a second or so appends are refused, though nothing else happens in the store."""
    path = tmp_path / "s"
    store = stratalog.open(path)
    topic = store.topic("t")
    topic.append(b"before")
    if act == "removed":
        shutil.rmtree(path)
    else:
        path.rename(tmp_path / "moved")
    if act == "replaced":
        with stratalog.open(path) as other:
            other.topic("t").append(b"theirs")
    with pytest.raises(FencedError):
        _append_until_refused(topic)
    with pytest.raises(FencedError):
        store.close()
    if act != "removed":
        with stratalog.open(tmp_path / "moved", read_only=True) as moved:
            assert moved.topic("t").read_values(0)[0] == b"before"
    if act == "replaced":
        with stratalog.open(path) as other:
            assert other.topic("t").read_values(0) == [b"theirs"]


def test_a_child_lets_go_of_the_lock_only_in_itself(tmp_path: Path) -> None:
    """A fork has the lock's descriptors too: when it ends, the parent's lock stays."""
    with stratalog.open(tmp_path / "s") as store:
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(LockedError):
            stratalog.open(tmp_path / "s")
        store.topic("t").append(b"v")
    with stratalog.open(tmp_path / "s") as store:
        assert store.topic("t").read_values(0) == [b"v"]
