"""The store: wiring and lifecycle, nothing else."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from stratalog.arguments import check_path
from stratalog.backup import Progress, Source, back_up
from stratalog.clock import Clock, SaneClock, SystemClock
from stratalog.errors import (
    DamagedError,
    OptionError,
    ReadOnlyError,
    StratalogError,
    TopicExistsError,
)
from stratalog.format.control import TopicBody
from stratalog.format.names import check_topic_name, lock_path
from stratalog.fs import FileSystem, Lock, PosixFileSystem
from stratalog.fs.cold import check_apart, open_cold
from stratalog.fs.guard import GuardedFs
from stratalog.fs.holder import holder
from stratalog.fs.os_errors import out_of_memory
from stratalog.handles.alter import alteration
from stratalog.handles.batch import Batch
from stratalog.handles.documented import Documented
from stratalog.handles.kinds import check_is
from stratalog.handles.lake import LakeStatus
from stratalog.handles.measure import Sampler, collect
from stratalog.handles.notebook import html_of
from stratalog.handles.open_stores import OPEN, closed
from stratalog.handles.queue_store import QueueStore
from stratalog.handles.route import RouteStore
from stratalog.handles.schedule import ScheduleStore
from stratalog.handles.series_store import SeriesStore
from stratalog.handles.stats import store_stats
from stratalog.handles.table import Table
from stratalog.handles.table_store import TableStore
from stratalog.handles.topic import Topic
from stratalog.handles.topic_store import TopicStore, TypeKey
from stratalog.handles.typed import TypedTopic
from stratalog.lake.only import LakeOnly
from stratalog.log.interrupts import ended_by, insist
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.memory_budget import keep_freed_memory
from stratalog.model import Durability
from stratalog.options import StoreOptions, TopicOptions
from stratalog.reports import BackupReport, CompactionReport, StoreStats
from stratalog.segments.delete import Conditions
from stratalog.settings import NOTHING, Configuration
from stratalog.state.catalog import Catalog
from stratalog.state.ceilings import skip_given
from stratalog.state.delete import delete
from stratalog.state.identity import check_free, make_directory, read_or_create
from stratalog.state.recovery import Replay
from stratalog.state.router import project
from stratalog.upkeep.rounds import Upkeep
from stratalog.view import View

_Result = TypeVar("_Result")

logger = logging.getLogger("stratalog.store")

# A commit wakes the watcher that waits for it; this interval is for a store that closes at the
# very moment a watcher begins to wait.
_WAIT_SECONDS = 1.0


# The most files that upkeep has open at a time, the lock file; and what readers get in any case.
_UPKEEP_FILES = 10
_READ_FILES_MIN = 8


MEMORY_PATH = "/:memory:"
"""The path of a store in memory: see `stratalog.open`."""


class Store(Documented, TopicStore, QueueStore, RouteStore, ScheduleStore, SeriesStore, TableStore):
    """An open store. Get one from `stratalog.open`; close it, or use it in a `with` block."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: StoreOptions,
        *,
        read_only: bool = False,
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        background: bool = True,
        configuration: Configuration = NOTHING,
    ) -> None:
        self.is_closed = self._has_let_go = True  # until the constructor has finished
        keep_freed_memory()
        self.path = os.path.abspath(check_path(path))
        self.options = options
        self.configuration = configuration
        """Options of new topics and queues, where the caller gives none."""
        self._topic_options = TopicOptions.build(configuration.topic)
        self._pid = os.getpid()
        system = SystemClock()
        self.clock: Clock = SaneClock(system if clock is None else clock)
        # Bare appends ask the machine's clock itself, 20 ns cheaper: Linux lets no clock be set
        # beyond 2232, and one before 1970 is held by the time of the record before.
        self._append_time_ns = system.time_ns if clock is None else self.clock.time_ns
        self.is_read_only = read_only
        self._fs = PosixFileSystem() if fs is None else fs
        self._lock: Lock | None = None
        self._log: Log | None = None
        self._upkeep: Upkeep | None = None
        self._view: View | None = None
        self._close_lock = threading.Lock()
        self._topics_lock = threading.Lock()
        self._groups_lock = threading.Lock()
        self._handles: dict[str, Topic] = {}
        self._typed: dict[TypeKey, TypedTopic[Any]] = {}
        self._tables: dict[str, Table] = {}
        self.sampler = Sampler(self._handles)
        try:
            if read_only:
                self._open_view()
            else:
                if options.cold is not None:
                    check_apart("cold", options.cold, self.path)
                if options.lake is not None:
                    check_apart("lake", options.lake, self.path)
                make_directory(self._fs, self.path)
                check_free(self._fs, self.path)  # before anything of ours is in it
                self._lock = self._fs.lock(lock_path(self.path), holder())
                self._fs = GuardedFs(self._fs, self._lock)
                self._store_file = read_or_create(self._fs, self.path, self.clock.time_ns())
                self._recover(background)
            self.sampler.bases = {one.id: one.committed for one in self._catalog.topics()}
            self.is_closed = self._has_let_go = False
            OPEN.add(self)
            logger.debug("%s: opened", self.path, extra=self._fields())
        except BaseException:
            self._give_up()
            raise
        if self.damage is not None:
            logger.warning(
                "%s: opened read-only, because it is damaged",
                self.path,
                extra={"store": self.path, "error": self.damage},
            )

    def _fields(self) -> dict[str, Any]:
        """Return the structured fields that log messages about the store carry."""
        return {
            "store": self.path, "read_only": self.is_read_only,
            "topics": len(self._catalog.names()), "replayed_frames": self._replay.frames,
        }  # fmt: skip

    def _open_view(self) -> None:
        view = self._view = View(
            self._fs, self.path, expanded_bytes_max=self.options.expanded_bytes_max
        )
        if self.options.cold is not None:
            view.replay.pool.cold = open_cold(self.options.cold, self._fs)
        self._catalog, self._replay, self._store_file = view.catalog, view.replay, view.store_file
        self._bound_files(len(view.replay.scanners))
        damage = view.damage()
        self.damage = None if damage is None else str(damage)

    def _bound_files(self, fixed: int) -> None:
        """Give readers the file descriptors that the log, the lock and upkeep do not need."""
        left = self.options.open_files_max - fixed - _UPKEEP_FILES
        self._replay.files.files_max = max(left, _READ_FILES_MIN)

    def _give_up(self) -> None:
        """Clean up after a failed open: no thread of it survives beside the next writer."""
        self.is_closed = self._has_let_go = True
        OPEN.discard(self)
        if self._upkeep is not None:
            insist(self._upkeep.stop)
        if self._log is not None:
            insist(self._log.close)
            insist(self._log.notify)
        if self._lock is not None:
            self._lock.close()

    def _recover(self, background: bool) -> None:
        """Continue where the last writer stopped, however it stopped."""
        fs, path = self._fs, self.path
        assert self._lock is not None
        self._replay = Replay(fs, path, self._store_file, self.options.expanded_bytes_max)
        self._replay.advance()
        self._catalog = Catalog(self._replay)
        damage = self._replay.damage()
        self.damage = None if damage is None else str(damage)
        if damage is not None:
            self.is_read_only = True  # repair has to see the directory unchanged
            return
        self._replay.clean_up()
        replay = self._replay
        self._log = Log(
            fs, path, self.options, self.clock, replay.reader, replay.scanners,
            self._append_time_ns, self._lock.check,
            self._store_file.identity,
        )  # fmt: skip
        assert isinstance(fs, GuardedFs)
        fs.check = self._log.check_lock  # any call that finds the store fenced stops appends
        for scanner in replay.scanners.values():
            scanner.rest()
        self._bound_files(2 * len(self._log.shards))
        for topic in self._catalog.topics():
            self._log.attach(topic)
        skip_given(self._log, self._catalog.topics(), path)
        io_bytes = self._log.budget.limit("io")
        replay.pool.resident_bytes_max = min(replay.pool.resident_bytes_max, io_bytes // 2)
        if self.options.cold is not None:
            replay.pool.cold = open_cold(self.options.cold, fs)
        shards = self._log.shards
        replay.pool.cold_gate.commits = lambda: sum(shard.commits for shard in shards)
        self._upkeep = Upkeep(
            self._log, replay, self._catalog, self.options, self.clock,
            lambda name, kind: self.create_adopted(name, kind, self._topic_options),
        )  # fmt: skip
        self._upkeep.clean_up()
        if not replay.ends:
            self._upkeep.note_ends()  # keeps the store's identity in a second place
        self._upkeep.on_look = self.sampler.tick
        if background:
            self._log.start()
            self._upkeep.start()

    # --- topics --------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """List the names of all topics, sorted."""
        self.check_open()
        if self._view is not None:
            self._view.refresh()
        return self._catalog.names()

    def create(
        self, name: str, options: TopicOptions, *, may_exist: bool, kind: str = "topic"
    ) -> TopicLog:
        """Create a topic of a kind, durably."""
        with self._topics_lock:
            existing = self._catalog.get(name)
            if existing is not None:
                if may_exist:
                    return existing
                raise TopicExistsError(
                    f"topic {name!r} exists already: open it with store.topic({name!r})"
                )
            self.check_writable()
            assert self._log is not None
            if options.durability is None and self.options.durability == Durability.EPHEMERAL:
                options = TopicOptions.restore(options.to_dict() | {"durability": "ephemeral"})
            log = self._catalog.new()
            epoch = self._replay.epochs.get(name, 0)
            log.define(TopicBody(name, kind, self.clock.time_ns(), options.to_dict(), epoch))
            project(log)
            self._log.attach(log)
            self._log.write_topic(log, self._catalog.add)
            logger.info(
                "%s: created %s %r",
                self.path,
                kind,
                name,
                extra={"store": self.path, "topic": name, "topic_kind": kind},
            )
            return log

    def log_of_kind(self, name: str, kind: str, options: TopicOptions) -> TopicLog:
        """Find the topic of a name and a kind; a writer creates it on first use."""
        self.check_open()
        name = check_topic_name(name)
        if self._view is not None:
            self._view.refresh()
        log = self._catalog.get(name)
        if log is None:
            if self.is_read_only:
                log = self._catalog.find(name)  # raises an error that lists what exists
            log = self.create(name, options, may_exist=True, kind=kind)
        check_is(log, kind)
        return log

    def log_named(self, name: str) -> TopicLog:
        """Find the topic of a name, whatever its kind; raises if there is none."""
        self.topics()
        return self._catalog.find(name)

    def log_by_id(self, topic_id: int) -> TopicLog | None:
        """Find the topic of an id, whatever its kind; None if it was dropped."""
        return self._replay.topics.get(topic_id)

    def each_look(self, chore: Callable[[], object]) -> None:
        """Call a function in the background, about twice a second, until the store closes."""
        assert self._upkeep is not None
        self._upkeep.chores.append(chore)

    def names_of_kind(self, kind: str) -> list[str]:
        """List the names of all topics of a kind, sorted."""
        self.topics()
        return [topic.name for topic in self._catalog.topics() if topic.kind == kind]

    def batch(self, *, durability: Durability | str | None = None) -> Batch:
        """Begin an atomic batch, all of which is kept or none: use it in a `with` block."""
        self.check_writable()
        return Batch(self, self._catalog, self.cross_shard, durability)

    # --- operations ----------------------------------------------------------------------

    def sync(self) -> None:
        """Make every append so far durable, whatever its class."""
        self.check_writable()
        assert self._log is not None
        self._log.sync()

    def checkpoint(self) -> None:
        """Move the records of the log into segments now; upkeep also does this by itself."""
        self._kept_up("make a checkpoint", self._upkept().checkpoint)

    def snapshot(self) -> None:
        """Checkpoint, write a snapshot, and release the log files that are no longer needed."""
        self._kept_up("make a snapshot", self._upkept().snapshot)

    def adopt(self) -> int:
        """Adopt published batches now; returns how many. Upkeep also does this by itself."""
        return self._upkept().adopt()

    def is_adopted(self, writer: str, batch: int) -> bool:
        """Return whether a published batch, or a later one of its writer, was adopted."""
        self.check_open()
        if self._view is not None:
            self._view.refresh()
        return self._replay.writers.is_adopted(writer, batch)

    def compact(self, *, purge: bool = False) -> CompactionReport:
        """Evict, rewrite and move to the cold store now, instead of in the background over time.

        With `purge`, once it returns no file of the store holds a byte of records that were
        deleted, evicted, replaced or consumed before this call; the report lists what is out of its
        reach.
        """
        upkeep = self._upkept()
        return self._kept_up("compact", upkeep.purge if purge else upkeep.compact)

    def alter(self, log: TopicLog, options: Mapping[str, Any]) -> None:
        """Change options of a topic, durably: the implementation of `Topic.alter`."""
        self.check_writable()
        with self._topics_lock:
            log.check_dropped()
            change = alteration(log, options)
            if change is not None:
                self.write_controls([change])

    def drop_topic(self, name: str) -> None:
        """Remove a topic and its records permanently; a new one of that name starts empty."""
        self.check_writable()
        name = check_topic_name(name)
        with self._topics_lock:
            topic = self._catalog.find(name)
            assert self._log is not None
            self._log.write_drop(
                topic,
                lambda: self._catalog.remove(topic),
                lambda: topic.id not in self._replay.topics,
            )
            self._handles.pop(name, None)
            self.sampler.drop(topic)
            logger.info(
                "%s: dropped %r", self.path, name, extra={"store": self.path, "topic": name}
            )
        topic.is_plain = False
        topic.memory.detach()
        for engine in topic.groups.live.values():
            engine.close()

    def backup(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Make a consistent copy while appends go on, in a new or empty directory.

        Restoring is opening it: it is a store of its own, with the same identity and records.
        `progress` is called with the bytes done so far and the total.
        """
        upkeep = self._upkept()
        assert self._log is not None
        if self.path == MEMORY_PATH:
            raise OptionError("A store in memory has no files to copy. Open it in a directory.")
        source = Source(
            self._fs, self.path, self._store_file, self._log, self._replay, self._catalog, upkeep,
            self.clock, self.options.disk_reserve_bytes,
        )  # fmt: skip
        target = check_path(path)
        return self._kept_up("make a backup", lambda: back_up(source, target, progress))

    def _kept_up(self, what: str, act: Callable[[], _Result]) -> _Result:
        """Run an operation that may be retried if memory ran out."""
        try:
            return act()
        except MemoryError as error:
            raise out_of_memory(what, self.path) from error

    def _upkept(self) -> Upkeep:
        self.check_writable()
        assert self._upkeep is not None
        return self._upkeep

    def stats(self) -> StoreStats:
        """Return numbers about the store, taken from memory."""
        self.check_open()
        if self._view is not None:
            self._view.refresh()
        return store_stats(
            self._fs, self.path, self._store_file, self._catalog, self._replay, self._log,
            self._upkeep, self.damage, read_only=self.is_read_only,
        )  # fmt: skip

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return counters since the store was opened, current gauges, and histograms in seconds.

        `docs/monitoring.md` explains each of them.
        """
        return collect(self.stats(), self._replay, self._log, self._upkeep, self.sampler)

    def close(self) -> None:
        """Write and sync everything, then release the directory; closing twice is fine.

        Ctrl-C is raised at the end, a second one at once: call `close` again to finish.
        """
        notify = self._log.notify if self._log and os.getpid() == self._pid else lambda: None
        interrupt = ended_by(notify)  # before the lock is taken: a callback may close the store
        try:
            with self._close_lock:
                if not self._has_let_go:
                    with self._topics_lock:
                        self.is_closed = True
                    interrupt = self._close() or interrupt
        finally:
            interrupt = interrupt or ended_by(notify)
        if interrupt is not None:
            raise interrupt

    def _close(self) -> BaseException | None:
        # This thread changes files of the directory, so it ends before anything is released.
        interrupt = None if self._upkeep is None else insist(self._upkeep.stop)
        try:
            if self._log is not None and not self._log.is_closed:
                self._log.finish(self._catalog.topics())
                if self._upkeep is not None:
                    self._upkeep.finish()
        finally:
            if self._log is not None:
                self._log.close()
            if self._upkeep is not None:
                self._upkeep.note_ends()
            for topic in self._catalog.topics():
                topic.is_plain = False  # sends appends to the check that raises "closed"
                if topic.projection is not None:
                    topic.projection.drop()
                topic.wake()
            self._replay.reader.close()
            self._replay.pool.close()
            if self._lock is not None:
                self._lock.close()
            OPEN.discard(self)
            logger.debug("%s: closed", self.path, extra=self._fields())
            self._has_let_go = True  # last: if Ctrl-C came before, closing again continues
        return interrupt

    def forget(self) -> None:
        """Become closed in a forked process: the directory and its files belong to the parent."""
        self.is_closed = self._has_let_go = True
        self._close_lock = threading.Lock()  # its holder does not exist in this process
        for topic in self._catalog.topics():
            if topic.projection is not None:
                topic.projection.drop()
        if self._log is not None:
            self._log.forget(self._catalog.topics(), closed(self.path, self._pid))
        if self._lock is not None:
            self._lock.close()  # the parent shares this lock, and keeps it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "read-only" if self.is_read_only else "open"
        return f"<stratalog.Store {self.path!r} {state}>"

    def _repr_html_(self) -> str:
        return html_of(self)

    def __del__(self) -> None:
        if not getattr(self, "is_closed", True):
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2)
            with contextlib.suppress(StratalogError):
                self.close()

    # --- for handles ---------------------------------------------------------------------

    def check_writable(self) -> None:
        """Raise unless appends are possible."""
        self.check_open()
        if self.is_read_only:
            if self.damage is not None:
                raise DamagedError(self.damage)
            raise ReadOnlyError(
                f"{self.path} was opened with read_only=True: open it without to append"
            )

    def make_readable(self, topic: TopicLog) -> None:
        """Make everything readable that was acknowledged before this call."""
        self.check_open()
        if self._view is not None:
            self._view.refresh()
        elif self._log is not None and not topic.is_dropped:
            topic.flush()
        topic.check_dropped()

    def delete(self, topic: TopicLog, end: int, conditions: Conditions) -> int:
        """Delete records below an offset that meet the conditions; returns how many."""
        assert self._log is not None
        now = self.clock.time_ns()
        return delete(self._log, topic, end, conditions, now, self.lake_only(topic))

    def lake_only(self, topic: TopicLog) -> LakeOnly:
        """Records of a topic that its lake alone has."""
        return LakeOnly(self._fs, self._store_file.identity, topic, self.options.lake)

    def lake_of(self, topic: TopicLog) -> LakeStatus:
        """Describe what the lake has of a topic."""
        return LakeStatus(self._fs, self._store_file.identity, topic, self.options.lake)

    def wait(self, topic: TopicLog, offset: int, timeout: float | None) -> bool:
        """Block until `offset` can be read; False when the time is up or the store closes."""
        self.check_open()
        if self._view is not None:
            return self._view.wait(topic, offset, timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while topic.committed <= offset:
            left = _WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            if self.is_closed or left <= 0:
                return False
            topic.check_dropped()
            topic.wait(offset, min(left, _WAIT_SECONDS))
        return not self.is_closed

    def check_open(self) -> None:
        """Raise if the store was closed."""
        if self.is_closed:
            raise closed(self.path, self._pid)
