"""Futures of appends with everything that takes futures, whatever interrupts it."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore
from tests.crash.ctrl_c import CtrlC, moments

import stratalog
from stratalog.errors import SyncFailedError
from stratalog.log import future as futures_module
from stratalog.log.future import AppendFuture
from stratalog.log.group import Group
from stratalog.topic import Topic

# How long something may take that would otherwise wait for ever.
_SECONDS = 30.0


def in_time(action: Callable[[], Any]) -> Any:
    """Do something in a thread of its own, and fail if it never ends."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(action()), daemon=True)
    thread.start()
    thread.join(_SECONDS)
    assert not thread.is_alive(), "it waits for ever"
    return result[0]


WAYS: dict[str, Callable[[list[Future[int]]], object]] = {
    "result": lambda futures: [future.result() for future in futures],
    "result in time": lambda futures: [future.result(_SECONDS) for future in futures],
    "exception": lambda futures: [future.exception(_SECONDS) for future in futures],
    "wait": concurrent.futures.wait,
    "wait for one": partial(concurrent.futures.wait, return_when="FIRST_COMPLETED"),
    "as_completed": lambda futures: list(concurrent.futures.as_completed(futures)),
    "callback": lambda futures: futures[0].add_done_callback(lambda _: None),
}


def as_completed(futures: list[Any], timeout: float) -> Iterator[Any]:
    """As Python's, of futures of a class of ours."""
    yield from concurrent.futures.as_completed(futures, timeout)


def _append_two(topic: Topic, use: Callable[[list[Future[int]]], object]) -> None:
    use([topic.append_nowait(b"a"), topic.append_nowait(b"b")])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", WAYS)
def test_whoever_is_interrupted_while_he_looks_holds_nobody_up(tmp_path: Path, way: str) -> None:
    """Futures had a condition of Python's: Ctrl-C inside of its `__enter__` left it locked.

    The background writer then waited for it, and everybody for the background writer: `close()`
    never returned.
    """
    with stratalog.open(tmp_path / "data", shards=1, durability="disk") as store:
        topic = store.topic("t")
        for at in moments(5):
            ctrl_c = CtrlC(at)
            ctrl_c.run(partial(_append_two, topic, WAYS[way]))
            in_time(lambda: topic.append(b"synced", durability="fsync"))
            if not ctrl_c.came:
                break
        in_time(store.close)


@pytest.fixture
def often() -> Iterator[None]:
    """Threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def crossed(futures: list[AppendFuture]) -> tuple[list[AppendFuture], list[AppendFuture]]:
    """Two pairs of futures that `wait` looks at in opposite orders of their groups."""
    futures = sorted(futures, key=id)
    pairs: dict[tuple[Group, Group], list[AppendFuture]] = {}
    for one in futures:
        for other in futures[futures.index(one) + 1 :]:
            if one.group is other.group:
                continue
            if (crossing := pairs.get((other.group, one.group))) is not None:
                return crossing, [one, other]
            pairs[one.group, other.group] = [one, other]
    raise AssertionError("they are all in order: append more")


@pytest.mark.usefixtures("often")
def test_threads_that_wait_for_the_same_groups_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Python takes the conditions of futures in the futures' order; theirs were their groups'.

    So one thread took that of the first group and then the second, another the other way round.
    """
    with stratalog.open(tmp_path / "data", shards=1, durability="disk") as store:
        topic = store.topic("t")
        futures: list[AppendFuture] = []
        for _ in range(20):
            some = [topic.append_nowait(b"x") for _ in range(5)]
            some[0].result()
            futures += [one for one in some if isinstance(one, AppendFuture)]
        pairs = crossed(futures)

        def wait(pair: list[AppendFuture]) -> None:
            for _ in range(3000):
                concurrent.futures.wait(pair)

        threads = [threading.Thread(target=wait, args=(pair,), daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_SECONDS)
            assert not thread.is_alive(), "it waits for ever"


class Untold:
    """A store whose groups are told to nobody until they are."""

    def __init__(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = open_store(shards=1, durability="disk", background=False)
        self.topic = self.store.topic("t")
        self.shard = self.topic.log.shard
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(type(self.shard), "tell", lambda shard: None)

    def committed(self) -> AppendFuture:
        """A future whose outcome is known, and was not told."""
        future = self.waiting()
        self.shard.finish(future.group)
        return future

    def waiting(self) -> AppendFuture:
        """A future whose group is open."""
        future = self.topic.append_nowait(b"x")
        assert isinstance(future, AppendFuture)
        return future

    def tell(self) -> None:
        """Tell what was not told."""
        self._monkeypatch.undo()
        self.shard.tell()


def test_wait_counts_each_of_them_once(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was done and not told yet was counted as done, and counted down when it was told.

    `wait` then returned though another was not done, and `as_completed` raised a KeyError.
    """
    untold = Untold(open_store, monkeypatch)
    done, left = untold.committed(), untold.waiting()
    with ThreadPoolExecutor(2) as pool:
        all_done = pool.submit(concurrent.futures.wait, [done, left], _SECONDS)
        in_order = pool.submit(lambda: list(as_completed([done, left], _SECONDS)))
        deadline = time.monotonic() + _SECONDS
        while len(left._waiters) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        untold.tell()
        time.sleep(0.01)
        assert not all_done.done()
        assert not in_order.done()
        untold.shard.finish(left.group)
        assert all_done.result() == ({done, left}, set())
        assert in_order.result() == [done, left]


def test_what_is_done_is_known_before_it_is_told(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks the future itself need not wait for anybody to be called."""
    untold = Untold(open_store, monkeypatch)
    future = untold.committed()
    assert future.done()
    assert not future.running()
    assert not future.cancel()
    assert not future.cancelled()
    assert future.result(0) == 0
    assert future.exception() is None
    calls: list[int] = []
    future.add_done_callback(lambda f: calls.append(f.result()))
    assert calls == [0]  # by whoever let go of it last
    untold.tell()
    future.add_done_callback(lambda f: calls.append(f.result()))
    assert calls == [0, 0]


def test_whoever_never_lets_go_is_not_waited_for(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He was interrupted in the middle of it; others who look at that group are told later."""
    untold = Untold(open_store, monkeypatch)
    future = untold.waiting()
    calls: list[int] = []
    future.add_done_callback(lambda f: calls.append(f.result()))
    future._condition.acquire()
    untold.shard.finish(future.group)
    untold.tell()
    assert calls == []
    assert untold.shard.untold
    monkeypatch.setattr(futures_module, "_HELD_SECONDS_MAX", 0.0)
    untold.shard.tell()
    assert calls == [0]
    assert not untold.shard.untold


def test_a_callback_that_fails_or_is_interrupted_keeps_no_other_from_being_called(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An interrupt is raised where it came, and the next who tells goes on behind it."""
    untold = Untold(open_store, monkeypatch)
    futures = [untold.waiting() for _ in range(2)]
    calls: list[str] = []

    def fail(_: Future[int]) -> None:
        raise IndexError("of the callback's own")

    def interrupt(_: Future[int]) -> None:
        raise KeyboardInterrupt

    futures[0].add_done_callback(fail)
    futures[0].add_done_callback(interrupt)
    futures[0].add_done_callback(lambda _: calls.append("behind it"))
    futures[1].add_done_callback(lambda _: calls.append("the other's"))
    untold.shard.finish(futures[0].group)
    with pytest.raises(KeyboardInterrupt):
        untold.tell()
    assert calls == []
    untold.shard.tell()
    assert calls == ["behind it", "the other's"]
    assert "of the callback's own" in caplog.text


def test_a_future_that_is_not_committed_in_time_says_so(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is the caller's; the append itself goes on."""
    untold = Untold(open_store, monkeypatch)
    future = untold.waiting()
    for ask in (future.result, future.exception):
        with pytest.raises(TimeoutError, match=r"offset 0 was not committed in 0\.01 seconds"):
            ask(0.01)
    assert future.result() == 0
    untold.tell()


def test_a_failure_is_raised_as_one_s_own(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One exception raised in many threads would mix up their tracebacks."""
    untold = Untold(open_store, monkeypatch)
    future = untold.waiting()
    shard = untold.shard
    with shard.commit_lock, shard.lock:
        shard.close_group()
    shard.settle_group(future.group, SyncFailedError("it failed"))
    errors = [future.exception(), future.exception()]
    assert [str(error) for error in errors] == ["it failed"] * 2
    assert errors[0] is not errors[1]
    with pytest.raises(SyncFailedError, match="it failed"):
        future.result()
    untold.tell()
