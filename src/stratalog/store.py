"""The store: wiring and lifecycle, nothing else."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import warnings
from typing import Any, Self

from stratalog.backup import Progress, Source, back_up
from stratalog.batch import Batch
from stratalog.clock import Clock, SystemClock
from stratalog.errors import DamagedError, ReadOnlyError, StratalogError, TopicExistsError
from stratalog.format.control import TopicBody
from stratalog.format.names import check_topic_name, lock_path
from stratalog.fs import FileSystem, Lock, PosixFileSystem
from stratalog.fs.cold import open_cold
from stratalog.fs.holder import holder
from stratalog.inputs import check_path
from stratalog.log.interrupts import ended_by, insist
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.memory import keep_freed_memory
from stratalog.model import Durability
from stratalog.opened import OPEN, closed
from stratalog.options import StoreOptions, TopicOptions
from stratalog.projections.catalog import Catalog
from stratalog.projections.deletes import delete
from stratalog.projections.identity import make_directory, read_or_create
from stratalog.projections.replay import Replay
from stratalog.queues import QueueStore
from stratalog.reports import BackupReport, CompactionReport, StoreStats
from stratalog.segments.delete import Conditions
from stratalog.stats import store_stats
from stratalog.topic import Topic
from stratalog.upkeep import Upkeep
from stratalog.view import View

logger = logging.getLogger("stratalog")

# A watcher is woken by the commit it waits for; this is for a store that closes at the very moment
# it begins to wait.
_WAIT_SECONDS = 1.0


class Store(QueueStore):
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
    ) -> None:
        self.is_closed = self._has_let_go = True  # until all of the below is done
        keep_freed_memory()
        self.path = os.path.abspath(check_path(path))
        self.options = options
        self._pid = os.getpid()
        self.clock = SystemClock() if clock is None else clock
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
        try:
            if read_only:
                self._open_view()
            else:
                make_directory(self._fs, self.path)
                self._lock = self._fs.lock(lock_path(self.path), holder())
                self._store_file = read_or_create(self._fs, self.path, self.clock.time_ns())
                self._recover(background)
            self.is_closed = self._has_let_go = False
            OPEN.add(self)
        except BaseException:
            self._give_up()
            raise
        if self.damage is not None:
            logger.warning("%s: opened read-only, because its log is damaged", self.path)

    def _open_view(self) -> None:
        view = self._view = View(self._fs, self.path)
        if self.options.cold is not None:
            view.replay.pool.cold = open_cold(self.options.cold, self._fs)
        self._catalog, self._replay, self._store_file = view.catalog, view.replay, view.store_file
        damage = view.damage()
        self.damage = None if damage is None else str(damage)

    def _give_up(self) -> None:
        """An open that failed: no thread of it goes on beside whoever opens the store next."""
        self.is_closed = self._has_let_go = True
        OPEN.discard(self)
        if self._upkeep is not None:
            insist(self._upkeep.stop)
        if self._log is not None:
            insist(self._log.close)
            insist(self._log.tell)
        if self._lock is not None:
            self._lock.close()

    def _recover(self, background: bool) -> None:
        """Go on where the last writer stopped, however it stopped."""
        fs, path = self._fs, self.path
        self._replay = Replay(fs, path, self._store_file.identity)
        self._replay.advance()
        self._catalog = Catalog(self._replay)
        damage = self._replay.damage()
        self.damage = None if damage is None else str(damage)
        if damage is not None:
            self.is_read_only = True  # what repair has to judge stays as it is
            return
        self._replay.clean_up()
        replay = self._replay
        self._log = Log(fs, path, self.options, self.clock, replay.reader, replay.scanners)
        for topic in self._catalog.topics():
            self._log.attach(topic)
        io_bytes = self._log.budget.limit("io")
        replay.pool.resident_bytes_max = min(replay.pool.resident_bytes_max, io_bytes // 2)
        if self.options.cold is not None:
            replay.pool.cold = open_cold(self.options.cold, fs)
        shards = self._log.shards
        replay.pool.cold_gate.commits = lambda: sum(shard.commits for shard in shards)
        self._upkeep = Upkeep(
            self._log, replay, self._catalog, self.options, self.clock,
            lambda name: self.create(name, TopicOptions(), may_exist=True),
        )  # fmt: skip
        self._upkeep.clean_up()
        if background:
            self._log.start()
            self._upkeep.start()

    # --- topics --------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic of that name; a writer creates it on first use, with default options."""
        if self._view is not None and not self.is_closed:
            self._view.refresh()
        handle = self._handles.get(name) if isinstance(name, str) else None
        if handle is not None and not self.is_closed and not handle.is_dropped:
            return handle
        self.check_open()
        name = check_topic_name(name)
        log = self._catalog.get(name)
        if log is None:
            if self.is_read_only:
                log = self._catalog.find(name)  # raises, and says what is there
            else:
                log = self.create(name, TopicOptions(), may_exist=True)
        return self.handle(name, log)

    def handle(self, name: str, log: TopicLog) -> Topic:
        """One handle per topic, whoever asks first."""
        handle = self._handles.setdefault(name, Topic(self, log))
        if handle.is_dropped:
            handle = self._handles[name] = Topic(self, log)
        return handle

    def create_topic(self, name: str, **options: Any) -> Topic:
        """Create a topic with options of its own: see `TopicOptions`."""
        self.check_writable()
        name = check_topic_name(name)
        return self.handle(name, self.create(name, TopicOptions.build(options), may_exist=False))

    def topics(self) -> list[str]:
        """Names of all topics, sorted."""
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
                options = TopicOptions.build(options.to_dict() | {"durability": "ephemeral"})
            log = self._catalog.new()
            epoch = self._replay.epochs.get(name, 0)
            log.define(TopicBody(name, kind, self.clock.time_ns(), options.to_dict(), epoch))
            self._log.attach(log)
            self._log.write_topic(log, self._catalog.add)
            return log

    def batch(self, *, durability: Durability | str | None = None) -> Batch:
        """Appends to several topics that are all kept or none: use it in a `with` block."""
        self.check_writable()
        return Batch(self, self._catalog, self.crossing, durability)

    # --- operations ----------------------------------------------------------------------

    def sync(self) -> None:
        """Make every append so far durable, whatever its class."""
        self.check_writable()
        assert self._log is not None
        self._log.sync()

    def checkpoint(self) -> None:
        """Put the records of the log into segments now; this happens by itself all the time."""
        self._upkept().checkpoint()

    def snapshot(self) -> None:
        """Checkpoint, make a snapshot, and give up the log that nobody needs any more."""
        self._upkept().snapshot()

    def adopt(self) -> int:
        """Adopt what others have published now; returns how many batches. It happens by itself."""
        return self._upkept().adopt()

    def is_adopted(self, writer: str, batch: int) -> bool:
        """Whether a batch that was published, or a later one of its writer, was adopted."""
        self.check_open()
        if self._view is not None:
            self._view.refresh()
        return self._replay.writers.is_adopted(writer, batch)

    def compact(self) -> CompactionReport:
        """Evict, rewrite and move to the cold store what can be, now instead of by and by."""
        return self._upkept().compact()

    def drop_topic(self, name: str) -> None:
        """Remove a topic and its records for good; a new one of that name starts from nothing."""
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
        topic.is_plain = False
        topic.memory.detach()
        for engine in topic.groups.live.values():
            engine.close()

    def backup(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> BackupReport:
        """Make a consistent copy while appends go on, in a new or empty directory.

        Restoring is opening it: it is a store of its own, with the same identity and records.
        `progress` is called with the bytes that are done and the bytes in all.
        """
        upkeep = self._upkept()
        assert self._log is not None
        source = Source(
            self._fs, self.path, self._store_file, self._log, self._replay, self._catalog, upkeep,
            self.clock, self.options.disk_reserve_bytes,
        )  # fmt: skip
        return back_up(source, check_path(path), progress)

    def _upkept(self) -> Upkeep:
        self.check_writable()
        assert self._upkeep is not None
        return self._upkeep

    def stats(self) -> StoreStats:
        """Numbers about the store, taken from memory."""
        self.check_open()
        if self._view is not None:
            self._view.refresh()
        return store_stats(
            self._fs, self.path, self._store_file, self._catalog, self._replay, self._log,
            self._upkeep, self.damage, read_only=self.is_read_only,
        )  # fmt: skip

    def close(self) -> None:
        """Write and sync everything, then let the directory go; closing twice is fine.

        Ctrl-C is raised at the end, a second one at once: closing again then goes on.
        """
        tell = self._log.tell if self._log and os.getpid() == self._pid else lambda: None
        interrupt = ended_by(tell)  # while it is open, without a lock: a callback may close it
        try:
            with self._close_lock:
                if not self._has_let_go:
                    with self._topics_lock:
                        self.is_closed = True
                    interrupt = self._close() or interrupt
        finally:
            interrupt = interrupt or ended_by(tell)
        if interrupt is not None:
            raise interrupt

    def _close(self) -> BaseException | None:
        # Nothing is let go of before this thread has ended, which changes files of the directory.
        interrupt = None if self._upkeep is None else insist(self._upkeep.stop)
        try:
            if self._log is not None and not self._log.is_closed:
                self._log.finish(self._catalog.topics())
                if self._upkeep is not None:
                    self._upkeep.finish()
        finally:
            if self._log is not None:
                self._log.close()
            for topic in self._catalog.topics():
                topic.is_plain = False  # sends appends to the check that says "closed"
                topic.wake()
            self._replay.reader.close()
            self._replay.pool.close()
            if self._lock is not None:
                self._lock.close()
            OPEN.discard(self)
            self._has_let_go = True  # only now: if Ctrl-C came before, closing again goes on
        return interrupt

    def forget(self) -> None:
        """Be closed in a forked process: the directory and what is in it are the parent's."""
        self.is_closed = self._has_let_go = True
        self._close_lock = threading.Lock()  # whoever had it is not in this process
        if self._log is not None:
            self._log.forget(self._catalog.topics(), closed(self.path, self._pid))
        if self._lock is not None:
            self._lock.close()  # the parent's is the same lock, and stays

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "read-only" if self.is_read_only else "open"
        return f"<stratalog.Store {self.path!r} {state}>"

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

    def settle(self, topic: TopicLog) -> None:
        """Make everything readable that was acknowledged before this call."""
        self.check_open()
        if self._view is not None:
            self._view.refresh()
        elif self._log is not None and not topic.is_dropped:
            topic.settle()
        topic.check_dropped()

    def delete(self, topic: TopicLog, end: int, conditions: Conditions) -> int:
        """Delete records below an offset that meet the conditions; returns how many."""
        assert self._log is not None
        return delete(self._log, topic, end, conditions, self.clock.time_ns())

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
