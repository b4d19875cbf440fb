"""Statistics of records that can be added up: volume and times over time, sizes, keys.

A `Profile` describes one piece of a topic; those of all pieces added up describe the topic. There
is no loop over records: every number comes from whole columns.

Times and sizes go into bins that are an eighth of a power of two wide: a quantile is exact to
about 6 %, over any range, in a few hundred numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.format.arrow import schema, to_arrow
from stratalog.format.batch import Batch
from stratalog.format.sections import Binary

Int64s = npt.NDArray[np.int64]

_STEPS = 8
BINS = 64 * _STEPS + 1
"""The first is for 0; the others go up to 2 ** 63."""

# Distinct keys that are gathered before they are counted together.
_KEYS_MAX = 1 << 20

_HEADERS = schema(["headers"])
_KEYS = schema(["key"])


class Grid(NamedTuple):
    """Equal spans of time, one after the other."""

    start: int
    """Start in nanoseconds."""
    width: int
    count: int  # type: ignore[assignment]  # hides a tuple's own count(), which is not used

    def numbers(self, times: Int64s) -> Int64s:
        """Return the span of each time; times outside go to the first or the last."""
        found: Int64s = np.clip((times - self.start) // self.width, 0, self.count - 1)
        return found


def bins_of(numbers: Int64s) -> Int64s:
    """Return the bin of each number; none is negative."""
    mantissa, exponent = np.frexp(numbers.astype(np.float64))
    steps = ((mantissa * 2 - 1) * _STEPS).astype(np.int64)
    return np.where(numbers > 0, (exponent.astype(np.int64) - 1) * _STEPS + steps + 1, 0)


def bin_start(number: int) -> float:
    """Return the smallest number of a bin."""
    if number <= 0:
        return 0.0
    exponent, step = divmod(number - 1, _STEPS)
    return float(2**exponent * (1 + step / _STEPS))


def quantile(counts: Int64s, share: float) -> float:
    """Return the number below which that share lies: the middle of its bin."""
    total = int(counts.sum())
    if not total:
        return 0.0
    number = int(np.searchsorted(np.cumsum(counts), share * total))
    number = min(number, len(counts) - 1)
    return (bin_start(number) + bin_start(number + 1)) / 2 if number else 0.0


class Times:
    """Durations over time: a histogram for each span."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.counts = np.zeros((grid.count, BINS), np.int64)
        self.longest = 0

    def add(self, durations: Int64s, times: Int64s) -> None:
        """Add durations, each at a time."""
        if not len(durations):
            return
        places = self._grid.numbers(times) * BINS + bins_of(durations)
        found = np.bincount(places, minlength=self.counts.size).reshape(self.counts.shape)
        self.counts += found
        self.longest = max(self.longest, int(durations.max()))

    def merge(self, other: Times) -> None:
        """Add the durations of another."""
        self.counts += other.counts
        self.longest = max(self.longest, other.longest)

    def __getstate__(self) -> tuple[Any, ...]:
        places = np.flatnonzero(self.counts)  # nearly all are 0: pickled sparsely
        return self._grid, places, self.counts.reshape(-1)[places], self.longest

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(state[0])  # type: ignore[misc]
        self.counts.reshape(-1)[state[1]] = state[2]
        self.longest = state[3]


class Profile:
    """Statistics of a topic's records."""

    def __init__(self, topic_id: int, grid: Grid, time_header: str | None) -> None:
        self.topic_id = topic_id
        self.grid = grid
        self.time_header = time_header
        self.records = 0
        self.dead = 0
        """Stored records that cannot be read: deleted or expired."""
        self.raw_bytes = 0
        """Bytes of the batches, decompressed."""
        self.value_bytes = 0
        self.keyed = 0
        self.nulls = 0
        """Records without a value."""
        self.volume = np.zeros(grid.count, np.int64)
        self.volume_bytes = np.zeros(grid.count, np.int64)
        self.sizes = np.zeros(BINS, np.int64)
        self.largest = 0
        self.intervals = Times(grid)
        """Between an append and the one before it."""
        self.delays = Times(grid)
        """From the time in a header to that of the record."""
        self.unreadable = 0
        """Headers that should be a time and are not."""
        self.first_offset = -1
        self.first_timestamp = 0
        self.last_timestamp = 0

    def add(self, batch: Batch, first: int, end: int, keep: npt.NDArray[np.bool_] | None) -> None:
        """Add records of a batch, which follow the earlier ones."""
        stamps = batch.timestamps(first, end)
        lengths = np.diff(batch.value.ends[first : end + 1]).astype(np.int64)
        self.raw_bytes += batch.size * (end - first) // batch.count
        if keep is not None:
            self.dead += int((~keep).sum())
            stamps, lengths = stamps[keep], lengths[keep]
        if self.first_offset < 0:
            place = first if keep is None else first + int(np.argmax(keep))
            self.first_offset = batch.offset_of(place)
            self.first_timestamp = int(stamps[0])
            self._add_intervals(np.diff(stamps), stamps[1:])
        else:
            self._add_intervals(np.diff(stamps, prepend=self.last_timestamp), stamps)
        self.last_timestamp = int(stamps[-1])
        self.records += len(stamps)
        spans = self.grid.numbers(stamps)
        self.volume += np.bincount(spans, minlength=self.grid.count)
        weights = np.bincount(spans, weights=lengths, minlength=self.grid.count)
        self.volume_bytes += weights.astype(np.int64)
        self.value_bytes += int(lengths.sum())
        self.sizes += np.bincount(bins_of(lengths), minlength=BINS)
        self.largest = max(self.largest, int(lengths.max()))
        if batch.value.validity >= 0:
            valid = batch.valid(batch.value)[first:end]
            self.nulls += int((~(valid if keep is None else valid[keep])).sum())
        if self.time_header is not None and batch.headers is not None:
            self._add_delays(batch, first, end, keep)

    def _add_intervals(self, durations: Int64s, stamps: Int64s) -> None:
        """Add intervals; records that were appended together have one time, and no interval."""
        apart = durations > 0
        self.intervals.add(durations[apart], stamps[apart])

    def _add_delays(
        self, batch: Batch, first: int, end: int, keep: npt.NDArray[np.bool_] | None
    ) -> None:
        column = to_arrow(batch, _HEADERS, first, end).column(0)
        stamps = batch.timestamps(first, end)
        if keep is not None:
            column, stamps = column.filter(pa.array(keep)), stamps[keep]
        owners = pc.list_parent_indices(column)
        pairs = column.flatten()
        chosen = pc.equal(pairs.field("key"), self.time_header)
        texts = pairs.field("value").filter(chosen)
        if not len(texts):
            return
        times = read_times(texts)
        at = stamps[owners.filter(chosen).to_numpy()]
        self.unreadable += int((times <= 0).sum())
        at, times = at[times > 0], times[times > 0]
        self.delays.add(np.maximum(at - times, 0), at)

    def merge(self, other: Profile) -> None:
        """Add the records that follow these."""
        if other.first_offset >= 0:
            if self.first_offset >= 0:
                start = other.first_timestamp
                self._add_intervals(np.array([start - self.last_timestamp]), np.array([start]))
            else:
                self.first_offset = other.first_offset
                self.first_timestamp = other.first_timestamp
            self.last_timestamp = other.last_timestamp
        for name in (
            "records", "dead", "raw_bytes", "value_bytes", "keyed", "nulls", "volume",
            "volume_bytes", "sizes", "unreadable",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest = max(self.largest, other.largest)
        self.intervals.merge(other.intervals)
        self.delays.merge(other.delays)


def read_times(texts: pa.Array) -> Int64s:
    """Parse times written as numbers of any usual unit or in ISO 8601; 0 for others."""
    words = texts.cast(pa.string(), safe=False)
    for kind in (pa.int64(), pa.float64()):
        try:
            numbers = words.cast(kind).to_numpy()
        except pa.ArrowInvalid:
            continue
        return _to_nanoseconds(numbers)
    try:
        times = words.cast(pa.timestamp("ns", tz="UTC"))
    except pa.ArrowInvalid:
        if len(words) == 1:
            return np.zeros(1, np.int64)
        half = len(words) // 2  # bisects to find the invalid ones
        return np.concatenate([read_times(words[:half]), read_times(words[half:])])
    found: Int64s = times.cast(pa.int64()).to_numpy()
    return found


def _to_nanoseconds(numbers: npt.NDArray[Any]) -> Int64s:
    """Determine the unit by size: seconds until the year 5138, and so on."""
    found = np.zeros(len(numbers), np.int64)
    for low, high, factor in ((0, 1e11, 10**9), (1e11, 1e14, 10**6), (1e14, 1e17, 1000),
                              (1e17, 9.2e18, 1)):  # fmt: skip
        inside = (numbers > low) & (numbers <= high)
        found[inside] = (numbers[inside] * factor).astype(np.int64)
    return found


class KeyCounts:
    """The number of records of each key in a piece."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        self._rows_max = _KEYS_MAX

    def add(self, batch: Batch, first: int, end: int, keep: npt.NDArray[np.bool_] | None) -> int:
        """Add records of a batch; returns how many of them have a key."""
        if not isinstance(batch.key, Binary):
            return 0
        column = to_arrow(batch, _KEYS, first, end).column(0)
        column = column.drop_null() if keep is None else column.filter(pa.array(keep)).drop_null()
        counts = pc.value_counts(column)
        names = ["key", "count"]
        arrays = [counts.field("values"), counts.field("counts")]
        self._parts.append(pa.RecordBatch.from_arrays(arrays, names=names))
        self._rows += len(counts)
        if self._rows > self._rows_max:
            self._parts = self.table().to_batches()
            self._rows = sum(part.num_rows for part in self._parts)
            self._rows_max = max(_KEYS_MAX, 2 * self._rows)
        return len(column)

    def table(self) -> pa.Table:
        """Return each key once, with its count."""
        empty = pa.schema([("key", pa.binary()), ("count", pa.int64())])
        table = pa.Table.from_batches(self._parts, schema=empty)
        counted = table.group_by("key").aggregate([("count", "sum")])
        return counted.select(["key", "count_sum"]).rename_columns(["key", "count"])
