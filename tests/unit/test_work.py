"""Workers: leases that are renewed, the loop around a handler, and how it ends."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import OpenStore

import stratalog
import stratalog.aio
from stratalog import LeaseLostError, Message, OptionError, Queue, WrongTypeError
from stratalog.testing import ManualClock

CLASSES = pytest.mark.parametrize("durability", ["fsync", "disk"])


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.005)


@pytest.mark.slow
# A job that took longer than its lease was run five times, each time with success, and ended as a
# dead letter: nothing renewed its lease.
@CLASSES
def test_a_block_that_takes_long_keeps_its_message(open_store: OpenStore, durability: str) -> None:
    """For several leases; no other consumer gets it, and it is acknowledged at the end."""
    before = set(threading.enumerate())  # other tests may have left blocks open
    jobs = open_store(durability=durability).queue("jobs", lease=0.6)
    jobs.put(b"long")
    with jobs.get(timeout=1) as message:
        assert jobs.get_many(1, timeout=1.5) == []
        assert message.delivery_count == 1
    assert jobs.stats().pending == len(jobs) == 0
    _wait(lambda: not [one for one in set(threading.enumerate()) - before if "leases" in one.name])


@pytest.mark.slow
def test_a_lease_is_not_renewed_for_ever(open_store: OpenStore) -> None:
    """After `run_max` another worker gets the message; the first one finds it lost."""
    jobs = open_store().queue("jobs", lease=0.6)
    jobs.put(b"hangs")
    is_taken = threading.Event()
    seen: list[int] = []

    def handle(message: Message) -> None:
        seen.append(message.delivery_count)
        if message.delivery_count == 1:
            assert is_taken.wait(20)
        else:
            is_taken.set()

    work = jobs.work(handle, threads=2, timeout=2.0, run_max=0.7)
    assert seen == [1, 2]
    assert (work.done, work.failed, work.lost) == (1, 0, 1)


@CLASSES
@pytest.mark.parametrize("threads", [1, 4])
def test_every_message_is_handled_once(
    open_store: OpenStore, durability: str, threads: int
) -> None:
    """Whatever the number of threads; the loop ends when no message came in time."""
    jobs = open_store(durability=durability).queue("jobs")
    jobs.put_many([b"%d" % number for number in range(2000)])
    seen: list[bytes | None] = []
    work = jobs.work(lambda message: seen.append(message.value), threads=threads, timeout=0.05)
    assert (work.done, work.failed, work.lost) == (2000, 0, 0)
    assert sorted(int(value or b"") for value in seen) == list(range(2000))
    assert jobs.stats().pending == len(jobs) == 0


def test_a_handler_that_raises_gives_its_message_back(open_store: OpenStore) -> None:
    """It is tried again up to `max_deliveries`, then a dead letter with all reasons."""
    jobs = open_store().queue("jobs", max_deliveries=3, backoff=0.01)
    jobs.put_many([b"good", b"bad", b"good"])
    tries: list[int] = []

    def handle(message: Message) -> None:
        if message.value == b"bad":
            tries.append(message.delivery_count)
            raise ValueError(f"no \x1b[31mluck\n at {len(tries)}")

    work = jobs.work(handle, timeout=0.2)
    assert (work.done, work.failed, work.lost) == (2, 3, 0)
    assert tries == [1, 2, 3]
    (letter,) = jobs.dead.read()
    assert letter.headers["dlq.reason"] == b"ValueError: no [31mluck at 3"
    reasons = json.loads(letter.headers["dlq.reasons"])
    assert reasons == [f"ValueError: no [31mluck at {number}" for number in (1, 2, 3)]


def test_a_handler_may_settle_its_message_itself(open_store: OpenStore) -> None:
    """The loop then leaves it as it is."""
    jobs = open_store().queue("jobs")
    jobs.put_many([b"ack", b"later"])

    def handle(message: Message) -> None:
        if message.value == b"ack":
            message.ack()
        else:
            message.nack(delay=60.0)

    assert jobs.work(handle, timeout=0.02).failed == 0
    assert (jobs.stats().pending, jobs.stats().delayed) == (0, 1)


def test_a_worker_stops_when_told_and_gives_back_what_it_has_not_begun(
    open_store: OpenStore,
) -> None:
    """Messages that were fetched and not begun do not count as delivered."""
    jobs = open_store(durability="disk").queue("jobs", max_deliveries=2)
    jobs.put_many([b"%d" % number for number in range(1000)])
    stop = threading.Event()
    seen = 0

    def handle(message: Message) -> None:
        nonlocal seen
        seen += 1
        if seen == 300:
            stop.set()
            time.sleep(0.02)

    work = jobs.work(handle, stop=stop)
    assert work.done == seen < 1000
    assert jobs.stats().pending == 0
    assert len(jobs) == 1000 - seen
    rest = jobs.get_many(1000)
    assert [message.delivery_count for message in rest] == [1] * (1000 - seen)


def test_a_worker_that_waits_stops_soon(open_store: OpenStore) -> None:
    """With nothing to do, too."""
    jobs = open_store().queue("jobs")
    stop = threading.Event()
    thread = threading.Thread(target=lambda: jobs.work(print, threads=3, stop=stop))
    thread.start()
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def test_an_error_that_is_no_handlers_ends_all_threads(open_store: OpenStore) -> None:
    """It is raised; what was not settled is delivered again."""
    store = open_store()
    jobs = store.queue("jobs")
    jobs.put_many([b"a", b"b"])

    def handle(message: Message) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs.work(handle, threads=2)
    assert len(jobs) == 2
    store.drop_queue("jobs")
    with pytest.raises(stratalog.UnknownTopicError):
        jobs.work(print, timeout=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"handler": 5}, WrongTypeError),
        ({"threads": 0}, OptionError),
        ({"threads": 1.5}, WrongTypeError),
        ({"stop": True}, WrongTypeError),
        ({"timeout": -1.0}, OptionError),
        ({"lease": 0}, OptionError),
        ({"run_max": 0}, OptionError),
        ({"consumer": 5}, WrongTypeError),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_got(
    open_store: OpenStore, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """The message stays where it is."""
    jobs = open_store().queue("jobs")
    jobs.put(b"a")
    given: dict[str, Any] = {"handler": print, "timeout": 0} | arguments
    with pytest.raises(error):
        jobs.work(**given)
    assert len(jobs) == 1


def test_what_is_taken_at_most_once_has_no_lease_to_renew(open_store: OpenStore) -> None:
    """A handler that raises does not bring it back."""
    jobs = open_store().queue("jobs", delivery="at_most_once")
    jobs.put_many([b"a", b"b"])
    with jobs.get(timeout=1):
        pass
    work = jobs.work(lambda message: 1 // 0, timeout=0.02)
    assert work.failed == 1
    assert len(jobs) == 0


@CLASSES
def test_threads_whose_messages_all_become_dead_letters_end(
    open_store: OpenStore, durability: str
) -> None:
    """One of them, as it moved its letters, once found more and waited for its own lock."""
    jobs = open_store(durability=durability).queue("jobs", max_deliveries=1)
    jobs.put_many([b"%d" % number for number in range(200)])
    work = jobs.work(lambda message: 1 // 0, threads=4, timeout=0.2)
    assert (work.done, work.failed, work.lost) == (0, 200, 0)
    letters = sorted(int(letter.value or b"") for letter in jobs.dead.read())
    assert letters == list(range(200))
    assert len(jobs) == jobs.stats().pending == 0


@pytest.mark.slow
def test_ctrl_c_ends_a_pool_gracefully(tmp_path: Path) -> None:
    """The handlers that run finish; nothing is lost, nothing done twice."""
    code = """
import sys, time, stratalog
with stratalog.open(sys.argv[1], durability="disk") as store:
    jobs, done = store.queue("jobs"), store.topic("done")
    jobs.put_many([b"%d" % number for number in range(500)])
    def handle(message):
        time.sleep(0.002)
        if done.append(message.value) == 9: print("going", flush=True)
    jobs.work(handle, threads=3)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "data")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "going\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    with stratalog.open(tmp_path / "data") as store:
        done = [int(value or b"") for value in store.topic("done").read_values()]
        jobs = store.queue("jobs")
        assert jobs.stats().pending == 0
        assert len(done) == len(set(done))
        assert len(jobs) == 500 - len(done)


# --- when ---------------------------------------------------------------------------------


def test_a_message_can_be_put_for_a_time(open_store: OpenStore) -> None:
    """As a datetime or seconds; a time that has passed is now; in a batch as well."""
    clock = ManualClock()
    store = open_store(clock=clock)
    jobs = store.queue("jobs")
    now = datetime.fromtimestamp(clock.time_ns() / 1e9, UTC)
    jobs.put(b"later", at=now + timedelta(hours=1))
    jobs.put(b"seconds", at=clock.time_ns() / 1e9 + 60)
    jobs.put(b"past", at=now - timedelta(hours=1))
    jobs.put(b"id", at=now + timedelta(hours=2), dedup_id="x")
    with store.batch() as batch:
        batch.queue("jobs").put(b"batch", at=now + timedelta(seconds=30))
    for seconds, expected in ((0, [b"past"]), (61, [b"seconds", b"batch"]), (3600, [b"later"])):
        clock.advance(seconds)
        found = jobs.get_many(9)
        assert [message.value for message in found] == expected
        jobs.ack(found)
    with pytest.raises(OptionError, match="delay and at both say"):
        jobs.put(b"x", delay=1.0, at=now)
    for wrong in ("tomorrow", True, -1.0):
        with pytest.raises((OptionError, WrongTypeError)):
            jobs.put(b"x", at=wrong)  # type: ignore[arg-type]


# --- asyncio ------------------------------------------------------------------------------


@pytest.mark.slow
def test_tasks_work_on_a_queue(tmp_path: Path) -> None:
    """With leases renewed, failures given back, and a stop."""

    async def main() -> None:
        async with stratalog.aio.open(tmp_path / "data", durability="disk") as store:
            jobs = await store.queue("jobs", lease=0.6, max_deliveries=2)
            await jobs.put_many([b"%d" % number for number in range(50)])
            seen: list[int] = []

            async def handle(message: stratalog.aio.AsyncMessage) -> None:
                number = int(message.value or b"")
                seen.append(number)
                if number == 7:
                    await asyncio.sleep(1.5)
                if number == 9:
                    raise ValueError("no luck")

            work = await jobs.work(handle, tasks=4, timeout=0.1)
            assert (work.done, work.failed, work.lost) == (49, 2, 0)
            assert sorted(seen) == sorted([*range(50), 9])
            assert [one.value for one in await jobs.dead_letters()] == [b"9"]

            await jobs.put(b"1", at=time.time() + 0.05)
            stop = asyncio.Event()

            async def end(message: stratalog.aio.AsyncMessage) -> None:
                stop.set()

            assert (await jobs.work(end, tasks=3, stop=stop)).done == 1

            await jobs.put(b"2")
            began = asyncio.Event()

            async def hang(message: stratalog.aio.AsyncMessage) -> None:
                began.set()
                await asyncio.sleep(60)

            task = asyncio.create_task(jobs.work(hang))
            await began.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await jobs.size() == 1
            async with jobs.get(timeout=1) as message:
                await asyncio.sleep(0.5)
                assert message.delivery_count == 2
            assert await jobs.size() == 0

    asyncio.run(main())


def test_a_message_that_was_lost_meanwhile_is_told(open_store: OpenStore) -> None:
    """A seek takes a message from a block that has it: the end of the block says so."""
    jobs: Queue = open_store().queue("jobs", lease=0.1)
    jobs.put(b"a")

    def block() -> None:
        with jobs.get(timeout=1):
            jobs.seek(0)
            time.sleep(0.2)

    with pytest.raises(LeaseLostError):
        block()
    assert jobs.get(timeout=1).value == b"a"
