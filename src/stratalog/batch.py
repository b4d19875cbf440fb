"""Atomic batches: appends to several topics that are all kept or none.

Everything is collected in memory and checked in the call itself. When the `with` block is left all
of it is written as one frame; an exception in the block discards it. A batch is used by one thread
and once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from stratalog.errors import OptionError, StateError, TooLargeError, UsageError, WrongTypeError
from stratalog.format.columns import encode_values
from stratalog.format.frame import HEADER_BYTES
from stratalog.format.names import check_topic_name
from stratalog.inputs import check_bytes, check_time, columns_of
from stratalog.log.crossing import Crossing
from stratalog.log.group import Entry, Group, batch_bytes_max, records_entry
from stratalog.log.joint import Joint, Multi
from stratalog.log.shard import GROUP_BYTES_MAX, Shard
from stratalog.log.topic import EPHEMERAL, RANKS, SYNCED, TopicLog
from stratalog.model import NO_HEADERS, Durability, Record
from stratalog.options import check_durability, seconds
from stratalog.topic import Topic, Value

if TYPE_CHECKING:
    from stratalog.projections.catalog import Catalog
    from stratalog.reading import Time
    from stratalog.store import Store

Remake = Callable[[int], list[Entry]]


class Appended:
    """Where records of a batch are; known once the batch is committed."""

    __slots__ = ("_base", "_count", "_index")

    def __init__(self, index: int, count: int) -> None:
        self._index = index
        self._count = count
        self._base = -1

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
        return self._base + self._index

    first = offset

    @property
    def last(self) -> int:
        """The offset of the last record."""
        return self.offset + self._count - 1

    def place(self, base: int) -> None:
        """Say where the batch's records of this topic begin; called by the batch."""
        self._base = base


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
            return self._add([value])
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
        return self._add([record])

    def append_many(self, records: Iterable[Value | Record]) -> Appended:
        """Append records when the batch is committed; `first` and `last` are known then."""
        if isinstance(records, bytes | bytearray | memoryview | str):
            raise WrongTypeError("append_many takes a list of records; use append for one")
        return self._add(list(records))

    def _add(self, items: list[Any]) -> Appended:
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

    def encode(self) -> tuple[list[Entry], Remake | None]:
        """The frame of this topic, and what makes it again if the topic's time has moved on."""
        body = encode_values(self.items)
        if body is not None:
            return [records_entry(self.topic.log, 0, body, len(self.items))], None
        return self.topic.encode_records(self.items)


Made = tuple[BatchTopic, list[Entry], Remake | None]


class Batch:
    """Appends to topics, all of them or none: see `Store.batch`."""

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        crossing: Crossing,
        durability: Durability | str | None,
    ) -> None:
        rank = None if durability is None else RANKS[check_durability(durability)]
        if rank == EPHEMERAL:
            raise OptionError("durability='ephemeral' is not possible for a batch: it is written")
        self._store = store
        self._catalog = catalog
        self._crossing = crossing
        self._rank = rank
        self._topics: dict[str, BatchTopic] = {}
        self._placed: list[tuple[BatchTopic, int]] = []
        self._state = "new"
        self._bytes = 0
        self._bytes_max = batch_bytes_max(store.options)

    def topic(self, name: str) -> BatchTopic:
        """A topic to append to; if there is none it is made when the batch is committed."""
        self.check()
        found = self._topics.get(name) if isinstance(name, str) else None
        if found is None:
            check_topic_name(name)
            topic = None if self._catalog.get(name) is None else self._store.topic(name)
            default = self._store.options.durability
            if (topic.log.is_ephemeral) if topic else default == Durability.EPHEMERAL:
                raise OptionError(
                    f"topic {name!r} is ephemeral, so its records are never in the log: they "
                    "cannot be part of an atomic batch; append to it outside of the batch"
                )
            found = self._topics[name] = BatchTopic(self, self._store, name, topic)
        return found

    def table(self, name: str) -> Any:
        """Tables are not part of this release."""
        raise UsageError(f"batch.table({name!r}): this release has no tables yet")

    def __enter__(self) -> Self:
        if self._state != "new":
            raise StateError("a batch is used once: get another one with store.batch()")
        self._state = "open"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._state != "open":
            return  # committed in the block
        if error is None:
            self.commit()
        self._state = "over"

    def commit(self) -> None:
        """Commit now instead of at the end of the block; nothing more can be added."""
        self._check_state()
        self._state = "over"
        made = self._encode()
        if len(made) == 1:
            part, entries, remake = made[0]
            first, _ = part.topic.log.append_entries(entries, self._class(made), remake)
            self._placed.append((part, first))
        elif made:
            logs = [part.topic.log for part, _, _ in made]
            self._crossing.commit(logs, partial(self._place, made, logs), self._class(made))
        self.settle()

    @property
    def is_open(self) -> bool:
        """Whether operations can be added."""
        return self._state == "open"

    def enter(self) -> tuple[Shard, Group, bool] | None:
        """Commit without waiting: returns the group, and whether it has to be waited for.

        `settle` is to be called behind that. None if that is not possible, or if there is nothing:
        then nothing was done.
        """
        self._check_state()
        if any(part.is_new for part in self._topics.values()):
            return None
        made = self._encode()
        logs = [part.topic.log for part, _, _ in made]
        group: Group | None = None
        if len(made) == 1:
            part, entries, remake = made[0]
            group, first, _ = logs[0].enter(entries, self._class(made), remake, is_left=True)
            self._placed.append((part, first))
        elif made:
            place = partial(self._place, made, logs)
            group = self._crossing.enter(logs, place, self._class(made))
        if group is None:
            return None
        self._state = "over"
        has_to_wait = self._class(made) == SYNCED or group.bytes > GROUP_BYTES_MAX
        return logs[0].shard, group, has_to_wait

    def settle(self) -> None:
        """Tell the handles where their records are: the batch is committed."""
        for part, base in self._placed:
            for handle in part.handles:
                handle.place(base)

    def check(self) -> None:
        """Raise unless operations can be added."""
        self._check_state()
        self._store.check_writable()

    def _check_state(self) -> None:
        if self._state == "new":
            raise StateError("a batch collects in a with block: with store.batch() as batch: ...")
        if self._state != "open":
            raise StateError("this batch is over: get another one with store.batch()")

    def add_bytes(self, size: int) -> None:
        """Count what was added; raises when it can no longer be one frame."""
        self._check_bytes(self._bytes + size)
        self._bytes += size

    def _check_bytes(self, size: int) -> None:
        if size > self._bytes_max:
            raise TooLargeError(
                f"the batch has {size} bytes, at most {self._bytes_max} are atomic: make several "
                "batches of it, or raise batch_bytes_max or log_file_bytes"
            )

    def _encode(self) -> list[Made]:
        """The frames of all topics; everything that can still be wrong is found here."""
        parts = [part for part in self._topics.values() if part.items]
        if parts:
            self._store.check_writable()
        made = [(part, *part.encode()) for part in parts]
        bodies = [entry.body for _, entries, _ in made for entry in entries]
        self._check_bytes(sum(HEADER_BYTES + len(body) for body in bodies))
        return made

    def _class(self, made: list[Made]) -> int:
        """The class that was asked for, or the strictest of the topics."""
        return max(part.topic.log.rank for part, _, _ in made) if self._rank is None else self._rank

    def _place(self, made: list[Made], logs: list[TopicLog]) -> Joint:
        """Give all records their offsets; the locks of all the topics' shards are held."""
        entered: list[Entry] = []
        self._placed = []
        for part, entries, remake in made:
            log = part.topic.log
            placed = log.place(entries, remake)
            self._placed.append((part, log.next_offset))
            log.next_offset = placed[-1].base_offset + placed[-1].count
            log.last_timestamp = placed[-1].max_timestamp
            entered += placed
        return Multi(entered, logs)


def _keep(item: Any) -> bytes | Record | None:
    """A record that nobody else can change; the value alone if there is nothing else."""
    if not isinstance(item, Record):
        return check_bytes("value", item)
    headers = dict(item.headers) if item.headers else NO_HEADERS
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
