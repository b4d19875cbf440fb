"""Several changes in one frame: records of topics, and what consumer groups do with theirs.

This is what batches and dead letters are made of. Everything enters the log together, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.log.crossing import Crossing
from stratalog.log.group import Entry, Group
from stratalog.log.joint import Joint, Multi
from stratalog.log.topic import TopicLog
from stratalog.projections.settling import Settlement

Remake = Callable[[int], list[Entry]]


class Records(NamedTuple):
    """Records of one topic, encoded."""

    log: TopicLog
    entries: list[Entry]
    remake: Remake | None
    """Makes them again with no time below a later floor; None if they bring no times."""


class Atomic:
    """Changes that are to be committed together."""

    def __init__(
        self, crossing: Crossing, records: Sequence[Records], settlements: Sequence[Settlement]
    ) -> None:
        self._crossing = crossing
        self._records = records
        self._settlements = settlements
        logs = [*(one.log for one in records), *(one.topic for one in settlements)]
        self.topics = list(dict.fromkeys(logs))
        """All that are involved; the frame goes into the shard of the first."""
        self.bases: list[int] = []
        """Where the records of each topic begin, once they have their offsets."""

    @property
    def rank(self) -> int:
        """The strictest class of the topics."""
        return max(topic.rank for topic in self.topics)

    def commit(self, rank: int) -> None:
        """Return once everything is as durable as a class promises; raises what went wrong."""
        if self._is_plain:
            records = self._records[0]
            first, _ = records.log.append_entries(records.entries, rank, records.remake)
            self.bases = [first]
            return
        taken: list[Settlement] = []
        try:
            for settlement in self._settlements:
                taken.append(settlement)
                settlement.take()
            self._crossing.commit(self.topics, self._make, rank)
        except BaseException:
            self._fail(taken)
            raise
        for settlement in taken:
            settlement.finish()

    def enter(self, rank: int, *, is_left: bool) -> Group | None:
        """Commit without waiting: returns the group that has it; None if one has to wait.

        `is_left` leaves the group to the ticker, if nobody leads it before.
        """
        if self._is_plain:
            log, entries, remake = self._records[0]
            group, first, _ = log.enter(entries, rank, remake, is_left)
            self.bases = [first]
            return group
        if self._crossing.is_needed(self.topics):
            return None
        taken: list[Settlement] = []
        try:
            for settlement in self._settlements:
                taken.append(settlement)
                settlement.take()
            return self._crossing.enter(self.topics, self._make, rank, is_left=is_left)
        except BaseException:
            self._fail(taken)
            raise

    def finish(self) -> None:
        """Take in what became of it, after a group that was entered is committed."""
        for settlement in self._settlements:
            settlement.finish()

    @property
    def _is_plain(self) -> bool:
        return len(self._records) == 1 and not self._settlements

    def _fail(self, taken: Sequence[Settlement]) -> None:
        for settlement in taken:
            settlement.failed()
            settlement.finish()

    def _make(self) -> Joint:
        """Give all records their offsets; the locks of all the topics' shards are held."""
        entered: list[Entry] = []
        self.bases = []
        for log, entries, remake in self._records:
            placed = log.place(entries, remake)
            self.bases.append(log.next_offset)
            log.next_offset = placed[-1].base_offset + placed[-1].count
            log.last_timestamp = placed[-1].max_timestamp
            entered += placed
        return Multi(entered, self.topics, self._settlements)
