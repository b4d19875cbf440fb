"""Futures of appends with everything that takes futures, whatever interrupts it."""

from __future__ import annotations

import concurrent.futures
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
from stratalog.handles.topic import Topic
from stratalog.log import future as futures_module
from stratalog.log.commit_group import Group
from stratalog.log.future import AppendFuture

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

    The background writer then waited for it, and all others for the background writer: `close()`
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
    """A store whose groups notify no future until asked to."""

    def __init__(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = open_store(shards=1, durability="disk", background=False)
        self.topic = self.store.topic("t")
        self.shard = self.topic.log.shard
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(type(self.shard), "notify", lambda shard: None)

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

    def notify(self) -> None:
        """Tell what was not told."""
        self._monkeypatch.undo()
        self.shard.notify()


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
        untold.notify()
        time.sleep(0.01)
        assert not all_done.done()
        assert not in_order.done()
        untold.shard.finish(left.group)
        assert all_done.result() == ({done, left}, set())
        assert in_order.result() == [done, left]


def test_what_is_done_is_known_before_it_is_told(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller of the future itself need not wait until others are called."""
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
    assert calls == [0]  # by the thread that released it last
    untold.notify()
    future.add_done_callback(lambda f: calls.append(f.result()))
    assert calls == [0, 0]


def test_whoever_never_lets_go_is_not_waited_for(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was interrupted in the middle of it; other audiences of that group are notified later."""
    untold = Untold(open_store, monkeypatch)
    future = untold.waiting()
    calls: list[int] = []
    future.add_done_callback(lambda f: calls.append(f.result()))
    future._condition.acquire()
    untold.shard.finish(future.group)
    untold.notify()
    assert calls == []
    assert untold.shard.untold
    monkeypatch.setattr(futures_module, "_HELD_SECONDS_MAX", 0.0)
    untold.shard.notify()
    assert calls == [0]
    assert not untold.shard.untold


def test_a_callback_that_fails_or_is_interrupted_keeps_no_other_from_being_called(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An interrupt is raised where it came, and the next notification continues after it."""
    untold = Untold(open_store, monkeypatch)
    futures = [untold.waiting() for _ in range(2)]
    calls: list[str] = []

    def fail(_: Future[int]) -> None:
        raise IndexError("of the callback's own")

    def interrupt(_: Future[int]) -> None:
        raise KeyboardInterrupt

    futures[0].add_done_callback(fail)
    futures[0].add_done_callback(interrupt)
    futures[0].add_done_callback(lambda _: calls.append("after it"))
    futures[1].add_done_callback(lambda _: calls.append("the other's"))
    untold.shard.finish(futures[0].group)
    with pytest.raises(KeyboardInterrupt):
        untold.notify()
    assert calls == []
    untold.shard.notify()
    assert calls == ["after it", "the other's"]
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
    untold.notify()


def test_a_failure_is_raised_as_one_s_own(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One exception raised in many threads would mix up their tracebacks."""
    untold = Untold(open_store, monkeypatch)
    future = untold.waiting()
    shard = untold.shard
    with shard.commit_lock, shard.lock:
        shard.close_group()
    shard.resolve_group(future.group, SyncFailedError("it failed"))
    errors = [future.exception(), future.exception()]
    assert [str(error) for error in errors] == ["it failed"] * 2
    assert errors[0] is not errors[1]
    with pytest.raises(SyncFailedError, match="it failed"):
        future.result()
    untold.notify()


CALLBACKS: dict[str, Callable[[stratalog.Store], object]] = {
    "topic": lambda store: store.topic("another").append(b"x"),
    "checkpoint": lambda store: store.checkpoint(),
    "batch": lambda store: append_to_all(store),
    "close": lambda store: store.close(),
}


def append_to_all(store: stratalog.Store) -> None:
    """A batch over both shards."""
    with store.batch() as batch:
        for number in range(8):
            batch.topic(f"t{number}").append(b"x")


@pytest.mark.parametrize("does", CALLBACKS)
def test_a_callback_may_do_what_whoever_committed_is_doing(tmp_path: Path, does: str) -> None:
    """It was called by that one, with the store's locks held, and waited for itself."""
    with stratalog.open(tmp_path / "data", shards=2, flush_interval=1.0) as store:
        topics = [store.topic(f"t{number}") for number in range(8)]
        errors: list[BaseException] = []

        def call(_: Future[int]) -> None:
            try:
                CALLBACKS[does](store)
            except BaseException as error:
                errors.append(error)

        for topic in topics:
            topic.append_nowait(b"x").add_done_callback(call)
        act = CALLBACKS[does] if does != "topic" else (lambda store: store.topic("new"))
        in_time(partial(act, store))
        in_time(store.close)
        assert not [one for one in errors if not isinstance(one, stratalog.ClosedError)]


def test_a_callback_is_called_in_a_thread_that_holds_nothing(tmp_path: Path) -> None:
    """Another's append called it in its own thread: inside of a lock of that one's, for example."""
    lock = threading.Lock()
    called = threading.Event()

    def count(_: Future[int]) -> None:
        with lock:
            called.set()

    with stratalog.open(tmp_path / "data", shards=1, flush_interval=1.0) as store:
        topic = store.topic("t")
        topic.append_nowait(b"x").add_done_callback(count)
        with lock:
            in_time(lambda: topic.append(b"y"))
        assert called.wait(_SECONDS)


def test_callbacks_are_called_one_after_the_other(tmp_path: Path) -> None:
    """One that appended called the next inside of itself, and so on, until Python had enough."""
    depths: list[int] = []
    depth = 0
    with stratalog.open(tmp_path / "data", shards=1, flush_interval=1.0) as store:
        topic, audit = store.topic("t"), store.create_topic("audit", durability="disk")

        def call(future: Future[int]) -> None:
            nonlocal depth
            depth += 1
            depths.append(depth)
            audit.append(b"%d" % future.result(), durability="fsync" if depth < 3 else "disk")
            depth -= 1

        for future in [topic.append_nowait(b"x") for _ in range(200)]:
            future.add_done_callback(call)
        topic.append(b"y")
        store.close()
    with stratalog.open(tmp_path / "data") as store:
        values = store.topic("audit").read_values()
    assert depths == [1] * len(depths)
    assert values == [b"%d" % number for number in range(len(values))]


def test_a_callback_may_take_its_time_and_wait_for_a_future(tmp_path: Path) -> None:
    """It was called by the background writer, which is who would have committed that."""
    waited: list[int] = []
    done = threading.Event()
    with stratalog.open(tmp_path / "data", shards=2) as store:
        topic, other = store.topic("t"), store.create_topic("other", durability="disk")

        def call(_: Future[int]) -> None:
            waited.append(len(concurrent.futures.wait([other.append_nowait(b"x")], _SECONDS).done))
            done.set()

        topic.append_nowait(b"x").add_done_callback(call)
        assert done.wait(_SECONDS)
        assert waited == [1]


def test_what_is_called_back_keeps_what_it_is(tmp_path: Path) -> None:
    """A callback with an `event` had it replaced, and a thread that waited for it never woke."""

    class Notify:
        def __init__(self) -> None:
            self.event = threading.Event()

        def __call__(self, _: Future[int]) -> None:
            self.event.set()

    with stratalog.open(tmp_path / "data") as store:
        notify = Notify()
        event = notify.event
        store.topic("t").append_nowait(b"x").add_done_callback(notify)
        assert event.wait(_SECONDS)
        assert notify.event is event


def test_a_future_that_is_done_holds_no_bytes(tmp_path: Path) -> None:
    """One of ten that was kept held those of all ten, twice."""
    with stratalog.open(tmp_path / "data", shards=1) as store:
        future = store.topic("t").append_nowait(bytes(1000))
        assert isinstance(future, AppendFuture)
        assert future.result() == 0
        assert future.group.entries == future.group.encoded == []


def test_who_looks_at_one_future_does_not_hold_up_another(open_store: OpenStore) -> None:
    """In the same group: `wait` said that it was not done, though its result was there."""
    topic = open_store(shards=1, background=False).topic("t")
    future, other = topic.append_nowait(b"x"), topic.append_nowait(b"y")
    other._condition.acquire()  # another thread is in the middle of `wait`
    assert future.result() == 0
    assert concurrent.futures.wait([future], timeout=0).done == {future}
    other._condition.release()
    assert concurrent.futures.wait([other], timeout=0).done == {other}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_whoever_tells_and_is_interrupted_loses_nobody(tmp_path: Path) -> None:
    """A waiter was taken out of the list and not woken: another thread waited for ever."""
    with stratalog.open(tmp_path / "data", shards=1, durability="disk") as store:
        topic = store.topic("t")
        shard = topic.log.shard
        for at in moments(5):
            future = topic.append_nowait(b"x")
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(concurrent.futures.wait, [future], _SECONDS)
                ctrl_c = CtrlC(at)
                ctrl_c.run(lambda group=future.group: shard.finish(group))  # type: ignore[misc,attr-defined]
                ctrl_c.run(shard.notify)
                assert waiting.result().done == {future}
            if not ctrl_c.came:
                break


def test_a_group_that_a_future_was_interrupted_in_is_committed(open_store: OpenStore) -> None:
    """The first future of a group asks for it; the second did not, if the first was interrupted."""
    topic = open_store(shards=1, background=False).topic("t")
    shard = topic.log.shard
    wake = shard._wake

    def interrupted() -> None:
        shard._wake = wake
        raise KeyboardInterrupt

    shard._wake = interrupted
    with pytest.raises(KeyboardInterrupt):
        topic.append_nowait(b"1")
    topic.append_nowait(b"2")
    assert shard.group.is_relaxed
    shard.tick(is_due=False)
    assert topic.log.committed == topic.next_offset
