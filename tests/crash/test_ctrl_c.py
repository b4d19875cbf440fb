"""Ctrl-C, bytecode by bytecode, in appends, and in what is done once in a while."""

from __future__ import annotations

import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.handles.open_stores import OPEN
from stratalog.handles.topic import Topic
from tests.crash.ctrl_c import CtrlC, moments

SMALL: dict[str, Any] = {"shards": 1, "log_file_bytes": 4096, "disk_reserve_bytes": 0}
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def _append_three(topic: Topic, offsets: list[int], has_columns: bool) -> None:
    for value in (b"0", b"1", b"2"):
        if has_columns and value != b"1":
            offset = topic.append(value, key=value, tag=value.decode(), ttl=60.0)
        else:
            offset = topic.append(value)
        offsets.append(offset)


def _check_columns(topic: Topic) -> None:
    """Every record has what it was given, and nothing of one whose append was interrupted."""
    for record in topic.read():
        assert isinstance(record, stratalog.Record)
        if record.key is None:
            assert (record.value, record.tag, record.expires_at) in [
                (b"1", None, 0),
                (b"last", None, 0),
            ]
        else:
            assert record.key == record.value == (record.tag or "").encode()
            assert record.expires_at == record.timestamp + 60 * 10**9


@pytest.mark.parametrize("has_columns", [False, True])
@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_single_appends_that_are_interrupted_leave_whole_records(
    tmp_path: Path, durability: str, has_columns: bool
) -> None:
    """Acknowledged records are there, nothing is there twice, and the next append works."""
    for at in moments((3 if durability == "memory" else 11) * (3 if has_columns else 1)):
        path = tmp_path / str(at)
        with stratalog.open(path, shards=1, durability=durability, sync_interval=3600.0) as store:
            topic = store.topic("t")
            offsets: list[int] = []
            ctrl_c = CtrlC(at)
            ctrl_c.run(partial(_append_three, topic, offsets, has_columns))
            offsets.append(topic.append(b"last"))
            values = topic.read_values()
            assert values[offsets[-1]] == b"last"
            assert values[:-1] == [b"0", b"1", b"2"][: len(values) - 1]
            # One may be there that was not acknowledged: the interrupt came after it.
            assert len(offsets) <= len(values) <= len(offsets) + 1
            assert offsets[:-1] == list(range(len(offsets) - 1))
            if has_columns:
                _check_columns(topic)
        with stratalog.open(path) as store:
            assert store.topic("t").read_values() == values
        if not ctrl_c.came:
            break


def test_a_rotation_that_is_interrupted_leaves_what_can_be_read(tmp_path: Path) -> None:
    """Then and later: a file's number is told once all is known of it."""
    for at in moments(53):
        path = tmp_path / str(at)
        with stratalog.open(path, **SMALL) as store:
            topic = store.topic("t")
            topic.append(b"0" * 3000)
            ctrl_c = CtrlC(at)
            ctrl_c.run(partial(topic.append, b"1" * 3000))
            offsets = [topic.append(b"2" * 3000) for _ in range(2)]
            values = topic.read_values()
            assert [values[offset] for offset in offsets] == [b"2" * 3000] * 2
        with stratalog.open(path, **SMALL) as store:
            assert store.damage is None
            assert store.topic("t").read_values() == values
        shutil.rmtree(path)
        if not ctrl_c.came:
            break


def test_an_append_behind_an_interrupted_drop_is_kept(tmp_path: Path) -> None:
    """The topic is there, or it is gone and a new one is: never one that is about to go."""
    for at in moments(41):
        path = tmp_path / str(at)
        with stratalog.open(path, shards=2) as store:
            store.topic("t").append(b"old")
            ctrl_c = CtrlC(at)
            ctrl_c.run(partial(store.drop_topic, "t"))
            store.topic("t").append(b"new")
            values = store.topic("t").read_values()
            assert values in ([b"new"], [b"old", b"new"])
        with stratalog.open(path) as store:
            assert store.topic("t").read_values() == values
        shutil.rmtree(path)
        if not ctrl_c.came:
            break


def test_a_close_that_is_interrupted_is_finished_by_the_next(tmp_path: Path) -> None:
    """Everything is written, and the directory is free."""
    for at in moments(61):
        path = tmp_path / str(at)
        store = stratalog.open(path, shards=1, durability="memory", sync_interval=3600.0)
        for number in range(5):
            store.topic("t").append(b"%d" % number)
        ctrl_c = CtrlC(at)
        ctrl_c.run(store.close)
        store.close()
        assert store not in OPEN
        with stratalog.open(path) as store:
            assert len(store.topic("t")) == 5
        shutil.rmtree(path)
        if not ctrl_c.came:
            break


def test_an_open_that_is_interrupted_leaves_no_thread_that_writes(tmp_path: Path) -> None:
    """Beside the next writer it would write over what that one has acknowledged."""
    path = tmp_path / "data"
    with stratalog.open(path) as store:
        store.topic("t").append(b"0")
    before = set(threading.enumerate())
    for at in moments(701):
        ctrl_c = CtrlC(at)
        ctrl_c.run(partial(stratalog.open, path))
        for half_open in [one for one in OPEN if one.path == str(path)]:
            half_open.close()
        deadline = time.monotonic() + 10
        # One that was interrupted before it was started is listed for ever, and does nothing.
        while threads := {one for one in threading.enumerate() if one.is_alive()} - before:
            assert time.monotonic() < deadline, threads
            time.sleep(0.001)
        with stratalog.open(path) as store:
            assert store.topic("t").read_values() == [b"0"]
        if not ctrl_c.came:
            break
