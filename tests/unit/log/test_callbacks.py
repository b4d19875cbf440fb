"""The threads that call those who look at futures: who is called, when, and that they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from stratalog.log.callbacks import Notifier
from stratalog.log.future import Audience
from stratalog.log.interrupts import Background, Flag


class Spectators:
    """An audience that notes what it is told, and by whom."""

    def __init__(self, back: Callable[[], None] | None = None) -> None:
        self.told: list[tuple[str, str]] = []
        self.has_callbacks = back is not None
        self._back = back

    def wake(self) -> None:
        self.told.append(("woken", threading.current_thread().name))

    def call(self) -> None:
        self.told.append(("called", threading.current_thread().name))
        assert self._back is not None
        self._back()


def post(notifier: Notifier, spectators: Spectators) -> None:
    notifier.post(cast(Audience, spectators))


def test_waiters_and_callbacks_have_a_thread_each() -> None:
    """The second is begun when there is a callback."""
    notifier = Notifier()
    notifier.start()
    plain, calling = Spectators(), Spectators(lambda: None)
    post(notifier, plain)
    notifier.flush()
    assert plain.told == [("woken", "stratalog-notifier")]
    post(notifier, calling)
    notifier.flush()
    assert calling.told == [("woken", "stratalog-notifier"), ("called", "stratalog-callbacks")]
    notifier.stop()


def test_before_and_behind_it_whoever_posts_calls() -> None:
    """No audience is left out because there is no thread."""
    notifier = Notifier()
    here = threading.current_thread().name
    before, after = Spectators(lambda: None), Spectators(lambda: None)
    post(notifier, before)
    notifier.start()
    notifier.stop()
    post(notifier, after)
    assert before.told == after.told == [("woken", here), ("called", here)]


@pytest.mark.parametrize("does", ["flush", "stop"])
def test_a_callback_does_not_wait_for_itself(does: str) -> None:
    """One that closes the store ends the thread that it is in."""
    notifier = Notifier()
    notifier.start()
    done = threading.Event()

    def back() -> None:
        getattr(notifier, does)()
        done.set()

    post(notifier, Spectators(back))
    assert done.wait(30)
    notifier.stop()


def test_a_thread_that_is_slow_to_begin_ends_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end mark was taken by a thread that did not find it running: it waited for ever."""
    go_on = threading.Event()
    main = Background._main

    def slow(self: Any) -> None:
        go_on.wait(30)
        main(self)

    monkeypatch.setattr(Background, "_main", slow)
    notifier = Notifier()
    notifier.start()
    spectators = Spectators()
    post(notifier, spectators)
    notifier.stop()
    assert [what for what, _ in spectators.told] == ["woken"]
    go_on.set()
    thread = notifier._waking._thread._thread
    thread.join(30)
    assert not thread.is_alive()


def test_a_flag_is_as_an_event_is() -> None:
    """Set before or after, cleared, and waited for in vain."""
    flag = Flag()
    assert not flag.wait(0)
    assert not flag.wait(0.01)
    flag.set()
    flag.set()
    assert flag.is_set()
    assert flag.wait()
    flag.clear()
    assert not flag.is_set()
    assert not flag.wait(0.01)
    threading.Timer(0.05, flag.set).start()
    assert flag.wait(30)


def test_a_callback_that_is_posted_behind_the_end_of_its_thread_is_called() -> None:
    """The thread that releases a future late has its callbacks called."""
    notifier = Notifier()
    notifier.start()
    post(notifier, Spectators(lambda: None))
    notifier.flush()
    notifier.stop()
    late = Spectators(lambda: None)
    post(notifier, late)
    assert [what for what, _ in late.told] == ["woken", "called"]
