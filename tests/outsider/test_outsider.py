"""A long random run over everything at once, against journals.

`STRATALOG_OUTSIDER_KILLS=200` is the full run; `STRATALOG_OUTSIDER_SEED` repeats one, as far as
threads can be repeated. Each run of the workload is ended by SIGKILL at a random moment. Then its
store is read as it lies there, opened, verified and read again; its backups are checked, and go on
beside it with the same cold store; copies of it get bits flipped, and are repaired.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import stratalog
from stratalog import Gap, Record
from tests.outsider.journal import DENSE, TOPICS, Promises
from tests.outsider.workload import id_of, open_store, payload

KILLS = int(os.environ.get("STRATALOG_OUTSIDER_KILLS", "8"))
KILLS_PER_STORE = 20
"""Then a new store is begun, because all of it is read after every kill."""


class Run:
    """A store, its cold store and the journals of the processes that used it."""

    def __init__(self, directory: Path, dice: random.Random) -> None:
        self.directory = directory
        self.path = directory / "data"
        self.cold = directory / "cold"
        self.promises = Promises()
        self.dice = dice
        self.journal = directory / "journal"
        """Seconds of the process at work."""
        self.cold.mkdir(parents=True)

    @contextlib.contextmanager
    def process(self) -> Iterator[subprocess.Popen[bytes]]:
        """A process at work on the store; it is killed at the end, and its journal taken in."""
        journal = self.journal = self.directory / f"journal-{self.promises.runs}"
        words = [self.path, self.cold, journal, self.promises.runs, self.dice.randrange(1 << 30)]
        command = [sys.executable, "-m", "tests.outsider.workload", *map(str, words)]
        with (self.directory / "stderr").open("ab") as stderr:
            process = subprocess.Popen(command, stderr=stderr)
        deadline = time.monotonic() + 60
        while not journal.exists() or not journal.read_bytes():
            assert process.poll() is None, (self.directory / "stderr").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            status = process.wait()
        assert status in (-signal.SIGKILL, 3), (status, journal.read_text()[-3000:])
        self.promises.kills += status == -signal.SIGKILL
        self.promises.take(journal)

    def wait_for_work(self) -> None:
        """Wait until the process has acknowledged enough for the checks to mean something."""
        deadline = time.monotonic() + 120
        while True:
            notes = self.journal.read_bytes()
            if notes.count(b"\nack ") > 100 and notes.count(b"\ndone ") > 10:
                return
            assert time.monotonic() < deadline, notes[-3000:]
            time.sleep(0.05)

    def read_beside_it(self, seconds: float) -> None:
        """Read what the process writes, in this one, and remember every record."""
        end = time.monotonic() + seconds
        with stratalog.open(self.path, read_only=True, cold=self.cold) as view:
            while time.monotonic() < end:
                for name in self.dice.sample(TOPICS, 3):
                    if name in view.topics():
                        self._read_some(view.topic(name))

    def _read_some(self, topic: stratalog.Topic) -> None:
        start = self.dice.randrange(topic.earliest, topic.next_offset + 1)
        for item in topic.read(start, limit=300):
            if isinstance(item, Record):
                id = id_of(item.value)
                assert id is not None
                before = self.promises.seen.setdefault((topic.name, item.offset), id)
                assert before == id, f"{topic.name} {item.offset} was {before} and is {id}"

    def check(self) -> None:
        """Hold the store against its journals: as it lies there, opened, and verified."""
        with stratalog.open(self.path, read_only=True, cold=self.cold) as view:
            self.promises.check(view)
        with open_store(str(self.path), str(self.cold)) as store:
            assert store.damage is None
            self.promises.check(store)
        report = stratalog.verify(self.path, cold=str(self.cold))
        assert report.ok, report

    def check_copies(self) -> None:
        """Hold backups against the journals; then let one be a store of its own."""
        for number, (path, durable) in enumerate(self.promises.copies):
            self.promises.check_copy(path, durable, str(self.cold))
            if number == 0:
                self._go_on_apart(path)
            shutil.rmtree(path)
        self.promises.copies.clear()

    def _go_on_apart(self, path: str) -> None:
        with open_store(path, str(self.cold)) as copy:
            for name in DENSE[:3]:
                copy.topic(name).append_many([payload(f"apart.{n}") for n in range(400)])
            copy.drop_topic("pair-2")
            copy.compact()
            copy.snapshot()

    def flip_bits(self) -> None:
        """Damage a copy: what it serves is right, what it lost is explicit; repair mends it."""
        path, cold = self.directory / "damaged", self.directory / "damaged-cold"
        shutil.copytree(self.path, path)
        shutil.copytree(self.cold, cold)
        files = sorted(one for one in path.rglob("*") if one.is_file() and one.stat().st_size)
        for file in self.dice.sample(files, min(3, len(files))):
            data = bytearray(file.read_bytes())
            data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
            file.write_bytes(data)
            print("flipped a bit of", file.relative_to(path))
        stratalog.verify(path, cold=str(cold))
        refused = contextlib.suppress(stratalog.StratalogError)
        with refused, open_store(str(path), str(cold)) as store:
            self._check_damaged(store)
        stratalog.repair(path, cold=str(cold))
        with open_store(str(path), str(cold)) as store:
            assert store.damage is None
            self._check_damaged(store, is_repaired=True)
        shutil.rmtree(path)
        shutil.rmtree(cold)

    def _check_damaged(self, store: stratalog.Store, *, is_repaired: bool = False) -> None:
        for name in DENSE:
            if name not in store.topics():
                continue  # a lost name is in the report of verify and repair
            found: set[int] = set()
            try:
                for item in store.topic(name).read():
                    if isinstance(item, Gap):
                        found.update(range(item.first, item.last + 1))
                    else:
                        self.promises.see(name, item)
                        found.add(item.offset)
            except stratalog.StratalogError:
                assert not is_repaired
                continue
            for offset, one in self.promises.acknowledged[name].items():
                is_there = offset in found or one.durability != "fsync"
                # The newest may have been in the bytes that could not be read: repair says so.
                is_there = is_there or offset >= store.topic(name).next_offset
                assert is_there, f"record {offset} of {name} is gone without a gap"
            if is_repaired:
                store.topic(name).append(b"after repair")


def test_nothing_is_lost_or_wrong_whatever_is_killed_filled_or_flipped(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Sixteen threads, a full disk now and then, SIGKILL, bit flips, and backups that live on."""
    seed = int(os.environ.get("STRATALOG_OUTSIDER_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    dice = random.Random(seed)
    totals = [0, 0, 0]
    for first in range(0, KILLS, KILLS_PER_STORE):
        run = Run(tmp_path / f"store-{first}", dice)
        for number in range(min(KILLS_PER_STORE, KILLS - first)):
            with run.process():
                if number == 0:
                    run.wait_for_work()
                run.read_beside_it(dice.uniform(0.1, 1.5))
            run.check()
            run.check_copies()
            if dice.random() < 0.3:
                run.flip_bits()
        with open_store(str(run.path), str(run.cold)) as store:
            left = run.promises.check_queue(store)
        promises = run.promises
        totals[0] += sum(map(len, promises.acknowledged.values()))
        totals[1] += len(promises.done)
        totals[2] += promises.kills
        print(dict(promises.errors), left, "left")
        shutil.rmtree(run.directory)
    assert totals[0] > 100
    assert totals[1] > 10
    record_property("kills", totals[2])
    print(f"{totals[0]} records, {totals[1]} messages consumed, {totals[2]} kills")
