"""The store's life: creating, locking, reopening, reading beside a writer, refusing."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import OpenStore
from tests.crash.model import kill
from tests.crash.model import open_store as open_killable

import stratalog
from stratalog import (
    DamagedError,
    LockedError,
    NotAStoreError,
    OptionError,
    ReadOnlyError,
    Record,
    StratalogError,
    TooLargeError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from stratalog.format.store import StoreFile, encode_store
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a few lines in another process."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_second_writer_is_refused_and_told_who_has_it(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Two writers never share a directory, in one process or in two."""
    import os

    open_store()
    with pytest.raises(LockedError, match=r"open already, in this process.*reopen=True"):
        stratalog.open(tmp_path / "data")
    code = "import stratalog, sys; stratalog.open(sys.argv[1])"
    other = run(code, tmp_path / "data")
    assert other.returncode != 0
    assert f"process {os.getpid()}" in other.stderr


def test_the_lock_ends_with_the_process(tmp_path: Path) -> None:
    """However it dies."""
    code = "import stratalog, sys, os; stratalog.open(sys.argv[1]).topic('t'); os._exit(1)"
    assert run(code, tmp_path / "data").returncode == 1
    with stratalog.open(tmp_path / "data") as store:
        assert store.topics() == ["t"]


@pytest.mark.slow
def test_a_forgotten_store_keeps_what_it_accepted(tmp_path: Path) -> None:
    """A program that ends without closing loses nothing that could be kept."""
    code = (
        "import stratalog, sys\n"
        "topic = stratalog.open(sys.argv[1], durability='memory').topic('t')\n"
        "topic.append_many([b'a', b'b'])"
    )
    assert run(code, tmp_path / "data").returncode == 0
    with stratalog.open(tmp_path / "data", read_only=True) as store:
        assert store.topic("t").read_values() == [b"a", b"b"]


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_any_number_of_shards_opens_any_directory(
    open_store: OpenStore, tmp_path: Path, shards: int
) -> None:
    """Topics move between shards from one open to the next, in order."""
    expected: dict[str, list[bytes]] = {f"topic {n}": [] for n in range(6)}
    for turn, count in enumerate((2, shards, 1, shards, 5)):
        with open_store(tmp_path / "data", shards=count) as store:
            for name, values in expected.items():
                assert store.topic(name).read_values() == values
                value = b"%d shards, turn %d" % (count, turn)
                store.topic(name).append(value)
                values.append(value)


@pytest.mark.slow
def test_a_reader_sees_a_live_writer_in_another_process(tmp_path: Path) -> None:
    """No lock, no wait for a checkpoint; new records and new topics show up by themselves."""
    code = (
        "import stratalog, sys, time\n"
        "with stratalog.open(sys.argv[1], log_file_bytes=65536) as store:\n"
        "    topic = store.topic('orders')\n"
        "    print('ready', flush=True)\n"
        "    for number in range(400):\n"
        "        topic.append(b'%d' % number * 50)\n"
        "    store.topic('done').append(b'x')\n"
        "    sys.stdin.readline()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "data")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with stratalog.open(tmp_path / "data", read_only=True) as store:
            records = []
            for record in store.topic("orders").watch(0, timeout=10):
                assert isinstance(record, Record)
                records.append(record)
                if len(records) == 400:
                    break
            assert [r.offset for r in records] == list(range(400))
            assert [r.value for r in records] == [b"%d" % n * 50 for n in range(400)]
            deadline = time.monotonic() + 10
            while "done" not in store.topics() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert store.topics() == ["done", "orders"]
            assert store.topic("orders").read_values(399) == [b"399" * 50]
    finally:
        process.communicate("\n", timeout=30)
    assert process.returncode == 0


def test_a_reader_changes_nothing(open_store: OpenStore, tmp_path: Path) -> None:
    """Not a byte, not a name; and it cannot write."""
    with open_store() as store:
        store.topic("orders").append(b"x")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with open_store(read_only=True) as reader:
        topic = reader.topic("orders")
        assert topic.read_values() == [b"x"]
        for call in (
            lambda: topic.append(b"y"), lambda: topic.append_many([b"y"]),
            lambda: topic.append_nowait(b"y"), lambda: reader.create_topic("t"),
            lambda: reader.sync(),
        ):  # fmt: skip
            with pytest.raises(ReadOnlyError, match="read_only=True"):
                call()
        with pytest.raises(UnknownTopicError, match="Did you mean 'orders'"):
            reader.topic("order")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_what_is_not_a_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    """A wrong path does not become a store by accident."""
    with pytest.raises(NotAStoreError, match="Check the path"):
        stratalog.open(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    with pytest.raises(NotAStoreError, match=r"not empty.*cat.jpg"):
        stratalog.open(tmp_path / "photos")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((NotAStoreError, FileExistsError)):
        stratalog.open(tmp_path / "file")
    with stratalog.open(tmp_path / "new" / "and" / "deep") as store:
        store.topic("t").append(b"x")


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """It is neither opened nor repaired nor called damaged."""
    with stratalog.open(tmp_path / "data"):
        pass
    content = bytearray(encode_store(StoreFile(bytes(16), 0)))
    content[8] = 9
    (tmp_path / "data" / "store").write_bytes(content + b"and more")
    for read_only in (True, False):
        with pytest.raises(UnsupportedVersionError, match=r"format version 9.*upgrade stratalog"):
            stratalog.open(tmp_path / "data", read_only=read_only)


@pytest.mark.parametrize(
    "name", ["a", "../../etc/passwd", "/", ".", "ünïcödé 日本", "a b", "x" * 255, "CON", "a:b*?"]
)  # fmt: skip
def test_any_printable_name_is_a_topic_and_never_a_path(tmp_path: Path, name: str) -> None:
    """Names are data: nothing on disk is called by them."""
    with stratalog.open(tmp_path / "in" / "data") as store:
        store.topic(name).append(b"x")
    assert {p.name for p in (tmp_path / "in").iterdir()} == {"data"}
    assert {p.name for p in (tmp_path / "in" / "data").iterdir()} == {"store", "lock", "log"}
    with stratalog.open(tmp_path / "in" / "data") as store:
        assert store.topics() == [name]


@pytest.mark.parametrize(
    ("name", "error"),
    [("", OptionError), ("a\nb", OptionError), ("\0", OptionError), ("x" * 256, TooLargeError),
     ("é" * 128, TooLargeError), ("\ud800", OptionError)],
)  # fmt: skip
def test_bad_names_are_refused(open_store: OpenStore, name: str, error: type[Exception]) -> None:
    """Empty, unprintable, or too long."""
    store = open_store()
    with pytest.raises(error):
        store.topic(name)
    with pytest.raises(error):
        store.create_topic(name)
    assert store.topics() == []


def test_options_are_checked_by_name_and_value(tmp_path: Path) -> None:
    """A typo is an error before anything is created."""
    with pytest.raises(OptionError, match="did you mean 'sync_interval'"):
        stratalog.open(tmp_path / "data", sync_intervall=3)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match="shards=0"):
        stratalog.open(tmp_path / "data", shards=0)
    with pytest.raises(OptionError, match="durability='safe'"):
        stratalog.open(tmp_path / "data", durability="safe")
    assert not (tmp_path / "data").exists()


def test_a_closed_store_takes_what_it_holds(open_store: OpenStore, tmp_path: Path) -> None:
    """Zero-filled space is given back; frames take 4 % more than their payloads."""
    with open_store(durability="disk") as store:
        for _ in range(100):
            store.topic("orders").append_many([bytes(100)] * 1000)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert size / 100_000 < 112
    with open_store() as store:
        assert len(store.topic("orders")) == 100_000
        store.topic("orders").append(b"goes on")


def test_stats_tell_what_happened(open_store: OpenStore) -> None:
    """Topics, records, commits and syncs of this open store."""
    with open_store(shards=1) as store:
        for number in range(5):
            store.topic("a").append(b"%d" % number)
        store.topic("b").append_many([b"x"] * 10)
        stats = store.stats()
        assert (stats.topics, stats.records, stats.shards) == (2, 15, 1)
        assert stats.commits == 8
        assert stats.syncs >= stats.commits
        assert stats.damage is None
        topic = store.topic("b").stats()
        assert (topic.records, topic.frames, topic.next_offset) == (10, 1, 10)
    with open_store() as store:
        assert store.stats().replayed_frames == 8
        assert store.stats().identity == stats.identity


def test_a_quiet_store_warns_of_nothing(
    open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings are for what went wrong."""
    with caplog.at_level(logging.WARNING, "stratalog"):
        with open_store() as store:
            store.topic("t").append(b"x")
        open_store()
    assert caplog.text == ""


def test_a_topic_whose_creation_failed_does_not_hide_the_one_made_after_it() -> None:
    """The frame of the first attempt survives a crash: nothing of the second is lost.

    The sync of a `TOPIC` frame failed, and poisoned its shard. The name was made again under
    another id, in another shard, and records were acknowledged. After a kill both frames were in
    the log, and the empty topic had the name: dead letters of a queue were lost like that.
    """
    disk = FakeDisk()
    faults = FaultFs(disk)
    store = open_killable(faults, ManualClock())
    store.create_topic("first")
    faults.add(Fault(operation="fdatasync", path_contains="shard-01", call=2))
    failures = 0
    while "orders" not in store.topics():  # each attempt has another id, and some another shard
        try:
            store.create_topic("orders")
        except StratalogError:
            failures += 1
    assert failures
    store.topic("orders").append(b"acknowledged")
    kill(store)
    again = open_killable(disk.crash(0, damage="keep"), ManualClock())
    assert again.topic("orders").read_values() == [b"acknowledged"]
    again.close()


@pytest.mark.parametrize("position", [10, 80], ids=["the header", "the header of a batch"])
def test_a_damaged_open_segment_opens_the_store_read_only(tmp_path: Path, position: int) -> None:
    """Also if a snapshot says what is in it: then its file was not looked at, and took appends."""
    with stratalog.open(tmp_path) as store:
        topic = store.topic("t")
        topic.append_many([b"%d" % number for number in range(50)])
        store.checkpoint()
        store.snapshot()
    (path,) = tmp_path.rglob("*.open")
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert not stratalog.verify(tmp_path).ok
    with stratalog.open(tmp_path) as store:
        assert str(path) in (store.damage or "")
        with pytest.raises(DamagedError):
            store.topic("t").append(b"more")
    assert stratalog.repair(tmp_path).ok
    with stratalog.open(tmp_path) as store:
        assert store.topic("t").append(b"more") == 50
