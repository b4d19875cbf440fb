"""Where shards meet: one frame, in one shard, that gives out offsets of topics in several.

Topics of one shard are no special case: their joint frame enters the open group like any other,
and nobody waits for anybody. For topics of several shards this is the one section in the log that
holds more than one of them. A topic's records would then be in two shards, and after a crash the
one could have what comes behind something that the other has lost. So, with the commit locks of
all shards involved held:

1. With their locks held as well, the open groups are closed and the joint frame gets its offsets.
   Appends go on at once, into new groups behind it, which wait for the commit locks.
2. The closed groups are written, and the shards synced: what has smaller offsets is durable.
3. The frame is written to the first topic's shard and synced, whatever its class: what has larger
   offsets cannot become durable before it.
4. It is published, in all topics, and the locks are released.

If something fails, the frame's offsets are given back in all its topics, and the groups behind it
fail, too: they have offsets that follow.

Locks, in the order they are taken: `lock` here, then `commit_lock` of the shards in their order,
then `lock` of the shards in their order. Whoever needs the positions of all shards to be of one
moment, as far as joint frames are concerned, holds `lock` meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from stratalog.errors import DiskFullError, StratalogError, SyncFailedError
from stratalog.log.failures import again, fail, fail_behind
from stratalog.log.group import Group
from stratalog.log.interrupts import holding, insist
from stratalog.log.joint import Joint
from stratalog.log.shard import GROUP_BYTES_MAX, Shard
from stratalog.log.topic import SYNCED, TopicLog

_T = TypeVar("_T")


class Crossing:
    """Commits frames that speak for several topics."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.lock = threading.Lock()
        self._shards = shards

    def commit(
        self, topics: Sequence[TopicLog], make: Callable[[], Joint], rank: int = SYNCED
    ) -> None:
        """Return once the frame that `make` returns is as durable as its class promises.

        `make` is called with the locks of all the topics' shards held. It sets `next_offset` and
        `last_timestamp` of the topics, and nothing else; if it raises they are set back. Over
        several shards the frame is synced, whatever its class. Raises what went wrong: then
        nothing of it is in the log.
        """
        shards = self._involved(topics)
        if len(shards) > 1:
            with self.lock:
                _Crossing(shards, topics, make).run()
            return
        group = self._enter(shards[0], topics, make, rank)
        if rank == SYNCED or group.bytes > GROUP_BYTES_MAX:
            shards[0].commit(group)

    def enter(
        self, topics: Sequence[TopicLog], make: Callable[[], Joint], rank: int, *, is_left: bool
    ) -> Group | None:
        """The same without waiting: returns the group to wait for.

        `is_left` leaves it to the ticker, if nobody leads it before. None if the topics are in
        several shards: then nothing was done, and one has to wait.
        """
        shards = self._involved(topics)
        if len(shards) > 1:
            return None
        return self._enter(shards[0], topics, make, rank, is_left)

    def is_needed(self, topics: Sequence[TopicLog]) -> bool:
        """Whether topics are in several shards."""
        return len(self._involved(topics)) > 1

    def _involved(self, topics: Sequence[TopicLog]) -> list[Shard]:
        wanted = {topic.shard for topic in topics}
        return [shard for shard in self._shards if shard in wanted]

    def _enter(
        self, shard: Shard, topics: Sequence[TopicLog], make: Callable[[], Joint], rank: int,
        is_left: bool = False,
    ) -> Group:  # fmt: skip
        with shard.lock:
            group = shard.group
            if is_left:
                shard.relax(group, lazy=False)
            _enter([shard], topics, make, group, rank)
        return group


def _enter(
    shards: Sequence[Shard], topics: Sequence[TopicLog], make: Callable[[], Joint], group: Group,
    rank: int,
) -> None:  # fmt: skip
    """Have a frame made and put it into a group; the locks of all shards are held."""
    for shard in shards:
        shard.check()
    for topic in topics:
        topic.check_dropped()
        topic.stop_gathering()  # single appends that follow start a batch behind this
    before = [(topic, topic.next_offset, topic.last_timestamp) for topic in topics]
    try:
        joint = make()
        topics[0].ask(group, rank)
        group.bytes += len(joint.body)
        group.entries += [joint]  # and nothing behind it: Ctrl-C comes before or after
    except BaseException:
        insist(_set_back, before)
        raise


def _set_back(before: list[tuple[TopicLog, int, int]]) -> None:
    for topic, offset, timestamp in before:
        topic.next_offset, topic.last_timestamp = offset, timestamp


class _Crossing:
    """One frame on its way over several shards."""

    def __init__(
        self, shards: Sequence[Shard], topics: Sequence[TopicLog], make: Callable[[], Joint]
    ) -> None:
        self._shards = shards
        self._topics = topics
        self._make = make
        self._home = topics[0].shard
        self._group = Group()
        self._closed: list[tuple[Shard, Group]] = []
        self._is_begun = False
        """Whether something of the frame may be in the log."""
        self._error: StratalogError = SyncFailedError(
            "a batch over several shards was interrupted."
        )
        """What is told to all that fail with it."""
        self._behind: dict[Shard, list[Group]] = {}
        """Groups that came since, and fail with it."""
        self._is_settled = False

    def run(self) -> None:
        """Commit it; raises what went wrong."""
        try:
            holding([shard.commit_lock for shard in self._shards], self._settle)
        finally:
            for shard in self._shards:
                shard.tell()

    def _settle(self) -> None:
        try:
            try:
                self._run()
            except BaseException:
                insist(self._undo)
                raise
        except BaseException:
            insist(self._undo)  # Ctrl-C came in the moment between; else it does nothing
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
        """Close what is open and have the frame made; all locks are held."""
        for shard in self._shards:
            if shard.group.entries:
                self._closed.append((shard, shard.group))
                shard.in_flight = shard.close_group()
        _enter(self._shards, self._topics, self._make, self._group, SYNCED)

    def _drain(self) -> None:
        """Write what was accepted before; may be repeated."""
        for shard, group in self._closed:
            if not group.done:
                shard.commit_group(group)

    def _write(self) -> None:
        """Write everything, in the order that a crash may cut short; may be repeated."""
        self._drain()
        for _, group in self._closed:
            if group.error is not None:
                raise again(group.error)
        for shard in self._shards:
            if shard is not self._home:
                shard.sync_files()
                shard.in_flight = self._group  # a reader who saw a part of it waits for the rest
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
        """Give the offsets back, in all topics, and those behind them; may be repeated."""
        error = self._error
        if self._is_settled or (self._group.done and self._group.error is None):
            return  # it is in the log, and what was interrupted came after it
        if not self._group.entries:
            self._drain()  # what was closed is written all the same
            return
        for entry in self._group.entries:
            if isinstance(entry, Joint) and entry.on_fail is not None:
                entry.on_fail()
        try:
            self._drain()  # what was accepted before is written all the same, if that is possible
        finally:
            for shard, group in self._closed:
                if not group.done:
                    fail(shard, group, error)
            # A frame whose sync failed may be there when the store is opened again. Had its offsets
            # been given to other records by then, in the other shards, neither could be right.
            is_full = isinstance(error, DiskFullError) and self._home.refusal is None
            for shard in self._shards:
                topics = [topic for topic in self._topics if topic.shard is shard]
                behind = self._behind.setdefault(shard, [])
                fail_behind(shard, behind, error, topics, is_full or not self._is_begun)
            self._home.settle_group(self._group, error)
            self._is_settled = True
