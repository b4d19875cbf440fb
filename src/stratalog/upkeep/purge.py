"""Purge: when it is done, no file of the store holds a byte of a record that is gone.

The log is rotated, everything in it goes to segments, segments are rewritten without what can no
longer be read, two new snapshots make the old log superfluous, and its files are removed. Upkeep
takes these steps in turn; this module has the parts that only a purge needs, and its report.

Nothing is overwritten in place: readers beside it go on with the files they hold, and a backup that
is linked to one keeps it. What that leaves is in the report.

Concurrency: upkeep's lock is held. Appends and reads go on.
Crash: every step may be repeated; deleted records stay deleted, and the next purge begins again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pyroaring import BitMap64

from stratalog.format.control import encode_deletes, encode_floor
from stratalog.format.frame import FrameType
from stratalog.format.names import (
    incoming_path,
    log_path,
    parse_topic,
    quarantine_path,
    snapshots_path,
    topics_path,
)
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.reports import PurgeReport
from stratalog.segments.checkpoint import seal
from stratalog.segments.purge import Gone
from stratalog.segments.retention import remove_files
from stratalog.segments.rewrite import find_replaced, rewrite
from stratalog.state.catalog import Catalog
from stratalog.state.recovery import Replay
from stratalog.state.router import control
from stratalog.upkeep.adopt import Adopter

UNKNOWN = (
    "Readers in other processes keep what they have mapped until they look again.",
    "Backups and other copies of this store that were made before hold what they held.",
    "An object store that keeps versions keeps deleted objects: remove those there.",
    "A file system and a drive may keep the blocks of removed files until they are used again.",
)


class Purge:
    """One purge of a store."""

    def __init__(self, log: Log, replay: Replay, catalog: Catalog, adopter: Adopter) -> None:
        self._log = log
        self._replay = replay
        self._catalog = catalog
        self._adopter = adopter
        self._fs = replay.pool.fs
        self._root = replay.pool.root
        self._linked = [path for path in self._files() if self._fs.links(path) > 1]
        self._segments = 0
        self._records = 0
        self._log_files = 0
        self._staged = self._staged_left = 0
        self._quarantined = 0
        self._objects: list[str] = []
        """Names in the cold store of segments that were rewritten."""

    # --- the log ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Continue in new log files, and recycle none until `end`."""
        self._log.recycles = False
        self._remove_spares()
        self._log.rotate_all()

    def end(self) -> None:
        """Allow log files to be recycled again."""
        self._log.recycles = True

    def _remove_spares(self) -> None:
        self._log_files += self._log.remove_spares()

    # --- topics -----------------------------------------------------------------------------

    def forget_consumed(self, topic: TopicLog) -> None:
        """Remove consumed records of a topic that does not keep them, such as a queue."""
        history, options = topic.history, topic.options
        if (
            options.retention != "consumed"
            or options.retention_records != 0
            or options.retention_segments_min
        ):
            return
        # A snapshot has the valid ids of messages that are in segments.
        consumed = topic.groups.consumed(history.checkpointed)
        consumed.remove_range(0, topic.earliest)
        below = topic.earliest
        if topic.earliest in consumed:
            whole = BitMap64()
            whole.add_range(topic.earliest, history.checkpointed)
            left = whole - consumed
            below = left.min() if left else history.checkpointed
            body = encode_floor(below, "evicted")
            self._log.write([control(topic, FrameType.FLOOR, below, body)])
        consumed.remove_range(0, below)
        bodies = encode_deletes(consumed - history.deleted, topic.batch_bytes_max)
        self._log.write([control(topic, FrameType.DELETE, 0, body) for body in bodies])

    def seal(self, topic: TopicLog, now: int) -> bool:
        """Seal the open segment if something of it is to be removed; returns whether it was."""
        segments = topic.history.chain.segments
        if not segments or not segments[-1].is_open:
            return False
        gone = Gone(topic, now, BitMap64())
        if not topic.options.compact and not gone.count(segments[-1]):
            return False
        seal(topic, now)
        return True

    def rewrite(self, topic: TopicLog, now: int) -> int:
        """Rewrite every segment with something to remove; returns the bytes freed."""
        history = topic.history
        segments = [one for one in history.chain.segments if not one.is_open]
        replaced, due = BitMap64(), 0
        if topic.options.compact and segments:
            replaced, due = find_replaced(topic, segments, now, self._log.budget)
        gone = Gone(topic, now, replaced)
        freed = 0
        # Oldest first: what a deleted key once was goes before the deletion does.
        for segment in segments:
            if gone.count(segment):
                freed += rewrite(topic, segment, gone.dead, now, gone.blank)
                self._segments += 1
                if segment.is_cold:
                    self._objects.append(segment.path)
            history.examined.pop(segment.first, None)
        if topic.options.compact and segments:
            history.compacted_below, history.tombstone_due = segments[-1].end, due
        self._records += gone.records
        return freed

    # --- what is left over ------------------------------------------------------------------

    def clean_up(self) -> None:
        """Remove every file that is no longer needed, durably."""
        self._remove_spares()
        for topic in self._catalog.topics():
            topic.history.clean_up(topic.earliest)
        for name in self._fs.listdir(topics_path(self._root)):
            topic_id = parse_topic(name)
            is_stray = topic_id is not None and topic_id not in self._replay.topics
            if topic_id is not None and is_stray and topic_id < self._replay.next_topic_id:
                remove_files(self._replay.pool, topic_id)
            self._sync(os.path.join(topics_path(self._root), name))
        self._adopter.clean_up()
        self._staged, self._staged_left = self._adopter.remove_copies()
        self._sync(incoming_path(self._root))
        directory = os.path.dirname(quarantine_path(self._root, "x"))
        for path in self._below(directory):
            self._fs.unlink(path)
            self._quarantined += 1
        self._sync(directory)
        self._replay.snapshots.clean()
        self._sync(snapshots_path(self._root))

    def _sync(self, directory: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._fs.sync_dir(directory)

    # --- the account ------------------------------------------------------------------------

    def report(self, own: str | None, lakes: list[str]) -> PurgeReport:
        """Report what was done and what is out of reach, of `lakes` in these sentences.

        `own` is our cold directory.
        """
        unreached = [
            f"{path} had another name: the file that it was, a backup's perhaps, keeps its bytes."
            for path in self._linked
            if self._fs.links(path) < 2
        ]
        unreached += [
            f"{name} in the cold store was put there by an earlier release, or before this store "
            "was copied: a copy may refer to it, and it is not deleted."
            for name in self._objects
            if own is None or not name.startswith(f"{own}/")
        ]
        unreached += lakes
        if self._staged_left:
            unreached.append(
                f"{incoming_path(self._root)}: {self._staged_left} staged files were not adopted. "
                "They are of jobs at work, or of jobs that failed; a day later they are removed."
            )
        return PurgeReport(
            segments_rewritten=self._segments,
            records_removed=self._records,
            log_files_removed=self._log_files,
            staged_files_removed=self._staged,
            quarantine_files_removed=self._quarantined,
            unreached=unreached,
            unknown=list(UNKNOWN),
        )

    def _files(self) -> Iterator[str]:
        """List every file of the store that may hold a record."""
        for directory in (log_path(self._root), topics_path(self._root)):
            for name in self._fs.listdir(directory):
                yield from self._below(os.path.join(directory, name))
        yield from self._below(incoming_path(self._root))

    def _below(self, directory: str) -> list[str]:
        try:
            names = self._fs.listdir(directory)
        except NotADirectoryError:
            return []
        return [os.path.join(directory, name) for name in names]
