"""Ctrl-C at any moment: nothing hangs, nothing is torn apart, what returned is where it said."""

from __future__ import annotations

import itertools
import random
import signal
import time
from pathlib import Path
from types import FrameType

import pytest

import stratalog
from stratalog.model import Record
from tests.crash.ctrl_c import enters_block

SECONDS = 0.5


class Interrupts:
    """Raises KeyboardInterrupt in the main thread, over and over, at random moments."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.count = 0
        self.is_armed = False

    def __enter__(self) -> Interrupts:
        signal.signal(signal.SIGALRM, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self.disarm()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def arm(self) -> None:
        self.is_armed = True
        signal.setitimer(signal.ITIMER_REAL, self._dice.uniform(0.0001, 0.003))

    def disarm(self) -> None:
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if enters_block(frame):
            self.arm()  # a moment later, where the program can handle it
        elif self.is_armed:
            self.is_armed = False
            self.count += 1
            raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("way", ["append", "keyed", "batch", "nowait", "mixed"])
def test_an_interrupt_leaves_a_log_that_is_whole(tmp_path: Path, durability: str, way: str) -> None:
    """Every append that returned is where it said, every other is whole or not there."""
    returned: dict[int, bytes] = {}
    sent: set[bytes] = set()
    store = stratalog.open(tmp_path / "data", durability=durability)
    topic = store.topic("orders")
    numbers = itertools.count(1)

    # A function, because an interrupt at the jump back of a loop is not always seen as being
    # inside of the `try` around the loop.
    def append_until_interrupted() -> None:
        while interrupts.is_armed:  # one that comes in a __del__ is lost by Python
            number = next(numbers)
            value = b"%d %s" % (number, b"x" * (number % 50))
            sent.update((value, value + b"'"))
            kind = ("append", "keyed", "batch", "nowait")[number % 4] if way == "mixed" else way
            if kind == "append":
                returned[topic.append(value)] = value
            elif kind == "keyed":
                returned[topic.append(value, key=value)] = value
            elif kind == "batch":
                first, _ = topic.append_many([value, value + b"'"])
                returned[first] = value
            else:
                returned[topic.append_nowait(value).result()] = value

    deadline = time.monotonic() + SECONDS
    with Interrupts(seed=len(way)) as interrupts:
        while time.monotonic() < deadline:
            try:
                interrupts.arm()
                append_until_interrupted()
            except KeyboardInterrupt:
                interrupts.disarm()
    assert interrupts.count > 5
    check(store, returned, sent)
    store.close()
    with stratalog.open(tmp_path / "data") as store:
        assert store.damage is None
        check(store, returned, sent)


def check(store: stratalog.Store, returned: dict[int, bytes], sent: set[bytes]) -> None:
    """Hold a store against what its appends returned."""
    records = [r for r in store.topic("orders").read() if isinstance(r, Record)]
    assert [r.offset for r in records] == list(range(len(records)))
    assert {r.value for r in records} <= sent
    assert {offset: records[offset].value for offset in returned} == returned
    assert all(r.key in (None, r.value) for r in records)
    stamps = [r.timestamp for r in records]
    assert stamps == sorted(stamps)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_an_interrupted_batch_is_in_all_topics_or_in_none(
    tmp_path: Path, durability: str, shards: int
) -> None:
    """Also between appends to the same topics; no lock is left held, and no offset is lost."""
    names = ("a", "b", "c", "d")
    store = stratalog.open(tmp_path / "data", durability=durability, shards=shards)
    topics = [store.topic(name) for name in names]
    returned: set[bytes] = set()
    numbers = itertools.count(1)

    def work_until_interrupted() -> None:
        while interrupts.is_armed:
            value = b"%d" % next(numbers)
            with store.batch() as batch:
                for name in names:
                    batch.topic(name).append(value)
            returned.add(value)
            topics[len(value) % 4].append(b"single", durability="disk")

    deadline = time.monotonic() + 2 * SECONDS
    with Interrupts(seed=shards) as interrupts:
        while time.monotonic() < deadline:
            try:
                interrupts.arm()
                work_until_interrupted()
            except KeyboardInterrupt:
                interrupts.disarm()
    assert interrupts.count > 5
    assert returned
    for _ in range(2):
        found = [[v for v in store.topic(name).read_values() if v != b"single"] for name in names]
        assert found[0] == found[1] == found[2] == found[3]
        assert len(set(found[0])) == len(found[0])
        assert returned <= set(found[0])
        for name in names:
            log = store.topic(name).log
            assert log.next_offset == log.committed
        store.close()
        store = stratalog.open(tmp_path / "data", shards=2)
        assert store.damage is None
    store.close()
