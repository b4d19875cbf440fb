"""Forks of a process that has a store open: the store stays the parent's."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.handles.open_stores import _close_all


def fork(action: Callable[[], None]) -> int:
    """Do something in a fork, which then ends as programs do; returns its pid."""
    child = os.fork()
    if not child:
        signal.alarm(60)  # if it waits for a thread that is not there
        code = 1
        try:
            action()
            _close_all()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def in_child(action: Callable[[], None]) -> None:
    """Do something in a fork, and fail if that failed."""
    assert os.waitstatus_to_exitcode(os.waitpid(fork(action), 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_leaves_the_store_to_its_parent(tmp_path: Path) -> None:
    """It neither writes nor cuts anything, whatever it does and however it ends."""
    store = stratalog.open(tmp_path / "data")
    topic = store.topic("t")
    topic.append(b"before")

    def use() -> None:
        with pytest.raises(stratalog.ClosedError, match=f"process {os.getppid()}, of which this"):
            topic.append(b"the child's")
        with pytest.raises(stratalog.ClosedError, match="is a fork"):
            topic.append_many([b"the child's"])
        with pytest.raises(stratalog.ClosedError, match="is a fork"):
            topic.read_values()
        with pytest.raises(stratalog.ClosedError, match="is a fork"):
            store.queue("q").put(b"the child's")
        with pytest.raises(stratalog.LockedError, match=str(os.getppid())):
            stratalog.open(tmp_path / "data")
        with stratalog.open(tmp_path / "data", read_only=True) as view:
            assert view.topic("t").read_values() == [b"before"]
        store.close()

    in_child(use)
    topic.append_many([b"after"] * 100)
    in_child(lambda: None)
    topic.append(b"more")
    assert topic.read_values() == [b"before", *[b"after"] * 100, b"more"]
    store.close()
    with stratalog.open(tmp_path / "data") as store:
        assert store.damage is None
        assert len(store.topic("t")) == 102


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_goes_on_reading_what_was_opened_to_read(tmp_path: Path) -> None:
    """A view has no lock, and changes nothing."""
    with stratalog.open(tmp_path / "data") as store:
        store.topic("t").append(b"a")
        view = stratalog.open(tmp_path / "data", read_only=True)

        def read() -> None:
            assert view.topic("t").read_values() == [b"a"]

        in_child(read)
        view.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_lock_of_a_parent_that_closes_is_free(tmp_path: Path) -> None:
    """Although its child lives on."""
    store = stratalog.open(tmp_path / "data")
    end, go_on = os.pipe()
    child = os.fork()
    if not child:
        os.read(end, 1)
        os._exit(0)
    store.close()
    with stratalog.open(tmp_path / "data") as store:
        store.topic("t").append(b"a")
    os.write(go_on, b"x")
    os.waitpid(child, 0)


USES: dict[str, Callable[[dict[str, Any]], object]] = {
    "result": lambda held: held["future"].result(),
    "exception": lambda held: held["future"].result(5),
    "ack": lambda held: held["queue"].ack(held["message"]),
    "get": lambda held: held["queue"].get_nowait(),
    "put": lambda held: held["queue"].put(b"the child's"),
    "nowait": lambda held: held["topic"].append_nowait(b"the child's"),
    "disk": lambda held: held["disk"].append(b"the child's"),
}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("use", USES)
def test_a_child_writes_nothing_through_what_it_inherited(tmp_path: Path, use: str) -> None:
    """A future committed its group, a queue its changes: over what the parent wrote since.

    Acknowledged records of the parent's were gone, and its store was damaged.
    """
    store = stratalog.open(tmp_path / "data", shards=1, flush_interval=60.0)
    queue, topic = store.queue("q"), store.topic("t")
    disk = store.create_topic("disk", durability="disk")
    queue.put_many([b"1", b"2"])
    disk.append(b"gathering")
    held: dict[str, Any] = {
        "queue": queue,
        "topic": topic,
        "disk": disk,
        "message": queue.get_nowait(),
    }
    held["future"] = topic.append_nowait(b"in flight")
    end, go_on = os.pipe()

    def child() -> None:
        os.read(end, 1)
        with pytest.raises(stratalog.ClosedError, match="is a fork"):
            USES[use](held)

    pid = fork(child)
    more = topic.append_nowait(b"more")
    acknowledged = [queue.put(b"%d" % number).offset for number in range(5)]
    assert (held["future"].result(), more.result(), topic.append(b"later")) == (0, 1, 2)
    os.write(go_on, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.close()
    with stratalog.open(tmp_path / "data") as store:
        assert store.damage is None
        assert store.topic("t").read_values() == [b"in flight", b"more", b"later"]
        assert store.topic("disk").read_values() == [b"gathering"]
        values = [message.value for message in store.queue("q").peek(9)]
        assert values[-5:] == [b"%d" % number for number in range(5)]
        assert len(acknowledged) == 5


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_was_forked_while_somebody_closes_can_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for a lock that a thread had which is not in the child."""
    store = stratalog.open(tmp_path / "data")
    assert store._upkeep is not None
    closing, go_on = threading.Event(), threading.Event()

    def stay() -> None:
        closing.set()
        assert go_on.wait(30)

    monkeypatch.setattr(store._upkeep, "finish", stay)
    thread = threading.Thread(target=store.close)
    thread.start()
    assert closing.wait(30)
    in_child(store.close)
    go_on.set()
    thread.join()
