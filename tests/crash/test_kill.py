"""A real process, killed again and again, beside a journal of what it was told."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import stratalog
from stratalog.model import Gap
from tests.crash.killed import payload

KILLS = int(os.environ.get("STRATALOG_KILLS", "6"))


def run_and_kill(path: Path, seed: int, seconds: float) -> dict[str, set[int]]:
    """Let the process append for a while, kill it, and return what it said was durable."""
    command = [sys.executable, "-m", "tests.crash.killed", str(path), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    first = process.stdout.readline()  # it is up and appending
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    acknowledged: dict[str, set[int]] = {}
    for line in (first + rest).splitlines():
        name, _, offset = line.partition(" ")
        acknowledged.setdefault(name, set()).add(int(offset))
    return acknowledged


def test_a_killed_process_loses_nothing_it_was_told_is_durable(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Every acknowledged fsync record is there after SIGKILL, and nothing else than was sent."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    acknowledged: dict[str, set[int]] = {}
    for kill in range(KILLS):
        for name, offsets in run_and_kill(tmp_path / "data", kill, dice.uniform(0, 0.4)).items():
            acknowledged.setdefault(name, set()).update(offsets)
        # Beside the dead writer first, without touching anything; then as the next writer.
        for read_only in (True, False):
            with stratalog.open(tmp_path / "data", read_only=read_only) as store:
                assert store.damage is None
                check(store, acknowledged)
    assert acknowledged
    record_property("kills", KILLS)


def check(store: stratalog.Store, acknowledged: dict[str, set[int]]) -> None:
    """Hold what is found against what was acknowledged, and against what can have been sent.

    Some appends are of class `disk`: what a kill took of those is a gap, and no offset in it was
    acknowledged as durable.
    """
    for name, offsets in acknowledged.items():
        expected = 0
        found: set[int] = set()
        for item in store.topic(name).read():
            if isinstance(item, Gap):
                assert (item.first, item.reason) == (expected, "crash")
                expected = item.last + 1
                continue
            assert item.offset == expected
            assert item.value == payload(name, expected)
            found.add(expected)
            expected += 1
        assert offsets <= found, f"{name} lost an acknowledged record"
