"""The thread that moves segments to the cold store, and removes them from there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from stratalog.clock import Clock
from stratalog.errors import CorruptionError
from stratalog.format.control import encode_tier
from stratalog.format.frame import FrameType
from stratalog.format.names import cold_prefix, parse_cold_name, topic_path
from stratalog.format.segment import Summary
from stratalog.fs import File
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.options import StoreOptions
from stratalog.segments.segment import Segment
from stratalog.segments.tiering import copy_segment, finish_move, movable
from stratalog.state.catalog import Catalog
from stratalog.state.claim import Claim
from stratalog.state.recovery import Replay
from stratalog.state.router import control
from stratalog.upkeep.remote_rounds import RemoteRounds, stopped
from stratalog.upkeep.steps import Failures


class Mover(RemoteRounds):
    """The rounds of one store."""

    place = "the cold store"
    work = "moving segments"

    def __init__(
        self,
        log: Log,
        replay: Replay,
        catalog: Catalog,
        options: StoreOptions,
        clock: Clock,
        lock: threading.Lock,
    ) -> None:
        super().__init__(replay.pool.root, clock, lock, "cold", "mover")
        self._log = log
        self._replay = replay
        self._catalog = catalog
        self._options = options
        self.claim = Claim(replay.pool.fs, replay.pool.root, replay.identity)

    # --- a round --------------------------------------------------------------------------

    def run(self) -> int:
        """Move and remove all that is due; returns how many segments were moved."""
        moved = 0

        def move(topic: TopicLog) -> None:
            nonlocal moved
            damaged: CorruptionError | None = None
            for segment in self._movable(topic):
                try:
                    moved += self._move(topic, segment)
                except CorruptionError as error:  # it stays; the segments after it may move
                    damaged = damaged or error
            if damaged:
                raise damaged

        with self._one_at_a_time(), Failures() as failures:
            for topic in self._catalog.topics():
                failures.collect_steps((self._remove, move), topic)
            failures.collect(self._remove_dropped)
        return moved

    def sweep(self) -> None:
        """Remove objects of our own that the store does not refer to.

        A rewritten segment leaves its old object, and a crash an unfinished move.
        """
        with self._one_at_a_time():
            with self._lock:
                own = self.claim.find()
            names = [] if own is None else self._names(f"{own}/")
            with self._lock:
                topics = self._catalog.topics()
                kept = {name for topic in topics for name in topic.history.objects.values()}
            self._delete_unknown(names, kept)

    def _delete_unknown(self, names: Iterable[str], kept: set[str]) -> None:
        for name in names:
            if name not in kept and parse_cold_name(name) is not None:
                self._delete(name)

    def _movable(self, topic: TopicLog) -> list[Segment]:
        # Decided by the option: a store that is opened without a cold store moves nothing.
        if self._options.cold is None or self._replay.pool.cold is None:
            return []
        with self._lock:
            return [] if self._is_replaced(topic) else movable(topic, self._options)

    def _is_replaced(self, topic: TopicLog) -> bool:
        """Return whether some of the topic's segments are about to be replaced."""
        if topic.history.rewriting:
            return True
        return any(one.footer.topic_id == topic.id for one in self._replay.replacements)

    def _move(self, topic: TopicLog, segment: Segment) -> int:
        """Move a segment; returns whether that was done, or it is no longer there to be moved."""
        pool = self._replay.pool
        cold = pool.cold
        assert cold is not None
        with self._lock:
            if self._is_stopped:
                return 0
            directory = self.claim.make()
        try:
            file = pool.fs.open(segment.path, "read")
        except FileNotFoundError:
            return 0  # rewritten, removed or dropped since
        try:
            what = f"put {segment.path} into {cold.location}"
            source = _Stoppable(file, lambda: self._is_stopped)
            name = self.asked(what, lambda: copy_segment(cold, segment, source, directory))
        finally:
            file.close()

        def flip(topic: TopicLog, summary: Summary, name: str) -> None:
            body = encode_tier(summary, cold.location, name)
            self._log.write([control(topic, FrameType.TIER, summary.first_offset, body)])

        with self._lock:
            is_same = segment in topic.history.chain.segments
            if self._is_stopped or topic.is_dropped or not is_same or self._is_replaced(topic):
                return 0
            finish_move(topic, segment, name, flip)
        return 1

    # --- what goes ------------------------------------------------------------------------

    def _remove(self, topic: TopicLog) -> None:
        """Remove what is below the floor from the cold store.

        Objects that another directory has put there are forgotten: a copy may refer to them.
        """
        history = topic.history
        with self._lock:
            gone, kept = _below_floor(topic)
            own = self.claim.find() if gone else None
        if own is not None:
            prefix = cold_prefix(own, topic.id)
            if any(history.objects.get(first, "").startswith(prefix) for first in gone):
                for name in self._names(prefix):
                    found = parse_cold_name(name)
                    if found and found.first_offset < topic.earliest and name not in kept:
                        self._delete(name)
        if gone:
            with self._changing():
                for first in gone:
                    history.forget_cold(first)

    def _remove_dropped(self) -> None:
        """Remove what dropped topics had in the cold store, once their files here are gone."""
        pool = self._replay.pool
        for topic_id in sorted(self._replay.dropped):
            if pool.fs.listdir(topic_path(pool.root, topic_id)):
                continue
            with self._lock:
                own = self.claim.find()
            if own is not None:
                for name in self._names(cold_prefix(own, topic_id)):
                    self._delete(name)
            with self._changing():
                self._replay.dropped.discard(topic_id)

    def _names(self, prefix: str) -> list[str]:
        cold = self._replay.pool.find_cold()
        if cold is None:
            return []
        return self.asked(f"list {prefix} in {cold.location}", lambda: cold.names(prefix))

    def _delete(self, name: str) -> None:
        cold = self._replay.pool.find_cold()
        assert cold is not None
        self.asked(f"delete {name} in {cold.location}", lambda: cold.delete(name))


class _Stoppable:
    """A file whose reads fail once the store is closed, which ends an upload."""

    def __init__(self, inner: File, is_stopped: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_stopped = is_stopped
        self.path = inner.path

    def pread(self, length: int, position: int) -> bytes:
        if self._is_stopped():
            raise stopped(Mover.work)
        return self._inner.pread(length, position)

    def size(self) -> int:
        return self._inner.size()


def _below_floor(topic: TopicLog) -> tuple[set[int], set[str]]:
    """Return the cold segments of a topic to remove, and the object names of the others."""
    history = topic.history
    gone = {first for first, one in history.cold.items() if one.end_offset <= topic.earliest}
    return gone, {name for first, name in history.objects.items() if first not in gone}
