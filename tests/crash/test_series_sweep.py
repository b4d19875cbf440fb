"""Series crashed after every file operation: points by write are all there or none, in order.

`STRATALOG_SWEEP=exhaustive` crashes after every single operation.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stratalog.handles.store import Store
from stratalog.state.projection import catch_up
from stratalog.state.series_state import SeriesState
from stratalog.testing import Crashed, FakeDisk, ManualClock, MonitorFs
from stratalog.testing.inode import Damage
from tests.crash.model import kill, open_store

EXHAUSTIVE = os.environ.get("STRATALOG_SWEEP") == "exhaustive"
POINTS = 24
SECOND = 10**9
DAMAGES: list[tuple[Damage, int]] = [("keep", 0), ("drop", 0), ("random", 1), ("random", 2)]

Point = tuple[str, int]
"""Host and second."""


class SeriesSession:
    """A store whose series are told to a model first: each write is a set of points."""

    def __init__(self, disk: FakeDisk, clock: ManualClock) -> None:
        self.disk = disk
        self.clock = clock
        self.writes: dict[str, list[dict[Point, float]]] = {}
        """By series, in the order of offsets."""
        self.durable: dict[str, int] = {}
        """How many of these were acknowledged as durable."""
        self.joint: list[dict[str, int]] = []
        """Numbers of writes that are there together or not at all."""
        self.options: dict[str, Any] = {}
        self.store: Store
        self._value = 0.0

    def open(self, **options: Any) -> None:
        """Open the store with small files."""
        self.options |= options
        self.store = open_store(MonitorFs(self.disk), self.clock, **self.options)

    def reopen(self, **options: Any) -> None:
        """Close, which makes everything durable, and open again."""
        self.store.close()
        self.all_durable()
        self.open(**options)

    def all_durable(self) -> None:
        """Everything so far is on the disk."""
        self.durable = {name: len(writes) for name, writes in self.writes.items()}

    def _note(self, name: str, points: dict[Point, float]) -> int:
        self.writes.setdefault(name, []).append(points)
        return len(self.writes[name])

    def _next(self) -> float:
        self._value += 1
        return self._value

    def write(self, name: str, host: str, second: int, durability: str = "fsync") -> None:
        """One point."""
        value = self._next()
        count = self._note(name, {(host, second): value})
        self.store.series(name).write(
            value, tags={"host": host}, timestamp=second, durability=durability
        )
        if durability == "fsync":
            self.durable[name] = count

    def write_many(self, name: str, seconds: range, durability: str = "fsync") -> None:
        """Points of two hosts by column."""
        hosts = ["a" if second % 2 else "b" for second in seconds]
        value = self._next()
        count = self._note(name, dict.fromkeys(zip(hosts, seconds, strict=True), value))
        self.store.series(name).write_many(
            list(seconds), {"value": np.full(len(seconds), value)}, tags={"host": hosts},
            durability=durability,
        )  # fmt: skip
        if durability == "fsync":
            self.durable[name] = count

    def write_lines(self, names: list[str], second: int) -> None:
        """One line for each of several series."""
        value = self._next()
        text = "\n".join(f"{name},host=a value={value} {second}" for name in names)
        counts = {name: self._note(name, {("a", second): value}) for name in names}
        self.joint.append(counts)
        self.store.write_lines(text, precision="s")
        self.durable |= counts

    # --- after a crash --------------------------------------------------------------------

    def check(self, store: Store) -> None:
        """The state is that of some of the first writes, including all durable ones."""
        kept = {name: self._kept(store, name) for name in self.writes}
        for counts in self.joint:
            there = {kept[name] >= count for name, count in counts.items()}
            assert len(there) == 1, f"half of a batch: {kept} of {counts}"

    def _kept(self, store: Store, name: str) -> int:
        if name not in store.series_names():
            assert not self.durable.get(name)
            return 0
        series = store.series(name)
        found = {
            (latest.tags["host"], int(time) // SECOND): float(value)
            for latest in series.latest()
            for time, value in zip(*series.read(tags=latest.tags), strict=True)
        }
        model: dict[Point, float] = {}
        matches = []
        for count, points in enumerate([{}, *self.writes[name]]):
            model |= points
            if model == found:
                matches.append(count)
        assert matches, f"{name} has points that no first writes give: {found}"
        assert matches[-1] >= self.durable.get(name, 0), f"{name} lost a durable point"
        total = series.query(aggregate="sum")["value"].to_pylist()
        assert total == ([pytest.approx(sum(found.values()))] if found else [])
        fresh = SeriesState(series.log)
        catch_up(series.log, fresh, series.log.committed)
        for key, id in series.state.registry.ids.items():
            own = fresh.registry.newest(fresh.registry.ids[key])
            assert series.state.registry.newest(id) == own
        return matches[-1]


def single_points(session: SeriesSession) -> None:
    """One point after the other, late ones among them, over snapshots."""
    session.open()
    for number in range(10):
        session.write("cpu", "ab"[number % 2], number * 7 % 10)
        session.write("mem", "a", number, durability="disk")
        if number in (3, 7):
            session.store.snapshot()
            session.all_durable()


def columns_and_lines(session: SeriesSession) -> None:
    """Batches by column and line protocol over two series, with checkpoints and a reopen."""
    session.open()
    for number in range(4):
        session.write_many("cpu", range(number * 5, number * 5 + 12))
        session.write_lines(["cpu", "mem"], number)
        session.store.checkpoint()
        session.write_many("mem", range(3), durability="disk")
        if number == 2:
            session.reopen(shards=1)


def downsampled(session: SeriesSession) -> None:
    """Rules and rounds of upkeep between late points; windows and cursor are of one moment."""
    session.open(shards=1)
    session.store.series("cpu").retention(downsample=[("10s", "sum", None)])
    for number in range(4):
        session.write_many("cpu", range(number * 5, number * 5 + 12))
        session.write("cpu", "a", 3)
        assert session.store._upkeep is not None
        session.store._upkeep.round()
        if session.store._upkeep.failure is not None:
            raise Crashed  # upkeep logs what goes wrong, and so it does with a crash
        if number == 1:
            session.store.snapshot()
            session.all_durable()
    session.write("cpu", "b", 1)


def check_windows(store: Store) -> None:
    """After another round, windows are what the points that are there make of them."""
    if "cpu" not in store.series_names() or not store.series("cpu").rules.tiers:
        return
    assert store._upkeep is not None
    store._upkeep.round()
    assert store._upkeep.failure is None
    cpu = store.series("cpu")
    wanted = cpu.query(window="10s", aggregate="sum", by=["host"]).to_pylist()
    tier = cpu.downsampled("10s", "sum")
    assert tier.query(window="10s", aggregate="sum", by=["host"]).to_pylist() == wanted


WORKLOADS = [single_points, columns_and_lines, downsampled]
Workload = Callable[[SeriesSession], None]


def run(workload: Workload, crash_after: int | None) -> SeriesSession:
    """Run a workload until its disk crashes, or to its end."""
    session = SeriesSession(FakeDisk(crash_after=crash_after), ManualClock())
    with contextlib.suppress(Crashed):
        workload(session)
    if hasattr(session, "store"):
        kill(session.store)
    return session


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.__name__)
def test_every_crash_of_a_series_is_recovered(workload: Workload) -> None:
    """Acknowledged points are there, batches whole, and the state is that of the records."""
    operations = run(workload, None).disk.operations
    step = 1 if EXHAUSTIVE else max(1, operations // POINTS)
    for point in range(0, operations + 1, step):
        session = run(workload, point)
        for damage, seed in DAMAGES:
            disk = session.disk.crash(seed, damage=damage)
            try:
                store = open_store(MonitorFs(disk), session.clock, **session.options)
                session.check(store)
                kill(store)
                again = open_store(MonitorFs(disk.crash(0, damage="keep")), session.clock)
                session.check(again)
                check_windows(again)
                again.series("cpu").write(1.0, tags={"host": "a"})
                again.close()
            except BaseException as error:
                error.add_note(f"{workload.__name__}, {point} operations, {damage} {seed}")
                raise
