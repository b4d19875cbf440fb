"""Options, by lifetime: of the open store, and of a topic for as long as it lives.

Every option has one name in Python, in the environment (`STRATALOG_...`), on the command line and
in Spark. Unknown names are errors.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from stratalog.errors import OptionError, WrongTypeError
from stratalog.model import Durability

KIB = 1 << 10
MIB = 1 << 20

SECONDS_MAX = 10**9
"""Longest duration: 31 years."""
TIME_MAX = (1 << 63) - 1 - SECONDS_MAX * 10**9
"""Latest time, in nanoseconds: August 2230. Any duration after it is still a 64-bit number."""

COMPRESSIONS = ("none", "zstd", "lz4", "gzip")
RETENTIONS = ("limits", "consumed")
DELIVERIES = ("at_least_once", "at_most_once")

_T = TypeVar("_T")


def _cores() -> int:
    return min(len(os.sched_getaffinity(0)), 8)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How one process runs a store; nothing here is remembered on disk."""

    durability: Durability = Durability.FSYNC
    """Default class of topics that did not choose one."""
    shards: int = dataclasses.field(default_factory=_cores)
    """Independent logs, each with its own commits; by default one per core, 8 at most."""
    flush_interval: float = 0.002
    """Seconds until a `disk` append is written: the most a killed process loses of that class."""
    sync_interval: float = 1.0
    """Seconds until written bytes are synced, and `memory` appends written."""
    log_file_bytes: int = 64 * MIB
    """Size at which a log file is closed and the next one begun."""
    log_chunk_bytes: int = 1 * MIB
    """What a synced append that outran the background zero-fills at once, for those behind it."""
    record_bytes_max: int = 16 * MIB
    """Largest record: value, key, headers, tag and node together."""
    batch_bytes_max: int = 32 * MIB
    """Largest atomic batch, as it is laid out in the log."""
    disk_reserve_bytes: int = 32 * MIB
    """Appends fail with `DiskFullError` before the disk has less than this left."""
    memory_bytes: int = 1024 * MIB
    """What the store may hold in memory, in shares: see `stratalog.memory`."""
    tail_bytes: int = 32 * MIB
    """Memory for the records of one `ephemeral` topic; the oldest go first."""
    checkpoint_bytes: int = 32 * MIB
    """Log that gathers before its records are put into segments."""
    checkpoint_interval: float = 30.0
    """Seconds after which they are in any case, and retention is looked at."""
    snapshot_bytes: int = 64 * MIB
    """Log that gathers before a snapshot is made, and what lies behind it is given up."""
    snapshot_interval: float = 60.0
    """Seconds after which a snapshot is made in any case, if there is anything new."""
    cold: str | None = None
    """Where old segments go: a directory or the URL of an object store; None keeps them here."""
    hot_segments: int = 4
    """Sealed segments of a topic that stay here when there is a cold store."""
    hot_bytes: int = 0
    """Bytes of a topic's sealed segments that stay here; 0 is no bound. The stricter bound wins."""
    rewrite_ratio: float = 0.5
    """Share of a sealed segment that is deleted, or of a compacted topic that is new, from which
    on it is rewritten."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "durability", check_durability(self.durability))
        check_range("shards", self.shards, 1, 256)
        check_number("flush_interval", self.flush_interval, 0.0, 60.0)
        check_number("sync_interval", self.sync_interval, 0.0, 3600.0)
        check_range("log_file_bytes", self.log_file_bytes, 4 * KIB, 1 << 31)
        check_range("log_chunk_bytes", self.log_chunk_bytes, 4 * KIB, 1 << 31)
        check_range("record_bytes_max", self.record_bytes_max, 1, 1 << 30)
        check_range("batch_bytes_max", self.batch_bytes_max, 1, 1 << 30)
        check_range("disk_reserve_bytes", self.disk_reserve_bytes, 0, 1 << 50)
        check_range("memory_bytes", self.memory_bytes, MIB, 1 << 50)
        check_range("tail_bytes", self.tail_bytes, 1, 1 << 40)
        check_range("checkpoint_bytes", self.checkpoint_bytes, 1, 1 << 40)
        check_number("checkpoint_interval", self.checkpoint_interval, 0.001, SECONDS_MAX)
        check_range("snapshot_bytes", self.snapshot_bytes, 1, 1 << 40)
        check_number("snapshot_interval", self.snapshot_interval, 0.001, SECONDS_MAX)
        if self.cold is not None and (not isinstance(self.cold, str) or not self.cold):
            raise OptionError(f"cold={self.cold!r} must be a directory or a URL such as s3://...")
        check_range("hot_segments", self.hot_segments, 0, 1 << 40)
        check_number("rewrite_ratio", self.rewrite_ratio, 0.01, 1.0)
        check_range("hot_bytes", self.hot_bytes, 0, 1 << 60)

    @classmethod
    def build(
        cls, given: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> StoreOptions:
        """Options from keyword arguments, then `STRATALOG_*` variables, then the defaults."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        check_known("store option", given, known)
        values: dict[str, Any] = {}
        for name, text in (os.environ if environment is None else environment).items():
            option = name.removeprefix("STRATALOG_").lower()
            if name.startswith("STRATALOG_") and option in known:
                values[option] = _from_text(name, text, str(known[option].type))
        values |= {name: value for name, value in given.items() if value is not None}
        return cls(**values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """What a topic remembers; written to the log when the topic is created."""

    durability: Durability | None = None
    """None follows the store. `ephemeral` is for the whole life of the topic."""
    compression: str = "none"
    """Codec for batches: zstd, lz4, gzip; a batch that would save less than 5 % stays plain."""
    ttl: float | None = None
    """Seconds after which a record is no longer read; None is never."""
    retention: str = "limits"
    """`limits` evicts by the three below; `consumed` never what a group has yet to consume."""
    retention_seconds: float | None = None
    """Age after which a whole segment is evicted; None is never."""
    retention_bytes: int | None = None
    """Bytes of segments to keep; the oldest are evicted. None keeps all."""
    retention_records: int | None = None
    """Records to keep; the oldest segments are evicted. None keeps all."""
    retention_segments_min: int = 1
    """Segments that are kept whatever the limits say, the open one included."""
    segment_records: int = 1_000_000
    """Records after which a segment is sealed."""
    segment_bytes: int = 64 * MIB
    """Bytes after which a segment is sealed."""
    segment_seconds: float | None = 3600.0
    """Age after which a segment is sealed, however small; None is never."""
    compact: bool = False
    """Whether only the last record of each key is kept, sooner or later."""
    tombstone_seconds: float = 86400.0
    """How long the deletion of a key is kept in a compacted topic, so that readers see it."""

    def __post_init__(self) -> None:
        if self.durability is not None:
            object.__setattr__(self, "durability", check_durability(self.durability))
        if self.compression not in COMPRESSIONS:
            raise OptionError(
                f"compression={self.compression!r} is not known: use one of "
                f"{', '.join(COMPRESSIONS)}"
            )
        for name in ("ttl", "retention_seconds", "segment_seconds", "tombstone_seconds"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, seconds(name, value))
        if self.retention not in RETENTIONS:
            raise OptionError(
                f"retention={self.retention!r} is not known: use one of {', '.join(RETENTIONS)}"
            )
        for name in ("retention_bytes", "retention_records"):
            if (value := getattr(self, name)) is not None:
                check_range(name, value, 0, 1 << 60)
        check_range("retention_segments_min", self.retention_segments_min, 0, 1 << 40)
        check_range("segment_records", self.segment_records, 1, 1 << 32)
        check_range("segment_bytes", self.segment_bytes, 4 * KIB, 1 << 40)
        if not isinstance(self.compact, bool):
            raise WrongTypeError(f"compact={self.compact!r} must be True or False")

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as it is written to the log."""
        return {
            field.name: str(value) if isinstance(value, Durability) else value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def build(cls, given: Mapping[str, Any]) -> TopicOptions:
        """Options from keyword arguments; unknown ones are refused by name."""
        check_known("topic option", given, [field.name for field in dataclasses.fields(cls)])
        return cls(**given)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What a queue remembers; written to the log when it is made, and when one of them changes."""

    delivery: str = "at_least_once"
    """`at_most_once`: what was got is gone, whatever becomes of it."""
    lease: float = 30.0
    """Seconds for which a message is its consumer's; then somebody else gets it."""
    max_deliveries: int = 5
    """Deliveries after which a message goes to the dead letters; 0 is no limit."""
    backoff: float = 0.0
    """Seconds that a message which was given back waits, twice as long each time; 0 is not."""
    backoff_max: float = 300.0
    """The longest of these times."""
    dedup_window: float = 300.0
    """Seconds for which a deduplication id counts."""
    dedup_entries: int = 100_000
    """Ids that are remembered; the oldest go first."""
    pending_max: int = 1_000_000
    """Messages that consumers may hold together; `get` waits for an `ack` beyond that."""
    promote_after: float | None = None
    """Seconds after which a message goes before more urgent ones; None is never."""
    ttl: float | None = None
    """Seconds after which a message that says nothing else is no longer delivered."""

    def __post_init__(self) -> None:
        if self.delivery not in DELIVERIES:
            raise OptionError(
                f"delivery={self.delivery!r} is not known: use one of {', '.join(DELIVERIES)}"
            )
        for name in ("lease", "dedup_window", "promote_after", "ttl", "backoff_max"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, seconds(name, value))
        if isinstance(self.backoff, timedelta):
            object.__setattr__(self, "backoff", self.backoff.total_seconds())
        check_number("backoff", self.backoff, 0.0, SECONDS_MAX)
        check_range("max_deliveries", self.max_deliveries, 0, 1 << 31)
        check_range("dedup_entries", self.dedup_entries, 1, 1 << 30)
        check_range("pending_max", self.pending_max, 1, 1 << 40)

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as it is written to the log."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def build(cls, given: Mapping[str, Any]) -> QueueOptions:
        """Options from keyword arguments; unknown ones are refused by name."""
        check_known("queue option", given, [field.name for field in dataclasses.fields(cls)])
        return cls(**given)


def check_durability(value: Any) -> Durability:
    """The class of that name."""
    try:
        return Durability(value)
    except ValueError:
        raise OptionError(
            f"durability={value!r} is not known: use one of {', '.join(Durability)}"
        ) from None


def check_known(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that do not exist, and say which one was probably meant."""
    names = list(known)
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}"
            raise OptionError(f"unknown {what} {name!r}: {hint}")


def check_range(name: str, value: Any, least: int, most: int) -> int:
    """A whole number between the two, both included."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(f"{name}={value!r} must be a whole number")
    if not least <= value <= most:
        raise OptionError(f"{name}={value} is out of range: {least} to {most}")
    return value


def check_number(name: str, value: Any, least: float, most: float) -> float:
    """A number between the two, both included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{name}={value!r} must be a number of seconds")
    if not least <= value <= most:
        raise OptionError(f"{name}={value} is out of range: {least} to {most} seconds")
    return float(value)


def seconds(name: str, value: Any) -> float:
    """A positive duration, from a number of seconds or a `timedelta`."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{name}={value!r} must be seconds or a timedelta")
    # The upper bound also keeps infinity and NaN out; less than a nanosecond would round to none.
    if not 1e-9 <= value <= SECONDS_MAX:
        raise OptionError(
            f"{name}={value} must be more than 0 seconds and at most {SECONDS_MAX} (31 years)"
        )
    return float(value)


def _from_text(name: str, text: str, kind: str) -> Any:
    try:
        if kind == "int":
            return int(text)
        return float(text) if kind == "float" else text
    except ValueError:
        raise OptionError(f"{name}={text!r} is not a number") from None
