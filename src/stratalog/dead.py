"""Dead letters: messages that were delivered too often, in a topic of their own.

A message is written there and consumed in its queue in one frame: it is never lost, and never in
both. What is ephemeral is in no frame; there it is written first, and then consumed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from stratalog.errors import OptionError
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.model import NO_LEASE, Delivery, Gap, Lease, Message, Put, Record
from stratalog.options import TopicOptions, check_range
from stratalog.projections.atomic import Atomic, Records
from stratalog.projections.delivery import Deliveries
from stratalog.projections.fetch import fetch
from stratalog.projections.settling import Settlement

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

# What is moved at once: one frame, with room for all that is in it besides the payloads.
_BYTES_MAX = 1 << 20


class DeadLetters:
    """The dead letters of one queue. They are records of the topic `<queue>.dead`."""

    def __init__(self, store: Store, queue: TopicLog) -> None:
        self._store = store
        self._queue = queue
        self._lock = threading.Lock()

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
            if not leases:
                return
            try:
                self._move(engine, leases, dying)
            except BaseException:
                with engine.lock:
                    engine.dying = dying | engine.dying
                raise

    def _move(self, engine: Deliveries, leases: dict[int, Lease], reasons: dict[int, str]) -> None:
        now = self._store.clock.time_ns()
        rows = fetch(self._queue, np.array(sorted(leases), np.int64), 0)
        found: list[Message] = rows.deliveries(Message, None, NO_LEASE)
        letters = [
            _letter(one, leases[one.offset].delivery_count, reasons[one.offset], now)
            for one in found
        ]
        if self._queue.is_ephemeral:
            if letters:
                self._create().append_many(letters)
            with engine.lock:
                for offset in leases:
                    engine.bury(offset)
            return
        gone = leases.keys() - {one.offset for one in found}
        if gone:  # expired, or deleted: there is nothing to write
            self._commit(engine, [], list(gone))
        for few in _few_at_a_time(list(zip(letters, found, strict=True)), self._bytes_max):
            self._commit(engine, [one for one, _ in few], [one.offset for _, one in few])

    def _commit(self, engine: Deliveries, letters: list[Record], offsets: list[int]) -> None:
        """Write letters, and consume the messages that they were, in one."""
        records = []
        if letters:
            topic = self._create()
            records = [Records(topic.log, *topic.encode_records(letters))]
        settlement = Settlement(engine)
        settlement.offsets = offsets
        Atomic(self._store.crossing, records, [settlement]).commit(SYNCED)

    @property
    def _bytes_max(self) -> int:
        return min(_BYTES_MAX, self._queue.batch_bytes_max // 2)

    def _topic(self) -> Topic | None:
        return self._store.find_topic(self.name)

    def _create(self) -> Topic:
        durability = self._queue.options.durability
        return self._store.make_topic(self.name, TopicOptions(durability=durability), KIND)


def _few_at_a_time(
    letters: list[tuple[Record, Message]], bytes_max: int
) -> Iterator[list[tuple[Record, Message]]]:
    """Letters that fit into one frame together, and always at least one."""
    few: list[tuple[Record, Message]] = []
    size = 0
    for letter, message in letters:
        headers = sum(len(name) + len(value) + 16 for name, value in letter.headers.items())
        own = len(letter.value or b"") + len(letter.key or b"") + headers + 64
        if few and size + own > bytes_max:
            yield few
            few, size = [], 0
        few.append((letter, message))
        size += own
    if few:
        yield few


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
