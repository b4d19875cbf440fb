"""Profiles: numbers about records, right for any way to cut them into pieces."""

from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.arguments import columns_of
from stratalog.format.batch import Batch
from stratalog.format.columns import encode_columns
from stratalog.format.frame import FrameHeader, FrameType
from stratalog.model import Record
from stratalog.spark.jobs.outline import durations, make_grid, size_bins, size_quantile, time_spans
from stratalog.spark.jobs.profile import (
    BINS,
    Grid,
    KeyCounts,
    Profile,
    bin_start,
    bins_of,
    quantile,
    read_times,
)


def _batch(records: list[Record], offset: int = 0) -> Batch:
    columns, _ = columns_of(records, 1 << 20)
    columns.timestamps = [record.timestamp for record in records]
    flags, body = encode_columns(columns)
    header = FrameHeader(
        FrameType.RECORDS, flags, len(body), len(records), 1, offset, records[0].timestamp,
        records[-1].timestamp, 0, 0,
    )  # fmt: skip
    return Batch.parse(header, body)


@given(st.lists(st.integers(0, 2**62), min_size=1))
def test_a_number_is_in_its_bin(numbers: list[int]) -> None:
    """And bins are narrow: a quantile is right to an eighth at most."""
    for number, place in zip(numbers, bins_of(np.array(numbers)).tolist(), strict=True):
        assert bin_start(place) <= number * (1 + 1e-9)
        assert number < bin_start(place + 1) * (1 + 1e-9) or number == 0
        assert place < BINS


def test_quantiles_are_right_to_a_few_percent() -> None:
    """For evenly spread numbers."""
    counts = np.bincount(bins_of(np.arange(1, 100_001)), minlength=BINS)
    for share in (0.1, 0.5, 0.99):
        assert abs(quantile(counts, share) / (share * 100_000) - 1) < 0.07
    assert quantile(np.zeros(BINS, np.int64), 0.5) == 0


@given(st.integers(0, 2**61), st.integers(0, 2**60))
def test_a_grid_holds_all_of_its_time(oldest: int, length: int) -> None:
    """In no more spans than fit a chart, each of a width that people count in."""
    grid = make_grid(oldest, oldest + length)
    assert grid.start <= oldest < grid.start + grid.width
    assert 1 <= grid.count <= 122
    assert oldest + length < grid.start + grid.count * grid.width


SECOND = 1_700_000_000
RECORDS = [
    Record(
        value=None if n % 7 == 0 else b"v" * (n * 37 % 1000),
        key=None if n % 5 == 0 else b"key %d" % (n * n % 11),
        headers={"sent": b"%d" % (SECOND + n)} if n % 3 else {},
        timestamp=(SECOND + n) * 10**9 + n * n * 1000,
    )
    for n in range(200)
]


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(1, 199), max_size=10), st.sets(st.integers(0, 199), max_size=150))
def test_pieces_add_up_to_the_whole(cuts: set[int], dead: set[int]) -> None:
    """However the records are cut, and with any of them left out."""
    grid = make_grid(RECORDS[0].timestamp, RECORDS[-1].timestamp)
    living = [r for n, r in enumerate(RECORDS) if n not in dead]
    keep = np.array([n not in dead for n in range(200)])
    edges = [0, *sorted(cuts), 200]
    whole = Profile(1, grid, "sent")
    counts: dict[bytes, int] = {}
    for first, end in pairwise(edges):
        if not keep[first:end].any():
            continue
        part = Profile(1, grid, "sent")
        keys = KeyCounts()
        batch = _batch(RECORDS)
        part.add(batch, first, end, keep[first:end])
        part.keyed += keys.add(batch, first, end, keep[first:end])
        for row in keys.table().to_pylist():
            counts[row["key"]] = counts.get(row["key"], 0) + row["count"]
        whole.merge(pickle.loads(pickle.dumps(part)))
    if not living:
        return
    expected: dict[bytes, int] = {}
    for record in living:
        if record.key is not None:
            expected[record.key] = expected.get(record.key, 0) + 1
    assert counts == expected
    assert whole.keyed == sum(expected.values())
    assert whole.records == len(living)
    assert whole.nulls == sum(record.value is None for record in living)
    sizes = [len(record.value or b"") for record in living]
    assert (whole.value_bytes, whole.largest) == (sum(sizes), max(sizes))
    assert sum(one.records for one in size_bins(whole)) == len(living)
    assert size_quantile(whole, 1.0) <= max(sizes)
    spans = time_spans(whole)
    assert sum(span.records for span in spans) == len(living)
    assert sum(span.bytes for span in spans) == sum(sizes)
    stamps = [record.timestamp for record in living]
    intervals = np.diff(stamps)
    found = durations(whole.intervals)
    assert found.count == len(intervals)
    assert found.longest == (intervals.max() if len(intervals) else 0)
    delays = [r.timestamp - int(r.headers["sent"]) * 10**9 for r in living if r.headers]
    assert durations(whole.delays).count == len(delays)
    assert durations(whole.delays).longest == max(delays, default=0)


def test_times_in_headers_are_read_as_they_come() -> None:
    """Seconds to nanoseconds by their size, fractions, ISO 8601; what is none of it is 0."""
    second = SECOND
    texts: list[Any] = [str(second * 10**n).encode() for n in (0, 3, 6, 9)]
    assert read_times(pa.array(texts)).tolist() == [second * 10**9] * 4
    assert read_times(pa.array([b"1700000000.5"])).tolist() == [second * 10**9 + 5 * 10**8]
    mixed = [b"2023-11-14T22:13:20Z", b"yesterday", b"1700000000", b"", b"-5"]
    expected = [second * 10**9, 0, second * 10**9, 0, 0]
    assert read_times(pa.array(mixed)).tolist() == expected


def test_times_outside_of_the_grid_count_at_its_edges() -> None:
    """A live writer may add records while a report is made."""
    assert Grid(100, 10, 3).numbers(np.array([50, 100, 129, 500])).tolist() == [0, 0, 2, 2]
