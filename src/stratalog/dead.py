"""Dead letters: messages that were delivered too often, in a topic of their own.

A message is written there, durably, before it is consumed in its queue. A crash in between leaves
it in both; the next try finds by its original offset that it is there already, and only consumes
it. So it is never lost, and never there twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap64

from stratalog.errors import OptionError
from stratalog.log.topic import TopicLog
from stratalog.model import Delivery, Gap, Lease, Message, Put, Record
from stratalog.options import TopicOptions, check_range
from stratalog.projections.delivery import Deliveries
from stratalog.projections.fetch import fetch

if TYPE_CHECKING:
    from stratalog.store import Store
    from stratalog.topic import Topic

KIND = "dead"
SUFFIX = ".dead"
PREFIX = "dlq."
ORIGINAL_OFFSET = "dlq.original_offset"
DELIVERY_COUNT = "dlq.delivery_count"
REASON = "dlq.reason"
FAILED_AT = "dlq.failed_at"

_REASON_BYTES_MAX = 1024


class DeadLetters:
    """The dead letters of one queue. They are records of the topic `<queue>.dead`."""

    def __init__(self, store: Store, queue: TopicLog) -> None:
        self._store = store
        self._queue = queue
        self._lock = threading.Lock()
        self._known: BitMap64 | None = None
        """Original offsets of the messages that are there; None before anybody looked."""

    @property
    def name(self) -> str:
        """Of the topic."""
        return self._queue.name + SUFFIX

    def __bool__(self) -> bool:
        return True  # a handle, however many letters there are

    def __len__(self) -> int:
        return sum(1 for _ in self.read())

    def read(self, start: int = 0, limit: int | None = None) -> Iterator[Record]:
        """Dead letters from an offset on; headers `dlq.*` say what became of each.

        `dlq.original_offset`, `dlq.delivery_count`, `dlq.reason`, and `dlq.failed_at` in
        nanoseconds since 1970, all as text.
        """
        topic = self._topic()
        if topic is None:
            return
        for item in topic.read(min(start, topic.next_offset), limit=limit):
            if not isinstance(item, Gap):
                yield item

    def requeue(self, *offsets: int, priority: int | None = None, delay: float = 0.0) -> list[Put]:
        """Put dead letters back into their queue, all of them unless some are named.

        Each starts anew: delivered no time yet, without the `dlq.*` headers.
        """
        self._store.check_writable()
        topic = self._topic()
        if topic is None:
            return []
        for offset in offsets:
            check_range("offset", offset, 0, 1 << 63)
        wanted = set(offsets)
        letters = [one for one in self.read() if not wanted or one.offset in wanted]
        if missing := wanted.difference(one.offset for one in letters):
            raise OptionError(
                f"{self.name!r} has no dead letter at offset {min(missing)}: see read()"
            )
        queue = self._store.queue(self._queue.name)
        puts = []
        for letter in letters:
            headers = {k: v for k, v in letter.headers.items() if not k.startswith(PREFIX)}
            chosen = letter.priority if priority is None else priority
            puts.append(
                queue.put(
                    letter.value, priority=chosen, delay=delay or None, headers=headers or None,
                    durability=None if self._queue.is_ephemeral else "fsync",
                )
            )  # fmt: skip
            topic.delete(offsets=[letter.offset])
        return puts

    def purge(self) -> int:
        """Delete all dead letters, for good; returns how many there were."""
        self._store.check_writable()
        topic = self._topic()
        if topic is None:
            return 0
        count = len(self)
        topic.delete(before=topic.next_offset)
        return count

    # --- moving ---------------------------------------------------------------------------

    def move(self, engine: Deliveries) -> None:
        """Bring what was delivered too often here; raises what went wrong, and nothing is lost."""
        with self._lock:
            with engine.lock:
                dying, engine.dying = engine.dying, {}
                pending = engine.state.pending
                leases = {offset: pending[offset] for offset in dying if offset in pending}
            chosen = list(leases)
            try:
                self._write(chosen, dying, leases)
            except BaseException:
                with engine.lock:
                    engine.dying = dying | engine.dying
                raise
            with engine.lock:
                for offset in chosen:
                    engine.bury(offset)
                group = engine.operations.group
        engine.settle(group)

    def _write(self, offsets: list[int], reasons: dict[int, str], leases: dict[int, Lease]) -> None:
        now = self._store.clock.time_ns()
        if self._known is None:
            self._known = self._look()
        new = sorted(offset for offset in offsets if offset not in self._known)
        found = fetch(self._queue, np.array(new, np.int64), 0, Message, None)
        letters = [
            _letter(one, leases[one.offset].delivery_count, reasons[one.offset], now)
            for one in found
        ]
        if letters:
            durability = None if self._queue.is_ephemeral else "fsync"
            self._create().append_many(letters, durability=durability)
            self._known.update([one.offset for one in found])

    def _look(self) -> BitMap64:
        return BitMap64(
            int(letter.headers[ORIGINAL_OFFSET])
            for letter in self.read()
            if ORIGINAL_OFFSET in letter.headers
        )

    def _topic(self) -> Topic | None:
        return self._store.find_topic(self.name)

    def _create(self) -> Topic:
        durability = self._queue.options.durability
        return self._store.make_topic(self.name, TopicOptions(durability=durability), KIND)


def _letter(message: Delivery, count: int, reason: str, now: int) -> Record:
    """A message as it is among the dead letters."""
    headers = dict(message.headers)
    headers[ORIGINAL_OFFSET] = b"%d" % message.offset
    headers[DELIVERY_COUNT] = b"%d" % count
    headers[REASON] = reason.encode(errors="replace")[:_REASON_BYTES_MAX]
    headers[FAILED_AT] = b"%d" % now
    return Record(
        message.value, message.key, headers, message.tag, message.node, priority=message.priority
    )
