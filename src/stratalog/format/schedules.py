"""Bodies of `SCHEDULE` and `DUE` frames: what a schedule is, and what it has put so far.

Both belong to no topic, and their headers have the id 0. A `SCHEDULE` frame's body is a
`ScheduleBody`, wrapped as other control bodies are; `base_offset` has the number of the change (0
when the schedule is made), and the highest number wins, wherever it is replayed from.

A `DUE` frame says that the message of a due time was put, and when the next one is due. It stands
in one `MULTI` frame with that message, in the shard of the queue; `base_offset` has the number of
the change that the schedule was at.

Due body, little-endian:

| field | type | meaning |
|---|---|---|
| schedule | u64 | number of the schedule, from 1; never used again |
| due | i64 | the due time whose message was put, nanoseconds since 1970 |
| next_due | i64 | the due time that follows, nanoseconds since 1970 |
| fired | u64 | messages that the schedule has put so far |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from stratalog.errors import CorruptionError
from stratalog.format.control import unwrap, wrap

DUE = struct.Struct("<QqqQ")
DUE_BYTES = 32
assert DUE.size == DUE_BYTES

_NUMBER_MAX = (1 << 63) - 1


class ScheduleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule as the log remembers it. Times are nanoseconds since 1970."""

    id: int
    name: str
    queue: str
    """Name of the queue: a queue of that name which is made later takes the place of this one."""
    created_at: int
    anchor: int
    """From when on `every` is counted."""
    first_due: int
    """The due time that comes next, as of this change."""
    value: bytes | None = None
    cron: str | None = None
    every: int = 0
    """Nanoseconds between due times, if there is no `cron`."""
    timezone: str = "UTC"
    headers: dict[str, bytes] = {}
    priority: int = 0
    ttl: int = 0
    """Nanoseconds that its messages live; 0 is for ever."""
    is_paused: bool = False
    is_dropped: bool = False


class Due(NamedTuple):
    """A decoded `DUE` body."""

    schedule: int
    due: int
    next_due: int
    fired: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ScheduleBody)


def encode_schedule(schedule: ScheduleBody) -> bytes:
    """The body of a `SCHEDULE` frame."""
    return wrap(_encoder.encode(schedule))


def decode_schedule(body: bytes) -> ScheduleBody:
    """Read the body of a `SCHEDULE` frame."""
    try:
        schedule = _decoder.decode(unwrap(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"schedule frame does not decode: {error}") from error
    check_schedule(schedule)
    return schedule


def check_schedule(schedule: ScheduleBody) -> None:
    """Raise `CorruptionError` if a number of a schedule cannot be."""
    times = (
        schedule.created_at, schedule.anchor, schedule.first_due, schedule.every, schedule.ttl,
    )  # fmt: skip
    if not 0 < schedule.id <= _NUMBER_MAX or not all(0 <= one <= _NUMBER_MAX for one in times):
        raise CorruptionError("schedule frame has a number that cannot be")
    if (schedule.cron is None) != (schedule.every > 0) or not 0 <= schedule.priority <= 255:
        raise CorruptionError("schedule frame says nothing that can be, of when or of what")


def encode_due(schedule: int, due: int, next_due: int, fired: int) -> bytes:
    """The body of a `DUE` frame."""
    return DUE.pack(schedule, due, next_due, fired)


def decode_due(body: bytes) -> Due:
    """Read the body of a `DUE` frame."""
    if len(body) != DUE_BYTES:
        raise CorruptionError(f"due frame of {len(body)} bytes, {DUE_BYTES} expected")
    found = Due(*DUE.unpack(body))
    if not 0 < found.schedule <= _NUMBER_MAX or found.fired > _NUMBER_MAX:
        raise CorruptionError("due frame has a number that cannot be")
    if not 0 <= found.due < found.next_due:
        raise CorruptionError("due frame has times that cannot be")
    return found
