"""The values users hold: records, gaps, durability classes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

import msgspec

NO_HEADERS: Mapping[str, bytes] = MappingProxyType({})
"""What `Record.headers` is when a record has none: one shared, empty, read-only mapping."""


class Durability(enum.StrEnum):
    """What an acknowledged append has survived, from least to most."""

    EPHEMERAL = "ephemeral"
    """Never written; the topic and its next offset outlive the process, the records do not."""
    MEMORY = "memory"
    """Written when convenient, at the latest after `sync_interval`."""
    DISK = "disk"
    """Written within `flush_interval`, synced within `sync_interval`; nobody waits for either."""
    FSYNC = "fsync"
    """Acknowledged means on the disk."""


class Operation(enum.IntEnum):
    """What a record does to its key."""

    PUT = 0
    DELETE = 1


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record, as it was read or as it is to be appended.

    `offset` and `timestamp` are assigned by the log; a `timestamp` given on the way in is kept
    unless it would go back in time. `None` and `b""` are different keys and values.
    """

    value: bytes | None = None
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

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return _record, (fields | {"headers": dict(self.headers)},)


def _record(fields: dict[str, Any]) -> Record:
    """A record out of a pickle, or a copy: the mapping for no headers has neither."""
    return Record(**fields | {"headers": fields["headers"] or NO_HEADERS})


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
    """Nanoseconds since 1970; after it, the record is delivered to somebody else."""
    delivery_count: int
    consumer: str
    """Empty when it was given back, and waits for its next delivery."""
    delivered_at: int
    """Nanoseconds since 1970."""
    serial: int
    """Number of the delivery in its group: what a consumer must have to acknowledge."""
    priority: int
    size: int = 0
    """How many records were delivered with it; 0 where nobody counted."""
    is_settled: bool = False
    """Whether all of these were acknowledged at once."""


NO_LEASE = Lease(0, 0, "", 0, 0, 0)


NOTHING_MORE: tuple[Any, ...] = (None, NO_HEADERS, None, None, 0, 0, 0, 0)
"""Of a record that has nothing but a value: see `Delivery.more`."""


class Delivery(msgspec.Struct, gc=False, eq=False, weakref=False):
    """A record, delivered to a consumer of a group: it has all that a `Record` has."""

    value: bytes | None = None
    timestamp: int = 0
    offset: int = -1
    source: Any = None
    """The queue or group that it came from."""
    lease: Lease = NO_LEASE
    """This very delivery: what `ack`, `nack` and `touch` know it by."""
    more: tuple[Any, ...] = NOTHING_MORE
    """Key, headers, tag, node, priority, expires_at, not_before and operation: in one, because most
    messages have none of them, and are made and forgotten by the million."""
    settled: bool = False
    """Whether it was acknowledged or given back by itself: see `is_settled`."""

    def __repr__(self) -> str:
        return (
            f"<stratalog.{type(self).__name__} {self.offset}, delivery {self.delivery_count}: "
            f"{self.value!r}>"
        )

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged or given back."""
        return self.settled or self.lease.is_settled

    @property
    def key(self) -> bytes | None:
        """What `Record.key` is; of a message, its deduplication id."""
        key: bytes | None = self.more[0]
        return key

    @property
    def headers(self) -> Mapping[str, bytes]:
        """What was appended with it."""
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


class Message(Delivery, gc=False, eq=False, weakref=False):
    """A message of a queue. In a `with` block it is acknowledged when the block ends well.

    If the block raises, the message is given back with the exception as the reason.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_settled:
            self.source.leave(self, error)

    def ack(self) -> None:
        """Done: it is not delivered again."""
        self.source.ack(self)

    def nack(self, reason: str = "", delay: float | None = None) -> None:
        """Give it back, to be delivered again."""
        self.source.nack(self, reason=reason, delay=delay)

    def touch(self, lease: float | None = None) -> None:
        """Keep it longer: the lease starts again now."""
        self.source.touch(self, lease=lease)


class Put(NamedTuple):
    """What became of a message that was put."""

    offset: int
    """Its place; of a duplicate, the place of the first one."""
    duplicate: bool


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Offsets `first` to `last` (both included) that cannot be read, and why."""

    first: int
    last: int
    reason: str
    """`ephemeral` (never written), `expired` (past its time to live), `evicted` (by retention) or
    `damaged` (given up by a repair)."""


class Diff(msgspec.Struct, frozen=True):
    """What is new in a topic for somebody who has seen it up to an offset."""

    records: list[Record]
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
