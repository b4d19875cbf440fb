"""The part of a store that creates and finds consumer groups and queues."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from stratalog.consume.engine import Origin
from stratalog.format.names import check_topic_name
from stratalog.format.store import StoreFile
from stratalog.format.values import Codec, Encoding
from stratalog.handles.consumer_arguments import Place
from stratalog.handles.dead_letters import SUFFIX
from stratalog.handles.group import Group, open_group
from stratalog.handles.queue import Queue, check_kind, check_queue_name, open_queue
from stratalog.handles.queue_storage import keep_as, split_options, stored_as
from stratalog.handles.typed import codec_of, is_raw
from stratalog.handles.typed_queue import TypedQueue
from stratalog.log.cross_shard import CrossShard
from stratalog.log.log import Control, Log
from stratalog.log.topic import TopicLog
from stratalog.memory_budget import MemoryBudget
from stratalog.model import Durability, T
from stratalog.options import TopicOptions
from stratalog.settings import NewQueueSettings
from stratalog.state.catalog import Catalog
from stratalog.state.group_state import GroupState
from stratalog.view import View

if TYPE_CHECKING:
    from stratalog.handles.store import Store
    from stratalog.handles.topic import Topic


class QueueStore:
    """The methods of a store for groups and queues."""

    is_read_only: bool
    path: str
    _catalog: Catalog
    _groups_lock: threading.Lock
    _topics_lock: threading.Lock
    _log: Log | None
    _store_file: StoreFile
    _view: View | None

    @property
    def _store(self) -> Store:
        return cast("Store", self)  # Store is the only subclass

    @overload
    def queue(
        self,
        name: str,
        *,
        type: None = None,
        encoding: None = None,
        durability: Durability | str | None = None,
        **options: Unpack[NewQueueSettings],
    ) -> Queue: ...

    @overload
    def queue(
        self,
        name: str,
        *,
        type: builtins.type[T],
        encoding: Encoding | None = None,
        durability: Durability | str | None = None,
        **options: Unpack[NewQueueSettings],
    ) -> Queue[T]: ...

    def queue(
        self,
        name: str,
        *,
        type: Any = None,
        encoding: Encoding | None = None,
        durability: Durability | str | None = None,
        **options: Unpack[NewQueueSettings],
    ) -> Queue[Any]:
        """Get the queue of that name; a writer creates it on first use. Options: `QueueOptions`.

        Options that are given replace the queue's from then on. Its durability never changes.
        `compression`, `segment_...` and `retention_...` are those of a topic: with a retention,
        consumed messages stay readable for that long, and `seek` finds them.
        `type` and `encoding` are those of its messages, as in `topic`.
        """
        self._store.check_open()
        name = check_topic_name(name)
        check_queue_name(name)
        settings, storage = split_options(options)
        if self._view is not None:
            self._view.refresh()
        log = self._catalog.get(name)
        if log is None:
            if self.is_read_only:
                log = self._catalog.find(name)  # raises an error that lists what exists
            kept = stored_as({}, storage) | {"durability": durability}
            log = self._store.create(name, TopicOptions.build(kept), may_exist=True, kind="queue")
        check_kind(log, durability)
        if storage and not self.is_read_only:
            with self._topics_lock:
                keep_as(self._store, log, storage)
        make: Callable[..., Queue[Any]] = Queue
        if not is_raw(type, encoding):
            codec = codec_of(log, type, encoding, name)
            self._store.declare(log, codec)
            make = partial(TypedQueue, codec)
        with self._groups_lock:
            return open_queue(
                self._store, log, self._store.handle(name, log), settings,
                self._store.configuration.queue, make,
            )  # fmt: skip

    def queues(self) -> list[str]:
        """List the names of all queues, sorted."""
        self._store.topics()
        return [topic.name for topic in self._catalog.topics() if topic.kind == "queue"]

    def drop_queue(self, name: str) -> None:
        """Remove a queue with its messages and dead letters, permanently."""
        self._store.check_writable()
        name = check_topic_name(name)
        check_kind(self._catalog.find(name), None)
        self._store.drop_topic(name)
        if self._catalog.get(name + SUFFIX) is not None:
            self._store.drop_topic(name + SUFFIX)

    def group(
        self,
        log: TopicLog,
        name: str,
        mode: str | None,
        start: Place,
        pending_max: int | None,
        codec: Codec[Any] | None = None,
    ) -> Group[Any]:
        """Open a consumer group of a topic: the implementation of `Topic.group`."""
        self._store.make_readable(log)
        with self._groups_lock:
            budget = None if self.is_read_only else self.budget
            group = open_group(self._store, log, budget, name, mode, start, pending_max)
        group._read_as(codec)
        return group

    @property
    def groups_lock(self) -> threading.Lock:
        """The lock for creating or dropping a consumer group or a queue."""
        return self._groups_lock

    def origin(self, log: TopicLog, state: GroupState) -> Origin:
        """Return the identity that distinguishes the deliveries of a group from all others."""
        identity = self._store_file.identity
        return Origin(self.path, identity, log.id, log.epoch, state.id, state.created_at)

    @property
    def budget(self) -> MemoryBudget:
        """The writer's memory budget."""
        assert self._log is not None
        return self._log.budget

    def write_controls(self, controls: Sequence[Control]) -> None:
        """Write control frames to the log, durably, and apply them: for tools."""
        self._store.check_writable()
        assert self._log is not None
        self._log.write(controls)

    @property
    def cross_shard(self) -> CrossShard:
        """The writer of frames that span several topics."""
        assert self._log is not None
        return self._log.cross_shard

    def find_topic(self, name: str) -> Topic | None:
        """Find the topic of that name without creating it."""
        if self._view is not None:
            self._view.refresh()
        log = self._catalog.get(name)
        return None if log is None else self._store.handle(name, log)

    def make_topic(self, name: str, options: TopicOptions, kind: str) -> Topic:
        """Get the topic of that name, created with the given kind if there is none."""
        return self._store.handle(
            name, self._store.create(name, options, may_exist=True, kind=kind)
        )
