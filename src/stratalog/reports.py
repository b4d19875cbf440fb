"""What a store, a topic, a group and a queue say of themselves, and of what was done to them."""

from __future__ import annotations

import msgspec


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
    """Of these, those that somebody holds."""
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
