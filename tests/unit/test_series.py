"""Series: points in by value, by column and by line; ranges, windows and newest points out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import stratalog
from stratalog.errors import (
    BadLineError,
    ClosedError,
    OptionError,
    ReadOnlyError,
    TooLargeError,
    UnknownTopicError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.handles.store import Store

SECOND = 10**9
START = 1_700_000_000
BASE = START * SECOND


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of class `disk`."""
    with stratalog.open(tmp_path / "data", durability="disk") as store:
        yield store


def test_a_point_is_written_and_read(store: Store) -> None:
    """A bare value is the field `value`; several fields are read one at a time."""
    cpu = store.series("cpu")
    assert cpu.write(0.64, tags={"host": "a"}, timestamp=START) == 0
    assert cpu.write({"user": 72.5, "system": 7.4}, tags={"host": "b"}, timestamp=START + 1) == 1
    times, values = cpu.read()
    assert (times.tolist(), values.tolist()) == ([BASE], [0.64])
    times, values = cpu.read(field="user", tags={"host": "b"})
    assert (times.dtype == np.int64, values.tolist()) == (True, [72.5])
    assert cpu.read(field="user", tags={"host": "a"})[1].tolist() == []
    assert cpu.fields() == {"value": "float", "user": "float", "system": "float"}


def test_a_point_without_a_time_has_the_time_of_the_call(store: Store) -> None:
    """And so has a line without one."""
    before = store.clock.time_ns()
    store.series("cpu").write(1.0)
    store.write_lines("cpu value=2")
    after = store.clock.time_ns()
    times, _ = store.series("cpu").read()
    assert all(before <= time <= after for time in times.tolist())


@pytest.mark.parametrize(
    ("value", "kind"), [(1.5, "float"), (7, "int"), (True, "bool"), ("up", "text"), ("", "text")]
)
def test_every_type_comes_back_as_it_was(store: Store, value: Any, kind: str) -> None:
    """Float, int, bool and text: alone, in columns, in `latest` and after a reopen."""
    series = store.series("s")
    series.write(value, timestamp=START)
    series.write_many([START + 1, START + 2], {"value": [value, None]})
    assert series.fields() == {"value": kind}
    for _ in range(2):
        series = store.series("s")
        assert series.read()[1].tolist() == [value, value]
        assert series.latest()[0].fields == {}
        assert series.query(aggregate="last")["value"].to_pylist() == [value]
        path = store.path
        store.close()
        store = stratalog.open(path)
    store.close()


def test_late_points_take_their_place(store: Store) -> None:
    """The order of writing does not matter to a reader."""
    series = store.series("s")
    for second in (5, 1, 3, 2, 4):
        series.write(float(second), timestamp=START + second)
    assert series.read()[1].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert series.latest()[0].timestamp == BASE + 5 * SECOND
    assert series.query(aggregate="first")["value"].to_pylist() == [1.0]


def test_of_two_points_of_one_time_the_later_counts(store: Store) -> None:
    """As a whole: a field that only the older one has is gone. In one call, too."""
    series = store.series("s")
    series.write({"a": 1.0, "b": 1.0}, timestamp=START)
    series.write_many([START, START + 1], {"a": [2.0, 2.0]})
    assert series.read(field="a")[1].tolist() == [2.0, 2.0]
    assert series.read(field="b")[1].tolist() == []
    series.write_many([START + 1, START + 1], {"a": [3.0, 4.0]})
    assert series.read(field="a")[1].tolist() == [2.0, 4.0]
    assert series.latest() == [({}, BASE + SECOND, {"a": 4.0})]
    assert series.query(aggregate="sum", field="a")["value"].to_pylist() == [6.0]


def test_columns_come_from_lists_numpy_and_arrow(store: Store) -> None:
    """Times, fields and tags in every form are one and the same."""
    hosts = ["a", "b", "a"]
    forms: list[tuple[Any, Any, Any]] = [
        ([START, START + 1, START + 2], [1.0, 2.0, 3.0], hosts),
        (np.array([START, START + 1, START + 2]) * 1.0, np.array([1.0, 2.0, 3.0]), np.array(hosts)),
        (np.array([BASE, BASE + SECOND, BASE + 2 * SECOND]), np.arange(1.0, 4), pa.array(hosts)),
        (
            pa.array([BASE, BASE + SECOND, BASE + 2 * SECOND]).cast(pa.timestamp("ns")),
            pa.chunked_array([[1.0], [2.0, 3.0]]),
            pa.array(hosts).dictionary_encode(),
        ),
        (
            np.array([BASE, BASE + SECOND, BASE + 2 * SECOND]).astype("datetime64[ns]"),
            pa.array([1.0, 2.0, 3.0], pa.float32()),
            hosts,
        ),
        (
            [datetime.fromtimestamp(START + n, UTC) for n in range(3)],
            [1, 2.0, 3],
            hosts,
        ),
    ]
    for number, (times, values, tags) in enumerate(forms):
        series = store.series(f"s{number}")
        series.write_many(times, {"v": values}, tags={"host": tags, "zone": "x"})
        assert series.read()[0].tolist() == [BASE, BASE + SECOND, BASE + 2 * SECOND]
        assert series.read()[1].tolist() == [1.0, 2.0, 3.0]
        assert [one.tags for one in series.latest()] == [
            {"host": "a", "zone": "x"},
            {"host": "b", "zone": "x"},
        ]


def test_missing_values_are_none_null_or_masked(store: Store) -> None:
    """A point may lack a field; NaN and infinity are not values."""
    columns: list[Any] = [
        [1.0, None, 3.0],
        pa.array([1.0, None, 3.0]),
        np.ma.MaskedArray([1.0, np.nan, 3.0], [False, True, False]),
    ]
    for number, column in enumerate(columns):
        series = store.series(f"s{number}")
        series.write_many([1, 2, 3], {"v": column, "w": [1, 2, 3]})
        assert series.read(field="v")[1].tolist() == [1.0, 3.0]
        assert series.read(field="w")[1].tolist() == [1, 2, 3]
        assert series.query(aggregate="count", field="v")["value"].to_pylist() == [2]
    for wrong in (math.nan, math.inf):
        with pytest.raises(OptionError, match="v"):
            store.series("s").write_many([1, 2], {"v": [1.0, wrong]})
        with pytest.raises(OptionError, match="value"):
            store.series("s").write(wrong)
    assert store.series("s").read()[1].tolist() == []


@pytest.mark.parametrize(
    ("times", "fields", "tags"),
    [
        ([], {"v": []}, None),
        ([1, 2], {"v": [1.0]}, None),
        ([1], {}, None),
        ([1], [1.0], None),
        ([1], {"": [1.0]}, None),
        ([1], {"v": ["a"], "w": [b"x"]}, None),
        ([1], {"v": [object()]}, None),
        ([-1], {"v": [1.0]}, None),
        ([math.nan], {"v": [1.0]}, None),
        ([1 << 70], {"v": [1.0]}, None),
        (["now"], {"v": [1.0]}, None),
        (np.array(["NaT"], "datetime64[ns]"), {"v": [1.0]}, None),
        (np.array(["9999-01-01"], "datetime64[s]"), {"v": [1.0]}, None),
        (pa.array([1, None]), {"v": [1.0, 2.0]}, None),
        (np.zeros((1, 1)), {"v": [1.0]}, None),
        (5, {"v": [1.0]}, None),
        ([1], {"v": [1 << 70]}, None),
        ([1], {"v": np.array([1 << 63], np.uint64)}, None),
        ([1], {"v": [1.0]}, {"host": ["a", "b"]}),
        ([1], {"v": [1.0]}, {"host": [None]}),
        ([1], {"v": [1.0]}, {"host": [""]}),
        ([1], {"v": [1.0]}, {"host": ["a\nb"]}),
        ([1], {"v": [1.0]}, {"host": 7}),
        ([1], {"v": [1.0]}, ["host"]),
        ([1], {"v": [1.0]}, {"host": "x" * 2000}),
    ],
)
def test_wrong_columns_are_refused_and_nothing_is_written(
    store: Store, times: Any, fields: Any, tags: Any
) -> None:
    """By a typed error, before anything enters the log."""
    series = store.series("s")
    with pytest.raises((OptionError, WrongTypeError, TooLargeError)):
        series.write_many(times, fields, tags=tags)
    assert store.topic("s").next_offset == 0


@pytest.mark.parametrize(
    ("value", "tags", "timestamp"),
    [
        (None, None, None),
        (b"x", None, None),
        ({}, None, None),
        ({"": 1.0}, None, None),
        ({"v": None}, None, None),
        (1 << 64, None, None),
        ("\ud800", None, None),
        (1.0, {"host": 1}, None),
        (1.0, {"": "a"}, None),
        (1.0, {"host": ""}, None),
        (1.0, "host=a", None),
        (1.0, {"host": "\ud800"}, None),
        (1.0, None, -5),
        (1.0, None, "now"),
        ("x" * (17 << 20), None, None),
    ],
)
def test_a_wrong_point_is_refused(store: Store, value: Any, tags: Any, timestamp: Any) -> None:
    """By a typed error, before anything enters the log."""
    series = store.series("s")
    with pytest.raises((OptionError, WrongTypeError, TooLargeError)):
        series.write(value, tags=tags, timestamp=timestamp)
    assert store.topic("s").next_offset == 0


def test_a_field_keeps_its_type(store: Store) -> None:
    """Whole numbers become floats where there are floats; nothing else mixes."""
    series = store.series("s")
    series.write(1, timestamp=1)
    assert series.fields() == {"value": "int"}
    series.write(2.5, timestamp=2)
    series.write(3, timestamp=3)
    assert series.fields() == {"value": "float"}
    assert series.read()[1].tolist() == [1.0, 2.5, 3.0]
    for wrong in ("text", True):
        with pytest.raises(WrongTypeError, match="'value' of series 's' is float"):
            series.write(wrong)
        with pytest.raises(WrongTypeError, match="Nothing was written"):
            series.write_many([1], {"value": [wrong]})
    with pytest.raises(BadLineError, match="float in series 's'") as caught:
        store.write_lines('# a comment\n\ns,host=a other=1,value="x" 5')
    assert (caught.value.line, caught.value.column) == (3, 24)
    assert len(series.read()[0]) == 3


def test_a_type_is_known_before_its_record_is_applied(tmp_path: Path) -> None:
    """The second of two conflicting writes is refused, after a reopen as well."""
    with stratalog.open(tmp_path) as store:
        store.series("s").write("text")
        with pytest.raises(WrongTypeError):
            store.series("s").write(1.0)
    with stratalog.open(tmp_path) as store, pytest.raises(WrongTypeError):
        store.series("s").write(1.0)


# --- line protocol --------------------------------------------------------------------------


def test_lines_go_to_the_series_of_their_measurements(store: Store) -> None:
    """All precisions, several measurements in one text."""
    text = "cpu,host=a user=72.5,system=7.4 1708700400000\nmem,host=a used=5i 1708700400000\n"
    assert store.write_lines(text, precision="ms") == 2
    assert store.series_names() == ["cpu", "mem"]
    assert store.series("mem").read()[0].tolist() == [1708700400 * SECOND]
    for unit, size in {"us": 10**3, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}.items():
        store.write_lines("t v=1 100", precision=unit)
        assert store.series("t").latest()[0].timestamp == 100 * size
    assert store.write_lines("") == 0
    assert store.write_lines("# nothing\n") == 0


def test_a_bad_line_is_named_and_nothing_is_applied(store: Store) -> None:
    """Neither its own measurement nor those before it."""
    with pytest.raises(BadLineError, match="Line 3, column 7") as caught:
        store.write_lines("a v=1 1\nb v=1 1\na v=1 x\n")
    assert (caught.value.line, caught.value.column) == (3, 7)
    assert store.series_names() == []


def test_a_measurement_that_is_no_series_is_refused(store: Store) -> None:
    """A plain topic of that name stays what it is, and the other lines are not written."""
    store.topic("plain")
    with pytest.raises(BadLineError, match="Line 2"):
        store.write_lines("cpu v=1 1\nplain v=1 1")
    assert store.series_names() == []


def test_lines_are_refused_by_wrong_precision_and_type(store: Store) -> None:
    """As arguments of the call."""
    with pytest.raises(OptionError, match="precision"):
        store.write_lines("a v=1", precision="days")
    with pytest.raises(WrongTypeError):
        store.write_lines(5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="ephemeral"):
        store.write_lines("a v=1", durability="ephemeral")


# --- windows --------------------------------------------------------------------------------


def _filled(store: Store) -> stratalog.Series:
    """Two hosts, a point a second for ten minutes, in three writes of which one came late."""
    series = store.series("load")
    seconds = np.arange(600)
    for low, high in ((0, 200), (400, 600), (150, 450)):
        own = seconds[low:high]
        for host, factor in (("a", 1.0), ("b", 3.0)):
            series.write_many(
                BASE + own * SECOND, {"v": own * factor}, tags={"host": host, "rack": "r1"}
            )
    return series


REDUCE: dict[str, Any] = {
    "avg": lambda points: statistics.fmean(value for _, value in points),
    "sum": lambda points: sum(value for _, value in points),
    "count": len,
    "min": lambda points: min(value for _, value in points),
    "max": lambda points: max(value for _, value in points),
    "first": lambda points: points[0][1],
    "last": lambda points: points[-1][1],
    "stddev": lambda points: statistics.stdev(value for _, value in points),
    "p90": lambda points: float(np.percentile([value for _, value in points], 90)),
    "delta": lambda points: points[-1][1] - points[0][1],
    "rate": lambda points: (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0]),
}


@pytest.mark.parametrize("aggregate", REDUCE)
def test_windows_are_what_a_loop_over_points_makes_of_them(store: Store, aggregate: str) -> None:
    """Every aggregate, by host, with late points over earlier ones."""
    series = _filled(store)
    table = series.query(START, START + 600, window="1m", aggregate=aggregate, by=["host"])
    assert table.column_names == ["host", "window_start", "value"]
    expected = []
    for host, factor in (("a", 1.0), ("b", 3.0)):
        points = [(START + second, second * factor) for second in range(600)]
        for start in range(START - START % 60, START + 600, 60):
            own = [point for point in points if start <= point[0] < start + 60]
            expected.append((host, start * SECOND, REDUCE[aggregate](own)))
    found = [(row["host"], row["window_start"].value, row["value"]) for row in table.to_pylist()]
    assert [row[:2] for row in found] == [row[:2] for row in expected]
    assert [row[2] for row in found] == pytest.approx([row[2] for row in expected])


def test_series_of_a_group_are_put_together(store: Store) -> None:
    """All hosts in one value; without a window, one value for everything."""
    series = _filled(store)
    (row,) = series.query(aggregate="sum").to_pylist()
    assert row["value"] == 4 * sum(range(600))
    assert series.query(aggregate="rate")["value"].to_pylist() == pytest.approx([4.0])
    assert series.query(aggregate="delta", by=["rack"])["value"].to_pylist() == [599 * 4.0]
    assert series.query(aggregate="max", tags={"host": "a"})["value"].to_pylist() == [599.0]
    assert series.query(aggregate="last")["value"].to_pylist() == [599 * 3.0]
    (row,) = series.query(aggregate="count", by=["nothing"]).to_pylist()
    assert (row["nothing"], row["value"]) == (None, 1200)


def test_windows_without_points_are_filled(store: Store) -> None:
    """None, null, previous and zero, over the range that was asked for."""
    series = store.series("s")
    series.write_many([60, 65, 180], {"v": [1, 3, 7]})
    expected = {
        "none": [2.0, 7.0],
        "null": [None, 2.0, None, 7.0, None],
        "previous": [None, 2.0, 2.0, 7.0, 7.0],
        "zero": [0.0, 2.0, 0.0, 7.0, 0.0],
    }
    for fill, values in expected.items():
        table = series.query(1e-9, 300, window="1m", fill=fill)
        assert table["value"].to_pylist() == values
    assert series.query(window="1m", fill="zero")["value"].to_pylist() == [2.0, 0.0, 7.0]
    assert series.query(400, 500, window="1m", fill="zero").num_rows == 0
    with pytest.raises(OptionError, match="rows"):
        series.query(1, 10**9, window="1ms", fill="null")


def test_rate_and_stddev_of_one_point_are_null(store: Store) -> None:
    """There is nothing to compare it with; a delta of it is zero."""
    series = store.series("s")
    series.write(5.0, timestamp=10)
    assert series.query(aggregate="rate")["value"].to_pylist() == [None]
    assert series.query(aggregate="stddev")["value"].to_pylist() == [None]
    assert series.query(aggregate="delta")["value"].to_pylist() == [0.0]


def test_an_empty_series_answers_with_nothing(store: Store) -> None:
    """Empty arrays, an empty table, no newest points."""
    series = store.series("s")
    assert [len(column) for column in series.read()] == [0, 0]
    table = series.query(window="1m", by=["host"])
    assert (table.column_names, table.num_rows) == (["host", "window_start", "value"], 0)
    assert series.latest() == []
    assert len(series) == 0
    assert bool(series)


def test_whole_numbers_stay_whole(store: Store) -> None:
    """Sums, minima and maxima of ints are ints; one that does not fit is refused."""
    series = store.series("s")
    series.write_many([1, 2], {"v": [1 << 62, 5]})
    table = series.query(aggregate="max")
    assert (table["value"].type, table["value"].to_pylist()) == (pa.int64(), [1 << 62])
    series.write({"v": 1 << 62}, timestamp=3)
    with pytest.raises(OptionError, match="64 bits"):
        series.query(aggregate="sum")
    falls = store.series("falls")
    falls.write_many([1, 2], {"v": [(1 << 63) - 1, -2]})
    with pytest.raises(OptionError, match="64 bits"):
        falls.query(aggregate="delta")
    assert falls.query(aggregate="rate")["value"].to_pylist() == [-(2.0**63)]


def test_text_can_be_counted_and_not_added(store: Store) -> None:
    """The error says what is possible."""
    series = store.series("s")
    series.write_many([1, 2], {"v": ["a", "b"]})
    assert series.query(aggregate="count")["value"].to_pylist() == [2]
    assert series.query(aggregate="first")["value"].to_pylist() == ["a"]
    with pytest.raises(OptionError, match="count, first, last"):
        series.query(aggregate="avg")


@pytest.mark.parametrize(
    "arguments",
    [
        {"window": "5 minutes"},
        {"window": "5x"},
        {"window": ""},
        {"window": 0},
        {"window": None, "aggregate": "median"},
        {"aggregate": "percentile"},
        {"aggregate": "percentile", "percentile": 101},
        {"aggregate": "p101"},
        {"aggregate": "avg", "percentile": 5},
        {"aggregate": "percentile", "percentile": "x"},
        {"fill": "linear"},
        {"by": "host"},
        {"by": [1]},
        {"by": ["host", "host"]},
        {"by": ["value"]},
        {"start": 5, "end": 4},
        {"start": "now"},
        {"field": "other"},
        {"window": True},
        {"tags": {"host": 1}},
    ],
)
def test_wrong_queries_are_refused(store: Store, arguments: dict[str, Any]) -> None:
    """By a typed error that names the argument."""
    series = store.series("s")
    series.write(1.0, timestamp=1)
    with pytest.raises((OptionError, WrongTypeError)):
        series.query(**arguments)


def test_a_field_has_to_be_named_if_there_are_several(store: Store) -> None:
    """Unless one of them is called `value`."""
    series = store.series("s")
    series.write({"a": 1.0, "b": 2.0}, timestamp=1)
    with pytest.raises(OptionError, match="a, b"):
        series.read()
    series.write(3.0, timestamp=2)
    assert series.read()[1].tolist() == [3.0]


def test_durations_are_text_seconds_or_timedeltas(store: Store) -> None:
    """All of them mean the same windows."""
    series = store.series("s")
    series.write_many(range(0, 600, 60), {"v": range(10)})
    wanted = series.query(window="5m", aggregate="sum").to_pylist()
    for window in (300, 300.0, timedelta(minutes=5), "300s", "300000ms"):
        assert series.query(window=window, aggregate="sum").to_pylist() == wanted


# --- newest points --------------------------------------------------------------------------


def test_latest_finds_all_series_that_match(store: Store) -> None:
    """By any of their tags, in the order of their names."""
    series = store.series("s")
    for host in ("b", "a"):
        for core in ("1", "0"):
            series.write(float(core), tags={"host": host, "core": core}, timestamp=START)
    assert [tuple(one.tags.values()) for one in series.latest()] == [
        ("0", "a"), ("0", "b"), ("1", "a"), ("1", "b"),
    ]  # fmt: skip
    assert [one.fields["value"] for one in series.latest({"host": "a"})] == [0.0, 1.0]
    assert series.latest({"host": "c"}) == []
    assert series.latest({"rack": "a"}) == []
    with pytest.raises(WrongTypeError):
        series.latest({"host": 5})  # type: ignore[dict-item]


def test_what_latest_returns_is_the_callers(store: Store) -> None:
    """Changing it changes nothing in the store."""
    series = store.series("s")
    series.write(1.0, tags={"host": "a"}, timestamp=1)
    (one,) = series.latest()
    one.tags["host"] = "changed"
    one.fields.clear()
    assert series.latest() == [({"host": "a"}, SECOND, {"value": 1.0})]


# --- limits and life ------------------------------------------------------------------------


def test_the_number_of_series_is_bounded(tmp_path: Path) -> None:
    """A write that would make one too many is refused as a whole; known ones go on."""
    with stratalog.open(tmp_path, series_max=3) as store:
        series = store.series("s")
        series.write_many([1, 2, 3], {"v": [1.0] * 3}, tags={"host": ["a", "b", "c"]})
        for write in (
            lambda: series.write({"v": 1.0}, tags={"host": "d"}),
            lambda: series.write_many([4, 5], {"v": [1.0] * 2}, tags={"host": ["a", "d"]}),
            lambda: store.write_lines("s,host=d v=1"),
        ):
            with pytest.raises(TooLargeError, match=r"4 sets of tags.*3 are possible"):
                write()
        series.write({"v": 2.0}, tags={"host": "a"})
        assert len(series) == 3
    with stratalog.open(tmp_path, series_max=3) as store:
        with pytest.raises(TooLargeError):
            store.series("s").write({"v": 1.0}, tags={"host": "d"})
        assert store.series("s").query(aggregate="count")["value"].to_pylist() == [4]


def test_a_large_write_is_cut_into_records_and_frames(tmp_path: Path) -> None:
    """Records of 65,536 points, frames as large as they may be, and every point is there."""
    with stratalog.open(tmp_path, batch_bytes_max=1 << 20, durability="disk") as store:
        series = store.series("s")
        count = 200_000
        hosts = pa.array([f"h{n % 3}" for n in range(count)])
        first, last = series.write_many(
            BASE + np.arange(count), {"v": np.arange(count)}, tags={"host": hosts}
        )
        assert last - first >= 3
        times, values = series.read()
        assert values.tolist() == list(range(count))
        assert (times - BASE).tolist() == values.tolist()


def test_texts_larger_than_a_record_are_cut(tmp_path: Path) -> None:
    """A few points take as many records as they need."""
    with stratalog.open(tmp_path, record_bytes_max=1 << 16, durability="disk") as store:
        series = store.series("s")
        texts = [str(number) * 30_000 for number in range(9)]
        first, last = series.write_many(range(9), {"v": texts})
        assert last > first
        assert series.read()[1].tolist() == texts
        with pytest.raises(TooLargeError, match="bytes"):
            series.write("x" * (1 << 17))


def test_a_series_is_one_kind_of_name(store: Store) -> None:
    """A topic, a queue and a series do not share a name; records can be read as a topic."""
    store.topic("plain")
    store.queue("jobs")
    for name in ("plain", "jobs"):
        with pytest.raises(WrongKindError):
            store.series(name)
    series = store.series("s")
    series.write(1.0)
    with pytest.raises(WrongKindError):
        store.queue("s")
    topic = store.topic("s")
    assert len(topic.read_values()) == 1
    with pytest.raises(WrongKindError):
        topic.append(b"x")
    with pytest.raises(WrongKindError):
        store.drop_series("plain")


def test_options_of_a_series_are_for_good(store: Store) -> None:
    """Retention options are those of points; others that are given again must be the same."""
    store.series("s", compression="zstd")
    assert store.series("s", compression="zstd").options.compression == "zstd"
    with pytest.raises(OptionError, match="for good"):
        store.series("s", compression="lz4")
    with pytest.raises(OptionError, match="retention"):
        store.series("t", retention_seconds=5.0)
    with pytest.raises(OptionError, match="ephemeral"):
        store.series("t", durability="ephemeral")
    with pytest.raises(OptionError, match="unknown"):
        store.series("t", nonsense=5)
    assert store.series_names() == ["s"]


def test_a_series_of_an_ephemeral_store_is_in_the_log(tmp_path: Path) -> None:
    """Its points are of class `memory`: a closed store still has them."""
    with stratalog.open(tmp_path, durability="ephemeral") as store:
        store.series("s").write(1.0, timestamp=1)
    with stratalog.open(tmp_path, durability="ephemeral") as store:
        assert store.series("s").read()[1].tolist() == [1.0]


def test_a_dropped_series_is_gone_and_its_successor_is_empty(store: Store) -> None:
    """The old handle says so, and memory is given back."""
    series = store.series("s")
    series.write(1.0, tags={"host": "a"})
    series.read()
    assert store.budget.used()["series"] > 0
    store.drop_series("s")
    for use in (lambda: series.write(1.0), series.read, series.latest, series.query):
        with pytest.raises(UnknownTopicError):
            use()
    assert store.budget.used()["series"] == 0
    again = store.series("s")
    assert again.read()[1].tolist() == []
    again.write("text now")
    assert again.fields() == {"value": "text"}


def test_a_closed_store_has_no_series(tmp_path: Path) -> None:
    """Every call says that it is closed."""
    store = stratalog.open(tmp_path)
    series = store.series("s")
    series.write(1.0)
    store.close()
    for use in (
        lambda: series.write(1.0),
        lambda: series.write_many([1], {"v": [1.0]}),
        series.read,
        series.query,
        series.latest,
        lambda: store.series("s"),
        lambda: store.write_lines("s v=1"),
        store.series_names,
    ):
        with pytest.raises(ClosedError):
            use()


def test_a_read_only_view_follows_the_writer(tmp_path: Path) -> None:
    """It reads what was written, and refuses to write."""
    with stratalog.open(tmp_path) as store, stratalog.open(tmp_path, read_only=True) as view:
        with pytest.raises(UnknownTopicError):
            view.series("s")
        series = store.series("s")
        series.write(1.0, timestamp=1)
        seen = view.series("s")
        assert seen.read()[1].tolist() == [1.0]
        series.write(2.0, timestamp=2)
        assert seen.latest()[0].fields == {"value": 2.0}
        with pytest.raises(ReadOnlyError):
            seen.write(1.0)
        with pytest.raises(ReadOnlyError):
            view.write_lines("s value=1")


def test_points_are_found_after_checkpoints_and_snapshots(tmp_path: Path) -> None:
    """In segments, in the log, and in the buffer at once."""
    with stratalog.open(tmp_path, durability="disk") as store:
        series = store.series("s")
        for turn in range(4):
            base = turn * 3000
            series.write_many(
                range(base, base + 3000), {"v": np.arange(base, base + 3000)}, tags={"h": "a"}
            )
            for number in range(5):
                series.write({"v": -number}, tags={"h": "b"}, timestamp=base + number)
            if turn % 2 == 0:
                store.checkpoint()
            else:
                store.snapshot()
        for _ in range(2):
            series = store.series("s")
            assert series.query(aggregate="count", by=["h"])["value"].to_pylist() == [12_000, 20]
            assert series.read(tags={"h": "a"})[1].tolist() == list(range(12_000))
            series.state.shed()  # what was buffered is then read from the log
    with stratalog.open(tmp_path) as store:
        assert store.series("s").read(tags={"h": "a"})[1].tolist() == list(range(12_000))


def test_only_the_newest_points_are_in_memory(store: Store) -> None:
    """A thousand points a series are buffered; older ones are an entry of the index."""
    series = store.series("s")
    for turn in range(3):
        for number in range(600):
            series.write(1.0, tags={"h": "a"}, timestamp=START + 600 * turn + number)
        assert len(series.read()[0]) == 600 * (turn + 1)
    assert len(series.state.blocks) >= 1
    opened = series.state.blocks.open
    assert opened is not None
    assert 0 < sum(len(part.points) for part in opened.parts) <= 1024
    held = series.state.held_bytes
    series.write_many(START + np.arange(100_000), {"value": np.ones(100_000)}, tags={"h": "a"})
    assert len(series.read()[0]) == 100_000
    assert series.state.held_bytes < held + 100_000


# --- atomic batches -------------------------------------------------------------------------


def test_points_commit_with_a_batch(store: Store) -> None:
    """With records, messages and points of another series; offsets are known then."""
    jobs = store.queue("jobs")
    jobs.put(b"job")
    with store.batch() as batch, jobs.get(timeout=0) as message:
        batch.topic("events").append(b"done")
        one = batch.series("cpu").write(0.5, tags={"host": "a"}, timestamp=1)
        many = batch.series("cpu").write_many([2, 3], {"value": [1.0, 2.0]}, tags={"host": "a"})
        batch.series("mem").write({"free": 7})
        batch.queue("jobs").ack(message)
        assert store.series("cpu").read()[1].tolist() == []
    assert (one.offset, many.first, many.last) == (0, 1, 1)
    assert store.series("cpu").read()[1].tolist() == [0.5, 1.0, 2.0]
    assert store.series("mem").latest()[0].fields == {"free": 7}
    assert len(jobs) == 0


def test_an_exception_in_a_batch_leaves_no_points(store: Store) -> None:
    """And a wrong point is an error of its own call."""

    def fail() -> None:
        with store.batch() as batch:
            batch.series("cpu").write(0.5)
            batch.topic("plain").append(b"x")
            batch.series("cpu").write(b"bytes")

    with pytest.raises(WrongTypeError):
        fail()
    assert store.series("cpu").read()[1].tolist() == []
    assert "plain" not in store.topics()
    store.topic("plain")
    with store.batch() as batch, pytest.raises(WrongKindError):
        batch.series("plain")
