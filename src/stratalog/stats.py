"""Numbers about a store."""

from __future__ import annotations

from stratalog.format.store import VERSION, StoreFile
from stratalog.fs import FileSystem
from stratalog.log.log import Log
from stratalog.projections.adopt import rejected
from stratalog.projections.catalog import Catalog
from stratalog.projections.replay import Replay
from stratalog.reports import StoreStats
from stratalog.upkeep import Upkeep


def store_stats(
    fs: FileSystem,
    path: str,
    store_file: StoreFile,
    catalog: Catalog,
    replay: Replay,
    log: Log | None,
    upkeep: Upkeep | None,
    damage: str | None,
    *,
    read_only: bool,
) -> StoreStats:
    """Numbers about an open store, taken from memory."""
    topics = catalog.topics()
    shards = [] if log is None else log.shards
    torn = [] if log is None else log.torn
    return StoreStats(
        path=path,
        identity=store_file.identity.hex(),
        format_version=VERSION,
        read_only=read_only,
        topics=len(topics),
        records=sum(topic.committed - topic.earliest for topic in topics),
        bytes=sum(t.index.total_bytes() + t.history.total_bytes() for t in topics),
        shards=len(shards) or len(replay.scanners),
        commits=sum(shard.commits for shard in shards),
        committed_frames=sum(shard.committed_entries for shard in shards),
        syncs=sum(shard.files.syncs for shard in shards),
        replayed_frames=replay.frames,
        torn_bytes=sum(tail.bytes for tail in torn),
        memory={} if log is None else log.budget.used(),
        checkpoints=0 if upkeep is None else upkeep.checkpoints,
        snapshots=0 if upkeep is None else upkeep.snapshots,
        damage=damage,
        rejected=rejected(fs, path),
        upkeep=None if upkeep is None else upkeep.failure,
    )
