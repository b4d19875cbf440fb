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
        if self.is_armed:
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
