"""The values users hold: records, gaps, durability classes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})
"""What `Record.headers` is when a record has none: one shared, empty, read-only mapping."""


class Durability(enum.StrEnum):
    """What an acknowledged append has survived, from least to most."""

    EPHEMERAL = "ephemeral"
    """Never written; the topic and its next offset outlive the process, the records do not."""
    MEMORY = "memory"
    """Written when convenient, at the latest after `sync_interval`."""
    DISK = "disk"
    """Written within `flush_interval`, synced within `sync_interval`; nobody waits for either."""
    FSYNC = "fsync"
    """Acknowledged means on the disk."""


class Operation(enum.IntEnum):
    """What a record does to its key."""

    PUT = 0
    DELETE = 1


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record, as it was read or as it is to be appended.

    `offset` and `timestamp` are assigned by the log; a `timestamp` given on the way in is kept
    unless it would go back in time. `None` and `b""` are different keys and values.
    """

    value: bytes | None = None
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    tag: str | None = None
    node: str | None = None
    timestamp: int = 0
    """Nanoseconds since 1970; 0 on the way in means now."""
    offset: int = -1
    """Place in the topic, from 0; -1 until appended."""
    priority: int = 0
    """0 to 255, 0 is most urgent."""
    expires_at: int = 0
    """Nanoseconds since 1970 after which the record is gone; 0 is never."""
    not_before: int = 0
    """Nanoseconds since 1970 before which a queue does not deliver it; 0 is at once."""
    operation: int = 0
    """An `Operation`: put, or delete of the key."""


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Offsets `first` to `last` (both included) that cannot be read, and why."""

    first: int
    last: int
    reason: str
    """`ephemeral` (never written), `expired` (past its time to live), `evicted` (by retention) or
    `damaged` (given up by a repair)."""


class Diff(msgspec.Struct, frozen=True):
    """What is new in a topic for somebody who has seen it up to an offset."""

    records: list[Record]
    next: int
    """Where to go on: what to give as `after` the next time."""
    newest: int
    """The newest offset there is; -1 in an empty topic."""
    earliest: int
    """The first offset that can still be read."""
    caught_up: bool
    """Whether `next` is the newest."""
    gap: Gap | None
    """Records that went before they were seen: evicted, or given up by a repair."""
    cold_segments_read: int
    """How many segments had to be read from the cold store."""


class CompactionReport(msgspec.Struct, frozen=True):
    """What `store.compact()` did."""

    segments_removed: int
    bytes_freed: int
    """By removing segments and by rewriting them."""
    segments_moved: int
    """To the cold store."""


class TopicStats(msgspec.Struct, frozen=True):
    """Numbers about one topic."""

    name: str
    id: int
    earliest: int
    next_offset: int
    records: int
    bytes: int
    """In segments and in the log, headers included."""
    frames: int
    """In the log, not yet in a segment."""
    newest_timestamp: int
    durability: str
    compression: str
    epoch: int
    """How many topics of this name were dropped before it."""
    segments: int
    cold_segments: int
    deleted: int
    """Records that were deleted one by one, or by their tag."""
    evicted_below: int
    """Below this offset, records went by themselves."""


class StoreStats(msgspec.Struct, frozen=True):
    """Numbers about an open store."""

    path: str
    identity: str
    format_version: int
    read_only: bool
    topics: int
    records: int
    bytes: int
    """Of all topics, in segments and in the log."""
    shards: int
    commits: int
    """Groups written since the store was opened."""
    committed_frames: int
    syncs: int
    replayed_frames: int
    """Frames read when the store was opened."""
    torn_bytes: int
    """Unfinished bytes that were cut off when the store was opened."""
    memory: dict[str, int]
    """Bytes that are held, by share of the memory budget."""
    checkpoints: int
    snapshots: int
    """Both since the store was opened."""
    damage: str | None
    """Why the store takes no writes, if it does not."""
    upkeep: str | None
    """What went wrong in the background, if anything did; it is tried again."""
    rejected: dict[str, str] = {}
    """Batches that were published and could not be adopted: the file each is kept in, and why."""


class BackupReport(msgspec.Struct, frozen=True):
    """What a backup did."""

    path: str
    topics: int
    records: int
    bytes_linked: int
    """Of sealed segments that are one file with two names, and took no space."""
    bytes_copied: int
    files: int
    positions: dict[int, int]
    """Per shard, the lsn up to which the copy has the log."""
    cold_segments: int
    """Segments that are not in the copy: it reads them from the same cold store."""
    cold: str
    """Address of that cold store; empty if none of it is needed."""
    duration_seconds: float
