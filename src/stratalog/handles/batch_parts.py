"""Parts of a batch, each for one topic, queue or group; nothing happens until it commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from stratalog.arguments import check_bytes, check_headers, check_time, columns_of, listed
from stratalog.consume.atomic_frame import Records
from stratalog.consume.leases import Return
from stratalog.consume.queue_engine import Deliveries
from stratalog.errors import OptionError, StateError
from stratalog.format.columns import encode_values
from stratalog.format.frame import HEADER_BYTES
from stratalog.format.values import Codec
from stratalog.handles.consumer_arguments import Given, check_due, check_reason, delay_ns, split
from stratalog.handles.kinds import check_takes_records
from stratalog.handles.put import DELAY_BYTES, check_id
from stratalog.handles.topic import Buffer, Topic, Value
from stratalog.handles.typed import encode_all
from stratalog.log.commit_group import records_entry
from stratalog.model import NO_HEADERS, Record, T
from stratalog.options import check_range, seconds
from stratalog.state.queue_state import QueueState

if TYPE_CHECKING:
    from stratalog.consume.engine import Engine
    from stratalog.handles.batch import Batch
    from stratalog.handles.queue import Queue
    from stratalog.handles.read import Time
    from stratalog.handles.store import Store


class Appended:
    """The place of records of a batch, known once the batch is committed."""

    __slots__ = ("_base", "_count", "_duplicate", "index")

    def __init__(self, index: int, count: int) -> None:
        self.index = index
        """Index of its first record among the batch's records of its topic."""
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
        """Set where the batch's records of this topic begin; called by the batch."""
        if self._base < 0:
            self._base = base
            self._duplicate = duplicate


class BatchTopic:
    """A topic in a batch, to append to."""

    def __init__(self, batch: Batch, store: Store, name: str, topic: Topic | None) -> None:
        self._batch = batch
        self._store = store
        self._topic = topic
        self.name = name
        """The topic's name."""
        self.items: list[Any] = []
        self.handles: list[Appended] = []
        self.duplicates: list[tuple[Appended, int | Appended]] = []
        """Duplicates that are left out, with the offset of the original or its handle."""
        self.firsts: dict[bytes, Appended] = {}

    @property
    def is_new(self) -> bool:
        """Whether the topic is created when the batch is committed."""
        return self._topic is None

    @property
    def topic(self) -> Topic:
        """The topic; it is created now if there was none when it was first named."""
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
            value=value,  # checked and copied with all others
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
        """Check records and keep them until the commit."""
        self._batch.check()
        if self._topic is not None:
            check_takes_records(self._topic.log)
        if not items:
            raise OptionError("append_many needs at least one record")
        # Mistakes are raised now, and mutable values are copied, since they may change until then.
        columns_of(items, self._store.options.record_bytes_max)
        kept = [_keep(item) for item in items]
        frame_bytes = 0 if self.items else HEADER_BYTES + 8
        self._batch.add_bytes(frame_bytes + sum(map(_size, kept)))
        handle = Appended(len(self.items), len(kept))
        self.items += kept
        self.handles.append(handle)
        return handle

    def add_values(self, values: list[bytes]) -> Appended:
        """Keep values until the commit that another handle has made and checked."""
        self._batch.check()
        frame_bytes = 0 if self.items else HEADER_BYTES + 8
        self._batch.add_bytes(frame_bytes + sum(map(_size, values)))
        handle = Appended(len(self.items), len(values))
        self.items += values
        self.handles.append(handle)
        return handle

    def encode(self, items: list[Any]) -> Records:
        """Encode records as a frame, with a function that encodes them again at a later time."""
        log = self.topic.log
        encoded = encode_values(items)
        if encoded is not None:
            return Records(log, [records_entry(log, 0, *encoded)], None)
        return Records(log, *self.topic.encode_records(items))

    # --- deduplication: the queue's lock for it is held -----------------------------------

    @property
    def ids(self) -> QueueState | None:
        """The memory of message ids, if some of these messages have one."""
        queue = None if self._topic is None else self._topic.log.groups.queue
        has_ids = any(isinstance(one, Record) and one.key is not None for one in self.items)
        return queue if has_ids else None

    def without_duplicates(self, queue: QueueState, now: int) -> tuple[list[Any], int]:
        """Return records without a duplicate, and an offset to wait for first, or -1.

        Handles of duplicates get the offset of the original.
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
                return [], known  # the original may still fail
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
        queue.dedup.ask(len(firsts))
        return kept, -1

    def announce(self) -> None:
        """Have the consumers of a queue look for the messages that are about to be put."""
        engine = None if self._topic is None else self._topic.log.groups.live.get(0)
        if isinstance(engine, Deliveries):
            records = [one for one in self.items if isinstance(one, Record)]
            urgent = 0 if len(records) < len(self.items) else min(one.priority for one in records)
            engine.most_urgent_put = min(engine.most_urgent_put, urgent)

    def remember(self, queue: QueueState, base: int, now: int) -> None:
        """Remember the ids of the messages that were put; their offsets begin with `base`."""
        for key, handle in self.firsts.items():
            queue.dedup.add(key, base + handle.index, now + queue.window)

    def resolve(self, base: int) -> None:
        """Set the offsets of the handles."""
        for handle, known in self.duplicates:
            offset = known if isinstance(known, int) else base + known.index
            handle.index = 0
            handle.place(offset, duplicate=True)
        for handle in self.handles:
            handle.place(base)


class TypedBatchTopic(Generic[T]):
    """A topic with a type in a batch."""

    def __init__(self, records: BatchTopic, codec: Codec[T]) -> None:
        self._records = records
        self._encode = codec.encode

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._records.name

    def append(
        self,
        value: T,
        *,
        key: Value = None,
        headers: Mapping[str, bytes] | None = None,
        tag: str | None = None,
        node: str | None = None,
        timestamp: Time | None = None,
        ttl: float | timedelta | None = None,
    ) -> Appended:
        """Append one value when the batch is committed; its offset is known then."""
        return self._records.append(
            self._encode(value), key=key, headers=headers, tag=tag, node=node,
            timestamp=timestamp, ttl=ttl,
        )  # fmt: skip

    def append_many(self, records: Iterable[T | Record[T]]) -> Appended:
        """Append values when the batch is committed; `first` and `last` are known then."""
        return self._records.append_many(encode_all(self._encode, listed(records)))


class BatchQueue(Generic[T]):
    """A queue in a batch, to put into and to acknowledge messages of."""

    def __init__(self, batch: Batch, store: Store, queue: Queue[T], records: BatchTopic) -> None:
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
        value: T | Buffer,
        *,
        priority: int = 0,
        ttl: float | timedelta | None = None,
        delay: float | timedelta | None = None,
        dedup_id: str | bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        at: float | datetime | None = None,
    ) -> Appended:
        """Put a message when the batch is committed; its place is known then.

        If one with the same `dedup_id` was put within the deduplication window, or is in the batch
        already, this one is left out, and `duplicate` is True.
        """
        now = self._store.clock.time_ns()
        due = check_due(delay, at, now)
        if due:
            self._queue.engine.ensure(DELAY_BYTES)
        alive = self._queue.ttl_ns if ttl is None else round(seconds("ttl", ttl) * 1e9)
        record = Record(
            value=self._queue._encoded(value),  # checked and copied with all others
            key=None if dedup_id is None else check_id(dedup_id),
            headers=NO_HEADERS if headers is None else headers,
            priority=check_range("priority", priority, 0, 255),
            expires_at=now + alive if alive else 0,
            not_before=due,
        )
        return self._records.add([record])

    def ack(self, *messages: Given) -> None:
        """Acknowledge these when the batch is committed; one void delivery fails the batch."""
        changes = self._batch.group_changes(self._queue.engine)
        offsets, held = split(messages)
        changes.check(held, "acknowledged")
        changes.acks += held
        changes.offsets += offsets

    def nack(
        self, *messages: Given, reason: str = "", delay: float | timedelta | None = None
    ) -> None:
        """Give these back when the batch is committed, as `Queue.nack` does."""
        changes = self._batch.group_changes(self._queue.engine)
        now = self._store.clock.time_ns()
        offsets, held = split(messages)
        why = check_reason(reason)
        returns = changes.look(held, now, why)
        returns += [Return(offset, None, now, why) for offset in offsets]
        changes.returns += [
            one._replace(due=now + self._queue.wait_ns(one, delay)) for one in returns
        ]


class BatchGroup:
    """A consumer group in a batch, to acknowledge for."""

    def __init__(self, batch: Batch, store: Store, engine: Engine) -> None:
        self._batch = batch
        self._store = store
        self._engine = engine

    def ack(self, *deliveries: Given) -> None:
        """Acknowledge when the batch is committed, by offset or by delivery.

        A delivery identifies its consumer: if one is void by then, the whole batch fails.
        """
        offsets, held = split(deliveries)
        changes = self._batch.group_changes(self._engine)
        changes.check(held, "acknowledged")
        changes.acks += held
        changes.offsets += offsets

    def nack(
        self, *deliveries: Given, delay: float | timedelta | None = None, reason: str = ""
    ) -> None:
        """Give records back when the batch is committed, to be delivered again after a delay."""
        if not isinstance(self._engine, Deliveries):
            raise OptionError(
                "nack is for groups of mode 'queue': in one of mode 'stream' nothing is pending"
            )
        offsets, held = split(deliveries)
        changes = self._batch.group_changes(self._engine)
        due = self._store.clock.time_ns() + (0 if delay is None else delay_ns(delay))
        why = check_reason(reason)
        changes.returns += changes.look(held, due, why)
        changes.returns += [Return(offset, None, due, why) for offset in offsets]


def _keep(item: Any) -> bytes | Record | None:
    """Copy a record so that the caller cannot change it; a bare value stays bytes."""
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
    """Return a lower bound of the bytes that a record takes."""
    if isinstance(item, Record):
        return 4 + len(item.value or b"") + len(item.key or b"")
    return 4 + len(item or b"")
