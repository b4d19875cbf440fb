"""A group of mode `stream`: a cursor of its own, and nothing to remember of single records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stratalog.log.topic import SYNCED, TopicLog
from stratalog.memory import MemoryBudget
from stratalog.model import Delivery, Gap, Lease
from stratalog.projections.engine import Engine
from stratalog.projections.groups import GroupState
from stratalog.projections.rows import Rows
from stratalog.projections.rules import Rules
from stratalog.segments.read import read_living


class Streaming(Engine):
    """One group: records are given out in order, and acknowledged up to one of them."""

    def __init__(
        self, topic: TopicLog, state: GroupState, rules: Rules, budget: MemoryBudget
    ) -> None:
        super().__init__(topic, state, rules, budget)
        self.position = state.cursor
        """The next offset to give out."""

    def take(self, limit: int, consumer: str, lease: int, now: int) -> list[Any]:
        """The next records; they come again only after `seek`, `nack` or a restart."""
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
        return found.deliveries(Delivery, None, token)

    def ack_offsets(self, offsets: Sequence[int]) -> int:
        """Everything up to the highest of these is done."""
        behind = max(offsets, default=-1) + 1
        if behind <= self.state.cursor:
            return 0
        count = behind - self.state.cursor
        self._move(behind)
        return count

    def forward(self, cursor: int) -> None:
        """The cursor moved, by a frame that is written; the lock is held."""
        self.position = max(self.position, cursor)

    def give_back(self, offsets: Sequence[int]) -> None:
        """Give these out again, and all that follow."""
        self.position = max(self.state.cursor, min([self.position, *offsets]))
        self.line.wake()

    def seek(self, offset: int) -> None:
        """Go on from an offset."""
        self.position = offset
        self.state.reset(offset)
        self.operations.seek(offset)
        self.operations.enter(sync=True)
        self.line.wake()

    def _move(self, cursor: int) -> None:
        self.position = max(self.position, cursor)
        self.operations.move(cursor)
        self.operations.enter(sync=self.topic.rank == SYNCED)
