"""Retention and downsampling of series: by themselves, late points included, after crashes too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stratalog.errors import OptionError, UnknownTopicError, WrongKindError, WrongTypeError
from stratalog.handles.store import Store
from stratalog.options import StoreOptions
from stratalog.segments.checkpoint import seal
from stratalog.testing import ManualClock

SECOND = 10**9
DAY = 86400


def _open(path: Path, clock: ManualClock) -> Store:
    return Store(path, StoreOptions.build({"shards": 2}, {}), clock=clock, background=False)


def _upkeep(store: Store) -> None:
    assert store._upkeep is not None
    store._upkeep.round()
    assert store._upkeep.failure is None


@pytest.fixture
def clock() -> ManualClock:
    """A clock at a whole day."""
    return ManualClock(20_000 * DAY * SECOND)


def _now(clock: ManualClock) -> int:
    return clock.time_ns() // SECOND


def test_windows_are_kept_in_a_series_of_their_own(tmp_path: Path, clock: ManualClock) -> None:
    """For every field and series; the newest windows as soon as they have points."""
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        cpu.retention(downsample=[("1m", "avg", None), ("1h", "max", "30d")])
        start = _now(clock) - 600
        cpu.write_many(
            range(start, start + 600), {"x": np.arange(600.0), "y": np.ones(600, int)},
            tags={"host": ["a", "b"] * 300},
        )  # fmt: skip
        _upkeep(store)
        minutes = cpu.downsampled("1m")
        wanted = cpu.query(window="1m", by=["host"], field="x").to_pylist()
        found = minutes.query(window="1m", by=["host"], field="x").to_pylist()
        assert found == wanted
        assert len(found) == 20
        assert minutes.fields() == {"x": "float", "y": "float"}
        hours = cpu.downsampled(3600, "max")
        assert hours.read(field="x")[1].tolist() == [598.0, 599.0]
        assert hours.fields() == {"x": "float", "y": "int"}
        assert store.series_names() == ["cpu", "cpu@1h.max", "cpu@1m.avg"]


def test_late_points_have_their_windows_computed_again(tmp_path: Path, clock: ManualClock) -> None:
    """Only those; the cursor moves with them, and nothing is computed twice for nothing."""
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        cpu.retention(downsample=[("1m", "sum", None)])
        start = _now(clock) - 6000
        cpu.write_many(range(start, start + 6000, 10), {"value": np.ones(600)})
        _upkeep(store)
        tier = cpu.downsampled("1m", "sum")
        assert tier.read()[1].tolist() == [6.0] * 100
        records = store.topic("cpu@1m.sum").next_offset
        _upkeep(store)
        assert store.topic("cpu@1m.sum").next_offset == records
        cpu.write(100.0, timestamp=start + 125)
        cpu.write(7.0, timestamp=start + 130)  # in the place of one that was there
        _upkeep(store)
        assert tier.read()[1].tolist() == [6.0, 6.0, 112.0] + [6.0] * 97
        assert tier.state.cursor is not None
        assert tier.state.cursor.offset == store.topic("cpu").next_offset


def test_old_points_go_and_what_was_computed_stays(tmp_path: Path, clock: ManualClock) -> None:
    """Segments of old points leave the disk; late points do not spoil windows of gone ones."""
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        cpu.retention(raw="7d", downsample=[("1h", "count", "30d")])
        first = _now(clock) - DAY
        cpu.write_many(range(first, first + DAY, 60), {"value": np.ones(1440)}, tags={"h": "old"})
        _upkeep(store)
        store.checkpoint()
        seal(cpu.log, clock.time_ns())
        clock.advance(6.5 * DAY)
        assert len(cpu.read()[0]) == 720, "points older than a week are no longer read"
        clock.advance(2 * DAY)
        cpu.write(1.0, timestamp=_now(clock), tags={"h": "new"})
        assert [latest.tags["h"] for latest in cpu.latest()] == ["new"]
        store.compact()
        assert store.topic("cpu").earliest > 0
        assert len(cpu) == 1, "a series without points is forgotten"
        tier = cpu.downsampled("1h", "count")
        assert tier.query(aggregate="sum")["value"].to_pylist() == [1441]
        cpu.write(1.0, timestamp=first + 5, tags={"h": "old"})  # far too late
        _upkeep(store)
        assert tier.query(aggregate="sum")["value"].to_pylist() == [1441]
    # From nothing but the records that are left: rules and cursor are there all the same.
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        cpu.state.reset()
        assert cpu.rules.raw_ns == 7 * DAY * SECOND
        assert cpu.rules.evicted_before > 0
        assert cpu.latest()[-1].tags == {"h": "new"}
        clock.advance(31 * DAY)
        assert cpu.downsampled("1h", "count").read()[1].tolist() == []


def test_retention_never_passes_the_cursor(tmp_path: Path, clock: ManualClock) -> None:
    """Points that a rule has not used yet are kept, however old; the failure can be seen."""
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        cpu.retention(raw="1h", downsample=[("1m", "avg", None)])
        cpu.write_many(range(100, 200), {"value": np.ones(100)})
        store.drop_topic("cpu@1m.avg")
        store.checkpoint()
        seal(cpu.log, clock.time_ns())
        assert store._upkeep is not None
        store._upkeep.round()
        assert "cpu@1m.avg" in (store._upkeep.failure or "")
        assert store.topic("cpu").earliest == 0
        cpu.retention(raw="1h")
        _upkeep(store)
        assert store.topic("cpu").earliest > 0


def test_a_series_that_a_rule_fills_is_not_dropped_alone(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Upkeep would fail from then on; without the rule it can go."""
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        cpu.retention(downsample=[("1m", "avg", None)])
        with pytest.raises(OptionError, match=r"'cpu' is downsampled into 'cpu@1m\.avg'"):
            store.drop_series("cpu@1m.avg")
        cpu.retention()
        store.drop_series("cpu@1m.avg")
        assert store.series_names() == ["cpu"]


def test_rules_survive_a_reopen_and_replace_each_other(tmp_path: Path, clock: ManualClock) -> None:
    """Durable at once; without a rule points stay."""
    with _open(tmp_path, clock) as store:
        store.series("cpu").retention(raw="1h", downsample=[("1m", "p99", "1d")])
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        assert cpu.rules.raw_ns == 3600 * SECOND
        assert cpu.rules.tiers[0].aggregate == "p99"
        cpu.write(1.0, timestamp=5)
        assert cpu.read()[1].tolist() == []
        cpu.retention()
        assert cpu.read()[1].tolist() == [1.0]
        assert cpu.rules.tiers == []


def test_a_downsampled_series_is_not_written(tmp_path: Path, clock: ManualClock) -> None:
    """Its points are computed; it goes with its source."""
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        cpu.retention(downsample=[("1m", "avg", None)])
        tier = cpu.downsampled("1m")
        for write in (
            lambda: tier.write(1.0),
            lambda: tier.write_many([1], {"value": [1.0]}),
            lambda: store.write_lines("cpu@1m.avg value=1"),
            lambda: tier.retention(raw="1d"),
        ):
            with pytest.raises(WrongKindError, match="downsampled"):
                write()
        with pytest.raises(UnknownTopicError, match="retention"):
            cpu.downsampled("2m")
        store.drop_series("cpu")
        assert store.series_names() == []


def test_a_series_with_points_of_its_own_is_no_destination(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Computed points never mix with others."""
    with _open(tmp_path, clock) as store:
        store.series("cpu@1m.avg").write(1.0)
        with pytest.raises(OptionError, match="points of its own"):
            store.series("cpu").retention(downsample=[("1m", "avg", None)])


@pytest.mark.parametrize(
    ("raw", "downsample"),
    [
        ("7 days", []),
        (-1, []),
        (True, []),
        ("1m", [("1h", "avg", None)]),
        (None, [("1m", "avg")]),
        (None, "1m"),
        (None, ["1m"]),
        (None, [("1m", "median", None)]),
        (None, [("1m", "percentile", None)]),
        (None, [("1m", "avg", None), (60, "avg", "1d")]),
        (None, [(f"{n}s", "avg", None) for n in range(1, 20)]),
        (None, 5),
    ],
)
def test_wrong_rules_are_refused(
    tmp_path: Path, clock: ManualClock, raw: Any, downsample: Any
) -> None:
    """By a typed error, and nothing is made."""
    with _open(tmp_path, clock) as store:
        cpu = store.series("cpu")
        with pytest.raises((OptionError, WrongTypeError)):
            cpu.retention(raw, downsample)
        assert store.series_names() == ["cpu"]
        assert store.topic("cpu").next_offset == 0


def test_texts_are_downsampled_where_that_is_possible(tmp_path: Path, clock: ManualClock) -> None:
    """The last text of a window; an average leaves texts out."""
    with _open(tmp_path, clock) as store:
        log = store.series("log")
        log.retention(downsample=[("1m", "last", None), ("1m", "avg", None)])
        log.write_many([1, 2, 61], {"text": ["a", "b", "c"], "n": [1, 2, 3]})
        _upkeep(store)
        assert log.downsampled("1m", "last").read(field="text")[1].tolist() == ["b", "c"]
        assert log.downsampled("1m", "avg").fields() == {"n": "float"}


def _rows(table: Any) -> dict[tuple[Any, ...], Any]:
    """Values of a query by group and window, in seconds."""
    rows = table.to_pylist()
    found = {
        (*(row[name] for name in table.column_names[:-2]), round(row["window_start"].timestamp())):
        row["value"] for row in rows
    }  # fmt: skip
    assert len(found) == len(rows)
    assert list(found) == sorted(found, key=lambda key: tuple(str(one or "") for one in key[:-1]))
    return found


EVERY = ["avg", "sum", "count", "min", "max", "first", "last", "stddev", "p90", "delta", "rate"]


@pytest.mark.parametrize("aggregate", EVERY)
def test_windows_whose_points_are_gone_come_from_a_rule(
    tmp_path: Path, clock: ManualClock, aggregate: str
) -> None:
    """They are what they were before the points went, where the rule tells it."""
    store = _open(tmp_path, clock)
    heat = store.series("heat")
    heat.retention(raw="1h", downsample=[("5m", aggregate, None)])
    begin = clock.time_ns()
    clock.advance(3600)
    times = begin + np.arange(0, 7200, 20) * SECOND
    values = np.random.default_rng(5).random(len(times))
    for room in ("a", "b"):
        heat.write_many(times, {"value": values}, tags={"room": room})
        values = values[::-1]
    everywhere = heat.query(begin, begin + 7200 * SECOND, window="5m", aggregate=aggregate)
    rooms = heat.query(window="5m", aggregate=aggregate, by=["room"])
    wide = heat.query(window="30m", aggregate=aggregate, by=["room"])
    _upkeep(store)
    clock.advance(4200)  # of two hours of points, 50 minutes are left
    _upkeep(store)
    assert len(heat.read()[0]) < len(times)
    assert _rows(heat.query(window="5m", aggregate=aggregate, by=["room"])) == pytest.approx(
        _rows(rooms)
    )
    assert _rows(heat.query(window="5m", aggregate=aggregate, by=["room"], tags={"room": "b"})) == (
        pytest.approx({key: value for key, value in _rows(rooms).items() if key[0] == "b"})
    )
    found = _rows(heat.query(begin, begin + 7200 * SECOND, window="5m", aggregate=aggregate))
    if aggregate in ("first", "last", "stddev", "p90"):  # of two series: that is not known
        assert found == pytest.approx(
            {key: value for key, value in _rows(everywhere).items() if key in found}
        )
        assert 0 < len(found) < everywhere.num_rows
    else:
        assert found == pytest.approx(_rows(everywhere))
    found = _rows(heat.query(window="30m", aggregate=aggregate, by=["room"]))
    if aggregate in ("stddev", "p90", "delta", "rate"):  # nor is that of larger windows
        assert 0 < len(found) < wide.num_rows
    else:
        assert found == pytest.approx(_rows(wide))
    store.close()


def test_a_query_without_a_fitting_rule_has_what_is_left(
    tmp_path: Path, clock: ManualClock
) -> None:
    """Another aggregate, windows that are no multiple, a field that cannot be downsampled."""
    store = _open(tmp_path, clock)
    heat = store.series("heat")
    heat.retention(raw="1h", downsample=[("5m", "max", None)])
    now = clock.time_ns()
    heat.write({"value": 1.0, "text": "old"}, timestamp=now - 1800 * SECOND)
    _upkeep(store)
    clock.advance(3600)
    heat.write({"value": 2.0, "text": "new"}, timestamp=clock.time_ns())
    _upkeep(store)
    assert heat.query(window="5m", aggregate="max", field="value").num_rows == 2
    assert heat.query(window="5m", aggregate="min", field="value").num_rows == 1
    assert heat.query(window="7m", aggregate="max", field="value").num_rows == 1
    assert heat.query(aggregate="max", field="value").num_rows == 1
    assert heat.query(window="5m", aggregate="count", field="text").num_rows == 1
    filled = heat.query(
        now - 3600 * SECOND, clock.time_ns() + 1, window="15m", aggregate="max", field="value",
        fill="null",
    )  # fmt: skip
    assert filled.num_rows in (8, 9)
    assert filled["value"].null_count == filled.num_rows - 2
    store.close()
