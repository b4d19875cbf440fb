"""Schedules: a message for every due time, once, whatever happens in between."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.crash.model import kill, open_store

import stratalog
from stratalog.errors import (
    ClosedError,
    OptionError,
    ReadOnlyError,
    StratalogError,
    TooLargeError,
    UnknownScheduleError,
    WrongKindError,
    WrongTypeError,
)
from stratalog.handles.store import Store
from stratalog.model import Record
from stratalog.testing import FakeDisk, Fault, FaultFs, ManualClock
from stratalog.upkeep.due_times import check_cron, due_times

SECOND = 10**9


def _ns(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp()) * SECOND


def _clock(text: str = "2026-11-18T12:00:00+00:00") -> ManualClock:
    clock = ManualClock()
    clock.jump(_ns(text) / 1e9 - clock.time_ns() / 1e9)
    return clock


def _open(disk: FakeDisk, clock: ManualClock) -> Store:
    return open_store(disk, clock, shards=2)


def _messages(store: Store, queue: str = "jobs") -> list[tuple[bytes | None, str]]:
    """Value and due time of every message, in the order they were put."""
    records = [one for one in store.topic(queue).read() if isinstance(one, Record)]
    return [(one.value, one.headers["schedule.due"].decode()) for one in records]


# --- due times ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "cron", "begin", "expected"),
    [
        ("UTC", "0 3 * * *", "2026-11-18T12:00:00+00:00", ["2026-11-19T03:00:00+00:00"]),
        ("UTC", "@hourly", "2026-11-18T12:00:00+00:00", ["2026-11-18T13:00:00+00:00"]),
        ("UTC", "*/20 * * * * *", "2026-11-18T12:00:30+00:00", ["2026-11-18T12:00:40+00:00"]),
        ("UTC", "0 9 L * *", "2028-02-10T00:00:00+00:00", ["2028-02-29T09:00:00+00:00"]),
        # 02:30 does not exist on that day: it comes when the clocks have gone forward.
        (
            "Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00+00:00",
            ["2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00"],
        ),
        # 02:30 comes twice on that day: only the first counts.
        (
            "Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00+00:00",
            ["2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00"],
        ),
        # Every half hour is every half hour, also while the clocks are set back.
        (
            "Europe/Berlin", "*/30 * * * *", "2026-10-25T00:00:00+00:00",
            ["2026-10-25T00:30:00+00:00", "2026-10-25T01:00:00+00:00"],
        ),
    ],
)  # fmt: skip
def test_due_times_of_cron(zone: str, cron: str, begin: str, expected: list[str]) -> None:
    """In their own time zone, forwards and backwards alike."""
    times = due_times(check_cron(cron), 0, 0, zone)
    now = _ns(begin)
    for text in expected:
        due = times.after(now)
        assert datetime.fromtimestamp(due / SECOND, UTC).isoformat() == text
        assert times.newest(due) == due
        assert times.newest(due + 999_999_999) == due
        assert times.newest(times.after(due) - 1) == due
        now = due


def test_due_times_at_equal_distances() -> None:
    """Counted from the anchor, before and after it."""
    times = due_times(None, 10, 1003, "UTC")
    assert [times.after(now) for now in (990, 1002, 1003, 1012)] == [993, 1003, 1013, 1013]
    assert [times.newest(now) for now in (1003, 1012, 1013)] == [1003, 1003, 1013]


# --- messages ----------------------------------------------------------------------------


def test_every_due_time_comes_once(tmp_path: Path) -> None:
    """With its headers, its priority, and the time to live that was asked for."""
    clock = _clock()
    store = _open(FakeDisk(), clock)
    schedule = store.schedule(
        "nightly", cron="0 3 * * *", timezone="Europe/Berlin", queue="jobs", value=b"clean up",
        headers={"kind": b"k"}, priority=7, ttl=60.0,
    )  # fmt: skip
    assert schedule.next_due == datetime(2026, 11, 19, 2, tzinfo=UTC)
    assert (schedule.last_due, store.run_schedules()) == (None, 0)
    for day in (19, 20):
        clock.advance(86400.0)
        assert store.run_schedules() == 1
        assert store.run_schedules() == 0
        assert schedule.last_due == datetime(2026, 11, day, 2, tzinfo=UTC)
    # The first of both has expired.
    (record,) = (one for one in store.topic("jobs").read() if isinstance(one, Record))
    assert dict(record.headers) == {
        "kind": b"k", "schedule.name": b"nightly", "schedule.due": b"2026-11-20T02:00:00.000+00:00",
    }  # fmt: skip
    assert (record.value, record.priority) == (b"clean up", 7)
    assert record.expires_at == record.timestamp + 60 * SECOND
    message = store.queue("jobs").get_nowait()
    assert message is not None
    assert message.offset == record.offset == 1
    assert schedule.stats().fired == 2
    store.close()


def test_what_was_missed_comes_once() -> None:
    """For the newest due time that passed, however many there were."""
    disk, clock = FakeDisk(), _clock()
    store = _open(disk, clock)
    store.schedule("poll", every=timedelta(minutes=1), queue="jobs", value=b"poll")
    store.schedule("nightly", cron="0 3 * * *", queue="jobs", value=b"nightly")
    store.close()
    clock.advance(10 * 86400.0 + 30)
    store = _open(disk, clock)
    assert store.run_schedules() == 2
    assert _messages(store) == [
        (b"poll", "2026-11-28T12:00:00.000+00:00"), (b"nightly", "2026-11-28T03:00:00.000+00:00"),
    ]  # fmt: skip
    assert store.run_schedules() == 0
    clock.advance(30.0)
    assert store.run_schedules() == 1
    store.close()


def test_a_clock_that_is_set_back_brings_nothing_twice() -> None:
    """The next due time is in the log, and time has to get there."""
    clock = _clock()
    store = _open(FakeDisk(), clock)
    store.schedule("poll", every=60.0, queue="jobs")
    clock.advance(60.0)
    assert store.run_schedules() == 1
    clock.jump(-3600.0)
    assert store.run_schedules() == 0
    clock.advance(3600.0)
    assert store.run_schedules() == 0
    clock.advance(60.0)
    assert store.run_schedules() == 1
    store.close()


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_schedules_survive_a_restart(has_snapshot: bool) -> None:
    """With what they have put; a view sees them, too."""
    disk, clock = FakeDisk(), _clock()
    store = _open(disk, clock)
    schedule = store.schedule("poll", every=60.0, queue="jobs", value=b"poll")
    store.schedule("gone", every=60.0, queue="jobs").drop()
    store.schedule("asleep", cron="@daily", queue="other").pause()
    clock.advance(61.0)
    assert store.run_schedules() == 1
    if has_snapshot:
        store.snapshot()
    before = [one.stats() for one in store.schedules()]
    assert [one.name for one in before] == ["poll", "asleep"]
    store.close()
    store = _open(disk, clock)
    assert [one.stats() for one in store.schedules()] == before
    assert store.run_schedules() == 0
    again = store.schedule("poll", every=60.0, queue="jobs", value=b"poll")
    assert again.stats() == before[0]
    assert schedule != again  # of another open store
    assert again == store.schedules()[0]
    assert len({again, store.schedules()[0]}) == 1
    store.close()


def test_pausing_skips_what_is_due_meanwhile() -> None:
    """Resuming goes on with the next due time after now."""
    clock = _clock()
    store = _open(FakeDisk(), clock)
    schedule = store.schedule("poll", every=60.0, queue="jobs", value=b"poll")
    schedule.pause()
    schedule.pause()
    assert schedule.is_paused
    assert schedule.next_due is None
    clock.advance(150.0)
    assert store.run_schedules() == 0
    schedule.resume()
    schedule.resume()
    assert store.run_schedules() == 0
    clock.advance(30.0)
    assert store.run_schedules() == 1
    assert _messages(store) == [(b"poll", "2026-11-18T12:03:00.000+00:00")]
    store.close()


def test_the_same_call_changes_nothing_and_another_one_does() -> None:
    """As a program declares what it wants whenever it starts."""
    clock = _clock()
    store = _open(FakeDisk(), clock)
    schedule = store.schedule("report", cron="@daily", queue="jobs", value=b"v")
    before = schedule.stats()
    clock.advance(5.0)
    store.schedule("report", cron="0  0 * * *", queue="jobs", value=b"v", timezone=ZoneInfo("UTC"))
    assert schedule.stats() == before
    schedule.pause()
    store.schedule("report", every=10.0, queue="other", value=b"w")
    assert schedule.is_paused
    schedule.resume()
    after = schedule.stats()
    assert (after.id, after.queue, after.cron, after.every) == (before.id, "other", None, 10.0)
    clock.advance(10.0)
    assert store.run_schedules() == 1
    assert [value for value, _ in _messages(store, "other")] == [b"w"]
    store.close()


def test_a_dropped_queue_is_told_and_its_successor_takes_over() -> None:
    """In the schedule, in the store's numbers, and in its metrics."""
    clock = _clock()
    store = _open(FakeDisk(), clock)
    schedule = store.schedule("poll", every=60.0, queue="jobs")
    store.drop_queue("jobs")
    clock.advance(60.0)
    assert store.run_schedules() == 0
    assert schedule.stats().state == "failed"
    assert "Queue 'jobs' of the schedule 'poll' was dropped" in (schedule.error or "")
    assert list(store.stats().failed_schedules) == ["poll"]
    assert store.metrics()["gauges"]["failed_schedules"] == 1
    store.queue("jobs")
    assert schedule.error is None
    assert store.run_schedules() == 1
    assert store.metrics()["counters"]["schedules_fired"] == 1
    store.close()


def test_a_schedule_that_was_dropped_is_gone() -> None:
    """Its messages stay, and its name is free."""
    clock = _clock()
    store = _open(FakeDisk(), clock)
    schedule = store.schedule("poll", every=60.0, queue="jobs")
    clock.advance(60.0)
    store.run_schedules()
    schedule.drop()
    assert schedule.is_dropped
    assert store.schedules() == []
    with pytest.raises(UnknownScheduleError, match="was dropped"):
        schedule.stats()
    with pytest.raises(UnknownScheduleError):
        schedule.pause()
    assert len(store.queue("jobs")) == 1
    assert store.schedule("poll", every=60.0, queue="jobs").stats().fired == 0
    store.close()
    with pytest.raises(ClosedError):
        store.schedules()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"cron": None}, OptionError, "Give one of them"),
        ({"every": 5.0}, OptionError, "Give one of them"),
        ({"cron": None, "every": 5.0, "timezone": "UTC"}, OptionError, "is for cron"),
        ({"cron": None, "every": 0}, OptionError, "every"),
        ({"cron": "0 3 * *"}, OptionError, "cannot be read"),
        ({"cron": "61 * * * *"}, OptionError, "Bad minute"),
        ({"cron": "*/x * * * *"}, OptionError, "cannot be read"),
        ({"cron": "L/2 * * * *"}, OptionError, "cannot be read"),
        ({"cron": "0 0 30 2 *"}, OptionError, "Bad day-of-month"),
        ({"cron": ""}, OptionError, "cannot be read"),
        ({"cron": 5}, WrongTypeError, "must be text"),
        ({"timezone": "Europe/Atlantis"}, OptionError, "not known on this machine"),
        ({"timezone": "../etc/passwd"}, OptionError, "is not the name"),
        ({"timezone": 1}, WrongTypeError, "Europe/Berlin"),
        ({"value": "text"}, WrongTypeError, "encode it first"),
        ({"headers": {"a": "b"}}, WrongTypeError, "header"),
        ({"priority": 256}, OptionError, "priority"),
        ({"ttl": -1}, OptionError, "ttl"),
        ({"queue": "a topic"}, WrongKindError, "topic"),
        ({"queue": "fleeting"}, OptionError, "ephemeral"),
        ({"value": bytes(2000)}, TooLargeError, "1000"),
        ({"name": ""}, OptionError, "name"),
        ({"name": "a\nb"}, OptionError, "one line"),
        ({"name": b"x"}, WrongTypeError, "named by text"),
    ],
)  # fmt: skip
def test_a_bad_schedule_is_refused(
    change: dict[str, Any], error: type[StratalogError], says: str
) -> None:
    """With what is wrong, before anything is made."""
    store = open_store(FakeDisk(), _clock(), record_bytes_max=1000)
    store.topic("a topic")
    store.queue("fleeting", durability="ephemeral")
    given = {"name": "x", "cron": "@daily", "queue": "jobs"} | change
    with pytest.raises(error, match=says):
        store.schedule(given.pop("name"), **given)
    assert store.schedules() == []
    store.close()


def test_a_failed_put_is_told_and_made_up_for(caplog: pytest.LogCaptureFixture) -> None:
    """A disk that is full costs no due time, and no schedule but this one."""
    clock = _clock()
    faults = FaultFs(FakeDisk())
    store = open_store(faults, clock, shards=1)
    schedule = store.schedule("poll", every=60.0, queue="jobs")
    clock.advance(60.0)
    faults.add(Fault(operation="pwrite", error=errno.ENOSPC, path_contains=".log"))
    assert store.run_schedules() == 0
    assert schedule.stats().state == "failed"
    assert "poll" in caplog.text
    assert store.run_schedules() == 1
    assert schedule.error is None
    store.close()


def test_in_the_background_messages_come_by_themselves(tmp_path: Path) -> None:
    """A consumer that waits is woken by a schedule."""
    with stratalog.open(tmp_path / "store") as store:
        store.schedule("soon", every=0.05, queue="jobs", value=b"tick")
        for _ in range(2):
            with store.queue("jobs").get(timeout=30.0) as message:
                assert message.value == b"tick"
    with stratalog.open(tmp_path / "store") as store:  # it goes on
        store.queue("jobs").get(timeout=30.0).ack()
        store.schedules()[0].drop()
    with stratalog.open(tmp_path / "store", read_only=True) as view:
        assert view.schedules() == []
        with pytest.raises(ReadOnlyError):
            view.schedule("soon", every=1.0, queue="jobs")
        with pytest.raises(ReadOnlyError):
            view.run_schedules()


def test_a_view_follows_schedules(tmp_path: Path) -> None:
    """A process beside the writer sees them."""
    with stratalog.open(tmp_path / "store") as store:
        schedule = store.schedule("daily", cron="@daily", queue="jobs")
        with stratalog.open(tmp_path / "store", read_only=True) as view:
            (seen,) = view.schedules()
            assert seen.stats() == schedule.stats()
            assert repr(seen) == "<stratalog.Schedule 'daily'>"
            assert (seen.queue, seen.error) == ("jobs", None)
            schedule.pause()
            store.sync()
            assert seen.is_paused
            with pytest.raises(ReadOnlyError):
                seen.resume()


@pytest.mark.parametrize("act", [Store.close, kill])
def test_a_frame_that_was_lost_is_put_again(act: Callable[[Store], None]) -> None:
    """For a queue below `fsync`: message and due time go together, or stay together."""
    disk, clock = FakeDisk(), _clock()
    store = _open(disk, clock)
    store.queue("jobs", durability="memory")
    store.schedule("poll", every=60.0, queue="jobs", value=b"v")
    clock.advance(60.0)
    assert store.run_schedules() == 1
    act(store)
    disk = disk.crash(1, damage="drop")
    store = _open(disk, clock)
    had = len(_messages(store))
    assert store.run_schedules() == 1 - had
    assert len(_messages(store)) == 1
    store.close()
