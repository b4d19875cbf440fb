"""Commits over several shards: one frame, in one shard, with offsets of topics in several.

Topics of one shard are no special case: their joint frame enters the open group like any other,
and no thread waits. For topics of several shards this is the only section of the log that holds
more than one of them. Records of a topic would then be in two shards, and after a crash one shard
could have records that follow ones the other has lost. So, with the commit locks of all these
shards held:

1. With their locks held as well, the open groups are closed and the joint frame gets its offsets.
   Appends continue at once, in new groups after it, which wait for the commit locks.
2. The closed groups are written, and the shards synced: records with smaller offsets are durable.
3. The frame is written to the first topic's shard and synced, whatever its class: records with
   larger offsets cannot become durable before it.
4. It is published in all topics, and the locks are released.

If a step fails, the frame's offsets are given back in all its topics, and the groups after it fail
as well, because their offsets follow.

Locks, in the order they are taken: `lock` here, then `commit_lock` of the shards in their order,
then `lock` of the shards in their order. A thread that needs positions of all shards that are
consistent with joint frames holds `lock`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from stratalog.errors import StratalogError, SyncFailedError
from stratalog.log.append import enter_joint
from stratalog.log.commit_failures import RETRIABLE_ERRORS, again, fail, fail_later_groups
from stratalog.log.commit_group import SYNCED, Group
from stratalog.log.interrupts import holding, insist
from stratalog.log.joint import JointFrame
from stratalog.log.shard import Shard
from stratalog.log.topic import TopicLog

_T = TypeVar("_T")


class CrossShard:
    """Commits frames that belong to several topics."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.lock = threading.Lock()
        self._shards = shards

    def commit(
        self, topics: Sequence[TopicLog], make: Callable[[], JointFrame], rank: int = SYNCED
    ) -> None:
        """Return once the frame that `make` returns is as durable as its class promises.

        `make` is called with the locks of all the topics' shards held: see `enter_joint`. Over
        several shards the frame is synced, whatever its class. If it raises, nothing of the frame
        is in the log.
        """
        shards = self._involved(topics)
        if len(shards) > 1:
            with self.lock:
                _CrossShardCommit(shards, topics, make).run()
            return
        group = self._enter(shards[0], topics, make, rank)
        shards[0].wait(group, rank)

    def enter(
        self,
        topics: Sequence[TopicLog],
        make: Callable[[], JointFrame],
        rank: int,
        *,
        is_left: bool,
        is_own: bool = False,
    ) -> Group | None:
        """Enter the frame without waiting; returns the group to wait for.

        `is_left` leaves it to the ticker, unless a thread leads it before. None if the topics are
        in several shards, which requires waiting: then nothing was done. `is_own` marks the store's
        own frames: losses and failures are reported to callers, not to those.
        """
        shards = self._involved(topics)
        if len(shards) > 1:
            return None
        return self._enter(shards[0], topics, make, rank, is_left, is_own)

    def is_needed(self, topics: Sequence[TopicLog]) -> bool:
        """Return whether topics are in several shards."""
        return len(self._involved(topics)) > 1

    def _involved(self, topics: Sequence[TopicLog]) -> list[Shard]:
        wanted = {topic.shard for topic in topics}
        return [shard for shard in self._shards if shard in wanted]

    def _enter(
        self, shard: Shard, topics: Sequence[TopicLog], make: Callable[[], JointFrame], rank: int,
        is_left: bool = False, is_own: bool = False,
    ) -> Group:  # fmt: skip
        with shard.lock:
            group = shard.group
            if is_left:
                shard.relax(group, lazy=False)
            enter_joint([shard], topics, make, group, rank, is_own)
        return group


class _CrossShardCommit:
    """The commit of one frame over several shards."""

    def __init__(
        self, shards: Sequence[Shard], topics: Sequence[TopicLog], make: Callable[[], JointFrame]
    ) -> None:
        self._shards = shards
        self._topics = topics
        self._make = make
        self._home = topics[0].shard
        self._group = Group()
        self._closed: list[tuple[Shard, Group]] = []
        self._is_begun = False
        """Whether a part of the frame may be in the log."""
        self._error: StratalogError = SyncFailedError(
            "a batch over several shards was interrupted."
        )
        """The error of everything that fails with it."""
        self._later: dict[Shard, list[Group]] = {}
        """Later groups, which fail with it."""
        self._is_settled = False

    def run(self) -> None:
        """Commit it; raises the error if that fails."""
        try:
            holding([shard.commit_lock for shard in self._shards], self._complete)
        finally:
            for shard in self._shards:
                shard.notify()

    def _complete(self) -> None:
        try:
            try:
                self._run()
            except BaseException:
                insist(self._undo)
                raise
        except BaseException:
            insist(self._undo)  # Ctrl-C came in between; otherwise this does nothing
            raise

    def _run(self) -> None:
        for shard in self._shards:
            if not shard.alone.done:
                shard.lead(shard.alone)  # as in `Shard.commit_group`
        interrupt: BaseException | None = None
        try:
            holding([shard.lock for shard in self._shards], self._enter)
        except BaseException as error:
            if not self._group.entries:
                raise
            interrupt = error
        try:
            interrupt = insist(self._write) or interrupt
        except StratalogError as error:
            self._error = error
            raise
        if interrupt is not None:
            raise interrupt

    def _enter(self) -> None:
        """Close the open groups and build the frame; all locks are held."""
        for shard in self._shards:
            # A shard that accepts nothing writes no gap either: its file may not be trusted.
            if shard.group.entries or (shard.owing and shard.refusal is None):
                self._closed.append((shard, shard.group))
                shard.in_flight = shard.close_group()
        enter_joint(self._shards, self._topics, self._make, self._group, SYNCED)

    def _drain(self) -> None:
        """Write what was accepted before; idempotent."""
        for shard, group in self._closed:
            if not group.done:
                shard.commit_group(group)

    def _write(self) -> None:
        """Write everything, in an order that a crash may cut short; idempotent."""
        self._drain()
        for _, group in self._closed:
            if group.error is not None:
                raise again(group.error)
        for shard in self._shards:
            if shard is not self._home:
                shard.sync_files()
                shard.in_flight = self._group  # a reader that saw a part of it waits for the rest
        try:
            if not self._group.done:
                self._is_begun = True
                self._home.commit_group(self._group)
        finally:
            for shard in self._shards:
                shard.in_flight = None
        if self._group.error is not None:
            raise again(self._group.error)

    def _undo(self) -> None:
        """Give the offsets back in all topics, and those after them; idempotent."""
        error = self._error
        if self._is_settled or (self._group.done and self._group.error is None):
            return  # the frame is in the log, and the interrupt came after it
        if not self._group.entries:
            self._drain()  # the closed groups are written all the same
            return
        for entry in self._group.entries:
            if isinstance(entry, JointFrame) and entry.on_fail is not None:
                entry.on_fail()
        try:
            self._drain()  # what was accepted before is still written, if possible
        finally:
            for shard, group in self._closed:
                if not group.done:
                    fail(shard, group, error)
            # A frame whose sync failed may be there when the store is opened again. If its offsets
            # had been given to other records by then, in the other shards, the two would conflict.
            is_full = isinstance(error, RETRIABLE_ERRORS) and self._home.refusal is None
            for shard in self._shards:
                topics = [topic for topic in self._topics if topic.shard is shard]
                later = self._later.setdefault(shard, [])
                fail_later_groups(shard, later, error, topics, is_full or not self._is_begun)
            self._home.resolve_group(self._group, error)
            self._is_settled = True
