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
from collections.abc import Iterator

from stratalog.clock import Clock
from stratalog.errors import (
    ClosedError,
    ColdStoreError,
    MemoryPressureError,
    StratalogError,
    SyncFailedError,
    TooLargeError,
)
from stratalog.format.control import encode_floor, encode_tier
from stratalog.format.frame import FrameType
from stratalog.format.segment import Summary
from stratalog.format.snapshot import CatalogState, LogState
from stratalog.log.log import Control, Log
from stratalog.log.topic import TopicLog
from stratalog.model import CompactionReport
from stratalog.options import StoreOptions
from stratalog.projections.catalog import Catalog
from stratalog.projections.replay import Replay
from stratalog.projections.router import control
from stratalog.projections.snapshot import capture
from stratalog.segments.checkpoint import checkpoint, mark, seal_aged
from stratalog.segments.retention import eviction, remove_below, remove_topic
from stratalog.segments.rewrite import compact, reclaim
from stratalog.segments.tiering import movable, move

logger = logging.getLogger("stratalog")

# A closing store leaves this much in the log: it is replayed in a few milliseconds, and a program
# that opens, appends a little and closes does not make a segment of every few records.
_CLOSE_BYTES = 256 << 10

# Of `compact`, which does all it can: a segment is rewritten for one record in a thousand.
_RATIO_MIN = 0.001


class Upkeep:
    """The rounds of one store."""

    def __init__(
        self, log: Log, replay: Replay, catalog: Catalog, options: StoreOptions, clock: Clock
    ) -> None:
        self._log = log
        self._replay = replay
        self._catalog = catalog
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="stratalog-upkeep", daemon=True)
        start = {} if replay.snapshot is None else replay.snapshot.log.shards
        self._checkpointed = dict(start)
        """Per shard, the lsn below which everything is in segments."""
        self._snapshotted = dict(start)
        self._checkpointed_at = self._snapshotted_at = clock.monotonic()
        self.checkpoints = 0
        self.snapshots = 0
        self.failure: str | None = None
        """What went wrong in the last round, if anything."""
        self._refusal: SyncFailedError | None = None

    # --- in the background ----------------------------------------------------------------

    def start(self) -> None:
        """Begin; the thread is a daemon, so that a forgotten store does not keep a program."""
        self._log.on_tick = self._look
        self._thread.start()

    def stop(self) -> None:
        """End the thread, once its round is over."""
        self._is_stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            pass  # a backup in another thread needs the store until it is done

    def _look(self) -> None:
        """Called by the ticker: is there enough to do?"""
        if self._log_bytes(self._checkpointed) >= self._options.checkpoint_bytes:
            self._wake.set()

    def _run(self) -> None:
        while not self._is_stopped:
            self._wake.wait(self._options.checkpoint_interval)
            self._wake.clear()
            if not self._is_stopped:
                self.round()

    def round(self) -> None:
        """Do what is due; what goes wrong is logged, and kept for `stats`."""
        try:
            with self._lock:
                self._round()
            self.failure = None
        except (StratalogError, OSError) as error:
            if self.failure is None:
                logger.warning("%s: upkeep failed, and will try again: %s", self.root, error)
            self.failure = str(error)

    @property
    def root(self) -> str:
        """The store's directory, for messages."""
        return self._replay.pool.root

    def _round(self) -> None:
        now = self._clock.monotonic()
        options = self._options
        pending = self._log_bytes(self._checkpointed)
        due = now - self._checkpointed_at >= options.checkpoint_interval
        if pending >= options.checkpoint_bytes or (pending and due):
            self._checkpoint()
        self._tidy(self._options.rewrite_ratio)
        pending = self._log_bytes(self._snapshotted)
        due = now - self._snapshotted_at >= options.snapshot_interval
        if pending >= options.snapshot_bytes or (pending and due):
            self._snapshot()

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

    def compact(self) -> CompactionReport:
        """Checkpoint, evict, rewrite and move everything that can be, now."""
        with self._lock:
            self._checkpoint()
            report = self._tidy(_RATIO_MIN)
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
        if self._log_bytes(self._snapshotted) < _CLOSE_BYTES:
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

    def _checkpoint(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._log.sync()
        positions = self._log.positions()
        now = self._clock.time_ns()
        touched: list[TopicLog] = []
        try:
            for topic in self._catalog.topics():
                is_new = checkpoint(topic, now)
                if seal_aged(topic, now) or is_new:
                    touched.append(topic)
        except SyncFailedError as error:
            self._refusal = error  # what the kernel has of the file is unknown from now on
            raise
        finally:
            self._mark(touched)
        self._checkpointed = self._advance(positions)
        self._checkpointed_at = self._clock.monotonic()
        self.checkpoints += 1

    def _tidy(self, ratio: float) -> CompactionReport:
        """Evict, rewrite and move; what one topic's cold store refuses does not stop the rest."""
        segments = freed = rewritten = moved = 0
        failure: StratalogError | None = None
        now = self._clock.time_ns()
        for topic in self._catalog.topics():
            try:
                self._evict(topic, now)
                count, size = remove_below(topic)
                segments, freed = segments + count, freed + size
                rewritten += reclaim(topic, now, ratio)
                if topic.options.compact:
                    rewritten += compact(topic, now, ratio, self._log.budget)
                moved += self._move(topic)
            except (ColdStoreError, MemoryPressureError, TooLargeError) as error:
                failure = error
        try:
            self._remove_dropped()
        except ColdStoreError as error:
            failure = error
        if failure is not None:
            raise failure
        return CompactionReport(segments, freed + rewritten, moved)

    def _evict(self, topic: TopicLog, now: int) -> None:
        wanted = eviction(topic, now)
        if wanted is not None:
            earliest = max(topic.earliest, wanted.below)
            body = encode_floor(wanted.below, wanted.reason)
            self._log.write([control(topic, FrameType.FLOOR, earliest, body)])

    def _move(self, topic: TopicLog) -> int:
        pool = topic.history.pool
        if pool.cold is None:
            return 0
        location = pool.cold.location

        def flip(topic: TopicLog, summary: Summary) -> None:
            body = encode_tier(summary, location)
            self._log.write([control(topic, FrameType.TIER, summary.first_offset, body)])

        segments = movable(topic, self._options)
        for segment in segments:
            move(topic, segment, flip)
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
        marks = [Control(topic, FrameType.CHECKPOINT, *mark(topic), None) for topic in topics]
        self._log.write([control for control in marks if not control.topic.is_dropped])

    def _snapshot(self) -> None:
        topics = self._catalog.topics()
        catalog = CatalogState(
            next_topic_id=self._replay.next_topic_id,
            epochs=dict(self._replay.epochs),
            cold=self._replay.pool.cold_location,
            topics=[capture(topic) for topic in topics],
            dropped=sorted(self._replay.dropped),
        )
        log = LogState(dict(self._checkpointed))
        self._replay.snapshots.write(log, catalog, self._clock.time_ns())
        self._log.release(self._replay.snapshots.released())
        self._snapshotted = dict(self._checkpointed)
        self._snapshotted_at = self._clock.monotonic()
        self.snapshots += 1

    def _log_bytes(self, positions: dict[int, int]) -> int:
        """Bytes of log behind these positions."""
        written = self._log.positions()
        return sum(lsn - positions.get(number, 0) for number, lsn in written.items())
