"""What handles of groups and queues do alike: check what callers pass in, and find places."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from stratalog.errors import OptionError, WrongTypeError
from stratalog.format.groups import Description
from stratalog.inputs import check_text, check_time
from stratalog.log.topic import TopicLog
from stratalog.model import Delivery
from stratalog.options import check_range, seconds
from stratalog.projections.engine import Engine
from stratalog.segments.read import offset_at

Place = int | float | datetime | str
"""An offset, a time, or a word for one of the two ends."""


def tell(engine: Engine, description: Description, seek: int | None) -> None:
    """Write down what a group is, durably, and where it begins."""
    with engine.lock:
        engine.operations.describe(description)
        if seek is not None:
            engine.operations.seek(seek)
        group = engine.operations.enter(sync=True)
    engine.operations.wait(group, sync=True, written=True)


def split(deliveries: Iterable[int | Delivery]) -> tuple[list[int], list[Delivery]]:
    """Offsets, and deliveries that nobody settled yet."""
    if isinstance(deliveries, int | Delivery):
        deliveries = [deliveries]
    offsets: list[int] = []
    held: list[Delivery] = []
    for one in deliveries:
        if isinstance(one, Delivery):
            held.append(one)
        else:
            offsets.append(check_range("offset", one, 0, 1 << 63))
    return offsets, held


def check_consumer(name: Any) -> str:
    """The name of a consumer."""
    if not isinstance(name, str):
        raise WrongTypeError(f"a consumer is named by text, not {type(name).__name__}: {name!r}")
    check_text("consumer", name)
    return str.__str__(name) or "consumer"


def lease_ns(engine: Engine, lease: Any) -> int:
    """Nanoseconds of a lease, the group's own if none is given."""
    return engine.rules.lease if lease is None else round(seconds("lease", lease) * 1e9)


def delay_ns(delay: Any, name: str = "delay") -> int:
    """Nanoseconds of a delay, which may be none."""
    if delay == 0 and not isinstance(delay, bool):
        return 0
    return round(seconds(name, delay) * 1e9)


def find_place(log: TopicLog, what: str, place: Place) -> int:
    """The offset that is meant by one, by a time, or by a word."""
    if place == "earliest":
        return log.earliest
    if place == "latest":
        return log.committed
    if isinstance(place, str):
        raise OptionError(f'{what}={place!r} is not known: use "earliest" or "latest"')
    if isinstance(place, int) and not isinstance(place, bool):
        return min(max(check_range(what, place, 0, 1 << 63), log.earliest), log.committed)
    return offset_at(log, check_time(what, place))
