"""Arguments of callers: brought into form, or refused with a message that helps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.conftest import OpenStore

from stratalog.arguments import (
    check_bytes,
    check_headers,
    check_text,
    check_time,
    columns_of,
    record_items,
)
from stratalog.errors import OptionError, TooLargeError, WrongTypeError
from stratalog.format.arrow import HEADERS
from stratalog.format.columns import encode_columns
from stratalog.model import NO_HEADERS, Record
from stratalog.options import TIME_MAX

NOW = 1_700_000_000_123_456_789
SECOND = 10**9


@pytest.mark.parametrize("value", [b"", b"x", None])
def test_bytes_and_none_are_taken_as_they_are(value: Any) -> None:
    """An object that fits is returned, without a copy."""
    assert check_bytes("value", value) is value


@pytest.mark.parametrize(
    "value",
    [
        bytearray(b"abc"),
        memoryview(b"abc"),
        memoryview(b"aXbXc")[::2],
        type("B", (bytes,), {})(b"abc"),
    ],
)
def test_other_bytes_are_copied(value: Any) -> None:
    """They may change, or behave in ways of their own."""
    taken = check_bytes("value", value)
    assert taken == b"abc"
    assert type(taken) is bytes


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", r"a value is bytes or None, not str: encode it first, .* \.encode\(\)"),
        (5, "a value is bytes or None, not int$"),
        ([b"x"], "a value is bytes or None, not list$"),
    ],
)
def test_what_is_not_bytes_is_refused(value: Any, message: str) -> None:
    """Text comes with the usual advice."""
    with pytest.raises(WrongTypeError, match=message):
        check_bytes("value", value)


def test_text_is_encoded_as_utf_8() -> None:
    """None stays None, and empty is not None."""
    assert check_text("tag", "größe") == "größe".encode()
    assert check_text("tag", "") == b""
    assert check_text("tag", None) is None


def test_text_that_has_no_utf_8_is_refused() -> None:
    """A lone surrogate would be written as something unreadable."""
    with pytest.raises(OptionError, match=r"tag .* cannot be written as UTF-8"):
        check_text("tag", "\ud800")


@pytest.mark.parametrize("value", [b"tag", 5, ["tag"]])
def test_what_is_not_text_is_refused(value: Any) -> None:
    """The message shows what came."""
    with pytest.raises(WrongTypeError, match="a tag is text or None, not"):
        check_text("tag", value)


def test_headers_are_encoded_in_order() -> None:
    """Any mapping will do."""
    assert check_headers({"b": b"1", "a": bytearray(b"2")}) == ((b"b", b"1"), (b"a", b"2"))
    assert check_headers(NO_HEADERS) == ()


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([("a", b"1")], "headers are a mapping of text to bytes, not list"),
        ("a", "headers are a mapping of text to bytes, not str"),
        ({b"a": b"1"}, "a header name is text, not bytes"),
        ({"a": "1"}, r"a header 'a' is bytes or None, not str: encode it first"),
        ({"a": None}, "header 'a' is None: headers are text to bytes"),
        ({None: b"1"}, "a header name is text, not NoneType: None"),
    ],
)
def test_bad_headers_are_refused(headers: Any, message: str) -> None:
    """The message names the header."""
    with pytest.raises(WrongTypeError, match=message):
        check_headers(headers)


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        (0, 0),
        (1, SECOND),
        (1.5, 1_500_000_000),
        (1_700_000_000, 1_700_000_000 * SECOND),
        (1_700_000_000.25, 1_700_000_000_250_000_000),
        (1_700_000_000 + 2**-20, 1_700_000_000_000_000_954),
        (np.float64(1.5), 1_500_000_000),
        (NOW, NOW),
        (10**15, 10**15),
        (10**15 - 1, None),
        (TIME_MAX, TIME_MAX),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2023, 11, 14, 22, 13, 20, 123456, UTC), 1_700_000_000_123_456_000),
        (
            datetime(2023, 11, 15, 0, 13, 20, 1, timezone(timedelta(hours=2))),
            1_700_000_000_000_001_000,
        ),
    ],
)
def test_a_time_is_seconds_nanoseconds_or_a_datetime(value: Any, nanoseconds: int | None) -> None:
    """An int from 10**15 on is nanoseconds; below, seconds, if there is such a time."""
    if nanoseconds is None:
        with pytest.raises(OptionError, match="before 1970 or after 2230"):
            check_time("timestamp", value)
    else:
        taken = check_time("timestamp", value)
        assert taken == nanoseconds
        assert type(taken) is int


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_the_numbers_of_numpy_are_numbers(kind: type[Any]) -> None:
    """Seconds in 32 bits became a time in 1970, and in 8 bits an OverflowError."""
    value = min(1_700_000_000, int(np.iinfo(kind).max))
    assert check_time("timestamp", kind(value)) == value * SECOND


def test_nanoseconds_of_numpy_are_exact() -> None:
    """They do not go through a float."""
    assert check_time("timestamp", np.int64(NOW)) == NOW
    assert check_time("timestamp", np.uint64(NOW)) == NOW


def test_a_naive_datetime_is_local_time() -> None:
    """As everywhere in Python, and to the microsecond."""
    naive = datetime(2023, 11, 14, 12, 0, 0, 123457)
    assert check_time("timestamp", naive) == check_time("timestamp", naive.astimezone())
    assert check_time("timestamp", naive) % SECOND == 123_457_000


@pytest.mark.parametrize(
    "value",
    [
        -1, -0.5, -(10**18), float("nan"), float("inf"), -float("inf"), 1e15, TIME_MAX + 1,
        1 << 64, 1_700_000_000_000, np.int64(-5), np.int8(-128),
        datetime(1969, 12, 31, tzinfo=UTC), datetime(2231, 1, 1, tzinfo=UTC),
        datetime.min, datetime.max,
    ],
    ids=repr,
)  # fmt: skip
def test_a_time_that_cannot_be_stored_is_refused(value: Any) -> None:
    """Milliseconds among them: they are no plausible time in seconds."""
    with pytest.raises(OptionError, match=r"timestamp=.* is before 1970 or after 2230: give"):
        check_time("timestamp", value)


@pytest.mark.parametrize("value", [True, False, "2023-11-14", b"1", None, [1], timedelta(1), 1j])
def test_what_is_no_time_is_refused(value: Any) -> None:
    """True is not one second past 1970."""
    with pytest.raises(WrongTypeError, match="must be seconds, a datetime, or nanoseconds"):
        check_time("timestamp", value)


def test_items_are_only_what_was_given() -> None:
    """A record with nothing optional pays for nothing."""
    assert record_items(None, None, None, None, None, None) == (0, [])
    assert record_items(None, {}, None, None, None, None) == (0, [])


def test_items_are_encoded_and_counted() -> None:
    """Everything in the form the log takes, and at least its bytes."""
    size, items = record_items(b"key", {"h": b"12"}, "tag", "ü", 5.0, timedelta(milliseconds=1))
    assert dict(items) == {
        "keys": b"key",
        "headers": ((b"h", b"12"),),
        "tags": b"tag",
        "nodes": "ü".encode(),
        "timestamp": 5 * SECOND,
        "ttl": 1_000_000,
    }
    assert size >= 3 + 1 + 2 + 3 + 2


def test_an_empty_key_is_a_key() -> None:
    """Empty and absent are different."""
    assert record_items(b"", None, "", None, None, None)[1] == [("keys", b""), ("tags", b"")]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("key", None, None, None, None, None), WrongTypeError, "a key is bytes or None, not str"),
        ((None, [1], None, None, None, None), WrongTypeError, "headers are a mapping"),
        ((None, None, 5, None, None, None), WrongTypeError, "a tag is text"),
        ((None, None, None, b"n", None, None), WrongTypeError, "a node is text"),
        ((None, None, None, None, "now", None), WrongTypeError, "timestamp='now' must be"),
        ((None, None, None, None, None, 0), OptionError, "ttl=0 must be more than 0"),
        ((None, None, None, None, None, 1e10), OptionError, "ttl=10000000000.0 must be"),
    ],
)
def test_bad_items_are_refused_in_the_callers_own_call(
    arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """Nothing that enters a group can fail there."""
    with pytest.raises(error, match=message):
        record_items(*arguments)


def test_values_alone_are_one_column() -> None:
    """Nothing optional is made for records that have nothing optional."""
    columns, times = columns_of([b"a", None, bytearray(b"c")], 100)
    assert columns.values == [b"a", None, b"c"]
    assert times is None
    for name in set(columns.__slots__) - {"values"}:
        assert getattr(columns, name) is None


def test_values_and_records_may_be_mixed() -> None:
    """A column that one record has is there for all, and all of it encodes."""
    columns, times = columns_of(
        [
            b"plain",
            Record(b"v", b"k", {"h": b"1"}, "t", "n", NOW, 5, 7, NOW, NOW + 1, 1),
        ],
        100,
    )
    assert columns.values == [b"plain", b"v"]
    assert columns.keys == [None, b"k"]
    assert columns.headers == [(), ((b"h", b"1"),)]
    assert columns.tags == [None, b"t"]
    assert columns.nodes == [None, b"n"]
    assert columns.priorities == [0, 7]
    assert columns.expires_at == [0, NOW]
    assert columns.not_before == [0, NOW + 1]
    assert columns.operations == [0, 1]
    assert times == [0, NOW]
    assert encode_columns(columns)[0] > 0


@pytest.mark.parametrize(
    ("record", "error", "message"),
    [
        ("text", WrongTypeError, "a value is bytes or None, not str: encode it first"),
        (Record(b"v", "k"), WrongTypeError, "a key is bytes or None"),  # type: ignore[arg-type]
        (Record(b"v", tag=b"t"), WrongTypeError, "a tag is text"),  # type: ignore[arg-type]
        (Record(b"v", headers={"a": 1}), WrongTypeError, "a header 'a'"),  # type: ignore[dict-item]
        (Record(b"v", priority=256), OptionError, "priority=256 is out of range: 0 to 255"),
        (Record(b"v", priority=-1), OptionError, "priority=-1 is out of range"),
        (Record(b"v", operation=2), OptionError, "operation=2 is out of range: 0 to 1"),
        (Record(b"v", expires_at=-1), OptionError, "expires_at=-1 is before 1970"),
        (Record(b"v", not_before=1 << 63), OptionError, "not_before=.* is before 1970"),
        (Record(b"v", timestamp=-5), OptionError, "timestamp=-5 is before 1970"),
    ],
)
def test_a_bad_record_is_refused(record: Any, error: type[Exception], message: str) -> None:
    """Wherever in the batch it stands, nothing of the batch is appended."""
    with pytest.raises(error, match=message):
        columns_of([b"good", record], 100)


@pytest.mark.parametrize(
    "record",
    [
        Record(bytes(101)),
        Record(bytes(50), bytes(51)),
        Record(bytes(99), tag="ü"),
        Record(bytes(99), node="ab"),
        Record(bytes(98), headers={"ab": b"c"}),
    ],
)
def test_a_record_too_large_is_refused_with_its_index(record: Record) -> None:
    """Everything it holds counts, and the message says which one and what the limit is."""
    with pytest.raises(TooLargeError, match=r"record 1 of the batch has .*record_bytes_max is 100"):
        columns_of([bytes(100), record], 100)


@pytest.mark.parametrize("is_sliced", [False, True])
def test_a_record_is_as_large_by_column_as_by_itself(
    open_store: OpenStore, is_sliced: bool
) -> None:
    """Headers count, in `append_arrow` as well: a table got past the limit with them."""
    store = open_store(record_bytes_max=100)
    topic = store.topic("t")
    headers = [{"h": b"1" * 40, "i": b"2" * 40}, None, {"name": b"3" * 46}, {"h": b"1"}]
    pairs = [
        None if one is None else [{"key": key, "value": value} for key, value in one.items()]
        for one in headers
    ]
    keys = [b"k", None, b"k" * 50, b"k"]
    values: list[bytes | None] = [b"v" * 10, b"", None, b"v" * 97]
    for large in (False, True):
        if large:
            values[2] = b"x"
        table = pa.table({"value": values, "key": keys, "headers": pa.array(pairs, HEADERS)})
        if is_sliced:
            table = table.slice(1)
        if large:
            with pytest.raises(TooLargeError, match=r"a record of 101 bytes .*nothing was"):
                topic.append_arrow(table)
        else:
            topic.append_arrow(table)
    assert len(topic) == (3 if is_sliced else 4)


@pytest.mark.parametrize("durability", ["fsync", "disk"])
@pytest.mark.parametrize("way", ["append", "append_nowait", "append_many", "key"])
def test_a_small_limit_is_a_limit(open_store: OpenStore, durability: str, way: str) -> None:
    """Plain values up to 1 KiB were not measured."""
    store = open_store(record_bytes_max=100, durability=durability)
    topic = store.topic("t")
    ways: dict[str, Callable[[], object]] = {
        "append": lambda: topic.append(bytes(101)),
        "append_nowait": lambda: topic.append_nowait(bytes(101)).result(),
        "append_many": lambda: topic.append_many([bytes(101)]),
        "key": lambda: topic.append(bytes(100), key=b"k"),
    }
    with pytest.raises(TooLargeError, match="record_bytes_max is 100"):
        ways[way]()
    assert topic.append(bytes(100)) == 0


def test_rows_of_a_table_may_differ_in_size(open_store: OpenStore) -> None:
    """It was cut into equal numbers of rows, and some large ones were too much for one frame."""
    store = open_store(durability="disk")
    topic = store.topic("t")
    values = [b"tiny"] * 20_000 + [bytes(9_000_000)] * 3 + [b"tiny"] * 10
    assert topic.append_arrow(pa.table({"value": values})) == (0, 20_012)
    assert topic.read_values() == values
