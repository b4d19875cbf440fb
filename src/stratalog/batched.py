"""What a batch collects for one topic, one queue or one group; nothing happens until it commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from stratalog.consuming import delay_ns, split
from stratalog.errors import OptionError, StateError
from stratalog.format.columns import encode_values
from stratalog.format.frame import HEADER_BYTES
from stratalog.inputs import check_bytes, check_headers, check_time, columns_of, listed
from stratalog.log.group import records_entry
from stratalog.model import NO_HEADERS, Delivery, Message, Record
from stratalog.options import check_range, seconds
from stratalog.projections.atomic import Records
from stratalog.projections.delivery import Deliveries
from stratalog.projections.queue import QueueState
from stratalog.projections.settling import Return
from stratalog.putting import check_id
from stratalog.topic import Topic, Value

if TYPE_CHECKING:
    from stratalog.batch import Batch
    from stratalog.projections.engine import Engine
    from stratalog.queue import Queue
    from stratalog.reading import Time
    from stratalog.store import Store


class Appended:
    """Where records of a batch are; known once the batch is committed."""

    __slots__ = ("_base", "_count", "_duplicate", "index")

    def __init__(self, index: int, count: int) -> None:
        self.index = index
        """Of its first record, among those of the batch in its topic."""
        self._count = count
        self._base = -1
        self._duplicate = False

    def __repr__(self) -> str:
        if self._base < 0:
            return "<stratalog.Appended, not committed>"
        return f"<stratalog.Appended {self.first} to {self.last}>"

    @property
    def offset(self) -> int:
        """The offset of the first record, which for a single append is the only one."""
        if self._base < 0:
            raise StateError(
                "the batch is not committed: offsets are known when its `with` block is left"
            )
        return self._base + self.index

    first = offset

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self.offset + self._count - 1

    @property
    def duplicate(self) -> bool:
        """Whether it was left out, because the message at `offset` has its deduplication id."""
        return self.offset >= 0 and self._duplicate

    def place(self, base: int, *, duplicate: bool = False) -> None:
        """Say where the batch's records of this topic begin; called by the batch."""
        if self._base < 0:
            self._base = base
            self._duplicate = duplicate


class BatchTopic:
    """A topic as a batch appends to it."""

    def __init__(self, batch: Batch, store: Store, name: str, topic: Topic | None) -> None:
        self._batch = batch
        self._store = store
        self._topic = topic
        self.name = name
        """The topic's name."""
        self.items: list[Any] = []
        self.handles: list[Appended] = []
        self.duplicates: list[tuple[Appended, int | Appended]] = []
        """Those that are left out, with the offset of the first one or its handle."""
        self.firsts: dict[bytes, Appended] = {}

    @property
    def is_new(self) -> bool:
        """Whether the topic is made when the batch is committed."""
        return self._topic is None

    @property
    def topic(self) -> Topic:
        """The topic; it is made now if there was none when it was first named."""
        if self._topic is None:
            self._topic = self._store.topic(self.name)
        return self._topic

    def append(
        self,
        value: Value,
        *,
        key: Value = None,
        headers: Mapping[str, bytes] | None = None,
        tag: str | None = None,
        node: str | None = None,
        timestamp: Time | None = None,
        ttl: float | timedelta | None = None,
    ) -> Appended:
        """Append one record when the batch is committed; its offset is known then."""
        if all(item is None for item in (key, headers, tag, node, timestamp, ttl)):
            return self.add([value])
        stamp = 0 if timestamp is None else check_time("timestamp", timestamp)
        expires_at = 0
        if ttl is not None:
            expires_at = (stamp or self._store.clock.time_ns()) + round(seconds("ttl", ttl) * 10**9)
        record = Record(
            value=value,  # type: ignore[arg-type]  # checked and copied with all others
            key=key,  # type: ignore[arg-type]
            headers=NO_HEADERS if headers is None else headers,
            tag=tag,
            node=node,
            timestamp=stamp,
            expires_at=expires_at,
        )
        return self.add([record])

    def append_many(self, records: Iterable[Value | Record]) -> Appended:
        """Append records when the batch is committed; `first` and `last` are known then."""
        return self.add(listed(records))

    def add(self, items: list[Any]) -> Appended:
        """Keep records for later; whatever is wrong with them is told now."""
        self._batch.check()
        if not items:
            raise OptionError("append_many needs at least one record")
        # Whatever is wrong with them is told now; what may change until the end is copied.
        columns_of(items, self._store.options.record_bytes_max)
        kept = [_keep(item) for item in items]
        frame_bytes = 0 if self.items else HEADER_BYTES + 8
        self._batch.add_bytes(frame_bytes + sum(map(_size, kept)))
        handle = Appended(len(self.items), len(kept))
        self.items += kept
        self.handles.append(handle)
        return handle

    def encode(self, items: list[Any]) -> Records:
        """These records of it as a frame, and what makes it again if time has moved on."""
        log = self.topic.log
        encoded = encode_values(items)
        if encoded is not None:
            return Records(log, [records_entry(log, 0, *encoded)], None)
        return Records(log, *self.topic.encode_records(items))

    # --- deduplication: the queue's lock for it is held -----------------------------------

    @property
    def ids(self) -> QueueState | None:
        """Where ids of messages are remembered, if some of these have one."""
        queue = None if self._topic is None else self._topic.log.groups.queue
        has_ids = any(isinstance(one, Record) and one.key is not None for one in self.items)
        return queue if has_ids else None

    def without_duplicates(self, queue: QueueState, now: int) -> tuple[list[Any], int]:
        """What has no duplicate, and an offset that has to be waited for first, or -1.

        Handles of those that are left out are told where the first one is.
        """
        log = self.topic.log
        queue.tidy(now)
        firsts: dict[bytes, Appended] = {}
        kept: list[Any] = []
        self.duplicates = []
        for handle, item in zip(self.handles, list(self.items), strict=True):
            key = item.key if isinstance(item, Record) else None
            known = -1 if key is None else queue.dedup.find(key, now)
            if known >= log.committed:
                return [], known  # it may still fail
            if known >= 0:
                self.duplicates.append((handle, known))
            elif key is not None and key in firsts:
                self.duplicates.append((handle, firsts[key]))
            else:
                if key is not None:
                    firsts[key] = handle
                handle.index = len(kept)
                kept.append(item)
        self.firsts = firsts
        return kept, -1

    def announce(self) -> None:
        """Have consumers of a queue look for what is about to be put."""
        engine = None if self._topic is None else self._topic.log.groups.live.get(0)
        if isinstance(engine, Deliveries):
            records = [one for one in self.items if isinstance(one, Record)]
            urgent = 0 if len(records) < len(self.items) else min(one.priority for one in records)
            engine.most_urgent_put = min(engine.most_urgent_put, urgent)

    def remember(self, queue: QueueState, base: int, now: int) -> None:
        """Remember the ids of those that were put; their offsets begin with `base`."""
        for key, handle in self.firsts.items():
            queue.dedup.add(key, base + handle.index, now + queue.window)

    def tell(self, base: int) -> None:
        """Tell the handles where their records are."""
        for handle, known in self.duplicates:
            offset = known if isinstance(known, int) else base + known.index
            handle.index = 0
            handle.place(offset, duplicate=True)
        for handle in self.handles:
            handle.place(base)


class BatchQueue:
    """A queue as a batch puts into it, and settles its messages."""

    def __init__(self, batch: Batch, store: Store, queue: Queue, records: BatchTopic) -> None:
        self._batch = batch
        self._store = store
        self._queue = queue
        self._records = records

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    def put(
        self,
        value: Value,
        *,
        priority: int = 0,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        dedup_id: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> Appended:
        """Put a message when the batch is committed; where it is, is known then.

        If one with the same `dedup_id` was put within the deduplication window, or is in the batch
        already, this one is not, and `duplicate` is True.
        """
        now = self._store.clock.time_ns()
        alive = self._queue.ttl_ns if ttl is None else round(seconds("ttl", ttl) * 1e9)
        record = Record(
            value=value,  # type: ignore[arg-type]  # checked and copied with all others
            key=None if dedup_id is None else check_id(dedup_id),
            headers=NO_HEADERS if headers is None else headers,
            priority=check_range("priority", priority, 0, 255),
            expires_at=now + alive if alive else 0,
            not_before=0 if delay is None else now + delay_ns(delay),
        )
        return self._records.add([record])

    def ack(self, *messages: Message) -> None:
        """Done with these, when the batch is committed. If one is lost by then, all of it fails."""
        settlement = self._batch.settlement(self._queue.engine)
        settlement.check(messages, "acknowledged")
        settlement.acks += messages

    def nack(
        self, *messages: Message, reason: str = "", delay: float | timedelta | None = None
    ) -> None:
        """Give these back when the batch is committed, as `Queue.nack` does."""
        engine = self._queue.engine
        settlement = self._batch.settlement(engine)
        settlement.check(messages, "given back")
        now = self._store.clock.time_ns()
        for one in messages:
            if one.lease.deadline and not one.is_settled:
                count = one.lease.delivery_count
                wait = engine.rules.delay(count) if delay is None else delay_ns(delay)
                settlement.returns.append(Return(one.offset, one, now + wait, reason))


class BatchGroup:
    """A consumer group as a batch acknowledges for it."""

    def __init__(self, batch: Batch, store: Store, engine: Engine) -> None:
        self._batch = batch
        self._store = store
        self._engine = engine

    def ack(self, deliveries: Iterable[int | Delivery]) -> None:
        """Acknowledge, by offset or as they were delivered, when the batch is committed.

        A delivery says whose it was: if one is somebody else's by then, all of the batch fails.
        """
        offsets, held = split(deliveries)
        settlement = self._batch.settlement(self._engine)
        settlement.check(held, "acknowledged")
        settlement.acks += held
        settlement.offsets += offsets

    def nack(
        self, deliveries: Iterable[int | Delivery], delay: float = 0.0, reason: str = ""
    ) -> None:
        """Give records back when the batch is committed, to be delivered again after a delay."""
        if not isinstance(self._engine, Deliveries):
            raise OptionError(
                "nack is for groups of mode 'queue': in one of mode 'stream' nothing is pending"
            )
        offsets, held = split(deliveries)
        settlement = self._batch.settlement(self._engine)
        settlement.check(held, "given back")
        due = self._store.clock.time_ns() + delay_ns(delay)
        settlement.returns += [Return(offset, None, due, reason) for offset in offsets]
        settlement.returns += [Return(one.offset, one, due, reason) for one in held]


def _keep(item: Any) -> bytes | Record | None:
    """A record that nobody else can change; the value alone if there is nothing else."""
    if not isinstance(item, Record):
        return check_bytes("value", item)
    headers: Mapping[str, bytes] = NO_HEADERS
    if item.headers:
        headers = {name.decode(): value for name, value in check_headers(item.headers)}
    kept = msgspec.structs.replace(
        item, value=check_bytes("value", item.value), key=check_bytes("key", item.key),
        headers=headers, offset=-1,
    )  # fmt: skip
    return kept.value if kept == Record(kept.value) else kept


def _size(item: bytes | Record | None) -> int:
    """Bytes that a record takes, at least."""
    if isinstance(item, Record):
        return 4 + len(item.value or b"") + len(item.key or b"")
    return 4 + len(item or b"")
