"""The values users hold: records, gaps, durability classes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self

import msgspec

if TYPE_CHECKING:
    # Known to type checkers alone: the default is what a handle without a type reads.
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes | None)
    T_co = TypeVar("T_co", covariant=True, default=bytes | None)
    V = TypeVar("V", default=bytes)
    V_co = TypeVar("V_co", covariant=True, default=bytes)
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    V = TypeVar("V")
    V_co = TypeVar("V_co", covariant=True)

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})
"""Value of `Record.headers` if a record has none: one shared, empty, read-only mapping."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def time_of(timestamp: int) -> datetime:
    """Nanoseconds since 1970 as a datetime in UTC; what is below a microsecond is cut off."""
    # Not fromtimestamp(): a float of today's seconds is good to 200 ns only, and rounds.
    return _EPOCH + timedelta(microseconds=timestamp // 1000)


class Durability(enum.StrEnum):
    """The failures that an acknowledged append survives, from least to most."""

    EPHEMERAL = "ephemeral"
    """Never written; the topic and its next offset outlive the process, the records do not."""
    MEMORY = "memory"
    """Written when convenient, at the latest after `sync_interval`."""
    DISK = "disk"
    """Written within `flush_interval`, synced within `sync_interval`; appends wait for neither."""
    FSYNC = "fsync"
    """Acknowledged means on the disk."""


class Operation(enum.IntEnum):
    """The effect of a record on its key."""

    PUT = 0
    DELETE = 1


class Record(msgspec.Struct, Generic[T_co], frozen=True, gc=False):
    """One record, as it was read or as it is to be appended.

    `offset` and `timestamp` are assigned by the log; a `timestamp` given on the way in is kept
    unless it would go back in time: then it is the record's `event_time`. `None` and `b""` are
    different keys and values.
    """

    value: T_co = None  # type: ignore[assignment]  # bytes or None, or what a typed handle reads
    key: bytes | None = None
    headers: Mapping[str, bytes] = NO_HEADERS
    tag: str | None = None
    node: str | None = None
    timestamp: int = 0
    """Nanoseconds since 1970; 0 on the way in means now."""
    offset: int = -1
    """Place in the topic, from 0; -1 until appended."""
    priority: int = 0
    """0 to 255, 0 is most urgent."""
    expires_at: int = 0
    """Nanoseconds since 1970 after which the record is gone; 0 is never."""
    not_before: int = 0
    """Nanoseconds since 1970 before which a queue does not deliver it; 0 is at once."""
    operation: int = 0
    """An `Operation`: put, or delete of the key."""
    given_time: int = 0
    """The time that it was given, where that is not its `timestamp`; else 0. See `event_time`."""

    @property
    def event_time(self) -> int:
        """The time that it was appended with, in nanoseconds: `timestamp`, or an earlier one.

        Times in a topic never go back. A record that is appended with an earlier time than the
        newest one's gets that one's as its `timestamp`, and keeps its own here.
        """
        return self.given_time or self.timestamp

    @property
    def time(self) -> datetime:
        """`timestamp` as a datetime in UTC, to the microsecond."""
        return time_of(self.timestamp)

    @property
    def raw(self) -> bytes | None:
        """The bytes of the value as they are stored, whatever type it is read with."""
        return self.value  # type: ignore[return-value]  # a typed one has a field of that name

    def __reduce__(self) -> tuple[Any, ...]:
        # The mapping for no headers can be neither pickled nor copied.
        fields = list(msgspec.structs.astuple(self))
        fields[2] = dict(self.headers)
        return _record, (type(self), fields)


class TypedRecord(Record[T_co], frozen=True, gc=False):
    """A record whose value was read as the type of its handle."""

    raw: bytes | None = None


class UndecodableRecord(TypedRecord[T_co], frozen=True, gc=False):
    """A record whose value is not of the type of its handle: to look at it raises."""

    error: Exception | None = None

    @property  # type: ignore[misc]  # in the place of the field
    def value(self) -> T_co:
        """Raise `UndecodableValueError`."""
        assert self.error is not None
        raise self.error

    def __repr__(self) -> str:
        return f"<stratalog.Record {self.offset}, undecodable: {self.raw!r}>"


def _record(cls: type[Record], fields: list[Any]) -> Record:
    """A record out of a pickle, or a copy."""
    fields[2] = fields[2] or NO_HEADERS
    return cls(*fields)


class Priority(enum.IntEnum):
    """Names for three of the 256 priorities; the most urgent is delivered first."""

    HIGH = 0
    NORMAL = 128
    LOW = 255


class Lease(msgspec.Struct, frozen=True, gc=False):
    """Until when a delivered record is whose, and the how-manieth delivery it was.

    Records that are delivered at once share one. Its last two fields are never written down.
    """

    deadline: int
    """Nanoseconds since 1970; after it, the record is delivered to another consumer."""
    delivery_count: int
    consumer: str
    """Empty when it was given back, and waits for its next delivery."""
    delivered_at: int
    """Nanoseconds since 1970."""
    serial: int
    """Number of the delivery in its group: what a consumer must have to acknowledge."""
    priority: int
    size: int = 0
    """How many records were delivered with it; 0 where they were not counted."""
    is_settled: bool = False
    """Whether all of these were acknowledged at once."""


NO_LEASE = Lease(0, 0, "", 0, 0, 0)


NOTHING_MORE: tuple[Any, ...] = (None, NO_HEADERS, None, None, 0, 0, 0, 0, 0)
"""Fields of a record that has nothing but a value: see `Delivery.more`."""


class Delivery(msgspec.Struct, Generic[T_co], gc=False, eq=False, weakref=False):
    """A record, delivered to a consumer of a group: it has all that a `Record` has."""

    value: T_co = None  # type: ignore[assignment]  # bytes or None, or what a typed handle reads
    timestamp: int = 0
    offset: int = -1
    source: Any = None
    """The queue or group that it came from."""
    lease: Lease = NO_LEASE
    """This very delivery: what `ack`, `nack` and `touch` know it by."""
    more: tuple[Any, ...] = NOTHING_MORE
    """Key, headers, tag, node, priority, expires_at, not_before, operation and given_time: in one,
    because most messages have none of them, and are made and forgotten by the million."""
    settled: bool = False
    """Whether it was acknowledged or given back by itself: see `is_settled`."""

    def __repr__(self) -> str:
        return (
            f"<stratalog.{type(self).__name__} {self.offset}, delivery {self.delivery_count}: "
            f"{self.value!r}>"
        )

    @property
    def raw(self) -> bytes | None:
        """The bytes of the value as they are stored, whatever type it is read with."""
        return self.value  # type: ignore[return-value]  # a typed one has a field of that name

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or given back."""
        return self.settled or self.lease.is_settled

    @property
    def time(self) -> datetime:
        """`timestamp` as a datetime in UTC, to the microsecond."""
        return time_of(self.timestamp)

    @property
    def key(self) -> bytes | None:
        """As `Record.key`; for a message, its deduplication id."""
        key: bytes | None = self.more[0]
        return key

    @property
    def headers(self) -> Mapping[str, bytes]:
        """Headers that were appended with it."""
        headers: Mapping[str, bytes] = self.more[1]
        return headers

    @property
    def tag(self) -> str | None:
        """The record's tag."""
        tag: str | None = self.more[2]
        return tag

    @property
    def node(self) -> str | None:
        """The record's node."""
        node: str | None = self.more[3]
        return node

    @property
    def priority(self) -> int:
        """0 to 255, 0 is most urgent."""
        priority: int = self.more[4]
        return priority

    @property
    def expires_at(self) -> int:
        """Nanoseconds since 1970 after which the record is gone; 0 is never."""
        expires_at: int = self.more[5]
        return expires_at

    @property
    def not_before(self) -> int:
        """Nanoseconds since 1970 before which it was not to be delivered; 0 is at once."""
        not_before: int = self.more[6]
        return not_before

    @property
    def operation(self) -> int:
        """An `Operation`: put, or delete of the key."""
        operation: int = self.more[7]
        return operation

    @property
    def event_time(self) -> int:
        """The time that it was appended with, in nanoseconds: see `Record.event_time`."""
        given_time: int = self.more[8]
        return given_time or self.timestamp

    @property
    def delivery_count(self) -> int:
        """1 the first time it is delivered."""
        return self.lease.delivery_count

    @property
    def deadline(self) -> int:
        """Nanoseconds since 1970 until when it is this consumer's; 0 if it is for good."""
        return self.lease.deadline

    @property
    def consumer(self) -> str:
        """Whom it was delivered to."""
        return self.lease.consumer

    def ack(self) -> None:
        """Done: it is not delivered again."""
        self.source.ack(self)

    def nack(self, reason: str = "", delay: float | timedelta | None = None) -> None:
        """Give it back, to be delivered again."""
        self.source.nack(self, reason=reason, delay=delay)

    def touch(self, lease: float | timedelta | None = None) -> None:
        """Keep it longer: the lease starts again now."""
        self.source.touch(self, lease=lease)


class TypedDelivery(Delivery[T_co], gc=False, eq=False, weakref=False):
    """A delivery whose value was read as the type of its handle."""

    raw: bytes | None = None


class UndecodableDelivery(TypedDelivery[T_co], gc=False, eq=False, weakref=False):
    """A delivery whose value is not of the type of its handle: to look at it raises."""

    error: Exception | None = None

    def __repr__(self) -> str:
        return f"<stratalog.Delivery {self.offset}, undecodable: {self.raw!r}>"

    @property  # type: ignore[misc]  # in the place of the field
    def value(self) -> T_co:  # type: ignore[override]
        """Raise `UndecodableValueError`."""
        assert self.error is not None
        raise self.error


class Message(Delivery[T_co], gc=False, eq=False, weakref=False):
    """A message of a queue. In a `with` block it is acknowledged when the block ends well.

    If the block raises, the message is given back with the exception as the reason. Its lease is
    renewed for as long as the block runs, an hour at most.
    """

    held: int = 0
    """Where its lease is renewed, while it is in a `with` block."""

    def __enter__(self) -> Self:
        if self.lease.deadline and not self.is_settled:
            self.held = self.source.hold((self,))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.held:
            self.source.let_go(self.held)
        if not self.is_settled:
            self.source.leave(self, error)


class TypedMessage(Message[T_co], gc=False, eq=False, weakref=False):
    """A message whose value was read as the type of its queue."""

    raw: bytes | None = None


class UndecodableMessage(TypedMessage[T_co], gc=False, eq=False, weakref=False):
    """A message whose value is not of the type of its queue: to look at it raises."""

    error: Exception | None = None

    def __repr__(self) -> str:
        return f"<stratalog.Message {self.offset}, undecodable: {self.raw!r}>"

    @property  # type: ignore[misc]  # in the place of the field
    def value(self) -> T_co:  # type: ignore[override]
        """Raise `UndecodableValueError`."""
        assert self.error is not None
        raise self.error


class Put(NamedTuple):
    """The outcome of putting a message."""

    offset: int
    """Its place; of a duplicate, the place of the first one."""
    duplicate: bool


class Latest(NamedTuple):
    """The newest point of a series."""

    tags: dict[str, str]
    timestamp: int
    """Nanoseconds."""
    fields: dict[str, Any]


class Entry(NamedTuple, Generic[V_co]):
    """A value of a table, and which version of its key it is."""

    value: V_co | None
    """None in a history, where the key was deleted or expired."""
    version: int
    """The offset of its record."""
    timestamp: int
    """Nanoseconds since 1970 at which it was put."""
    expires_at: int
    """Nanoseconds since 1970 after which it is gone; 0 is never."""


class Change(NamedTuple, Generic[V_co]):
    """A change of a key, as those who watch a table see it."""

    key: str | bytes
    value: V_co | None
    """None if the key was deleted, or expired."""
    version: int
    """The offset of its record."""
    timestamp: int
    """Nanoseconds since 1970."""
    operation: Operation

    @property
    def next(self) -> int:
        """The version to watch from, to get every change after this one."""
        return self.version + 1


class CaughtUp(NamedTuple):
    """Comes once when all entries of a table were given: what follows are changes."""

    version: int
    """The newest version that the entries include; -1 if the table was never written to."""

    @property
    def next(self) -> int:
        """The version to watch from, to get every change after the entries."""
        return self.version + 1


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Offsets `first` to `last` (both included) that cannot be read, and why."""

    first: int
    last: int
    reason: str
    """`ephemeral` (never written), `expired` (past its time to live), `evicted` (by retention),
    `damaged` (given up by a repair) or `crash` (records of a class below `fsync` that a crash took
    or a full disk refused, and offsets beside them that may never have been given out)."""


class Diff(msgspec.Struct, Generic[T_co], frozen=True):
    """The news of a topic for a reader that has seen it up to an offset."""

    records: list[Record[T_co]]
    next: int
    """Where to go on: what to give as `after` the next time."""
    newest: int
    """The newest offset there is; -1 in an empty topic."""
    earliest: int
    """The first offset that can still be read."""
    caught_up: bool
    """Whether `next` is the newest."""
    gap: Gap | None
    """Records that went before they were seen: evicted, or given up by a repair."""
    cold_segments_read: int
    """How many segments had to be read from the cold store."""
