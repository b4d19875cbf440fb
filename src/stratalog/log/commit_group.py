"""Commit groups: entries that are committed together, and the threads that wait for them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from stratalog.errors import StratalogError, TooLargeError
from stratalog.format.codec import compress
from stratalog.format.columns import Columns, encode_columns
from stratalog.format.frame import HEADER_BYTES, FrameType, body_checksum
from stratalog.options import StoreOptions

if TYPE_CHECKING:
    from stratalog.log.future import AppendFuture, Audience
    from stratalog.log.topic import TopicLog

_new = object.__new__

# How long a waiter sleeps before it checks whether there is still something to wait for.
_PATIENCE_SECONDS = 1.0


EPHEMERAL, LAZY, RELAXED, SYNCED = range(4)
"""Ranks of the durability classes, as the log compares them."""

GROUP_BYTES_MAX = 1 << 20
"""An append that finds this much waiting commits it: bounds memory.

A smaller limit releases the interpreter lock more often (512 KiB took a tenth longer), a larger one
exceeds the processor's cache.
"""

RECORD_BYTES = 64
"""Bytes that a single append adds besides its own: its time, two list slots, an end."""

Item = tuple[str, Any]
"""A record's item in an optional column, by the column's name in `Columns`; or one of these:"""
TIMESTAMP = "timestamp"
"""The time that a record brings, in nanoseconds; before `TTL`."""
TTL = "ttl"
"""Nanoseconds that a record lives, counted from its time."""


class Entry:
    """One frame, complete but for its place in the log."""

    __slots__ = (
        "base_offset", "base_timestamp", "body", "body_checksum", "count", "flags", "is_in_memory",
        "max_timestamp", "on_commit", "on_fail", "topic", "topic_id", "type",
    )  # fmt: skip

    def __init__(
        self,
        type: int,
        topic_id: int,
        body: bytes,
        base_offset: int = 0,
        topic: TopicLog | None = None,
        flags: int = 0,
        count: int = 0,
        base_timestamp: int = 0,
        max_timestamp: int = 0,
        on_commit: Callable[[], None] | None = None,
        on_fail: Callable[[], None] | None = None,
    ) -> None:
        self.type = type
        self.topic_id = topic_id
        self.topic = topic
        self.flags = flags
        self.body = body
        self.count = count
        self.base_offset = base_offset
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp
        self.body_checksum = body_checksum(body)
        self.is_in_memory = topic is not None and topic.is_ephemeral
        self.on_commit = on_commit
        """For a control frame: applies it to the state, in log order; idempotent."""
        self.on_fail = on_fail
        """For a control frame: undoes it, since it is not in the log; idempotent."""

    @property
    def topics(self) -> Sequence[TopicLog]:
        """The topics whose offsets it holds."""
        return () if self.topic is None else (self.topic,)


class PlainEntry(Entry):
    """A frame of values alone, of a topic in the log: constant fields belong to the class."""

    __slots__ = ()

    topic: TopicLog
    type = FrameType.RECORDS
    flags = 0
    is_in_memory = False
    on_commit = None
    on_fail = None


def plain_entry(topic: TopicLog, body: bytes, count: int) -> PlainEntry:
    """Build a frame of values without place and time; the constructor takes twice as long."""
    entry = _new(PlainEntry)
    entry.topic = topic
    entry.topic_id = topic.id
    entry.body = body
    entry.count = count
    entry.body_checksum = body_checksum(body)
    return entry


def is_plain_run(entries: list[Any]) -> TypeGuard[list[PlainEntry]]:
    """Return whether these are plain frames of one topic, the usual case of a bulk append."""
    if not entries or type(entries[0]) is not PlainEntry:
        return False
    topic = entries[0].topic
    is_other = [1 for entry in entries if type(entry) is not PlainEntry or entry.topic is not topic]
    return not is_other


class Pending:
    """Single appends to one topic, gathered by column until their group is written.

    An optional column exists once a record has an item for it. The next record with an item fills
    it up to the record before; encoding fills it to the end.
    """

    __slots__ = ("base_offset", "columns", "group", "rank", "timestamps", "topic", "values")

    def __init__(self, topic: TopicLog, base_offset: int, group: Group) -> None:
        self.topic = topic
        self.base_offset = base_offset
        self.group = group
        self.rank = -1
        """The durability class that was last requested of the group."""
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.columns: dict[str, list[Any]] = {}

    @property
    def topics(self) -> Sequence[TopicLog]:
        """The topic whose offsets it holds."""
        return (self.topic,)

    def add(self, index: int, items: Iterable[Item], now: int) -> int:
        """Add the optional items of the record at `index`, which enters next.

        Returns its time, which is `now` unless it brings one. Idempotent.
        """
        columns = self.columns
        for name, item in items:
            if name == TIMESTAMP:
                now = max(item, self.topic.last_timestamp)
                if now == item:
                    continue
                name = "event_times"
            if name == TTL:
                name, item = "expires_at", now + item
            column = columns.get(name)
            if column is None:
                column = columns[name] = [ABSENT.get(name, 0)] * index
            elif len(column) != index:
                _fill(column, index, ABSENT.get(name, 0))
            column.append(item)
        return now

    def cut(self, count: int) -> None:
        """Keep the first `count` records, after the append of the next one failed. Idempotent."""
        del self.values[count:], self.timestamps[count:]
        for column in self.columns.values():
            del column[count:]

    def encode(self) -> list[Entry]:
        """Encode the batch as a frame, or as several if one would be too large."""
        count = len(self.values)
        if not count:  # an interrupt removed the append that began it
            return []
        columns = Columns(self.values, timestamps=self.timestamps)
        for name, column in self.columns.items():
            if len(column) != count:
                _fill(column, count, ABSENT.get(name, 0))
            setattr(columns, name, column)
        flags, body = encode_columns(columns)
        if len(body) > self.topic.batch_bytes_max and count > 1:
            return self._part(0, count // 2).encode() + self._part(count // 2, count).encode()
        return [
            records_entry(
                self.topic, flags, body, count, self.base_offset,
                self.timestamps[0], self.timestamps[-1],
            )
        ]  # fmt: skip

    def _part(self, first: int, end: int) -> Pending:
        part = Pending(self.topic, self.base_offset + first, self.group)
        part.values = self.values[first:end]
        part.timestamps = self.timestamps[first:end]
        part.columns = {name: column[first:end] for name, column in self.columns.items()}
        return part


def _fill(column: list[Any], count: int, absent: Any) -> None:
    """Extend a column to `count` items: the newest records have none."""
    column += [absent] * (count - len(column))


class Gathered:
    """Changes of a projection, gathered until the group is written and encoded once for all.

    The holder of the commit lock calls `encode`, and again if that was interrupted; frames of the
    first call are then dropped. It must not wait for a thread that may wait for a commit.
    """

    __slots__ = ()

    @property
    def topics(self) -> Sequence[TopicLog]:
        """No topics: gathered changes hold no offsets."""
        return ()

    def encode(self) -> list[Entry]:
        """Encode the changes as frames, none if there are none."""
        raise NotImplementedError

    def on_fail(self) -> None:
        """Undo after the group failed before it was encoded."""
        raise NotImplementedError


ABSENT: dict[str, Any] = {"keys": None, "headers": (), "tags": None, "nodes": None}
"""The value in an optional column for a record without one; 0 in columns not named here."""


def records_entry(
    topic: TopicLog,
    flags: int,
    body: bytes,
    count: int,
    base_offset: int = 0,
    first: int = 0,
    last: int = 0,
) -> Entry:
    """Encode a frame of records, compressed if the topic asks for it and it pays."""
    codec = topic.codec  # once: another thread may alter the topic meanwhile
    if codec and (smaller := compress(body, codec)) is not None:
        body = smaller
        flags |= codec
    return Entry(FrameType.RECORDS, topic.id, body, base_offset, topic, flags, count, first, last)


def batch_bytes_max(options: StoreOptions) -> int:
    """Return the largest body of a frame: by the options, and no more than fits into a file."""
    return min(options.batch_bytes_max, options.log_file_bytes - HEADER_BYTES - 8)


def check_batch(topic: TopicLog, length: int) -> None:
    """Refuse a body that is too large for one frame."""
    if length > topic.batch_bytes_max:
        raise TooLargeError(
            f"a batch of {length} bytes is too large for topic {topic.name!r}: at most "
            f"{topic.batch_bytes_max} are atomic; append it in parts"
        )


class Group:
    """Entries that are written together, and synced if one of them asks for it.

    Concurrency: the shard's lock guards the fields until the group is closed, then its commit lock.
    `gate` is held until the outcome is known: threads that wait for the group wait on the gate, not
    on the commit lock, where they would queue with later groups.
    """

    __slots__ = (
        "bytes",
        "done",
        "encoded",
        "entries",
        "error",
        "failure",
        "gate",
        "is_acknowledged",
        "is_lazy",
        "is_open",
        "is_plain",
        "is_publishing",
        "is_relaxed",
        "later",
        "leader",
        "observed",
        "position",
        "post",
        "published",
        "sync",
        "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.entries: list[Any] = []
        """Items of type `Entry`, `Pending` or `Gathered`."""
        self.encoded: list[Entry] = []
        self.is_plain = False
        """Whether `encoded` is plain frames of one topic, which take the fast path."""
        self.written = 0
        """Entries that are in the log; the newest run of them begins at `position`."""
        self.position = 0
        self.published = 0
        """Entries that can be read."""
        self.bytes = 0
        self.sync = False
        self.leader = 0
        """The thread that has undertaken to commit this group; 0 for none."""
        self.is_acknowledged = False
        """Holds appends that are acknowledged already: the next append reports their loss."""
        self.is_relaxed = False
        """Holds appends that no thread waits for: the ticker commits it."""
        self.is_lazy = False
        """Holds appends of class `memory`, for which the ticker need not hurry."""
        self.is_publishing = False
        """Holds a frame of several topics, some of which may be readable before the others."""
        self.done = False
        self.error: StratalogError | None = None
        self.failure: StratalogError | None = None
        """The error, set as soon as it is known: nothing of the group is tried again."""
        self.later: list[Group] = []
        """Later groups, which fail with it."""
        self.is_open = False
        """Whether the gate was opened."""
        self.gate = threading.Lock()
        self.gate.acquire()
        self.observed: dict[AppendFuture, None] = {}
        """The futures that have waiters or callbacks."""
        self.post: Callable[[Audience], None]
        """Notifies their audiences; set with the first future."""

    def is_awaited(self, rank: int) -> bool:
        """Return whether an append of a class has to wait for its group, or commit it when full."""
        return rank == SYNCED or self.bytes > GROUP_BYTES_MAX

    def finish(self, error: StratalogError | None) -> None:
        """Set the outcome; idempotent, in case it is interrupted."""
        self.error = error
        self.done = True
        if not self.is_open:
            self.is_open = True
            self.gate.release()

    def notify(self) -> bool:
        """Notify the audiences of a group that is done; returns whether all of them are.

        An audience that begins to wait from now on sees that the group is done.
        """
        for future in list(self.observed):
            future._condition.notify()
        return not self.observed

    def look(self, timeout: float = _PATIENCE_SECONDS) -> bool:
        """Wait for the outcome, but not for ever; returns whether it is known.

        Another waiter may be interrupted between taking the gate and releasing it.
        """
        if not self.done and self.gate.acquire(True, min(timeout, _PATIENCE_SECONDS)):
            self.gate.release()
        return self.done

    def wait(self, timeout: float = math.inf) -> bool:
        """Wait for the outcome or the timeout; returns whether the outcome is known."""
        deadline = time.monotonic() + timeout
        while not self.look(max(deadline - time.monotonic(), 0)):
            if time.monotonic() >= deadline:
                break
        return self.done
