"""Snapshot files: the newest that can be read is where a store starts from.

Owns: `snapshots/`; two of them, so that a damaged one costs nothing but a longer replay.

Invariants:
- A snapshot has its name only once all its bytes are durable.
- The log is given up only below the position of the older of the two.

Crash: a `.tmp` is removed by the next writer; the snapshots before it are untouched.
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
    LogState,
    QueueSnapshot,
    QueuesState,
    Snapshot,
    TopicState,
    decode_snapshot,
    encode_snapshot,
)
from stratalog.fs import FileSystem
from stratalog.log.topic import TopicLog

if TYPE_CHECKING:
    from stratalog.projections.catalog import Catalog
    from stratalog.projections.replay import Replay

logger = logging.getLogger("stratalog")

_KEPT = 2


class SnapshotFiles:
    """The snapshots of a store."""

    def __init__(self, fs: FileSystem, root: str, identity: bytes) -> None:
        self._fs = fs
        self._root = root
        self._directory = snapshots_path(root)
        self._identity = identity
        self.bad: dict[int, str] = {}
        """Snapshots that cannot be read, and why."""
        self.good: dict[int, LogState] = {}
        """Snapshots that can be, and the positions they are at."""

    def load(self) -> Snapshot | None:
        """The newest snapshot that can be read."""
        self.bad.clear()
        self.good.clear()
        newest: Snapshot | None = None
        for number in sorted(self._numbers(), reverse=True):
            path = snapshot_path(self._root, number)
            try:
                snapshot = self._read(number)
            except FileNotFoundError:
                continue  # the writer beside us has replaced it
            except UnsupportedVersionError as error:
                raise UnsupportedVersionError(f"{path}: {error}") from error
            except FormatError as error:
                self.bad[number] = f"{path}: {error}"
                logger.warning("%s: %s; the one before it is used", path, error)
                continue
            self.good[number] = snapshot.log
            newest = newest or snapshot
        return newest

    def has_newer(self) -> bool:
        """Whether there is one that came after those which were loaded."""
        known = max([0, *self.good, *self.bad])
        return max([0, *self._numbers()]) > known

    def problems(self) -> list[str]:
        """What is wrong, unless there is a snapshot all the same."""
        return [] if self.good else list(self.bad.values())

    def write(
        self,
        log: LogState,
        catalog: CatalogState,
        created_at: int,
        groups: GroupsState | None = None,
        queues: QueuesState | None = None,
    ) -> None:
        """Make a snapshot, durably, and remove those that are no longer needed."""
        number = max([0, *self._numbers()]) + 1
        temp = snapshot_path(self._root, number, ".tmp")
        data = encode_snapshot(
            Snapshot(
                number, created_at, self._identity, log, catalog,
                groups or GroupsState(), queues or QueuesState(),
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
        # One that cannot be read is none of the two: it would take the place of one that can.
        kept = sorted(self.good)[-_KEPT:]
        for old in self._numbers():
            if old not in kept:
                # In this order: Ctrl-C in between leaves a file, which the next one removes.
                self.good.pop(old, None)
                self.bad.pop(old, None)
                self._fs.unlink(snapshot_path(self._root, old))

    def clean(self) -> None:
        """Remove what a crash left unfinished."""
        for name in self._fs.listdir(self._directory):
            number = parse_numbered(name, ".tmp")
            if number is not None:
                self._fs.unlink(snapshot_path(self._root, number, ".tmp"))

    def released(self) -> dict[int, int]:
        """Per shard, the lsn below which no snapshot needs the log; none before there are two."""
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
        if snapshot.identity != self._identity:
            raise FormatError("it is of another store")
        if snapshot.number != number:
            raise FormatError(f"it is number {snapshot.number}")
        return snapshot


def capture(topic: TopicLog) -> TopicState:
    """A topic as it is; what is committed while this runs may be in it or not."""
    history = topic.history
    # The log behind the snapshot's position has everything newer, so the order does not matter,
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
) -> tuple[CatalogState, GroupsState, QueuesState]:
    """Everything as it is, while topics come and go.

    One that is not in here is made by its frame, which is behind the snapshot's position: no number
    may say that it was there, and went. One that is in here is dropped by its frame, unless it was
    dropped already: then nothing of it may be.
    """
    next_topic_id = replay.next_topic_id
    topics = catalog.topics()
    states = [capture(topic) for topic in topics]
    groups, queues = capture_groups(topics)
    dropped = set(replay.dropped)
    state = CatalogState(
        next_topic_id=next_topic_id,
        epochs=dict(replay.epochs),  # behind `dropped`, whose frames raise none any more
        cold=replay.pool.cold_location,
        topics=[state for state in states if state.id not in dropped],
        dropped=sorted(dropped),
        writers=dict(replay.writers.newest),
        once=list(replay.writers.once),
    )
    return state, groups, queues


def capture_groups(topics: Iterable[TopicLog]) -> tuple[GroupsState, QueuesState]:
    """The consumer groups of topics; what they say is durable once the log is synced after this."""
    groups: list[GroupSnapshot] = []
    queues: list[QueueSnapshot] = []
    for topic in topics:
        found, queue = topic.groups.capture()
        groups += found
        if queue is not None:
            queues.append(queue)
    return GroupsState(groups), QueuesState(queues)
