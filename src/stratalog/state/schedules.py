"""Schedules as the log has them: which there are, what is due next, and what was put.

Invariants:
- A due time and the message it stands for are in one frame: the message is in the queue exactly
  once if the due time is in this state, and not at all otherwise.
- The next due time belongs to a change of the schedule: of two, the one of the newer change wins,
  and within one change the later.

Concurrency: as `state/numbered.py`.
"""

from __future__ import annotations

from stratalog.errors import CorruptionError
from stratalog.format.frame import FrameType
from stratalog.format.schedules import ScheduleBody, decode_due, decode_schedule
from stratalog.format.snapshot import ScheduleSnapshot, SchedulesState
from stratalog.state.numbered import NUMBER_MAX, Defined, Numbered

SCHEDULE_FRAMES = (FrameType.SCHEDULE, FrameType.DUE)
"""Frames that belong to a schedule, and not to a topic."""


class ScheduleState(Defined[ScheduleBody]):
    """One schedule."""

    __slots__ = ("fired", "last_due", "next")

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.next = (-1, 0)
        """The change that the next due time belongs to, and that time."""
        self.last_due = 0
        """The due time of the newest message; 0 before there was one."""
        self.fired = 0

    @property
    def next_due(self) -> int:
        """When the next message is due, in nanoseconds since 1970."""
        return self.next[1]

    def redefine(self, version: int, body: ScheduleBody) -> None:
        """Take a definition over, unless a newer one is known."""
        super().redefine(version, body)
        self.next = max(self.next, (version, body.first_due))

    def advance(self, next: tuple[int, int], last_due: int, fired: int) -> None:
        """Take in what was put; nothing goes back."""
        self.fired = max(self.fired, fired)
        self.last_due = max(self.last_due, last_due)
        self.next = max(self.next, next)


class Schedules(Numbered[ScheduleState, ScheduleBody]):
    """All schedules of a store."""

    def _new(self, id: int) -> ScheduleState:
        return ScheduleState(id)

    def named(self, name: str) -> ScheduleState | None:
        """The schedule of a name; of two, the one made last: the making of the other raised."""
        found = [one for one in self.all() if one.body is not None and one.body.name == name]
        return found[-1] if found else None

    def apply(self, type: int, base_offset: int, body: bytes) -> None:
        """Take in a `SCHEDULE` or a `DUE` frame."""
        if base_offset > NUMBER_MAX:
            raise CorruptionError(f"schedule frame with number {base_offset}, which is too large")
        if type == FrameType.SCHEDULE:
            self.define(base_offset, decode_schedule(body))
        else:
            due = decode_due(body)
            schedule = self.mentioned(due.schedule)
            if schedule is not None:
                schedule.advance((base_offset, due.next_due), due.due, due.fired)

    def capture(self) -> SchedulesState:
        """Everything as it is; what is committed while this runs may be in it or not."""
        next_id = self.next_id  # first: see `define`
        found = [
            ScheduleSnapshot(one.version, *one.next, one.last_due, one.fired, one.body)
            for one in self.all()
            if one.body is not None
        ]
        return SchedulesState(next_id, [one for one in found if one.body.id < next_id])

    def restore(self, state: SchedulesState) -> None:
        """Take over what `capture` returned; what is known already and newer stays."""
        schedules = self.restored(state.next_id, [one.body for one in state.schedules])
        for one, schedule in zip(state.schedules, schedules, strict=True):
            if schedule is not None:
                schedule.redefine(one.version, one.body)
                schedule.advance((one.next_version, one.next_due), one.last_due, one.fired)
