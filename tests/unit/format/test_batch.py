"""Record batches: columns in, the same records out, and no way out of the body."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.arguments import columns_of
from stratalog.errors import CorruptionError, TooLargeError
from stratalog.format.batch import Batch
from stratalog.format.codec import CODECS, compress
from stratalog.format.columns import Columns, encode_columns, encode_values
from stratalog.format.frame import Flag, FrameHeader, FrameType
from stratalog.model import NO_HEADERS, Record

NOW = 1_700_000_000_000_000_000
BASE = 1000


def _header(flags: int, body: bytes, count: int, **changes: int) -> FrameHeader:
    header = FrameHeader(FrameType.RECORDS, flags, len(body), count, 1, BASE, NOW, NOW, 0, 0)
    return header._replace(**changes)


def _parse(columns: Columns, start: int = 0) -> Batch:
    flags, body = encode_columns(columns)
    assert len(body) % 8 == 0
    times = columns.timestamps or [NOW]
    header = _header(
        flags, body, len(columns.values), base_timestamp=times[0], max_timestamp=times[-1]
    )
    return Batch.parse(header, b"?" * start + body, start)


def _plain_body(values: list[bytes]) -> bytes:
    encoded = encode_values(values)
    assert encoded is not None
    assert encoded[1] == len(values)
    return encoded[0]


def _expect(records: Sequence[Record]) -> list[Record]:
    """The records as they come back: with offsets, and with the batch's time for want of one."""
    return [
        Record(
            r.value, r.key, r.headers, r.tag, r.node, r.timestamp or NOW, BASE + index,
            r.priority, r.expires_at, r.not_before, r.operation, r.given_time,
        )
        for index, r in enumerate(records)
    ]  # fmt: skip


def _round_trip(records: Sequence[Record]) -> list[Record]:
    columns, times = columns_of(records, 1 << 20)
    columns.timestamps = times
    return _parse(columns).records()


FULL = [
    Record(
        b"value", b"key", {"h": b"1", "": b""}, "tag", "node", NOW + 1, priority=3,
        expires_at=NOW + 5, not_before=NOW + 2, operation=1, given_time=NOW - 7,
    ),
    Record(None, None, NO_HEADERS, None, None, NOW + 1),
    Record(b"", b"", {"größe": "ü".encode()}, "", "", NOW + 9, priority=255),
    Record(b"v" * 1000, b"k" * 100, {f"h{n}": bytes(n) for n in range(20)}, "✓", "注文", NOW + 9),
]  # fmt: skip


def test_records_with_every_column_read_back() -> None:
    """Nothing is lost between columns, and None and empty stay apart."""
    assert _round_trip(FULL) == _expect(FULL)


@pytest.mark.parametrize("record", FULL)
def test_a_single_record_reads_back(record: Record) -> None:
    """A batch of one takes the short way through the encoder."""
    assert _round_trip([record]) == _expect([record])


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 31, 32, 33, 16384, 16385, 20000])
def test_values_of_one_length_read_back(count: int) -> None:
    """On both sides of every count at which the encoder changes its way."""
    values = [b"%07d" % index for index in range(count)]
    flags, body = encode_columns(Columns(values))
    assert flags == 0
    assert encode_values(values) == (body, count)
    assert Batch.parse(_header(0, body, count), body).values() == values


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 31, 32, 33, 16384, 16385, 20000])
def test_values_of_mixed_lengths_read_back(count: int) -> None:
    """Lengths from 0 to 12, in every order."""
    values = [bytes([index % 251]) * (index * 7 % 13) for index in range(count)]
    flags, body = encode_columns(Columns(values))
    assert encode_values(values) == (body, count)
    assert Batch.parse(_header(flags, body, count), body).values() == values


@pytest.mark.parametrize("swapped", [0, 1, 39, 98])
def test_values_that_only_sum_up_to_one_length_read_back(swapped: int) -> None:
    """A byte more here and one less there is not taken for equal lengths."""
    values = [bytes(10)] * 100
    values[swapped], values[swapped + 1] = bytes(9), bytes(11)
    body = _plain_body(values)
    assert Batch.parse(_header(0, body, 100), body).values() == values


@pytest.mark.parametrize("values", [[b""] * 5, [b"", b"x", b"yy", b""], [b"x", b""]])
def test_empty_values_read_back(values: list[bytes]) -> None:
    """They have a length, too, which is that of nothing else."""
    body = _plain_body(values)
    assert Batch.parse(_header(0, body, len(values)), body).values() == values


def test_values_are_looked_at_once() -> None:
    """Another thread may add to the list, or take from it, while it is encoded."""

    class Growing(list[bytes]):
        def __len__(self) -> int:
            return 100

    assert encode_values(Growing([b"a", b"b"])) == encode_values([b"a", b"b"])


@pytest.mark.parametrize("length", [1, 3, 8, 1000])
def test_parts_of_equal_values_with_nulls_between_read_back(length: int) -> None:
    """Zeros at the end of a value are part of it; what is None has no bytes of its own."""
    items = [bytes([index]) + bytes(length - 1) for index in range(100)]
    plain = _parse(Columns(items), 8)
    assert plain.values(7, 90) == items[7:90]
    assert plain.values(5, 5) == []
    keys: list[bytes | None] = [None, *items[1:]]
    assert [record.key for record in _parse(Columns(items, keys=keys)).records()] == keys


def test_uniform_and_mixed_lengths_are_laid_out_alike() -> None:
    """The shortcut for equal lengths is one only in time."""
    body = _plain_body([b"abc"] * 40)
    ends = np.arange(41, dtype=np.int32) * 3
    assert body == ends.tobytes() + bytes(4) + b"abc" * 40


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("value", [None, b"", b"x", None]),
        ("key", [None, b"", b"x", None]),
        ("tag", [None, "", "ü", None]),
        ("node", [None, "", "ü", None]),
        ("headers", [NO_HEADERS, {"a": b""}, {"": b"x", "b": b"y"}, NO_HEADERS]),
        ("priority", [0, 1, 255, 0]),
        ("expires_at", [0, NOW, 0, NOW + 1]),
        ("not_before", [0, NOW, 0, NOW + 1]),
        ("operation", [0, 1, 1, 0]),
        ("given_time", [0, NOW - 1, 0, 10**15]),
        ("timestamp", [NOW, NOW, NOW + 1, NOW + (1 << 60)]),
    ],
)
def test_each_optional_column_reads_back_alone(name: str, items: list[Any]) -> None:
    """One column present, all others absent and free."""
    fields = [{"value": b"v"} | {name: item} for item in items]
    records = [Record(**f) for f in fields]
    assert _round_trip(records) == _expect(records)


def test_a_column_nobody_uses_takes_no_space() -> None:
    """Values alone are ends and bytes, and no flag is set."""
    assert encode_columns(Columns([b"12345678"])) == (0, struct.pack("<ii", 0, 8) + b"12345678")


def test_equal_timestamps_need_no_column() -> None:
    """They are the header's."""
    flags, _ = encode_columns(Columns([b"a", b"b"], timestamps=[NOW, NOW]))
    assert flags == 0
    flags, _ = encode_columns(Columns([b"a", b"b"], timestamps=[NOW, NOW + 1]))
    assert flags == Flag.TIMESTAMPS


def test_headers_that_are_all_empty_read_back_as_none_at_all() -> None:
    """A column of no pairs is legal, if wasteful."""
    batch = _parse(Columns([b"a", b"b"], headers=[(), ()]))
    assert batch.headers is not None
    assert [record.headers for record in batch.records()] == [{}, {}]


@pytest.mark.parametrize(
    ("name", "item"),
    [("key", b"k"), ("tag", "t"), ("node", "n"), ("headers", {"h": b""}), ("priority", 1),
     ("expires_at", NOW), ("not_before", NOW), ("operation", 1), ("value", None),
     ("given_time", NOW - 1)],
)  # fmt: skip
def test_a_batch_with_any_column_but_times_is_not_plain(name: str, item: Any) -> None:
    """With one record and with several.

    The columns that are arrays were compared with None, which gives an array, and a batch of
    several records with a priority could not be asked at all.
    """
    for count in (1, 3):
        fields: dict[str, Any] = {"value": b"v", "timestamp": NOW} | {name: item}
        columns, _ = columns_of([Record(**fields)] * count, 1 << 20)
        assert not _parse(columns).is_plain
        times = list(range(NOW, NOW + count))
        assert _parse(Columns([b"v"] * count, timestamps=times)).is_plain


@pytest.mark.parametrize("values", [[None], [b"x", None], ["text"], [5]])
def test_values_that_are_not_plain_bytes_take_the_long_way(values: list[Any]) -> None:
    """The short way says so instead of guessing."""
    assert encode_values(values) is None


def test_a_memoryview_of_wide_items_takes_the_long_way() -> None:
    """Its length counts items, not bytes."""
    wide: Any = memoryview(bytes(32)).cast("q")
    assert encode_values([wide, b"x"]) is None


@pytest.mark.parametrize("extra", [[], [b""], [b""] * 40])
def test_more_bytes_than_32_bits_can_count_are_refused(extra: list[bytes]) -> None:
    """Each way through the encoder says so, before it joins anything.

    Mixed lengths failed inside `struct`, and equal ones wrapped around.
    """
    huge = bytes(100 << 20)
    with pytest.raises(TooLargeError, match="append it in parts"):
        encode_values([huge] * 22 + extra)


def test_a_batch_is_parsed_in_place() -> None:
    """A body in the middle of what was read is not copied first."""
    columns, times = columns_of(FULL, 1 << 20)
    columns.timestamps = times
    batch = _parse(columns, start=64)
    assert bytes(batch.body).startswith(b"?" * 64)
    assert batch.records() == _expect(FULL)


@pytest.mark.parametrize("codec", [number for number in CODECS.values() if number])
def test_a_compressed_batch_reads_back(codec: int) -> None:
    """At the start of the bytes, and in the middle of them."""
    flags, plain = encode_columns(Columns([b"again and again"] * 100))
    body = compress(plain, codec)
    assert body is not None
    for start in (0, 8):
        batch = Batch.parse(_header(flags | codec, body, 100), bytes(start) + body, start)
        assert batch.values() == [b"again and again"] * 100


def test_a_slice_of_a_batch_is_that_slice_of_its_records() -> None:
    """For every first and end, of every column."""
    columns, times = columns_of(FULL, 1 << 20)
    columns.timestamps = times
    batch = _parse(columns)
    whole = batch.records()
    for first in range(5):
        for end in range(first, 5):
            assert batch.records(first, end) == whole[first:end]
            assert batch.values(first, end) == [record.value for record in whole[first:end]]


def test_offsets_may_have_holes() -> None:
    """A compacted batch says which offsets are left."""
    _, values = encode_columns(Columns([b"a", b"b", b"c"]))
    body = struct.pack("<III4x", 0, 5, 70000) + values
    batch = Batch.parse(_header(Flag.OFFSETS, body, 3), body)
    assert [record.offset for record in batch.records()] == [BASE, BASE + 5, BASE + 70000]


# What a checksum cannot find: sections that do not fit, written with the right checksum.

VALUES = struct.pack("<iii4x", 0, 1, 2) + b"ab" + bytes(6)


@pytest.mark.parametrize(
    ("story", "flags", "count", "body"),
    [
        ("no records", 0, 0, VALUES),
        ("too short for its count", 0, 5, VALUES),
        ("too short for 4 billion records", 0, (1 << 32) - 1, VALUES),
        ("bytes left over", 0, 2, VALUES + bytes(8)),
        ("empty", 0, 1, b""),
        ("ends not from 0", 0, 2, struct.pack("<iii4x", 1, 1, 2) + bytes(8)),
        ("ends fall", 0, 2, struct.pack("<iii4x", 0, 2, 1) + bytes(8)),
        ("one end below 0", 0, 1, struct.pack("<ii", 0, -1)),
        ("ends past the body", 0, 1, struct.pack("<ii", 0, 9) + bytes(8)),
        ("ends far past the body", 0, 1, struct.pack("<ii", 0, (1 << 31) - 1) + bytes(8)),
        ("a column the flags do not have", Flag.KEYS, 2, VALUES),
        ("pairs past the body", Flag.HEADERS, 2, VALUES + struct.pack("<iii4x", 0, 1, 1 << 30)),
        ("times not from 0", Flag.TIMESTAMPS, 2, struct.pack("<qq", 1, 2) + VALUES),
        ("times fall", Flag.TIMESTAMPS, 2, struct.pack("<qq", 0, -1) + VALUES),
        ("offsets not from 0", Flag.OFFSETS, 2, struct.pack("<II", 1, 2) + VALUES),
        ("offsets repeat", Flag.OFFSETS, 2, struct.pack("<II", 0, 0) + VALUES),
    ],
)
def test_a_body_that_does_not_hold_together_is_corruption(
    story: str, flags: int, count: int, body: bytes
) -> None:
    """The parser finds it, not a slice later on."""
    with pytest.raises(CorruptionError):
        Batch.parse(_header(flags, body, count), body)


def test_a_body_is_not_read_past_its_length() -> None:
    """Bytes after a body do not fill up its last column."""
    with pytest.raises(CorruptionError, match="too short by 8 bytes"):
        Batch.parse(_header(0, VALUES[:-8], 2), VALUES)


@pytest.mark.parametrize("base_offset", [(1 << 63) - (1 << 32), (1 << 63), (1 << 64) - 1])
def test_offsets_beyond_63_bits_are_corruption(base_offset: int) -> None:
    """They were an OverflowError when the records were made."""
    with pytest.raises(CorruptionError, match="too large"):
        Batch.parse(_header(0, VALUES, 2, base_offset=base_offset), VALUES)


def test_the_largest_offsets_read_back() -> None:
    """The bound leaves room for all offsets of the batch."""
    body = struct.pack("<II", 0, (1 << 32) - 1) + VALUES
    base_offset = (1 << 63) - (1 << 32) - 1
    batch = Batch.parse(_header(Flag.OFFSETS, body, 2, base_offset=base_offset), body)
    assert batch.records()[1].offset == (1 << 63) - 2


@pytest.mark.parametrize("flags", [0, Flag.TIMESTAMPS])
@pytest.mark.parametrize("difference", [-1, 1])
def test_a_largest_time_that_is_not_the_last_is_corruption(flags: int, difference: int) -> None:
    """The index of times believes the header, so the body must agree."""
    body = (struct.pack("<qq", 0, 7) if flags else b"") + VALUES
    last = NOW + (7 if flags else 0)
    Batch.parse(_header(flags, body, 2, max_timestamp=last), body)
    with pytest.raises(CorruptionError, match="timestamps"):
        Batch.parse(_header(flags, body, 2, max_timestamp=last + difference), body)


def test_times_that_overflow_are_corruption() -> None:
    """A delta that leaves 64 bits does not come back as a time before 1970."""
    body = struct.pack("<qq", 0, 1 << 62) + VALUES
    base = (1 << 63) - 1
    wrapped = base + (1 << 62) - (1 << 64)
    header = _header(Flag.TIMESTAMPS, body, 2, base_timestamp=base, max_timestamp=wrapped)
    with pytest.raises(CorruptionError, match="timestamps"):
        Batch.parse(header, body)


@pytest.mark.parametrize("column", ["tags", "nodes", "headers"])
def test_text_that_is_not_utf_8_is_corruption(column: str) -> None:
    """A tag, a node or a header name that cannot be text is not returned as something else."""
    items: Any = [((b"\xff", b""),)] if column == "headers" else [b"\xff"]
    batch = _parse(Columns([b"v"], **{column: items}))
    assert batch.values() == [b"v"]
    with pytest.raises(CorruptionError, match="UTF-8"):
        batch.records()


blob = st.binary(max_size=20)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
times = st.integers(1, 1 << 60)
some_records = st.lists(
    st.builds(
        Record,
        st.none() | blob,
        st.none() | blob,
        st.just(NO_HEADERS) | st.dictionaries(text, blob, max_size=3),
        st.none() | text,
        st.none() | text,
        priority=st.just(0) | st.integers(0, 255),
        expires_at=st.just(0) | times.map(lambda t: NOW + t),
        not_before=st.just(0) | times.map(lambda t: NOW + t),
        operation=st.integers(0, 1),
        given_time=st.just(0) | times.map(lambda t: 10**15 + t),
    ),
    min_size=1,
    max_size=40,
)


@pytest.mark.slow
@settings(database=None, deadline=None, max_examples=300)
@given(some_records, st.lists(st.integers(0, 1 << 55), min_size=40, max_size=40))
def test_any_records_read_back(records: list[Record], deltas: list[int]) -> None:
    """Whatever goes in comes out, with and without times of its own."""
    assert _round_trip(records) == _expect(records)
    columns, _ = columns_of(records, 1 << 20)
    columns.timestamps = (NOW + np.cumsum(deltas)).tolist()[: len(records)]
    found = _parse(columns).records()
    assert [record.timestamp for record in found] == columns.timestamps
    assert [record.value for record in found] == [record.value for record in records]


def test_the_strategy_reaches_every_column() -> None:
    """A property over records that all lack a column would hold for a parser without it."""
    seen: SimpleNamespace = SimpleNamespace(flags=0)

    @settings(database=None, deadline=None, max_examples=100, derandomize=True)
    @given(some_records)
    def look(records: list[Record]) -> None:
        seen.flags |= encode_columns(columns_of(records, 1 << 20)[0])[0]

    look()
    wanted = [
        Flag.KEYS, Flag.NULL_VALUES, Flag.HEADERS, Flag.TAGS, Flag.NODES, Flag.PRIORITIES,
        Flag.EXPIRES_AT, Flag.NOT_BEFORE, Flag.OPERATIONS, Flag.EVENT_TIMES,
    ]  # fmt: skip
    assert seen.flags == sum(wanted)


# --- values and short timestamps, the short way ------------------------------------------------


def _stamped(stamps: list[int], values: list[bytes]) -> tuple[FrameHeader, bytes]:
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    parts = [np.array(stamps, np.uint32).tobytes(), ends.tobytes(), b"".join(values)]
    body = b"".join(part + bytes(-len(part) & 7) for part in parts)
    last = NOW + (stamps[-1] if stamps else 0)
    return _header(Flag.SHORT_TIMESTAMPS, body, len(values), max_timestamp=last), body


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_values_with_short_timestamps_read_back(count: int) -> None:
    """One by one and all at once, in place too."""
    values = [b"x" * (index % 5) for index in range(count)]
    header, body = _stamped(list(range(count)), values)
    batch = Batch.parse(header, memoryview(b"12345678" + body + b"more"), 8)
    records = batch.records()
    assert [record.value for record in records] == values
    assert [record.timestamp for record in records] == [NOW + index for index in range(count)]
    assert [batch.record(index) for index in range(count)] == records


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, 1), (4, 3), (8, 9), (16, 1), (20, 99), (24, 0), (28, -1), (28, 1000)],
)
def test_damaged_short_timestamps_and_ends_are_refused(place: int, value: int) -> None:
    """A body that the fast path does not take is named by the general way."""
    header, body = _stamped([0, 1, 2], [b"a", b"bc", b"def"])
    damaged = body[:place] + struct.pack("<i", value) + body[place + 4 :]
    with pytest.raises(CorruptionError):
        Batch.parse(header, damaged)


@pytest.mark.parametrize("kind", [bytes, memoryview])
@pytest.mark.parametrize("count", [5, 20_000])
def test_ends_are_looked_at_in_every_batch(kind: Any, count: int) -> None:
    """Those of the batch before are known to rise, whatever their number; others are not."""
    values = [b"abc"] * count
    for header, body in (
        (_header(0, _plain_body(values), count), _plain_body(values)),
        _stamped(list(range(count)), values),
    ):
        at = body.index(struct.pack("<iii", 0, 3, 6)) + 8
        falling = body[:at] + struct.pack("<i", 2) + body[at + 4 :]
        for _ in range(2):
            assert Batch.parse(header, kind(body)).values() == values
            with pytest.raises(CorruptionError, match="do not rise"):
                Batch.parse(header, kind(falling))


def test_one_record_with_columns_reads_as_among_others() -> None:
    """Also one without a value."""
    records = [Record(b"a", key=b"k"), Record(None), Record(b"c", tag="t")]
    batch = _parse(columns_of(records, 1 << 20)[0])
    assert [batch.record(index) for index in range(3)] == batch.records()
