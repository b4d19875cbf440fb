"""The plan of a backup: which files, and how much of each.

Log files are recycled in place and so never linked; a sealed segment never changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from stratalog.clock import Clock
from stratalog.format.names import log_file_path, parse_numbered, shard_path, snapshot_path
from stratalog.format.segment import Summary
from stratalog.format.store import StoreFile
from stratalog.fs import FileSystem
from stratalog.log.log import Log
from stratalog.log.shard import Shard
from stratalog.log.topic import TopicLog
from stratalog.state.catalog import Catalog
from stratalog.state.recovery import Replay
from stratalog.upkeep.rounds import Upkeep


class Source(NamedTuple):
    """The parts of an open store."""

    fs: FileSystem
    root: str
    store_file: StoreFile
    log: Log
    replay: Replay
    catalog: Catalog
    upkeep: Upkeep
    clock: Clock
    reserve_bytes: int
    """Bytes that are to stay free on the target's disk, which may be the store's own."""


class Topic(NamedTuple):
    """A topic at the captured position."""

    name: str
    earliest: int
    end: int
    is_ephemeral: bool


class Sealed(NamedTuple):
    """A sealed segment, to be found in the copy as it was."""

    topic_id: int
    summary: Summary


class Piece(NamedTuple):
    """A file of the copy, or as much of it as belongs there."""

    path: str
    """From the store's directory on, and from the copy's."""
    bytes: int
    sealed: Sealed | None = None


class Plan:
    """A store at one position of its log, and the files that hold it; its upkeep stands still."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._fs = source.fs
        self.topics: dict[int, Topic] = {}
        self._logs: list[TopicLog] = []
        self.positions = source.log.freeze(self._capture)
        """Per shard, the lsn up to which the copy has the log."""
        self.cold_segments = 0
        self.has_cold = any(topic.history.cold for topic in source.catalog.topics())
        """Whether the copy may refer to objects of the cold store."""
        self.pieces = [*self._snapshots(), *self._segments(), *self._log()]
        self.bytes = sum(piece.bytes for piece in self.pieces)

    def _capture(self, shard: Shard) -> None:
        """Remember what a shard's topics hold; nothing is added to it meanwhile."""
        for topic in self._source.catalog.topics():
            if topic.shard is shard:
                # Also if it is dropped from here on: the copy has it, and its files stay meanwhile.
                self._logs.append(topic)
                self.topics[topic.id] = Topic(
                    topic.name, topic.earliest, topic.committed, topic.is_ephemeral
                )

    def _snapshots(self) -> Iterator[Piece]:
        for number in sorted(self._source.replay.snapshots.good):
            file = self._fs.open(snapshot_path(self._source.root, number), "read")
            try:
                yield Piece(self._relative(file.path), file.size())
            finally:
                file.close()

    def _segments(self) -> Iterator[Piece]:
        pool = self._source.replay.pool
        for topic in self._logs:
            for segment in topic.history.chain.segments:
                summary = segment.summary
                if segment.is_cold:
                    self.cold_segments += 1
                    continue
                path = pool.path(topic.id, summary.first_offset, summary.state)
                sealed = None if segment.is_open else Sealed(topic.id, summary)
                yield Piece(self._relative(path), summary.bytes, sealed)

    def _log(self) -> Iterator[Piece]:
        snapshots = self._source.replay.snapshots.good.values()
        for number, end in self.positions.items():
            start = min((state.shards.get(number, 0) for state in snapshots), default=0)
            directory = shard_path(self._source.root, number)
            names = self._fs.listdir(directory)
            found = sorted(lsn for name in names if (lsn := parse_numbered(name)) is not None)
            oldest = max(lsn for lsn in found if lsn <= start)
            # Also a file that has nothing yet: it says where the shard goes on.
            lsns = [lsn for lsn in found if oldest <= lsn <= end]
            for lsn, following in pairwise([*lsns, end]):
                yield Piece(self._relative(log_file_path(directory, lsn)), following - lsn)

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._source.root)
