"""A series against a dictionary: late points, doubled points, crashes, snapshots, rebuilds.

What is read, the newest points, and windows are always those that a dictionary of points has; a
state that was recovered from a snapshot answers like one that is made from all records.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.errors import TooLargeError
from stratalog.handles.series import Series
from stratalog.handles.store import Store
from stratalog.state import series_blocks, series_scan
from stratalog.state.projection import catch_up
from stratalog.state.series_state import SeriesState
from stratalog.testing import FakeDisk, ManualClock, MonitorFs
from tests.crash.model import kill, open_store

SECOND = 10**9
HOSTS = st.sampled_from(["a", "b", "c d", "e,=\\"])
TIMES = st.integers(0, 60)
FIELDS = st.sampled_from(["x", "y"])
NUMBERS = st.sampled_from([0.0, 1.0, -2.5, 1e300, 7.0])

Tags = tuple[tuple[str, str], ...]


class SeriesMachine(RuleBasedStateMachine):
    """A series of class `fsync` on a fake disk."""

    @initialize(shards=st.integers(1, 3), buffer=st.sampled_from([1, 4, 1024]))
    def begin(self, shards: int, buffer: int) -> None:
        """A new directory; small blocks, so that there are many of them."""
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(series_blocks, "BUFFER_POINTS", buffer)
        self.patch.setattr(series_blocks, "NAMED_MAX", 2)
        self.patch.setattr(series_scan, "SLICE_POINTS", 7)
        self.disk = FakeDisk()
        self.clock = ManualClock()
        self.points: dict[tuple[Tags, int], dict[str, float]] = {}
        self.store: Store
        self.series: Series
        self._open(shards)

    def teardown(self) -> None:
        """Close the store, and give back what was patched."""
        if hasattr(self, "store"):
            self.store.close()
        if hasattr(self, "patch"):
            self.patch.undo()

    def _open(self, shards: int) -> None:
        self.store = open_store(MonitorFs(self.disk), self.clock, shards=shards)
        self.series = self.store.series("s")

    # --- what users do --------------------------------------------------------------------

    @rule(host=HOSTS, time=TIMES, fields=st.dictionaries(FIELDS, NUMBERS, min_size=1))
    def write(self, host: str, time: int, fields: dict[str, float]) -> None:
        """One point."""
        self.series.write(fields, tags={"host": host}, timestamp=time)
        self.points[(("host", host),), time * SECOND] = fields

    @rule(
        rows=st.lists(st.tuples(TIMES, HOSTS, NUMBERS, st.one_of(st.none(), NUMBERS)), min_size=1),
        zone=st.sampled_from([None, "eu"]),
    )
    def write_many(
        self, rows: list[tuple[int, str, float, float | None]], zone: str | None
    ) -> None:
        """Columns, with missing values, some points twice."""
        tags: dict[str, Any] = {"host": [row[1] for row in rows]}
        if zone is not None:
            tags["zone"] = zone
        columns = {"x": [row[2] for row in rows]}
        if any(row[3] is not None for row in rows):
            columns["y"] = [row[3] for row in rows]  # type: ignore[misc]
        self.series.write_many([row[0] for row in rows], columns, tags=tags)
        for time, host, x, y in rows:
            own = (("host", host), *((("zone", zone),) if zone else ()))
            fields = {"x": x} if y is None else {"x": x, "y": y}
            self.points[own, time * SECOND] = fields

    @rule(rows=st.lists(st.tuples(TIMES, st.sampled_from("ab"), NUMBERS), min_size=1))
    def write_lines(self, rows: list[tuple[int, str, float]]) -> None:
        """Line protocol, beside another series."""
        text = "\n".join(f"s,host={host} x={x!r} {time}" for time, host, x in rows)
        self.store.write_lines(f"{text}\nother x=1 1", precision="s")
        for time, host, x in rows:
            self.points[(("host", host),), time * SECOND] = {"x": x}

    @rule()
    def checkpoint(self) -> None:
        """Records move to segments."""
        self.store.checkpoint()

    @rule()
    def snapshot(self) -> None:
        """The state is written down."""
        self.store.snapshot()

    @rule()
    def shed(self) -> None:
        """Buffered points are dropped from memory."""
        self.series.state.shed()

    @rule(shards=st.integers(1, 3), crash=st.sampled_from([None, "drop", "keep"]))
    def reopen(self, shards: int, crash: Any) -> None:
        """Closed, killed, or the machine went down: what was acknowledged is there."""
        if crash is None:
            self.store.close()
        else:
            kill(self.store)
            self.disk = self.disk.crash(0, damage=crash)
        self._open(shards)

    # --- what has to hold -----------------------------------------------------------------

    def _expected(self, host: str | None, field: str) -> list[tuple[int, Tags, float]]:
        return sorted(
            (time, tags, fields[field])
            for (tags, time), fields in self.points.items()
            if field in fields and (host is None or ("host", host) in tags)
        )

    @rule(host=st.one_of(st.none(), HOSTS), field=FIELDS, start=TIMES, length=TIMES)
    def read(self, host: str | None, field: str, start: int, length: int) -> None:
        """A range of one field, of all series or those of a host."""
        if field not in self.series.fields():
            return
        tags = None if host is None else {"host": host}
        times, values = self.series.read(start, start + length, tags=tags, field=field)
        wanted = [
            (time, value)
            for time, _, value in self._expected(host, field)
            if start * SECOND <= time < (start + length) * SECOND
        ]
        assert times.tolist() == [time for time, _ in wanted]
        assert sorted(zip(times.tolist(), values.tolist(), strict=True)) == sorted(wanted)

    @rule(field=FIELDS, window=st.sampled_from([1, 7, 60]))
    def query(self, field: str, window: int) -> None:
        """Windows by host, against a loop."""
        if field not in self.series.fields():
            return
        groups: dict[tuple[str, int], list[float]] = {}
        for time, tags, value in self._expected(None, field):
            groups.setdefault((dict(tags)["host"], time // (window * SECOND)), []).append(value)
        for aggregate, of in (("sum", math.fsum), ("count", len), ("max", max), ("min", min)):
            table = self.series.query(
                window=window, aggregate=aggregate, by=["host"], field=field
            ).to_pylist()
            found = {
                (row["host"], row["window_start"].value // (window * SECOND)): row["value"]
                for row in table
            }
            assert found.keys() == groups.keys()
            for key, values in groups.items():
                assert found[key] == pytest.approx(of(values))

    @invariant()
    def newest(self) -> None:
        """The newest point of each series is that of the model; of the recovered state, too."""
        if not hasattr(self, "store"):
            return
        wanted: dict[Tags, tuple[int, dict[str, float]]] = {}
        for (tags, time), fields in self.points.items():
            if tags not in wanted or time > wanted[tags][0]:
                wanted[tags] = time, fields
        found = {
            tuple(one.tags.items()): (one.timestamp, one.fields) for one in self.series.latest()
        }
        assert found == wanted

    @rule()
    def rebuild(self) -> None:
        """A state made from all records is the same as the one that was kept, or recovered."""
        self.series.latest()
        kept, log = self.series.state, self.series.log
        fresh = SeriesState(log)
        catch_up(log, fresh, log.committed)
        assert fresh.registry.ids.keys() == kept.registry.ids.keys()
        for key, id in kept.registry.ids.items():
            assert kept.registry.newest(id) == fresh.registry.newest(fresh.registry.ids[key])
        assert sum(block.points for block in kept.blocks.all()) >= len(self.points)
        again = SeriesState(log)
        again.restore(*kept.capture())
        assert again.capture() == kept.capture()

    @rule()
    def refused(self) -> None:
        """A refused write leaves nothing."""
        before = self.store.topic("s").next_offset
        self.series.state.series_max = 1
        with pytest.raises(TooLargeError):
            self.series.write_many([1, 2], {"x": np.ones(2)}, tags={"host": ["new", "newer"]})
        self.series.state.series_max = 1000
        assert self.store.topic("s").next_offset == before


TestSeries = SeriesMachine.TestCase
TestSeries.settings = settings(
    max_examples=int(os.environ.get("STRATALOG_EXAMPLES", "25")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
