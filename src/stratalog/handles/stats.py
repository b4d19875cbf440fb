"""Numbers about a store."""

from __future__ import annotations

from stratalog.format.store import VERSION, StoreFile
from stratalog.fs import FileSystem
from stratalog.log.log import Log
from stratalog.reports import StoreStats
from stratalog.state.catalog import Catalog
from stratalog.state.recovery import Replay
from stratalog.upkeep.adopt import rejected
from stratalog.upkeep.rounds import Upkeep
from stratalog.upkeep.routes import missing
from stratalog.upkeep.schedules import missing as missing_queue


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
    """Collect numbers about an open store, from memory."""
    topics = catalog.topics()
    shards = [] if log is None else log.shards
    torn = [] if log is None else log.torn
    return StoreStats(
        path=path,
        identity=store_file.identity.hex(),
        format_version=VERSION,
        read_only=read_only,
        topics=len(topics),
        records=sum(topic.history.count(topic.earliest, topic.committed) for topic in topics),
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
        upkeep=None if upkeep is None else failure_of(upkeep),
        cold=None if upkeep is None else upkeep.mover.waiting(),
        routes=len(replay.routes.all()),
        failed_routes=failed_routes(replay, upkeep),
        schedules=len(replay.schedules.all()),
        failed_schedules=failed_schedules(replay, catalog, upkeep),
    )


def failure_of(upkeep: Upkeep) -> str | None:
    """Return the last error in the background, if any."""
    return upkeep.failure or upkeep.mover.failure or upkeep.lake.failure


def failed_routes(replay: Replay, upkeep: Upkeep | None) -> dict[str, str]:
    """Return the routes that do not forward, with the reason."""
    found: dict[str, str] = {}
    for route in replay.routes.all():
        problem = missing(replay, route) if upkeep is None else upkeep.forwarder.problem(route)
        if problem is not None and route.body is not None:
            found[f"{route.body.source_name} -> {route.body.destination_name}"] = problem
    return found


def failed_schedules(replay: Replay, catalog: Catalog, upkeep: Upkeep | None) -> dict[str, str]:
    """Schedules that put nothing, and why."""
    found: dict[str, str] = {}
    for one in replay.schedules.all():
        problem = missing_queue(catalog, one) if upkeep is None else upkeep.scheduler.problem(one)
        if problem is not None and one.body is not None:
            found[one.body.name] = problem
    return found
