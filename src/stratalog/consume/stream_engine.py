"""A group of mode `stream`: a cursor, without any state per record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stratalog.consume.engine import Engine, Source
from stratalog.consume.read_ahead import Rows
from stratalog.consume.rules import Rules
from stratalog.errors import LeaseLostError, OffsetOutOfRangeError
from stratalog.log.commit_group import Group
from stratalog.log.topic import TopicLog
from stratalog.memory_budget import MemoryBudget
from stratalog.model import Delivery, Gap, Lease
from stratalog.segments.read import read_living
from stratalog.state.group_state import GroupState


class Streaming(Engine):
    """One group: records are given out in order, and acknowledged up to one of them."""

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget, source: Source
    ) -> None:
        super().__init__(topic, state, rules, budget, source)
        self._void = state.deliveries
        """Deliveries up to this number were given out before a `seek`, or before the store was
        opened: those records are given out again."""
        self.position = state.cursor
        """The next offset to give out."""

    def take(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """Take the next records; they come again only after `seek`, `nack` or a restart."""
        topic = self.topic
        topic.check_dropped()
        self.seen[consumer] = now
        found = Rows()
        start = max(self.position, topic.earliest)
        token = Lease(0, 1, consumer, now, self.state.deliveries + 1, 0)
        while start < topic.committed and len(found) < limit:
            stop = min(topic.committed, start + limit - len(found))
            for part in read_living(topic, start, stop, now):
                if not isinstance(part, Gap):
                    found.add(part.batch.fields(part.first, part.end, whole=True))
            start = stop
        self.position = max(self.position, start)
        self.state.deliveries += len(found)
        return found.deliveries(Delivery, self.source, token)

    def delivered(self, found: Sequence[Delivery], group: Group | None) -> None:
        """Do nothing: deliveries of a stream are not logged."""

    def check_held(self, delivery: Delivery, what: str) -> None:
        """Raise unless a record was given out since the cursor was last set; the lock is held."""
        self.check_own(delivery, what)
        if delivery.source is not self.source or delivery.lease.serial <= self._void:
            raise LeaseLostError(
                f"Offset {delivery.offset} of {self.topic.name!r} cannot be {what}: it was given "
                "out before the last seek, or before the store was opened. It is given out again: "
                "poll() for it."
            )

    def check_offsets(self, offsets: Sequence[int]) -> None:
        """Raise unless there are records at these offsets; the lock is held."""
        if offsets and max(offsets) >= self.topic.committed:
            raise OffsetOutOfRangeError(
                f"Offset {max(offsets)} of {self.topic.name!r} cannot be acknowledged: the topic "
                f"ends at {self.topic.committed}."
            )

    def move(self, cursor: int) -> int:
        """Acknowledge everything below an offset; returns how much is new. The lock is held."""
        count = max(cursor - self.state.cursor, 0)
        if count:
            self.operations.note(cursor=cursor)
            self.forward(cursor)
        return count

    def forward(self, cursor: int) -> None:
        """Advance the cursor after a frame was written; the lock is held."""
        self.position = max(self.position, cursor)

    def give_back(self, offsets: Sequence[int]) -> None:
        """Deliver these again, and all that follow."""
        self.position = max(self.state.cursor, min([self.position, *offsets]))
        self.line.wake()

    def seek(self, offset: int) -> Callable[[], None]:
        """Continue from an offset; returns the function that undoes it. For `change`."""
        position, void = self.position, self._void
        undo_state = self.state.save()

        def undo() -> None:
            self.position, self._void = position, void
            undo_state()

        self.position = offset
        self._void = self.state.deliveries
        self.state.reset(offset)
        self.operations.seek(offset)
        return undo
