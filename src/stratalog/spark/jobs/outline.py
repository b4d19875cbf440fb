"""The contents of a report, as values: of a store, of each topic, of each span of time."""

from __future__ import annotations

import msgspec

from stratalog.spark.jobs.profile import BINS, Grid, Profile, Times, quantile

_SECOND = 10**9
_WIDTHS = (
    10**7,
    10**8,
    *(n * _SECOND for n in (1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800)),
    *(n * 3600 * _SECOND for n in (1, 2, 3, 6, 12, 24, 48, 168, 720)),
)
_SPANS_MAX = 120


class Durations(msgspec.Struct, frozen=True):
    """Durations in nanoseconds; exact to about 6 %, the longest exactly."""

    count: int
    p50: float
    p90: float
    p99: float
    longest: float


class TimeSpan(msgspec.Struct, frozen=True):
    """A span of time; all have equal length."""

    start: int
    """Nanoseconds since 1970."""
    records: int
    bytes: int
    """Bytes of values."""
    interval_p50: float
    interval_p99: float
    delay_p50: float
    delay_p99: float


class SizeBin(msgspec.Struct, frozen=True):
    """Values of about the same size."""

    low: int
    high: int
    """Upper bound in bytes; exclusive."""
    records: int


class KeyShare(msgspec.Struct, frozen=True):
    """A key, and its share of the topic."""

    key: str
    records: int
    share: float
    """Share of all records that have a key."""


class Keys(msgspec.Struct, frozen=True):
    """The keys of a topic."""

    records: int
    """Records that have a key."""
    distinct: int
    top: list[KeyShare]


class Missing(msgspec.Struct, frozen=True):
    """Offsets that cannot be read, both inclusive, and why."""

    first: int
    last: int
    reason: str


class GroupLag(msgspec.Struct, frozen=True):
    """The lag of a consumer group."""

    name: str
    """Empty for a queue's own group."""
    mode: str
    lag: int
    """Records that are not acknowledged yet."""
    pending: int
    """Those of them that are pending."""
    floor: int
    """Everything below this offset is acknowledged."""
    seconds: float
    """From the first unacknowledged record to the newest one."""


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    """A topic: its volume, its time range, its rates, and its keys."""

    name: str
    kind: str
    """topic, queue, table or series."""
    id: int
    earliest: int
    next_offset: int
    records: int
    """Records that can be read."""
    dead: int
    """Records on disk that cannot be read: deleted or expired."""
    deleted: int
    """Records that were ever deleted."""
    gaps: list[Missing]
    bytes: int
    """Bytes on disk, in segments and in the log."""
    raw_bytes: int
    """Bytes before compression."""
    value_bytes: int
    compression: str
    segments: int
    cold_segments: int
    log_bytes: int
    """Bytes that are not yet in a segment."""
    oldest: int
    newest: int
    """Times of the first and the last record, in nanoseconds; 0 without one."""
    span_seconds: float
    """Length of each span."""
    spans: list[TimeSpan]
    interval: Durations
    """Between an append and the one before it."""
    delay: Durations
    """From the time in the requested header to that of the record."""
    unreadable_times: int
    sizes: list[SizeBin]
    size_p50: float
    size_p99: float
    size_max: int
    nulls: int
    keys: Keys
    groups: list[GroupLag]
    living: int | None
    """Keys that a table has; None for other kinds."""
    series: int | None
    """Sets of tags that a series has; None for other kinds."""
    points: int | None
    """Points that were written to it, those written again included."""

    @property
    def ratio(self) -> float:
        """Compression ratio."""
        return self.raw_bytes / self.bytes if self.bytes else 1.0


class StoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """A store, topic by topic."""

    path: str
    identity: str
    made_at: int
    """Nanoseconds since 1970."""
    duration: float
    """Duration of the report in seconds."""
    time_header: str | None
    topics: list[TopicReport]

    @property
    def records(self) -> int:
        """Records of all topics."""
        return sum(topic.records for topic in self.topics)

    @property
    def bytes(self) -> int:
        """Bytes of all topics on disk."""
        return sum(topic.bytes for topic in self.topics)


def make_grid(oldest: int, newest: int) -> Grid:
    """Choose usual units of time, so that there are about sixty to a hundred and twenty spans."""
    length = max(1, newest - oldest)
    width = next((one for one in _WIDTHS if length // one < _SPANS_MAX), 0)
    width = width or -(-length // (_SPANS_MAX * _WIDTHS[-1])) * _WIDTHS[-1]
    start = oldest - oldest % width
    return Grid(start, width, (max(newest, oldest) - start) // width + 1)


def durations(times: Times) -> Durations:
    """Summarise all durations."""
    counts = times.counts.sum(axis=0)
    p50, p90, p99 = (min(quantile(counts, share), times.longest) for share in (0.5, 0.9, 0.99))
    return Durations(int(counts.sum()), p50, p90, p99, float(times.longest))


def time_spans(profile: Profile) -> list[TimeSpan]:
    """Summarise volume and durations over time."""
    grid = profile.grid
    return [
        TimeSpan(
            grid.start + number * grid.width,
            int(profile.volume[number]),
            int(profile.volume_bytes[number]),
            quantile(profile.intervals.counts[number], 0.5),
            quantile(profile.intervals.counts[number], 0.99),
            quantile(profile.delays.counts[number], 0.5),
            quantile(profile.delays.counts[number], 0.99),
        )
        for number in range(grid.count)
    ]


def size_bins(profile: Profile) -> list[SizeBin]:
    """Count values by powers of two of their size, from the smallest to the largest."""
    groups: dict[tuple[int, int], int] = {}
    for number in range(BINS):
        count = int(profile.sizes[number])
        low = 0 if number == 0 else 1 << ((number - 1) // 8)
        high = 1 if number == 0 else low * 2
        groups[low, high] = groups.get((low, high), 0) + count
    bins = [SizeBin(low, high, count) for (low, high), count in sorted(groups.items())]
    used = [number for number, one in enumerate(bins) if one.records]
    return bins[used[0] : used[-1] + 1] if used else []


def size_quantile(profile: Profile, share: float) -> float:
    """Return the size below which that share of values is."""
    return min(quantile(profile.sizes, share), profile.largest)


__all__ = [
    "Durations",
    "GroupLag",
    "KeyShare",
    "Keys",
    "Missing",
    "SizeBin",
    "StoreReport",
    "TimeSpan",
    "TopicReport",
    "durations",
    "make_grid",
    "size_bins",
    "size_quantile",
    "time_spans",
]
