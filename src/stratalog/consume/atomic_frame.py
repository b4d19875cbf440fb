"""Several changes in one frame: records of topics, and changes of consumer groups.

Batches and dead letters are written this way. Everything enters the log together, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.consume.batch_changes import GroupChanges
from stratalog.log.append import Remake, append_entries, enter_entries, place_entries
from stratalog.log.commit_group import Entry, Group
from stratalog.log.cross_shard import CrossShard
from stratalog.log.joint import JointFrame, MultiFrame
from stratalog.log.topic import TopicLog


class Records(NamedTuple):
    """Records of one topic, encoded."""

    log: TopicLog
    entries: list[Entry]
    remake: Remake | None
    """Encodes them again with no time below a later floor; None if they bring no times."""


class AtomicFrame:
    """Changes that are to be committed together."""

    def __init__(
        self,
        cross_shard: CrossShard,
        records: Sequence[Records],
        group_changes: Sequence[GroupChanges],
        check: Callable[[], None] | None = None,
    ) -> None:
        self._cross_shard = cross_shard
        self._records = records
        self._group_changes = group_changes
        self._check = check
        """Called with the locks of all shards held, before offsets are given out; may raise."""
        logs = [*(one.log for one in records), *(one.topic for one in group_changes)]
        self.topics = list(dict.fromkeys(logs))
        """All topics involved; the frame goes into the shard of the first."""
        self.bases: list[int] = []
        """Where the records of each topic begin, once they have their offsets."""

    @property
    def rank(self) -> int:
        """The strictest class of the topics."""
        return max(topic.rank for topic in self.topics)

    def commit(self, rank: int) -> None:
        """Return once everything is as durable as a class promises; raises the error."""
        if self._is_plain:
            records = self._records[0]
            first, _ = append_entries(records.log, records.entries, rank, records.remake)
            self.bases = [first]
            return
        taken: list[GroupChanges] = []
        try:
            for changes in self._group_changes:
                taken.append(changes)
                changes.take()
            self._cross_shard.commit(self.topics, self._make, rank)
        except BaseException:
            self._fail(taken)
            raise
        for changes in taken:
            changes.finish()

    def enter(self, rank: int, *, is_left: bool) -> Group | None:
        """Commit without waiting; returns the commit group, or None if that would have to wait.

        `is_left` leaves the group to the ticker, unless another thread leads it before.
        """
        if self._is_plain:
            log, entries, remake = self._records[0]
            group, first, _ = enter_entries(log, entries, rank, remake, is_left)
            self.bases = [first]
            return group
        if self._cross_shard.is_needed(self.topics):
            return None
        taken: list[GroupChanges] = []
        try:
            for changes in self._group_changes:
                taken.append(changes)
                changes.take()
            return self._cross_shard.enter(self.topics, self._make, rank, is_left=is_left)
        except BaseException:
            self._fail(taken)
            raise

    def finish(self) -> None:
        """Take in the outcome, after the group that it entered is committed."""
        for changes in self._group_changes:
            changes.finish()

    @property
    def _is_plain(self) -> bool:
        return len(self._records) == 1 and not self._group_changes and self._check is None

    def _fail(self, taken: Sequence[GroupChanges]) -> None:
        for changes in taken:
            changes.failed()
            changes.finish()

    def _make(self) -> JointFrame:
        """Give all records their offsets; the locks of all the topics' shards are held."""
        if self._check is not None:
            self._check()
        entered: list[Entry] = []
        self.bases = []
        for log, entries, remake in self._records:
            first, placed = place_entries(log, entries, remake)
            self.bases.append(first)
            entered += placed
        return MultiFrame(entered, self.topics, self._group_changes)
