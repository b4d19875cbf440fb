"""Merging: the records of the parts one after the other, and nothing else changed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stratalog.arguments import columns_of
from stratalog.errors import TooLargeError
from stratalog.format.batch import Batch
from stratalog.format.codec import CODECS
from stratalog.format.columns import Columns, encode_columns
from stratalog.format.frame import CODEC_MASK, Flag, FrameHeader, FrameType
from stratalog.format.merge import (
    NEVER,
    Block,
    Part,
    _is_dense,
    _is_simple,
    _join_any,
    _join_columns,
    expiry,
    merge,
)
from stratalog.model import NO_HEADERS, Record

NOW = 1_700_000_000_000_000_000
SHORT_MAX = (1 << 32) - 1
ALL_COLUMNS = (
    Flag.KEYS | Flag.NULL_VALUES | Flag.HEADERS | Flag.TAGS | Flag.NODES | Flag.PRIORITIES
    | Flag.EXPIRES_AT | Flag.NOT_BEFORE | Flag.OPERATIONS | Flag.EVENT_TIMES
)  # fmt: skip


def _batch(records: Sequence[Record], base: int) -> Batch:
    """The records as an append writes them, with times of their own."""
    columns, _ = columns_of(records, 1 << 20)
    columns.timestamps = [record.timestamp for record in records]
    flags, body = encode_columns(columns)
    first, last = records[0].timestamp, records[-1].timestamp
    return Batch.parse(
        FrameHeader(FrameType.RECORDS, flags, len(body), len(records), 1, base, first, last, 0, 0),
        body,
    )


def _values(*values: bytes, base: int = 0, at: int = NOW, step: int = 0) -> Batch:
    return _batch([Record(value, timestamp=at + step * n) for n, value in enumerate(values)], base)


def _whole(batch: Batch) -> Part:
    return Part(batch, 0, batch.count)


def _parse(block: Block) -> Batch:
    """A block as it is read back; its body is a whole number of words."""
    assert len(block.body) % 8 == 0
    header = FrameHeader(
        FrameType.RECORDS, block.flags, len(block.body), block.count, 1, block.base_offset,
        block.base_timestamp, block.max_timestamp, 0, 0,
    )  # fmt: skip
    return Batch.parse(header, block.body)


def _kept(part: Part) -> list[Record]:
    records = part.batch.records(part.first, part.end)
    if part.keep is None:
        return records
    return [record for record, kept in zip(records, part.keep, strict=True) if kept]


def _check(parts: list[Part], codec: int = 0) -> Block:
    """Merge, and hold the result to the records of the parts."""
    expected = [record for part in parts for record in _kept(part)]
    block = merge(parts, codec)
    assert _parse(block).records() == expected
    assert (block.count, block.base_offset) == (len(expected), expected[0].offset)
    assert block.base_timestamp == expected[0].timestamp
    assert block.max_timestamp == expected[-1].timestamp
    times = [record.expires_at for record in expected]
    assert block.expires_at == (max(times) if all(times) else NEVER)
    return block


# --- plain values ----------------------------------------------------------------------------


def test_plain_batches_become_one() -> None:
    """Values of many small batches, in order, with no flag."""
    parts = [_whole(_values(b"a%d" % n, b"", b"c" * n, base=3 * n)) for n in range(20)]
    assert _check(parts).flags == 0


def test_slices_of_plain_batches_become_one() -> None:
    """From the middle of one to the middle of the next."""
    one, two = _values(b"a", b"bb", b"ccc"), _values(b"d", b"ee", b"fff", base=3)
    block = _check([Part(one, 1, 3), Part(two, 0, 2)])
    assert (block.flags, block.base_offset) == (0, 1)


def test_a_merge_is_laid_out_as_an_append_would_be() -> None:
    """Plain values with one time are the same bytes either way."""
    block = merge([_whole(_values(b"a", b"b")), _whole(_values(b"ccc", base=2))], 0)
    assert (block.flags, block.body) == encode_columns(Columns([b"a", b"b", b"ccc"]))


def test_a_hole_between_plain_batches_is_kept() -> None:
    """Offsets that a repair gave up stay missing, and those after them keep their numbers.

    Plain parts were joined as if each began where the one before ended, so every record after
    a hole was given the offset of another.
    """
    block = _check([_whole(_values(b"a", b"b")), _whole(_values(b"c", base=7))])
    assert block.flags == Flag.OFFSETS
    assert [record.offset for record in _parse(block).records()] == [0, 1, 7]


def test_a_hole_between_slices_of_one_plain_batch_is_kept() -> None:
    """Also when both sides of the hole are in the same batch."""
    batch = _values(b"a", b"b", b"c", b"d", base=10)
    block = _check([Part(batch, 0, 1), Part(batch, 3, 4)])
    assert [record.offset for record in _parse(block).records()] == [10, 13]


@pytest.mark.parametrize("codec", [0, 1])
def test_compressed_batches_are_merged_as_their_records(codec: int) -> None:
    """The encoding of a part does not matter."""
    squeezed = _parse(merge([_whole(_values(*[b"again and again"] * 50))], CODECS["zstd"]))
    _check([_whole(squeezed), _whole(_values(b"more", base=50))], codec)


# --- times -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_plain", [True, False])
@pytest.mark.parametrize(
    ("span", "flag"),
    [(0, 0), (1, Flag.SHORT_TIMESTAMPS), (SHORT_MAX - 1, Flag.SHORT_TIMESTAMPS),
     (SHORT_MAX, Flag.SHORT_TIMESTAMPS), (SHORT_MAX + 1, Flag.TIMESTAMPS),
     (1 << 55, Flag.TIMESTAMPS)],
)  # fmt: skip
def test_times_are_short_up_to_the_last_nanosecond(span: int, flag: int, is_plain: bool) -> None:
    """32 bits hold 2**32 - 1 nanoseconds; one more takes the long form."""
    key = None if is_plain else b"key"
    one = _batch([Record(b"a", key, timestamp=NOW)], 0)
    two = _batch([Record(b"b", key, timestamp=NOW + span)], 1)
    block = _check([_whole(one), _whole(two)])
    assert block.flags & (Flag.TIMESTAMPS | Flag.SHORT_TIMESTAMPS) == flag


def test_times_are_taken_from_every_form_they_are_stored_in() -> None:
    """None, long and short, joined into any of them."""
    long = _values(b"a", b"b", b"c", base=0, step=5)
    short = _parse(merge([_whole(_values(b"d", b"e", base=3, at=NOW + 20, step=5))], 0))
    none = _values(b"f", b"g", base=5, at=NOW + 30)
    assert isinstance(short.timestamp_deltas, np.ndarray)
    assert short.timestamp_deltas.dtype == np.uint32
    _check([_whole(long), _whole(short), _whole(none)])
    _check([Part(long, 1, 3), Part(short, 0, 2)])
    _check([Part(short, 1, 2), Part(none, 0, 1)])


def test_short_times_are_padded_when_their_number_is_odd() -> None:
    """Three of 4 bytes each take 16, and the last four are zero."""
    block = _check([_whole(_values(b"x", b"y", b"z", step=7))])
    assert block.body[:16] == struct.pack("<IIII", 0, 7, 14, 0)


# --- records left out ------------------------------------------------------------------------


def test_records_left_out_leave_holes() -> None:
    """The offsets of those that stay are their own."""
    batch = _values(*[b"%d" % n for n in range(9)], base=100, step=3)
    keep = np.array([0, 1, 0, 1, 1, 0, 0, 1, 0], np.bool_)
    block = _check([Part(batch, 0, 9, keep)])
    assert block.flags == Flag.OFFSETS | Flag.SHORT_TIMESTAMPS
    assert block.base_offset == 101


@pytest.mark.parametrize("keep", [[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 0], [0, 0, 1, 0]])
def test_without_a_hole_there_is_no_column_of_offsets(keep: list[int]) -> None:
    """Leaving records out at either end leaves a dense batch."""
    batch = _values(b"a", b"b", b"c", b"d")
    assert not _check([Part(batch, 0, 4, np.array(keep, np.bool_))]).flags & Flag.OFFSETS


def test_a_part_of_which_nothing_is_kept_is_only_a_hole() -> None:
    """First, in the middle and last."""
    empty = [Part(_values(b"x", b"y", base=2 * n), 0, 2, np.zeros(2, np.bool_)) for n in range(5)]
    full = [_whole(_values(b"x", b"y", base=2 * n)) for n in range(5)]
    _check([empty[0], full[1], empty[2], full[3], empty[4]])


def test_offsets_too_far_apart_for_one_batch_are_refused() -> None:
    """32 bits count from the first of them; more would come back as another offset."""
    one = _values(b"a", base=0)
    _check([_whole(one), _whole(_values(b"b", base=SHORT_MAX))])
    with pytest.raises(TooLargeError, match="too far apart"):
        merge([_whole(one), _whole(_values(b"b", base=SHORT_MAX + 1))], 0)


# --- codecs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [number for number in CODECS.values() if number])
def test_a_codec_is_used_when_it_saves(codec: int) -> None:
    """The flag and the body go together."""
    plain = [_whole(_values(*[b"again and again"] * 50))]
    block = _check(plain, codec)
    assert block.flags & CODEC_MASK == codec
    assert len(block.body) < len(merge(plain, 0).body)


@pytest.mark.parametrize("codec", list(CODECS.values()))
def test_a_codec_is_not_used_when_it_does_not_save(codec: int) -> None:
    """Noise stays as it is, and so does what is too small."""
    noise = np.random.default_rng(1).bytes(2000)
    for values in ([noise], [b"aaaa"]):
        assert _check([_whole(_values(*values))], codec).flags & CODEC_MASK == 0


# --- when a block expires ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "expected"),
    [([0], NEVER), ([5], 5), ([5, 9, 7], 9), ([5, 0, 7], NEVER), ([0, 0], NEVER), ([9, 0], NEVER)],
)
def test_a_block_expires_with_its_last_record_or_never(times: list[int], expected: int) -> None:
    """One record that does not expire keeps all of them."""
    times = [time and NOW + time for time in times]
    expected = expected and NOW + expected
    records = [Record(b"v", timestamp=NOW, expires_at=time) for time in times]
    batch = _batch(records, 0)
    assert _check([_whole(batch)]).expires_at == expected
    assert expiry(batch) == expected
    assert _check([Part(batch, n, n + 1) for n in range(len(times))]).expires_at == expected


def test_a_record_left_out_does_not_keep_a_block() -> None:
    """Neither the one that would never expire nor the one that would last."""
    records = [
        Record(b"v", timestamp=NOW, expires_at=time) for time in (0, NOW + 5, NOW + 9, NOW + 7)
    ]
    keep = np.array([0, 1, 0, 1], np.bool_)
    assert _check([Part(_batch(records, 0), 0, 4, keep)]).expires_at == NOW + 7


def test_a_plain_part_keeps_a_block() -> None:
    """A part without the column has records that do not expire."""
    one = _batch([Record(b"v", timestamp=NOW, expires_at=NOW + 5)], 0)
    assert _check([_whole(one), _whole(_values(b"w", base=1))]).expires_at == NEVER


# --- any of it -------------------------------------------------------------------------------

blob = st.binary(max_size=12)
text = st.text(max_size=5)
moment = st.integers(NOW, NOW + (1 << 50))

OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "key": st.none() | blob,
    "headers": st.just(NO_HEADERS) | st.dictionaries(text, blob, max_size=3),
    "tag": st.none() | text,
    "node": st.none() | text,
    "priority": st.integers(0, 255),
    "expires_at": st.just(0) | moment,
    "not_before": st.just(0) | moment,
    "operation": st.integers(0, 1),
    "given_time": st.just(0) | st.integers(NOW - (1 << 50), NOW - 1),
}


@st.composite
def some_parts(draw: st.DrawFn) -> list[Part]:
    """Batches with any columns, sliced and thinned, some merged before; one record at least."""
    parts: list[Part] = []
    offset, time = draw(st.integers(0, 1 << 40)), NOW
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.sets(st.sampled_from([*OPTIONAL, "null"])))
        value = st.none() | blob if "null" in names else blob
        fields = st.fixed_dictionaries({n: s for n, s in OPTIONAL.items() if n in names})
        count = draw(st.integers(1, 9))
        step = draw(st.sampled_from((0, 0, 1, 1000, 1 << 31, 1 << 33)))
        records = [
            Record(draw(value), timestamp=time + step * n, **draw(fields)) for n in range(count)
        ]
        batch = _batch(records, offset)
        if draw(st.booleans()):
            keep = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
            if keep.any():
                batch = _parse(merge([Part(batch, 0, count, keep)], draw(st.integers(0, 3))))
        parts.append(_slice(draw, batch))
        offset += count + draw(st.sampled_from((0, 0, 0, 1, 70_000)))
        time = records[-1].timestamp + draw(st.sampled_from((0, 1, SHORT_MAX)))
    if not any(_kept(part) for part in parts):
        parts[0] = parts[0]._replace(keep=None)
    return parts


def _slice(draw: st.DrawFn, batch: Batch) -> Part:
    first = draw(st.integers(0, batch.count - 1))
    end = draw(st.integers(first + 1, batch.count))
    keep = st.lists(st.booleans(), min_size=end - first, max_size=end - first)
    mask = draw(st.none() | keep.map(lambda items: np.array(items, np.bool_)))
    return Part(batch, first, end, mask)


@pytest.mark.slow
@settings(database=None, deadline=None, max_examples=300)
@given(some_parts(), st.sampled_from(list(CODECS.values())))
def test_any_parts_are_merged_to_their_records(parts: list[Part], codec: int) -> None:
    """Every combination of columns, holes, slices, times and codecs; and again, merged with itself.

    Merging what was merged changes nothing.
    """
    block = _check(parts, codec)
    again = merge([_whole(_parse(block))], codec)
    assert again == block


@pytest.mark.slow
@settings(database=None, deadline=None, max_examples=200)
@given(some_parts())
def test_columns_are_joined_to_what_arrow_makes_of_them(parts: list[Part]) -> None:
    """To the byte, wherever both ways can be taken."""
    parts = [part._replace(keep=None) for part in parts]
    assume(all(map(_is_simple, parts)) and _is_dense(parts))
    stamps = np.concatenate([part.batch.timestamps(*part[1:3]) for part in parts])
    flags, body, expires_at = _join_columns(parts, stamps)
    assert (flags, body) == _join_any(parts)[:2]
    assert expires_at == _join_any(parts)[-1]


@pytest.mark.parametrize("bits", range(0, 1024, 73))
def test_each_column_is_there_only_if_a_record_has_it(bits: int) -> None:
    """Columns of one part are not made up for the other, and none is kept that is empty."""
    full: dict[str, Any] = {
        "key": b"k", "headers": {"h": b"1"}, "tag": "t", "node": "n", "priority": 1,
        "expires_at": NOW, "not_before": NOW, "operation": 1, "value": None,
        "given_time": NOW - 1,
    }  # fmt: skip
    names = [name for n, name in enumerate(full) if bits >> n & 1]
    record = Record(b"v", timestamp=NOW)
    other = msgspec.structs.replace(record, **{name: full[name] for name in names})
    block = _check([_whole(_batch([record], 0)), _whole(_batch([other], 1))])
    assert bin(block.flags).count("1") == len(names)
    assert block.flags & ~ALL_COLUMNS == 0
