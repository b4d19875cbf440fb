"""The background rounds that keep a store's size, restart time and memory bounded.

One thread does everything in turn: checkpoint (log to segments), snapshot (projections to disk,
log given up), retention, and rewriting of segments that are mostly dead. Moving old segments to the
cold store, which may hang, has a thread of its own: see `mover`. Nothing here is needed for an
append to be durable or for a read to be right: if it fails, the store goes on with a longer log,
and the next round tries again.

Concurrency: `_lock` is held for a whole round; appends and reads never take it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import filterfalse

import msgspec

from stratalog.clock import Clock
from stratalog.errors import (
    ClosedError,
    FencedError,
    StratalogError,
    SyncFailedError,
    UnknownTopicError,
)
from stratalog.format.control import encode_floor
from stratalog.format.frame import FrameType
from stratalog.format.snapshot import LogState
from stratalog.log.ends import write_ends
from stratalog.log.interrupts import Background, Signal
from stratalog.log.log import Control, Log
from stratalog.log.topic import TopicLog
from stratalog.metrics import Histogram
from stratalog.options import StoreOptions
from stratalog.reports import CompactionReport
from stratalog.segments.checkpoint import checkpoint, mark, seal, seal_due
from stratalog.segments.retention import (
    Eviction,
    early_eviction,
    eviction,
    is_worn,
    remove_below,
    remove_files,
)
from stratalog.segments.rewrite import compact, finish_rewrites, merge_empty, reclaim
from stratalog.state.catalog import Catalog
from stratalog.state.group_state import QUEUE
from stratalog.state.queue_state import has_new_ids
from stratalog.state.recovery import Replay
from stratalog.state.router import control
from stratalog.state.snapshot import capture_lakes, capture_store
from stratalog.state.table_projection import TableProjection
from stratalog.upkeep.adopt import Adopter
from stratalog.upkeep.cold_mover import Mover
from stratalog.upkeep.downsample import Downsampler
from stratalog.upkeep.lake import LakeKeeper
from stratalog.upkeep.purge import Purge
from stratalog.upkeep.routes import Forwarder
from stratalog.upkeep.schedules import Scheduler
from stratalog.upkeep.steps import Failures

logger = logging.getLogger("stratalog.upkeep")

# A closing store leaves this much in the log: it is replayed in a few milliseconds, and a program
# that opens, appends a little and closes does not make a segment of every few records.
_CLOSE_BYTES = 256 << 10

# Ratio for `compact`: it rewrites a segment for one record in a thousand.
_RATIO_MIN = 0.001

# How often upkeep looks for published manifests, and for leftover files.
_LOOK_SECONDS = 0.5
_CLEAN_SECONDS = 3600.0

# A failed round is not tried again sooner, however much there is to do.
_RETRY_SECONDS = 1.0

# A checkpoint beside appends rests this long after every batch of 512 KiB, until the log is so many
# times longer than what starts one: then it has to keep up.
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
        create: Callable[[str, str], TopicLog],
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
        self._downsampler = Downsampler(log, catalog)
        self.mover = Mover(log, replay, catalog, options, clock, self._lock)
        self.lake = LakeKeeper(log, replay, catalog, options, clock, self._lock, self.mover.claim)
        self.forwarder = Forwarder(log, replay, clock)
        self.scheduler = Scheduler(log, replay, catalog, clock)
        self.checkpoints = 0
        self.times = Histogram()
        """How long checkpoints took."""
        self.failures = 0
        self.on_look: Callable[[], None] = lambda: None
        """Called by the ticker, often, and by this thread twice a second."""
        self.snapshots = 0
        self.failure: str | None = None
        """The error of the last round, if there was one."""
        self._failed_at = 0.0
        self._refusal: SyncFailedError | None = None
        self.chores: list[Callable[[], object]] = []
        """Functions that are called about twice a second: see `Store.each_look`."""

    # --- in the background ----------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._log.on_tick = self._look
        self.mover.start()
        self.lake.start()
        self.forwarder.start()
        self.scheduler.start()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, once its round is over; idempotent."""
        self._is_stopped = True
        self._wake.give()
        self.forwarder.stop()
        self.scheduler.stop()
        self.mover.stop()
        self.lake.stop()
        self._thread.wait()
        with self._lock:
            pass  # a backup in another thread needs the store until it is done

    def _look(self) -> None:
        """Wake the thread if there is enough to do; called by the ticker."""
        self.on_look()
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
            self.on_look()
            try:
                self._log.check_lock()
            except FencedError as error:
                self.failure = str(error)
                logger.error(
                    "%s", error, extra={"store": self.root}
                )  # it says what there is to say
                return  # appends raise it
            self._do_chores()
            if is_due or self._has_incoming():
                self.round()
            if is_due:
                next_at = time.monotonic() + interval

    def _do_chores(self) -> None:
        for chore in list(self.chores):
            try:
                chore()
            except UnknownTopicError:
                self.chores.remove(chore)  # its object is gone
            except Exception as error:
                logger.warning("%s: will be tried again: %s", self.root, error)

    def _has_incoming(self) -> bool:
        """Return whether there is something to adopt that did not fail just now."""
        failed = self.failure and self._clock.monotonic() - self._failed_at < _RETRY_SECONDS
        with contextlib.suppress(FencedError):  # the next check of the lock raises it
            return not failed and self._adopter.is_due()
        return False

    def round(self) -> None:
        """Do what is due; errors are logged, and kept for `stats`."""
        try:
            with self._lock:
                self._round()
            self.failure = None
        # Any error: a thread that ended silently would let the log grow for ever.
        except Exception as error:
            if self.failure is None:
                is_known = isinstance(error, StratalogError | OSError)
                logger.warning(
                    "%s: upkeep failed, and will try again: %s", self.root, error,
                    exc_info=not is_known, extra={"store": self.root, "error": str(error)},
                )  # fmt: skip
            self._failed_at = self._clock.monotonic()
            self.failures += 1
            self.failure = str(error) or type(error).__name__
        self.mover.wake()
        self.lake.wake()

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
            failures.collect(lambda: self._tidy(partial(self._rewrite, options.rewrite_ratio)))
            pending = self._log_bytes(self._snapshotted)
            due = now - self._snapshotted_at >= options.snapshot_interval
            if pending >= options.snapshot_bytes or (pending and due):
                failures.collect(self._snapshot)

    # --- on demand ------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Move everything into segments now."""
        with self._lock:
            self._checkpoint()

    def snapshot(self) -> None:
        """Write a snapshot now, and release the log that is no longer needed."""
        with self._lock:
            self._checkpoint()
            self._snapshot()

    def adopt(self) -> int:
        """Adopt published manifests, and checkpoint their records; returns how many."""
        with self._lock:
            adopted = self._adopter.adopt()
            if adopted:
                self._checkpoint()
            return adopted

    def clean_up(self) -> None:
        """Remove staged files without use; when the store is opened, and now and then."""
        self._cleaned_at = self._clock.monotonic()
        self._adopter.clean_up()

    def compact(self) -> CompactionReport:
        """Checkpoint, evict, rewrite and move everything now."""
        report = CompactionReport(0, 0, 0)
        moved = 0

        def tidy() -> None:
            nonlocal report
            with self._lock:
                report = self._tidy(partial(self._rewrite, _RATIO_MIN))

        def move() -> None:  # the cold store is asked with no lock held
            nonlocal moved
            moved = self.mover.run()

        def snapshot() -> None:
            with self._lock:
                self._check_open()
                self._snapshot()

        with self._lock:
            self._checkpoint()
            self._seal_worn()
        with Failures() as failures:
            failures.collect(tidy)
            failures.collect(move)
            failures.collect(partial(self.lake.run, 0.0))
            failures.collect(snapshot)  # what could be done is done
        return msgspec.structs.replace(report, segments_moved=moved)

    def _check_open(self) -> None:
        if self._is_stopped:
            raise ClosedError(f"{self.root} is closed: open it again with stratalog.open()")

    def purge(self) -> CompactionReport:
        """Compact, and leave no byte in any file of a record that can no longer be read."""
        report = CompactionReport(0, 0, 0)

        def tidy() -> None:
            nonlocal report
            report = self._tidy(purge.rewrite)

        def purge_log() -> None:  # whatever became of a topic
            for topic in self._catalog.topics():
                if isinstance(topic.projection, TableProjection):
                    topic.projection.purge()
            # Two, or the older one would need the log before them.
            self._snapshot()
            self._snapshot()
            purge.clean_up()

        with self._lock:
            self._check_open()
            purge = Purge(self._log, self._replay, self._catalog, self._adopter)
            try:
                purge.begin()
                self._adopter.adopt()
                self._checkpoint(self._rest)
                with Failures() as failures:
                    failures.collect(partial(self._prepare, purge))
                    failures.collect(tidy)
                    failures.collect(purge_log)
            finally:
                purge.end()
        moved = self.mover.run()
        self.mover.sweep()
        self.lake.run(0.0, is_purge=True)
        account = purge.report(self.mover.claim.find(), self.lake.unreached())
        return msgspec.structs.replace(report, segments_moved=moved, purge=account)

    def _prepare(self, purge: Purge) -> None:
        """Seal what a purge has to rewrite."""
        with Failures() as failures:
            self._mark(self._seal_all(purge, failures))

    def _seal_all(self, purge: Purge, failures: Failures) -> list[TopicLog]:
        now = self._clock.time_ns()
        sealed = []
        for topic in self._catalog.topics():
            failures.collect(partial(purge.forget_consumed, topic), topic)
            if purge.seal(topic, now):
                sealed.append(topic)
        return sealed

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Checkpoint, make a snapshot, and stand still until the block is left.

        Until then no segment, snapshot or log file is changed, moved or given up.
        """
        with self._lock:
            self._check_open()
            self._checkpoint()
            self._snapshot()
            yield

    def finish(self) -> None:
        """Leave so little in the log at a clean close that the next open is immediate."""
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
            logger.warning(
                "%s: closed with all of its log, because %s",
                self.root,
                error,
                extra={"store": self.root, "error": str(error)},
            )

    # --- steps; the lock is held ----------------------------------------------------------

    def _checkpoint(self, rest: Callable[[], None] = lambda: None) -> None:
        if self._refusal is not None:
            raise self._refusal
        begin = time.perf_counter_ns()
        self._log.sync(reports_loss=False)
        positions = self._log.positions()
        touched: list[TopicLog] = []
        try:
            self._checkpoint_all(touched, rest)
            if any(map(has_new_ids, self._catalog.topics())):
                self._snapshot()
        except SyncFailedError as error:
            self._refusal = error  # the kernel's copy of the file is unknown from now on
            raise
        finally:
            # Below a mark no ids are looked for: records go, while their ids still count.
            self._mark(list(filterfalse(has_new_ids, touched)))
        self._checkpointed = self._advance(positions)
        self._checkpointed_at = self._clock.monotonic()
        self.checkpoints += 1
        taken = time.perf_counter_ns() - begin
        self.times.record(taken)
        logger.debug(
            "%s: checkpoint of %d topics",
            self.root,
            len(touched),
            extra={"store": self.root, "topics": len(touched), "seconds": taken / 1e9},
        )

    def _checkpoint_all(self, touched: list[TopicLog], rest: Callable[[], None]) -> None:
        """Move every topic's frames into its segments; `touched` collects those that had any."""
        now = self._clock.time_ns()
        for topic in self._catalog.topics():
            self._evict(topic, early_eviction)
            if topic.kind == QUEUE:
                topic.groups.states()  # it looks for ids in records that the log still has
            is_new = checkpoint(topic, now, rest)
            if seal_due(topic, now) or is_new:
                touched.append(topic)

    def _seal_worn(self) -> None:
        """Seal open segments with something to remove: only sealed ones are evicted or rewritten.

        Not in the background, where they get there by their size or age.
        """
        now = self._clock.time_ns()
        worn = [topic for topic in self._catalog.topics() if is_worn(topic, now)]
        for topic in worn:
            seal(topic, now)
        self._mark(list(filterfalse(has_new_ids, worn)))

    def _rest(self) -> None:
        """Pause for concurrent appends, unless there are none, or too many."""
        commits = sum(shard.commits for shard in self._log.shards)
        is_active = commits != self._commits
        self._commits = commits
        behind_max = _BEHIND_MAX * self._options.checkpoint_bytes
        if is_active and not self._is_stopped and self._log_bytes(self._checkpointed) < behind_max:
            time.sleep(_REST_SECONDS)

    def _tidy(self, rewritten: Callable[[TopicLog, int], int]) -> CompactionReport:
        """Evict and rewrite; a failure does not stop the rest, and is raised at the end.

        `rewritten` rewrites segments of a topic at this time, and returns the bytes freed.
        """
        segments = freed = 0
        now = self._clock.time_ns()

        def remove(topic: TopicLog) -> None:
            nonlocal segments, freed
            self._evict(topic, partial(eviction, now=now))
            self._downsampler.run(topic, now)
            count, size = remove_below(topic)
            segments, freed = segments + count, freed + size

        def rewrite(topic: TopicLog) -> None:
            nonlocal freed
            freed += rewritten(topic, now)

        def merge(topic: TopicLog) -> None:
            nonlocal freed
            freed += merge_empty(topic, now)

        with Failures() as failures:
            failures.collect(self._replay.finish_replacements)
            waiting = {one.footer.topic_id for one in self._replay.replacements}
            for topic in self._catalog.topics():
                # What is to replace others was made of them as they are.
                steps = (
                    (remove,) if topic.id in waiting else (finish_rewrites, remove, rewrite, merge)
                )
                failures.collect_steps(steps, topic)
            for topic_id in sorted(self._replay.dropped):
                failures.collect(partial(remove_files, self._replay.pool, topic_id))
            if self._clock.monotonic() - self._cleaned_at >= _CLEAN_SECONDS:
                failures.collect(self.clean_up)
        return CompactionReport(segments, freed, 0)

    def _rewrite(self, ratio: float, topic: TopicLog, now: int) -> int:
        freed = reclaim(topic, now, ratio)
        if topic.options.compact:
            freed += compact(topic, now, ratio, self._log.budget)
        return freed

    def _evict(self, topic: TopicLog, find: Callable[[TopicLog], Eviction | None]) -> None:
        if topic.options.retention == "consumed":
            # What a route has yet to forward was not consumed.
            needed = self._replay.routes.retained_from(topic.id, self._replay.topics)
            topic.history.consumed_below = min(topic.groups.consumed_below(), needed)
        wanted = find(topic)
        if wanted is not None and not has_new_ids(topic):
            earliest = max(topic.earliest, wanted.below)
            body = encode_floor(wanted.below, wanted.reason)
            self._log.write([control(topic, FrameType.FLOOR, earliest, body)])

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
        catalog, groups, queues, projections = capture_store(self._replay, self._catalog)
        routes, schedules = self._replay.routes.capture(), self._replay.schedules.capture()
        if groups.groups or projections.projections or routes.routes or schedules.schedules:
            # What they say of records is then in the log: a crash takes none of it back that the
            # snapshot has.
            self._log.sync(reports_loss=False)
        log = LogState(dict(self._checkpointed))
        self._replay.snapshots.write(
            log,
            catalog,
            self._clock.time_ns(),
            groups,
            queues,
            projections,
            routes,
            capture_lakes(self._catalog.topics()),
            schedules,
        )
        for one in queues.queues:
            topic = self._replay.topics.get(one.topic_id)
            if topic is not None and topic.groups.queue is not None:
                topic.groups.queue.covered = one.deduped
        self._log.release(self._replay.snapshots.released())
        self.note_ends()
        self._snapshotted = dict(self._checkpointed)
        self._snapshotted_at = self._clock.monotonic()
        self.snapshots += 1

    def note_ends(self) -> None:
        """Write down how far the log is durable; what fails is tried again with the next."""
        with contextlib.suppress(OSError, StratalogError):
            write_ends(
                self._replay.pool.fs, self.root, self._replay.pool.identity, self._log.ends()
            )

    def log_bytes(self) -> int:
        """Bytes of log that are not in segments yet."""
        return self._log_bytes(self._checkpointed)

    def _log_bytes(self, positions: dict[int, int]) -> int:
        """Return the bytes of log after these positions."""
        written = self._log.positions()
        return sum(lsn - positions.get(number, 0) for number, lsn in written.items())
