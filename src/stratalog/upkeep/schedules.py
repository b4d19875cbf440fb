"""Put the messages of schedules into their queues when they are due, each due time once.

The message and the due time that follows are one frame of the queue's shard: after a crash both are
there or neither. Due times that passed while no process had the store open, or while its clock
stood still, come to one message, for the newest of them.

What cannot be put, because a queue was dropped or a disk is full, is that schedule's failure:
`problem` says it, it is tried again, and the other schedules go on.

Concurrency: `_lock` is held while a message is put or a schedule changes, so that nothing is put
once `pause` or `drop` has returned. Locks of shards are taken inside it.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime

import msgspec

from stratalog.clock import Clock
from stratalog.consume.queue_engine import Deliveries
from stratalog.errors import StratalogError
from stratalog.format.columns import Columns, Header, encode_columns
from stratalog.format.frame import FrameType
from stratalog.format.schedules import ScheduleBody, encode_due, encode_schedule
from stratalog.log.commit_group import Entry, records_entry
from stratalog.log.interrupts import Background, Signal
from stratalog.log.log import Log
from stratalog.log.topic import TopicLog
from stratalog.state.catalog import Catalog
from stratalog.state.recovery import Replay
from stratalog.state.schedules import ScheduleState
from stratalog.upkeep.due_times import DueTimes, due_times
from stratalog.upkeep.store_frames import commit_noted, note, write_definition

logger = logging.getLogger("stratalog.schedules")

NAME_HEADER = "schedule.name"
DUE_HEADER = "schedule.due"
"""Headers of messages that a schedule puts: its name, and the due time in ISO 8601."""

# How long to sleep at most: a wall clock may be set while the thread waits.
_LOOK_SECONDS = 0.5

# What failed is not tried again sooner.
_RETRY_SECONDS = 1.0


class Scheduler:
    """The schedules of one store."""

    def __init__(self, log: Log, replay: Replay, catalog: Catalog, clock: Clock) -> None:
        self._log = log
        self._replay = replay
        self._catalog = catalog
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = Signal()
        self._thread: Background | None = None
        self._is_background = False
        self._is_stopped = False
        self._next_id = 0
        self._failures: dict[int, tuple[str, float]] = {}
        """The failure of each schedule, and when it happened."""

    # --- in the background ----------------------------------------------------------------

    def start(self) -> None:
        """Begin, in a thread once there is a schedule."""
        self._is_background = True
        if self._replay.schedules.all():
            with self._lock:
                self._run_thread()

    def _run_thread(self) -> None:
        if self._is_background and self._thread is None and not self._is_stopped:
            self._thread = Background(self._run, "stratalog-schedules")
            self._thread.start()

    def stop(self) -> None:
        """End the thread, once its frame is committed; may be repeated."""
        self._is_stopped = True
        self._wake.give()
        if self._thread is not None:
            self._thread.wait()

    def _run(self) -> None:
        while not self._is_stopped:
            self._round(is_patient=True)
            self._wake.take(self._seconds_left())

    def _seconds_left(self) -> float:
        """How long nothing is due, at most as long as the clock is trusted."""
        due = [one.next_due for one in self._running() if one.id not in self._failures]
        left = (min(due) - self._clock.time_ns()) / 1e9 if due else _LOOK_SECONDS
        return min(max(left, 0.0), _LOOK_SECONDS)

    # --- what schedules there are ---------------------------------------------------------

    def _running(self) -> list[ScheduleState]:
        return [
            one
            for one in self._replay.schedules.all()
            if one.body is not None and not one.body.is_paused
        ]

    def problem(self, schedule: ScheduleState) -> str | None:
        """Say why a schedule puts nothing, if it does not."""
        failed = self._failures.get(schedule.id)
        return missing(self._catalog, schedule) or (None if failed is None else failed[0])

    def create(self, body: ScheduleBody) -> ScheduleState:
        """Make a schedule, durably; the id of `body` does not count."""
        with self._lock:
            # Never one that may be on its way into the log since Ctrl-C came.
            self._next_id = id = max(self._next_id + 1, self._replay.schedules.next_id)
            self._run_thread()
            self._write(0, msgspec.structs.replace(body, id=id))
        self._wake.give()
        schedule = self._replay.schedules.get(id)
        assert schedule is not None
        return schedule

    def change(self, schedule: ScheduleState, body: ScheduleBody) -> None:
        """Give a schedule another definition, durably; nothing is put as it was after that."""
        with self._lock:
            if self._replay.schedules.get(schedule.id) is schedule:  # else it was dropped already
                self._write(schedule.version + 1, body)
            self._failures.pop(schedule.id, None)
        self._wake.give()

    def _write(self, version: int, body: ScheduleBody) -> None:
        data = encode_schedule(body)
        entry = note(FrameType.SCHEDULE, version, data, self._replay.schedules.apply)
        write_definition(self._log, entry)

    # --- putting --------------------------------------------------------------------------

    def run(self) -> int:
        """Put what is due now, without the thread; returns how many messages that was."""
        return self._round(is_patient=False)

    def _round(self, *, is_patient: bool) -> int:
        count = 0
        running = self._running()
        kept = {one.id for one in running}
        self._failures = {id: why for id, why in self._failures.items() if id in kept}
        for schedule in running:
            failed = self._failures.get(schedule.id)
            if is_patient and failed and time.monotonic() - failed[1] < _RETRY_SECONDS:
                continue
            try:
                with self._lock:
                    count += self._put_if_due(schedule)
                self._failures.pop(schedule.id, None)
            # Whatever it is: a thread that ends in silence would leave all schedules as they are.
            except Exception as error:
                if not self._is_stopped:
                    self._fail(schedule, error)
        return count

    def _fail(self, schedule: ScheduleState, error: Exception) -> None:
        text = str(error) or type(error).__name__
        body = schedule.body
        if self._failures.get(schedule.id, ("",))[0] != text and body is not None:
            root = self._replay.pool.root
            logger.warning(
                "%s: the schedule %r put nothing, and will try again: %s", root, body.name, text,
                exc_info=not isinstance(error, StratalogError | OSError),
                extra={"store": root, "schedule": body.name, "error": text},
            )  # fmt: skip
        self._failures[schedule.id] = (text, time.monotonic())

    def _put_if_due(self, schedule: ScheduleState) -> bool:
        """Put a message if it is time; the lock is held."""
        body, now = schedule.body, self._clock.time_ns()
        is_known = self._replay.schedules.get(schedule.id) is schedule
        if body is None or body.is_paused or not is_known or self._is_stopped:
            return False
        topic = self._catalog.get(body.queue)
        if schedule.next_due > now or topic is None or missing(self._catalog, schedule):
            return False
        times = due_times_of(body)
        # The newest one that passed; rules of a time zone may have changed since it was computed.
        due = max(times.newest(now), schedule.next_due)
        data = encode_due(schedule.id, due, times.after(now), schedule.fired + 1)
        put = note(FrameType.DUE, schedule.version, data, self._replay.schedules.apply)
        engine = topic.groups.live.get(0)
        if isinstance(engine, Deliveries):  # consumers look for messages of this priority
            engine.most_urgent_put = min(engine.most_urgent_put, body.priority)
        commit_noted(self._log, topic, message(topic, body, due, now), put)
        return True


def message(topic: TopicLog, body: ScheduleBody, due: int, now: int) -> Entry:
    """The message of a due time, as a frame of the queue."""
    columns = Columns([body.value])
    columns.headers = [headers_of(body, due)]
    if body.priority:
        columns.priorities = [body.priority]
    if body.ttl:
        columns.expires_at = [now + body.ttl]
    return records_entry(topic, *encode_columns(columns), 1)


def headers_of(body: ScheduleBody, due: int) -> tuple[Header, ...]:
    """The headers of a message: those that were given, the schedule's name, and the due time."""
    moment = datetime.fromtimestamp(due / 1e9, UTC).isoformat(timespec="milliseconds")
    own = {NAME_HEADER: body.name.encode(), DUE_HEADER: moment.encode()}
    return tuple((name.encode(), value) for name, value in (body.headers | own).items())


def due_times_of(body: ScheduleBody) -> DueTimes:
    """When a schedule is due."""
    return due_times(body.cron, body.every, body.anchor, body.timezone)


def missing(catalog: Catalog, schedule: ScheduleState) -> str | None:
    """Say that the queue of a schedule is not there, if it is not."""
    body = schedule.body
    assert body is not None
    topic = catalog.get(body.queue)
    if topic is not None and topic.kind == "queue":
        return None
    return (
        f"Queue {body.queue!r} of the schedule {body.name!r} was dropped. Make a queue of that "
        "name, or drop the schedule."
    )
