"""The store: wiring and lifecycle, nothing else."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import secrets
import socket
import sys
import threading
import time
import warnings
import weakref
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from stratalog.clock import Clock, SystemClock
from stratalog.errors import (
    ClosedError,
    DamagedError,
    NotAStoreError,
    ReadOnlyError,
    StratalogError,
    TopicExistsError,
)
from stratalog.format.control import TopicBody
from stratalog.format.names import check_topic_name, lock_path, store_path, store_temp_path
from stratalog.format.store import VERSION, StoreFile, encode_store
from stratalog.fs import FileSystem, Lock, PosixFileSystem
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.model import Durability, StoreStats
from stratalog.options import StoreOptions, TopicOptions
from stratalog.projections.catalog import Catalog
from stratalog.projections.replay import Replay
from stratalog.topic import Topic
from stratalog.upkeep import Upkeep
from stratalog.view import View, read_store_file

logger = logging.getLogger("stratalog")

# A watcher is woken by the commit it waits for; this is for a store that closes at the very moment
# it begins to wait.
_WAIT_SECONDS = 1.0

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


class Store:
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
        self.is_closed = True  # until all of the below is done
        self.path = os.path.abspath(os.fspath(path))
        self.options = options
        self.clock = SystemClock() if clock is None else clock
        self.is_read_only = read_only
        self._fs = PosixFileSystem() if fs is None else fs
        self._lock: Lock | None = None
        self._log: Log | None = None
        self._upkeep: Upkeep | None = None
        self._view: View | None = None
        self._topics_lock = threading.Lock()
        self._handles: dict[str, Topic] = {}
        if read_only:
            self._view = View(self._fs, self.path)
            self._catalog = self._view.catalog
            self._replay = self._view.replay
            self._store_file = self._view.store_file
            damage = self._replay.damage()
            self.damage = None if damage is None else str(damage)
        else:
            self._open_writer(background)
        self.is_closed = False
        _open_stores.add(self)
        if self.damage is not None:
            logger.warning("%s: opened read-only, because its log is damaged", self.path)

    def _open_writer(self, background: bool) -> None:
        self._fs.makedirs(self.path)
        self._lock = self._fs.lock(lock_path(self.path), _holder())
        try:
            self._store_file = self._read_or_create()
            self._recover(background)
        except BaseException:
            self._lock.close()
            raise

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
        self._upkeep = Upkeep(self._log, replay, self._catalog, self.options, self.clock)
        if background:
            self._log.start()
            self._upkeep.start()
        for torn in self._log.torn:
            logger.warning(
                "%s: cut %d unfinished bytes off at position %d: what a crash left of appends "
                "that were not yet durable", torn.path, torn.bytes, torn.position,
            )  # fmt: skip

    def _read_or_create(self) -> StoreFile:
        names = self._fs.listdir(self.path)
        if os.path.basename(store_path(self.path)) in names:
            return read_store_file(self._fs, self.path)
        temp = store_temp_path(self.path)
        others = [n for n in names if n not in (os.path.basename(temp), "lock")]
        if others:
            raise NotAStoreError(
                f"{self.path} is not a Stratalog store and not empty (it holds {others[0]!r}): "
                "give the path of a store, or of a new or empty directory"
            )
        store_file = StoreFile(secrets.token_bytes(16), self.clock.time_ns())
        self._fs.unlink(temp)
        file = self._fs.open(temp, "create")
        try:
            file.pwrite([encode_store(store_file)], 0)
            file.fdatasync()
        finally:
            file.close()
        self._fs.rename(temp, store_path(self.path))
        self._fs.sync_dir(self.path)
        return store_file

    # --- topics --------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic of that name; a writer creates it on first use, with default options."""
        handle = self._handles.get(name) if isinstance(name, str) else None
        if handle is not None and not self.is_closed:
            return handle
        self._check_open()
        check_topic_name(name)
        if self._view is not None:
            self._view.refresh()
        log = self._catalog.get(name)
        if log is None:
            if self.is_read_only:
                log = self._catalog.find(name)  # raises, and says what is there
            else:
                log = self._create(name, TopicOptions(), may_exist=True)
        return self._handles.setdefault(name, Topic(self, log))

    def create_topic(self, name: str, **options: Any) -> Topic:
        """Create a topic with options of its own: see `TopicOptions`."""
        self.check_writable()
        check_topic_name(name)
        log = self._create(name, TopicOptions.build(options), may_exist=False)
        return self._handles.setdefault(name, Topic(self, log))

    def topics(self) -> list[str]:
        """Names of all topics, sorted."""
        self._check_open()
        if self._view is not None:
            self._view.refresh()
        return self._catalog.names()

    def _create(self, name: str, options: TopicOptions, *, may_exist: bool) -> TopicLog:
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
            log.define(TopicBody(name, "topic", self.clock.time_ns(), options.to_dict()))
            self._log.attach(log)
            self._log.write_topic(log)
            self._catalog.add(log)
            return log

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

    def _upkept(self) -> Upkeep:
        self.check_writable()
        assert self._upkeep is not None
        return self._upkeep

    def stats(self) -> StoreStats:
        """Numbers about the store, taken from memory."""
        self._check_open()
        if self._view is not None:
            self._view.refresh()
        topics = self._catalog.topics()
        shards = [] if self._log is None else self._log.shards
        torn = [] if self._log is None else self._log.torn
        return StoreStats(
            path=self.path,
            identity=self._store_file.identity.hex(),
            format_version=VERSION,
            read_only=self.is_read_only,
            topics=len(topics),
            records=sum(topic.committed - topic.earliest for topic in topics),
            bytes=sum(t.index.total_bytes() + t.history.total_bytes() for t in topics),
            shards=len(shards) or len(self._replay.scanners),
            commits=sum(shard.commits for shard in shards),
            committed_frames=sum(shard.committed_entries for shard in shards),
            syncs=sum(shard.files.syncs for shard in shards),
            replayed_frames=self._replay.frames,
            torn_bytes=sum(tail.bytes for tail in torn),
            damage=self.damage,
        )

    def close(self) -> None:
        """Write and sync everything, then let the directory go; closing twice is fine."""
        with self._topics_lock:
            if self.is_closed:
                return
            self.is_closed = True
        _open_stores.discard(self)
        try:
            if self._upkeep is not None:
                self._upkeep.stop()
            if self._log is not None:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        self._check_open()
        if self.is_read_only:
            if self.damage is not None:
                raise DamagedError(self.damage)
            raise ReadOnlyError(
                f"{self.path} was opened with read_only=True: open it without to append"
            )

    def settle(self, topic: TopicLog) -> None:
        """Make everything readable that was acknowledged before this call."""
        self._check_open()
        if self._view is not None:
            self._view.refresh()
        elif self._log is not None:
            topic.settle()

    def wait(self, topic: TopicLog, offset: int, timeout: float | None) -> bool:
        """Block until `offset` can be read; False when the time is up or the store closes."""
        self._check_open()
        if self._view is not None:
            return self._view.wait(topic, offset, timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while topic.committed <= offset:
            left = _WAIT_SECONDS if deadline is None else deadline - time.monotonic()
            if self.is_closed or left <= 0:
                return False
            topic.wait(offset, min(left, _WAIT_SECONDS))
        return not self.is_closed

    def _check_open(self) -> None:
        if self.is_closed:
            raise ClosedError(f"{self.path} is closed: open it again with stratalog.open()")


def _holder() -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return f"process {os.getpid()} ({program}) on {socket.gethostname()}, since {since}"


@atexit.register
def _close_all() -> None:
    """A program that ends without closing loses nothing that it could have kept."""
    for store in list(_open_stores):
        with contextlib.suppress(StratalogError):
            store.close()
