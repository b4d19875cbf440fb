"""`append_many` with columns: what is appended, what is refused, and that it is the same bytes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.conftest import OpenStore

from stratalog import OptionError, Record, TooLargeError, WrongTypeError, aio
from stratalog.arguments import given_columns
from stratalog.handles.topic import Topic

TIMES = [1_700_000_000_000_000_000, 1_700_000_000_000_000_005, 1_800_000_000_000_000_000]
HEADERS = [{"a": b"1"}, None, {"b": b"2", "c": b"3"}]


def _stored(topic: Topic) -> list[tuple[Any, ...]]:
    return [(one.value, one.key, dict(one.headers), one.timestamp) for one in topic.records()]


def test_columns_are_appended_as_records_are(open_store: OpenStore) -> None:
    """One atomic batch, with every item in its place."""
    topic = open_store().topic("t")
    first, last = topic.append_many(
        values=[b"x", None, b"z"], keys=[b"k", b"", None], headers=HEADERS, timestamps=TIMES
    )
    assert (first, last) == (0, 2)
    assert _stored(topic) == [
        (b"x", b"k", {"a": b"1"}, TIMES[0]),
        (None, b"", {}, TIMES[1]),
        (b"z", None, {"b": b"2", "c": b"3"}, TIMES[2]),
    ]


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("has_headers", [False, True])
@pytest.mark.parametrize("has_times", [False, True])
def test_columns_leave_the_bytes_that_records_leave(
    open_store: OpenStore, has_keys: bool, has_headers: bool, has_times: bool
) -> None:
    """Encoded by column or record by record, a batch is the same."""
    topic = open_store().topic("t")
    values, keys = [b"1", b"", b"333"], [b"k", None, b"kk"]
    records = [
        Record(
            value,
            key=keys[index] if has_keys else None,
            headers=(HEADERS[index] or {}) if has_headers else {},
            timestamp=TIMES[index] if has_times else 0,
        )
        for index, value in enumerate(values)
    ]
    given = given_columns(
        values,
        keys if has_keys else [None] * 3,
        HEADERS if has_headers else [{}] * 3,
        TIMES if has_times else [None] * 3,
    )
    by_column, remake = topic._encode_columns(*given)
    by_record, remake_records = topic.encode_records(records)
    assert [(one.flags, one.body, one.count) for one in by_column] == [
        (one.flags, one.body, one.count) for one in by_record
    ]
    assert (remake is None) == (remake_records is None) == (not has_times)


@pytest.mark.parametrize(
    "values",
    [
        (b"a", b"b"),
        iter([b"a", b"b"]),
        [bytearray(b"a"), memoryview(b"b")],
        np.array([b"a", b"b"]),
        np.array([b"a", b"b"], object),
        pa.array([b"a", b"b"]),
        pa.chunked_array([[b"a"], [b"b"]]),
    ],
)
def test_a_column_may_be_anything_that_has_items(open_store: OpenStore, values: Any) -> None:
    """Lists, tuples, iterators, NumPy and Arrow arrays."""
    topic = open_store().topic("t")
    topic.append_many(values=values, keys=pa.array([None, b"k"]))
    assert [(one.value, one.key) for one in topic.records()] == [(b"a", None), (b"b", b"k")]


@pytest.mark.parametrize(
    "timestamps",
    [
        TIMES[:2],
        [time / 1e9 for time in TIMES[:2]],
        [datetime.fromtimestamp(1_700_000_000, UTC)] * 2,
        np.array(TIMES[:2]),
        np.array(TIMES[:2], "datetime64[ns]"),
        np.array([1_700_000_000] * 2, "datetime64[s]"),
        pa.array(TIMES[:2], pa.timestamp("ns")),
        pa.array([1_700_000_000_000] * 2, pa.timestamp("ms")),
    ],
)
def test_times_may_have_any_type(open_store: OpenStore, timestamps: Any) -> None:
    """As `append` takes them, and as NumPy and Arrow have them."""
    topic = open_store().topic("t")
    topic.append_many(values=[b"a", b"b"], timestamps=timestamps)
    assert [one.timestamp // 1000 for one in topic.records()] == [TIMES[0] // 1000] * 2


@pytest.mark.parametrize(
    "timestamps",
    [np.array([5], "datetime64[s]"), pa.array([5], pa.timestamp("s"))],
)
def test_a_time_of_long_ago_is_no_number_of_seconds(open_store: OpenStore, timestamps: Any) -> None:
    """An array of times says what its numbers are; a bare number may be either."""
    topic = open_store().topic("t")
    topic.append_many(values=[b"a"], timestamps=timestamps)
    assert [one.timestamp for one in topic.records()] == [5 * 10**9]


def test_a_record_without_a_time_gets_that_of_its_append(open_store: OpenStore) -> None:
    """None stands for now, and times never go back."""
    topic = open_store().topic("t")
    topic.append_many(values=[b"a", b"b", b"c"], timestamps=[TIMES[0], None, TIMES[0]])
    stamps = [one.timestamp for one in topic.records()]
    assert stamps[0] == TIMES[0] < stamps[1] == stamps[2]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"values": [b"a"], "keys": [b"k", b"l"]}, OptionError, "keys has 2 items"),
        ({"values": [b"a"], "headers": []}, OptionError, "headers has 0 items"),
        ({"values": [b"a"], "timestamps": [1, 2]}, OptionError, "timestamps has 2 items"),
        ({"values": []}, OptionError, "at least one"),
        ({}, OptionError, "needs records, or values="),
        ({"keys": [b"k"]}, OptionError, "needs records, or values="),
        ({"records": [b"a"], "keys": [b"k"]}, OptionError, "not both"),
        ({"records": [b"a"], "values": [b"k"]}, OptionError, "not both"),
        ({"values": b"abc"}, WrongTypeError, "values is a column"),
        ({"values": [b"a"], "headers": {"a": b"b"}}, WrongTypeError, "headers is a column"),
        ({"values": 7}, WrongTypeError, "values is a list"),
        ({"values": ["text"]}, WrongTypeError, "encode it first"),
        ({"values": [b"a"], "keys": [7]}, WrongTypeError, "a key is bytes"),
        ({"values": np.zeros((2, 2))}, WrongTypeError, "2 dimensions"),
        ({"values": [b"a"], "timestamps": ["now"]}, WrongTypeError, "timestamp="),
        ({"values": [b"a"], "timestamps": np.array(["1969"], "M8[s]")}, OptionError, "before 1970"),
        ({"values": [b"a"], "timestamps": np.array(["NaT"], "M8[s]")}, OptionError, "before 1970"),
        ({"values": [b"a", b"b" * 2000]}, TooLargeError, "record 1 of the batch"),
        ({"values": [b"a"], "headers": [{"a": b"b" * 2000}]}, TooLargeError, "record 0"),
    ],
)
def test_what_is_wrong_is_refused_as_a_whole(
    open_store: OpenStore, given: dict[str, Any], error: type[Exception], text: str
) -> None:
    """With the name of the column, and nothing of the batch is appended."""
    topic = open_store(record_bytes_max=1024).topic("t")
    with pytest.raises(error, match=text):
        topic.append_many(**given)
    assert len(topic) == 0


def test_asyncio_takes_columns(tmp_path: Path) -> None:
    """As the handle of threads does."""

    async def run() -> list[tuple[Any, ...]]:
        async with aio.open(tmp_path / "data") as store:
            topic = await store.topic("t")
            await topic.append_many(values=[b"a", b"b"], keys=[b"k", None])
            with pytest.raises(OptionError, match="not both"):
                await topic.append_many([b"a"], keys=[b"k"])
            return [(one.value, one.key) async for one in topic.records()]

    assert asyncio.run(run()) == [(b"a", b"k"), (b"b", None)]


def test_values_of_a_type_are_encoded(open_store: OpenStore) -> None:
    """A typed topic takes its own values as a column."""
    topic = open_store().topic("t", type=dict)
    topic.append_many(values=[{"n": 1}, {"n": 2}], keys=[b"k", b"l"])
    assert [(one.value, one.key) for one in topic.records()] == [({"n": 1}, b"k"), ({"n": 2}, b"l")]
