"""What waits to be committed together: entries, the group they are in, and who waits for it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
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

# How long to wait before looking whether there is still something to wait for.
_PATIENCE_SECONDS = 1.0


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
        """Of a control frame: makes it state, in log order; may be called again."""
        self.on_fail = on_fail
        """Of a control frame: it is not in the log after all; may be called again."""

    @property
    def topics(self) -> Sequence[TopicLog]:
        """The topics whose offsets it holds."""
        return () if self.topic is None else (self.topic,)


class PlainEntry(Entry):
    """A frame of values alone, of a topic in the log: what does not vary is the class's."""

    __slots__ = ()

    topic: TopicLog
    type = FrameType.RECORDS
    flags = 0
    is_in_memory = False
    on_commit = None
    on_fail = None


def plain_entry(topic: TopicLog, body: bytes, count: int) -> PlainEntry:
    """A frame of values, without its place and time; the constructor would take twice as long."""
    entry = _new(PlainEntry)
    entry.topic = topic
    entry.topic_id = topic.id
    entry.body = body
    entry.count = count
    entry.body_checksum = body_checksum(body)
    return entry


def is_plain_run(entries: list[Any]) -> TypeGuard[list[PlainEntry]]:
    """Whether these are plain frames of one topic, as they are when one topic is filled."""
    if not entries or type(entries[0]) is not PlainEntry:
        return False
    topic = entries[0].topic
    is_other = [1 for entry in entries if type(entry) is not PlainEntry or entry.topic is not topic]
    return not is_other


class Pending:
    """Single appends to one topic, gathered into one batch until the group is written.

    `extras` has, per optional column, the items of those records that have one, by index.
    """

    __slots__ = ("base_offset", "extras", "timestamps", "topic", "values")

    def __init__(self, topic: TopicLog, base_offset: int) -> None:
        self.topic = topic
        self.base_offset = base_offset
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.extras: dict[str, dict[int, Any]] | None = None

    @property
    def topics(self) -> Sequence[TopicLog]:
        """The topic whose offsets it holds."""
        return (self.topic,)

    def cut(self, offset: int) -> None:
        """Forget what is behind `offset`: an append that was interrupted half-way left it."""
        count = offset - self.base_offset
        del self.values[count:], self.timestamps[count:]
        for items in (self.extras or {}).values():
            items.pop(count, None)

    def encode(self) -> list[Entry]:
        """The batch as a frame; as several when it would be too large for one."""
        count = len(self.values)
        if not count:  # the append that began it was interrupted
            return []
        columns = Columns(self.values, timestamps=self.timestamps)
        for name, items in (self.extras or {}).items():
            absent = ABSENT.get(name, 0)
            # All of them have it, as a rule, and in their order: they were added one by one.
            setattr(
                columns,
                name,
                list(items.values())
                if len(items) == count
                else [items.get(index, absent) for index in range(count)],
            )
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
        part = Pending(self.topic, self.base_offset + first)
        part.values = self.values[first:end]
        part.timestamps = self.timestamps[first:end]
        part.extras = {
            name: {index - first: item for index, item in items.items() if first <= index < end}
            for name, items in (self.extras or {}).items()
        }
        return part


class Gathered:
    """Changes of a projection, gathered until the group is written and encoded once for all.

    `encode` is called by the holder of the commit lock, and again if that was interrupted; frames
    it made before are then forgotten. It must not wait for anybody who may wait for a commit.
    """

    __slots__ = ()

    @property
    def topics(self) -> Sequence[TopicLog]:
        """None: what is gathered here holds no offsets."""
        return ()

    def encode(self) -> list[Entry]:
        """The changes as frames, none if there are none."""
        raise NotImplementedError

    def on_fail(self) -> None:
        """The group that this entered failed before it was encoded."""
        raise NotImplementedError


ABSENT: dict[str, Any] = {"keys": None, "headers": (), "tags": None, "nodes": None}
"""What stands in an optional column for a record that has none; 0 in those not named."""


def records_entry(
    topic: TopicLog,
    flags: int,
    body: bytes,
    count: int,
    base_offset: int = 0,
    first: int = 0,
    last: int = 0,
) -> Entry:
    """A frame of records, compressed if the topic asks for it and it pays."""
    if topic.codec and (smaller := compress(body, topic.codec)) is not None:
        body = smaller
        flags |= topic.codec
    return Entry(FrameType.RECORDS, topic.id, body, base_offset, topic, flags, count, first, last)


def batch_bytes_max(options: StoreOptions) -> int:
    """The largest body of a frame: as the options say, and no more than fits into a file."""
    return min(options.batch_bytes_max, options.log_file_bytes - HEADER_BYTES - 8)


def check_batch(topic: TopicLog, length: int) -> None:
    """Refuse a body that cannot be one frame."""
    if length > topic.batch_bytes_max:
        raise TooLargeError(
            f"a batch of {length} bytes is too large for topic {topic.name!r}: at most "
            f"{topic.batch_bytes_max} are atomic; append it in parts"
        )


class Group:
    """Entries that are written, and if one of them asks for it synced, at once.

    Concurrency: fields are guarded by the shard's lock until the group is closed, then by its
    commit lock. `gate` is held until the outcome is known: whoever waits for the group waits on
    it, not on the commit lock, where the groups behind would queue in between.
    """

    __slots__ = (
        "behind",
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
        """Of type `Entry`, `Pending` or `Gathered`."""
        self.encoded: list[Entry] = []
        self.is_plain = False
        """Whether `encoded` is plain frames of one topic, which take a shorter way."""
        self.written = 0
        """Entries that are in the log; the newest run of them begins at `position`."""
        self.position = 0
        self.published = 0
        """Entries that can be read."""
        self.bytes = 0
        self.sync = False
        self.leader = 0
        """The thread that has taken it on to commit this group; 0 for none."""
        self.is_acknowledged = False
        """Holds appends that were acknowledged already: if they are lost, the next one is told."""
        self.is_relaxed = False
        """Holds appends that nobody waits for: the ticker will see to it."""
        self.is_lazy = False
        """Holds appends of class `memory`, which the ticker need not hurry for."""
        self.is_publishing = False
        """Holds a frame of several topics, of which some may be readable before the others are."""
        self.done = False
        self.error: StratalogError | None = None
        self.failure: StratalogError | None = None
        """What went wrong, from the moment that is known: nothing of it is tried again."""
        self.behind: list[Group] = []
        """Groups that came behind it and fail with it."""
        self.is_open = False
        """Whether the gate was opened."""
        self.gate = threading.Lock()
        self.gate.acquire()
        self.observed: dict[AppendFuture, None] = {}
        """The futures that somebody looks at."""
        self.post: Callable[[Audience], None]
        """Has their audiences called; set with its first future."""

    def finish(self, error: StratalogError | None) -> None:
        """Make the outcome known; may be repeated if it was interrupted."""
        self.error = error
        self.done = True
        if not self.is_open:
            self.is_open = True
            self.gate.release()

    def tell(self) -> bool:
        """Have those called who look at futures of a group that is done; returns whether all are.

        Whoever begins to look from now on sees that it is done.
        """
        for future in list(self.observed):
            future._condition.tell()
        return not self.observed

    def look(self, timeout: float = _PATIENCE_SECONDS) -> bool:
        """Wait for the outcome, but not for ever; returns whether it is known.

        Another who waits may be interrupted between taking the gate and letting go of it.
        """
        if not self.done and self.gate.acquire(True, min(timeout, _PATIENCE_SECONDS)):
            self.gate.release()
        return self.done

    def wait(self, timeout: float = math.inf) -> bool:
        """Return when the outcome is known, or the time is up; returns whether it is known."""
        deadline = time.monotonic() + timeout
        while not self.look(max(deadline - time.monotonic(), 0)):
            if time.monotonic() >= deadline:
                break
        return self.done
