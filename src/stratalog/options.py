"""Options, by lifetime: of the open store, and of a topic for as long as it lives.

Every option has one name in Python, in the environment (`STRATALOG_...`), on the command line and
in Spark. Unknown names are errors.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import resource
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
ENCODINGS = ("json", "msgpack", "text")
OF_TYPES = ("encoding", "schema")
"""Options of a topic that are made of the type of its values, and never given."""
DELIVERIES = ("at_least_once", "at_most_once")

_OPEN_FILES_MIN = 32
_OPEN_FILES_MAX = 512

_T = TypeVar("_T")


def default_open_files() -> int:
    """A quarter of the files that this process may have open: it has others of its own."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _OPEN_FILES_MAX
    return min(max(soft // 4, _OPEN_FILES_MIN), _OPEN_FILES_MAX)


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
    """Bytes that a synced append zero-fills for later ones, if it outran the background."""
    record_bytes_max: int = 16 * MIB
    """Largest record: value, key, headers, tag and node together."""
    batch_bytes_max: int = 32 * MIB
    """Largest atomic batch, as it is laid out in the log."""
    expanded_bytes_max: int = 128 * MIB
    """Largest batch that is decompressed; never less than `batch_bytes_max`. One that claims more
    is refused before any memory is taken."""
    disk_reserve_bytes: int = 32 * MIB
    """Appends fail with `DiskFullError` before the disk has less than this left."""
    open_files_max: int = dataclasses.field(default_factory=default_open_files)
    """Files that the store may have open at a time, whatever the number of topics; by default a
    quarter of what the process may (`ulimit -n`), 512 at most. Each shard takes two of them."""
    memory_bytes: int = 1024 * MIB
    """Memory that the store may hold, in shares: see `stratalog.memory`."""
    series_max: int = 100_000
    """Sets of tags that one series may have: a write that would make more is refused."""
    tail_bytes: int = 32 * MIB
    """Memory for the records of one `ephemeral` topic; the oldest go first."""
    checkpoint_bytes: int = 32 * MIB
    """Log that gathers before its records are put into segments."""
    checkpoint_interval: float = 30.0
    """Seconds after which they are in any case, and retention is looked at."""
    snapshot_bytes: int = 64 * MIB
    """Log that gathers before a snapshot is made; the log before that is then given up."""
    snapshot_interval: float = 60.0
    """Seconds after which a snapshot is made in any case, if there is anything new."""
    cold: str | None = None
    """Where old segments go: a directory or the URL of an object store; None keeps them here."""
    hot_segments: int = 4
    """Sealed segments of a topic that stay here when there is a cold store."""
    hot_bytes: int = 0
    """Bytes of a topic's sealed segments that stay here; 0 is no bound. The stricter bound wins."""
    lake: str | None = None
    """Where topics with `lake=True` are kept as Parquet: a directory or the URL of an object store;
    None leaves their lakes as they are."""
    lake_grace: float = 3600.0
    """Seconds for which files of a lake stay that others took the place of, for readers of them."""
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
        check_range("expanded_bytes_max", self.expanded_bytes_max, MIB, 1 << 30)
        if self.expanded_bytes_max < self.batch_bytes_max:
            object.__setattr__(self, "expanded_bytes_max", self.batch_bytes_max)
        check_range("disk_reserve_bytes", self.disk_reserve_bytes, 0, 1 << 50)
        check_range("open_files_max", self.open_files_max, _OPEN_FILES_MIN, 1 << 20)
        check_range("memory_bytes", self.memory_bytes, MIB, 1 << 50)
        check_range("series_max", self.series_max, 1, 1 << 31)
        check_range("tail_bytes", self.tail_bytes, 1, 1 << 40)
        check_range("checkpoint_bytes", self.checkpoint_bytes, 1, 1 << 40)
        check_number("checkpoint_interval", self.checkpoint_interval, 0.001, SECONDS_MAX)
        check_range("snapshot_bytes", self.snapshot_bytes, 1, 1 << 40)
        check_number("snapshot_interval", self.snapshot_interval, 0.001, SECONDS_MAX)
        if self.cold is not None and (not isinstance(self.cold, str) or not self.cold):
            raise OptionError(f"cold={self.cold!r} must be a directory or a URL such as s3://...")
        if self.lake is not None and (not isinstance(self.lake, str) or not self.lake):
            raise OptionError(f"lake={self.lake!r} must be a directory or a URL such as s3://...")
        check_number("lake_grace", self.lake_grace, 0.0, SECONDS_MAX)
        check_range("hot_segments", self.hot_segments, 0, 1 << 40)
        check_number("rewrite_ratio", self.rewrite_ratio, 0.01, 1.0, unit="")
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
                values[option] = from_text(name, text, str(known[option].type))
        values |= {name: value for name, value in given.items() if value is not None}
        return cls(**values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """Options that a topic remembers; written to the log when the topic is created."""

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
    retention_segments_max: int | None = None
    """Segments to keep, the open one included; the oldest are evicted. None keeps all."""
    segment_records: int = 1_000_000
    """Records after which a segment is sealed."""
    segment_bytes: int = 64 * MIB
    """Bytes after which a segment is sealed."""
    segment_seconds: float | None = 3600.0
    """Age after which a segment is sealed, however small; None is never."""
    compact: bool = False
    """Whether only the last record of each key is kept, sooner or later."""
    versions: int = 1
    """How many of the newest records of each key are kept in a compacted topic."""
    tombstone_seconds: float = 86400.0
    """How long the deletion of a key is kept in a compacted topic, so that readers see it."""
    lake: bool = False
    """Whether sealed segments are kept as Parquet, too, in the store's lake."""
    lake_retention: float | None = None
    """Age up to which the lake keeps records that the topic itself has evicted; None keeps none."""
    encoding: str | None = None
    """How typed values are stored: `json`, `msgpack` or `text`; None for a topic without a type."""
    schema: str | None = None
    """JSON Schema of all typed values that the topic may hold, as text; made of `type`."""

    def __post_init__(self) -> None:
        if self.durability is not None:
            object.__setattr__(self, "durability", check_durability(self.durability))
        if self.compression not in COMPRESSIONS:
            raise OptionError(
                f"compression={self.compression!r} is not known: use one of "
                f"{', '.join(COMPRESSIONS)}"
            )
        _set_seconds(self, "ttl", "retention_seconds", "segment_seconds", "tombstone_seconds")
        _set_seconds(self, "lake_retention")
        if self.retention not in RETENTIONS:
            raise OptionError(
                f"retention={self.retention!r} is not known: use one of {', '.join(RETENTIONS)}"
            )
        for name in ("retention_bytes", "retention_records"):
            if (value := getattr(self, name)) is not None:
                check_range(name, value, 0, 1 << 60)
        check_range("retention_segments_min", self.retention_segments_min, 0, 1 << 40)
        if self.retention_segments_max is not None:
            check_range("retention_segments_max", self.retention_segments_max, 1, 1 << 40)
        check_range("segment_records", self.segment_records, 1, 1 << 32)
        check_range("segment_bytes", self.segment_bytes, 4 * KIB, 1 << 40)
        check_range("versions", self.versions, 1, 1 << 16)
        if not isinstance(self.compact, bool):
            raise WrongTypeError(f"compact={self.compact!r} must be True or False")
        if not isinstance(self.lake, bool):
            raise WrongTypeError(f"lake={self.lake!r} must be True or False")
        if self.encoding is not None and self.encoding not in ENCODINGS:
            raise OptionError(
                f"encoding={self.encoding!r} is not known: use one of {', '.join(ENCODINGS)}"
            )
        if (self.encoding is None) != (self.schema is None):
            raise OptionError(
                "encoding and schema belong together, and both are made of a type. Give type=..., "
                "or neither."
            )
        if self.lake and self.durability == Durability.EPHEMERAL:
            raise OptionError(
                "lake=True and durability='ephemeral' contradict each other: what is never written "
                "has no history. Give another durability, or leave lake out."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return what differs from the defaults, as it is written to the log."""
        return {
            field.name: str(value) if isinstance(value, Durability) else plain(value)
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def build(cls, given: Mapping[str, Any]) -> TopicOptions:
        """Options from keyword arguments; unknown ones are refused by name."""
        for name in OF_TYPES:
            if name in given:
                raise OptionError(f"{name} is made of the type of values. Give type=... instead.")
        check_known("topic option", given, [field.name for field in dataclasses.fields(cls)])
        return cls(**given)

    @classmethod
    def restore(cls, stored: Mapping[str, Any]) -> TopicOptions:
        """Options as the log has them."""
        kept = _without_none(cls, stored)
        check_known("topic option", kept, [field.name for field in dataclasses.fields(cls)])
        return cls(**kept)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Options that a queue remembers; written to the log when it is made or changed."""

    delivery: str = "at_least_once"
    """`at_most_once`: what was got is gone, whatever becomes of it."""
    lease: float = 30.0
    """Seconds for which a message is its consumer's; then another consumer gets it."""
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
        _set_seconds(self, "lease", "dedup_window", "promote_after", "ttl", "backoff_max")
        if isinstance(self.backoff, timedelta):
            object.__setattr__(self, "backoff", self.backoff.total_seconds())
        check_number("backoff", self.backoff, 0.0, SECONDS_MAX)
        check_range("max_deliveries", self.max_deliveries, 0, 1 << 31)
        check_range("dedup_entries", self.dedup_entries, 1, 1 << 30)
        check_range("pending_max", self.pending_max, 1, 1 << 40)

    def to_dict(self) -> dict[str, Any]:
        """Return what differs from the defaults, as it is written to the log."""
        return {
            field.name: plain(value)
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def build(cls, given: Mapping[str, Any]) -> QueueOptions:
        """Options from keyword arguments; unknown ones are refused by name."""
        check_known("queue option", given, [field.name for field in dataclasses.fields(cls)])
        return cls(**given)

    @classmethod
    def restore(cls, stored: Mapping[str, Any]) -> QueueOptions:
        """Options as the log has them."""
        return cls.build(_without_none(cls, stored))


def _may_be_none(cls: type[TopicOptions] | type[QueueOptions], name: str) -> bool:
    return "None" in str(cls.__dataclass_fields__[name].type)


def _set_seconds(options: TopicOptions | QueueOptions, *names: str) -> None:
    """Check durations; None is one only where the option says what it means."""
    for name in names:
        value = getattr(options, name)
        if value is not None or not _may_be_none(type(options), name):
            object.__setattr__(options, name, seconds(name, value))


def _without_none(
    cls: type[TopicOptions] | type[QueueOptions], stored: Mapping[str, Any]
) -> dict[str, Any]:
    """Stored options; the default stands for a None that earlier releases let in without use."""
    known = cls.__dataclass_fields__
    return {
        name: value
        for name, value in stored.items()
        if value is not None or name not in known or _may_be_none(cls, name)
    }


@functools.cache
def expanded_bytes_max() -> int:
    """The option of that name for those who open no store: tools, and tasks of a Spark job."""
    return StoreOptions.build({}).expanded_bytes_max


def plain(value: Any) -> Any:
    """A number or text of Python's own type, from one of a class derived from it.

    MessagePack encodes those alone, and what is to be written must not fail to encode.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and type(value) is not int:
        return int.__add__(value, 0)
    if isinstance(value, float) and type(value) is not float:
        return float.__add__(value, 0.0)
    return str.__str__(value) if isinstance(value, str) and type(value) is not str else value


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
    number: int = plain(value)
    return number


def check_number(name: str, value: Any, least: float, most: float, unit: str = " seconds") -> float:
    """A number between the two, both included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"{name}={value!r} must be a number{' of' if unit else ''}{unit}")
    if not least <= value <= most:
        raise OptionError(f"{name}={value} is out of range: {least} to {most}{unit}")
    return float(value)


def seconds(name: str, value: Any) -> float:
    """A positive duration, from a number of seconds or a `timedelta`."""
    if type(value) is float and 1e-9 <= value <= SECONDS_MAX:
        return value
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


def from_text(name: str, text: str, kind: str) -> Any:
    """An option that is written as text; `kind` is its type as the code says it."""
    if "None" in kind and text.lower() == "none":
        return None
    try:
        if kind.startswith("int"):
            return int(text)
        if kind.startswith("float"):
            return float(text)
    except ValueError:
        raise OptionError(f"{name}={text!r} is not a number") from None
    if kind == "bool":
        if text.lower() not in ("true", "false", "1", "0"):
            raise OptionError(f"{name}={text!r} must be true or false")
        return text.lower() in ("true", "1")
    return text
