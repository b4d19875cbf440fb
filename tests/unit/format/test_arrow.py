"""Arrow out of batches without a copy, and batches out of Arrow byte for byte."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.arguments import columns_of
from stratalog.errors import CorruptionError, OptionError, WrongTypeError
from stratalog.format.arrow import HEADERS, TYPES, Part, schema, to_arrow, to_arrow_batches
from stratalog.format.arrow_input import ArrowColumns, split
from stratalog.format.batch import Batch
from stratalog.format.columns import Columns, encode_columns
from stratalog.format.frame import Flag, FrameHeader, FrameType
from stratalog.model import NO_HEADERS, Record

NOW = 1_700_000_000_000_000_000
BASE = 1000
ALL = schema(list(TYPES))

RECORDS = [
    Record(
        b"value", b"key", {"h": b"1", "": b""}, "tag", "node", NOW + 1, priority=3,
        expires_at=NOW + 5, not_before=NOW + 2, operation=1, given_time=NOW - 7,
    ),
    Record(None, None, NO_HEADERS, None, None, NOW + 1),
    Record(b"", b"", {"größe": "ü".encode()}, "", "", NOW + 9, priority=255),
    Record(b"v" * 1000, b"k" * 100, {f"h{n}": bytes(n) for n in range(20)}, "✓", "注文", NOW + 9),
] * 3  # fmt: skip
for _index, _record in enumerate(RECORDS):
    RECORDS[_index] = Record(
        _record.value, _record.key, _record.headers, _record.tag, _record.node,
        NOW + 10 * _index, BASE + _index, _record.priority, _record.expires_at,
        _record.not_before, _record.operation, _record.given_time,
    )  # fmt: skip


def _encode(records: Sequence[Record]) -> tuple[int, bytes]:
    columns, times = columns_of(records, 1 << 20)
    columns.timestamps = times
    return encode_columns(columns)


def _parse(flags: int, body: bytes, count: int, first: int = NOW, last: int = NOW) -> Batch:
    header = FrameHeader(
        FrameType.RECORDS, flags, len(body), count, 1, BASE, first, last, 0, 0
    )  # fmt: skip
    return Batch.parse(header, body)


def _batch(records: Sequence[Record]) -> Batch:
    first, last = records[0].timestamp or NOW, records[-1].timestamp or NOW
    return _parse(*_encode(records), len(records), first, last)


def _records(data: pa.RecordBatch) -> list[Record]:
    """Records again, from all columns of an Arrow batch."""
    columns = {
        name: (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column)
        for name, column in zip(data.schema.names, data.columns, strict=True)
    }
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)).to_pylist()
    for row in rows:
        row["headers"] = {pair["key"]: pair["value"] for pair in row["headers"] or []}
        for name in ("priority", "expires_at", "not_before", "operation"):
            row[name] = row[name] or 0
        event_time = row.pop("event_time")
        row["given_time"] = 0 if event_time == row["timestamp"] else event_time
    return [Record(**row) for row in rows]


# Values alone, in every form they take: equal times, own times, Nones, offsets with holes.
PLAIN = {
    "values": (Columns([b"a", b"bc", b""]), b""),
    "more values": (Columns([b"d"] * 70), b""),
    "times": (Columns([b"e", b"f"], timestamps=[NOW, NOW + 5]), b""),
    "Nones": (Columns([None, b"g", None]), b""),
    "holes": (Columns([b"h", b"i"]), struct.pack("<II", 0, 7)),
    "keys": (Columns([b"j", b"k"], keys=[b"x", None]), b""),
}


def _one_read(names: Sequence[str]) -> list[Batch]:
    """Batches in one body, as they are after one read of the log."""
    encoded = []
    for name in names:
        columns, deltas = PLAIN[name]
        flags, body = encode_columns(columns)
        encoded.append((flags | (Flag.OFFSETS if deltas else 0), deltas + body, columns))
    data = b"".join(body for _, body, _ in encoded)
    batches, start, offset = [], 0, BASE
    for number, (flags, body, columns) in enumerate(encoded):
        times = columns.timestamps or [NOW + number]
        header = FrameHeader(
            FrameType.RECORDS, flags, len(body), len(columns.values), 1, offset, times[0],
            times[-1], 0, 0,
        )  # fmt: skip
        batches.append(Batch.parse(header, data, start))
        start += len(body)
        offset = int(batches[-1].offsets()[-1]) + 1
    return batches


@pytest.mark.parametrize("columns", [None, list(TYPES), ["offset"], ["value", "key", "value"], []])
@pytest.mark.parametrize(
    "names",
    [
        ["values"],
        ["values", "more values", "values"],
        ["values", "times", "more values"],
        ["Nones", "values"],
        ["values", "holes", "values"],
        ["values", "keys", "values"],
    ],
)
def test_batches_of_one_read_are_what_each_is_by_itself(
    names: list[str], columns: list[str] | None
) -> None:
    """Whole, in part, and with records missing between them, whatever the columns."""
    batches = _one_read(names)
    wanted = schema(columns)
    whole: list[Part] = [(batch, 0, batch.count) for batch in batches]
    inner: list[Part] = [(batch, 1, batch.count) for batch in batches]
    halves: list[Part] = [
        part for batch in batches for part in ((batch, 0, 1), (batch, 1, batch.count))
    ]
    another: list[Part] = [*whole, *((batch, 0, 2) for batch in _one_read(names))]
    for parts in (whole, inner, halves, another):
        made = list(to_arrow_batches(iter(parts), wanted))
        each = [to_arrow(batch, wanted, first, end) for batch, first, end in parts]
        if "value" in wanted.names or not wanted.names:
            assert made == each
        else:  # nothing of these columns has a place in a body: several parts may be one
            assert pa.Table.from_batches(made) == pa.Table.from_batches(each)
        for data in made:
            data.validate(full=True)
            assert data.schema == wanted


def _outside(records: Sequence[Record]) -> pa.RecordBatch:
    """The records as Arrow data of another program, with nulls where there is nothing."""
    rows: dict[str, list[Any]] = {
        name: [getattr(record, name) for record in records] for name in TYPES if name != "offset"
    }
    rows["headers"] = [[*r.headers.items()] or None for r in records]
    rows["headers"] = [
        pairs and [{"key": name, "value": value} for name, value in pairs]
        for pairs in rows["headers"]
    ]
    for name in ("timestamp", "priority", "expires_at", "not_before", "operation", "event_time"):
        rows[name] = [item or None for item in rows[name]]
    return pa.record_batch(
        [pa.array(items, TYPES[name]) for name, items in rows.items()], names=list(rows)
    )


def _encode_arrow(data: pa.RecordBatch | pa.Table) -> tuple[int, bytes]:
    (part,) = split(data, 1 << 30)
    columns = ArrowColumns(part)
    return columns.encode(columns.timestamps(), columns.expires_at())


# Out of a batch.


def test_the_schema_is_the_documented_one() -> None:
    """Names and types are what users' queries are written against."""
    assert schema().names == ["offset", "timestamp", "key", "value", "headers", "tag", "node"]
    assert ALL.field("timestamp").type == pa.timestamp("ns", tz="UTC")
    assert ALL.field("value").type == pa.binary()
    assert schema(["value", "offset"]).names == ["value", "offset"]


@pytest.mark.parametrize("columns", [["valeu"], ["value", "x"], [5]])
def test_an_unknown_column_is_refused_by_name(columns: list[Any]) -> None:
    """A typing error says what was probably meant."""
    with pytest.raises(
        OptionError, match=r"unknown column ('valeu': did you mean 'value'|.*known)"
    ):
        schema(columns)


def test_a_string_is_not_a_list_of_columns() -> None:
    """Otherwise it would be taken letter by letter."""
    with pytest.raises(WrongTypeError, match="list of names"):
        schema("value")


def test_arrow_has_the_records() -> None:
    """Every column, every null, every header."""
    data = to_arrow(_batch(RECORDS), ALL, 0, len(RECORDS))
    data.validate(full=True)
    assert data.schema == ALL
    assert _records(data) == RECORDS == _batch(RECORDS).records()


def test_values_are_not_copied() -> None:
    """The buffers of every byte column lie inside the body that was read."""
    batch = _batch(RECORDS)
    body = pa.py_buffer(batch.body)
    data = to_arrow(batch, ALL, 0, len(RECORDS))
    headers = data.column("headers")
    arrays = [data.column(name) for name in ("key", "value", "tag", "node")]
    for array in [*arrays, headers, headers.values.field("key"), headers.values.field("value")]:
        for buffer in array.buffers():
            if buffer is not None:
                assert body.address <= buffer.address
                assert buffer.address + buffer.size <= body.address + body.size


def test_columns_nobody_wrote_are_null() -> None:
    """And of the type they would have had."""
    data = to_arrow(_parse(0, encode_columns(Columns([b"a"] * 9))[1], 9), ALL, 0, 9)
    data.validate(full=True)
    assert data.column("event_time") == data.column("timestamp")
    for name in set(TYPES) - {"offset", "timestamp", "event_time", "value"}:
        assert data.column(name).null_count == 9
        assert data.column(name).type == TYPES[name]


def test_more_rows_than_the_shared_nulls_have_are_null_too() -> None:
    """The shared array grows with the batch."""
    count = 20_000
    data = to_arrow(_parse(0, encode_columns(Columns([b"a"] * count))[1], count), ALL, 0, count)
    data.validate(full=True)
    assert data.column("key").null_count == data.num_rows == count


def test_a_slice_of_arrow_is_that_slice_of_the_records() -> None:
    """For every first and end, bits that do not start at a byte included."""
    batch = _batch(RECORDS)
    for first in range(len(RECORDS)):
        for end in range(first + 1, len(RECORDS) + 1):
            data = to_arrow(batch, ALL, first, end)
            assert _records(data) == RECORDS[first:end]


def test_a_time_of_0_is_no_time() -> None:
    """`expires_at` 0 is never, which is null and not 1970."""
    data = to_arrow(_batch(RECORDS), schema(["expires_at"]), 0, 2)
    assert data.column("expires_at").cast(pa.int64()).to_pylist() == [NOW + 5, None]


@pytest.mark.parametrize("column", ["tags", "nodes", "headers"])
def test_text_that_is_not_utf_8_is_corruption_in_arrow_too(column: str) -> None:
    """Arrow itself would hand the bytes on as text."""
    items: Any = [((b"\xff", b""),)] if column == "headers" else [b"\xff"]
    flags, body = encode_columns(Columns([b"v"], **{column: items}))
    batch = _parse(flags, body, 1)
    assert to_arrow(batch, schema(["value"]), 0, 1).num_rows == 1
    with pytest.raises(CorruptionError, match="UTF-8"):
        to_arrow(batch, ALL, 0, 1)


# Into a batch.


def test_arrow_is_encoded_as_the_same_python_values_are() -> None:
    """Byte for byte, flags included."""
    assert _encode_arrow(_outside(RECORDS)) == _encode(RECORDS)


def test_what_was_read_can_be_appended() -> None:
    """Arrow out, Arrow in: the same body, nothing invented."""
    data = to_arrow(_batch(RECORDS), ALL, 0, len(RECORDS))
    assert _encode_arrow(data) == _encode(RECORDS)
    assert _encode_arrow(pa.Table.from_batches([data])) == _encode(RECORDS)


def test_sliced_arrow_is_encoded_as_its_slice() -> None:
    """Arrays with an offset, and validity bits that do not start at a byte."""
    for data in (_outside(RECORDS), to_arrow(_batch(RECORDS), ALL, 0, len(RECORDS))):
        for first in range(len(RECORDS)):
            for end in range(first + 1, len(RECORDS) + 1):
                part = data.slice(first, end - first)
                assert _encode_arrow(part) == _encode(RECORDS[first:end])


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.binary_view(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.binary()),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_every_kind_of_bytes_becomes_a_value(kind: pa.DataType) -> None:
    """A string or a dictionary of other tools is bytes here."""
    items: list[Any] = ["a", None, "", "größe", "a"]
    if pa.types.is_binary(getattr(kind, "value_type", kind)) or "binary" in str(kind):
        items = [item and item.encode() for item in items]
        items[2] = b""
    data = pa.record_batch([pa.array(items, kind)], names=["value"])
    assert _encode_arrow(data) == encode_columns(Columns([b"a", None, b"", "größe".encode(), b"a"]))


def test_no_value_column_means_no_values() -> None:
    """A table of keys alone is a batch of None values, as tombstones are."""
    data = pa.record_batch([pa.array([b"k", b"l"])], names=["key"])
    assert _encode_arrow(data) == encode_columns(Columns([None, None], keys=[b"k", b"l"]))


def test_columns_that_are_all_null_take_no_space() -> None:
    """They are the same as columns that are not there."""
    nulls = {name: pa.nulls(2, kind) for name, kind in TYPES.items() if name != "value"}
    data = pa.record_batch([*nulls.values(), pa.array([b"a", b"b"])], names=[*nulls, "value"])
    assert _encode_arrow(data) == encode_columns(Columns([b"a", b"b"]))


def test_offset_and_topic_are_not_looked_at() -> None:
    """So that what was read from one topic can be appended to another as it is."""
    data = pa.record_batch(
        [pa.array([7]), pa.array(["other"]), pa.array([b"a"])], names=["offset", "topic", "value"]
    )
    assert _encode_arrow(data) == encode_columns(Columns([b"a"]))
    with pytest.raises(OptionError, match="needs a column"):
        list(split(data.select(["offset", "topic"]), 100))


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.field("element", HEADERS.value_type)),
        pa.large_list(HEADERS.value_type),
        pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.string())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=["element", "large", "strings", "map"],
)
def test_every_kind_of_headers_is_taken(kind: pa.DataType) -> None:
    """Parquet, Spark and maps spell the same thing in different ways."""
    pairs: list[Any] = [[("a", "1"), ("b", "")], None, []]
    if not pa.types.is_map(kind):
        pairs = [p and [{"key": k, "value": v} for k, v in p] for p in pairs]
    data = pa.record_batch(
        [pa.array([b"x"] * 3), pa.array(pairs, kind)], names=["value", "headers"]
    )
    headers = [((b"a", b"1"), (b"b", b"")), (), ()]
    assert _encode_arrow(data) == encode_columns(Columns([b"x"] * 3, headers=headers))


@pytest.mark.parametrize("side", ["key", "value"])
def test_a_null_in_headers_is_refused(side: str) -> None:
    """Headers are text to bytes; which side is missing is said."""
    pair = {"key": "k", "value": b"v"} | {side: None}
    data = pa.record_batch([pa.array([[pair]], HEADERS)], names=["headers"])
    with pytest.raises(OptionError, match=f"null {side}: headers are text to bytes"):
        _encode_arrow(data)


def test_a_null_pair_in_headers_is_refused() -> None:
    """A pair that is not there is neither a header nor none."""
    data = pa.record_batch([pa.array([[None]], HEADERS)], names=["headers"])
    with pytest.raises(OptionError, match="null"):
        _encode_arrow(data)


def test_a_null_outside_of_the_slice_is_not_refused() -> None:
    """Only what is appended is judged."""
    bad = [{"key": None, "value": b""}]
    data = pa.record_batch([pa.array([bad, None, bad], HEADERS)], names=["headers"])
    assert _encode_arrow(data.slice(1, 1))[0] == Flag.NULL_VALUES


@pytest.mark.parametrize("name", ["valeu", "Value", "partition"])
def test_an_unknown_column_is_not_dropped_silently(name: str) -> None:
    """Data that would not be stored is refused."""
    with pytest.raises(OptionError, match=f"unknown column '{name}'"):
        list(split(pa.record_batch([pa.array([b"x"])], names=[name]), 100))


def test_a_column_that_is_there_twice_is_refused() -> None:
    """Which one was meant cannot be known; it was a KeyError."""
    data = pa.record_batch([pa.array([b"x"]), pa.array([b"y"])], names=["value", "value"])
    with pytest.raises(OptionError, match="once only"):
        list(split(data, 100))


@pytest.mark.parametrize("data", [None, [b"x"], {"value": [b"x"]}, pa.array([b"x"])])
def test_what_is_not_arrow_is_refused(data: Any) -> None:
    """The message says what came and what is taken."""
    with pytest.raises(WrongTypeError, match="RecordBatch or Table, not"):
        list(split(data, 100))


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("value", pa.array([[b"x"]])),
        ("value", pa.array([{"a": 1}])),
        ("tag", pa.array([b"\xff"])),
        ("priority", pa.array([256])),
        ("priority", pa.array([-1])),
        ("timestamp", pa.array([1.5])),
        ("timestamp", pa.array([1 << 40], pa.timestamp("s"))),
        ("headers", pa.array(["a"])),
    ],
)
def test_a_column_of_the_wrong_type_is_refused_by_name(name: str, array: pa.Array) -> None:
    """The message has the column, what it is and what it should be."""
    with pytest.raises(OptionError, match=f"column '{name}' of .* cannot become"):
        list(split(pa.record_batch([array], names=[name]), 100))


@pytest.mark.parametrize("name", ["timestamp", "expires_at", "not_before"])
@pytest.mark.parametrize("time", [-1, (1 << 63) - 1])
def test_a_time_out_of_range_is_refused(name: str, time: int) -> None:
    """Before 1970 there was no log, and a time so late would overflow with a time to live."""
    data = pa.record_batch([pa.array([time], TYPES[name])], names=[name])
    with pytest.raises(OptionError, match=f"'{name}' has a time before 1970 or after 2230"):
        _encode_arrow(data)


def test_an_operation_that_does_not_exist_is_refused() -> None:
    """As it is for records; only 0 and 1 mean something."""
    data = pa.record_batch([pa.array([0, None, 2], pa.uint8())], names=["operation"])
    with pytest.raises(OptionError, match="neither put"):
        list(split(data, 100))


@pytest.mark.parametrize("name", ["tag", "node"])
def test_text_that_is_not_utf_8_is_refused(name: str) -> None:
    """Arrow does not look at what is called a string, but every reader of it would fail."""
    ends, data = pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")
    array = pa.Array.from_buffers(pa.string(), 1, [None, ends, data])
    with pytest.raises(OptionError, match=f"column '{name}'.*UTF8"):
        list(split(pa.record_batch([array], names=[name]), 100))


def test_large_data_are_split_by_bytes() -> None:
    """In order, whole, and each about as large as asked for."""
    values = [b"%0100d" % index for index in range(1000)]
    table = pa.table({"value": pa.chunked_array([values[:10], [], values[10:]], pa.binary())})
    parts = list(split(table, 10_000))
    assert [value for part in parts for value in part.column("value").to_pylist()] == values
    assert all(part.nbytes < 12_000 for part in parts)
    assert len(parts) < 20


def test_a_slice_of_large_data_is_not_split_by_what_it_leaves_out() -> None:
    """Ten rows of a huge table were cut into ten batches, each counted as the whole table."""
    data = pa.record_batch([pa.array([bytes(100)] * 100_000)], names=["value"])
    assert [part.num_rows for part in split(data.slice(5, 10), 1 << 20)] == [10]


def test_a_dictionary_is_split_by_what_it_stands_for() -> None:
    """A million rows of one long value are not one batch because the value is there once."""
    indices = pa.array(np.zeros(10_000, np.int32))
    value = pa.DictionaryArray.from_arrays(indices, pa.array([bytes(1000)]))
    parts = list(split(pa.record_batch([value], names=["value"]), 1 << 20))
    assert sum(part.num_rows for part in parts) == 10_000
    assert all(part.nbytes < 1.1 * (1 << 20) for part in parts)


blob = st.binary(max_size=12)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
records = st.lists(
    st.builds(
        Record,
        st.none() | blob,
        st.none() | blob,
        st.just(NO_HEADERS) | st.dictionaries(text, blob, max_size=3),
        st.none() | text,
        st.none() | text,
        priority=st.just(0) | st.integers(0, 255),
        expires_at=st.just(0) | st.integers(10**15, 1 << 62),
        not_before=st.just(0) | st.integers(10**15, 1 << 62),
        operation=st.integers(0, 1),
        given_time=st.just(0) | st.integers(10**15, 1 << 60),
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.slow
@settings(database=None, deadline=None, max_examples=200)
@given(records, st.data())
def test_arrow_and_python_always_agree(records: list[Record], data: st.DataObject) -> None:
    """Any records, any slice: the same bytes in, the same records out."""
    outside = _outside(records)
    first = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(first + 1, len(records)))
    assert _encode_arrow(outside.slice(first, end - first)) == _encode(records[first:end])
    batch = _batch(records)
    arrow = to_arrow(batch, ALL, first, end)
    arrow.validate(full=True)
    assert _records(arrow) == batch.records(first, end)
