"""Reports of a store, a topic, a group and a queue: their state, and what was done to them."""

from __future__ import annotations

import msgspec


class PurgeReport(msgspec.Struct, frozen=True):
    """The result of a purge, and what it could not reach."""

    segments_rewritten: int
    records_removed: int
    """Records that could no longer be read, and whose bytes were still in segments."""
    log_files_removed: int
    staged_files_removed: int
    """Copies of the store's own records in `incoming/`, which jobs had left there."""
    quarantine_files_removed: int
    unreached: list[str]
    """Places that were found to hold removed bytes, or that may, and are not the store's to change:
    one sentence each. Empty if there are none."""
    unknown: list[str]
    """Places that a store cannot find out about, one sentence each; always the same."""


class CompactionReport(msgspec.Struct, frozen=True):
    """The result of `store.compact()`."""

    segments_removed: int
    bytes_freed: int
    """By removing segments and by rewriting them."""
    segments_moved: int
    """To the cold store."""
    purge: PurgeReport | None = None
    """The result of `store.compact(purge=True)` besides."""


class TopicStats(msgspec.Struct, frozen=True):
    """Numbers about one topic."""

    name: str
    id: int
    earliest: int
    next_offset: int
    records: int
    """Those that can be read: neither deleted, nor compacted away, nor lost."""
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
    open_records: int = 0
    """Records that are not in a sealed segment yet. Retention, compaction and the return of space
    leave them alone until their segment is sealed, by its size or age, or by `store.compact()`."""
    created_at: int = 0
    """Nanoseconds since 1970."""


class SegmentStats(msgspec.Struct, frozen=True):
    """One segment of a topic, in short. Times are nanoseconds since 1970."""

    first: int
    """The first offset that it answers for."""
    end: int
    """The offset after the last one."""
    records: int
    bytes: int
    oldest_timestamp: int
    newest_timestamp: int
    created_at: int
    state: str
    """`open`, `sealed`, or `cold`."""


class PendingEntry(msgspec.Struct, frozen=True):
    """A record that was delivered and is not acknowledged yet."""

    offset: int
    consumer: str
    """Empty when it was given back."""
    delivery_count: int
    delivered_at: int
    deadline: int
    """All times are nanoseconds since 1970."""


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer of a group."""

    name: str
    pending: int
    seen_at: int
    """When it was last heard of, in nanoseconds since 1970; 0 if not since the store was opened."""


class GroupStats(msgspec.Struct, frozen=True):
    """Numbers about one consumer group."""

    topic: str
    name: str
    mode: str
    lag: int
    """Records that are not acknowledged yet."""
    pending: int
    """How many of these a consumer holds."""
    floor: int
    """Everything below this offset is acknowledged."""
    deliveries: int
    consumed: int
    consumers: int


class QueueStats(msgspec.Struct, frozen=True):
    """Numbers about one queue."""

    name: str
    waiting: int
    """Messages that can be got now."""
    delayed: int
    """Messages whose time has not come: put with a delay, or given back with one."""
    pending: int
    """Messages that consumers hold."""
    dead: int
    """Messages among the dead letters."""
    floor: int
    next_offset: int
    oldest_timestamp: int
    """Nanoseconds since 1970 when the oldest message that is left was put; 0 for none."""
    deliveries: int
    consumed: int
    """Acknowledged, expired, and moved to the dead letters."""
    expired: int
    duplicates: int
    """Both since the store was opened."""
    dedup_entries: int
    durability: str
    delivery: str
    bytes: int = 0
    """Bytes of its messages, in segments and in the log, and of consumed ones that are kept."""
    segments: int = 0
    created_at: int = 0
    updated_at: int = 0
    """When the queue was made, and when the newest message was put; nanoseconds since 1970."""


class RouteStats(msgspec.Struct, frozen=True):
    """Numbers about one route."""

    id: int
    source: str
    destination: str
    tag_glob: str | None
    key_prefix: bytes | None
    node: str | None
    state: str
    """`running`, `paused`, or `failed`."""
    error: str | None
    """Why it does not forward, if it does not; a failure that may pass is tried again."""
    cursor: int
    """Offset of the source that comes next."""
    lag: int
    """Offsets of the source that it has not dealt with."""
    forwarded: int
    """Records, since it was made."""
    missed: int
    """Offsets of the source that were gone before they could be forwarded."""
    created_at: int
    """Nanoseconds since 1970."""


class ScheduleStats(msgspec.Struct, frozen=True):
    """Numbers about one schedule. Times are nanoseconds since 1970."""

    id: int
    name: str
    queue: str
    cron: str | None
    every: float | None
    """Seconds between due times, if there is no `cron`."""
    timezone: str | None
    state: str
    """`running`, `paused`, or `failed`."""
    error: str | None
    """Why it puts nothing, if it does not; a failure that may pass is tried again."""
    next_due: int | None
    last_due: int | None
    """The due time of the newest message."""
    fired: int
    """Messages, since it was made."""
    created_at: int


class StoreStats(msgspec.Struct, frozen=True):
    """Numbers about an open store."""

    path: str
    identity: str
    format_version: int
    read_only: bool
    topics: int
    records: int
    bytes: int
    """Bytes of all topics, in segments and in the log."""
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
    """The error of the background work, if there was one; it is tried again."""
    cold: str | None = None
    """A call to the cold store without an answer for seconds; the store goes on."""
    rejected: dict[str, str] = {}
    """Batches that were published and could not be adopted: the file each is kept in, and why."""
    routes: int = 0
    failed_routes: dict[str, str] = {}
    """Routes that do not forward, as `source -> destination`, and why."""
    schedules: int = 0
    failed_schedules: dict[str, str] = {}
    """Schedules that put nothing, by name, and why."""


class BackupReport(msgspec.Struct, frozen=True):
    """The result of a backup."""

    path: str
    topics: int
    records: int
    bytes_linked: int
    """Bytes of sealed segments that are one file with two names, and took no space."""
    bytes_copied: int
    files: int
    positions: dict[int, int]
    """Per shard, the lsn up to which the copy has the log."""
    cold_segments: int
    """Segments that are not in the copy: it reads them from the same cold store."""
    cold: str
    """Address of that cold store; empty if none of it is needed."""
    duration_seconds: float
