"""Snapshot files: recovery starts from the newest one that can be read.

Owns: `snapshots/`; two of them, so that a damaged one costs only a longer recovery.

Invariants:
- A snapshot has its name only once all its bytes are durable.
- The log is released only below the position of the older of the two.

Crash: the next writer removes a `.tmp`; earlier snapshots are untouched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stratalog.errors import FormatError, UnsupportedVersionError
from stratalog.format.names import parse_numbered, snapshot_path, snapshots_path
from stratalog.format.segment import encode_summaries
from stratalog.format.snapshot import (
    CatalogState,
    GroupSnapshot,
    GroupsState,
    LakeSnapshot,
    LakesState,
    LogState,
    ProjectionSnapshot,
    ProjectionsState,
    QueueSnapshot,
    QueuesState,
    RoutesState,
    SchedulesState,
    Snapshot,
    TopicState,
    decode_snapshot,
    encode_snapshot,
)
from stratalog.fs import FileSystem
from stratalog.log.topic import TopicLog

if TYPE_CHECKING:
    from stratalog.state.catalog import Catalog
    from stratalog.state.recovery import Replay

logger = logging.getLogger("stratalog.recovery")

_KEPT = 2


class SnapshotFiles:
    """The snapshots of a store."""

    def __init__(self, fs: FileSystem, root: str, identity: bytes) -> None:
        self._fs = fs
        self._root = root
        self._directory = snapshots_path(root)
        self.identity = identity
        self.bad: dict[int, str] = {}
        """Unreadable snapshots, with the reason."""
        self.good: dict[int, LogState] = {}
        """Readable snapshots, with their positions."""

    def load(self) -> Snapshot | None:
        """Load the newest snapshot that can be read."""
        self.bad.clear()
        self.good.clear()
        newest: Snapshot | None = None
        for number in sorted(self._numbers(), reverse=True):
            path = snapshot_path(self._root, number)
            try:
                snapshot = self._read(number)
            except FileNotFoundError:
                continue  # a concurrent writer has replaced it
            except UnsupportedVersionError as error:
                raise UnsupportedVersionError(f"{path}: {error}") from error
            except FormatError as error:
                self.bad[number] = f"{path}: {error}"
                logger.warning(
                    "%s: %s; the one before it is used",
                    path,
                    error,
                    extra={"file": path, "error": str(error)},
                )
                continue
            self.good[number] = snapshot.log
            newest = newest or snapshot
        return newest

    def has_newer(self) -> bool:
        """Return whether there is a newer one than those that were loaded."""
        known = max([0, *self.good, *self.bad])
        return max([0, *self._numbers()]) > known

    def problems(self) -> list[str]:
        """List the problems, unless a snapshot could be read all the same."""
        return [] if self.good else list(self.bad.values())

    def write(
        self,
        log: LogState,
        catalog: CatalogState,
        created_at: int,
        groups: GroupsState | None = None,
        queues: QueuesState | None = None,
        projections: ProjectionsState | None = None,
        routes: RoutesState | None = None,
        lakes: LakesState | None = None,
        schedules: SchedulesState | None = None,
    ) -> None:
        """Write a snapshot, durably, and remove those that are no longer needed."""
        number = max([0, *self._numbers()]) + 1
        temp = snapshot_path(self._root, number, ".tmp")
        data = encode_snapshot(
            Snapshot(
                number, created_at, self.identity, log, catalog,
                groups or GroupsState(), queues or QueuesState(),
                projections or ProjectionsState(), routes or RoutesState(),
                lakes or LakesState(), schedules or SchedulesState(),
            )
        )  # fmt: skip
        self._fs.makedirs(self._directory)
        self._fs.unlink(temp)
        file = self._fs.open(temp, "create")
        try:
            file.pwrite([data], 0)
            file.fdatasync()
        finally:
            file.close()
        self._fs.rename(temp, snapshot_path(self._root, number))
        self._fs.sync_dir(self._directory)
        self.good[number] = log
        # An unreadable one does not count: it would take the place of a readable one.
        kept = sorted(self.good)[-_KEPT:]
        for old in self._numbers():
            if old not in kept:
                # In this order: Ctrl-C in between leaves a file, which the next call removes.
                self.good.pop(old, None)
                self.bad.pop(old, None)
                self._fs.unlink(snapshot_path(self._root, old))

    def clean(self) -> None:
        """Remove unfinished files after a crash."""
        for name in self._fs.listdir(self._directory):
            number = parse_numbered(name, ".tmp")
            if number is not None:
                self._fs.unlink(snapshot_path(self._root, number, ".tmp"))

    def released(self) -> dict[int, int]:
        """Return per shard the lsn below which no snapshot needs the log; empty without two."""
        if len(self.good) < _KEPT:
            return {}
        states = [self.good[number].shards for number in sorted(self.good)[-_KEPT:]]
        common = set(states[0]).intersection(*states)
        return {shard: min(state[shard] for state in states) for shard in common}

    def _numbers(self) -> list[int]:
        names = self._fs.listdir(self._directory)
        return [number for name in names if (number := parse_numbered(name, ".snap")) is not None]

    def _read(self, number: int) -> Snapshot:
        file = self._fs.open(snapshot_path(self._root, number), "read")
        try:
            snapshot = decode_snapshot(file.pread(file.size(), 0))
        finally:
            file.close()
        if snapshot.identity != self.identity:
            raise FormatError("it is of another store")
        if snapshot.number != number:
            raise FormatError(f"it is number {snapshot.number}")
        return snapshot


def capture(topic: TopicLog) -> TopicState:
    """Capture a topic; commits while this runs may or may not be included."""
    history = topic.history
    # The log after the snapshot's position has everything newer, so the order does not matter,
    # except that no segment may be missing below `checkpointed`.
    checkpointed = history.checkpointed
    return TopicState(
        id=topic.id,
        name=topic.name,
        kind=topic.kind,
        created_at=topic.created_at,
        epoch=topic.epoch,
        version=topic.version,
        options=topic.options.to_dict(),
        next_offset=topic.reserved if topic.is_ephemeral else checkpointed,
        last_timestamp=topic.last_timestamp,
        earliest=topic.earliest,
        evicted_below=history.evicted_below,
        evicted_reason=history.evicted_reason,
        reservation=topic.reservation,
        checkpointed=checkpointed,
        deleted=history.deleted.serialize(),
        lost=history.lost.serialize(),
        segments=encode_summaries(history.summaries()),
    )


def capture_store(
    replay: Replay, catalog: Catalog
) -> tuple[CatalogState, GroupsState, QueuesState, ProjectionsState]:
    """Capture the whole store, while topics are created and dropped.

    A topic that is not included is created by its frame, which is after the snapshot's position: no
    number may count it as dropped. A topic that is included is dropped by its frame, unless it was
    dropped before: then nothing of it may be included.
    """
    next_topic_id = replay.next_topic_id
    topics = catalog.topics()
    states = [capture(topic) for topic in topics]
    groups, queues = capture_groups(topics)
    projections = capture_projections(topics)
    dropped = set(replay.dropped)
    state = CatalogState(
        next_topic_id=next_topic_id,
        epochs=dict(replay.epochs),  # after `dropped`, whose frames no longer raise an epoch
        cold=replay.pool.cold_location,
        topics=[state for state in states if state.id not in dropped],
        dropped=sorted(dropped),
        writers=dict(replay.writers.newest),
        once=list(replay.writers.once),
        objects=object_names(topics),
        crashed={
            topic.id: topic.history.crashed.serialize()
            for topic in topics
            if topic.history.crashed and topic.id not in dropped
        },
    )
    return state, groups, queues, projections


def capture_projections(topics: Iterable[TopicLog]) -> ProjectionsState:
    """Encode the projections of topics; they may have records that are not durable yet."""
    found: list[ProjectionSnapshot] = []
    for topic in topics:
        if topic.projection is not None:
            applied, data = topic.projection.capture()
            if data:
                found.append(ProjectionSnapshot(topic.id, topic.kind, applied, data))
    return ProjectionsState(found)


def capture_lakes(topics: Iterable[TopicLog]) -> LakesState:
    """Capture where the lakes of topics are."""
    return LakesState([
        LakeSnapshot(topic.id, topic.history.lake_floor, topic.history.lake)
        for topic in topics
        if topic.history.lake is not None and not topic.is_dropped
    ])  # fmt: skip


def object_names(topics: Iterable[TopicLog]) -> dict[int, dict[int, str]]:
    """Return the names of cold segments, by topic and first offset."""
    return {topic.id: names for topic in topics if (names := topic.history.object_names())}


def capture_groups(topics: Iterable[TopicLog]) -> tuple[GroupsState, QueuesState]:
    """Capture the consumer groups of topics; durable once the log is synced after this."""
    groups: list[GroupSnapshot] = []
    queues: list[QueueSnapshot] = []
    for topic in topics:
        found, queue = topic.groups.capture()
        groups += found
        if queue is not None:
            queues.append(queue)
    return GroupsState(groups), QueuesState(queues)
