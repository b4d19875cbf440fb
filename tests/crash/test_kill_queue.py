"""Eight producers and eight consumers in a process that is killed and started again.

`STRATALOG_QUEUE_SECONDS=60 STRATALOG_QUEUE_KILLS=5` is the full run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import stratalog

SECONDS = float(os.environ.get("STRATALOG_QUEUE_SECONDS", "3"))
KILLS = int(os.environ.get("STRATALOG_QUEUE_KILLS", "2"))


class Journal:
    """The operations that the processes reported."""

    def __init__(self) -> None:
        self.put: set[int] = set()
        self.acked: set[int] = set()
        self.counts: dict[int, int] = {}
        self.deliveries = 0

    def take(self, lines: str) -> None:
        """Take in what one process said, in order."""
        for line in lines.splitlines():
            word, _, rest = line.partition(" ")
            if word == "put":
                self.put.add(int(rest))
            elif word == "ack":
                self.acked.add(int(rest))
            else:
                offset, _, count = rest.partition(" ")
                self.deliveries += 1
                self.counts[int(offset)] = max(self.counts.get(int(offset), 0), int(count))

    def check_deliveries(self, lines: str) -> None:
        """Nothing that an earlier process acknowledged comes again, and counts go on."""
        before = set(self.acked)
        for line in lines.splitlines():
            word, _, rest = line.partition(" ")
            if word == "got":
                offset, _, count = rest.partition(" ")
                assert int(offset) not in before, f"message {offset} was acknowledged, and is back"
                # A killed process leaves its writes: the count that it acknowledged is raised.
                assert int(count) > self.counts.get(int(offset), 0)


def run_and_kill(path: Path, run: int, seconds: float) -> str:
    """Let the process work for a while, kill it, and return what it said."""
    command = [sys.executable, "-m", "tests.crash.worked", str(path), str(run)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    parts = [process.stdout.readline()]  # it is up and working
    reader = threading.Thread(target=lambda: parts.append(process.stdout.read()))  # type: ignore[union-attr]
    reader.start()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    reader.join()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
    return "".join(parts)


def test_every_message_is_consumed_and_none_comes_back(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Whatever was acknowledged: a put is consumed in the end, an ack is for good."""
    journal = Journal()
    for run in range(KILLS):
        lines = run_and_kill(tmp_path / "data", run, SECONDS / KILLS)
        journal.check_deliveries(lines)
        journal.take(lines)
    with stratalog.open(tmp_path / "data") as store:
        assert store.damage is None
        queue = store.queue("jobs")
        left = set()
        while found := queue.get_many(1000, timeout=2.0):
            left |= {message.offset for message in found}
            queue.ack(*found)
        assert len(queue) == 0
    assert not left & journal.acked, "acknowledged, and back"
    assert journal.put <= left | journal.acked | set(journal.counts), "put, and lost"
    # What was got and not acknowledged in the journal was acknowledged just before the kill.
    assert len(journal.put - left - journal.acked) <= 8 * 20 * KILLS
    assert journal.deliveries > 100
    record_property("messages", len(journal.put))
    print(f"{len(journal.put)} messages, {journal.deliveries} deliveries, {KILLS} kills")
