"""Schedules: messages that come to a queue at set times, each due time once.

    store.schedule("nightly", cron="0 3 * * *", timezone="Europe/Berlin", queue="jobs")
    store.schedule("poll", every=60.0, queue="jobs", value=b"...")
    for schedule in store.schedules(): print(schedule.name, schedule.next_due, schedule.error)

A schedule is part of the store: it goes on when the store is opened again. See
`upkeep/schedules.py` for how messages are put, and `docs/schedules.md` for what is promised.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

import msgspec

from stratalog.arguments import check_bytes, check_headers, check_text
from stratalog.errors import OptionError, UnknownScheduleError, WrongTypeError
from stratalog.format.schedules import ScheduleBody
from stratalog.options import check_range, seconds
from stratalog.reports import ScheduleStats
from stratalog.state.catalog import Catalog
from stratalog.state.recovery import Replay
from stratalog.state.schedules import ScheduleState
from stratalog.upkeep.due_times import check_cron, check_zone
from stratalog.upkeep.rounds import Upkeep
from stratalog.upkeep.schedules import Scheduler, due_times_of, headers_of, missing
from stratalog.view import View

if TYPE_CHECKING:
    from stratalog.handles.queue import Queue
    from stratalog.handles.store import Store

NAME_BYTES_MAX = 255


class Schedule:
    """Puts messages into a queue at set times: see `Store.schedule`."""

    def __init__(
        self,
        store: Store,
        replay: Replay,
        catalog: Catalog,
        scheduler: Scheduler | None,
        state: ScheduleState,
    ) -> None:
        self._store = store
        self._replay = replay
        self._catalog = catalog
        self._scheduler = scheduler
        self._id = state.id
        assert state.body is not None
        self._name = state.body.name

    @property
    def name(self) -> str:
        """Name of the schedule."""
        return self._name

    @property
    def queue(self) -> str:
        """Name of the queue that its messages go to."""
        return self._body().queue

    @property
    def is_paused(self) -> bool:
        """Whether it waits for `resume`."""
        return self._body().is_paused

    @property
    def is_dropped(self) -> bool:
        """Whether the schedule is gone."""
        return self._replay.schedules.get(self._id) is None

    @property
    def next_due(self) -> datetime | None:
        """When the next message comes; None while it is paused."""
        state = self._state()
        return None if self.is_paused else _moment(state.next_due)

    @property
    def last_due(self) -> datetime | None:
        """The due time of the newest message; None before there was one."""
        state = self._state()
        return _moment(state.last_due) if state.fired else None

    @property
    def error(self) -> str | None:
        """Why it puts nothing, if it does not: its queue was dropped, or what failed last."""
        state = self._state()
        if self._scheduler is not None:
            return self._scheduler.problem(state)
        return missing(self._catalog, state)

    def stats(self) -> ScheduleStats:
        """Numbers about the schedule."""
        state, body, error = self._state(), self._body(), self.error
        return ScheduleStats(
            id=body.id,
            name=body.name,
            queue=body.queue,
            cron=body.cron,
            every=body.every / 1e9 or None,
            timezone=body.timezone if body.cron else None,
            state="failed" if error else "paused" if body.is_paused else "running",
            error=error,
            next_due=None if body.is_paused else state.next_due,
            last_due=state.last_due if state.fired else None,
            fired=state.fired,
            created_at=body.created_at,
        )

    def pause(self) -> None:
        """Put nothing more, from when this returns until `resume`; survives a restart."""
        if not self.is_paused:
            self._change(is_paused=True)

    def resume(self) -> None:
        """Go on with the next due time; those that passed while it was paused do not come."""
        if self.is_paused:
            body, state = self._body(), self._state()
            due = _first_due(body, self._store.clock.time_ns(), state)
            self._change(is_paused=False, first_due=due)

    def drop(self) -> None:
        """Remove the schedule for good; messages that it has put stay in the queue."""
        self._change(is_dropped=True)

    def _change(self, **change: Any) -> None:
        self._store.check_writable()
        assert self._scheduler is not None
        self._scheduler.change(self._state(), msgspec.structs.replace(self._body(), **change))

    def _state(self) -> ScheduleState:
        self._store.check_open()
        self._store.look_for_schedules()
        state = self._replay.schedules.get(self._id)
        if state is None:
            raise UnknownScheduleError(
                f"The schedule {self._name!r} was dropped. Call store.schedule() to make it again."
            )
        return state

    def _body(self) -> ScheduleBody:
        body = self._state().body
        assert body is not None
        return body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and (self._replay, self._id) == (
            other._replay,
            other._id,
        )

    def __hash__(self) -> int:
        return hash((id(self._replay), self._id))

    def __repr__(self) -> str:
        return f"<stratalog.Schedule {self._name!r}>"


class ScheduleStore:
    """The methods of a store for schedules."""

    _catalog: Catalog
    _replay: Replay
    _topics_lock: threading.Lock
    _upkeep: Upkeep | None
    _view: View | None

    def schedule(
        self,
        name: str,
        *,
        queue: str,
        value: bytes | bytearray | memoryview | None = b"",
        cron: str | None = None,
        every: float | timedelta | None = None,
        timezone: str | ZoneInfo | None = None,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        ttl: float | timedelta | None = None,
    ) -> Schedule:
        """Have a message put into a queue at set times, from now on, each due time once.

        `cron` is an expression of five fields (or six, with seconds first) that is read in
        `timezone`, UTC unless said; `every` is a number of seconds, counted from now. A schedule of
        that name with the same settings is returned as it is; with others it has these from now on.
        Messages have the headers `schedule.name` and `schedule.due`.
        """
        store = cast("Store", self)
        store.check_writable()
        name = _check_name(name)
        wanted = _settings(value, cron, every, timezone, headers, priority, ttl)
        target = store.queue(queue)  # created only for a schedule that can be
        if ttl is None:
            wanted["ttl"] = target.ttl_ns
        now = store.clock.time_ns()
        body = ScheduleBody(1, name, target.name, now, now, 0, **wanted)
        body = msgspec.structs.replace(body, first_due=_first_due(body, now))
        _check_target(target, body)
        assert self._upkeep is not None
        scheduler = self._upkeep.scheduler
        with self._topics_lock:
            found = self._replay.schedules.named(name)
            if found is None:
                found = scheduler.create(body)
            elif found.body is not None and _definition(found.body) != _definition(body):
                old = found.body
                scheduler.change(found, msgspec.structs.replace(
                    body, id=old.id, created_at=old.created_at, is_paused=old.is_paused,
                    first_due=_first_due(body, now, found),
                ))  # fmt: skip
            return Schedule(store, self._replay, self._catalog, scheduler, found)

    def schedules(self) -> list[Schedule]:
        """All schedules, in the order they were made; those whose queue was dropped as well."""
        store = cast("Store", self)
        store.check_open()
        self.look_for_schedules()
        scheduler = None if self._upkeep is None else self._upkeep.scheduler
        return [
            Schedule(store, self._replay, self._catalog, scheduler, state)
            for state in self._replay.schedules.all()
        ]

    def run_schedules(self) -> int:
        """Put what is due now; returns how many messages. It happens by itself in the background.

        For tests with a clock of their own, and stores without background work.
        """
        cast("Store", self).check_writable()
        assert self._upkeep is not None
        return self._upkeep.scheduler.run()

    def look_for_schedules(self) -> None:
        """Take in what another process has written of schedules since."""
        if self._view is not None:
            self._view.refresh()


def _moment(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns / 1e9, UTC)


def _first_due(body: ScheduleBody, now: int, state: ScheduleState | None = None) -> int:
    """The first due time from now on, and after all that had their messages."""
    return due_times_of(body).after(now if state is None else max(now, state.last_due))


def _check_name(name: Any) -> str:
    if not isinstance(name, str):
        raise WrongTypeError(f"a schedule is named by text, not {type(name).__name__}: {name!r}")
    if not 0 < len(check_text("name", name) or b"") <= NAME_BYTES_MAX or not name.isprintable():
        raise OptionError(f"name={name!r} must be 1 to {NAME_BYTES_MAX} bytes of text on one line")
    return name


def _settings(
    value: Any, cron: Any, every: Any, timezone: Any, headers: Any, priority: Any, ttl: Any
) -> dict[str, Any]:  # fmt: skip
    if (cron is None) == (every is None):
        given = "neither was" if cron is None else "both were"
        raise OptionError(f"A schedule has cron or every, and {given} given. Give one of them.")
    if every is not None and timezone is not None:
        raise OptionError(
            f"timezone={timezone!r} is for cron: every={every!r} is the same in all time zones"
        )
    pairs = check_headers(headers or {})
    return {
        "value": check_bytes("value", value),
        "cron": None if cron is None else check_cron(cron),
        "every": 0 if every is None else max(round(seconds("every", every) * 1e9), 1),
        "timezone": "UTC" if timezone is None else check_zone(timezone),
        "headers": {name.decode(): item for name, item in pairs},
        "priority": check_range("priority", priority, 0, 255),
        "ttl": 0 if ttl is None else round(seconds("ttl", ttl) * 1e9),
    }


def _check_target(target: Queue, body: ScheduleBody) -> None:
    topic = target.topic
    if topic.log.is_ephemeral:
        raise OptionError(
            f"Queue {target.name!r} is ephemeral: its messages are never in the log, so that none "
            "could come exactly once. Schedule messages for a queue of another durability."
        )
    headers = headers_of(body, body.first_due)
    size = len(body.value or b"") + sum(len(name) + len(item) + 8 for name, item in headers)
    topic.check_size(size)


def _definition(body: ScheduleBody) -> ScheduleBody:
    """A schedule without what time has made of it."""
    return msgspec.structs.replace(
        body, id=1, created_at=0, anchor=0, first_due=0, is_paused=False, is_dropped=False
    )
