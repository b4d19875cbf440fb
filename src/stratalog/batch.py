"""Atomic batches: appends to several topics that are all kept or none.

Everything is collected in memory and checked in the call itself. When the `with` block is left all
of it is written as one frame; an exception in the block discards it. A batch is used by one thread
and once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from stratalog.errors import OptionError, StateError, TooLargeError, UsageError, WrongTypeError
from stratalog.format.columns import encode_values
from stratalog.format.frame import HEADER_BYTES
from stratalog.inputs import check_bytes, check_time, columns_of
from stratalog.log.crossing import Crossing
from stratalog.log.group import Entry, records_entry
from stratalog.log.joint import Joint, Multi
from stratalog.log.topic import RANKS, TopicLog
from stratalog.model import NO_HEADERS, Durability, Record
from stratalog.options import check_durability, seconds
from stratalog.topic import Topic, Value

if TYPE_CHECKING:
    from stratalog.reading import Time
    from stratalog.store import Store

Remake = Callable[[int], list[Entry]]
Made = tuple[TopicLog, list[Entry], Remake | None]


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

    def __init__(self, batch: Batch, topic: Topic, log: TopicLog) -> None:
        self._batch = batch
        self.topic = topic
        self.log = log
        self.items: list[Any] = []
        self.handles: list[Appended] = []

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.log.name

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
            expires_at = (stamp or self.log.time_ns()) + round(seconds("ttl", ttl) * 10**9)
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
        columns_of(items, self.log.record_bytes_max)
        kept = [_keep(item) for item in items]
        self._batch.add_bytes(sum(map(_size, kept)))
        handle = Appended(len(self.items), len(kept))
        self.items += kept
        self.handles.append(handle)
        return handle

    def encode(self) -> tuple[list[Entry], Remake | None]:
        """The frame of this topic, and what makes it again if the topic's time has moved on."""
        log = self.log
        body = encode_values(self.items)
        if body is not None:
            return [records_entry(log, 0, body, len(self.items))], None
        return self.topic.encode_records(self.items)


class Batch:
    """Appends to topics, all of them or none: see `Store.batch`."""

    def __init__(
        self, store: Store, crossing: Crossing, durability: Durability | str | None
    ) -> None:
        rank = None if durability is None else RANKS[check_durability(durability)]
        if durability == Durability.EPHEMERAL:
            raise OptionError("durability='ephemeral' is not possible for a batch: it is written")
        self._store = store
        self._crossing = crossing
        self._rank = rank
        self._topics: dict[str, BatchTopic] = {}
        self._state = "new"
        self._bytes = 0

    def topic(self, name: str) -> BatchTopic:
        """A topic to append to; created at once if there is none, with default options."""
        self.check()
        found = self._topics.get(name) if isinstance(name, str) else None
        if found is None:
            topic = self._store.topic(name)
            log = topic.log
            if log.is_ephemeral:
                raise OptionError(
                    f"topic {name!r} is ephemeral, so its records are never in the log: they "
                    "cannot be part of an atomic batch; append to it outside of the batch"
                )
            found = self._topics[name] = BatchTopic(self, topic, log)
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
        if self._state == "open":
            self._state = "over"
            if error is None:
                self._commit()

    def commit(self) -> None:
        """Commit now instead of at the end of the block; nothing more can be added."""
        self._check_state()
        self._state = "over"
        self._commit()

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
        for part in self._topics.values():
            if size > part.log.batch_bytes_max:
                raise TooLargeError(
                    f"the batch has {size} bytes, at most {part.log.batch_bytes_max} are atomic: "
                    "make several batches of it, or raise batch_bytes_max or log_file_bytes"
                )

    def _commit(self) -> None:
        parts = [part for part in self._topics.values() if part.items]
        if not parts:
            return
        self._store.check_writable()
        made = [(part.log, *part.encode()) for part in parts]
        logs = [part.log for part in parts]
        bodies = [entry.body for _, entries, _ in made for entry in entries]
        self._check_bytes(sum(HEADER_BYTES + len(body) for body in bodies))
        rank = max(log.rank for log in logs) if self._rank is None else self._rank
        if len(made) == 1:
            log, entries, remake = made[0]
            bases = [log.append_entries(entries, rank, remake)[0]]
        else:
            bases = self._commit_joint(made, logs, rank)
        for part, base in zip(parts, bases, strict=True):
            for handle in part.handles:
                handle.place(base)

    def _commit_joint(self, made: list[Made], logs: list[TopicLog], rank: int) -> list[int]:
        """Commit several topics' records in one frame; returns where each topic's begin."""
        bases: list[int] = []

        def make() -> Joint:
            parts: list[Entry] = []
            for log, entries, remake in made:
                placed = log.place(entries, remake)
                bases.append(log.next_offset)
                log.next_offset = placed[-1].base_offset + placed[-1].count
                log.last_timestamp = placed[-1].max_timestamp
                parts += placed
            return Multi(parts, logs)

        self._crossing.commit(logs, make, rank)
        return bases


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
    """Bytes that a record holds, at least."""
    if isinstance(item, Record):
        return len(item.value or b"") + len(item.key or b"")
    return len(item or b"")
