"""Dead letters: messages that were delivered too often, in a topic of their own.

One frame writes a message there and consumes it in its queue: it is never lost, and never in both.
Ephemeral messages are in no frame; they are written there first, and then consumed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic

import msgspec
import numpy as np

from stratalog.consume.atomic_frame import AtomicFrame, Records
from stratalog.consume.batch_changes import GroupChanges
from stratalog.consume.fetch import fetch
from stratalog.consume.queue_engine import Deliveries
from stratalog.errors import OptionError
from stratalog.format.merge import LONG_AGO
from stratalog.format.values import Codec
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.model import NO_LEASE, Delivery, Gap, Lease, Message, Put, Record, T
from stratalog.options import TopicOptions, check_range

if TYPE_CHECKING:
    from stratalog.handles.store import Store
    from stratalog.handles.topic import Topic

KIND = "dead"
SUFFIX = ".dead"
PREFIX = "dlq."
ORIGINAL_OFFSET = "dlq.original_offset"
DELIVERY_COUNT = "dlq.delivery_count"
REASON = "dlq.reason"
REASONS = "dlq.reasons"
FAILED_AT = "dlq.failed_at"

_REASON_BYTES_MAX = 1024
_REASONS_MAX = 16

# The most to move at once: one frame, with room for everything in it besides the payloads.
_BYTES_MAX = 1 << 20


class DeadLetters(Generic[T]):
    """The dead letters of one queue. They are records of the topic `<queue>.dead`."""

    def __init__(self, store: Store, queue: TopicLog, codec: Codec[T] | None = None) -> None:
        self._store = store
        self._queue = queue
        self._codec = codec
        self._lock = threading.Lock()
        self._mover = 0
        """The thread that holds the lock, or held it last."""

    @property
    def name(self) -> str:
        """Name of the topic."""
        return self._queue.name + SUFFIX

    def __bool__(self) -> bool:
        return True  # a handle, even without letters

    def __len__(self) -> int:
        return sum(1 for _ in self._read())

    def read(self, start: int = 0, limit: int | None = None) -> Iterator[Record[T]]:
        """Read dead letters from an offset on; their `dlq.*` headers describe what happened.

        `dlq.original_offset`, `dlq.delivery_count`, `dlq.reason` (the last one), and
        `dlq.failed_at` in nanoseconds since 1970, all as text; `dlq.reasons` if it failed more than
        once since the store was opened, a JSON list from the first failure on.
        """
        for record in self._read(start, limit):
            if self._codec is None:
                yield record  # type: ignore[misc]  # without a type, values are bytes
            else:
                yield from self._codec.records_of([record])

    def _read(self, start: int = 0, limit: int | None = None) -> Iterator[Record]:
        topic = self._topic()
        if topic is None:
            return
        for item in topic.read(min(start, topic.next_offset), limit=limit):
            if not isinstance(item, Gap):
                yield item

    def requeue(self, *offsets: int, priority: int | None = None, delay: float = 0.0) -> list[Put]:
        """Put dead letters back into their queue, all of them unless some are named.

        Each starts afresh: with a delivery count of zero, and without the `dlq.*` headers.
        """
        self._store.check_writable()
        topic = self._topic()
        if topic is None:
            return []
        for offset in offsets:
            check_range("offset", offset, 0, 1 << 63)
        wanted = set(offsets)
        letters = [one for one in self._read() if not wanted or one.offset in wanted]
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
        """Delete all dead letters permanently; returns how many there were."""
        self._store.check_writable()
        topic = self._topic()
        if topic is None:
            return 0
        count = len(self)
        topic.delete(before=topic.next_offset)
        return count

    # --- moving ---------------------------------------------------------------------------

    def move(self, engine: Deliveries) -> None:
        """Move messages that were delivered too often here; an error loses nothing."""
        # To commit letters tends the queue again, in this thread: the loop below takes what is new.
        if self._mover == threading.get_ident() and self._lock.locked():
            return
        with self._lock:
            self._mover = threading.get_ident()
            self._move_all(engine)

    def _move_all(self, engine: Deliveries) -> None:
        while self._move_dying(engine):
            pass

    def _move_dying(self, engine: Deliveries) -> bool:
        """Move those that are dying now; returns whether there were any."""
        with engine.lock:
            dying, engine.dying = engine.dying, {}
            leases = _still_pending(engine, dying)
        if not leases:
            return False
        try:
            self._move(engine, leases, dying)
        except BaseException:
            with engine.lock:
                engine.dying = dying | engine.dying
            raise
        return True

    def _move(self, engine: Deliveries, leases: dict[int, Lease], reasons: dict[int, str]) -> None:
        now = self._store.clock.time_ns()
        rows = fetch(self._queue, np.array(sorted(leases), np.int64), LONG_AGO)
        found: list[Message] = rows.deliveries(Message, None, NO_LEASE)
        letters = [
            _letter(
                one, leases[one.offset].delivery_count, reasons[one.offset],
                engine.failures.get(one.offset, ()), now,
            )
            for one in found
        ]  # fmt: skip
        if self._queue.is_ephemeral:
            if letters:
                self._create().append_many(letters)
            with engine.lock:
                engine.bury(list(leases))
            return
        gone = leases.keys() - {one.offset for one in found}
        if gone:  # expired or deleted: there is nothing to write
            self._commit(engine, [], list(gone))
        for few in _few_at_a_time(list(zip(letters, found, strict=True)), self._bytes_max):
            self._commit(engine, [one for one, _ in few], [one.offset for _, one in few])

    def _commit(self, engine: Deliveries, letters: list[Record], offsets: list[int]) -> None:
        """Write letters and consume their messages in one frame."""
        records = []
        if letters:
            topic = self._create()
            records = [Records(topic.log, *topic.encode_records(letters))]
        changes = GroupChanges(engine)
        changes.offsets = offsets
        AtomicFrame(self._store.cross_shard, records, [changes]).commit(SYNCED)

    @property
    def _bytes_max(self) -> int:
        return min(_BYTES_MAX, self._queue.batch_bytes_max // 2)

    def _topic(self) -> Topic | None:
        self._queue.check_dropped()  # the letters of a later queue of that name are not its own
        return self._store.find_topic(self.name)

    def _create(self) -> Topic:
        durability = self._queue.options.durability
        return self._store.make_topic(self.name, TopicOptions(durability=durability), KIND)


def _few_at_a_time(
    letters: list[tuple[Record, Message]], bytes_max: int
) -> Iterator[list[tuple[Record, Message]]]:
    """Group letters that fit into one frame, at least one at a time."""
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


def _letter(message: Delivery, count: int, reason: str, reasons: Sequence[str], now: int) -> Record:
    """Convert a message to a dead letter."""
    headers = dict(message.headers)
    headers[ORIGINAL_OFFSET] = b"%d" % message.offset
    headers[DELIVERY_COUNT] = b"%d" % count
    headers[REASON] = reason.encode(errors="replace")[:_REASON_BYTES_MAX]
    if len(reasons) > 1:
        share = _REASON_BYTES_MAX // 8
        headers[REASONS] = msgspec.json.encode([one[:share] for one in reasons[-_REASONS_MAX:]])
    headers[FAILED_AT] = b"%d" % now
    return Record(
        message.value, message.key, headers, message.tag, message.node, priority=message.priority,
        given_time=message.more[8],
    )  # fmt: skip


def _still_pending(engine: Deliveries, dying: dict[int, str]) -> dict[int, Lease]:
    """Return the leases of messages to be moved that are still pending; the lock is held."""
    pending = engine.state.pending
    return {offset: pending[offset] for offset in dying if offset in pending}
