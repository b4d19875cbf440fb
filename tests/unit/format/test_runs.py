"""Frames side by side, verified and merged at once: the same records, or left to the slow way."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from stratalog.errors import CorruptionError
from stratalog.format.batch import Batch
from stratalog.format.columns import Columns, encode_columns
from stratalog.format.frame import (
    HEADER_BYTES,
    Flag,
    FrameType,
    body_checksum,
    decode_header,
    encode_header,
)
from stratalog.format.runs import HEADERS, Int64s, as_headers, verify_run
from stratalog.format.singles import are_single, merge_singles
from stratalog.model import Record

NOW = 1_700_000_000_000_000_000
BASE = 1000
SEED = 77

Run = tuple[bytes, Int64s, Int64s]
"""Bytes, and where frames start in them, and how long they are."""


def _frame(body: bytes, count: int, **fields: int) -> bytes:
    given: dict[str, int] = {
        "type": FrameType.RECORDS, "flags": 0, "topic_id": 7, "base_offset": BASE,
        "base_timestamp": NOW, "max_timestamp": NOW,
    } | fields  # fmt: skip
    header = encode_header(
        **given, body_length=len(body), count=count, body_checksum=body_checksum(body), seed=SEED
    )
    return header + body


def _run(frames: list[bytes], gap: int = 0) -> Run:
    data, starts = b"", []
    for frame in frames:
        data += b"?" * gap
        starts.append(len(data))
        data += frame
    return data, np.array(starts), np.array([len(frame) for frame in frames])


def _of(batches: list[Columns], gap: int = 0) -> Run:
    """Frames of these batches, whose offsets and times follow each other."""
    frames, base = [], BASE
    for number, columns in enumerate(batches):
        flags, body = encode_columns(columns)
        time = NOW + number // 2
        frames.append(
            _frame(
                body, len(columns.values), flags=flags, base_offset=base, base_timestamp=time,
                max_timestamp=time,
            )
        )  # fmt: skip
        base += len(columns.values)
    return _run(frames, gap)


def _apart(run: Run) -> list[Record]:
    data, starts, _ = run
    batches = [
        Batch.parse(decode_header(data, start, seed=SEED), data, start + HEADER_BYTES)
        for start in starts.tolist()
    ]
    return [record for batch in batches for record in batch.records()]


PLAIN = [
    Columns(values)  # every one padded in another way
    for values in (
        [b"a"],
        [b"", b"bc", b""],
        [b"%d" % index for index in range(40)],
        [b""],
        [b"d" * 9, b"e" * 8],
    )
]
SINGLES = [
    Columns([b"plain"]),
    Columns([None]),
    Columns([b""], keys=[b""]),
    Columns([b"12345678"], keys=[b"a key"]),
    Columns([b"value"], keys=[None], tags=["täg".encode()]),
    Columns([b"value"], nodes=[b"eu-1"], priorities=[200]),
    Columns([None], expires_at=[NOW + 5], not_before=[NOW + 2], operations=[1]),
    Columns([b"value"], headers=[[(b"name", b"of a header"), (b"other", b"")]], tags=[b"tag"]),
    Columns([b"value"], headers=[[]]),
    Columns([b"late"], tags=[b"tag"], event_times=[NOW - 5]),
    Columns([b""], keys=[b"k"], headers=[[(b"", b"v")]]),
    Columns([b"value"], keys=[b"k"], tags=[None], nodes=[b""], priorities=[0]),
]


@pytest.mark.parametrize("gap", [0, 8, 64])
def test_plain_batches_are_merged_as_their_records(gap: int) -> None:
    """Offsets, times and values are those of the batches by themselves."""
    run = _of(PLAIN, gap)
    headers = verify_run(*run, SEED)
    merged = Batch.merge(headers, run[0], run[1] + HEADER_BYTES)
    assert merged is not None
    assert merged.records() == _apart(run)
    assert merged.records(1, 6) == merged.records()[1:6]
    assert len(merged.records()) == 47


@pytest.mark.parametrize("gap", [0, 8, 64])
@pytest.mark.parametrize("chosen", [SINGLES, SINGLES[2:3], SINGLES[::-1], SINGLES * 5])
def test_single_records_are_merged_whatever_columns_each_has(
    chosen: list[Columns], gap: int
) -> None:
    """A column that one of them lacks is None there, or 0."""
    run = _of(chosen, gap)
    headers = verify_run(*run, SEED)
    merged = merge_singles(headers, run[0], run[1] + HEADER_BYTES)
    assert merged is not None
    assert merged.records() == _apart(run)


@pytest.mark.parametrize(
    "other",
    [
        Columns([b"a", b"b"], headers=[[(b"h", b"v")], []]),
        Columns([b"a", b"b"], keys=[b"1", b"2"]),
        Columns([b"a", b"b"], timestamps=[NOW, NOW + 9]),
    ],
)
def test_what_has_more_to_it_is_left_alone(other: Columns) -> None:
    """Neither way takes it, whatever is around it."""
    run = _of([*SINGLES[:2], other])
    headers = verify_run(*run, SEED)
    assert are_single(headers).tolist() == [True, True, False]
    assert Batch.merge(headers, run[0], run[1] + HEADER_BYTES) is None
    assert merge_singles(headers, run[0], run[1] + HEADER_BYTES) is None


def test_times_that_fall_from_one_frame_to_the_next_are_left_alone() -> None:
    """A repair may leave them; one batch could not say so."""
    body = encode_columns(Columns([b"a"]))[1]
    later = {"base_timestamp": NOW + 1, "max_timestamp": NOW + 1}
    run = _run([_frame(body, 1, **later), _frame(body, 1, base_offset=BASE + 1)])
    headers = verify_run(*run, SEED)
    assert merge_singles(headers, run[0], run[1] + HEADER_BYTES) is None


VALUES = encode_columns(Columns([b"a", b"bc"]))[1]
ONE = encode_columns(Columns([b"abc"]))[1]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    ("count", "body", "changes"),
    [
        (0, VALUES, {}),
        ((1 << 32) - 1, VALUES, {}),
        (2, VALUES + bytes(8), {}),
        (1, ONE + bytes(8), {}),
        (1, b"", {}),
        (2, struct.pack("<iii4x", 1, 1, 2) + bytes(8), {}),
        (1, struct.pack("<ii", 1, 1) + bytes(8), {}),
        (2, struct.pack("<iii4x", 0, 2, 1) + bytes(8), {}),
        (2, struct.pack("<iii4x", 0, -1, 1) + bytes(8), {}),
        (2, struct.pack("<iii4x", 0, (1 << 31) - 1, 1) + bytes(8), {}),
        (1, struct.pack("<ii", 0, -1), {}),
        (1, struct.pack("<ii", 0, -1 << 31), {}),
        (1, struct.pack("<ii", 0, 9) + bytes(8), {}),
        (1, struct.pack("<ii", 0, (1 << 31) - 1) + bytes(8), {}),
        (2, VALUES, {"flags": Flag.KEYS}),
        (1, ONE, {"flags": Flag.KEYS}),
        (1, ONE, {"flags": Flag.TAGS}),
        (1, ONE, {"flags": Flag.HEADERS}),
        (1, ONE + struct.pack("<ii", 0, 1 << 30), {"flags": Flag.HEADERS}),
        (1, ONE + struct.pack("<ii", 0, -1), {"flags": Flag.HEADERS}),
        (1, ONE + struct.pack("<iiiiii", 0, 1, 0, -8, 0, 0), {"flags": Flag.HEADERS}),
        (1, ONE + struct.pack("<iiiiii", 0, 1, 0, 8, 0, 0), {"flags": Flag.HEADERS}),
        (1, ONE, {"flags": Flag.PRIORITIES}),
        (1, ONE, {"flags": Flag.OFFSETS}),
        (1, ONE, {"flags": 1}),
        (1, ONE, {"base_offset": (1 << 63) - (1 << 32)}),
        (1, ONE, {"max_timestamp": NOW + 1}),
    ],
)
def test_what_does_not_hold_together_is_not_merged(
    place: int, count: int, body: bytes, changes: dict[str, int]
) -> None:
    """Wherever it is among others; the parser then says what is wrong with it."""
    frames = [_frame(ONE, 1)] * 2
    frames.insert(place, _frame(body, count, **changes))
    data, starts, lengths = _run(frames)
    headers = verify_run(data, starts, lengths, SEED)
    assert Batch.merge(headers, data, starts + HEADER_BYTES) is None
    merged: Any = merge_singles(headers, data, starts + HEADER_BYTES)
    if "base_offset" in changes and place:
        assert merged is not None  # the holder of the index looks at offsets
        return
    assert merged is None
    at = int(starts[place])
    with pytest.raises(CorruptionError):
        Batch.parse(decode_header(data, at, seed=SEED), data, at + HEADER_BYTES)


def test_one_bit_anywhere_is_noticed() -> None:
    """In any header or body, of any of the frames."""
    data, starts, lengths = _of(SINGLES)
    assert len(verify_run(data, starts, lengths, SEED)) == len(SINGLES)
    assert len(verify_run(data, starts, lengths, SEED + 1)) == 0
    for place in range(0, len(data), 3):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        before = np.count_nonzero(starts + lengths <= place)
        assert len(verify_run(bytes(damaged), starts, lengths, SEED)) == before, place


@pytest.mark.parametrize("cut", [1, 3, 8, 64, 100])
def test_a_run_that_is_cut_short_is_noticed(cut: int) -> None:
    """Nothing is read after the end, and what is whole before it is merged."""
    for batches, merge in ((SINGLES, merge_singles), (PLAIN, Batch.merge)):
        data, starts, lengths = _of(batches)
        inside = np.count_nonzero(starts + lengths <= len(data) - cut)
        headers = verify_run(data[:-cut], starts, lengths, SEED)
        assert len(headers) == inside
        merged = merge(headers, data[:-cut], starts[:inside] + HEADER_BYTES)
        assert merged is not None
        assert merged.records() == _apart((data, starts[:inside], lengths[:inside]))
    assert len(verify_run(b"", starts, lengths, SEED)) == 0


def test_other_kinds_of_frames_are_left_alone() -> None:
    """So are places where none starts, and lengths that are not those of the header."""
    data, starts, lengths = _run([_frame(ONE, 1), _frame(ONE, 0, type=FrameType.GROUP)])
    assert len(verify_run(data, starts, lengths, SEED)) == 1
    data, starts, lengths = _of(SINGLES)
    assert len(verify_run(data, starts + 4, lengths - 4, SEED)) == 0
    assert len(verify_run(data, starts + 8, lengths - 8, SEED)) == 0
    assert len(verify_run(data, starts, lengths - 8, SEED)) == 0


def test_headers_as_a_table_say_what_headers_say() -> None:
    """Field by field."""
    data, starts, lengths = _of(SINGLES)
    headers = verify_run(data, starts, lengths, SEED)
    assert headers.dtype == HEADERS
    assert as_headers(headers) == [decode_header(data, at, seed=SEED) for at in starts.tolist()]
