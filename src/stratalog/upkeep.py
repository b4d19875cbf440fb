"""What keeps a store's size, restart time and memory bounded, in the background.

One thread does everything in turn: checkpoint (log to segments), snapshot (projections to disk,
log given up), retention, rewriting of segments that are mostly dead, and moving old ones to the
cold store. Nothing here is needed for an append to be durable or for a read to be right: if it
fails, the store goes on with a longer log, and the next round tries again.

Concurrency: `_lock` is held for a whole round; appends and reads never take it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from stratalog.clock import Clock
from stratalog.errors import ClosedError, StratalogError, SyncFailedError
from stratalog.format.control import encode_floor, encode_tier
from stratalog.format.frame import FrameType
from stratalog.format.segment import Summary
from stratalog.format.snapshot import LogState
from stratalog.log.interrupts import Background, Signal
from stratalog.log.log import Control, Log
from stratalog.log.topic import TopicLog
from stratalog.options import StoreOptions
from stratalog.projections.adopt import Adopter
from stratalog.projections.catalog import Catalog
from stratalog.projections.failures import Failures
from stratalog.projections.groups import QUEUE
from stratalog.projections.queue import has_new_ids
from stratalog.projections.replay import Replay
from stratalog.projections.router import control
from stratalog.projections.snapshot import capture_store
from stratalog.reports import CompactionReport
from stratalog.segments.checkpoint import checkpoint, mark, seal_due
from stratalog.segments.retention import (
    Eviction,
    early_eviction,
    eviction,
    remove_below,
    remove_cold,
    remove_topic,
)
from stratalog.segments.rewrite import compact, reclaim
from stratalog.segments.tiering import movable, move_segment

logger = logging.getLogger("stratalog")

# A closing store leaves this much in the log: it is replayed in a few milliseconds, and a program
# that opens, appends a little and closes does not make a segment of every few records.
_CLOSE_BYTES = 256 << 10

# Of `compact`, which does all it can: a segment is rewritten for one record in a thousand.
_RATIO_MIN = 0.001

# How often one looks for what others have published, and for files that were left over.
_LOOK_SECONDS = 0.5
_CLEAN_SECONDS = 3600.0

# What failed is not tried again sooner, however much there is to do.
_RETRY_SECONDS = 1.0

# A checkpoint beside appends rests this long behind every batch of 512 KiB, until the log is so
# many times longer than what starts one: then it has to keep up.
_REST_SECONDS = 0.002
_BEHIND_MAX = 8


class Upkeep:
    """The rounds of one store."""

    def __init__(
        self,
        log: Log,
        replay: Replay,
        catalog: Catalog,
        options: StoreOptions,
        clock: Clock,
        create: Callable[[str], TopicLog],
    ) -> None:
        self._log = log
        self._replay = replay
        self._catalog = catalog
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = Signal()
        self._is_stopped = False
        self._thread = Background(self._run, "stratalog-upkeep")
        start = {} if replay.snapshot is None else replay.snapshot.log.shards
        self._checkpointed = dict(start)
        """Per shard, the lsn below which everything is in segments."""
        self._snapshotted = dict(start)
        self._checkpointed_at = self._snapshotted_at = clock.monotonic()
        self._commits = 0
        self._adopter = Adopter(replay.pool.fs, log, replay, clock, create)
        self._cleaned_at = 0.0
        self.checkpoints = 0
        self.snapshots = 0
        self.failure: str | None = None
        """What went wrong in the last round, if anything."""
        self._failed_at = 0.0
        self._refusal: SyncFailedError | None = None

    # --- in the background ----------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._log.on_tick = self._look
        self._thread.start()

    def stop(self) -> None:
        """End the thread, once its round is over; may be repeated."""
        self._is_stopped = True
        self._wake.give()
        self._thread.wait()
        with self._lock:
            pass  # a backup in another thread needs the store until it is done

    def _look(self) -> None:
        """Called by the ticker: is there enough to do?"""
        if self.failure and self._clock.monotonic() - self._failed_at < _RETRY_SECONDS:
            return
        if self._log_bytes(self._checkpointed) >= self._options.checkpoint_bytes:
            self._wake.give()

    def _run(self) -> None:
        interval = self._options.checkpoint_interval
        next_at = time.monotonic() + interval
        while not self._is_stopped:
            is_due = self._wake.take(min(interval, _LOOK_SECONDS)) or time.monotonic() >= next_at
            if self._is_stopped:
                break
            if is_due or self._has_incoming():
                self.round()
            if is_due:
                next_at = time.monotonic() + interval

    def _has_incoming(self) -> bool:
        """Whether there is something to adopt, which may not have failed just now."""
        failed = self.failure and self._clock.monotonic() - self._failed_at < _RETRY_SECONDS
        return not failed and self._adopter.is_due()

    def round(self) -> None:
        """Do what is due; what goes wrong is logged, and kept for `stats`."""
        try:
            with self._lock:
                self._round()
            self.failure = None
        # Whatever it is: a thread that ends in silence would leave the log to grow for ever.
        except Exception as error:
            if self.failure is None:
                is_known = isinstance(error, StratalogError | OSError)
                logger.warning(
                    "%s: upkeep failed, and will try again: %s", self.root, error,
                    exc_info=not is_known,
                )  # fmt: skip
            self._failed_at = self._clock.monotonic()
            self.failure = str(error) or type(error).__name__

    @property
    def root(self) -> str:
        """The store's directory, for messages."""
        return self._replay.pool.root

    def _round(self) -> None:
        now = self._clock.monotonic()
        options = self._options
        pending = self._log_bytes(self._checkpointed)
        due = now - self._checkpointed_at >= options.checkpoint_interval
        # Each on its own: a full disk is helped by eviction and by a shorter log.
        with Failures() as failures:
            failures.collect(self._adopter.adopt)
            if pending >= options.checkpoint_bytes or (pending and due):
                failures.collect(lambda: self._checkpoint(self._rest))
            failures.collect(lambda: self._tidy(self._options.rewrite_ratio))
            pending = self._log_bytes(self._snapshotted)
            due = now - self._snapshotted_at >= options.snapshot_interval
            if pending >= options.snapshot_bytes or (pending and due):
                failures.collect(self._snapshot)

    # --- on demand ------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Put everything into segments now."""
        with self._lock:
            self._checkpoint()

    def snapshot(self) -> None:
        """Make a snapshot now, and give up the log that is no longer needed."""
        with self._lock:
            self._checkpoint()
            self._snapshot()

    def adopt(self) -> int:
        """Adopt what was published, and take it into segments; returns how many manifests."""
        with self._lock:
            adopted = self._adopter.adopt()
            if adopted:
                self._checkpoint()
            return adopted

    def clean_up(self) -> None:
        """Remove staged files that nobody needs; when the store is opened, and now and then."""
        self._cleaned_at = self._clock.monotonic()
        self._adopter.clean_up()

    def compact(self) -> CompactionReport:
        """Checkpoint, evict, rewrite and move everything that can be, now."""
        with self._lock:
            self._checkpoint()
            try:
                report = self._tidy(_RATIO_MIN)
            except Exception:
                self._snapshot()  # what could be done is done
                raise
            self._snapshot()
            return report

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Checkpoint, make a snapshot, and stand still until the block is left.

        Until then no segment, snapshot or log file is changed, moved or given up.
        """
        with self._lock:
            if self._is_stopped:
                raise ClosedError(f"{self.root} is closed: open it again with stratalog.open()")
            self._checkpoint()
            self._snapshot()
            yield

    def finish(self) -> None:
        """On a clean close: leave so little in the log that the next open is immediate."""
        # What is in segments already takes its space a second time until it is given up.
        held = sum(shard.files.position for shard in self._log.shards)
        if max(self._log_bytes(self._snapshotted), held) < _CLOSE_BYTES:
            return
        try:
            with self._lock:
                self._checkpoint()
                # Twice, so that a damaged one does not cost what the log no longer has.
                self._snapshot()
                self._snapshot()
                self._log.rotate()
                self._log.release(self._replay.snapshots.released())
        except (StratalogError, OSError) as error:
            logger.warning("%s: closed with all of its log, because %s", self.root, error)

    # --- steps; the lock is held ----------------------------------------------------------

    def _checkpoint(self, rest: Callable[[], None] = lambda: None) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._log.sync(tells_loss=False)
        positions = self._log.positions()
        now = self._clock.time_ns()
        touched: list[TopicLog] = []
        try:
            for topic in self._catalog.topics():
                self._evict(topic, early_eviction)
                if topic.kind == QUEUE:
                    topic.groups.states()  # it looks for ids in records that the log still has
                is_new = checkpoint(topic, now, rest)
                if seal_due(topic, now) or is_new:
                    touched.append(topic)
            if any(map(has_new_ids, self._catalog.topics())):
                self._snapshot()
        except SyncFailedError as error:
            self._refusal = error  # what the kernel has of the file is unknown from now on
            raise
        finally:
            # Below a mark no ids are looked for: records go, while their ids still count.
            self._mark([topic for topic in touched if not has_new_ids(topic)])
        self._checkpointed = self._advance(positions)
        self._checkpointed_at = self._clock.monotonic()
        self.checkpoints += 1

    def _rest(self) -> None:
        """Leave the interpreter to appends for a moment, unless there are none, or too many."""
        commits = sum(shard.commits for shard in self._log.shards)
        is_active = commits != self._commits
        self._commits = commits
        behind_max = _BEHIND_MAX * self._options.checkpoint_bytes
        if is_active and not self._is_stopped and self._log_bytes(self._checkpointed) < behind_max:
            time.sleep(_REST_SECONDS)

    def _tidy(self, ratio: float) -> CompactionReport:
        """Evict, rewrite and move; what fails does not stop the rest, and is raised at the end."""
        segments = freed = moved = 0
        now = self._clock.time_ns()

        def remove(topic: TopicLog) -> None:
            nonlocal segments, freed
            self._evict(topic, partial(eviction, now=now))
            count, size = remove_below(topic)
            segments, freed = segments + count, freed + size

        def rewrite(topic: TopicLog) -> None:
            nonlocal freed
            freed += reclaim(topic, now, ratio)
            if topic.options.compact:
                freed += compact(topic, now, ratio, self._log.budget)

        def move(topic: TopicLog) -> None:
            nonlocal moved
            moved += self._move(topic)

        with Failures() as failures:
            failures.collect(self._replay.finish_replacements)
            waiting = {one.footer.topic_id for one in self._replay.replacements}
            for topic in self._catalog.topics():
                steps = (remove, remove_cold, rewrite, move)
                # What is to replace others was made of them as they are.
                for step in steps[:2] if topic.id in waiting else steps:
                    if not topic.is_dropped:
                        failures.collect(partial(step, topic), topic)
            failures.collect(self._remove_dropped)
            if self._clock.monotonic() - self._cleaned_at >= _CLEAN_SECONDS:
                failures.collect(self.clean_up)
        return CompactionReport(segments, freed, moved)

    def _evict(self, topic: TopicLog, find: Callable[[TopicLog], Eviction | None]) -> None:
        if topic.options.retention == "consumed":
            topic.history.consumed_below = topic.groups.consumed_below()
        wanted = find(topic)
        if wanted is not None and not has_new_ids(topic):
            earliest = max(topic.earliest, wanted.below)
            body = encode_floor(wanted.below, wanted.reason)
            self._log.write([control(topic, FrameType.FLOOR, earliest, body)])

    def _move(self, topic: TopicLog) -> int:
        pool = topic.history.pool
        # Not by what is remembered: whoever opens a store without one wants nothing moved.
        if self._options.cold is None or pool.cold is None:
            return 0
        location = pool.cold.location

        def flip(topic: TopicLog, summary: Summary) -> None:
            body = encode_tier(summary, location)
            self._log.write([control(topic, FrameType.TIER, summary.first_offset, body)])

        segments = movable(topic, self._options)
        for segment in segments:
            move_segment(topic, segment, flip)
        return len(segments)

    def _remove_dropped(self) -> None:
        for topic_id in sorted(self._replay.dropped):
            remove_topic(self._replay.pool, topic_id)
            self._replay.dropped.discard(topic_id)

    def _advance(self, positions: dict[int, int]) -> dict[int, int]:
        """Past the marks as well, if nothing was appended meanwhile."""
        later = self._log.positions()
        for topic in self._catalog.topics():
            if not topic.is_ephemeral and topic.history.checkpointed < topic.committed:
                return positions
        return later

    def _mark(self, topics: list[TopicLog]) -> None:
        # A mark that could not be written is made up for: files wait for it.
        waiting = [one for one in self._catalog.topics() if one.history.copied]
        topics = list(dict.fromkeys([*topics, *waiting]))
        marks = [Control(topic, FrameType.CHECKPOINT, *mark(topic), None) for topic in topics]
        self._log.write([control for control in marks if not control.topic.is_dropped])
        for topic in waiting:
            topic.history.remove_copied()

    def _snapshot(self) -> None:
        catalog, groups, queues = capture_store(self._replay, self._catalog)
        if groups.groups:
            # What they say of records is then in the log: a crash takes none of it back that the
            # snapshot has.
            self._log.sync(tells_loss=False)
        log = LogState(dict(self._checkpointed))
        self._replay.snapshots.write(log, catalog, self._clock.time_ns(), groups, queues)
        for one in queues.queues:
            topic = self._replay.topics.get(one.topic_id)
            if topic is not None and topic.groups.queue is not None:
                topic.groups.queue.covered = one.deduped
        self._log.release(self._replay.snapshots.released())
        self._snapshotted = dict(self._checkpointed)
        self._snapshotted_at = self._clock.monotonic()
        self.snapshots += 1

    def _log_bytes(self, positions: dict[int, int]) -> int:
        """Bytes of log behind these positions."""
        written = self._log.positions()
        return sum(lsn - positions.get(number, 0) for number, lsn in written.items())
