"""Ctrl-C while a store is being closed, and a background thread of it is at work.

The directory was let go of at once: the next writer shared it with a thread that went on writing
segments there. And Python 3.11 took that thread for ended, because its `join` was interrupted.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.errors import LockedError
from stratalog.segments.checkpoint import checkpoint
from stratalog.upkeep import rounds as upkeep

VALUES = [b"%d" % number for number in range(100)]


class AtWork:
    """A store whose background thread is in the middle of a checkpoint until it may go on."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.go_on = threading.Event()
        is_in = threading.Event()

        def stay(*about: Any) -> Any:
            is_in.set()
            assert self.go_on.wait(30)
            return checkpoint(*about)

        self.store = stratalog.open(path, durability="disk")
        self.store.topic("t").append_many(VALUES)
        monkeypatch.setattr(upkeep, "checkpoint", stay)
        assert self.store._upkeep is not None
        self.store._upkeep._checkpointed_at = -1e9  # it is due
        self.store._upkeep._wake.give()
        assert is_in.wait(30)

    def check(self) -> None:
        """The next writer finds everything, and no other writer."""
        with stratalog.open(self.path) as store:
            assert store.damage is None
            assert store.topic("t").read_values() == VALUES


@pytest.fixture
def at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AtWork]:
    """One, which may go on at the end."""
    made = AtWork(tmp_path / "data", monkeypatch)
    yield made
    made.go_on.set()
    made.store.close()


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], None], int], int]]:
    """Interrupts what it is given, so many times; returns how often that was."""
    count = 0
    left = 0

    def come(number: int, frame: object) -> None:
        nonlocal count, left
        if left:
            left -= 1
            count += 1
            raise KeyboardInterrupt

    def run(action: Callable[[], None], times: int) -> int:
        nonlocal left
        left = times
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        with pytest.raises(KeyboardInterrupt):
            action()
        return count

    before = signal.signal(signal.SIGALRM, come)
    yield run
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_is_raised_when_the_store_is_closed(
    at_work: AtWork, interrupt: Callable[[Callable[[], None], int], int]
) -> None:
    """A checkpoint that was begun is completed first."""
    threading.Timer(0.5, at_work.go_on.set).start()
    assert interrupt(at_work.store.close, 1) == 1
    assert at_work.go_on.is_set()
    at_work.check()


def test_the_second_is_raised_at_once_and_the_directory_stays_locked(
    at_work: AtWork, interrupt: Callable[[Callable[[], None], int], int]
) -> None:
    """Until the thread has ended, no other store shares the directory. Closing again goes on."""
    assert interrupt(at_work.store.close, 2) == 2
    assert not at_work.go_on.is_set()
    with pytest.raises(LockedError):
        stratalog.open(at_work.path)
    at_work.go_on.set()
    at_work.store.close()
    at_work.check()


def test_a_callback_may_close_the_store(tmp_path: Path) -> None:
    """Also while another one does: its thread is one that closing does not wait for."""
    for is_closed_twice in (False, True):
        store = stratalog.open(tmp_path / "data", durability="disk")
        topic = store.topic("t")
        done = threading.Event()

        def close(_: Future[int], store: stratalog.Store = store, done: Any = done) -> None:
            store.close()
            done.set()

        topic.append_nowait(b"0").add_done_callback(close)
        if is_closed_twice:
            store.close()
        assert done.wait(30)
        with stratalog.open(tmp_path / "data") as again:
            assert again.damage is None


def test_a_callback_that_takes_long_does_not_keep_a_store_open(
    tmp_path: Path, interrupt: Callable[[Callable[[], None], int], int]
) -> None:
    """Closing waits for it; Ctrl-C ends that, and the store is closed all the same."""
    store = stratalog.open(tmp_path / "data")
    topic = store.topic("t")
    go_on, is_in = threading.Event(), threading.Event()

    def stay(_: Future[int]) -> None:
        is_in.set()
        go_on.wait(60)

    topic.append_nowait(b"0").add_done_callback(stay)
    assert is_in.wait(30)
    assert interrupt(store.close, 1) == 1
    with stratalog.open(tmp_path / "data") as again:
        assert again.topic("t").read_values() == [b"0"]
    go_on.set()
    store.close()
