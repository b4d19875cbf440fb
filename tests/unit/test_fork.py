"""Forks of a process that has a store open: the store stays the parent's."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import stratalog
from stratalog.opened import _close_all


def in_child(action: Callable[[], None]) -> None:
    """Do something in a fork, which then ends as programs do, and fail if that failed."""
    child = os.fork()
    if not child:
        code = 1
        try:
            action()
            _close_all()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
