"""Arguments that handles of groups and queues have in common: checks, and resolving places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from stratalog.arguments import check_text, check_time
from stratalog.consume.atomic_frame import AtomicFrame
from stratalog.consume.batch_changes import GroupChanges
from stratalog.consume.engine import Engine
from stratalog.errors import OptionError, WrongTypeError
from stratalog.format.groups import Description
from stratalog.log.cross_shard import CrossShard
from stratalog.log.topic import SYNCED, TopicLog
from stratalog.model import Delivery, Record
from stratalog.options import check_range, seconds
from stratalog.segments.read import offset_at

Place = int | float | datetime | str
"""An offset, a time, or the name of one of the two ends."""


Given = int | Delivery | Iterable[int | Delivery]
"""Arguments of `ack` and the like: one record or many, as delivered or by offset."""


def write_description(engine: Engine, description: Description, seek: int | None) -> None:
    """Log the description of a group durably, and where it begins."""

    def note() -> Callable[[], None]:
        engine.operations.describe(description)
        if seek is not None:
            engine.operations.seek(seek)
        return lambda: None

    engine.change(note)


def split(given: Sequence[Any]) -> tuple[list[int], list[Delivery]]:
    """Split the arguments of a call into offsets and deliveries: one, many, or lists of them."""
    offsets: list[int] = []
    held: list[Delivery] = []
    for argument in given:
        for one in _each(argument):
            if isinstance(one, Delivery):
                held.append(one)
            elif isinstance(one, int):
                offsets.append(check_range("offset", one, 0, 1 << 63))
            else:
                raise _not_a_delivery(one)
    return offsets, held


def check_reason(reason: Any) -> str:
    """Check the reason for giving a record back: one line, without terminal control characters."""
    if not isinstance(reason, str):
        raise WrongTypeError(f"a reason is text, not {type(reason).__name__}: {reason!r:.80}")
    if reason.isprintable():
        return reason
    return " ".join("".join(c if c.isprintable() else " " for c in reason).split())


def _each(argument: Any) -> Iterable[Any]:
    if isinstance(argument, Delivery | int):
        return (argument,)
    if isinstance(argument, str | bytes | bytearray | Mapping | Record):
        raise _not_a_delivery(argument)
    try:
        return list(argument)
    except TypeError:
        raise _not_a_delivery(argument) from None


def _not_a_delivery(given: Any) -> WrongTypeError:
    return WrongTypeError(
        f"a message or delivery is expected, or a list of them, not {type(given).__name__}: "
        f"{given!r:.80}. Pass what get(), get_many() or poll() returned."
    )


def commit(cross_shard: CrossShard, changes: GroupChanges) -> None:
    """Commit changes of a group of class `fsync`; if the commit fails they are undone."""
    if changes:
        AtomicFrame(cross_shard, [], [changes]).commit(SYNCED)


def check_consumer(name: Any) -> str:
    """Check the name of a consumer."""
    if not isinstance(name, str):
        raise WrongTypeError(f"a consumer is named by text, not {type(name).__name__}: {name!r}")
    check_text("consumer", name)
    return str.__str__(name) or "consumer"


def lease_ns(engine: Engine, lease: Any) -> int:
    """Convert a lease to nanoseconds; the group's own if none is given."""
    return engine.rules.lease if lease is None else round(seconds("lease", lease) * 1e9)


def delay_ns(delay: Any, name: str = "delay") -> int:
    """Convert a delay to nanoseconds, which may be 0."""
    if delay == 0 and not isinstance(delay, bool):
        return 0
    return round(seconds(name, delay) * 1e9)


def check_due(delay: Any, at: Any, now: int) -> int:
    """Return the time in nanoseconds before which a message is not delivered; 0 is at once."""
    if at is None:
        wait = 0 if delay is None else delay_ns(delay)
        return now + wait if wait else 0
    if delay is not None:
        raise OptionError("delay and at both say when a message is due: give one of them")
    due = check_time("at", at)
    return due if due > now else 0


def find_place(log: TopicLog, what: str, place: Place) -> int:
    """Resolve an offset, a time or a word to an offset."""
    if place == "earliest":
        return log.earliest
    if place == "latest":
        return log.committed
    if isinstance(place, str):
        raise OptionError(f'{what}={place!r} is not known: use "earliest" or "latest"')
    if isinstance(place, int) and not isinstance(place, bool):
        return min(max(check_range(what, place, 0, 1 << 63), log.earliest), log.committed)
    return offset_at(log, check_time(what, place))
