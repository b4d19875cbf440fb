"""The part of a store that makes and finds consumer groups and queues."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from stratalog.consuming import Place
from stratalog.dead import SUFFIX
from stratalog.format.names import check_topic_name
from stratalog.group import Group, open_group
from stratalog.log.crossing import Crossing
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.memory import MemoryBudget
from stratalog.model import Durability
from stratalog.options import QueueOptions, TopicOptions
from stratalog.projections.catalog import Catalog
from stratalog.queue import QUEUE_TOPIC, Queue, check_kind, check_queue_name, open_queue
from stratalog.view import View

if TYPE_CHECKING:
    from stratalog.store import Store
    from stratalog.topic import Topic


class QueueStore:
    """What a store does for groups and queues."""

    is_read_only: bool
    _catalog: Catalog
    _groups_lock: threading.Lock
    _log: Log | None
    _view: View | None

    @property
    def _store(self) -> Store:
        return cast("Store", self)  # there is no other

    def queue(
        self, name: str, *, durability: Durability | str | None = None, **options: Any
    ) -> Queue:
        """The queue of that name; a writer makes it on first use. Options: see `QueueOptions`.

        Options that are given again are the queue's from then on. Its durability is for good.
        """
        self._store.check_open()
        name = check_topic_name(name)
        check_queue_name(name)
        QueueOptions.build(options)
        if self._view is not None:
            self._view.refresh()
        log = self._catalog.get(name)
        if log is None:
            if self.is_read_only:
                log = self._catalog.find(name)  # raises, and says what is there
            kept = TopicOptions.build(QUEUE_TOPIC | {"durability": durability})
            log = self._store.create(name, kept, may_exist=True, kind="queue")
        check_kind(log, durability)
        with self._groups_lock:
            return open_queue(self._store, log, self._store.handle(name, log), options)

    def queues(self) -> list[str]:
        """Names of all queues, sorted."""
        self._store.topics()
        return [topic.name for topic in self._catalog.topics() if topic.kind == "queue"]

    def drop_queue(self, name: str) -> None:
        """Remove a queue with its messages and dead letters, for good."""
        self._store.check_writable()
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
    ) -> Group:
        """A consumer group of a topic: what `Topic.group` asks for."""
        self._store.settle(log)
        with self._groups_lock:
            budget = None if self.is_read_only else self.budget
            return open_group(self._store, log, budget, name, mode, start, pending_max)

    @property
    def budget(self) -> MemoryBudget:
        """What the writer may hold in memory."""
        assert self._log is not None
        return self._log.budget

    @property
    def crossing(self) -> Crossing:
        """The way in for frames of several topics."""
        assert self._log is not None
        return self._log.crossing

    def find_topic(self, name: str) -> Topic | None:
        """The topic of that name, if there is one; it is not created."""
        if self._view is not None:
            self._view.refresh()
        log = self._catalog.get(name)
        return None if log is None else self._store.handle(name, log)

    def make_topic(self, name: str, options: TopicOptions, kind: str) -> Topic:
        """The topic of that name, created with a kind of its own if there is none."""
        return self._store.handle(
            name, self._store.create(name, options, may_exist=True, kind=kind)
        )
