"""Points by column: their order, their bytes, and the names of series."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import (
    BadMagicError,
    CorruptionError,
    OptionError,
    TooLargeError,
    UnsupportedVersionError,
)
from stratalog.format.points import (
    HEADER_BYTES,
    NAME_BYTES_MAX,
    Column,
    FieldType,
    Points,
    arrange,
    check_field_name,
    decode_points,
    encode_points,
    series_key,
    series_tags,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES: dict[FieldType, st.SearchStrategy[Any]] = {
    FieldType.FLOAT: st.floats(allow_nan=False),
    FieldType.INT: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldType.BOOL: st.booleans(),
    FieldType.TEXT: texts,
}
DTYPES: dict[FieldType, Any] = {
    FieldType.FLOAT: np.float64,
    FieldType.INT: np.int64,
    FieldType.BOOL: np.bool_,
    FieldType.TEXT: np.object_,
}


def column(type: FieldType, values: list[Any]) -> Column:
    """Values as a column; None where a point lacks the field."""
    lacking = {FieldType.TEXT: ""}.get(type, 0)
    array = np.array([lacking if one is None else one for one in values], DTYPES[type])
    valid = np.array([one is not None for one in values], np.bool_)
    return Column(type, array, None if valid.all() else valid)


def rows(points: Points) -> dict[tuple[bytes, int], dict[str, Any]]:
    """Points one by one, by series and time."""
    names = [
        name
        for name, n in zip(points.series, points.counts.tolist(), strict=True)
        for _ in range(n)
    ]
    found: dict[tuple[bytes, int], dict[str, Any]] = {}
    for place, (name, time) in enumerate(zip(names, points.times.tolist(), strict=True)):
        found[name, time] = {
            field: one.values[place].item() if one.type != FieldType.TEXT else one.values[place]
            for field, one in points.fields.items()
            if one.valid is None or one.valid[place]
        }
    assert len(found) == len(points)
    return found


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[bytes], list[int], list[int], dict[str, Any]]:
    """Points in any order: names of series, codes, times, fields by column."""
    count = draw(st.integers(1, 30))
    series = draw(st.lists(texts.map(str.encode), min_size=1, max_size=4, unique=True))
    codes = draw(st.lists(st.integers(0, len(series) - 1), min_size=count, max_size=count))
    times = draw(st.lists(st.integers(0, 12), min_size=count, max_size=count))
    fields = {}
    for name in draw(st.lists(texts.filter(bool), min_size=1, max_size=3, unique=True)):
        type = draw(st.sampled_from(list(FieldType)))
        one = st.lists(st.none() | VALUES[type], min_size=count, max_size=count)
        fields[name] = column(type, draw(one))
    return series, codes, times, fields


@pytest.mark.slow
@settings(deadline=None)
@given(batches())
def test_points_come_back_as_they_were_and_the_later_of_two_counts(given: Any) -> None:
    """Whatever the order they come in, a record has one point for each series and time."""
    series, codes, times, fields = given
    expected: dict[tuple[bytes, int], dict[str, Any]] = {}
    for place, (code, time) in enumerate(zip(codes, times, strict=True)):
        expected[series[code], time] = {
            name: one.values[place].item() if one.type != FieldType.TEXT else one.values[place]
            for name, one in fields.items()
            if one.valid is None or one.valid[place]
        }
    points = arrange(series, np.array(codes), np.array(times, np.int64), fields)
    assert rows(points) == expected
    data = encode_points(points)
    assert len(data) % 8 == 0
    again = decode_points(data, check=True)
    assert rows(again) == expected
    assert encode_points(again) == data
    parts = [rows(part) for part in points.split(7)]
    assert {place: row for part in parts for place, row in part.items()} == expected
    assert max(map(len, parts)) <= 7


@pytest.mark.slow
@settings(deadline=None)
@given(batches(), st.data())
def test_only_the_fields_that_are_wanted_are_decoded(given: Any, data: st.DataObject) -> None:
    """The others are passed over, whatever their type."""
    points = arrange(given[0], np.array(given[1]), np.array(given[2], np.int64), given[3])
    wanted = data.draw(st.sampled_from([[], ["no such field"], list(points.fields)[:1]]))
    some = decode_points(encode_points(points), wanted)
    assert set(some.fields) == set(wanted) & set(points.fields)
    everything = rows(points)
    assert {place: set(row) & set(wanted) for place, row in everything.items()} == {
        place: set(row) for place, row in rows(some).items()
    }


def test_points_of_one_series_that_are_in_order_are_not_copied() -> None:
    """Sorting is for those that need it."""
    times = np.arange(5, dtype=np.int64)
    points = arrange([b"a=1"], None, times, {})
    assert points.times is times


@settings(deadline=None)
@given(st.dictionaries(texts.filter(bool), texts.filter(bool), max_size=4))
def test_tags_and_the_name_of_a_series_are_the_same(tags: dict[str, str]) -> None:
    """Commas, spaces, equals signs and backslashes included, in whatever order they are given."""
    key = series_key(tags)
    assert series_tags(key) == tags
    assert series_key(dict(reversed(tags.items()))) == key


def test_a_name_that_is_none_is_refused() -> None:
    """Damage is an error."""
    with pytest.raises(CorruptionError, match="not the name of a series"):
        series_tags(b"host")
    with pytest.raises(TooLargeError, match="tags of a series"):
        series_key({"host": "x" * NAME_BYTES_MAX})


@pytest.mark.parametrize("name", ["", 7, None, "\udc80", "x" * (NAME_BYTES_MAX + 1)])
def test_a_field_has_a_name_that_can_be_stored(name: Any) -> None:
    """Anything else is told before something is written."""
    with pytest.raises((OptionError, TooLargeError)):
        check_field_name(name)


def _some() -> bytes:
    fields = {
        "v": column(FieldType.FLOAT, [1.0, None, 3.0]),
        "s": column(FieldType.TEXT, ["a"] * 3),
    }
    times = np.array([1, 2, 1], np.int64)
    return encode_points(arrange([b"h=a", b"h=b"], np.array([0, 0, 1]), times, fields))


def test_each_kind_of_damage_has_its_own_error() -> None:
    """Magic, version, length and structure are told apart."""
    data = _some()
    with pytest.raises(BadMagicError):
        decode_points(b"nope" + data[4:])
    with pytest.raises(UnsupportedVersionError):
        decode_points(data[:4] + b"\2" + data[5:])
    with pytest.raises(CorruptionError):
        decode_points(data[:-8])
    with pytest.raises(CorruptionError):
        decode_points(data[:HEADER_BYTES])
    swapped = data[:HEADER_BYTES] + (9).to_bytes(8, "little") + data[HEADER_BYTES + 8 :]
    decode_points(swapped)
    with pytest.raises(CorruptionError, match="do not rise"):
        decode_points(swapped, check=True)
